//! Self-describing hashes and identities: a code, a length, the digest, and text with its base in
//! front. Source: the multiformats specifications (varint, multihash, multibase, multicodec) and
//! did:key; the codes are those of RFC-002 and RFC-003 of the Open Data Fabric.

use std::fmt;
use std::str::FromStr;

use multibase::Base;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::error::{Error, Result};
use crate::hash::Sha3;

/// The code of SHA3-256.
pub const SHA3_256: u64 = 0x16;
/// The code of the logical hash of Arrow data, `arrow0-sha3-256`.
pub const ARROW0_SHA3_256: u64 = 0x30_0016;
const DIGEST_BYTES: usize = 32;
const ED25519_PUBLIC: [u8; 2] = [0xed, 0x01];
/// Longer text is no hash of ours, and base 58 takes quadratic time.
const MAX_TEXT_BYTES: usize = 512;

/// A hash that says how it was made.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Multihash {
    bytes: Vec<u8>,
    digest_at: usize,
}

impl Multihash {
    /// The SHA3-256 of some bytes.
    pub fn sha3_256(bytes: &[u8]) -> Self {
        Self::new(SHA3_256, &Sha3::digest(bytes))
    }

    /// A digest with its code.
    pub fn new(code: u64, digest: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(digest.len() + 8);
        put_varint(&mut bytes, code);
        put_varint(&mut bytes, digest.len() as u64);
        let digest_at = bytes.len();
        bytes.extend_from_slice(digest);
        Self { bytes, digest_at }
    }

    /// Reads the binary form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::invalid(format!("{} bytes are no multihash", bytes.len()));
        let (code, rest) = take_varint(bytes).ok_or_else(wrong)?;
        let (length, digest) = take_varint(rest).ok_or_else(wrong)?;
        if length != digest.len() as u64 {
            let message = format!("a multihash names {length} bytes and has {}", digest.len());
            return Err(Error::invalid(message));
        }
        if matches!(code, SHA3_256 | ARROW0_SHA3_256) && digest.len() != DIGEST_BYTES {
            let message = format!("a SHA3-256 has 32 bytes, not {}", digest.len());
            return Err(Error::invalid(message));
        }
        Ok(Self::new(code, digest))
    }

    /// The binary form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How it was made.
    pub fn code(&self) -> u64 {
        take_varint(&self.bytes).map_or(0, |(code, _)| code)
    }

    /// The hash alone.
    pub fn digest(&self) -> &[u8] {
        &self.bytes[self.digest_at..]
    }

    /// The text in base 58, as older tools write it.
    pub fn to_base58(&self) -> String {
        multibase::encode(Base::Base58Btc, &self.bytes)
    }
}

impl fmt::Display for Multihash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&multibase::encode(Base::Base16Lower, &self.bytes))
    }
}

impl fmt::Debug for Multihash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Multihash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let with_context = |e: Error| e.context(format!("{text:?}"));
        Self::from_bytes(&decode_multibase(text)?).map_err(with_context)
    }
}

/// Which dataset it is: an ed25519 public key, `did:odf:fed01…`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DatasetId([u8; DIGEST_BYTES]);

/// A new identity and its key.
#[derive(Debug)]
pub struct NewIdentity {
    /// The identity.
    pub id: DatasetId,
    /// The private key, PKCS#8 (version 2). Who has it can prove that the dataset is theirs.
    pub private_key: Vec<u8>,
}

impl DatasetId {
    const PREFIX: &'static str = "did:odf:";

    /// A new key pair.
    pub fn generate() -> Result<NewIdentity> {
        let failed = |_| Error::other("the system gives no random numbers for a new key");
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let unusable = |e| Error::other(format!("a new key cannot be used: {e}"));
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(unusable)?;
        let mut key = [0; DIGEST_BYTES];
        key.copy_from_slice(pair.public_key().as_ref());
        let private_key = document.as_ref().to_vec();
        Ok(NewIdentity {
            id: Self(key),
            private_key,
        })
    }

    /// Reads the binary form: `ed 01` and the key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let key_bytes = bytes.strip_prefix(&ED25519_PUBLIC);
        let key = key_bytes.and_then(|key| key.try_into().ok());
        key.map(Self).ok_or_else(|| {
            let message = format!(
                "{} bytes are no dataset identity: it is ed01 and 32 bytes of an ed25519 key",
                bytes.len()
            );
            Error::invalid(message)
        })
    }

    /// The binary form.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&ED25519_PUBLIC[..], &self.0].concat()
    }

    /// The same key as `did:key`.
    pub fn to_did_key(&self) -> String {
        format!(
            "did:key:{}",
            multibase::encode(Base::Base58Btc, self.to_bytes())
        )
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = multibase::encode(Base::Base16Lower, self.to_bytes());
        write!(f, "{}{key}", Self::PREFIX)
    }
}

impl fmt::Debug for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DatasetId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some(key) = text.strip_prefix(Self::PREFIX) else {
            let message = format!("{text:?} is no dataset identity: those begin with did:odf:");
            return Err(Error::invalid(message));
        };
        let with_context = |e: Error| e.context(format!("{text:?}"));
        Self::from_bytes(&decode_multibase(key)?).map_err(with_context)
    }
}

/// The bytes of multibase text: base 16, base 58 (bitcoin) or base 64 (url).
fn decode_multibase(text: &str) -> Result<Vec<u8>> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("text of {} bytes is no multihash", text.len());
        return Err(Error::invalid(message));
    }
    let wrong = |reason: String| Error::invalid(format!("{text:?} is no multibase text: {reason}"));
    let (base, bytes) = multibase::decode(text).map_err(|e| wrong(e.to_string()))?;
    let is_supported = matches!(base, Base::Base16Lower | Base::Base58Btc | Base::Base64Url);
    if !is_supported {
        return Err(wrong(
            "it begins with f (base 16), z (base 58) or u (base 64)".to_owned(),
        ));
    }
    // One hash has one text in each base, so that no letter of it can change unseen.
    if multibase::encode(base, &bytes) != text {
        return Err(wrong("it is not the shortest and lowest form".to_owned()));
    }
    Ok(bytes)
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push((value & 0x7f) as u8);
}

/// At most nine bytes, without padding: what the multiformats call an unsigned varint.
fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            let padded = *byte == 0 && index > 0;
            return (!padded).then_some((value, &bytes[index + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_the_shortest_form_only() {
        for value in [0, 1, 127, 128, 0x30_0016, u64::MAX >> 1] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            assert_eq!(take_varint(&bytes), Some((value, &[][..])));
        }
        assert_eq!(take_varint(&[0x80, 0x00]), None);
        assert_eq!(take_varint(&[0xff; 10]), None);
        assert_eq!(take_varint(&[]), None);
    }

    #[test]
    fn hashes_and_identities_go_through_text_in_every_base() {
        let hash = Multihash::sha3_256(b"multihash");
        assert_eq!(hash.code(), SHA3_256);
        assert_eq!(hash.to_base58().parse::<Multihash>().unwrap(), hash);
        assert_eq!(hash.to_string().parse::<Multihash>().unwrap(), hash);
        let identity = DatasetId::generate().unwrap();
        assert_eq!(
            identity.id.to_string().parse::<DatasetId>().unwrap(),
            identity.id
        );
        let key = identity.id.to_did_key();
        let text = format!("did:odf:{}", key.strip_prefix("did:key:").unwrap());
        assert_eq!(text.parse::<DatasetId>().unwrap(), identity.id);
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for text in [
            "", "f", "f16", "fzz", "m16", "z0", "f162000", "f1600", "\u{e9}",
        ] {
            assert!(text.parse::<Multihash>().is_err(), "{text:?}");
        }
        for text in [
            "",
            "did:odf:",
            "did:key:z6Mk",
            "did:odf:f1620",
            "did:odf:fed01",
        ] {
            assert!(text.parse::<DatasetId>().is_err(), "{text:?}");
        }
    }
}
