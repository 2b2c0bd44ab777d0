//! The sources and stages that feed a stage, as an update has them: what they had, and what it adds.
//!
//! An update does not write what it computed before the end, so a stage sees each of its feeders as stored rows under
//! the rows that the update adds (`FeederTable`). The function of a stage gets the rows of whole keys (`feed`),
//! aggregates what left and what came (`feed_changes`), joins the rows with their identities. Rows that the update has
//! read already (`OldRows`) are not read once more.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::ArrowError;
use arrow_select::filter::filter_record_batch;

use super::cursor::Cursor;
use super::diff::{Delta, distinct, keys_only, select_keys};
use super::key_rows::{FirstRows, SplitKeys};
use super::layers::{Layer, newest_rows, to_error};
use super::lookup::{Keys, StoredTable, cancellable};
use super::old_rows::OldRows;
use super::tables::{KeyAndValue, TableShape};
use crate::error::Result;
use crate::files::{BATCH_ROWS, Merge, SortKeys, SortedBatches, Spill};

/// A source or stage that feeds a stage, as it is in the next version.
#[derive(Debug, Clone)]
pub(super) struct FeederTable<'a> {
    pub(super) columns: KeyAndValue,
    /// Its rows: `key` and `value`, or those of its content.
    pub(super) table: StoredTable,
    /// What the update adds to them.
    pub(super) delta: Option<&'a Delta>,
    /// The keys that the update changes, in the first column.
    pub(super) changed: Option<&'a Spill>,
    /// Stored rows that the update has read.
    pub(super) old: Option<&'a OldRows>,
}

impl FeederTable<'_> {
    /// The rows of some keys, as `key` and `value`.
    pub(super) fn feed(&self, keys: Keys<'_>) -> Result<SortedBatches> {
        Ok(self.pairs_of(self.rows(keys)?))
    }

    /// As [`Self::feed`], of each key its first rows at least, up to `limit`.
    pub(super) fn feed_first(
        &self,
        keys: &Spill,
        limit: u64,
        memory_bytes: usize,
    ) -> Result<SortedBatches> {
        let SplitKeys { few, many } = self.split_keys(keys, memory_bytes)?;
        let of_few = self.rows(Keys::Of(&few))?;
        let of_many = FirstRows::new(&self.table, self.delta, &many, limit, memory_bytes)?;
        let streams = [of_few, Box::new(of_many)];
        let order = self.table.shape.keys(1)?;
        let rows = Merge::new(streams, &order, BATCH_ROWS).map_err(to_error)?;
        Ok(self.pairs_of(Box::new(rows)))
    }

    /// As [`StoredTable::split_keys`]; keys whose rows have been read have few.
    fn split_keys(&self, keys: &Spill, memory_bytes: usize) -> Result<SplitKeys> {
        let (Some(old), shape) = (self.old, &self.table.shape) else {
            return self.table.split_keys(keys, memory_bytes);
        };
        let unread = select_keys(keys, keys_only(&old.whole)?, false, shape, 1, memory_bytes)?;
        let SplitKeys { many, .. } = self.table.split_keys(&unread, memory_bytes)?;
        let few = select_keys(keys, keys_only(&many)?, false, shape, 1, memory_bytes)?;
        Ok(SplitKeys { few, many })
    }

    /// The rows of some keys as joins see them: [`TableShape::identified`].
    pub(super) fn identified_rows(&self, keys: Keys<'_>) -> Result<SortedBatches> {
        Ok(self.identify(self.rows(keys)?))
    }

    /// The key and identity of the pairs that the update changes, each once.
    pub(super) fn changed_pairs(&self, memory_bytes: usize) -> Result<Spill> {
        let rows = match self.delta {
            Some(delta) => delta.rows.read().map_err(to_error)?,
            None => Box::new(std::iter::empty()),
        };
        let shape = self.identified();
        distinct(self.identify(rows), &shape, 2, 0, memory_bytes)
    }

    /// The rows that the update adds, as joins see them.
    pub(super) fn added_rows(&self) -> Result<SortedBatches> {
        Ok(self.identify(self.newest_of_delta()?))
    }

    /// The columns of rows as joins see them.
    pub(super) fn identified(&self) -> TableShape {
        self.table.shape.identified()
    }

    fn identify(&self, rows: SortedBatches) -> SortedBatches {
        let shape = &self.table.shape;
        let (identity, value) = (shape.wins_by - 1, shape.visible - 1);
        let schema = shape.identified().schema;
        let rows = cancellable(rows, &self.table.cancel);
        Box::new(rows.map(move |batch| {
            let batch = batch?;
            let columns = [0, identity, value].map(|at| Arc::clone(batch.column(at)));
            RecordBatch::try_new(Arc::clone(&schema), columns.into())
        }))
    }

    fn newest_of_delta(&self) -> Result<SortedBatches> {
        let (Some(delta), shape) = (self.delta, &self.table.shape) else {
            return Ok(Box::new(std::iter::empty()));
        };
        let visible: Vec<usize> = (0..shape.visible).collect();
        newest_rows(
            vec![delta.layer(shape.visible)?],
            &Arc::new(shape.schema.project(&visible).map_err(to_error)?),
            &shape.sort_columns(shape.wins_by),
            false,
        )
    }

    fn rows(&self, keys: Keys<'_>) -> Result<SortedBatches> {
        let (columns, shape) = (self.table.shape.visible, &self.table.shape);
        let newer = self.delta.map(|delta| delta.layer(columns)).transpose()?;
        let (Keys::Of(keys), Some(delta)) = (keys, self.delta) else {
            return self.table.read_under(newer, keys, columns);
        };
        let memory_bytes = self.table.memory_bytes / 2;
        let mut stored = keys.clone();
        if self.has_whole_keys() {
            let added = delta.rows.read().map_err(to_error)?;
            stored = select_keys(&stored, added, false, shape, 1, memory_bytes)?;
        }
        let mut layers: Vec<Layer> = newer.into_iter().collect();
        if let Some(old) = self.old {
            let whole = keys_only(&old.whole)?;
            stored = select_keys(&stored, whole, false, shape, 1, memory_bytes)?;
            layers.push(Layer {
                batches: self.old_groups(old)?,
                has_deletes: false,
            });
        }
        let rows = self.table.read_under(layers, Keys::Of(&stored), columns)?;
        // What the update adds or has read may be of other keys.
        let order = shape.keys(1)?;
        let keys = Cursor::new(keys_only(keys)?, &order).map_err(to_error)?;
        Ok(Box::new(WithKeys { rows, keys, order }))
    }

    /// All stored rows of the keys that the update has read as a whole.
    fn old_groups(&self, old: &OldRows) -> Result<SortedBatches> {
        let rows = old.groups.read().map_err(to_error)?;
        if old.is_exact {
            return Ok(rows);
        }
        let order = self.table.shape.keys(1)?;
        let keys = Cursor::new(keys_only(&old.whole)?, &order).map_err(to_error)?;
        Ok(Box::new(WithKeys { rows, keys, order }))
    }

    /// Whether what an update adds of a key is all that it has: a source's keys are replaced, a group has one row.
    fn has_whole_keys(&self) -> bool {
        self.table.shape.wins_by == 1 || self.columns.has_state
    }

    /// What the update takes away of them, and what comes in its place, both in the order of the key.
    pub(super) fn feed_changes(
        &self,
        memory_bytes: usize,
    ) -> Result<(SortedBatches, SortedBatches)> {
        let (Some(delta), shape) = (self.delta, &self.table.shape) else {
            return Ok((Box::new(std::iter::empty()), Box::new(std::iter::empty())));
        };
        let replaced = delta.rows.read().map_err(to_error)?;
        let replaced = distinct(replaced, shape, shape.wins_by, 0, memory_bytes)?;
        let removed = self.stored_pairs(&replaced, memory_bytes)?;
        let added = self.newest_of_delta()?;
        Ok((self.pairs_of(removed), self.pairs_of(added)))
    }

    /// The stored rows of some pairs that the update changes, or of keys.
    fn stored_pairs(&self, pairs: &Spill, memory_bytes: usize) -> Result<SortedBatches> {
        let (shape, columns) = (&self.table.shape, self.table.shape.visible);
        let Some(old) = self.old else {
            return self.table.read(Keys::Of(pairs), columns);
        };
        let others = if let Some(others) = &old.pairs {
            others.read().map_err(to_error)?
        } else {
            let whole = keys_only(&old.whole)?;
            let unread = select_keys(pairs, whole, false, shape, shape.wins_by, memory_bytes)?;
            self.table.read(Keys::Of(&unread), columns)?
        };
        let order = shape.keys(shape.wins_by)?;
        let streams = [self.old_groups(old)?, others];
        let rows = Box::new(Merge::new(streams, &order, BATCH_ROWS).map_err(to_error)?);
        let keys = Cursor::new(keys_only(pairs)?, &order).map_err(to_error)?;
        Ok(Box::new(WithKeys { rows, keys, order }))
    }

    /// The key and the value of rows.
    fn pairs_of(&self, rows: SortedBatches) -> SortedBatches {
        let (value, schema) = (self.table.shape.visible - 1, self.columns.pairs());
        let rows = cancellable(rows, &self.table.cancel);
        Box::new(rows.map(move |batch| {
            let batch = batch?;
            let columns = vec![Arc::clone(batch.column(0)), Arc::clone(batch.column(value))];
            RecordBatch::try_new(Arc::clone(&schema), columns)
        }))
    }
}

/// Those of sorted rows that have some keys.
pub(super) struct WithKeys {
    pub(super) rows: SortedBatches,
    pub(super) keys: Cursor,
    pub(super) order: Arc<SortKeys>,
}

impl WithKeys {
    fn filter(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let rows = self.order.convert_batch(batch)?;
        let mut is_kept = Vec::with_capacity(batch.num_rows());
        for row in &rows {
            self.keys.seek(row.data())?;
            is_kept.push(self.keys.is_at(row.data()));
        }
        filter_record_batch(batch, &BooleanArray::from(is_kept))
    }
}

impl Iterator for WithKeys {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.rows.next()?;
        Some(batch.and_then(|batch| self.filter(&batch)))
    }
}
