//! A row group, and which of its rows are left.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::SchemaRef;
use arrow_select::filter::{FilterBuilder, filter_record_batch};

use super::filter::Filter;
use super::ranges::{KeyRanges, Overlap};
use super::tombstone::Deletions;
use crate::error::{Error, Result};
use crate::parquet::decode::align;
use crate::parquet::types::batch_with_row_count;
use crate::part::OpenPart;

/// A row group of a file.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    /// The file, by position in [`Rows::files`].
    pub(super) file: usize,
    /// Its row group.
    pub(super) group: usize,
    pub(super) part: Arc<OpenPart>,
    /// The field of the file for each of the table's columns.
    pub(super) roots: Arc<[Option<usize>]>,
    pub(super) deleted: Option<Arc<Deleted>>,
}

/// What is deleted of an open file.
#[derive(Debug)]
pub(super) struct Deleted {
    pub(super) rows: Arc<Deletions>,
    /// Rows that are deleted by their key, and how many these are of each row group.
    pub(super) by_key: Option<(KeyRanges, Vec<Overlap>)>,
}

impl Deleted {
    /// Whether nothing is left of a row group.
    fn is_whole(&self, group: usize) -> bool {
        self.rows.groups.contains(&number(group)) || self.overlap(group) == Overlap::Full
    }

    fn overlap(&self, group: usize) -> Overlap {
        let overlaps = self.by_key.as_ref().map(|(_, overlaps)| overlaps);
        let overlap = overlaps.and_then(|all| all.get(group).copied());
        overlap.unwrap_or(Overlap::Disjoint)
    }
}

/// Arrays by the table's column.
pub(super) type Read = HashMap<usize, Vec<ArrayRef>>;

/// Which rows of a row group are left, and what was read to know it.
#[derive(Debug)]
pub(super) struct Selection {
    /// None is all.
    pub(super) kept: Option<BooleanArray>,
    /// Rows that are not deleted.
    pub(super) alive: usize,
    pub(super) columns: Read,
}

impl Unit {
    /// Its rows, deleted ones included.
    pub(super) fn rows(&self) -> usize {
        let rows = self.part.file.metadata().row_group(self.group).num_rows();
        usize::try_from(rows).unwrap_or(usize::MAX)
    }

    /// The row groups of its file.
    pub(super) fn groups_of_file(&self) -> usize {
        self.part.file.metadata().num_row_groups()
    }

    /// The row groups of its file of which nothing is left.
    pub(super) fn deleted_groups(&self) -> usize {
        let whole = |deleted: &Arc<Deleted>| {
            let groups = 0..self.groups_of_file();
            groups.filter(|group| deleted.is_whole(*group)).count()
        };
        self.deleted.as_ref().map_or(0, whole)
    }

    /// Whether nothing is left of it.
    pub(super) fn is_deleted(&self) -> bool {
        let deleted = self.deleted.as_ref();
        deleted.is_some_and(|deleted| deleted.is_whole(self.group))
    }

    /// The ranges in which some of its keys may lie.
    fn ranges(&self) -> Option<&KeyRanges> {
        let deleted = self.deleted.as_ref()?;
        let (ranges, _) = deleted.by_key.as_ref()?;
        (deleted.overlap(self.group) == Overlap::Partial).then_some(ranges)
    }

    /// Whether its keys say which rows are deleted.
    pub(super) fn is_deleted_by_key(&self) -> bool {
        self.ranges().is_some()
    }
}

fn number(group: usize) -> u32 {
    u32::try_from(group).unwrap_or(u32::MAX)
}

/// What decides on the rows of a row group.
pub(super) struct Work {
    pub(super) unit: Unit,
    /// Where rows are deleted by it: its position.
    pub(super) key: Option<usize>,
    pub(super) filter: Option<Arc<Filter>>,
}

impl Work {
    pub(super) fn select(&self, columns: Read) -> Result<Selection> {
        let rows = self.unit.rows();
        let mut kept = self.by_row(rows);
        if let (Some(key), Some(ranges)) = (self.key, self.unit.ranges()) {
            let mut outside = Vec::with_capacity(rows);
            for keys in columns.get(&key).into_iter().flatten() {
                outside.extend(ranges.outside_mask(keys)?.values().iter());
            }
            kept = Some(both(kept, outside.into()));
        }
        let alive = kept.as_ref().map_or(rows, BooleanArray::true_count);
        if let Some(filter) = &self.filter {
            let mut holds = BooleanBufferBuilder::new(rows);
            for (count, arrays) in pieces(&columns, filter.columns(), rows)? {
                let kept = kept.as_ref().map(|kept| kept.slice(holds.len(), count));
                holds.append_buffer(holds_for(filter, arrays, count, kept.as_ref())?.values());
            }
            kept = Some(BooleanArray::new(holds.finish(), None));
        }
        Ok(Selection {
            kept,
            alive,
            columns,
        })
    }

    /// The rows that are not deleted by their number; None is all.
    fn by_row(&self, rows: usize) -> Option<BooleanArray> {
        let deleted = self.unit.deleted.as_ref()?;
        let deleted = deleted.rows.rows.get(&number(self.unit.group))?;
        let mut kept = vec![true; rows];
        // Rows that the group does not have are not gone through, however many a bitmap claims.
        let there = deleted.range(..u32::try_from(rows).unwrap_or(u32::MAX));
        for row in there.filter_map(|row| usize::try_from(row).ok()) {
            if let Some(kept) = kept.get_mut(row) {
                *kept = false;
            }
        }
        Some(kept.into())
    }
}

/// For which of `rows` rows the filter holds. Those that are not kept are not looked at: what they hold
/// may be the reason why they are gone.
fn holds_for(
    filter: &Filter,
    arrays: Vec<ArrayRef>,
    rows: usize,
    kept: Option<&BooleanArray>,
) -> Result<BooleanArray> {
    let Some(kept) = kept.filter(|kept| kept.true_count() < rows) else {
        return filter.evaluate(arrays, rows);
    };
    let left = kept.true_count();
    if left == 0 {
        return Ok(vec![false; rows].into());
    }
    let chosen = FilterBuilder::new(kept).optimize().build();
    let arrays = arrays.iter().map(|array| chosen.filter(array.as_ref()));
    let arrays = arrays.collect::<std::result::Result<Vec<_>, _>>();
    let arrays = arrays.map_err(|e| Error::other(e.to_string()).with_source(e))?;
    let held = filter.evaluate(arrays, left)?;
    let mut holds = BooleanBufferBuilder::new(rows);
    holds.append_n(rows, false);
    for (row, held) in kept.values().set_indices().zip(held.values()) {
        holds.set_bit(row, held);
    }
    Ok(BooleanArray::new(holds.finish(), None))
}

/// The rows that are left, as `schema`, which is that of the columns `wanted`.
pub(super) fn batches(
    read: &Read,
    wanted: &[usize],
    rows: usize,
    kept: Option<&BooleanArray>,
    schema: &SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    let mut at = 0;
    for (rows, arrays) in pieces(read, wanted, rows)? {
        let batch = batch_with_row_count(schema, arrays, rows)?;
        batches.push(match kept {
            Some(kept) => filter_record_batch(&batch, &kept.slice(at, rows))
                .map_err(|e| Error::other(e.to_string()).with_source(e))?,
            None => batch,
        });
        at += rows;
    }
    Ok(batches)
}

pub(super) fn not_read() -> Error {
    Error::other("a column was not read")
}

/// Some of the columns that were read, cut at common places.
fn pieces(read: &Read, wanted: &[usize], rows: usize) -> Result<Vec<(usize, Vec<ArrayRef>)>> {
    if wanted.is_empty() {
        return Ok(vec![(rows, Vec::new())]);
    }
    let arrays = wanted
        .iter()
        .map(|column| read.get(column).cloned().ok_or_else(not_read));
    Ok(align(&arrays.collect::<Result<Vec<_>>>()?, rows))
}

fn both(a: Option<BooleanArray>, b: BooleanArray) -> BooleanArray {
    match a {
        Some(a) => BooleanArray::new(a.values() & b.values(), None),
        None => b,
    }
}
