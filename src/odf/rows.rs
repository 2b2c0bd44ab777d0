//! Turns input into the rows of a slice: the system columns come first, and the rows are hashed and counted as they
//! pass.
//!
//! [`add_system_columns`] wraps the reader of the input. [`SystemColumns`] holds the names and values of the system
//! columns, [`SliceStats`] what is known about the slice after its last row.
//!
//! Errors are [`crate::ErrorKind::InvalidInput`]: names that clash with system columns, an event time that is not a
//! time, unknown operations, corrections that are not pairs, and offsets above the range of Int64. Errors of single
//! rows come while the rows are read, as [`ArrowError::ExternalError`].

use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader,
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::column_times::{convert_times, fill_times, is_time, latest_micros, repeat_time};
use super::digest::LogicalHash;
use super::multihash::Multihash;
use super::slice_columns::schema_to_write;
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};
use crate::files::align_to_schema;
use crate::parquet::types::{batch_with_row_count, convert};
use crate::sync::hash::SharedHasher;
use crate::sync::mutex::lock;

/// The most rows of a batch that are processed at once.
const CHUNK_ROWS: usize = 1 << 16;

const APPEND: i32 = 0;
const RETRACT: i32 = 1;
const CORRECT_FROM: i32 = 2;
const CORRECT_TO: i32 = 3;

/// The statistics of a slice, complete after its last row has passed.
#[derive(Debug, Default)]
pub(super) struct SliceStats {
    digest: Option<LogicalHash>,
    latest_event_time_micros: Option<i64>,
    rows: u64,
    operations: OperationCheck,
}

impl SliceStats {
    pub(super) fn new(schema: &Schema) -> Result<Self> {
        Ok(Self {
            digest: Some(LogicalHash::new(schema)?),
            ..Self::default()
        })
    }

    /// Lets the bytes of a file be hashed beside the rows.
    pub(super) fn share_lanes(&mut self, shared_hasher: SharedHasher) {
        if let Some(digest) = &mut self.digest {
            digest.shared_hasher = Some(shared_hasher);
        }
    }

    /// Returns the logical hash, and the latest event time in microseconds.
    pub(super) fn finish(self) -> Result<(Multihash, Option<i64>)> {
        let digest = self
            .digest
            .ok_or_else(|| Error::other("internal error: the slice has no logical hash"))?;
        Ok((digest.finish()?, self.latest_event_time_micros))
    }

    /// Adds rows with all columns of the slice.
    pub(super) fn update(&mut self, rows: &RecordBatch) -> Result<()> {
        if let Some(digest) = &mut self.digest {
            digest.update(rows)?;
        }
        self.rows += rows.num_rows() as u64;
        Ok(())
    }
}

/// Checks the operations of rows: their codes, and that every correct-from is directly followed by its correct-to.
#[derive(Debug, Default)]
pub(super) struct OperationCheck {
    rows: u64,
    /// The operation of the last row.
    last: Option<i32>,
    /// Whether the first row may be the correct-to of a row before.
    is_part: bool,
}

impl OperationCheck {
    /// The check of a slice that others wrote: the rows of a correction may be in two slices.
    pub(super) fn of_slice() -> Self {
        Self {
            is_part: true,
            ..Self::default()
        }
    }

    /// Checks the operations of the next rows, which are whole numbers.
    pub(super) fn check_column(&mut self, column: &ArrayRef) -> Result<()> {
        let operations = cast_column(column, &Field::new("operation", DataType::Int32, true))?;
        if operations.null_count() > 0 {
            return Err(Error::invalid("a row has no operation"));
        }
        self.check(operations.as_primitive::<Int32Type>())
    }

    fn check(&mut self, operations: &Int32Array) -> Result<()> {
        for operation in operations.values() {
            let row = self.rows;
            if !(APPEND..=CORRECT_TO).contains(operation) {
                let message = format!(
                    "row {row}: unknown operation code {operation}: {APPEND} appends, {RETRACT} retracts, \
                     {CORRECT_FROM} and {CORRECT_TO} correct from and to"
                );
                return Err(Error::invalid(message));
            }
            let may_follow_unseen = row == 0 && self.is_part;
            let follows_correct_from = self.last == Some(CORRECT_FROM);
            if follows_correct_from != (*operation == CORRECT_TO) && !may_follow_unseen {
                let message = format!(
                    "row {row}: a correct-to ({CORRECT_TO}) must directly follow its correct-from ({CORRECT_FROM})"
                );
                return Err(Error::invalid(message));
            }
            self.last = Some(*operation);
            self.rows += 1;
        }
        Ok(())
    }

    fn check_end(&self) -> Result<()> {
        if self.last == Some(CORRECT_FROM) {
            let message = format!(
                "the last row is a correct-from ({CORRECT_FROM}) without the correct-to ({CORRECT_TO}) after it"
            );
            return Err(Error::invalid(message));
        }
        Ok(())
    }
}

/// The names and the values of the system columns.
#[derive(Debug, Clone)]
pub(super) struct SystemColumns {
    /// The columns of the chain.
    pub slice_schema: SchemaRef,
    pub vocabulary: Vocabulary,
    /// The column of the input that holds the event time. Defaults to the one with the vocabulary's name.
    pub event_time: Option<String>,
    /// The offset of the first row.
    pub start: u64,
    pub system_time_ms: i64,
}

impl SystemColumns {
    /// Returns the columns with which the slice is written and hashed.
    pub(super) fn file_schema(&self) -> SchemaRef {
        Arc::new(schema_to_write(&self.slice_schema))
    }
}

/// Returns the rows of `input` as rows of a slice, and counts them in `stats`.
pub(super) fn add_system_columns(
    input: Box<dyn RecordBatchReader + Send>,
    system_columns: SystemColumns,
    stats: Arc<Mutex<SliceStats>>,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let prepared_rows = prepare_input(input, &system_columns)?;
    // The input has no offset and no system time; operation and event time may be null or missing.
    let [offset, operation, system_time, event_time] = system_columns.vocabulary.names();
    let slice_fields = system_columns.slice_schema.fields().iter();
    let provided_fields = slice_fields.filter(|f| f.name() != offset && f.name() != system_time);
    let input_fields = provided_fields.map(|field| match field.name() {
        name if name == operation => Field::new(name, DataType::Int32, true),
        name if name == event_time => field.as_ref().clone().with_nullable(true),
        _ => field.as_ref().clone(),
    });
    let input_schema = Arc::new(Schema::new(input_fields.collect::<Vec<_>>()));
    let aligned_rows = align_to_schema(prepared_rows, &input_schema)?;
    let schema = system_columns.file_schema();
    let file_schema = Arc::clone(&schema);
    let end_stats = Arc::clone(&stats);
    let batches = aligned_rows.flat_map(split_batch).map(move |batch| {
        let batch = batch?;
        let mut stats = lock(&stats);
        fill_system_columns(&batch, &system_columns, &file_schema, &mut stats)
            .map_err(external_error)
    });
    // After the last batch comes the error of a correction without its second row.
    let end = std::iter::once(()).filter_map(move |()| {
        let stats = lock(&end_stats);
        stats
            .operations
            .check_end()
            .err()
            .map(|e| Err(external_error(e)))
    });
    Ok(Box::new(RecordBatchIterator::new(
        batches.chain(end),
        schema,
    )))
}

fn external_error(error: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(error))
}

/// Refuses columns of the input whose names clash with system columns.
fn check_column_names(input_schema: &Schema, system_columns: &SystemColumns) -> Result<()> {
    let [offset, _, system_time, event_time] = system_columns.vocabulary.names();
    for name in [offset, system_time] {
        if input_schema.index_of(name).is_ok() {
            let message = format!(
                "column {name:?} has the name of a system column, which is filled in; rename it, or give \
                 the system column another name with SetVocab before the first rows"
            );
            return Err(Error::invalid(message));
        }
    }
    let source = system_columns.event_time.as_deref().unwrap_or(event_time);
    if system_columns.event_time.is_some() {
        crate::parquet::types::index_of(input_schema, source)?;
        if source != event_time && system_columns.slice_schema.index_of(source).is_ok() {
            let message = format!(
                "column {source:?} cannot be the event time: the dataset has a column of this name, and \
                 {event_time:?} for the event time; rename the column of the input"
            );
            return Err(Error::invalid(message));
        }
        if source != event_time && input_schema.index_of(event_time).is_ok() {
            let message = format!(
                "column {event_time:?} clashes with the event time {source:?}, which gets this name; leave out \
                 one of the columns"
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Returns the input with operation and event time under the names and types that they have in slices.
fn prepare_input(
    input: Box<dyn RecordBatchReader + Send>,
    system_columns: &SystemColumns,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let input_schema = input.schema();
    check_column_names(&input_schema, system_columns)?;
    let [_, operation, _, event_time] = system_columns.vocabulary.names();
    let source = system_columns.event_time.as_deref().unwrap_or(event_time);
    let index = crate::parquet::types::index_of(&system_columns.slice_schema, event_time)?;
    let event_time_field = system_columns.slice_schema.field(index).clone();
    let mut fields = Vec::new();
    for field in input_schema.fields() {
        let is_source = field.name() == source;
        fields.push(match field.name() {
            _ if is_source && !is_time(field.data_type()) => {
                let message = format!(
                    "the event time {source:?} must be a timestamp or a date, not {}",
                    field.data_type()
                );
                return Err(Error::invalid(message));
            }
            _ if is_source => event_time_field.clone().with_nullable(true),
            name if name == operation => {
                if !field.data_type().is_integer() {
                    let message = format!(
                        "the operation {name:?} must be a whole number, not {}",
                        field.data_type()
                    );
                    return Err(Error::invalid(message));
                }
                Field::new(name, DataType::Int32, true)
            }
            _ => field.as_ref().clone(),
        });
    }
    let schema = Arc::new(Schema::new(fields));
    let target = Arc::clone(&schema);
    let batches = input.map(move |batch| {
        let batch = batch?;
        let rows = batch.num_rows();
        let pairs = target.fields().iter().zip(batch.columns());
        let casts = pairs.map(|(field, column)| cast_column(column, field));
        let columns = casts.collect::<Result<Vec<_>>>().map_err(external_error)?;
        batch_with_row_count(&target, columns, rows).map_err(external_error)
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

/// Splits a batch into chunks, so that one chunk can be encoded while the next is hashed.
fn split_batch(batch: Result<RecordBatch, ArrowError>) -> Vec<Result<RecordBatch, ArrowError>> {
    match batch {
        Ok(batch) => {
            let starts = (0..batch.num_rows()).step_by(CHUNK_ROWS);
            let rows = |start: usize| CHUNK_ROWS.min(batch.num_rows() - start);
            starts
                .map(|start| Ok(batch.slice(start, rows(start))))
                .collect()
        }
        Err(e) => vec![Err(e)],
    }
}

/// Converts times to the type of the column, and operations to Int32. Other columns have the type of their field
/// already.
fn cast_column(column: &ArrayRef, field: &Field) -> Result<ArrayRef> {
    if column.data_type() == field.data_type() {
        return Ok(Arc::clone(column));
    }
    if is_time(field.data_type()) {
        return convert_times(column, field.data_type(), field.name());
    }
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(column, field.data_type(), &options).map_err(|e| {
        let message = format!("column {:?} cannot be cast: {e}", field.name());
        Error::invalid(message).with_source(e)
    })
}

/// Returns the batch with all columns of a slice, and adds it to `stats`.
fn fill_system_columns(
    batch: &RecordBatch,
    system_columns: &SystemColumns,
    file_schema: &SchemaRef,
    stats: &mut SliceStats,
) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    let [offset, operation, system_time, event_time] = system_columns.vocabulary.names();
    let time_ms = system_columns.system_time_ms;
    let mut columns = Vec::with_capacity(file_schema.fields().len());
    let fields = system_columns.slice_schema.fields().iter();
    for (field, file_field) in fields.zip(file_schema.fields()) {
        let column: ArrayRef = match field.name() {
            name if name == offset => {
                Arc::new(number_rows(system_columns.start, stats.rows, rows)?)
            }
            name if name == system_time => repeat_time(time_ms, field.data_type(), rows)?,
            name => {
                let input_column = batch.column_by_name(name).ok_or_else(|| {
                    Error::other(format!("internal error: column {name:?} is missing"))
                })?;
                if name == operation {
                    let operations = fill_operations(input_column);
                    stats.operations.check(&operations)?;
                    Arc::new(operations)
                } else if name == event_time {
                    let times = fill_times(input_column, time_ms)?;
                    let latest = latest_micros(&times)?;
                    stats.latest_event_time_micros = stats.latest_event_time_micros.max(latest);
                    times
                } else {
                    Arc::clone(input_column)
                }
            }
        };
        columns.push(convert(&column, file_field.data_type(), field.name())?);
    }
    let slice_batch = batch_with_row_count(file_schema, columns, rows)?;
    stats.update(&slice_batch)?;
    Ok(slice_batch)
}

/// Returns the offsets of the next `rows` rows of a slice whose first row has the offset `start`.
fn number_rows(start: u64, rows_before: u64, rows: usize) -> Result<Int64Array> {
    let first = start.checked_add(rows_before);
    let stop = first.and_then(|n| n.checked_add(rows as u64));
    let signed = |n: Option<u64>| n.and_then(|n| i64::try_from(n).ok());
    let (Some(first), Some(end)) = (signed(first), signed(stop)) else {
        return Err(Error::invalid(
            "offset overflow: the range of Int64 is used up",
        ));
    };
    Ok(Int64Array::from_iter_values(first..end))
}

fn fill_operations(column: &ArrayRef) -> Int32Array {
    let operations = column.as_primitive::<Int32Type>();
    if operations.null_count() == 0 {
        return operations.clone();
    }
    operations
        .iter()
        .map(|operation| Some(operation.unwrap_or(APPEND)))
        .collect()
}
