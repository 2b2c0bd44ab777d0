//! Self-describing hashes ([`Multihash`]) and the identities of datasets ([`DatasetId`]).
//!
//! A multihash is a code, a length and a digest; an identity is the code of ed25519 and a public key. As text both
//! have the letter of a base in front. Base 16, base 58 (bitcoin) and base 64 (url) are read, base 16 is written.
//!
//! Text and bytes that are neither are [`crate::ErrorKind::InvalidInput`]; so is text that is not the canonical
//! encoding of its bytes, and text that is too long.
//!
//! Source: the multiformats specifications (varint, multihash, multibase, multicodec) and did:key. The codes are
//! those of RFC-002 and RFC-003 of the Open Data Fabric.

use std::fmt;
use std::str::FromStr;

use multibase::Base;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};

use crate::error::{Error, Result};
use crate::sync::hash::Sha3;

/// The code of SHA3-256.
pub const SHA3_256: u64 = 0x16;
/// The code of the logical hash of Arrow data, `arrow0-sha3-256`.
pub const ARROW0_SHA3_256: u64 = 0x30_0016;
const DIGEST_BYTES: usize = 32;
const ED25519_PUBLIC: [u8; 2] = [0xed, 0x01];
/// The longest text that is decoded. Hashes and identities are shorter, and base 58 takes quadratic time.
const MAX_TEXT_BYTES: usize = 512;

/// A digest with the code of its hash function.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Multihash {
    bytes: Vec<u8>,
    digest_at: usize,
}

impl Multihash {
    /// Computes the SHA3-256 of some bytes.
    pub fn sha3_256(bytes: &[u8]) -> Self {
        Self::new(SHA3_256, &Sha3::digest(bytes))
    }

    /// Makes a multihash of a code and a digest.
    pub fn new(code: u64, digest: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(digest.len() + 8);
        put_varint(&mut bytes, code);
        put_varint(&mut bytes, digest.len() as u64);
        let digest_at = bytes.len();
        bytes.extend_from_slice(digest);
        Self { bytes, digest_at }
    }

    /// Reads the binary form. The digest of a SHA3-256 must have 32 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let invalid = || {
            let message = format!(
                "not a multihash: no code and length in {} bytes",
                bytes.len()
            );
            Error::invalid(message)
        };
        let (code, rest) = take_varint(bytes).ok_or_else(invalid)?;
        let (length, digest) = take_varint(rest).ok_or_else(invalid)?;
        if length != digest.len() as u64 {
            let message = format!(
                "not a multihash: expected a digest of {length} bytes, found {}",
                digest.len()
            );
            return Err(Error::invalid(message));
        }
        if matches!(code, SHA3_256 | ARROW0_SHA3_256) && digest.len() != DIGEST_BYTES {
            let message = format!(
                "not a multihash: a SHA3-256 has {DIGEST_BYTES} bytes, not {}",
                digest.len()
            );
            return Err(Error::invalid(message));
        }
        Ok(Self::new(code, digest))
    }

    /// The binary form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The multicodec of the hash function.
    pub fn code(&self) -> u64 {
        take_varint(&self.bytes).map_or(0, |(code, _)| code)
    }

    /// The digest, without code and length.
    pub fn digest(&self) -> &[u8] {
        &self.bytes[self.digest_at..]
    }

    /// Formats the multihash in base 58, as older tools write it.
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

/// The identity of a dataset: an ed25519 public key, as text `did:odf:fed01…`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct DatasetId([u8; DIGEST_BYTES]);

/// A new identity and its key.
#[derive(Debug)]
pub struct NewIdentity {
    /// The identity.
    pub id: DatasetId,
    /// The private key in PKCS#8 (version 2). It proves the ownership of the dataset.
    pub private_key: Vec<u8>,
}

impl DatasetId {
    const PREFIX: &'static str = "did:odf:";

    /// Generates a key pair. An error of the kind [`crate::ErrorKind::Other`] if the system has no random numbers.
    pub fn generate() -> Result<NewIdentity> {
        let failed = |_| Error::other("no key generated: the system provides no random numbers");
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let unusable = |e| Error::other(format!("the new key cannot be read: {e}"));
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
        bytes
            .strip_prefix(&ED25519_PUBLIC)
            .and_then(|key| key.try_into().ok())
            .map(Self)
            .ok_or_else(|| {
                let message = format!(
                    "not a dataset identity: expected ed01 and the {DIGEST_BYTES} bytes of an ed25519 key, found \
                     {} bytes",
                    bytes.len()
                );
                Error::invalid(message)
            })
    }

    /// Returns the binary form: `ed 01` and the key.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&ED25519_PUBLIC[..], &self.0].concat()
    }

    /// Formats the key as `did:key`.
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
            let message = format!(
                "{text:?} is not a dataset identity: it must begin with {}",
                Self::PREFIX
            );
            return Err(Error::invalid(message));
        };
        let with_context = |e: Error| e.context(format!("{text:?}"));
        Self::from_bytes(&decode_multibase(key)?).map_err(with_context)
    }
}

/// Decodes multibase text in base 16, base 58 (bitcoin) or base 64 (url).
fn decode_multibase(text: &str) -> Result<Vec<u8>> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!(
            "not a hash or an identity: text of {} bytes; at most {MAX_TEXT_BYTES} are allowed",
            text.len()
        );
        return Err(Error::invalid(message));
    }
    let invalid =
        |reason: String| Error::invalid(format!("{text:?} is not multibase text: {reason}"));
    let (base, bytes) = multibase::decode(text).map_err(|e| invalid(e.to_string()))?;
    let is_supported = matches!(base, Base::Base16Lower | Base::Base58Btc | Base::Base64Url);
    if !is_supported {
        return Err(invalid(
            "it must begin with f (base 16), z (base 58) or u (base 64)".to_owned(),
        ));
    }
    // A hash has exactly one text in each base, so no letter of the text can change unnoticed.
    if multibase::encode(base, &bytes) != text {
        return Err(invalid("it is not in canonical form".to_owned()));
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

/// Reads an unsigned varint of the multiformats, which has at most nine bytes and no padding. Returns the value and
/// the bytes after it.
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
