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

use super::thrift::{I16, I64, STRUCT, ThriftReader, ThriftResult};

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
    uncompressed_bytes: u64,
    compressed_bytes: u64,
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
    let page_reader = SerializedPageReader::new(Arc::new(file), column, rows, None);
    let mut pages = page_reader.map_err(|e| e.to_string())?;
    // Without lists a value is a row; what the footer says of the column may be as wrong as the page.
    let descriptor = column.column_descr();
    let max_values = if descriptor.max_rep_level() == 0 {
        rows as u64
    } else {
        column.num_values().unsigned_abs()
    };
    while let Some(page) = pages.get_next_page().map_err(|e| e.to_string())? {
        check_deltas(&page, descriptor, max_values)?;
    }
    Ok(())
}

/// Checks the lengths that the headers claim; whether there are texts as deltas.
fn check_headers(chunk: &[u8], column: &ColumnChunkMetaData) -> ThriftResult<bool> {
    let mut reader = ThriftReader(chunk);
    let mut has_deltas = false;
    while !reader.0.is_empty() {
        let header = PageHeader::read(&mut reader)?;
        if let Some(max_bytes) =
            max_decompressed_bytes(column.compression(), header.compressed_bytes)
            && header.uncompressed_bytes > max_bytes
        {
            return Err("a page claims more bytes than its own can be decompressed to");
        }
        if header.entries.saturating_mul(min_entry_bytes(column)) > header.uncompressed_bytes {
            return Err("a dictionary claims more values than it has bytes for");
        }
        has_deltas |= matches!(header.encoding, DELTA_LENGTH_BYTE_ARRAY | DELTA_BYTE_ARRAY);
        reader.skip_bytes(usize::try_from(header.compressed_bytes).unwrap_or(usize::MAX))?;
    }
    Ok(has_deltas)
}

impl PageHeader {
    fn read(reader: &mut ThriftReader<'_>) -> ThriftResult<Self> {
        let (mut header, mut last_field_id) = (Self::default(), 0);
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            match field {
                UNCOMPRESSED if is_integer(field_type) => {
                    header.uncompressed_bytes = read_length(reader)?
                }
                COMPRESSED if is_integer(field_type) => {
                    header.compressed_bytes = read_length(reader)?
                }
                DATA_PAGE if field_type == STRUCT => {
                    header.encoding = read_values_and_encoding(reader, DATA_PAGE_ENCODING)?.1;
                }
                DATA_PAGE_V2 if field_type == STRUCT => {
                    header.encoding = read_values_and_encoding(reader, DATA_PAGE_V2_ENCODING)?.1;
                }
                DICTIONARY_PAGE if field_type == STRUCT => {
                    header.entries = read_values_and_encoding(reader, DATA_PAGE_ENCODING)?.0;
                }
                _ => reader.skip_value(field_type, 0)?,
            }
        }
        Ok(header)
    }
}

fn is_integer(thrift_type: u8) -> bool {
    (I16..=I64).contains(&thrift_type)
}

fn read_length(reader: &mut ThriftReader<'_>) -> ThriftResult<u64> {
    u64::try_from(reader.read_zigzag()?).map_err(|_negative| "a page has a negative length")
}

/// How many values a page of one kind has, and their encoding.
fn read_values_and_encoding(
    reader: &mut ThriftReader<'_>,
    encoding_field: i32,
) -> ThriftResult<(u64, u64)> {
    let (mut count, mut encoding, mut last_field_id) = (0, 0, 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        match field {
            NUM_VALUES if is_integer(field_type) => count = read_length(reader)?,
            _ if field == encoding_field && is_integer(field_type) => {
                encoding = read_length(reader)?
            }
            _ => reader.skip_value(field_type, 1)?,
        }
    }
    Ok((count, encoding))
}

/// The most that so many bytes are decompressed to, of codecs for which the decoder takes that memory at once: Snappy
/// copies 64 bytes by three, LZ4 255 by one, DEFLATE 258 by two bits.
fn max_decompressed_bytes(codec: Compression, compressed_bytes: u64) -> Option<u64> {
    let max_ratio = match codec {
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        Compression::GZIP(_) => 1032,
        _ => return None,
    };
    Some(compressed_bytes.saturating_mul(max_ratio) + SLACK_BYTES)
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
fn check_deltas(page: &Page, column: &ColumnDescriptor, max_values: u64) -> ThriftResult {
    let (encoding, values) = (
        page.encoding(),
        u64::from(page.num_values()).min(max_values),
    );
    let mut reader = match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY => {
            skip_levels(page, column)?
        }
        _ => return Ok(()),
    };
    if encoding == Encoding::DELTA_BYTE_ARRAY {
        // How much of each text is that of the one before, and the lengths of the rest.
        DeltaHeader::read(&mut reader, values)?.skip_blocks(&mut reader)?;
    }
    DeltaHeader::read(&mut reader, values).map(drop)
}

/// What follows the levels of a page of data.
fn skip_levels<'a>(page: &'a Page, column: &ColumnDescriptor) -> ThriftResult<ThriftReader<'a>> {
    let mut reader = ThriftReader(page.buffer());
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
            for (max_level, encoding) in levels.into_iter().filter(|(max_level, _)| *max_level > 0)
            {
                let length = if *encoding == Encoding::RLE {
                    let (length_bytes, rest) =
                        reader.0.split_first_chunk().ok_or("a page is cut")?;
                    reader = ThriftReader(rest);
                    u64::from(u32::from_le_bytes(*length_bytes))
                } else {
                    let bits = u16::BITS - max_level.unsigned_abs().leading_zeros();
                    (u64::from(*num_values) * u64::from(bits)).div_ceil(8)
                };
                reader.skip_bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
            }
        }
        Page::DataPageV2 {
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } => {
            reader.skip_bytes(*rep_levels_byte_len as usize)?;
            reader.skip_bytes(*def_levels_byte_len as usize)?;
        }
        Page::DictionaryPage { .. } => {}
    }
    Ok(reader)
}

/// The head of a run of deltas: blocks of so many miniblocks of so many values.
struct DeltaHeader {
    miniblocks: u64,
    values_each: u64,
    /// Values after the first, which stands in the head.
    remaining_values: u64,
}

impl DeltaHeader {
    fn read(reader: &mut ThriftReader<'_>, max_values: u64) -> ThriftResult<Self> {
        let (block, miniblocks) = (reader.read_varint()?, reader.read_varint()?);
        let values = reader.read_varint()?;
        reader.read_zigzag()?;
        if values > max_values {
            return Err("a page has more lengths than values");
        }
        let values_each = block.checked_div(miniblocks).unwrap_or_default();
        if values_each == 0 {
            return Err("a page has blocks of no values");
        }
        Ok(Self {
            miniblocks,
            values_each,
            remaining_values: values.saturating_sub(1),
        })
    }

    /// Passes over the blocks. Of the last one, miniblocks without values have a width and no bytes.
    fn skip_blocks(mut self, reader: &mut ThriftReader<'_>) -> ThriftResult {
        while self.remaining_values > 0 {
            reader.read_zigzag()?;
            let widths = reader.0;
            reader.skip_bytes(usize::try_from(self.miniblocks).unwrap_or(usize::MAX))?;
            for width in &widths[..widths.len() - reader.0.len()] {
                if self.remaining_values == 0 {
                    break;
                }
                let length = self.values_each.saturating_mul(u64::from(*width)) / 8;
                reader.skip_bytes(usize::try_from(length).unwrap_or(usize::MAX))?;
                self.remaining_values = self.remaining_values.saturating_sub(self.values_each);
            }
        }
        Ok(())
    }
}
