//! Columns whose encoding or codec the decoder does not know, in files of other makers.
//!
//! The decoder of footers refuses a whole file for one such number. So [`decode`] finds the numbers, notes of which
//! leaf column they are, and decodes the footer with known ones in their place: the other columns can be read.
//!
//! Source: `parquet.thrift` of the Parquet format.

use std::collections::{BTreeMap, BTreeSet};

use parquet::errors::Result;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::footer;
use super::thrift::{I16, I64, LIST, STRUCT, ThriftReader, ThriftResult};

/// The id, in the footer, of the list of row groups.
const ROW_GROUPS_FIELD: i32 = 4;
/// The id, in a row group, of the list of its column chunks.
const COLUMNS_FIELD: i32 = 1;
/// The id, in a column chunk, of what describes it.
const METADATA_FIELD: i32 = 3;
/// Field ids of that: the list of encodings, the codec, and the list of the encodings of pages.
const ENCODINGS_FIELD: i32 = 2;
const CODEC_FIELD: i32 = 4;
const PAGE_ENCODINGS_FIELD: i32 = 13;
/// The id, in the encodings of pages, of an encoding.
const PAGE_ENCODING_FIELD: i32 = 2;
const LAST_ENCODING: i64 = 9;
/// A number that was an encoding once.
const NO_ENCODING: i64 = 1;
const LAST_CODEC: i64 = 7;
/// The thrift type of numbers of 32 bits.
const I32: u8 = 5;

/// What is not known of a leaf column, by its index.
pub(super) type UnknownFormats = BTreeMap<usize, String>;

/// The leaf columns of a file that cannot be read.
#[derive(Debug, Default)]
pub(super) struct UnreadableLeaves {
    pub(super) encrypted: BTreeSet<usize>,
    pub(super) unknown: UnknownFormats,
}

/// Decodes a footer.
pub(super) fn decode(footer: &[u8]) -> Result<(ParquetMetaData, UnknownFormats)> {
    let decode = |footer: &[u8]| {
        ParquetMetaDataReader::decode_metadata(footer).and_then(footer::without_false_dictionaries)
    };
    let error = match decode(footer) {
        Ok(metadata) => return Ok((metadata, UnknownFormats::new())),
        Err(error) => error,
    };
    match find(footer) {
        Ok((unknown, known_footer)) if !unknown.is_empty() => Ok((decode(&known_footer)?, unknown)),
        _ => Err(error),
    }
}

/// The unknown encodings and codecs of a footer, and the footer with others in their place.
fn find(footer: &[u8]) -> ThriftResult<(UnknownFormats, Vec<u8>)> {
    let mut search = Search {
        length: footer.len(),
        leaf: 0,
        unknown: UnknownFormats::new(),
        places: Vec::new(),
    };
    let (mut reader, mut last_field_id) = (ThriftReader(footer), 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        if (field, field_type) == (ROW_GROUPS_FIELD, LIST) {
            reader.read_list(&[STRUCT], |group| search.read_group(group))?;
        } else {
            reader.skip_value(field_type, 0)?;
        }
    }
    let mut known = footer.to_vec();
    for (start, end) in search.places {
        if let Some((last, others)) = known.get_mut(start..end).and_then(|n| n.split_last_mut()) {
            // Zero, in as many bytes.
            others.fill(0x80);
            *last = 0;
        }
    }
    Ok((search.unknown, known))
}

struct Search {
    /// The bytes of the footer.
    length: usize,
    leaf: usize,
    unknown: UnknownFormats,
    /// Where the numbers begin and end.
    places: Vec<(usize, usize)>,
}

impl Search {
    fn read_group(&mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        let mut last_field_id = 0;
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            if (field, field_type) == (COLUMNS_FIELD, LIST) {
                self.leaf = 0;
                reader.read_list(&[STRUCT], |chunk| {
                    self.read_chunk(chunk)?;
                    self.leaf += 1;
                    Ok(())
                })?;
            } else {
                reader.skip_value(field_type, 1)?;
            }
        }
        Ok(())
    }

    fn read_chunk(&mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        let mut last_field_id = 0;
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            if (field, field_type) == (METADATA_FIELD, STRUCT) {
                self.read_metadata(reader)?;
            } else {
                reader.skip_value(field_type, 2)?;
            }
        }
        Ok(())
    }

    fn read_metadata(&mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        let mut last_field_id = 0;
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            match (field, field_type) {
                (ENCODINGS_FIELD, LIST) => {
                    reader.read_list(&[I32], |encodings| self.read_encoding(encodings))?;
                }
                (CODEC_FIELD, I16..=I64) => {
                    self.read_number(reader, "codec", |codec| (0..=LAST_CODEC).contains(&codec))?;
                }
                (PAGE_ENCODINGS_FIELD, LIST) => {
                    reader.read_list(&[STRUCT], |pages| self.read_page_encoding(pages))?;
                }
                _ => reader.skip_value(field_type, 3)?,
            }
        }
        Ok(())
    }

    fn read_page_encoding(&mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        let mut last_field_id = 0;
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            if field == PAGE_ENCODING_FIELD && (I16..=I64).contains(&field_type) {
                self.read_encoding(reader)?;
            } else {
                reader.skip_value(field_type, 4)?;
            }
        }
        Ok(())
    }

    fn read_encoding(&mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        self.read_number(reader, "encoding", |encoding| {
            (0..=LAST_ENCODING).contains(&encoding) && encoding != NO_ENCODING
        })
    }

    fn read_number(
        &mut self,
        reader: &mut ThriftReader<'_>,
        name: &str,
        is_known: impl Fn(i64) -> bool,
    ) -> ThriftResult {
        let start = self.length - reader.0.len();
        let number = reader.read_zigzag()?;
        if !is_known(number) {
            self.places.push((start, self.length - reader.0.len()));
            let format = format!("{name} {number}");
            self.unknown.entry(self.leaf).or_insert(format);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer of one row group of two chunks, which have these encodings and codecs.
    fn footer(chunks: [(&[u8], &[u8]); 2]) -> Vec<u8> {
        let chunk = |(encoding, codec): (&[u8], &[u8])| {
            let pages = [b"\x99\x1c\x15\x00\x15", encoding, b"\x15\x02\x00"].concat();
            let fields = [b"\x29\x25\x06", encoding, b"\x25", codec, &pages, b"\x00"].concat();
            [b"\x3c", &fields[..], b"\x00"].concat()
        };
        let group = [b"\x19\x2c", &chunks.map(chunk).concat()[..], b"\x00"].concat();
        [b"\x15\x02\x39\x1c", &group[..], b"\x00"].concat()
    }

    #[test]
    fn unknown_numbers_are_replaced() {
        let known = footer([(b"\x10", b"\x0c"), (b"\x00", b"\x00")]);
        assert_eq!(find(&known), Ok((UnknownFormats::new(), known.clone())));
        // The encodings 1, 10 and 100, and the codecs 8 and -1.
        let cases: [(&[u8], &[u8], &str); 5] = [
            (b"\x02", b"\x0c", "encoding 1"),
            (b"\x14", b"\x0c", "encoding 10"),
            (b"\xc8\x01", b"\x0c", "encoding 100"),
            (b"\x10", b"\x10", "codec 8"),
            (b"\x10", b"\x01", "codec -1"),
        ];
        for (encoding, codec, name) in cases {
            let plain = (&b"\x00"[..], &b"\x00"[..]);
            let unknown = footer([plain, (encoding, codec)]);
            let (formats, replaced) = find(&unknown).unwrap();
            assert_eq!(formats, UnknownFormats::from([(1, name.to_owned())]));
            assert_eq!(replaced.len(), unknown.len());
            assert_eq!(
                find(&replaced),
                Ok((UnknownFormats::new(), replaced.clone()))
            );
            for end in 0..unknown.len() {
                assert!(find(&unknown[..end]).is_err(), "{end}");
            }
        }
    }
}
