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
use crate::table::{Wanted, scan};

/// How rows are added.
#[derive(Debug, Clone)]
pub struct Ingest {
    /// The column that says when a row happened; None is the one that is called so in the chain.
    pub event_time: Option<String>,
    /// No older rows are expected after it; None is the latest event time.
    pub watermark: Option<UtcDateTime>,
    /// What the source is to go on from, as the specification's `SourceState`.
    pub source_state: Option<Value>,
    /// Codec, row groups, memory.
    pub options: WriteOptions,
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
    how: &Ingest,
) -> Result<Ingested> {
    let clock = chain.store().clock();
    let deadline = clock.monotonic() + how.timeout;
    let (mut head, mut state) = chain.state().await?;
    state.check_readable()?;
    let mut plan = Plan::new(&state, &input.schema(), how)?;
    let time = chain.time_after(&state);
    let mut lease = WriteLease::new(chain);
    let mut written = write(chain, &plan, input, how, time).await?;
    let (mut attempts, mut pause) = (0, Duration::from_millis(5));
    let done = loop {
        attempts += 1;
        let events = match plan.events(&state, written.as_ref(), how) {
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
            break Err(chain.timeout_error(how.timeout));
        }
        pause = chain.back_off(pause).await;
        (head, state) = match chain.state().await {
            Ok(now) => now,
            Err(e) => break Err(e),
        };
        let began = WriteLease::new(chain);
        match again(chain, &mut plan, &state, written.as_ref(), how).await {
            Ok(None) => {}
            Ok(Some(numbered)) => {
                lease = began;
                if let Some(before) = written.replace(numbered) {
                    remove_slice(chain, &before.slice).await;
                }
            }
            Err(e) => break Err(e),
        }
    };
    match done {
        Ok(appended) => Ok(Ingested {
            appended,
            slice: written.map(|written| written.slice),
        }),
        Err(e) => {
            // With the outcome unknown the file stays: the block may be there.
            if let Some(written) = written.filter(|_| is_certain(&e)) {
                remove_slice(chain, &written.slice).await;
            }
            Err(e)
        }
    }
}

/// Whether an error says that no block names what was written: all but that of a head whose replacement
/// was not answered.
fn is_certain(error: &Error) -> bool {
    error.kind() != ErrorKind::CommitStateUnknown
}

/// Writes the rows anew where others brought rows meanwhile, a vocabulary or other columns.
async fn again(
    chain: &Chain,
    plan: &mut Plan,
    state: &ChainState,
    written: Option<&UncommittedSlice>,
    how: &Ingest,
) -> Result<Option<UncommittedSlice>> {
    state.check_readable()?;
    let Some(written) = written else {
        *plan = Plan::again(state, plan, how)?;
        return Ok(None);
    };
    let now = Plan::again(state, plan, how)?;
    if now == *plan {
        return Ok(None);
    }
    let slices = [written.slice.clone()];
    let before = std::mem::replace(plan, now);
    let rows = build_slice_snapshot(chain, &before.target, &before.vocabulary, &slices)?;
    let (table, manifest) = rows;
    let keep: Vec<String> = {
        let names = before.vocabulary.names();
        let fields = before.target.fields().iter().map(|f| f.name().clone());
        fields
            .filter(|name| name != names[0] && name != names[2])
            .collect()
    };
    let wanted = Wanted {
        columns: Some(keep),
        ..Wanted::default()
    };
    let found = scan(&table, Arc::new(manifest), wanted).await?;
    let renamed = renamed(
        Box::new(found.into_reader()),
        &before.vocabulary,
        &plan.vocabulary,
    );
    let time = chain.time_after(state);
    let how = Ingest {
        event_time: None,
        ..how.clone()
    };
    write(chain, plan, renamed, &how, time).await
}

/// The rows with the system columns' names of another vocabulary.
fn renamed(
    input: Box<dyn RecordBatchReader + Send>,
    before: &Vocabulary,
    after: &Vocabulary,
) -> Box<dyn RecordBatchReader + Send> {
    if before == after {
        return input;
    }
    let name = |field: &Arc<Field>| renamed_field(field, before, after);
    let schema = Arc::new(Schema::new(
        input.schema().fields().iter().map(name).collect::<Vec<_>>(),
    ));
    let target = Arc::clone(&schema);
    let batches = input.map(move |batch| {
        let columns = batch?.columns().to_vec();
        arrow_array::RecordBatch::try_new(Arc::clone(&target), columns)
    });
    Box::new(arrow_array::RecordBatchIterator::new(batches, schema))
}

/// A column under the name that another vocabulary has for it.
fn renamed_field(field: &Field, before: &Vocabulary, after: &Vocabulary) -> Field {
    let to = match field.name() {
        name if *name == before.operation => &after.operation,
        name if *name == before.event_time => &after.event_time,
        name => name,
    };
    field.clone().with_name(to)
}

/// The columns that slices get.
#[derive(PartialEq)]
struct Plan {
    vocabulary: Vocabulary,
    /// All columns of a slice.
    target: SchemaRef,
    /// The event that says so, where the chain does not yet.
    new_schema: Option<Value>,
    /// The number of the first row.
    start: u64,
}

impl Plan {
    fn new(state: &ChainState, given: &Schema, how: &Ingest) -> Result<Self> {
        let vocabulary = state.vocabulary.clone();
        let (target, new_schema) = if let Some(event) = &state.schema_event {
            (schema::arrow_from_event(event)?, None)
        } else {
            let inferred = inferred(given, &vocabulary, how.event_time.as_deref());
            let event = schema::event_from_arrow(&inferred, false)?;
            (schema::arrow_from_event(&event)?, Some(event))
        };
        Self::of(state, vocabulary, target, new_schema)
    }

    /// For rows that were written by another plan.
    fn again(state: &ChainState, before: &Self, how: &Ingest) -> Result<Self> {
        let generated = [before.vocabulary.names()[0], before.vocabulary.names()[2]];
        let given = before.target.fields().iter();
        let given = given.filter(|field| !generated.contains(&field.name().as_str()));
        let given = given.map(|field| renamed_field(field, &before.vocabulary, &state.vocabulary));
        let given = Schema::new(given.collect::<Vec<_>>());
        let how = Ingest {
            event_time: None,
            ..how.clone()
        };
        Self::new(state, &given, &how)
    }

    fn of(
        state: &ChainState,
        vocabulary: Vocabulary,
        target: Schema,
        new_schema: Option<Value>,
    ) -> Result<Self> {
        for name in vocabulary.names() {
            if target.index_of(name).is_err() {
                let message = format!(
                    "the schema of the dataset has no column {name:?}, which the vocabulary asks for; append \
                     a SetVocab with the name that it has, or a SetDataSchema with that column"
                );
                return Err(Error::invalid(message));
            }
        }
        Ok(Self {
            vocabulary,
            target: Arc::new(target),
            new_schema,
            start: next_offset(state)?,
        })
    }

    /// What is to be appended.
    fn events(
        &self,
        state: &ChainState,
        written: Option<&UncommittedSlice>,
        how: &Ingest,
    ) -> Result<Vec<Value>> {
        let mut events: Vec<Value> = self.new_schema.iter().cloned().collect();
        let before = state.watermark()?;
        let latest = written.and_then(|written| written.latest_event_time_ms);
        let latest = latest.map(moment_of).transpose()?;
        let watermark = match how.watermark {
            Some(given) => Some(given),
            None => before.max(latest),
        };
        let source = how.source_state.as_ref();
        let name = source
            .and_then(|s| s.get("sourceName"))
            .and_then(Value::as_str);
        let known = name.and_then(|name| state.source_states.get(name));
        let advances = watermark != before || source != known;
        if written.is_none() && !advances {
            return Ok(events);
        }
        let carried = state
            .last_data_event
            .as_ref()
            .and_then(|event| event.get("newCheckpoint"));
        let fields = [
            ("prevCheckpoint", state.checkpoint().map(Value::from)),
            ("prevOffset", state.last_offset().map(Value::from)),
            ("newData", written.map(|written| written.slice.to_value())),
            ("newCheckpoint", carried.cloned()),
            ("newWatermark", watermark.map(|w| time::to_text(&w).into())),
            ("newSourceState", how.source_state.clone()),
        ];
        events.push(build_event("AddData", fields));
        Ok(events)
    }
}

/// A time in milliseconds, of the years that a block can name.
fn moment_of(milliseconds: i64) -> Result<UtcDateTime> {
    let moment = chrono::DateTime::from_timestamp_millis(milliseconds);
    moment
        .filter(|moment| (0..=9999).contains(&moment.year()))
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
fn inferred(given: &Schema, vocabulary: &Vocabulary, event_time: Option<&str>) -> Schema {
    let event_time = event_time.unwrap_or(&vocabulary.event_time);
    let mut fields = system_fields(vocabulary);
    let taken = [event_time, &vocabulary.operation];
    let rest = given
        .fields()
        .iter()
        .filter(|f| !taken.contains(&f.name().as_str()));
    fields.extend(rest.map(|field| field.as_ref().clone().with_metadata([].into())));
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
    plan: &Plan,
    input: Box<dyn RecordBatchReader + Send>,
    how: &Ingest,
    time: UtcDateTime,
) -> Result<Option<UncommittedSlice>> {
    let tally: Arc<Mutex<SliceStats>> = Arc::new(Mutex::new(SliceStats::new(&plan.target)?));
    let numbering = SystemColumns {
        slice_schema: Arc::clone(&plan.target),
        vocabulary: plan.vocabulary.clone(),
        event_time: how.event_time.clone(),
        start: plan.start,
        system_time_ms: time.timestamp_millis(),
    };
    let rows = add_system_columns(input, numbering, Arc::clone(&tally))?;
    write_slice(chain, rows, tally, plan.start, &how.options).await
}
