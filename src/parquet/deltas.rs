//! Delta-encoded numbers, such as the lengths of strings.
//!
//! Source: "Delta Encoding" in the Parquet format's `Encodings.md`.

use super::thrift::{ThriftReader, ThriftResult};

/// The most bits of a delta between lengths.
const MAX_WIDTH: u8 = 32;
/// The most strings with delta-encoded lengths that a page may always have.
const MAX_PAGE_STRINGS: u64 = 1 << 24;
/// More of them need bytes: makers write blocks of 128 lengths, which take five bytes or more.
const MAX_STRINGS_PER_BYTE: u64 = 32;

/// The header of delta-encoded numbers: blocks of `miniblocks` miniblocks with `values_each` values each.
pub(super) struct DeltaHeader {
    pub(super) miniblocks: u64,
    pub(super) values_each: u64,
    pub(super) first: i64,
    /// All values, of which the header has the first one.
    pub(super) values: u64,
}

impl DeltaHeader {
    pub(super) fn read(reader: &mut ThriftReader<'_>, max_values: u64) -> ThriftResult<Self> {
        let (block, miniblocks) = (reader.read_varint()?, reader.read_varint()?);
        let values = reader.read_varint()?;
        let first = reader.read_zigzag()?;
        if values > max_values {
            return Err("a page claims more lengths than values");
        }
        let values_each = block.checked_div(miniblocks).unwrap_or_default();
        if values_each == 0 {
            return Err("a page has delta blocks without values");
        }
        Ok(Self {
            miniblocks,
            values_each,
            first,
            values,
        })
    }

    /// The values after the first one.
    pub(super) fn remaining_values(&self) -> u64 {
        self.values.saturating_sub(1)
    }

    /// Skips the blocks. In the last one, miniblocks without values have a width and no bytes.
    pub(super) fn skip_blocks(self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        let mut remaining = self.remaining_values();
        while remaining > 0 {
            reader.read_zigzag()?;
            let widths = reader.0;
            reader.skip_bytes(usize::try_from(self.miniblocks).unwrap_or(usize::MAX))?;
            for width in &widths[..widths.len() - reader.0.len()] {
                if remaining == 0 {
                    break;
                }
                let length = self.values_each.saturating_mul(u64::from(*width)) / 8;
                reader.skip_bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
                remaining = remaining.saturating_sub(self.values_each);
            }
        }
        Ok(())
    }
}

/// Checks that strings are at most `max_values`, and not more than their bytes can say: decoders allocate memory for
/// the lengths of all.
pub(super) fn check_strings(
    reader: &mut ThriftReader<'_>,
    has_prefixes: bool,
    max_values: u64,
) -> ThriftResult {
    let bytes = reader.0.len() as u64;
    let max_strings = bytes
        .saturating_mul(MAX_STRINGS_PER_BYTE)
        .max(MAX_PAGE_STRINGS);
    let read_header = |reader: &mut ThriftReader<'_>| {
        let header = DeltaHeader::read(reader, max_values)?;
        if header.remaining_values() >= max_strings {
            return Err("a page claims more strings than its bytes can say");
        }
        Ok(header)
    };
    if has_prefixes {
        // First the length of the prefix that each string shares with the one before, then the length of its rest.
        read_header(reader)?.skip_blocks(reader)?;
    }
    read_header(reader).map(drop)
}

/// Delta-encoded numbers, read one after the other: a few bytes may claim more than fit in memory.
pub(super) struct DeltaNumbers<'a> {
    reader: ThriftReader<'a>,
    header: DeltaHeader,
    /// The numbers of the miniblocks that are still to come.
    remaining: u64,
    /// The number before the next one; None before the first.
    last: Option<i64>,
    /// What the steps of the block have in common, and the widths of its miniblocks that are still to come.
    step: i64,
    widths: &'a [u8],
    /// The bytes of the miniblock, the width of its steps, how many were read, and how many there are.
    bytes: &'a [u8],
    width: u64,
    at: u64,
    count: u64,
}

impl<'a> DeltaNumbers<'a> {
    pub(super) fn open(mut reader: ThriftReader<'a>, max_values: u64) -> ThriftResult<Self> {
        let header = DeltaHeader::read(&mut reader, max_values)?;
        Ok(Self {
            reader,
            remaining: header.remaining_values(),
            header,
            last: None,
            step: 0,
            widths: &[],
            bytes: &[],
            width: 0,
            at: 0,
            count: 0,
        })
    }

    /// The next number; None after the last one.
    pub(super) fn read_next(&mut self) -> ThriftResult<Option<i64>> {
        let Some(last) = self.last else {
            self.last = Some(self.header.first);
            return Ok(self.last);
        };
        if self.at == self.count {
            if self.remaining == 0 {
                return Ok(None);
            }
            self.open_miniblock()?;
        }
        let delta = bits_at(self.bytes, self.at * self.width, self.width);
        self.at += 1;
        self.last = Some(last.wrapping_add(self.step.wrapping_add(delta)));
        Ok(self.last)
    }

    fn open_miniblock(&mut self) -> ThriftResult {
        if self.widths.is_empty() {
            self.step = self.reader.read_zigzag()?;
            self.widths = self.reader.take(self.header.miniblocks)?;
        }
        let (width, widths) = self.widths.split_first().ok_or("a delta block is empty")?;
        if *width > MAX_WIDTH {
            return Err("a delta is too wide");
        }
        self.widths = widths;
        self.width = u64::from(*width);
        self.bytes = self
            .reader
            .take(self.header.values_each.saturating_mul(self.width) / 8)?;
        self.at = 0;
        self.count = self.header.values_each.min(self.remaining);
        self.remaining -= self.count;
        Ok(())
    }
}

/// The number of `width` bits that begins at a bit.
fn bits_at(bytes: &[u8], bit: u64, width: u64) -> i64 {
    let start = usize::try_from(bit / 8).unwrap_or(usize::MAX);
    let source = bytes.get(start..).unwrap_or_default();
    let mut word = [0; 8];
    let length = source.len().min(word.len());
    word[..length].copy_from_slice(&source[..length]);
    let mask = (1 << width) - 1;
    (i64::from_le_bytes(word) >> (bit % 8)) & mask
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use parquet::basic::Encoding;

    use super::*;
    use crate::parquet::hand_made::{Values, read, write};

    /// The lengths of strings, as arrow-rs writes them.
    #[test]
    fn lengths_are_those_that_were_written() {
        let lengths = (0..1000_usize).map(|at| at * at % 700 + usize::from(at > 500) * 9);
        let texts: Vec<String> = lengths.map(|length| "x".repeat(length)).collect();
        let values = Values::Bytes(texts.iter().map(|text| text.as_bytes()).collect());
        let column = "optional binary x (UTF8);";
        let bytes = write(column, None, Encoding::DELTA_LENGTH_BYTE_ARRAY, &values);
        // The page begins with its header and 6 bytes of levels, before the size of the first block.
        let mut places = bytes.windows(5).enumerate();
        let start = places.find(|(_, w)| *w == [0x80, 1, 4, 0xe8, 7]).unwrap().0;
        let mut numbers = DeltaNumbers::open(ThriftReader(&bytes[start..]), 1000).unwrap();
        let decoded: Vec<i64> = std::iter::from_fn(|| numbers.read_next().unwrap()).collect();
        let expected = texts.iter().map(|text| i64::try_from(text.len()).unwrap());
        assert_eq!(decoded, expected.collect::<Vec<_>>());
        let arrays = read(&bytes).unwrap();
        assert_eq!(arrays[0].as_string::<i32>().value(700), texts[700]);
    }
}
