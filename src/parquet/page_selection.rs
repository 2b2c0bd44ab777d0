//! Reading some rows of a row group by their pages.
//!
//! A [`RowSelection`] is the rows that are needed, and the pages of the columns whose page index was read. It decides
//! for each column whether only the pages with these rows are read, or the whole chunk: small chunks, and those of
//! which most is needed, are cheaper to read as a whole. [`open_reader`] decodes the rows with arrow-rs, from these
//! pages or from whole chunks.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReader, RowGroups, RowSelection as ArrowRowSelection,
};
use parquet::arrow::{ARROW_SCHEMA_META_KEY, parquet_to_arrow_field_levels};
use parquet::column::page::{PageIterator, PageReader};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;

use super::checked_pages::CheckedPages;
use super::chunks::{Chunks, SparseFile};
use super::file::ParquetFile;
use super::page_index::ChunkPages;
use super::pages;
use super::row_ranges::RowRanges;
use crate::error::Result;

/// Chunks of up to so many bytes are read as a whole.
pub(crate) const SMALL_CHUNK_BYTES: u64 = 32 << 10;
/// A column is read by pages if its chunk has at least so many times their bytes.
const MIN_SAVED_FACTOR: u64 = 2;

/// The pages of some chunks of a row group, by leaf column.
pub(crate) type GroupPages = HashMap<usize, ChunkPages>;

/// Some rows of a row group.
#[derive(Debug, Clone)]
pub(crate) struct RowSelection {
    /// The rows that are read.
    pub(crate) rows: RowRanges,
    /// For each of these rows whether it is selected; None selects all.
    pub(crate) mask: Option<BooleanBuffer>,
    pub(crate) pages: Arc<GroupPages>,
}

impl RowSelection {
    /// The number of selected rows.
    pub(crate) fn num_rows(&self) -> usize {
        let mask = self.mask.as_ref();
        mask.map_or_else(|| self.rows.num_rows(), BooleanBuffer::count_set_bits)
    }

    /// For each row from the first to the last whether it is selected; None if all are.
    pub(super) fn mask_of_bounds(&self) -> Option<BooleanBuffer> {
        let ranges = self.rows.as_slice();
        if ranges.len() <= 1 {
            return self.mask.clone();
        }
        let bounds = self.rows.bounds();
        let mut spread = BooleanBufferBuilder::new(bounds.len());
        let mut position = 0;
        for range in ranges {
            spread.append_n(range.start - bounds.start - spread.len(), false);
            match &self.mask {
                Some(mask) => spread.append_buffer(&mask.slice(position, range.len())),
                None => spread.append_n(range.len(), true),
            }
            position += range.len();
        }
        Some(spread.finish())
    }

    /// The byte ranges of the pages to read of a top-level field; None if its chunks are read as a whole.
    pub(crate) fn page_ranges(&self, file: &ParquetFile, root: usize) -> Option<Vec<Range<u64>>> {
        let (mut ranges, mut chunk_bytes) = (Vec::new(), 0);
        for leaf in file.leaves(root) {
            let pages = self.pages.get(&leaf)?;
            chunk_bytes += pages.chunk_bytes();
            ranges.extend(pages.ranges(&self.rows));
        }
        let page_bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let is_most = page_bytes > chunk_bytes / MIN_SAVED_FACTOR;
        (chunk_bytes > SMALL_CHUNK_BYTES && !is_most).then_some(ranges)
    }

    /// Checks the pages of a top-level field.
    pub(super) fn check(
        &self,
        file: &ParquetFile,
        group: usize,
        root: usize,
        chunks: &Chunks,
    ) -> Result<()> {
        let leaves = file.leaves(root);
        let mut with_pages = leaves.filter_map(|leaf| Some((leaf, self.pages.get(&leaf)?)));
        with_pages
            .try_for_each(|(leaf, pages)| pages.check(file, (group, leaf), chunks, &self.rows))
    }
}

/// A reader of `rows` of a top-level field. If there are `pages`, it reads only those that hold some of the rows.
///
/// The gaps between ranges of rows are wide, so arrow-rs skips them instead of reading and masking them. If it read a
/// page that was not fetched, that would be an error.
pub(super) fn open_reader(
    file: &ParquetFile,
    group: usize,
    root: usize,
    (chunks, pages): (&SparseFile, Option<&GroupPages>),
    (rows, batch_rows): (&RowRanges, usize),
) -> std::result::Result<ParquetRecordBatchReader, ParquetError> {
    let metadata = file.metadata();
    let descriptor = metadata.file_metadata().schema_descr();
    let hint = file.stored_schema().fields();
    let levels = parquet_to_arrow_field_levels(descriptor, file.mask(root), Some(hint))?;
    let mut row_group = PagedRowGroup {
        metadata,
        group,
        chunks,
        pages,
        skips: false,
        is_sealed: file.seal.is_some(),
    };
    row_group.skips = rows.num_rows() < row_group.num_rows();
    row_group.check_expansion(file.leaves(root), rows)?;
    let ranges = rows.as_slice().iter().cloned();
    let selection = row_group
        .skips
        .then(|| ArrowRowSelection::from_consecutive_ranges(ranges, row_group.num_rows()));
    ParquetRecordBatchReader::try_new_with_row_groups(&levels, &row_group, batch_rows, selection)
}

/// A row group of which perhaps only some pages were fetched.
struct PagedRowGroup<'a> {
    metadata: &'a ParquetMetaData,
    group: usize,
    chunks: &'a SparseFile,
    pages: Option<&'a GroupPages>,
    /// Whether rows are skipped.
    skips: bool,
    /// Whether the pages have been compared with checksums.
    is_sealed: bool,
}

impl PagedRowGroup<'_> {
    /// Refuses pages that become longer than they claim: arrow-rs decompresses some to the end.
    fn check_expansion(
        &self,
        mut leaves: impl Iterator<Item = usize>,
        rows: &RowRanges,
    ) -> std::result::Result<(), ParquetError> {
        if self.is_sealed {
            return Ok(());
        }
        let row_group = self.metadata.row_group(self.group);
        let failed = |reason: &str| ParquetError::General(reason.to_owned());
        leaves.try_for_each(|leaf| {
            let column = row_group.column(leaf);
            let check = |range: Range<u64>| match self.chunks.chunks.slice(&range) {
                Some(bytes) => pages::check_expansion(&bytes, column).map_err(failed),
                None => Ok(()),
            };
            if let Some(pages) = self.pages.and_then(|pages| pages.get(&leaf)) {
                return pages.ranges(rows).into_iter().try_for_each(check);
            }
            let (start, length) = column.byte_range();
            check(start..start + length)
        })
    }
}

impl RowGroups for PagedRowGroup<'_> {
    fn num_rows(&self) -> usize {
        let rows = self.metadata.row_group(self.group).num_rows();
        usize::try_from(rows).unwrap_or_default()
    }

    fn column_chunks(
        &self,
        leaf: usize,
    ) -> std::result::Result<Box<dyn PageIterator>, ParquetError> {
        let column = self.metadata.row_group(self.group).column(leaf);
        let not_indexed = || ParquetError::General(format!("column {leaf} has no page index"));
        let locations = match self.pages {
            Some(pages) => Some(pages.get(&leaf).ok_or_else(not_indexed)?.locations()),
            None => None,
        };
        let locations = locations.map(<[_]>::to_vec);
        let file = Arc::new(self.chunks.clone());
        let key_values = self.metadata.file_metadata().key_value_metadata();
        let reader = CheckedPages {
            pages: SerializedPageReader::new(file, column, self.num_rows(), locations)?,
            column: column.column_descr_ptr(),
            skips: self.skips,
            has_arrow_schema: key_values
                .is_some_and(|all| all.iter().any(|entry| entry.key == ARROW_SCHEMA_META_KEY)),
            is_sealed: self.is_sealed,
        };
        Ok(Box::new(SinglePageReader(Some(Box::new(reader)))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.group)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

/// The pages of one chunk.
struct SinglePageReader(Option<Box<dyn PageReader>>);

impl Iterator for SinglePageReader {
    type Item = std::result::Result<Box<dyn PageReader>, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.take().map(Ok)
    }
}

impl PageIterator for SinglePageReader {}
