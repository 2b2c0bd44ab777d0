//! Checks the pages of a column chunk before they are decompressed, so that damaged or hostile ones do no harm.
//!
//! Every page states its length and its number of values, and decoders allocate memory for what it states, some of it
//! filled with zeros. So the stated length is compared with the most that the codec can make of the compressed bytes.
//!
//! Delta-encoded strings state their number once more. It is compared with the number that their page states.
//!
//! Sources: `parquet.thrift` and `Encodings.md` of the Parquet format. An error is the reason as text.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescriptor;

use super::chunks::{Chunks, SparseFile};
use super::thrift::{I16, I64, STRUCT, ThriftReader, ThriftResult};

/// Field ids of a page header: lengths in bytes, and the headers of the kinds of pages.
const UNCOMPRESSED: i32 = 2;
const COMPRESSED: i32 = 3;
const DATA_PAGE: i32 = 5;
const DICTIONARY_PAGE: i32 = 7;
const DATA_PAGE_V2: i32 = 8;
/// Field ids of the headers of the kinds of pages; a dictionary page has those of a data page.
const NUM_VALUES: i32 = 1;
const DATA_PAGE_ENCODING: i32 = 2;
const DATA_PAGE_V2_ENCODING: i32 = 4;
/// Numbers of encodings: strings with delta-encoded lengths, and those that also share prefixes.
const DELTA_LENGTH_BYTE_ARRAY: u64 = 6;
const DELTA_BYTE_ARRAY: u64 = 7;
/// Bytes that a page may always have, because codecs have headers of their own.
const SLACK_BYTES: u64 = 1024;

/// Checks what one page of a column chunk claims, given exactly its bytes. `rows` is the number of rows of a data page,
/// None for a dictionary page.
pub(super) fn check_page(
    page: &Bytes,
    column: &ColumnChunkMetaData,
    rows: Option<usize>,
) -> Result<(), String> {
    let mut reader = ThriftReader(page);
    let header = PageHeader::read(&mut reader)?;
    header.check(column)?;
    if header.compressed_bytes != reader.0.len() as u64 {
        return Err("its length is not that of the index".to_owned());
    }
    if header.is_data_page != rows.is_some() {
        return Err("it is of another kind than the index says".to_owned());
    }
    let descriptor = column.column_descr();
    let Some(rows) = rows else {
        return Ok(());
    };
    // Without lists a value is a row.
    if descriptor.max_rep_level() == 0 && header.entries != rows as u64 {
        return Err("it has another number of rows than the index says".to_owned());
    }
    if !header.has_deltas() {
        return Ok(());
    }
    let decoded = decode_page(page, column)?;
    check_deltas(&decoded, descriptor, header.entries).map_err(str::to_owned)
}

/// Decompresses one page.
fn decode_page(page: &Bytes, column: &ColumnChunkMetaData) -> Result<Page, String> {
    let mut chunks = Chunks::new();
    chunks.push(0, page.clone());
    let length = page.len() as u64;
    let file = SparseFile { chunks, length };
    let location = PageLocation {
        offset: 0,
        compressed_page_size: i32::try_from(page.len()).map_err(|_long| "it is too long")?,
        first_row_index: 0,
    };
    // One page alone, at the start of its own chunk.
    let builder = ColumnChunkMetaData::builder(column.column_descr_ptr())
        .set_compression_codec(column.compression_codec())
        .set_data_page_offset(0)
        .set_total_compressed_size(i64::from(location.compressed_page_size));
    let chunk = builder.build().map_err(|e| e.to_string())?;
    let reader = SerializedPageReader::new(Arc::new(file), &chunk, 0, Some(vec![location]));
    let mut pages = reader.map_err(|e| e.to_string())?;
    let decoded = pages.get_next_page().map_err(|e| e.to_string())?;
    decoded.ok_or_else(|| "it is missing".to_owned())
}

#[derive(Default)]
struct PageHeader {
    uncompressed_bytes: u64,
    compressed_bytes: u64,
    /// The encoding of a data page.
    encoding: u64,
    /// The number of values, nulls included.
    entries: u64,
    is_data_page: bool,
}

/// Checks what the pages of a column chunk of `rows` rows claim. `chunk` is its bytes; `file` has them at their offset.
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
    // Without lists a value is a row; the count that the footer has of the column may be as wrong as the page's.
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

/// Checks the lengths that the headers claim; returns whether a page has delta-encoded strings.
fn check_headers(chunk: &[u8], column: &ColumnChunkMetaData) -> ThriftResult<bool> {
    let mut reader = ThriftReader(chunk);
    let mut has_deltas = false;
    while !reader.0.is_empty() {
        let header = PageHeader::read(&mut reader)?;
        header.check(column)?;
        has_deltas |= header.has_deltas();
        reader.skip_bytes(usize::try_from(header.compressed_bytes).unwrap_or(usize::MAX))?;
    }
    Ok(has_deltas)
}

impl PageHeader {
    /// Checks the lengths that the header claims.
    fn check(&self, column: &ColumnChunkMetaData) -> ThriftResult {
        if let Some(max_bytes) = max_decompressed_bytes(column.compression(), self.compressed_bytes)
            && self.uncompressed_bytes > max_bytes
        {
            return Err("a page claims more bytes than its compressed bytes can become");
        }
        let min_bytes = self.entries.saturating_mul(min_entry_bytes(column));
        if !self.is_data_page && min_bytes > self.uncompressed_bytes {
            return Err("a dictionary claims more values than it has bytes for");
        }
        Ok(())
    }

    fn has_deltas(&self) -> bool {
        matches!(self.encoding, DELTA_LENGTH_BYTE_ARRAY | DELTA_BYTE_ARRAY)
    }

    fn read(reader: &mut ThriftReader<'_>) -> ThriftResult<Self> {
        let (mut header, mut last_field_id) = (Self::default(), 0);
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            match field {
                UNCOMPRESSED if is_integer(field_type) => {
                    header.uncompressed_bytes = read_length(reader)?;
                }
                COMPRESSED if is_integer(field_type) => {
                    header.compressed_bytes = read_length(reader)?;
                }
                DATA_PAGE if field_type == STRUCT => {
                    header.is_data_page = true;
                    (header.entries, header.encoding) =
                        read_values_and_encoding(reader, DATA_PAGE_ENCODING)?;
                }
                DATA_PAGE_V2 if field_type == STRUCT => {
                    header.is_data_page = true;
                    (header.entries, header.encoding) =
                        read_values_and_encoding(reader, DATA_PAGE_V2_ENCODING)?;
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

/// The number of values and their encoding, from the header of one kind of page.
fn read_values_and_encoding(
    reader: &mut ThriftReader<'_>,
    encoding_field: i32,
) -> ThriftResult<(u64, u64)> {
    let (mut count, mut encoding, mut last_field_id) = (0, 0, 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        match field {
            NUM_VALUES if is_integer(field_type) => count = read_length(reader)?,
            _ if field == encoding_field && is_integer(field_type) => {
                encoding = read_length(reader)?;
            }
            _ => reader.skip_value(field_type, 1)?,
        }
    }
    Ok((count, encoding))
}

/// The most bytes that the compressed ones can become, for codecs whose decoder allocates them at once; None for other
/// codecs. Snappy copies 64 bytes with three, LZ4 255 with one, DEFLATE 258 with two bits.
fn max_decompressed_bytes(codec: Compression, compressed_bytes: u64) -> Option<u64> {
    let max_ratio = match codec {
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        Compression::GZIP(_) => 1032,
        _ => return None,
    };
    Some(compressed_bytes.saturating_mul(max_ratio) + SLACK_BYTES)
}

/// The fewest bytes of a dictionary entry.
fn min_entry_bytes(column: &ColumnChunkMetaData) -> u64 {
    match column.column_type() {
        Type::INT64 | Type::DOUBLE => 8,
        Type::INT96 => 12,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 4,
        Type::FIXED_LEN_BYTE_ARRAY => column.column_descr().type_length().unsigned_abs().into(),
        Type::BOOLEAN => 1,
    }
}

/// Checks that the deltas of a page claim no more strings than the page has values, and no more than `max_values`.
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
        // First the length of the prefix that each string shares with the one before, then the length of its rest.
        DeltaHeader::read(&mut reader, values)?.skip_blocks(&mut reader)?;
    }
    DeltaHeader::read(&mut reader, values).map(drop)
}

/// A reader of the bytes after the levels of a data page.
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
                    let (length_bytes, rest) = reader
                        .0
                        .split_first_chunk()
                        .ok_or("a page is too short for its levels")?;
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

/// The header of delta-encoded numbers: blocks of `miniblocks` miniblocks with `values_each` values each.
struct DeltaHeader {
    miniblocks: u64,
    values_each: u64,
    /// Values after the first one, which is in the header.
    remaining_values: u64,
}

impl DeltaHeader {
    fn read(reader: &mut ThriftReader<'_>, max_values: u64) -> ThriftResult<Self> {
        let (block, miniblocks) = (reader.read_varint()?, reader.read_varint()?);
        let values = reader.read_varint()?;
        reader.read_zigzag()?;
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
            remaining_values: values.saturating_sub(1),
        })
    }

    /// Skips the blocks. In the last one, miniblocks without values have a width and no bytes.
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
