//! Checks the pages of a column chunk before they are decompressed, so that damaged or hostile ones do no harm.
//!
//! Every page states its length and its number of values, and decoders allocate memory for what it states, some of it
//! filled with zeros. So the stated length is compared with the most that the codec can make of the compressed bytes.
//!
//! Snappy states the length of what it compressed, too, and decoders fill a page that claims more with zeros. So the
//! two are compared. Of codecs that state none, [`check_expansion`] refuses pages that become longer than they claim.
//!
//! Delta-encoded strings state their number once more. It is compared with the number that their page states, and with
//! what its bytes can say, since decoders allocate memory for the lengths of all.
//!
//! The decoder of flat columns reads its page headers with the same [`PageHeader`].
//!
//! Sources: `parquet.thrift` and `Encodings.md` of the Parquet format. An error is the reason as text.

use std::ops::RangeInclusive;
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
use super::thrift::{FALSE, I16, I64, STRUCT, TRUE, ThriftReader, ThriftResult};
use super::{deltas, expansion};

/// Field ids of a page header: the kind, lengths in bytes, and the headers of the kinds of pages.
const KIND: i32 = 1;
const UNCOMPRESSED: i32 = 2;
const COMPRESSED: i32 = 3;
const DATA_PAGE: i32 = 5;
const DICTIONARY_PAGE: i32 = 7;
const DATA_PAGE_V2: i32 = 8;
/// Field ids of the headers of the kinds of pages; a dictionary page has those of a data page.
const NUM_VALUES: i32 = 1;
const DATA_PAGE_ENCODING: i32 = 2;
const DATA_PAGE_V2_ENCODING: i32 = 4;
const DATA_PAGE_V2_LEVEL_BYTES: i32 = 5;
const DATA_PAGE_V2_REPETITION_BYTES: i32 = 6;
const DATA_PAGE_V2_IS_COMPRESSED: i32 = 7;
/// More than the highest of these ids.
const KIND_FIELDS: usize = 8;
/// Numbers of encodings: strings with delta-encoded lengths, and those that also share prefixes.
const DELTA_LENGTH_BYTE_ARRAY: u64 = 6;
const DELTA_BYTE_ARRAY: u64 = 7;
const OTHER_TYPE: &str = "a field of a page header has another type";
const OTHER_LENGTH: &str = "a page has another length than it claims";
/// The most memory of nulls of a length that no page can hold.
const MAX_NULL_BYTES: u64 = 1 << 30;
/// Nulls of this length are read, however many there are, as they would be beside one value: arrays are made in parts.
const MAX_NULL_WIDTH: u64 = 1 << 20;

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
    header.check_length(column, reader.0)?;
    if header.is_data_page() != rows.is_some() {
        return Err("it is of another kind than the index says".to_owned());
    }
    let descriptor = column.column_descr();
    let Some(rows) = rows else {
        return Ok(());
    };
    check_width(column, rows, header.uncompressed_bytes)?;
    // Without lists a value is a row.
    let has_others = |header: &KindHeader| header.entries != rows as u64;
    if descriptor.max_rep_level() == 0 && header.data_pages().any(has_others) {
        return Err("it has another number of rows than the index says".to_owned());
    }
    if !header.has_deltas() {
        return Ok(());
    }
    header.check_expansion(column, reader.0)?;
    let decoded = decode_page(page, column)?;
    check_deltas(&decoded, descriptor, header.entries()).map_err(str::to_owned)
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

/// The header of a page. One that is damaged or hostile may have several headers of kinds, or none.
#[derive(Debug, Default)]
pub(super) struct PageHeader {
    /// The number of the kind of page.
    pub(super) kind: Option<i64>,
    pub(super) uncompressed_bytes: u64,
    pub(super) compressed_bytes: u64,
    pub(super) data_page: Option<KindHeader>,
    pub(super) dictionary: Option<KindHeader>,
    pub(super) data_page_v2: Option<KindHeader>,
}

/// The header of a kind of page.
#[derive(Debug)]
pub(super) struct KindHeader {
    /// Whether the header has the number of values and their encoding.
    pub(super) is_complete: bool,
    /// The number of values, nulls included.
    pub(super) entries: u64,
    /// The number of the encoding of the values.
    pub(super) encoding: u64,
    /// Whether the values are compressed, if a page of version 2 says it.
    pub(super) is_compressed: Option<bool>,
    /// The numbers by their field ids.
    numbers: [Option<i64>; KIND_FIELDS],
}

/// Checks what the pages of a column chunk of `rows` rows claim. `chunk` is its bytes; `file` has them at their offset.
pub(crate) fn check<R: ChunkReader + 'static>(
    file: R,
    chunk: &[u8],
    column: &ColumnChunkMetaData,
    rows: usize,
) -> Result<(), String> {
    let headers = check_headers(chunk, column, rows)?;
    check_width(column, rows, headers.longest_page)?;
    if !headers.has_deltas {
        return Ok(());
    }
    check_expansion(chunk, column)?;
    let page_reader = SerializedPageReader::new(Arc::new(file), column, rows, None);
    let mut pages = page_reader.map_err(|e| e.to_string())?;
    // Without lists a value is a row; the count that the footer has of the column may be as wrong as the page's.
    let descriptor = column.column_descr();
    let max_values = if descriptor.max_rep_level() == 0 {
        rows as u64
    } else {
        column.num_values().unsigned_abs()
    };
    for _ in 0..headers.pages {
        let Some(page) = pages.get_next_page().map_err(|e| e.to_string())? else {
            break;
        };
        check_deltas(&page, descriptor, max_values)?;
    }
    Ok(())
}

/// What the headers of a chunk's pages say.
#[derive(Default)]
struct ChunkHeaders {
    pages: usize,
    /// Whether a page has delta-encoded strings.
    has_deltas: bool,
    /// The bytes of the longest page, decompressed.
    longest_page: u64,
}

/// Refuses pages that become longer than they claim, of codecs whose decoder would go on. `bytes` is a chunk, or some
/// of its pages.
pub(super) fn check_expansion(bytes: &[u8], column: &ColumnChunkMetaData) -> ThriftResult {
    if !expansion::is_unlimited(column.compression()) {
        return Ok(());
    }
    let mut reader = ThriftReader(bytes);
    while !reader.0.is_empty() {
        // Behind the last value there may be anything, and what cannot be read is not decompressed.
        let Ok(header) = PageHeader::read(&mut reader) else {
            break;
        };
        let Ok(body) = reader.take(header.compressed_bytes) else {
            break;
        };
        header.check_expansion(column, body)?;
    }
    Ok(())
}

/// Checks the lengths that the headers claim. Behind the last value there may be anything.
fn check_headers(
    chunk: &[u8],
    column: &ColumnChunkMetaData,
    rows: usize,
) -> ThriftResult<ChunkHeaders> {
    let is_flat = column.column_descr().max_rep_level() == 0;
    let mut reader = ThriftReader(chunk);
    let (mut headers, mut entries) = (ChunkHeaders::default(), 0_u64);
    while !reader.0.is_empty() {
        let is_read = entries >= column.num_values().unsigned_abs();
        let header = match PageHeader::read(&mut reader) {
            Ok(header) => header,
            Err(_) if is_read => break,
            Err(reason) => return Err(reason),
        };
        let body = match reader.take(header.compressed_bytes) {
            Ok(body) => body,
            Err(_) if is_read => break,
            Err(reason) => return Err(reason),
        };
        header.check(column)?;
        header.check_length(column, body)?;
        if is_flat && !is_read && header.entries() > rows as u64 {
            return Err("a page claims more values than its row group has rows");
        }
        headers.pages += 1;
        headers.has_deltas |= header.has_deltas();
        headers.longest_page = headers.longest_page.max(header.uncompressed_bytes);
        entries = entries.saturating_add(header.entries());
    }
    Ok(headers)
}

/// Refuses values of a fixed length that no page can hold, if nulls of that length would take much memory.
fn check_width(column: &ColumnChunkMetaData, rows: usize, longest_page: u64) -> ThriftResult {
    if column.column_type() != Type::FIXED_LEN_BYTE_ARRAY {
        return Ok(());
    }
    let width = u64::from(column.column_descr().type_length().unsigned_abs());
    if width > longest_page.max(MAX_NULL_WIDTH)
        && width.saturating_mul(rows as u64) > MAX_NULL_BYTES
    {
        return Err("its values are longer than its pages");
    }
    Ok(())
}

impl PageHeader {
    /// Checks the lengths that the header claims.
    fn check(&self, column: &ColumnChunkMetaData) -> ThriftResult {
        if let Some(max_bytes) = expansion::max_bytes(column.compression(), self.compressed_bytes)
            && self.uncompressed_bytes > max_bytes
        {
            return Err("a page claims more bytes than its compressed bytes can become");
        }
        let claims_too_many = |dictionary: &KindHeader| {
            let min_bytes = dictionary.entries.saturating_mul(min_entry_bytes(column));
            min_bytes > self.uncompressed_bytes
        };
        if self.dictionary.as_ref().is_some_and(claims_too_many) {
            return Err("a dictionary claims more values than it has bytes for");
        }
        Ok(())
    }

    /// Compares the claimed length with the one that the compressed bytes begin with, or that of their frames.
    fn check_length(&self, column: &ColumnChunkMetaData, body: &[u8]) -> ThriftResult {
        let codec = column.compression();
        if !matches!(codec, Compression::SNAPPY | Compression::LZ4) {
            return Ok(());
        }
        match self.compressed_values(body)? {
            Some((bytes, claimed)) if codec == Compression::SNAPPY => {
                let is_same = ThriftReader(bytes).read_varint()? == claimed;
                is_same.then_some(()).ok_or(OTHER_LENGTH)
            }
            _ => self.check_expansion(column, body),
        }
    }

    /// Refuses a page that becomes longer than it claims.
    fn check_expansion(&self, column: &ColumnChunkMetaData, body: &[u8]) -> ThriftResult {
        match self.compressed_values(body)? {
            Some((bytes, claimed))
                if expansion::is_longer(column.compression(), bytes, claimed) =>
            {
                Err(OTHER_LENGTH)
            }
            _ => Ok(()),
        }
    }

    /// The compressed bytes of a page, and the length that it claims for them; None if there are none.
    fn compressed_values<'a>(&self, body: &'a [u8]) -> ThriftResult<Option<(&'a [u8], u64)>> {
        let mut levels = 0_u64;
        if let Some(page) = &self.data_page_v2 {
            if page.is_compressed == Some(false) {
                return Ok(None);
            }
            for field in [DATA_PAGE_V2_LEVEL_BYTES, DATA_PAGE_V2_REPETITION_BYTES] {
                levels += to_length(page.number(field).unwrap_or_default())?;
            }
        }
        let mut reader = ThriftReader(body);
        reader.take(levels)?;
        match self.uncompressed_bytes.checked_sub(levels) {
            // Of nothing there may be no compressed bytes either.
            Some(0) => Ok(None),
            Some(claimed) => Ok(Some((reader.0, claimed))),
            None => Err(OTHER_LENGTH),
        }
    }

    fn data_pages(&self) -> impl Iterator<Item = &KindHeader> {
        self.data_page.iter().chain(&self.data_page_v2)
    }

    fn is_data_page(&self) -> bool {
        self.data_pages().next().is_some()
    }

    /// The number of values of a data page, nulls included.
    fn entries(&self) -> u64 {
        self.data_pages().last().map_or(0, |header| header.entries)
    }

    fn has_deltas(&self) -> bool {
        let is_delta = |encoding| matches!(encoding, DELTA_LENGTH_BYTE_ARRAY | DELTA_BYTE_ARRAY);
        self.data_pages().any(|header| is_delta(header.encoding))
    }

    pub(super) fn read(reader: &mut ThriftReader<'_>) -> ThriftResult<Self> {
        let (mut header, mut last_field_id) = (Self::default(), 0);
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            match (field, field_type) {
                (KIND, I16..=I64) => header.kind = Some(reader.read_zigzag()?),
                (UNCOMPRESSED, I16..=I64) => {
                    header.uncompressed_bytes = to_length(reader.read_zigzag()?)?;
                }
                (COMPRESSED, I16..=I64) => {
                    header.compressed_bytes = to_length(reader.read_zigzag()?)?;
                }
                (DATA_PAGE, STRUCT) => {
                    let read = KindHeader::read(reader, DATA_PAGE_ENCODING, 1..=4);
                    header.data_page = Some(read?);
                }
                (DICTIONARY_PAGE, STRUCT) => {
                    let read = KindHeader::read(reader, DATA_PAGE_ENCODING, 1..=2);
                    header.dictionary = Some(read?);
                }
                (DATA_PAGE_V2, STRUCT) => {
                    let read = KindHeader::read(reader, DATA_PAGE_V2_ENCODING, 1..=6);
                    header.data_page_v2 = Some(read?);
                }
                (KIND..=COMPRESSED | DATA_PAGE | DICTIONARY_PAGE | DATA_PAGE_V2, _) => {
                    return Err(OTHER_TYPE);
                }
                _ => reader.skip_value(field_type, 0)?,
            }
        }
        Ok(header)
    }
}

impl KindHeader {
    /// The number in a field; None if it is missing.
    pub(super) fn number(&self, field: i32) -> Option<i64> {
        let index = usize::try_from(field).ok()?;
        *self.numbers.get(index)?
    }

    /// Reads a header in which the fields `integers` are numbers.
    fn read(
        reader: &mut ThriftReader<'_>,
        encoding_field: i32,
        integers: RangeInclusive<i32>,
    ) -> ThriftResult<Self> {
        let (mut numbers, mut is_compressed, mut last_field_id) = ([None; KIND_FIELDS], None, 0);
        while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
            let slot = usize::try_from(field).ok().and_then(|i| numbers.get_mut(i));
            match (slot, field_type) {
                (_, TRUE | FALSE) if field == DATA_PAGE_V2_IS_COMPRESSED => {
                    is_compressed = Some(field_type == TRUE);
                }
                (Some(slot), I16..=I64) => *slot = Some(reader.read_zigzag()?),
                _ if integers.contains(&field) => return Err(OTHER_TYPE),
                _ => reader.skip_value(field_type, 1)?,
            }
        }
        let number = |field: i32| *numbers.get(usize::try_from(field).ok()?)?;
        let (entries, encoding) = (number(NUM_VALUES), number(encoding_field));
        Ok(Self {
            is_complete: entries.is_some() && encoding.is_some(),
            entries: to_length(entries.unwrap_or_default())?,
            encoding: to_length(encoding.unwrap_or_default())?,
            is_compressed,
            numbers,
        })
    }
}

fn to_length(number: i64) -> ThriftResult<u64> {
    u64::try_from(number).map_err(|_negative| "a page has a negative length")
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
    let has_prefixes = encoding == Encoding::DELTA_BYTE_ARRAY;
    deltas::check_strings(&mut reader, has_prefixes, values)
}

/// A reader of the bytes after the levels of a data page.
pub(super) fn skip_levels<'a>(
    page: &'a Page,
    column: &ColumnDescriptor,
) -> ThriftResult<ThriftReader<'a>> {
    split_levels(page, column, |_, _| Ok(()))
}

/// As [`skip_levels`]; passes on the largest level of the column and the run-length encoded levels, of each kind.
pub(super) fn split_levels<'a>(
    page: &'a Page,
    column: &ColumnDescriptor,
    mut pass: impl FnMut(i16, &'a [u8]) -> ThriftResult,
) -> ThriftResult<ThriftReader<'a>> {
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
                if *encoding == Encoding::RLE {
                    let (length_bytes, rest) = reader
                        .0
                        .split_first_chunk()
                        .ok_or("a page is too short for its levels")?;
                    reader = ThriftReader(rest);
                    let length = u32::from_le_bytes(*length_bytes);
                    pass(max_level, reader.take(length.into())?)?;
                } else {
                    let bits = u16::BITS - max_level.unsigned_abs().leading_zeros();
                    reader.take((u64::from(*num_values) * u64::from(bits)).div_ceil(8))?;
                }
            }
        }
        Page::DataPageV2 {
            def_levels_byte_len,
            rep_levels_byte_len,
            ..
        } => {
            let levels = [
                (column.max_rep_level(), rep_levels_byte_len),
                (column.max_def_level(), def_levels_byte_len),
            ];
            for (max_level, length) in levels {
                let bytes = reader.take(u64::from(*length))?;
                if max_level > 0 {
                    pass(max_level, bytes)?;
                }
            }
        }
        Page::DictionaryPage { .. } => {}
    }
    Ok(reader)
}
