//! Rows into a chain: one Parquet file, named by its hash, and the block that tells of it.
//!
//! The system columns come in front: the row's number, its operation, when it was written and when it
//! happened. The file's bytes and its rows are hashed while it is written.
//!
//! When another writer came first, what it changed decides: after rows, a vocabulary or other columns the
//! rows are written anew from the file that is there already, with the numbers, names and columns of now. A
//! slice has the columns of the schema before it, also if that came while the slice was written: the head
//! moves only from the block that the plan was made on, and every new head is planned on anew.
//!
//! Crash points: before the head is moved, slice and blocks are in nobody's chain ([`super::vacuum()`] removes
//! them). An error before the head's replacement was sent, or that was refused, removes the slice; one
//! without an answer leaves it, for the block may be there.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatchReader;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chrono::Datelike;
use serde_json::Value;

use super::block::build_event;
use super::chain::{Appended, Chain, HeadUpdate};
use super::rows::{SliceStats, SystemColumns, add_system_columns};
use super::rules::ChainState;
use super::schema;
use super::slice::{Slice, UncommittedSlice, build_slice_snapshot, remove_slice, write_slice};
use super::time::{self, UtcDateTime};
use super::vacuum::WriteLease;
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::options::WriteOptions;
use crate::table::{ScanOptions, scan};

/// How rows are added.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// The column that says when a row happened; None is the one that is called so in the chain.
    pub event_time: Option<String>,
    /// No older rows are expected after it; None is the latest event time.
    pub watermark: Option<UtcDateTime>,
    /// What the source is to go on from, as the specification's `SourceState`.
    pub source_state: Option<Value>,
    /// Codec, row groups, memory.
    pub write_options: WriteOptions,
    /// How long it is tried while others come first.
    pub timeout: Duration,
}

/// Rows that were added.
#[derive(Debug, Clone)]
pub struct Ingested {
    /// The blocks; none where there was nothing to say.
    pub appended: Appended,
    /// The slice, if there were rows.
    pub slice: Option<Slice>,
}

/// Adds rows.
pub async fn ingest(
    chain: &Chain,
    input: Box<dyn RecordBatchReader + Send>,
    options: &IngestOptions,
) -> Result<Ingested> {
    let clock = chain.store().clock();
    let deadline = clock.monotonic() + options.timeout;
    let (mut head, mut state) = chain.state().await?;
    state.check_readable()?;
    let mut plan = IngestPlan::new(&state, &input.schema(), options)?;
    let time = chain.time_after(&state);
    let mut lease = WriteLease::new(chain);
    let mut new_slice = write(chain, &plan, input, options, time).await?;
    let (mut attempts, mut delay) = (0, Duration::from_millis(5));
    let result = loop {
        attempts += 1;
        let events = match plan.events(&state, new_slice.as_ref(), options) {
            Ok(events) => events,
            Err(e) => break Err(e),
        };
        if let Err(e) = lease.check(chain) {
            break Err(e);
        }
        let time = chain.time_after(&state);
        match chain.try_append(&head, &state, time, &events).await {
            Ok(HeadUpdate::Appended(blocks)) => break Ok(Appended { blocks, attempts }),
            Ok(HeadUpdate::Conflict) => {}
            Err(e) => break Err(e),
        }
        if clock.monotonic() >= deadline {
            break Err(chain.timeout_error(options.timeout));
        }
        delay = chain.back_off(delay).await;
        (head, state) = match chain.state().await {
            Ok(refreshed) => refreshed,
            Err(e) => break Err(e),
        };
        let new_lease = WriteLease::new(chain);
        match rebase(chain, &mut plan, &state, new_slice.as_ref(), options).await {
            Ok(None) => {}
            Ok(Some(rewritten)) => {
                lease = new_lease;
                if let Some(old_slice) = new_slice.replace(rewritten) {
                    remove_slice(chain, &old_slice.slice).await;
                }
            }
            Err(e) => break Err(e),
        }
    };
    match result {
        Ok(appended) => Ok(Ingested {
            appended,
            slice: new_slice.map(|new_slice| new_slice.slice),
        }),
        Err(e) => {
            // With the outcome unknown the file stays: the block may be there.
            if let Some(new_slice) = new_slice.filter(|_| is_definite_failure(&e)) {
                remove_slice(chain, &new_slice.slice).await;
            }
            Err(e)
        }
    }
}

/// Whether an error says that no block names what was written: all but that of a head whose replacement
/// was not answered.
fn is_definite_failure(error: &Error) -> bool {
    error.kind() != ErrorKind::CommitStateUnknown
}

/// Writes the rows anew where others brought rows meanwhile, a vocabulary or other columns.
async fn rebase(
    chain: &Chain,
    plan: &mut IngestPlan,
    state: &ChainState,
    new_slice: Option<&UncommittedSlice>,
    options: &IngestOptions,
) -> Result<Option<UncommittedSlice>> {
    state.check_readable()?;
    let Some(new_slice) = new_slice else {
        *plan = IngestPlan::rebased(state, plan, options)?;
        return Ok(None);
    };
    let new_plan = IngestPlan::rebased(state, plan, options)?;
    if new_plan == *plan {
        return Ok(None);
    }
    let slices = [new_slice.slice.clone()];
    let old_plan = std::mem::replace(plan, new_plan);
    let snapshot =
        build_slice_snapshot(chain, &old_plan.slice_schema, &old_plan.vocabulary, &slices)?;
    let (table, manifest) = snapshot;
    let input_columns: Vec<String> = {
        let names = old_plan.vocabulary.names();
        let fields = old_plan
            .slice_schema
            .fields()
            .iter()
            .map(|f| f.name().clone());
        fields
            .filter(|name| name != names[0] && name != names[2])
            .collect()
    };
    let scan_options = ScanOptions {
        columns: Some(input_columns),
        ..ScanOptions::default()
    };
    let old_rows = scan(&table, Arc::new(manifest), scan_options).await?;
    let input = rename_system_columns(
        Box::new(old_rows.into_reader()),
        &old_plan.vocabulary,
        &plan.vocabulary,
    );
    let time = chain.time_after(state);
    let options = IngestOptions {
        event_time: None,
        ..options.clone()
    };
    write(chain, plan, input, &options, time).await
}

/// The rows with the system columns' names of another vocabulary.
fn rename_system_columns(
    input: Box<dyn RecordBatchReader + Send>,
    before: &Vocabulary,
    after: &Vocabulary,
) -> Box<dyn RecordBatchReader + Send> {
    if before == after {
        return input;
    }
    let rename = |field: &Arc<Field>| rename_system_field(field, before, after);
    let schema = Arc::new(Schema::new(
        input
            .schema()
            .fields()
            .iter()
            .map(rename)
            .collect::<Vec<_>>(),
    ));
    let target = Arc::clone(&schema);
    let batches = input.map(move |batch| {
        let columns = batch?.columns().to_vec();
        arrow_array::RecordBatch::try_new(Arc::clone(&target), columns)
    });
    Box::new(arrow_array::RecordBatchIterator::new(batches, schema))
}

/// A column under the name that another vocabulary has for it.
fn rename_system_field(field: &Field, before: &Vocabulary, after: &Vocabulary) -> Field {
    let new_name = match field.name() {
        name if *name == before.operation => &after.operation,
        name if *name == before.event_time => &after.event_time,
        name => name,
    };
    field.clone().with_name(new_name)
}

/// The columns that slices get.
#[derive(PartialEq)]
struct IngestPlan {
    vocabulary: Vocabulary,
    /// All columns of a slice.
    slice_schema: SchemaRef,
    /// The event that says so, where the chain does not yet.
    new_schema_event: Option<Value>,
    /// The number of the first row.
    start: u64,
}

impl IngestPlan {
    fn new(state: &ChainState, input_schema: &Schema, options: &IngestOptions) -> Result<Self> {
        let vocabulary = state.vocabulary.clone();
        let (target, new_schema_event) = if let Some(event) = &state.schema_event {
            (schema::arrow_from_event(event)?, None)
        } else {
            let inferred = infer_schema(input_schema, &vocabulary, options.event_time.as_deref());
            let event = schema::event_from_arrow(&inferred, false)?;
            (schema::arrow_from_event(&event)?, Some(event))
        };
        Self::with_schema(state, vocabulary, target, new_schema_event)
    }

    /// For rows that were written by another plan.
    fn rebased(state: &ChainState, old_plan: &Self, options: &IngestOptions) -> Result<Self> {
        let generated = [
            old_plan.vocabulary.names()[0],
            old_plan.vocabulary.names()[2],
        ];
        let old_fields = old_plan.slice_schema.fields().iter();
        let input_fields = old_fields.filter(|field| !generated.contains(&field.name().as_str()));
        let renamed_fields = input_fields
            .map(|field| rename_system_field(field, &old_plan.vocabulary, &state.vocabulary));
        let input_schema = Schema::new(renamed_fields.collect::<Vec<_>>());
        let options = IngestOptions {
            event_time: None,
            ..options.clone()
        };
        Self::new(state, &input_schema, &options)
    }

    fn with_schema(
        state: &ChainState,
        vocabulary: Vocabulary,
        slice_schema: Schema,
        new_schema_event: Option<Value>,
    ) -> Result<Self> {
        for name in vocabulary.names() {
            if slice_schema.index_of(name).is_err() {
                let message = format!(
                    "the schema of the dataset has no column {name:?}, which the vocabulary asks for; append \
                     a SetVocab with the name that it has, or a SetDataSchema with that column"
                );
                return Err(Error::invalid(message));
            }
        }
        Ok(Self {
            vocabulary,
            slice_schema: Arc::new(slice_schema),
            new_schema_event,
            start: next_offset(state)?,
        })
    }

    /// What is to be appended.
    fn events(
        &self,
        state: &ChainState,
        new_slice: Option<&UncommittedSlice>,
        options: &IngestOptions,
    ) -> Result<Vec<Value>> {
        let mut events: Vec<Value> = self.new_schema_event.iter().cloned().collect();
        let previous_watermark = state.watermark()?;
        let latest_ms = new_slice.and_then(|new_slice| new_slice.latest_event_time_ms);
        let latest_event_time = latest_ms.map(event_time_from_millis).transpose()?;
        let watermark = match options.watermark {
            Some(explicit) => Some(explicit),
            None => previous_watermark.max(latest_event_time),
        };
        let source = options.source_state.as_ref();
        let name = source
            .and_then(|s| s.get("sourceName"))
            .and_then(Value::as_str);
        let previous_state = name.and_then(|name| state.source_states.get(name));
        let advances = watermark != previous_watermark || source != previous_state;
        if new_slice.is_none() && !advances {
            return Ok(events);
        }
        let checkpoint = state
            .last_data_event
            .as_ref()
            .and_then(|event| event.get("newCheckpoint"));
        let fields = [
            ("prevCheckpoint", state.checkpoint().map(Value::from)),
            ("prevOffset", state.last_offset().map(Value::from)),
            (
                "newData",
                new_slice.map(|new_slice| new_slice.slice.to_value()),
            ),
            ("newCheckpoint", checkpoint.cloned()),
            ("newWatermark", watermark.map(|w| time::to_text(&w).into())),
            ("newSourceState", options.source_state.clone()),
        ];
        events.push(build_event("AddData", fields));
        Ok(events)
    }
}

/// A time in milliseconds, of the years that a block can name.
fn event_time_from_millis(milliseconds: i64) -> Result<UtcDateTime> {
    let event_time = chrono::DateTime::from_timestamp_millis(milliseconds);
    event_time
        .filter(|event_time| (0..=9999).contains(&event_time.year()))
        .ok_or_else(|| {
            let message = format!(
                "the event time {milliseconds} ms after 1970 is outside the years 0 to 9999"
            );
            Error::invalid(message)
        })
}

/// The number of the next row.
fn next_offset(state: &ChainState) -> Result<u64> {
    let next = state
        .last_offset()
        .map_or(Some(0), |last| last.checked_add(1));
    next.ok_or_else(|| Error::invalid("there are no more offsets"))
}

/// The type of the times in system columns.
pub(super) fn time_type() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

/// The columns of a dataset whose first rows have these.
fn infer_schema(
    input_schema: &Schema,
    vocabulary: &Vocabulary,
    event_time: Option<&str>,
) -> Schema {
    let event_time = event_time.unwrap_or(&vocabulary.event_time);
    let mut fields = system_fields(vocabulary);
    let system_names = [event_time, &vocabulary.operation];
    let data_fields = input_schema
        .fields()
        .iter()
        .filter(|f| !system_names.contains(&f.name().as_str()));
    fields.extend(data_fields.map(|field| field.as_ref().clone().with_metadata([].into())));
    Schema::new(fields)
}

/// The columns in front.
pub fn system_fields(vocabulary: &Vocabulary) -> Vec<Field> {
    let [offset, operation, system_time, event_time] = vocabulary.names();
    vec![
        Field::new(offset, DataType::Int64, false),
        Field::new(operation, DataType::Int32, false),
        Field::new(system_time, time_type(), false),
        Field::new(event_time, time_type(), false),
    ]
}

/// Writes a slice of new rows; None where there are none.
async fn write(
    chain: &Chain,
    plan: &IngestPlan,
    input: Box<dyn RecordBatchReader + Send>,
    options: &IngestOptions,
    time: UtcDateTime,
) -> Result<Option<UncommittedSlice>> {
    let stats: Arc<Mutex<SliceStats>> = Arc::new(Mutex::new(SliceStats::new(&plan.slice_schema)?));
    let system_columns = SystemColumns {
        slice_schema: Arc::clone(&plan.slice_schema),
        vocabulary: plan.vocabulary.clone(),
        event_time: options.event_time.clone(),
        start: plan.start,
        system_time_ms: time.timestamp_millis(),
    };
    let rows = add_system_columns(input, system_columns, Arc::clone(&stats))?;
    write_slice(chain, rows, stats, plan.start, &options.write_options).await
}
