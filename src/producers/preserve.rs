//! Hooks that preserve values: what a stage emits is replaced by what a function makes of it and of an earlier value of the
//! same target key, such as a surrogate id that stays.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchIterator, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use serde_json::Value;

use super::cursor::{Cursor, Picker};
use super::diff::distinct;
use super::emitted::check_emitted;
use super::functions::{Preserve, Rows};
use super::graph::StageNode;
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable};
use crate::error::{Error, Result};
use crate::files::{SortedBatches, Spill};

/// The largest state of a hook, in bytes of JSON.
const MAX_STATE_BYTES: usize = 64 << 10;

/// The emitted rows, sorted, with the values that the hook gives, and its state after them. `replaced` are the rows of
/// tables in the place of which `content` is, in its order and without source keys.
pub(super) fn preserve(
    stage: &StageNode,
    hook: &dyn Preserve,
    content: &StoredTable,
    upserts: &Spill,
    replaced: Option<&Spill>,
    last_state: Option<&Value>,
    memory_bytes: usize,
) -> Result<(Spill, Value)> {
    let shape = &content.shape;
    let stored = if let Some(replaced) = replaced {
        replaced.read().map_err(to_error)?
    } else {
        let targets = distinct(upserts.read().map_err(to_error)?, shape, 1, 0, memory_bytes)?;
        content.read(Keys::Of(&targets), 3)?
    };
    let rows = WithEarlier::new(content, upserts, stored)?;
    let schema = Arc::clone(&rows.schema);
    let rows: Rows = Box::new(RecordBatchIterator::new(rows, schema));
    let mut pass = hook.begin(rows, last_state)?;
    let batches = pass.by_ref().map(|batch| {
        content.cancel.check()?;
        check_emitted(&batch?, stage, &shape.schema)
    });
    let batches = batches.map(|batch| batch.map_err(to_arrow));
    let preserved = Spill::collect(&shape.schema, batches, memory_bytes).map_err(to_error)?;
    let new_state = pass.state()?;
    let of_stage = |message: String| Error::invalid(format!("stage {:?}: {message}", stage.name));
    if preserved.rows() != upserts.rows() {
        let (actual, expected) = (preserved.rows(), upserts.rows());
        return Err(of_stage(format!(
            "the hook gave {actual} rows for {expected}"
        )));
    }
    let state_bytes = new_state.to_string().len();
    if state_bytes > MAX_STATE_BYTES {
        return Err(of_stage(format!(
            "the state of the hook has {state_bytes} bytes as JSON; {MAX_STATE_BYTES} are allowed"
        )));
    }
    Ok((preserved, new_state))
}

/// The rows with their earlier values.
struct WithEarlier {
    schema: SchemaRef,
    upserts: Cursor,
    /// The same rows by target key alone.
    targets: Cursor,
    stored: Cursor,
    stored_targets: Cursor,
    /// The target key that was seen last.
    target: Option<Vec<u8>>,
    /// The values of its first stored row, in a batch of one column.
    first: Option<(Arc<RecordBatch>, usize)>,
    /// A batch of one null.
    none: Arc<RecordBatch>,
    ready: VecDeque<RecordBatch>,
}

impl WithEarlier {
    fn new(content: &StoredTable, upserts: &Spill, stored: SortedBatches) -> Result<Self> {
        let shape = &content.shape;
        let mut fields: Vec<_> = shape.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new("begins", DataType::Boolean, false)));
        fields.push(Arc::new(Field::new(
            "has_earlier",
            DataType::Boolean,
            false,
        )));
        fields.push(Arc::new(shape.schema.field(2).clone().with_name("earlier")));
        let nulls = shape.schema.fields().iter();
        let nulls = nulls
            .map(|field| new_null_array(field.data_type(), 1))
            .collect();
        let none = RecordBatch::try_new(Arc::clone(&shape.schema), nulls).map_err(to_error)?;
        let stored =
            Spill::collect(&shape.schema, stored, content.memory_bytes).map_err(to_error)?;
        let (pairs, targets) = (shape.keys(2)?, shape.keys(1)?);
        let cursor = |spill: &Spill, keys| spill.read().and_then(|rows| Cursor::new(rows, keys));
        Ok(Self {
            schema: Arc::new(Schema::new(fields)),
            upserts: cursor(upserts, &pairs).map_err(to_error)?,
            targets: cursor(upserts, &targets).map_err(to_error)?,
            stored: cursor(&stored, &pairs).map_err(to_error)?,
            stored_targets: cursor(&stored, &targets).map_err(to_error)?,
            target: None,
            first: None,
            none: Arc::new(none),
            ready: VecDeque::new(),
        })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(Some(batch));
        }
        let (mut rows, mut earlier) = (Picker::default(), Picker::default());
        let (mut begins, mut has_earlier) = (Vec::new(), Vec::new());
        while let (Some(pair), Some((batch, row)), Some(target)) =
            (self.upserts.key(), self.upserts.row(), self.targets.key())
        {
            if rows.is_full() || earlier.is_full() {
                break;
            }
            let is_new = self.target.as_deref() != Some(target);
            if is_new {
                self.stored_targets.seek(target)?;
                let first = self.stored_targets.row();
                let first = first.filter(|_| self.stored_targets.is_at(target));
                self.first = first.map(|(batch, row)| (Arc::clone(batch), row));
                self.target = Some(target.to_vec());
            }
            self.stored.seek(pair)?;
            let of_pair = self.stored.row().filter(|_| self.stored.is_at(pair));
            let of_target = self.first.as_ref().map(|(batch, row)| (batch, *row));
            let nearest = of_pair.or(of_target);
            let (earlier_batch, earlier_row) = nearest.unwrap_or((&self.none, 0));
            earlier.pick(earlier_batch, earlier_row);
            has_earlier.push(nearest.is_some());
            begins.push(is_new);
            rows.pick(batch, row);
            self.upserts.advance()?;
            self.targets.advance()?;
        }
        let (begins, has_earlier) = (BooleanArray::from(begins), BooleanArray::from(has_earlier));
        let mut offset = 0;
        for (rows, earlier) in pair_slices(rows.take()?, earlier.take()?) {
            let count = rows.num_rows();
            let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
            columns.push(Arc::new(begins.slice(offset, count)));
            columns.push(Arc::new(has_earlier.slice(offset, count)));
            columns.push(Arc::clone(earlier.column(2)));
            offset += count;
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
            self.ready.push_back(batch);
        }
        Ok(self.ready.pop_front())
    }
}

/// Two lists of batches with equally many rows in all, cut so that both have the same lengths.
fn pair_slices(
    first: Vec<RecordBatch>,
    second: Vec<RecordBatch>,
) -> Vec<(RecordBatch, RecordBatch)> {
    let (mut first, mut second) = (VecDeque::from(first), VecDeque::from(second));
    let mut pairs = Vec::new();
    while let (Some(a), Some(b)) = (first.pop_front(), second.pop_front()) {
        let count = a.num_rows().min(b.num_rows());
        for (list, batch) in [(&mut first, &a), (&mut second, &b)] {
            if batch.num_rows() > count {
                list.push_front(batch.slice(count, batch.num_rows() - count));
            }
        }
        pairs.push((a.slice(0, count), b.slice(0, count)));
    }
    pairs
}

impl Iterator for WithEarlier {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}
