//! Object container files of Avro, as far as Iceberg needs them: written, and those of this library read.
//!
//! Source: the Avro specification, "Binary Encoding" and "Object Container Files".

use std::collections::BTreeMap;
use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::sync::hash::Sha3;

const MAGIC: &[u8; 4] = b"Obj\x01";
const SYNC_BYTES: usize = 16;
/// A block is cut after so many bytes.
const BLOCK_BYTES: usize = 64 << 10;
/// The maximum size of the blocks of a file that is read.
const MAX_BYTES: u64 = 1 << 30;

/// Encodes values, one after the other.
#[derive(Debug, Default)]
pub(super) struct AvroEncoder {
    bytes: Vec<u8>,
}

impl AvroEncoder {
    pub(super) fn long(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.bytes.push(rest.to_le_bytes()[0] | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest.to_le_bytes()[0]);
    }

    /// A number that is not negative.
    pub(super) fn count(&mut self, value: u64) {
        self.long(i64::try_from(value).unwrap_or(i64::MAX));
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        self.count(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// The null of a union whose first member it is.
    pub(super) fn null(&mut self) {
        self.long(0);
    }

    /// The second member of a union follows.
    pub(super) fn some(&mut self) {
        self.long(1);
    }

    /// An array, or a map as an array of pairs.
    pub(super) fn array<T>(&mut self, items: &[T], mut encode: impl FnMut(&mut Self, &T)) {
        if !items.is_empty() {
            self.count(items.len() as u64);
            for item in items {
                encode(self, item);
            }
        }
        self.long(0);
    }
}

/// Decodes values; `None` if the bytes are not those of such a value.
#[derive(Debug)]
pub(super) struct AvroDecoder<'a> {
    bytes: &'a [u8],
}

impl<'a> AvroDecoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn long(&mut self) -> Option<i64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
            }
        }
        None
    }

    pub(super) fn count(&mut self) -> Option<u64> {
        u64::try_from(self.long()?).ok()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.long()?).ok()?;
        let (value, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(value)
    }

    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    /// Whether a union has its second member, which follows.
    pub(super) fn is_some(&mut self) -> Option<bool> {
        match self.long()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// An array, or a map as an array of pairs.
    pub(super) fn array<T>(
        &mut self,
        mut decode: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let mut items = Vec::new();
        loop {
            match self.count()? {
                0 => return Some(items),
                count => {
                    for _ in 0..count {
                        items.push(decode(self)?);
                    }
                }
            }
        }
    }
}

/// Writes a file: its metadata, and one value after the other.
pub(super) fn write<T>(
    metadata: &[(&str, String)],
    items: &[T],
    mut encode: impl FnMut(&mut AvroEncoder, &T),
) -> Bytes {
    let mut file = AvroEncoder {
        bytes: MAGIC.to_vec(),
    };
    let codec = [("avro.codec", "deflate".to_owned())];
    let metadata: Vec<_> = metadata.iter().chain(&codec).collect();
    file.array(&metadata, |file, (name, value)| {
        file.bytes(name.as_bytes());
        file.bytes(value.as_bytes());
    });
    let digest = Sha3::digest(&file.bytes);
    let sync = &digest[..SYNC_BYTES];
    file.bytes.extend_from_slice(sync);
    let (mut block, mut count) = (AvroEncoder::default(), 0);
    for (at, item) in items.iter().enumerate() {
        encode(&mut block, item);
        count += 1;
        if block.bytes.len() >= BLOCK_BYTES || at + 1 == items.len() {
            file.long(count);
            file.bytes(&deflate(&block.bytes));
            file.bytes.extend_from_slice(sync);
            (block, count) = (AvroEncoder::default(), 0);
        }
    }
    file.bytes.into()
}

/// The metadata of a file and its values.
pub(super) fn read<T>(
    bytes: &[u8],
    mut decode: impl FnMut(&mut AvroDecoder<'_>) -> Option<T>,
) -> Option<(BTreeMap<String, String>, Vec<T>)> {
    let mut file = AvroDecoder::new(bytes.strip_prefix(MAGIC)?);
    let metadata = file.array(|file| Some((file.text()?, file.text()?)))?;
    let metadata: BTreeMap<String, String> = metadata.into_iter().collect();
    if metadata.get("avro.codec").map(String::as_str) != Some("deflate") {
        return None;
    }
    let (sync, rest) = file.bytes.split_at_checked(SYNC_BYTES)?;
    file.bytes = rest;
    let (mut items, mut remaining) = (Vec::new(), MAX_BYTES);
    while !file.bytes.is_empty() {
        let count = file.count()?;
        let block = inflate(file.bytes()?, remaining)?;
        remaining = remaining.checked_sub(block.len() as u64)?;
        let mut values = AvroDecoder::new(&block);
        for _ in 0..count {
            items.push(decode(&mut values)?);
        }
        file.bytes = file.bytes.strip_prefix(sync)?;
        if !values.bytes.is_empty() {
            return None;
        }
    }
    Some((metadata, items))
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    // Writing into memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

fn inflate(bytes: &[u8], max_bytes: u64) -> Option<Vec<u8>> {
    let mut inflated = Vec::new();
    let mut decoder = DeflateDecoder::new(bytes).take(max_bytes);
    decoder.read_to_end(&mut inflated).ok()?;
    Some(inflated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_bytes_of_the_specification() {
        for (number, bytes) in [
            (0, &[0_u8][..]),
            (-1, &[1]),
            (1, &[2]),
            (-64, &[0x7f]),
            (64, &[0x80, 1]),
        ] {
            let mut encoder = AvroEncoder::default();
            encoder.long(number);
            assert_eq!(encoder.bytes, bytes, "{number}");
        }
        for number in [i64::MIN, i64::MAX, -65, 300] {
            let mut encoder = AvroEncoder::default();
            encoder.long(number);
            assert_eq!(AvroDecoder::new(&encoder.bytes).long(), Some(number));
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let items: Vec<String> = (0..20_000).map(|number| format!("item {number}")).collect();
        let metadata = [("avro.schema", "\"string\"".to_owned())];
        let file = write(&metadata, &items, |block, item| {
            block.bytes(item.as_bytes());
        });
        let (read_metadata, read_items) = read(&file, |file| file.text()).unwrap();
        assert_eq!(read_metadata["avro.schema"], "\"string\"");
        assert_eq!(read_items, items);
        for length in (0..file.len()).step_by(97) {
            let cut = read(&file[..length], |file| file.text());
            assert!(cut.is_none_or(|(_, some)| some.len() < items.len()));
        }
    }
}
