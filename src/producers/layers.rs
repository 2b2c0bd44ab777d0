//! The rows of a table: the runs of it, newest first, merged. Of the rows that are equal in the columns that decide, those
//! of the newest run stay, and those that delete go.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, UInt32Type};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::filter::filter_record_batch;

use crate::error::{Error, Result};
use crate::files::{BATCH_ROWS, Merge, SortColumn, SortKeys, SortedBatches, Spill};

/// The most streams that are merged at once.
const MAX_MERGED: usize = 16;

/// The rows of a run, or some of them.
pub(super) struct Layer {
    pub(super) batches: SortedBatches,
    /// Whether the last column is `op`.
    pub(super) has_deletes: bool,
}

/// The newest rows of layers, newest first, with the columns `schema`, in the order of `by`, which decides. Deletes are
/// left out, unless `keeps_deletes`: then `op` is the last column.
pub(super) fn newest_rows(
    mut layers: Vec<Layer>,
    schema: &SchemaRef,
    by: &[SortColumn],
    keeps_deletes: bool,
) -> Result<SortedBatches> {
    if layers.len() == 1
        && layers[0].has_deletes == keeps_deletes
        && let Some(layer) = layers.pop()
    {
        return Ok(layer.batches);
    }
    let mut fields: Vec<_> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new("mark", DataType::UInt32, false)));
    let marked = Arc::new(Schema::new(fields));
    let keys = Arc::new(SortKeys::new(&marked, by)?);
    let streams = (0..).zip(layers).map(|(number, layer)| {
        let marked = Arc::clone(&marked);
        let batches = layer
            .batches
            .map(move |batch| mark(&batch?, layer.has_deletes, number, &marked));
        Box::new(batches) as SortedBatches
    });
    let merge = Merge::new(streams, &keys, BATCH_ROWS).map_err(to_error)?;
    Ok(Box::new(NewestRows {
        merge,
        keys,
        keeps_deletes,
        last: None,
    }))
}

/// Appends the number of the layer and whether the row deletes, as one number.
fn mark(
    batch: &RecordBatch,
    has_deletes: bool,
    number: u32,
    schema: &SchemaRef,
) -> Result<RecordBatch, ArrowError> {
    let columns = schema.fields().len() - 1;
    let marks: UInt32Array = if has_deletes {
        let ops = batch.column(columns).as_primitive::<Int8Type>();
        ops.unary(|op| number << 1 | u32::from(op != 0))
    } else {
        UInt32Array::from_value(number << 1, batch.num_rows())
    };
    let mut arrays: Vec<ArrayRef> = batch.columns()[..columns].to_vec();
    arrays.push(Arc::new(marks));
    RecordBatch::try_new(Arc::clone(schema), arrays)
}

/// Merges streams in their order, few at once: what is merged of them is set aside, up to `memory_bytes` in memory.
pub(super) fn merge_streams(
    streams: impl Iterator<Item = Result<SortedBatches>>,
    schema: &SchemaRef,
    order: &Arc<SortKeys>,
    memory_bytes: usize,
) -> Result<SortedBatches> {
    let merge = |streams: Vec<SortedBatches>| -> Result<SortedBatches> {
        let merged = Merge::new(streams, order, BATCH_ROWS).map_err(to_error)?;
        Ok(Box::new(merged))
    };
    let (mut merged, mut group) = (Vec::<SortedBatches>::new(), Vec::new());
    let mut left_bytes = memory_bytes;
    for stream in streams {
        group.push(stream?);
        if group.len() == MAX_MERGED {
            let rows = merge(std::mem::take(&mut group))?;
            let set_aside = Spill::collect(schema, rows, left_bytes).map_err(to_error)?;
            left_bytes = left_bytes.saturating_sub(set_aside.bytes());
            merged.push(set_aside.read().map_err(to_error)?);
        }
    }
    merged.extend(group);
    merge(merged)
}

struct NewestRows {
    merge: Merge,
    keys: Arc<SortKeys>,
    keeps_deletes: bool,
    /// The last key, and the layer that it is in.
    last: Option<(Box<[u8]>, u32)>,
}

impl NewestRows {
    fn filter(&mut self, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        let keys = self.keys.convert_batch(batch)?;
        let columns = batch.num_columns() - 1;
        let marks = batch.column(columns).as_primitive::<UInt32Type>().values();
        let mut winner = self.last.take();
        let mut is_kept = Vec::with_capacity(batch.num_rows());
        // The key of the winner, if it is in this batch.
        let mut at: Option<usize> = None;
        for (row, mark) in marks.iter().enumerate() {
            let key = keys.row(row);
            let is_same = match (at, &winner) {
                (Some(first), _) => keys.row(first) == key,
                (None, Some((last, _))) => **last == *key.data(),
                (None, None) => false,
            };
            if !is_same {
                at = Some(row);
                winner = Some((Box::default(), mark >> 1));
            }
            let is_newest = winner
                .as_ref()
                .is_some_and(|(_, layer)| *layer == mark >> 1);
            is_kept.push(is_newest && (self.keeps_deletes || mark & 1 == 0));
        }
        self.last = match (at, winner) {
            (Some(first), Some((_, layer))) => Some((keys.row(first).data().into(), layer)),
            (_, winner) => winner,
        };
        let mut arrays = batch.columns()[..columns].to_vec();
        let schema = batch.schema();
        let mut fields: Vec<_> = schema.fields()[..columns].to_vec();
        if self.keeps_deletes {
            let ops = marks.iter().map(|mark| i8::from(mark & 1 == 1));
            arrays.push(Arc::new(arrow_array::Int8Array::from_iter_values(ops)));
            fields.push(Arc::new(Field::new(
                super::tables::OP,
                DataType::Int8,
                false,
            )));
        }
        let result = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        filter_record_batch(&result, &BooleanArray::from(is_kept))
    }
}

impl Iterator for NewestRows {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.merge.next()?;
        Some(batch.and_then(|batch| self.filter(&batch)))
    }
}

/// The error of a stream: what the engine put into it, as it was.
pub(super) fn to_error(e: ArrowError) -> Error {
    match e {
        ArrowError::ExternalError(source) => match source.downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => Error::other(source.to_string()).with_source(source),
        },
        other => Error::from_cause(other),
    }
}

/// An error of the engine, to be passed through a stream.
pub(super) fn to_arrow(e: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(e))
}
