//! Splitting the keys of a job into ranges of about equal work, one for each task.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_row::Rows;
use serde_json::Value;

use super::format::StoredRun;
use super::layers::to_error;
use super::tables::TableShape;
use crate::error::Result;
use crate::run::{KeyRange, decode_keys};

/// Keys of a table, in any order, and about how many bytes of work there are between each and the next one.
#[derive(Debug, Clone, Default)]
pub(super) struct KeySample {
    keys: Vec<Value>,
    bytes: Vec<u64>,
}

impl KeySample {
    /// Adds keys at equal distances in rows of so many bytes.
    pub(super) fn add(&mut self, keys: &[Value], bytes: u64) {
        self.keys.extend_from_slice(keys);
        let each = bytes / keys.len().max(1) as u64;
        self.bytes.resize(self.keys.len(), each);
    }

    /// Adds the first keys of the files of a run.
    pub(super) fn add_files(&mut self, run: &StoredRun) {
        for file in &run.files.files {
            self.keys.extend(file.first.first().cloned());
            self.bytes.resize(self.keys.len(), file.size_bytes);
        }
    }

    /// Adds another sample.
    pub(super) fn append(&mut self, other: Self) {
        self.keys.extend(other.keys);
        self.bytes.extend(other.bytes);
    }

    /// The bytes that the keys stand for.
    pub(super) fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Leaves out the keys that are not between those of a run, in the order of the first column of a table.
    pub(super) fn limit_to(&mut self, run: &StoredRun, shape: &TableShape) -> Result<()> {
        let files = &run.files.files;
        let (Some(first), Some(last)) = (files.first(), files.last()) else {
            return Ok(());
        };
        let mut keys = self.keys.clone();
        keys.extend(first.first.first().cloned());
        keys.extend(last.last.first().cloned());
        let rows = comparable(&keys, shape)?;
        let (count, total) = (self.keys.len(), rows.num_rows());
        if total < count + 2 {
            return Ok(());
        }
        let is_between =
            |at: &usize| rows.row(*at) >= rows.row(count) && rows.row(*at) <= rows.row(count + 1);
        let kept: Vec<usize> = (0..count).filter(is_between).collect();
        self.keys = kept.iter().map(|at| self.keys[*at].clone()).collect();
        self.bytes = kept.iter().map(|at| self.bytes[*at]).collect();
        Ok(())
    }

    /// Up to `ranges - 1` keys, in the order of the first column of a table, at which ranges begin.
    pub(super) fn split(&self, shape: &TableShape, ranges: usize) -> Result<Vec<Value>> {
        if ranges < 2 || self.keys.is_empty() {
            return Ok(Vec::new());
        }
        let rows = comparable(&self.keys, shape)?;
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by(|a, b| rows.row(*a).cmp(&rows.row(*b)));
        let each = self.total() / ranges as u64;
        let (mut bounds, mut before, mut last) = (Vec::new(), 0, rows.row(order[0]));
        for at in order {
            let is_full = before > each.saturating_mul(bounds.len() as u64 + 1);
            if is_full && bounds.len() + 1 < ranges && rows.row(at) > last {
                last = rows.row(at);
                bounds.push(self.keys[at].clone());
            }
            before += self.bytes[at];
        }
        Ok(bounds)
    }
}

/// Keys in comparable form.
pub(super) fn comparable(keys: &[Value], shape: &TableShape) -> Result<Rows> {
    let schema = Arc::new(shape.schema.project(&[0]).map_err(to_error)?);
    let keys = decode_keys(keys, schema.field(0).data_type())?;
    let batch = RecordBatch::try_new(schema, vec![keys]).map_err(to_error)?;
    shape.keys(1)?.convert_batch(&batch).map_err(to_error)
}

/// The range of a task: that before the first bound is of task 0.
pub(super) fn range_of(bounds: &[Value], shape: &TableShape, task: usize) -> Result<KeyRange> {
    let bound = |at: usize| -> Result<Option<Vec<ArrayRef>>> {
        let Some(key) = bounds.get(at) else {
            return Ok(None);
        };
        let key = decode_keys(std::slice::from_ref(key), shape.schema.field(0).data_type())?;
        debug_assert_eq!(key.len(), 1);
        Ok(Some(vec![key]))
    };
    Ok(KeyRange {
        from: task.checked_sub(1).map_or(Ok(None), bound)?,
        to: bound(task)?,
    })
}
