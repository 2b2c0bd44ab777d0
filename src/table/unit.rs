//! A row group, and which of its rows are left.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, Scalar};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;

use super::filter::Filter;
use super::tombstone::Deletions;
use super::values::from_json;
use crate::error::{Error, Result};
use crate::parquet::decode::align;
use crate::parquet::types::batch_of;
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
    pub(super) deletions: Option<Arc<Deletions>>,
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

    /// The row groups of its file that are deleted as such.
    pub(super) fn deleted_groups(&self) -> usize {
        let groups = u32::try_from(self.groups_of_file()).unwrap_or(u32::MAX);
        let deletions = self.deletions.as_ref();
        deletions.map_or(0, |d| d.groups.range(..groups).count())
    }

    /// Whether it is deleted as such.
    pub(super) fn is_deleted(&self) -> bool {
        let deletions = self.deletions.as_ref();
        deletions.is_some_and(|d| d.groups.contains(&self.number()))
    }

    fn number(&self) -> u32 {
        u32::try_from(self.group).unwrap_or(u32::MAX)
    }
}

/// What decides on the rows of a row group.
pub(super) struct Work {
    pub(super) unit: Unit,
    /// Where rows are deleted by it: its position and type.
    pub(super) key: Option<(usize, DataType)>,
    pub(super) filter: Option<Arc<Filter>>,
}

impl Work {
    pub(super) fn select(&self, columns: Read) -> Result<Selection> {
        let rows = self.unit.rows();
        let mut kept = self.by_row(rows);
        if let (Some((key, data_type)), Some(deletions)) = (&self.key, &self.unit.deletions) {
            kept = Some(both(kept, outside(&columns, *key, data_type, deletions)?));
        }
        let alive = kept.as_ref().map_or(rows, BooleanArray::true_count);
        if let Some(filter) = &self.filter {
            let mut holds = Vec::with_capacity(rows);
            for (rows, arrays) in pieces(&columns, filter.columns(), rows)? {
                holds.extend(filter.holds(arrays, rows)?.values().iter());
            }
            kept = Some(both(kept, BooleanArray::from(holds)));
        }
        Ok(Selection {
            kept,
            alive,
            columns,
        })
    }

    /// The rows that are not deleted by their number; None is all.
    fn by_row(&self, rows: usize) -> Option<BooleanArray> {
        let deletions = self.unit.deletions.as_ref()?;
        let deleted = deletions.rows.get(&self.unit.number())?;
        let mut kept = vec![true; rows];
        for row in deleted.iter().filter_map(|row| usize::try_from(row).ok()) {
            if let Some(kept) = kept.get_mut(row) {
                *kept = false;
            }
        }
        Some(kept.into())
    }
}

/// Which rows have a key in none of the deleted ranges; a null lies in none.
fn outside(
    read: &Read,
    key: usize,
    data_type: &DataType,
    deletions: &Deletions,
) -> Result<BooleanArray> {
    use arrow_ord::cmp::{gt_eq, lt_eq};
    let failed = |e: arrow_schema::ArrowError| Error::other(e.to_string()).caused_by(e);
    let ranges = deletions.keys.iter().map(|(min, max)| {
        let ends = (from_json(min, data_type)?, from_json(max, data_type)?);
        Ok((Scalar::new(ends.0), Scalar::new(ends.1)))
    });
    let ranges = ranges.collect::<Result<Vec<_>>>()?;
    let mut kept = Vec::new();
    for keys in read.get(&key).into_iter().flatten() {
        let mut outside = vec![true; keys.len()];
        for (min, max) in &ranges {
            let above = gt_eq(keys, min).map_err(failed)?;
            let below = lt_eq(keys, max).map_err(failed)?;
            for (row, outside) in outside.iter_mut().enumerate() {
                let inside = |side: &BooleanArray| side.is_valid(row) && side.value(row);
                *outside &= !(inside(&above) && inside(&below));
            }
        }
        kept.extend(outside);
    }
    Ok(kept.into())
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
        let batch = batch_of(schema, arrays, rows)?;
        batches.push(match kept {
            Some(kept) => filter_record_batch(&batch, &kept.slice(at, rows))
                .map_err(|e| Error::other(e.to_string()).caused_by(e))?,
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
