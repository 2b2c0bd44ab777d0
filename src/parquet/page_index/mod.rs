//! The page indexes of a column chunk: where its pages are, which rows they hold, and the bounds of their values.
//!
//! [`ChunkPages`] is decoded from the offset index, [`PageBounds`] from the column index. Both are compared with the
//! checksums in the seal before they are decoded; of another maker's file nothing can be compared. An index that does
//! not fit its checksum, is cut off, or claims what cannot be is an error of the kind [`ErrorKind::PartCorrupted`]. An
//! index that is missing, or that is of another maker and has pages in an unknown order, is None: the chunk is read as
//! a whole. Also None are bounds of another maker that cannot be used, such as those with a negative number of nulls.
//!
//! Source: "Page Index" in the Parquet format, `PageIndex.md` and `parquet.thrift`.

use std::ops::Range;

use bytes::Bytes;
use parquet::file::metadata::{ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};

use super::chunks::Chunks;
use super::file::{ParquetFile, corruption};
use super::pages;
use super::row_ranges::RowRanges;
use super::seal::{PAGE_CHECKSUM_BYTES, PageSeal, hash};
use super::thrift::{BINARY, FALSE, I16, I64, LIST, STRUCT, TRUE, ThriftReader, ThriftResult};
use crate::error::{Error, Result};

/// Row groups of fewer rows are not read by pages: of few rows arrow-rs reads those between the selected ones too.
const MIN_PAGED_ROWS: usize = 1024;

/// Where the index bytes of a chunk lie in the file.
#[derive(Debug, Clone)]
pub(crate) struct IndexRanges {
    offset_index: Range<u64>,
    /// Empty if the pages have no checksums.
    checksums: Range<u64>,
    column_index: Option<Range<u64>>,
    seal: Option<PageSeal>,
}

impl IndexRanges {
    /// The bytes to fetch; those of the bounds only where they are needed.
    pub(crate) fn to_fetch(&self, with_bounds: bool) -> impl Iterator<Item = Range<u64>> {
        let bounds = self.column_index.clone().filter(|_| with_bounds);
        let ranges = [
            Some(self.offset_index.clone()),
            Some(self.checksums.clone()),
            bounds,
        ];
        ranges
            .into_iter()
            .flatten()
            .filter(|range| !range.is_empty())
    }
}

/// The pages of a column chunk.
#[derive(Debug, Clone)]
pub(crate) struct ChunkPages {
    /// The dictionary page; empty if there is none.
    dictionary: Range<u64>,
    /// The data pages, one after the other, up to the end of the chunk.
    locations: Vec<PageLocation>,
    /// The checksums of the dictionary page, if there is one, and of the data pages.
    checksums: Option<Vec<u64>>,
    /// The number of rows of the row group.
    rows: usize,
    /// The number of bytes of the chunk.
    chunk_bytes: u64,
}

/// The bounds of a column chunk's pages.
#[derive(Debug, Clone)]
pub(crate) struct PageBounds {
    /// The smallest and the largest values of the pages; a page of nulls has none.
    pub(crate) index: ColumnIndexMetaData,
    /// The numbers of nulls, if the index has them.
    pub(crate) null_counts: Option<Vec<u64>>,
    /// Whether the bytes match a checksum.
    pub(crate) is_sealed: bool,
}

impl ParquetFile {
    /// Where the indexes of a chunk are; None if its pages cannot be read alone.
    pub(crate) fn index_ranges(&self, group: usize, leaf: usize) -> Option<IndexRanges> {
        let row_group = self.metadata().row_group(group);
        let column = row_group.column(leaf);
        if usize::try_from(row_group.num_rows()).ok()? < MIN_PAGED_ROWS || !self.is_readable(leaf) {
            return None;
        }
        let indexes = self.chunks_end()..self.indexes_end();
        let locate = |offset: Option<i64>, length: Option<i32>| {
            let start = u64::try_from(offset?).ok()?;
            let end = start.checked_add(u64::try_from(length?).ok()?)?;
            (start < end && indexes.start <= start && end <= indexes.end).then_some(start..end)
        };
        let page_seal = match &self.seal {
            Some(seal) => {
                let key = (u32::try_from(group).ok()?, u32::try_from(leaf).ok()?);
                Some(*seal.pages.get(&key)?)
            }
            None => None,
        };
        let checksums = match &page_seal {
            Some(page_seal) => self.checksums_range(page_seal),
            None => 0..0,
        };
        Some(IndexRanges {
            offset_index: locate(column.offset_index_offset(), column.offset_index_length())?,
            checksums,
            column_index: locate(column.column_index_offset(), column.column_index_length()),
            seal: page_seal,
        })
    }

    /// Checks and decodes the offset index of a chunk, given its bytes.
    pub(crate) fn decode_pages(
        &self,
        group: usize,
        leaf: usize,
        ranges: &IndexRanges,
        bytes: &Chunks,
    ) -> Result<Option<ChunkPages>> {
        let row_group = self.metadata().row_group(group);
        let column = row_group.column(leaf);
        let corrupted = |reason: &str| index_error("offset index", column, group, reason);
        let offset_index = fetched(bytes, &ranges.offset_index)?;
        let checksums = fetched(bytes, &ranges.checksums)?;
        if let Some(page_seal) = &ranges.seal
            && page_seal.offset_index_hash != hash(&[&offset_index[..], &checksums[..]].concat())
        {
            return Err(corrupted("it does not match its checksum"));
        }
        let locations = read_offset_index(&offset_index).map_err(corrupted)?;
        let rows = usize::try_from(row_group.num_rows()).unwrap_or_default();
        let chunk = self.chunk_range(group, leaf);
        let checksums = ranges.seal.as_ref().map(|_| read_checksums(&checksums));
        let Some(dictionary) = check_order(&locations, &chunk, rows) else {
            return match checksums {
                Some(_) => Err(corrupted("its pages do not fit the chunk")),
                None => Ok(None),
            };
        };
        let pages = locations.len() + usize::from(!dictionary.is_empty());
        if checksums.as_ref().is_some_and(|c| c.len() != pages) {
            return Err(corrupted("it has other pages than the checksums"));
        }
        // Without checksums nothing but the number of values says whether a page has the rows of the index.
        if checksums.is_none() && column.column_descr().max_rep_level() > 0 {
            return Ok(None);
        }
        Ok(Some(ChunkPages {
            dictionary,
            locations,
            checksums,
            rows,
            chunk_bytes: chunk.end - chunk.start,
        }))
    }

    /// Checks the indexes of a chunk and all of its pages, given the bytes of both.
    pub(crate) fn check_pages(
        &self,
        (group, leaf): (usize, usize),
        ranges: &IndexRanges,
        index_bytes: &Chunks,
        chunks: &Chunks,
    ) -> Result<()> {
        let Some(pages) = self.decode_pages(group, leaf, ranges, index_bytes)? else {
            return Ok(());
        };
        self.decode_bounds(group, leaf, ranges, index_bytes, pages.num_pages())?;
        pages.check(self, (group, leaf), chunks, &RowRanges::all(pages.rows))
    }

    /// Checks and decodes the column index of a chunk of `pages` pages, given its bytes; None if it has none that can
    /// be used.
    pub(crate) fn decode_bounds(
        &self,
        group: usize,
        leaf: usize,
        ranges: &IndexRanges,
        bytes: &Chunks,
        pages: usize,
    ) -> Result<Option<PageBounds>> {
        let column = self.metadata().row_group(group).column(leaf);
        let corrupted = |reason: &str| index_error("column index", column, group, reason);
        let Some(range) = &ranges.column_index else {
            return Ok(None);
        };
        let column_index = fetched(bytes, range)?;
        if let Some(page_seal) = &ranges.seal
            && page_seal.column_index_hash != hash(&column_index)
        {
            return Err(corrupted("it does not match its checksum"));
        }
        let is_sealed = ranges.seal.is_some();
        let parsed = read_column_index(&column_index).map_err(str::to_owned);
        match parsed.and_then(|parts| parts.into_bounds(column, pages, is_sealed)) {
            Ok(bounds) => Ok(Some(bounds)),
            Err(reason) if is_sealed => Err(corrupted(&reason)),
            // Some makers write indexes that make no sense; the pages are right without them.
            Err(_) => Ok(None),
        }
    }
}

impl ChunkPages {
    pub(crate) fn num_pages(&self) -> usize {
        self.locations.len()
    }

    /// The rows of a page.
    pub(crate) fn page_rows(&self, page: usize) -> Range<usize> {
        let row =
            |location: &PageLocation| usize::try_from(location.first_row_index).unwrap_or_default();
        let end = self.locations.get(page + 1).map_or(self.rows, row);
        row(&self.locations[page])..end
    }

    /// The data pages as an offset index.
    pub(crate) fn to_offset_index(&self) -> OffsetIndexMetaData {
        let mut builder = OffsetIndexBuilder::new();
        for (page, location) in self.locations.iter().enumerate() {
            builder.append_offset_and_size(location.offset, location.compressed_page_size);
            let rows = i64::try_from(self.page_rows(page).len());
            builder.append_row_count(rows.unwrap_or(i64::MAX));
        }
        builder.build()
    }

    pub(super) fn locations(&self) -> &[PageLocation] {
        &self.locations
    }

    /// The data pages that hold some of `rows`.
    fn pages_of<'a>(&'a self, rows: &'a RowRanges) -> impl Iterator<Item = usize> + 'a {
        let bounds = rows.bounds();
        let row = |page: &PageLocation| usize::try_from(page.first_row_index).unwrap_or_default();
        let begun = self
            .locations
            .partition_point(|page| row(page) <= bounds.start);
        let end = self
            .locations
            .partition_point(|page| row(page) < bounds.end);
        // The last page that begins by the first row may hold it.
        let first = begun.saturating_sub(1);
        (first..end).filter(|page| rows.overlaps(&self.page_rows(*page)))
    }

    /// The byte ranges of the pages that hold some of `rows`, neighbours joined, after the dictionary page.
    pub(crate) fn ranges(&self, rows: &RowRanges) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let pages = self
            .pages_of(rows)
            .map(|page| byte_range(&self.locations[page]));
        for range in std::iter::once(self.dictionary.clone()).chain(pages) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        ranges.retain(|range| !range.is_empty());
        ranges
    }

    /// The number of bytes of the chunk.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Checks the pages that hold some of `rows`: their checksums, and what their headers claim.
    pub(super) fn check(
        &self,
        file: &ParquetFile,
        (group, leaf): (usize, usize),
        chunks: &Chunks,
        rows: &RowRanges,
    ) -> Result<()> {
        let column = file.metadata().row_group(group).column(leaf);
        let first_data_page = usize::from(!self.dictionary.is_empty());
        let dictionary = (first_data_page == 1).then(|| (0, self.dictionary.clone(), None));
        let data_pages = self.pages_of(rows).map(|page| {
            let range = byte_range(&self.locations[page]);
            (
                first_data_page + page,
                range,
                Some(self.page_rows(page).len()),
            )
        });
        for (number, range, page_rows) in dictionary.into_iter().chain(data_pages) {
            let bytes = fetched(chunks, &range)?;
            let path = || column.column_path().string();
            if self
                .checksums
                .as_ref()
                .is_some_and(|c| c[number] != hash(&bytes))
            {
                return Err(corruption(format!(
                    "checksum of page {number} of column {:?} in row group {group} does not match: the bytes were changed",
                    path()
                )));
            }
            pages::check_page(&bytes, column, page_rows).map_err(|reason| {
                corruption(format!(
                    "page {number} of column {:?} in row group {group} cannot be decoded: {reason}",
                    path()
                ))
            })?;
        }
        Ok(())
    }
}

fn byte_range(location: &PageLocation) -> Range<u64> {
    let start = location.offset.unsigned_abs();
    start..start + u64::from(location.compressed_page_size.unsigned_abs())
}

fn fetched(chunks: &Chunks, range: &Range<u64>) -> Result<Bytes> {
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    let missing = || Error::other(format!("internal error: bytes {range:?} were not fetched"));
    chunks.slice(range).ok_or_else(missing)
}

fn index_error(name: &str, column: &ColumnChunkMetaData, group: usize, reason: &str) -> Error {
    let path = column.column_path().string();
    corruption(format!(
        "the {name} of column {path:?} in row group {group} cannot be read: {reason}"
    ))
}

fn read_checksums(bytes: &[u8]) -> Vec<u64> {
    let (checksums, _) = bytes.as_chunks::<PAGE_CHECKSUM_BYTES>();
    checksums.iter().map(|c| u64::from_le_bytes(*c)).collect()
}

/// The range of the dictionary page, if the data pages fill the rest of the chunk and hold all rows, in order.
fn check_order(locations: &[PageLocation], chunk: &Range<u64>, rows: usize) -> Option<Range<u64>> {
    let first = locations.first()?;
    let in_chunk = |l: &PageLocation| l.offset >= 0 && l.compressed_page_size > 0;
    if !locations.iter().all(in_chunk) || first.first_row_index != 0 {
        return None;
    }
    let follows = |pair: &[PageLocation]| {
        byte_range(&pair[0]).end == byte_range(&pair[1]).start
            && pair[0].first_row_index < pair[1].first_row_index
    };
    let last = locations.last()?;
    let has_rows = usize::try_from(last.first_row_index).is_ok_and(|row| row < rows);
    let fits = locations.windows(2).all(follows)
        && has_rows
        && chunk.start <= byte_range(first).start
        && byte_range(last).end == chunk.end;
    fits.then(|| chunk.start..byte_range(first).start)
}

/// Field ids of an offset index and of its page locations.
const PAGE_LOCATIONS: i32 = 1;
const OFFSET: i32 = 1;
const COMPRESSED_PAGE_SIZE: i32 = 2;
const FIRST_ROW_INDEX: i32 = 3;
/// Field ids of a column index.
const NULL_PAGES: i32 = 1;
const MIN_VALUES: i32 = 2;
const MAX_VALUES: i32 = 3;
const NULL_COUNTS: i32 = 5;

fn read_offset_index(bytes: &[u8]) -> ThriftResult<Vec<PageLocation>> {
    let mut reader = ThriftReader(bytes);
    let (mut locations, mut last_field_id) = (Vec::new(), 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        if field == PAGE_LOCATIONS && field_type == LIST {
            let (count, element_type) = reader.read_list_header()?;
            if element_type != STRUCT {
                return Err("its pages are not a list of structs");
            }
            locations = (0..count)
                .map(|_| read_location(&mut reader))
                .collect::<ThriftResult<_>>()?;
        } else {
            reader.skip_value(field_type, 0)?;
        }
    }
    Ok(locations)
}

fn read_location(reader: &mut ThriftReader<'_>) -> ThriftResult<PageLocation> {
    let (mut numbers, mut last_field_id) = ([None; 3], 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        let number = match field {
            OFFSET => &mut numbers[0],
            COMPRESSED_PAGE_SIZE => &mut numbers[1],
            FIRST_ROW_INDEX => &mut numbers[2],
            _ => {
                reader.skip_value(field_type, 1)?;
                continue;
            }
        };
        if !(I16..=I64).contains(&field_type) {
            return Err("a page has a number of another type");
        }
        *number = Some(reader.read_zigzag()?);
    }
    let [Some(offset), Some(size), Some(first_row_index)] = numbers else {
        return Err("a page has no offset, length or row");
    };
    Ok(PageLocation {
        offset,
        compressed_page_size: i32::try_from(size).map_err(|_large| "a page is too long")?,
        first_row_index,
    })
}

#[derive(Default)]
struct ColumnIndexParts<'a> {
    null_pages: Vec<bool>,
    min_values: Vec<&'a [u8]>,
    max_values: Vec<&'a [u8]>,
    null_counts: Option<Vec<u64>>,
}

fn read_column_index(bytes: &[u8]) -> ThriftResult<ColumnIndexParts<'_>> {
    let mut reader = ThriftReader(bytes);
    let (mut parts, mut last_field_id) = (ColumnIndexParts::default(), 0);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        match (field, field_type) {
            (NULL_PAGES, LIST) => {
                parts.null_pages = reader.read_list(&[TRUE, FALSE], ThriftReader::read_bool)?;
            }
            (MIN_VALUES, LIST) => {
                parts.min_values = reader.read_list(&[BINARY], ThriftReader::read_binary)?;
            }
            (MAX_VALUES, LIST) => {
                parts.max_values = reader.read_list(&[BINARY], ThriftReader::read_binary)?;
            }
            (NULL_COUNTS, LIST) => {
                let count = |r: &mut ThriftReader<'_>| {
                    u64::try_from(r.read_zigzag()?)
                        .map_err(|_negative| "a page has a negative number of nulls")
                };
                parts.null_counts = Some(reader.read_list(&[I64], count)?);
            }
            _ => reader.skip_value(field_type, 0)?,
        }
    }
    let pages = parts.null_pages.len();
    let lengths = [parts.min_values.len(), parts.max_values.len()];
    let fits = |length| length == pages;
    if !lengths.into_iter().all(fits) || !parts.null_counts.as_ref().is_none_or(|c| fits(c.len())) {
        return Err("its lists have different lengths");
    }
    Ok(parts)
}

impl ColumnIndexParts<'_> {
    /// The bounds of `pages` pages, or the reason why there are none.
    fn into_bounds(
        self,
        column: &ColumnChunkMetaData,
        pages: usize,
        is_sealed: bool,
    ) -> std::result::Result<PageBounds, String> {
        if self.null_pages.len() != pages {
            return Err("it has another number of pages than the offset index".to_owned());
        }
        let null_counts = self.null_counts.clone();
        Ok(PageBounds {
            index: self.build(column)?,
            null_counts,
            is_sealed,
        })
    }

    fn build(
        self,
        column: &ColumnChunkMetaData,
    ) -> std::result::Result<ColumnIndexMetaData, String> {
        let mut builder = ColumnIndexBuilder::new(column.column_type());
        let bounds = self.min_values.iter().zip(&self.max_values);
        for (is_null, (min, max)) in self.null_pages.iter().zip(bounds) {
            builder.append(*is_null, min.to_vec(), max.to_vec(), 0);
        }
        builder.build().map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests;
