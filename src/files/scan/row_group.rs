//! Row groups, and the selection of their rows: not deleted, and matching a filter.
//!
//! A [`RowGroupScan`] is a row group of an open file with the file's deletions. A [`RowFilter`] selects its
//! rows from the columns of the key and of the filter ([`SelectedRows`]), and [`build_batches`] makes batches
//! of the selected rows. The filter is not evaluated on deleted rows: an error in one of them would fail
//! the scan.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder};
use arrow_schema::SchemaRef;
use arrow_select::filter::FilterBuilder;

use super::deletions::Deletions;
use crate::error::{Error, Result};
use crate::files::OpenPart;
use crate::files::expr::Filter;
use crate::files::key_ranges::{KeyRanges, Overlap};
use crate::parquet::arrays::align;
use crate::parquet::row_ranges::RowRanges;
use crate::parquet::types::batch_with_row_count;

/// A row group of an open file.
#[derive(Debug, Clone)]
pub(crate) struct RowGroupScan {
    /// The file, by position in [`FileScanner::files`](super::file_scanner::FileScanner::files).
    pub(crate) file: usize,
    /// The row group, by position in the file.
    pub(crate) group: usize,
    pub(crate) part: Arc<OpenPart>,
    /// For each column of the table its field in the file, if the file has it.
    pub(crate) field_mappings: Arc<[Option<usize>]>,
    pub(crate) deletions: Option<Arc<ResolvedDeletions>>,
}

/// The deletions of an open file.
#[derive(Debug)]
pub(crate) struct ResolvedDeletions {
    pub(crate) recorded: Arc<Deletions>,
    /// The ranges of deleted keys, and for each row group how its keys overlap them.
    pub(crate) key_ranges: Option<(KeyRanges, Vec<Overlap>)>,
}

impl ResolvedDeletions {
    /// Whether all rows of a row group are deleted.
    fn covers(&self, group: usize) -> bool {
        self.recorded.groups.contains(&group_number(group)) || self.overlap(group) == Overlap::Full
    }

    fn overlap(&self, group: usize) -> Overlap {
        let overlaps = self.key_ranges.as_ref().map(|(_, overlaps)| overlaps);
        let overlap = overlaps.and_then(|all| all.get(group).copied());
        overlap.unwrap_or(Overlap::Disjoint)
    }
}

/// Arrays by the position of the table's column.
pub(crate) type ColumnArrays = HashMap<usize, Vec<ArrayRef>>;

/// The selected rows of a row group, and the columns that were read to select them.
#[derive(Debug)]
pub(crate) struct SelectedRows {
    /// For each of the rows that were read whether it is selected; `None` selects all.
    pub(crate) mask: Option<BooleanArray>,
    /// Number of these rows that are not deleted.
    pub(crate) live_rows: usize,
    pub(crate) columns: ColumnArrays,
}

impl RowGroupScan {
    /// Number of rows, deleted ones included.
    pub(crate) fn num_rows(&self) -> usize {
        let rows = self.part.file.metadata().row_group(self.group).num_rows();
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// Positions of the table's columns with those of their fields in the file, for columns that the file has.
    pub(crate) fn stored_fields(&self, columns: &[usize]) -> Vec<(usize, usize)> {
        let stored = |column: &usize| Some((*column, self.field_mappings[*column]?));
        columns.iter().filter_map(stored).collect()
    }

    /// Number of row groups of the file.
    pub(crate) fn num_file_row_groups(&self) -> usize {
        self.part.file.metadata().num_row_groups()
    }

    /// Number of row groups of the file whose rows are all deleted.
    pub(crate) fn num_deleted_row_groups(&self) -> usize {
        let count_covered = |deletions: &Arc<ResolvedDeletions>| {
            let groups = 0..self.num_file_row_groups();
            groups.filter(|group| deletions.covers(*group)).count()
        };
        self.deletions.as_ref().map_or(0, count_covered)
    }

    /// Whether all rows are deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        let deletions = self.deletions.as_ref();
        deletions.is_some_and(|deletions| deletions.covers(self.group))
    }

    /// Number of rows that are deleted by their number.
    pub(crate) fn num_deleted_rows(&self) -> usize {
        let number = u32::try_from(self.num_rows()).unwrap_or(u32::MAX);
        let deletions = self.deletions.as_ref();
        let recorded = deletions.and_then(|d| d.recorded.rows.get(&group_number(self.group)));
        let deleted = recorded.map_or(0, |all| all.range_cardinality(..number));
        usize::try_from(deleted).unwrap_or(usize::MAX)
    }

    /// Whether all rows of a range are deleted by their number.
    pub(crate) fn is_range_deleted(&self, rows: &Range<usize>) -> bool {
        let number = |row| u32::try_from(row).unwrap_or(u32::MAX);
        let deletions = self.deletions.as_ref();
        let recorded = deletions.and_then(|d| d.recorded.rows.get(&group_number(self.group)));
        let deleted =
            recorded.map(|all| all.range_cardinality(number(rows.start)..number(rows.end)));
        deleted.is_some_and(|deleted| deleted == rows.len() as u64)
    }

    /// The ranges of deleted keys, if some of the row group's keys may lie in them.
    fn partial_ranges(&self) -> Option<&KeyRanges> {
        let deletions = self.deletions.as_ref()?;
        let (ranges, _) = deletions.key_ranges.as_ref()?;
        (deletions.overlap(self.group) == Overlap::Partial).then_some(ranges)
    }

    /// Whether the keys have to be read to know which rows are deleted.
    pub(crate) fn has_key_deletes(&self) -> bool {
        self.partial_ranges().is_some()
    }
}

fn group_number(group: usize) -> u32 {
    u32::try_from(group).unwrap_or(u32::MAX)
}

/// Selects rows of a row group.
pub(crate) struct RowFilter {
    pub(crate) row_group: RowGroupScan,
    /// The rows to select from, of which there are columns.
    pub(crate) rows: RowRanges,
    /// The position of the key column, if rows are deleted by key.
    pub(crate) key: Option<usize>,
    pub(crate) filter: Option<Arc<Filter>>,
}

impl RowFilter {
    /// Selects rows, given the columns of the key and of the filter.
    pub(crate) fn select(&self, columns: ColumnArrays) -> Result<SelectedRows> {
        let rows = self.rows.num_rows();
        let mut mask = self.position_mask(rows);
        if let (Some(key), Some(ranges)) = (self.key, self.row_group.partial_ranges()) {
            let mut outside = Vec::with_capacity(rows);
            for keys in columns.get(&key).into_iter().flatten() {
                outside.extend(ranges.outside_mask(keys)?.values().iter());
            }
            mask = Some(intersect(mask, outside.into()));
        }
        let live_rows = mask.as_ref().map_or(rows, BooleanArray::true_count);
        if let Some(filter) = &self.filter {
            let mut matching = BooleanBufferBuilder::new(rows);
            for (count, arrays) in align_columns(&columns, filter.columns(), rows)? {
                let mask = mask.as_ref().map(|mask| mask.slice(matching.len(), count));
                matching
                    .append_buffer(evaluate_masked(filter, arrays, count, mask.as_ref())?.values());
            }
            mask = Some(BooleanArray::new(matching.finish(), None));
        }
        Ok(SelectedRows {
            mask,
            live_rows,
            columns,
        })
    }

    /// For each of the rows whether it is not deleted by its number; `None` if no row of the row group is.
    fn position_mask(&self, rows: usize) -> Option<BooleanArray> {
        let deletions = self.row_group.deletions.as_ref()?;
        let deleted_rows = deletions
            .recorded
            .rows
            .get(&group_number(self.row_group.group))?;
        let mut live = BooleanBufferBuilder::new(rows);
        live.append_n(rows, true);
        let mut begin = 0;
        let number = |row| u32::try_from(row).unwrap_or(u32::MAX);
        for range in self.rows.as_slice() {
            // Visit only rows that there are: a bitmap may claim many more.
            let deleted = deleted_rows.range(number(range.start)..number(range.end));
            for row in deleted.filter_map(|row| usize::try_from(row).ok()) {
                live.set_bit(begin + row - range.start, false);
            }
            begin += range.len();
        }
        Some(BooleanArray::new(live.finish(), None))
    }
}

/// For each of `rows` rows whether it is in the mask and matches the filter. The filter is evaluated on
/// the rows of the mask only: what a deleted row holds may be the reason for its deletion.
fn evaluate_masked(
    filter: &Filter,
    arrays: Vec<ArrayRef>,
    rows: usize,
    mask: Option<&BooleanArray>,
) -> Result<BooleanArray> {
    let Some(mask) = mask.filter(|mask| mask.true_count() < rows) else {
        return filter.evaluate(arrays, rows);
    };
    let live_rows = mask.true_count();
    if live_rows == 0 {
        return Ok(BooleanArray::new(BooleanBuffer::new_unset(rows), None));
    }
    let selector = FilterBuilder::new(mask).optimize().build();
    let selected = arrays.iter().map(|array| selector.filter(array.as_ref()));
    let collected = selected.collect::<std::result::Result<Vec<_>, _>>();
    let live_arrays = collected.map_err(Error::from_cause)?;
    let live_matches = filter.evaluate(live_arrays, live_rows)?;
    let mut matching = BooleanBufferBuilder::new(rows);
    matching.append_n(rows, false);
    for (row, is_match) in mask.values().set_indices().zip(live_matches.values()) {
        matching.set_bit(row, is_match);
    }
    Ok(BooleanArray::new(matching.finish(), None))
}

/// Makes batches of `rows` rows, as `schema`: that of the columns in `projection`.
pub(crate) fn build_batches(
    column_arrays: &ColumnArrays,
    projection: &[usize],
    rows: usize,
    schema: &SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let aligned = align_columns(column_arrays, projection, rows)?.into_iter();
    aligned
        .map(|(rows, arrays)| batch_with_row_count(schema, arrays, rows))
        .collect()
}

pub(crate) fn column_not_read() -> Error {
    Error::other("internal error: a column was not read")
}

/// The columns in `projection`, cut at common rows; each chunk with its number of rows.
fn align_columns(
    column_arrays: &ColumnArrays,
    projection: &[usize],
    rows: usize,
) -> Result<Vec<(usize, Vec<ArrayRef>)>> {
    if projection.is_empty() {
        return Ok(vec![(rows, Vec::new())]);
    }
    let arrays = projection.iter().map(|column| {
        column_arrays
            .get(column)
            .cloned()
            .ok_or_else(column_not_read)
    });
    Ok(align(&arrays.collect::<Result<Vec<_>>>()?, rows))
}

fn intersect(a: Option<BooleanArray>, b: BooleanArray) -> BooleanArray {
    match a {
        Some(a) => BooleanArray::new(a.values() & b.values(), None),
        None => b,
    }
}
