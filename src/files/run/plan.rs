//! Which rows of a file are read, in which pieces, and whether their columns go into the cache.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::cache::IndexedPart;
use super::pieces::{Pace, RunPiece, cut_into_blocks, pack};
use crate::error::Result;
use crate::files::RowGroupSelection;
use crate::parquet::page_selection::{GroupPages, RowSelection};
use crate::parquet::row_ranges::RowRanges;
use crate::store::Store;

/// How the pieces of a file are chosen.
pub(super) struct FilePlan {
    pub(super) store: Store,
    pub(super) file: IndexedPart,
    /// The fields of the file that are read, in ascending order.
    pub(super) field_indices: Arc<[usize]>,
    pub(super) block_rows: usize,
    pub(super) pace: Pace,
    /// Whether the columns are of types whose rows can be joined.
    pub(super) joins: bool,
    pub(super) piece_bytes: usize,
    /// How many bytes of columns of the file may go into the cache.
    pub(super) cache_bytes: usize,
}

/// A row group of which rows are read.
struct GroupRows {
    index: usize,
    /// The first row among those of the file.
    first_row: u64,
    all_rows: usize,
    selected: RowRanges,
}

impl FilePlan {
    /// The pieces that have some rows of the file.
    pub(super) async fn pieces(&self, rows: &[Range<u64>]) -> Result<Vec<RunPiece>> {
        let groups = self.groups(rows);
        let bytes = groups.iter().map(|group| {
            let row_bytes = self.memory_per_row(group);
            row_bytes.saturating_mul(group.selected.num_rows())
        });
        let fits_cache = bytes.fold(0, usize::saturating_add) <= self.cache_bytes;
        let mut pieces = Vec::new();
        for group in &groups {
            pieces.extend(self.group_pieces(group, fits_cache).await?);
        }
        if self.pace.is_backward() {
            pieces.reverse();
        }
        Ok(pieces)
    }

    /// The row groups that have some rows of the file.
    fn groups(&self, rows: &[Range<u64>]) -> Vec<GroupRows> {
        let mut end = 0;
        let stored = self.file.part.file.metadata().row_groups().iter();
        let groups = stored.enumerate().map(|(index, group)| {
            let group_rows = usize::try_from(group.num_rows()).unwrap_or_default();
            let first_row = end;
            end += group_rows as u64;
            let position = |row: u64| {
                usize::try_from(row.clamp(first_row, end) - first_row).unwrap_or_default()
            };
            let in_group = rows
                .iter()
                .map(|range| position(range.start)..position(range.end));
            GroupRows {
                index,
                first_row,
                all_rows: group_rows,
                selected: RowRanges::covering(in_group),
            }
        });
        groups.filter(|group| !group.selected.is_empty()).collect()
    }

    /// About how much memory the columns of a row take.
    fn memory_per_row(&self, group: &GroupRows) -> usize {
        let file = &self.file.part.file;
        let columns = self.field_indices.iter();
        let bytes: u64 = columns
            .map(|root| file.memory_bytes_of(group.index, *root))
            .sum();
        usize::try_from(bytes).unwrap_or(usize::MAX) / group.all_rows.max(1)
    }

    /// The pieces of a row group. `fits_cache` says it of the columns of all rows that are read of the file.
    async fn group_pieces(&self, group: &GroupRows, fits_cache: bool) -> Result<Vec<RunPiece>> {
        let file = &self.file.part.file;
        let columns = self.field_indices.iter();
        let decoded: u64 = columns
            .map(|root| file.decoded_bytes(group.index, *root))
            .sum();
        let decoded_row = usize::try_from(decoded).unwrap_or(usize::MAX) / group.all_rows.max(1);
        let most_rows = self.piece_bytes / decoded_row.max(1);
        // A block in two pieces would be decoded twice.
        let piece_rows = most_rows - most_rows % self.block_rows;
        if group.selected.num_rows() == group.all_rows
            && self.pace.is_piece(group.all_rows, piece_rows)
        {
            return Ok(vec![self.piece(group, &group.selected, None, fits_cache)]);
        }
        let pages = Arc::new(self.read_pages(group.index).await?);
        let ranges = self.pace.split(group.selected.as_slice(), piece_rows);
        let max_ranges = if self.joins {
            self.pace.max_ranges()
        } else {
            1
        };
        let max_rows = self.piece_bytes / self.memory_per_row(group).max(1);
        let packed = pack(ranges.into_iter(), max_rows, max_ranges).into_iter();
        let pieces = packed.map(|ranges| {
            let rows = RowRanges::covering(ranges);
            self.piece(group, &rows, Some(&pages), fits_cache)
        });
        Ok(pieces.collect())
    }

    /// A piece with some rows of a row group, which are all of them if there are no pages.
    fn piece(
        &self,
        group: &GroupRows,
        rows: &RowRanges,
        pages: Option<&Arc<GroupPages>>,
        fits_cache: bool,
    ) -> RunPiece {
        let cells = if self.joins {
            let first_row = usize::try_from(group.first_row).unwrap_or_default();
            cut_into_blocks(rows.as_slice(), first_row, self.block_rows)
        } else {
            rows.as_slice().to_vec()
        };
        RunPiece {
            path: Arc::clone(&self.file.path),
            selection: RowGroupSelection {
                part: Arc::clone(&self.file.part),
                index: group.index,
                projection: Arc::clone(&self.field_indices),
                rows: pages.map(|pages| RowSelection {
                    rows: rows.clone(),
                    mask: None,
                    pages: Arc::clone(pages),
                }),
            },
            cells,
            caches_columns: fits_cache || self.pace.is_begin(rows.num_rows()),
        }
    }

    /// The pages of the columns that are read.
    async fn read_pages(&self, group: usize) -> Result<GroupPages> {
        let part = &self.file.part;
        let leaves = self
            .field_indices
            .iter()
            .flat_map(|root| part.file.leaves(*root));
        let indexed = leaves.filter_map(|leaf| Some((leaf, part.file.index_ranges(group, leaf)?)));
        let indexed: HashMap<usize, _> = indexed.collect();
        let ranges = indexed.values().flat_map(|ranges| ranges.to_fetch(false));
        let bytes = part.read_ranges(&self.store, ranges.collect()).await?;
        let mut pages = GroupPages::new();
        for (leaf, ranges) in &indexed {
            let decoded = part.file.decode_pages(group, *leaf, ranges, &bytes);
            let path = &part.path;
            let decoded =
                decoded.map_err(|e| e.context(format!("file {path:?}")).with_path(path))?;
            pages.extend(decoded.map(|chunk_pages| (*leaf, chunk_pages)));
        }
        Ok(pages)
    }
}
