//! Which pages of a row group are read.
//!
//! Before the columns of the filter are read, [`FileScanner::prune_pages`] leaves out the rows that no page of these
//! columns can have a match in, and those that are deleted page by page. Before the other columns are read,
//! [`FileScanner::select_pages`] finds the pages of the rows that matched. Both read page indexes only where they are
//! less than what they may save. Where there are none, columns are read as whole chunks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use super::file_scanner::{FileScanner, FileSource};
use super::index_size::PAGE_ROWS;
use super::row_group::RowGroupScan;
use crate::error::Result;
use crate::files::expr::{ColumnPageStatistics, IntervalStatistics};
use crate::parquet::decode::Chunks;
use crate::parquet::page_index::IndexRanges;
use crate::parquet::page_selection::{GroupPages, RowSelection};
use crate::parquet::row_ranges::RowRanges;

/// A leaf column with page indexes.
struct IndexedLeaf {
    /// The position of its column among the table's, and of its field among the file's.
    column: usize,
    root: usize,
    leaf: usize,
    ranges: IndexRanges,
}

impl<S: FileSource> FileScanner<S> {
    /// The rows of a row group that may match the filter, by the bounds of the pages of its columns.
    pub(crate) async fn prune_pages(&self, row_group: &RowGroupScan) -> Result<RowSelection> {
        let all_rows = RowSelection {
            rows: RowRanges::all(row_group.num_rows()),
            mask: None,
            pages: Arc::default(),
        };
        let Some(filter) = self.filter().filter(|filter| filter.uses_statistics()) else {
            return Ok(all_rows);
        };
        let fields = row_group.stored_fields(filter.columns());
        let pages = self.read_page_indexes(row_group, &fields, true).await?;
        let Some((pages, statistics)) = pages else {
            return Ok(all_rows);
        };
        let intervals = statistics.intervals().to_vec();
        let may_match = match statistics.intervals() {
            [] => Vec::new(),
            _ => filter.prune(statistics).await?,
        };
        let rows = if intervals.is_empty() {
            all_rows.rows
        } else {
            let candidates = intervals.into_iter().zip(may_match);
            let live = candidates
                .filter(|(rows, may_match)| *may_match && !row_group.is_range_deleted(rows));
            RowRanges::covering(live.map(|(rows, _)| rows))
        };
        Ok(RowSelection {
            rows,
            mask: None,
            pages: Arc::new(pages),
        })
    }

    /// The pages of columns, by position among the table's, for `rows`.
    pub(crate) async fn select_pages(
        &self,
        row_group: &RowGroupScan,
        columns: &[usize],
        rows: RowRanges,
    ) -> Result<RowSelection> {
        // Rows that are scattered over all pages need no page index.
        let all_pages = row_group.num_rows().div_ceil(PAGE_ROWS);
        let is_few = rows.num_blocks(PAGE_ROWS) * 2 <= all_pages;
        let fields = row_group.stored_fields(columns);
        let pages = if self.reads_pages() && is_few {
            self.read_page_indexes(row_group, &fields, false).await?
        } else {
            None
        };
        Ok(RowSelection {
            rows,
            mask: None,
            pages: Arc::new(pages.map_or_else(GroupPages::new, |(pages, _)| pages)),
        })
    }

    /// Reads the page indexes of fields, with the bounds of their pages or without; None if they do not pay.
    async fn read_page_indexes(
        &self,
        row_group: &RowGroupScan,
        fields: &[(usize, usize)],
        with_bounds: bool,
    ) -> Result<Option<(GroupPages, IntervalStatistics)>> {
        let (file, group) = (&row_group.part.file, row_group.group);
        let leaves = fields.iter().flat_map(|(column, root)| {
            let leaves = file.leaves(*root);
            leaves.map(move |leaf| (*column, *root, leaf))
        });
        let indexed = leaves.filter_map(|(column, root, leaf)| {
            let ranges = file.index_ranges(group, leaf)?;
            Some(IndexedLeaf {
                column,
                root,
                leaf,
                ranges,
            })
        });
        let indexed: Vec<IndexedLeaf> = indexed.collect();
        let to_fetch: Vec<Range<u64>> = indexed
            .iter()
            .flat_map(|indexed_leaf| indexed_leaf.ranges.to_fetch(with_bounds))
            .collect();
        let length = |range: Range<u64>| range.end - range.start;
        let index_bytes: u64 = to_fetch.iter().cloned().map(length).sum();
        let chunks = indexed.iter().map(|l| file.chunk_range(group, l.leaf));
        let chunk_bytes: u64 = chunks.map(length).sum();
        let request_bytes = row_group.part.bytes_to_request(&to_fetch);
        if indexed.is_empty() || chunk_bytes <= index_bytes.max(request_bytes) {
            return Ok(None);
        }
        let bytes = self.read_ranges(row_group, to_fetch).await?;
        let decoded = self.decode_page_indexes(row_group, &indexed, &bytes, with_bounds);
        let path = &row_group.part.path;
        decoded
            .map(Some)
            .map_err(|e| e.context(format!("part {path:?}")).with_path(path))
    }

    fn decode_page_indexes(
        &self,
        row_group: &RowGroupScan,
        indexed: &[IndexedLeaf],
        bytes: &Chunks,
        with_bounds: bool,
    ) -> Result<(GroupPages, IntervalStatistics)> {
        let (file, group) = (&row_group.part.file, row_group.group);
        let (mut pages, mut statistics) = (GroupPages::new(), BTreeMap::new());
        for IndexedLeaf {
            column,
            root,
            leaf,
            ranges,
        } in indexed
        {
            let Some(chunk_pages) = file.decode_pages(group, *leaf, ranges, bytes)? else {
                continue;
            };
            if with_bounds
                && file.leaves(*root).count() == 1
                && let Some(bounds) =
                    file.decode_bounds(group, *leaf, ranges, bytes, chunk_pages.num_pages())?
            {
                let field = self.columns.schema.field(*column);
                let place = (*root, *leaf);
                // What cannot be a bound of the type makes arrow-rs panic; it prunes nothing.
                let read = || ColumnPageStatistics::new(file, place, field, &chunk_pages, &bounds);
                let column_statistics = std::panic::catch_unwind(AssertUnwindSafe(read));
                let usable = column_statistics.unwrap_or_default();
                statistics.extend(usable.map(|s| (field.name().clone(), s)));
            }
            pages.insert(*leaf, chunk_pages);
        }
        Ok((pages, IntervalStatistics::new(statistics)))
    }
}
