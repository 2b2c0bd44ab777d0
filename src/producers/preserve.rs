//! Hooks that preserve values: what a stage emits is replaced by what a function makes of it and of an earlier value of the
//! same target key, such as a surrogate id that stays.
//!
//! A hook gets the emitted rows in the order of the content, each with the earlier value and whether it is the first
//! row of its target key, and returns as many rows. It may keep a small state, which the manifest stores.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, RecordBatch, RecordBatchIterator, UInt64Array, new_null_array,
};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use serde_json::Value;

use super::cursor::{Cursor, Picker};
use super::diff::distinct;
use super::emitted::check_emitted;
use super::functions::{Preserve, Rows};
use super::graph::StageNode;
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable};
use super::source_keys::{plain_source_keys, split_source_key};
use super::tables::TableShape;
use crate::error::{Error, Result};
use crate::files::{SortColumn, SortedBatches, Spill, sort_batches};

/// The largest state of a hook, in bytes of JSON.
const MAX_STATE_BYTES: usize = 64 << 10;
/// The columns of upserts that are numbered, behind those of [`plain_shape`].
const SOURCE_KEY_WITH_ORDER: usize = 3;
const NUMBER: usize = 4;

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
    let stored = Spill::collect(&shape.schema, stored, content.memory_bytes).map_err(to_error)?;
    // Where nothing is stored, no pair is looked up.
    let rows: SortedBatches = if stage.order_by.is_some() && stored.rows() > 0 {
        with_earlier_of_plain_pairs(shape, upserts, &stored, memory_bytes)?
    } else {
        let read = || stored.read().map_err(to_error);
        Box::new(WithEarlier::new(shape, upserts, read()?, read()?)?)
    };
    let mut pass = hook.begin(with_begins(rows, shape)?, last_state)?;
    let batches = pass
        .by_ref()
        .map(|batch| {
            content.cancel.check()?;
            check_emitted(&batch?, stage, &shape.schema)
        })
        .map(|batch| batch.map_err(to_arrow));
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

/// The rows of the content with their earlier values, and whether they are the first ones of their target key.
fn with_begins(rows: SortedBatches, shape: &TableShape) -> Result<Rows> {
    let mut fields = with_earlier_fields(&shape.schema, shape);
    fields.push(Arc::new(Field::new("begins", DataType::Boolean, false)));
    let schema = Arc::new(Schema::new(fields));
    let (keys, output_schema) = (shape.keys(1)?, Arc::clone(&schema));
    let mut last: Option<Vec<u8>> = None;
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let mut begins = Vec::with_capacity(batch.num_rows());
        for target in &keys.convert_batch(&batch)? {
            let is_new = last.as_deref() != Some(target.data());
            if is_new {
                last = Some(target.data().to_vec());
            }
            begins.push(is_new);
        }
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(BooleanArray::from(begins)));
        RecordBatch::try_new(Arc::clone(&output_schema), columns)
    });
    Ok(Box::new(RecordBatchIterator::new(rows, schema)))
}

/// The columns `schema`, and behind them those of the earlier value.
fn with_earlier_fields(schema: &Schema, shape: &TableShape) -> Vec<Arc<Field>> {
    let mut fields = schema.fields().to_vec();
    let has_earlier = Field::new("has_earlier", DataType::Boolean, false);
    fields.push(Arc::new(has_earlier));
    fields.push(Arc::new(shape.schema.field(2).clone().with_name("earlier")));
    fields
}

/// The upserts with their earlier values, where the values of a key are in an order. A row whose order moves stays of its
/// pair, so pairs are looked up by the source key without the order; then the rows are put back into their order.
fn with_earlier_of_plain_pairs(
    shape: &TableShape,
    upserts: &Spill,
    stored: &Spill,
    memory_bytes: usize,
) -> Result<SortedBatches> {
    let plain = plain_shape(shape)?;
    let numbered = number(upserts, &plain, memory_bytes)?;
    let by_target = with_plain_keys(stored, &plain)?;
    let unsorted = with_plain_keys(stored, &plain)?;
    let unsorted = RecordBatchIterator::new(unsorted, Arc::clone(&plain.schema));
    let by_pair = sort_batches(Box::new(unsorted), &plain.sort_columns(2), memory_bytes)?;
    let rows = WithEarlier::new(&plain, &numbered, by_target, by_pair)?;
    let schema = Arc::clone(&rows.schema);
    let rows = Box::new(RecordBatchIterator::new(rows, schema));
    let rows = sort_batches(rows, &[SortColumn::ascending(NUMBER)], memory_bytes)?;
    let columns = [0, SOURCE_KEY_WITH_ORDER, 2, NUMBER + 1, NUMBER + 2];
    Ok(Box::new(rows.map(move |batch| batch?.project(&columns))))
}

/// The content with source keys that do not have the order.
fn plain_shape(shape: &TableShape) -> Result<TableShape> {
    let (_, source_key) = split_source_key(shape.schema.field(1))
        .ok_or_else(|| Error::other("internal error: a source key without an order"))?;
    let mut fields = shape.schema.fields().to_vec();
    fields[1] = Arc::new(source_key.clone().with_name("plain_source_key"));
    Ok(TableShape {
        schema: Arc::new(Schema::new(fields)),
        ..shape.clone()
    })
}

/// The stored rows, in their order, with the columns of [`plain_shape`].
fn with_plain_keys(stored: &Spill, plain: &TableShape) -> Result<SortedBatches> {
    let schema = Arc::clone(&plain.schema);
    let batches = stored.read().map_err(to_error)?.map(move |batch| {
        let mut columns = batch?.columns().to_vec();
        columns[1] = plain_source_keys(&columns[1])?;
        RecordBatch::try_new(Arc::clone(&schema), columns)
    });
    Ok(Box::new(batches))
}

/// The upserts in the order of pairs of `plain`: its columns, the source key with the order, the number of the row.
fn number(upserts: &Spill, plain: &TableShape, memory_bytes: usize) -> Result<Spill> {
    let mut fields = plain.schema.fields().to_vec();
    fields.push(Arc::clone(&upserts.schema().fields()[1]));
    fields.push(Arc::new(Field::new("number", DataType::UInt64, false)));
    let schema = Arc::new(Schema::new(fields));
    let numbered_schema = Arc::clone(&schema);
    let mut next = 0;
    let batches = upserts.read().map_err(to_error)?.map(move |batch| {
        let batch = batch?;
        let end = next + batch.num_rows() as u64;
        let mut columns = batch.columns().to_vec();
        columns[1] = plain_source_keys(batch.column(1))?;
        columns.push(Arc::clone(batch.column(1)));
        columns.push(Arc::new(UInt64Array::from_iter_values(next..end)));
        next = end;
        RecordBatch::try_new(Arc::clone(&numbered_schema), columns)
    });
    let input = Box::new(RecordBatchIterator::new(batches, Arc::clone(&schema)));
    let sorted = sort_batches(input, &plain.sort_columns(2), memory_bytes)?;
    Spill::collect(&schema, sorted, memory_bytes).map_err(to_error)
}

/// Upserts with the values of their earlier rows behind their columns.
struct WithEarlier {
    schema: SchemaRef,
    upserts: Cursor,
    /// The same rows by target key alone.
    targets: Cursor,
    stored: Cursor,
    stored_targets: Cursor,
    /// The target key that was seen last.
    target: Option<Vec<u8>>,
    /// Its first stored row.
    first: Option<(Arc<RecordBatch>, usize)>,
    /// A batch of one null.
    none: Arc<RecordBatch>,
    ready: VecDeque<RecordBatch>,
}

impl WithEarlier {
    /// The stored rows have the columns of `shape`, and the upserts have its first two first. The upserts and `stored`
    /// are in the order of pairs. `stored_targets` are the stored rows in the order of the content.
    fn new(
        shape: &TableShape,
        upserts: &Spill,
        stored_targets: SortedBatches,
        stored: SortedBatches,
    ) -> Result<Self> {
        let nulls = shape
            .schema
            .fields()
            .iter()
            .map(|field| new_null_array(field.data_type(), 1))
            .collect();
        let none = RecordBatch::try_new(Arc::clone(&shape.schema), nulls).map_err(to_error)?;
        let (pairs, targets) = (shape.keys(2)?, shape.keys(1)?);
        let read = || upserts.read().map_err(to_error);
        let fields = with_earlier_fields(upserts.schema(), shape);
        Ok(Self {
            schema: Arc::new(Schema::new(fields)),
            upserts: Cursor::new(read()?, &pairs).map_err(to_error)?,
            targets: Cursor::new(read()?, &targets).map_err(to_error)?,
            stored: Cursor::new(stored, &pairs).map_err(to_error)?,
            stored_targets: Cursor::new(stored_targets, &targets).map_err(to_error)?,
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
        let mut has_earlier = Vec::new();
        while let (Some(pair), Some((batch, row)), Some(target)) =
            (self.upserts.key(), self.upserts.row(), self.targets.key())
        {
            if rows.is_full() || earlier.is_full() {
                break;
            }
            if self.target.as_deref() != Some(target) {
                self.stored_targets.seek(target)?;
                let first = self
                    .stored_targets
                    .row()
                    .filter(|_| self.stored_targets.is_at(target));
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
            rows.pick(batch, row);
            self.upserts.advance()?;
            self.targets.advance()?;
        }
        let has_earlier = BooleanArray::from(has_earlier);
        let mut offset = 0;
        for (rows, earlier) in pair_slices(rows.take()?, earlier.take()?) {
            let count = rows.num_rows();
            let mut columns: Vec<ArrayRef> = rows.columns().to_vec();
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
