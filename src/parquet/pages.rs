//! Whether the pages of a column chunk can be decompressed without harm, looked at before they are.
//!
//! Every page says how long it is and how many values it has, and decoders make room for what it says, some of it
//! filled with zeros. So that is held against the most that its codec makes of the bytes that are there.
//!
//! Texts may be written as deltas, which say again how many they are. That is held against what their page says.

use std::sync::Arc;

use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

use super::thrift::{Bytes, Checked, I16, I64, STRUCT};

/// Of a page header: lengths in bytes, and what the kinds of pages have.
const UNCOMPRESSED: i32 = 2;
const COMPRESSED: i32 = 3;
const DATA_PAGE: i32 = 5;
const DICTIONARY_PAGE: i32 = 7;
const DATA_PAGE_V2: i32 = 8;
/// Of every kind.
const NUM_VALUES: i32 = 1;
const DATA_PAGE_ENCODING: i32 = 2;
const DATA_PAGE_V2_ENCODING: i32 = 4;
/// Encodings by their numbers in Parquet's definition: texts whose lengths, and what they share, are deltas.
const DELTA_LENGTH_BYTE_ARRAY: u64 = 6;
const DELTA_BYTE_ARRAY: u64 = 7;
/// Codecs have headers of their own, so short pages get some room.
const SLACK_BYTES: u64 = 1024;

#[derive(Default)]
struct PageHeader {
    uncompressed: u64,
    compressed: u64,
    /// Of a page of data.
    encoding: u64,
    /// Values of a dictionary.
    entries: u64,
}

/// Checks what the pages of a column chunk of `rows` rows claim; `file` has its bytes, which are `chunk`, at their place.
pub(crate) fn check<R: ChunkReader + 'static>(
    file: R,
    chunk: &[u8],
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<(), String> {
    if !check_headers(chunk, column)? {
        return Ok(());
    }
    let pages = SerializedPageReader::new(Arc::new(file), column, rows, None);
    let mut pages = pages.map_err(|e| e.to_string())?;
    // Without lists a value is a row; what the footer says of the column may be as wrong as the page.
    let descriptor = column.column_descr();
    let most = if descriptor.max_rep_level() == 0 {
        rows as u64
    } else {
        column.num_values().unsigned_abs()
    };
    while let Some(page) = pages.get_next_page().map_err(|e| e.to_string())? {
        check_deltas(&page, descriptor, most)?;
    }
    Ok(())
}

/// Checks the lengths that the headers claim; whether there are texts as deltas.
fn check_headers(chunk: &[u8], column: &ColumnChunkMetaData) -> Checked<bool> {
    let mut bytes = Bytes(chunk);
    let mut has_deltas = false;
    while !bytes.0.is_empty() {
        let page = PageHeader::read(&mut bytes)?;
        if let Some(most) = max_decompressed_bytes(column.compression(), page.compressed)
            && page.uncompressed > most
        {
            return Err("a page claims more bytes than its own can be decompressed to");
        }
        if page.entries.saturating_mul(min_entry_bytes(column)) > page.uncompressed {
            return Err("a dictionary claims more values than it has bytes for");
        }
        has_deltas |= matches!(page.encoding, DELTA_LENGTH_BYTE_ARRAY | DELTA_BYTE_ARRAY);
        bytes.pass(usize::try_from(page.compressed).unwrap_or(usize::MAX))?;
    }
    Ok(has_deltas)
}

impl PageHeader {
    fn read(bytes: &mut Bytes<'_>) -> Checked<Self> {
        let (mut header, mut last) = (Self::default(), 0);
        while let Some((field, kind)) = bytes.field(&mut last)? {
            match field {
                UNCOMPRESSED if is_number(kind) => header.uncompressed = length(bytes)?,
                COMPRESSED if is_number(kind) => header.compressed = length(bytes)?,
                DATA_PAGE if kind == STRUCT => {
                    header.encoding = values_and_encoding(bytes, DATA_PAGE_ENCODING)?.1;
                }
                DATA_PAGE_V2 if kind == STRUCT => {
                    header.encoding = values_and_encoding(bytes, DATA_PAGE_V2_ENCODING)?.1;
                }
                DICTIONARY_PAGE if kind == STRUCT => {
                    header.entries = values_and_encoding(bytes, DATA_PAGE_ENCODING)?.0;
                }
                _ => bytes.skip(kind, 0)?,
            }
        }
        Ok(header)
    }
}

fn is_number(kind: u8) -> bool {
    (I16..=I64).contains(&kind)
}

fn length(bytes: &mut Bytes<'_>) -> Checked<u64> {
    u64::try_from(bytes.signed()?).map_err(|_negative| "a page has a negative length")
}

/// How many values a page of one kind has, and their encoding.
fn values_and_encoding(bytes: &mut Bytes<'_>, encoding_field: i32) -> Checked<(u64, u64)> {
    let (mut count, mut encoding, mut last) = (0, 0, 0);
    while let Some((field, kind)) = bytes.field(&mut last)? {
        match field {
            NUM_VALUES if is_number(kind) => count = length(bytes)?,
            _ if field == encoding_field && is_number(kind) => encoding = length(bytes)?,
            _ => bytes.skip(kind, 1)?,
        }
    }
    Ok((count, encoding))
}

/// The most that so many bytes are decompressed to, of codecs for which the decoder takes that memory at once: Snappy
/// copies 64 bytes by three, LZ4 255 by one, DEFLATE 258 by two bits.
fn max_decompressed_bytes(codec: Compression, compressed: u64) -> Option<u64> {
    let times = match codec {
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        Compression::GZIP(_) => 1032,
        _ => return None,
    };
    Some(compressed.saturating_mul(times) + SLACK_BYTES)
}

/// What an entry of a dictionary has at least.
fn min_entry_bytes(column: &ColumnChunkMetaData) -> u64 {
    match column.column_type() {
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        Type::FIXED_LEN_BYTE_ARRAY => column.column_descr().type_length().unsigned_abs().into(),
        Type::BOOLEAN => 1,
    }
}

/// Checks how many texts the deltas of a page claim: no more than the page has values, and `most` in all.
fn check_deltas(page: &Page, column: &ColumnDescriptor, most: u64) -> Checked {
    let (encoding, values) = (page.encoding(), u64::from(page.num_values()).min(most));
    let mut bytes = match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY => {
            without_levels(page, column)?
        }
        _ => return Ok(()),
    };
    if encoding == Encoding::DELTA_BYTE_ARRAY {
        // How much of each text is that of the one before, and the lengths of the rest.
        Deltas::read(&mut bytes, values)?.pass(&mut bytes)?;
    }
    Deltas::read(&mut bytes, values).map(drop)
}

/// What follows the levels of a page of data.
fn without_levels<'a>(page: &'a Page, column: &ColumnDescriptor) -> Checked<Bytes<'a>> {
    let mut bytes = Bytes(page.buffer());
    match page {
        Page::DataPage {
            num_values,
            def_level_encoding,
            rep_level_encoding,
            ..
        } => {
            let levels = [
                (column.max_rep_level(), rep_level_encoding),
                (column.max_def_level(), def_level_encoding),
            ];
            for (most, encoding) in levels.into_iter().filter(|(most, _)| *most > 0) {
                let length = if *encoding == Encoding::RLE {
                    let (length, rest) = bytes.0.split_first_chunk().ok_or("a page is cut")?;
                    bytes = Bytes(rest);
                    u64::from(u32::from_le_bytes(*length))
                } else {
                    let bits = u16::BITS - most.unsigned_abs().leading_zeros();
                    (u64::from(*num_values) * u64::from(bits)).div_ceil(8)
                };
                bytes.pass(usize::try_from(length).unwrap_or(usize::MAX))?;
            }
        }
        Page::DataPageV2 {
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } => {
            bytes.pass(*rep_levels_byte_len as usize)?;
            bytes.pass(*def_levels_byte_len as usize)?;
        }
        Page::DictionaryPage { .. } => {}
    }
    Ok(bytes)
}

/// The head of a run of deltas: blocks of so many miniblocks of so many values.
struct Deltas {
    miniblocks: u64,
    values_each: u64,
    /// Values after the first, which stands in the head.
    left: u64,
}

impl Deltas {
    fn read(bytes: &mut Bytes<'_>, most: u64) -> Checked<Self> {
        let (block, miniblocks) = (bytes.varint()?, bytes.varint()?);
        let values = bytes.varint()?;
        bytes.signed()?;
        if values > most {
            return Err("a page has more lengths than values");
        }
        let values_each = block.checked_div(miniblocks).unwrap_or_default();
        if values_each == 0 {
            return Err("a page has blocks of no values");
        }
        Ok(Self {
            miniblocks,
            values_each,
            left: values.saturating_sub(1),
        })
    }

    /// Passes over the blocks. Of the last one, miniblocks without values have a width and no bytes.
    fn pass(mut self, bytes: &mut Bytes<'_>) -> Checked {
        while self.left > 0 {
            bytes.signed()?;
            let widths = bytes.0;
            bytes.pass(usize::try_from(self.miniblocks).unwrap_or(usize::MAX))?;
            for width in &widths[..widths.len() - bytes.0.len()] {
                if self.left == 0 {
                    break;
                }
                let length = self.values_each.saturating_mul(u64::from(*width)) / 8;
                bytes.pass(usize::try_from(length).unwrap_or(usize::MAX))?;
                self.left = self.left.saturating_sub(self.values_each);
            }
        }
        Ok(())
    }
}
