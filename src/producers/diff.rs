//! What changed: the rows of some keys before and after, compared, and the run that makes the difference.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, UInt8Type};
use arrow_array::{ArrayRef, Int8Array, RecordBatch, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::cursor::{Cursor, Picker, RowsEqual};
use super::layers::{Layer, to_error};
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{SortedBatches, Spill, SpillWriter};

/// There was a row.
pub(super) const HAD: u8 = 1;
/// There is a row.
pub(super) const HAS: u8 = 2;
/// The rows are not the same.
pub(super) const CHANGED: u8 = 4;

/// The rows are the same to readers, and their states are not.
const STATE_CHANGED: u8 = 8;

/// How a key changed, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeType {
    Add = 0,
    Update = 1,
    Delete = 2,
}

/// The rows that a version adds to a table.
#[derive(Debug, Clone)]
pub(super) struct Delta {
    /// The rows, in the order of the table; the last column may be `op`.
    pub(super) rows: Spill,
    /// Whether one of them deletes.
    pub(super) has_deletes: bool,
}

impl Delta {
    /// The rows as the newest layer of their table, with the first `columns` columns.
    pub(super) fn layer(&self, columns: usize) -> Result<Layer> {
        let total = self.rows.schema().fields().len();
        let op = self.has_deletes.then(|| total - 1);
        let kept: Vec<usize> = (0..columns).chain(op).collect();
        let batches = self.rows.read().map_err(to_error)?;
        let batches: SortedBatches = if kept.len() == total {
            batches
        } else {
            Box::new(batches.map(move |batch| batch?.project(&kept)))
        };
        Ok(Layer {
            batches,
            has_deletes: self.has_deletes,
        })
    }
}

impl Delta {
    /// The rows as a file has them: with the column `op` if `has_op`.
    pub(super) fn rows_to_write(&self, shape: &TableShape, has_op: bool) -> Result<SortedBatches> {
        let columns = shape.schema.fields().len();
        let batches = self.rows.read().map_err(to_error)?;
        if has_op == (self.rows.schema().fields().len() > columns) {
            return Ok(batches);
        }
        let with_op = shape.schema_with_op();
        let kept: Vec<usize> = (0..columns).collect();
        Ok(Box::new(batches.map(move |batch| {
            let batch = batch?;
            if !has_op {
                return batch.project(&kept);
            }
            let mut arrays = batch.columns().to_vec();
            arrays.push(Arc::new(Int8Array::from_value(0, batch.num_rows())));
            RecordBatch::try_new(Arc::clone(&with_op), arrays)
        })))
    }
}

/// Sets keys aside, each with a number.
pub(super) struct KeyWriter {
    schema: SchemaRef,
    columns: Vec<usize>,
    /// The batches of the picked rows, and the columns of the key in them.
    batches: Vec<(Arc<RecordBatch>, Arc<RecordBatch>)>,
    picker: Picker,
    flags: Vec<u8>,
    spill: SpillWriter,
}

impl KeyWriter {
    /// For the first `columns` columns of a table.
    pub(super) fn new(shape: &TableShape, columns: usize, memory_bytes: usize) -> Self {
        let mut fields: Vec<_> = shape.schema.fields()[..columns].to_vec();
        fields.push(Arc::new(Field::new("flags", DataType::UInt8, false)));
        let schema = Arc::new(Schema::new(fields));
        Self {
            spill: SpillWriter::new(&schema, memory_bytes),
            schema,
            columns: (0..columns).collect(),
            batches: Vec::new(),
            picker: Picker::default(),
            flags: Vec::new(),
        }
    }

    /// Adds the key of a row, the columns of which begin with those of the key.
    pub(super) fn add(
        &mut self,
        row: (&Arc<RecordBatch>, usize),
        flags: u8,
    ) -> Result<(), ArrowError> {
        let known = self
            .batches
            .iter()
            .rposition(|(batch, _)| Arc::ptr_eq(batch, row.0));
        let at = if let Some(at) = known {
            at
        } else {
            let keys = Arc::new(row.0.project(&self.columns)?);
            self.batches.push((Arc::clone(row.0), keys));
            self.batches.len() - 1
        };
        self.picker.pick(&self.batches[at].1, row.1);
        self.flags.push(flags);
        if self.picker.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        self.batches.clear();
        for (rows, flags) in self.picker.take_with::<UInt8Type>(&mut self.flags)? {
            let mut arrays = rows.columns().to_vec();
            arrays.push(flags);
            self.spill
                .push(RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)?;
        }
        Ok(())
    }

    /// The keys, with the column `flags` behind them.
    pub(super) fn finish(mut self) -> Result<Spill, ArrowError> {
        self.flush()?;
        self.spill.finish()
    }
}

/// The number of a row that a [`KeyWriter`] set aside.
pub(super) fn flags_of((batch, row): (&Arc<RecordBatch>, usize)) -> u8 {
    let flags = batch.column(batch.num_columns() - 1);
    flags.as_primitive::<UInt8Type>().value(row)
}

/// Compares the old and the new rows of a table, key by key (the columns that decide). Gives each key that has either,
/// with [`HAD`], [`HAS`] and [`CHANGED`].
pub(super) fn diff(
    old: SortedBatches,
    new: SortedBatches,
    shape: &TableShape,
    memory_bytes: usize,
) -> Result<Spill> {
    let keys = shape.keys(shape.wins_by)?;
    let walk = || -> Result<Spill, ArrowError> {
        let (mut old, mut new) = (Cursor::new(old, &keys)?, Cursor::new(new, &keys)?);
        let columns = shape.schema.fields().len();
        let mut equal = RowsEqual::new(&shape.schema, shape.wins_by..shape.visible);
        let mut has_equal_state = (shape.visible < columns)
            .then(|| RowsEqual::new(&shape.schema, shape.visible..columns));
        let mut changes = KeyWriter::new(shape, shape.wins_by, memory_bytes);
        let mut key = Vec::new();
        loop {
            let next = match (old.key(), new.key()) {
                (Some(a), Some(b)) => a.min(b),
                (Some(key), None) | (None, Some(key)) => key,
                (None, None) => break,
            };
            key.clear();
            key.extend_from_slice(next);
            let first = if old.is_at(&key) {
                old.row()
            } else {
                new.row()
            };
            let Some((batch, row)) = first.map(|(batch, row)| (Arc::clone(batch), row)) else {
                break;
            };
            let mut flags = 0;
            while let (true, true, Some(a), Some(b)) =
                (old.is_at(&key), new.is_at(&key), old.row(), new.row())
            {
                flags |= HAD | HAS;
                if !equal.equal([a, b])? {
                    flags |= CHANGED;
                } else if let Some(states) = &mut has_equal_state
                    && !states.equal([a, b])?
                {
                    flags |= STATE_CHANGED;
                }
                old.advance()?;
                new.advance()?;
            }
            for (cursor, flag) in [(&mut old, HAD), (&mut new, HAS)] {
                while cursor.is_at(&key) {
                    flags |= flag | CHANGED;
                    cursor.advance()?;
                }
            }
            changes.add((&batch, row), flags)?;
        }
        changes.finish()
    };
    walk().map_err(to_error)
}

/// The rows of the keys that changed: the new ones, or one that deletes. `changes` is the result of [`diff`].
pub(super) fn delta(
    changes: &Spill,
    new: SortedBatches,
    shape: &TableShape,
    memory_bytes: usize,
) -> Result<Delta> {
    let keys = shape.keys(shape.wins_by)?;
    let walk = || -> Result<Delta, ArrowError> {
        let mut changes = Cursor::new(changes.read()?, &keys)?;
        let mut new = Cursor::new(new, &keys)?;
        let mut rows = DeltaWriter::new(shape, memory_bytes);
        while let (Some(key), Some(row)) = (changes.key(), changes.row()) {
            let flags = flags_of(row);
            if flags & CHANGED != 0 && flags & HAS == 0 {
                rows.delete(row)?;
            } else if flags & (CHANGED | STATE_CHANGED) != 0 {
                new.seek(key)?;
                while let (true, Some(row)) = (new.is_at(key), new.row()) {
                    rows.upsert(row)?;
                    new.advance()?;
                }
            }
            changes.advance()?;
        }
        rows.finish()
    };
    walk().map_err(to_error)
}

/// Writes rows of a delta in their order.
pub(super) struct DeltaWriter {
    shape: TableShape,
    schema: SchemaRef,
    picker: Picker,
    ops: Vec<i8>,
    has_deletes: bool,
    /// The last batch of keys to delete, and its rows as rows of the table.
    deleted: Option<(Arc<RecordBatch>, Arc<RecordBatch>)>,
    spill: SpillWriter,
}

impl DeltaWriter {
    pub(super) fn new(shape: &TableShape, memory_bytes: usize) -> Self {
        let schema = shape.schema_with_op();
        Self {
            spill: SpillWriter::new(&schema, memory_bytes),
            shape: shape.clone(),
            schema,
            picker: Picker::default(),
            ops: Vec::new(),
            has_deletes: false,
            deleted: None,
        }
    }

    /// Adds a row of the table.
    pub(super) fn upsert(
        &mut self,
        (batch, row): (&Arc<RecordBatch>, usize),
    ) -> Result<(), ArrowError> {
        self.picker.pick(batch, row);
        self.ops.push(0);
        self.flush_if_full()
    }

    /// Adds a row that deletes its key, of a batch that begins with the columns that decide.
    pub(super) fn delete(
        &mut self,
        (keys, row): (&Arc<RecordBatch>, usize),
    ) -> Result<(), ArrowError> {
        let known = self.deleted.as_ref().filter(|(k, _)| Arc::ptr_eq(k, keys));
        let rows = if let Some((_, rows)) = known {
            Arc::clone(rows)
        } else {
            let rows = Arc::new(self.as_rows(keys)?);
            self.deleted = Some((Arc::clone(keys), Arc::clone(&rows)));
            rows
        };
        self.picker.pick(&rows, row);
        self.ops.push(1);
        self.has_deletes = true;
        self.flush_if_full()
    }

    fn as_rows(&self, keys: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let fields = self.shape.schema.fields().iter().enumerate();
        let columns = fields.map(|(index, field)| -> ArrayRef {
            if index < self.shape.wins_by {
                return Arc::clone(keys.column(index));
            }
            new_null_array(field.data_type(), keys.num_rows())
        });
        RecordBatch::try_new(Arc::clone(&self.shape.schema), columns.collect())
    }

    fn flush_if_full(&mut self) -> Result<(), ArrowError> {
        if self.picker.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        for (rows, ops) in self.picker.take_with::<Int8Type>(&mut self.ops)? {
            let mut arrays = rows.columns().to_vec();
            arrays.push(ops);
            self.spill
                .push(RecordBatch::try_new(Arc::clone(&self.schema), arrays)?)?;
        }
        Ok(())
    }

    /// The rows.
    pub(super) fn finish(mut self) -> Result<Delta, ArrowError> {
        self.flush()?;
        Ok(Delta {
            rows: self.spill.finish()?,
            has_deletes: self.has_deletes,
        })
    }
}

/// The keys of a stream that is in the order of a table, each once: its first `columns` columns. All have `flags`.
pub(super) fn distinct(
    stream: SortedBatches,
    shape: &TableShape,
    columns: usize,
    flags: u8,
    memory_bytes: usize,
) -> Result<Spill> {
    let keys = shape.keys(columns)?;
    let walk = || -> Result<Spill, ArrowError> {
        let mut cursor = Cursor::new(stream, &keys)?;
        let mut unique = KeyWriter::new(shape, columns, memory_bytes);
        let mut last: Option<Vec<u8>> = None;
        while let (Some(key), Some(row)) = (cursor.key(), cursor.row()) {
            if last.as_deref() != Some(key) {
                last = Some(key.to_vec());
                unique.add(row, flags)?;
            }
            cursor.advance()?;
        }
        unique.finish()
    };
    walk().map_err(to_error)
}

/// The first `columns` columns of those of some keys that `others` have, or of those that they do not have. What decides
/// is the first column.
pub(super) fn select_keys(
    keys: &Spill,
    others: SortedBatches,
    selects_common: bool,
    shape: &TableShape,
    columns: usize,
    memory_bytes: usize,
) -> Result<Spill> {
    let (keys, order) = (keys_only(keys)?, shape.keys(1)?);
    let walk = || -> Result<Spill, ArrowError> {
        let (mut keys, mut others) = (Cursor::new(keys, &order)?, Cursor::new(others, &order)?);
        let mut selected = KeyWriter::new(shape, columns, memory_bytes);
        while let (Some(key), Some(row)) = (keys.key(), keys.row()) {
            others.seek(key)?;
            if others.is_at(key) == selects_common {
                selected.add(row, 0)?;
            }
            keys.advance()?;
        }
        selected.finish()
    };
    walk().map_err(to_error)
}

/// The first columns of what a [`KeyWriter`] set aside: the keys without their numbers.
pub(super) fn keys_only(keys: &Spill) -> Result<SortedBatches> {
    let columns: Vec<usize> = (0..keys.schema().fields().len() - 1).collect();
    let batches = keys.read().map_err(to_error)?;
    Ok(Box::new(batches.map(move |batch| batch?.project(&columns))))
}
