//! Rows into a chain: one Parquet file, named by its hash, and the block that tells of it.
//!
//! The system columns come in front: the row's number, its operation, when it was written and when it
//! happened. The file's bytes and its rows are hashed while it is written. When another writer came
//! first and brought rows, the rows are numbered anew from the file that is there already.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::RecordBatchReader;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde_json::{Value, json};

use super::block::event;
use super::chain::{Appended, Attempt, Chain};
use super::multihash::{Multihash, SHA3_256};
use super::rows::{Numbering, Tally, numbered};
use super::rules::{State, Vocabulary};
use super::schema;
use super::time::{self, Moment};
use crate::error::{Error, Result};
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::Identity;
use crate::parquet::writer::WritePlan;
use crate::part::{discard, stage_hashed};
use crate::store::stage::{Staging, hidden_in};
use crate::table::{Table, Wanted, over, scan};

/// How rows are added.
#[derive(Debug, Clone)]
pub struct Ingest {
    /// The column that says when a row happened; None is the one that is called so in the chain.
    pub event_time: Option<String>,
    /// No older rows are expected after it; None is the latest event time.
    pub watermark: Option<Moment>,
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

/// A file of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The hash of its rows.
    pub logical: Multihash,
    /// The hash of its bytes, and its name.
    pub physical: Multihash,
    /// The number of its first row.
    pub start: u64,
    /// The number of its last row.
    pub end: u64,
    /// Its bytes.
    pub size: u64,
}

impl Slice {
    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.end - self.start + 1
    }

    pub(super) fn of(event: &Value) -> Result<Option<Self>> {
        let Some(data) = event.get("newData").filter(|data| !data.is_null()) else {
            return Ok(None);
        };
        let hash = |name: &str| data[name].as_str().unwrap_or_default().parse();
        let interval = &data["offsetInterval"];
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let (start, end) = (number(&interval["start"]), number(&interval["end"]));
        if end < start || end - start == u64::MAX {
            let message = format!("a slice of the rows {start} to {end}");
            return Err(super::decode::damaged(message));
        }
        Ok(Some(Self {
            logical: hash("logicalHash")?,
            physical: hash("physicalHash")?,
            start,
            end,
            size: number(&data["size"]),
        }))
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "logicalHash": self.logical.to_string(),
            "physicalHash": self.physical.to_string(),
            "offsetInterval": {"start": self.start, "end": self.end},
            "size": self.size,
        })
    }
}

/// A slice that is there and in no block yet.
pub(super) struct Written {
    pub(super) slice: Slice,
    /// The latest event time, in milliseconds.
    latest: Option<i64>,
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
    let mut plan = Plan::new(&state, &input.schema(), how)?;
    let time = chain.time_after(&state);
    let mut written = write(chain, &plan, input, how, time).await?;
    let (mut attempts, mut pause) = (0, Duration::from_millis(5));
    let done = loop {
        attempts += 1;
        let events = match plan.events(&state, written.as_ref(), how) {
            Ok(events) => events,
            Err(e) => break Err(e),
        };
        let time = chain.time_after(&state);
        match chain.attempt(&head, &state, time, &events).await {
            Ok(Attempt::Appended(blocks)) => break Ok(Appended { blocks, attempts }),
            Ok(Attempt::Lost) => {}
            Err(e) => break Err(e),
        }
        if clock.monotonic() >= deadline {
            break Err(chain.timed_out(how.timeout));
        }
        pause = chain.pause(pause).await;
        (head, state) = match chain.state().await {
            Ok(now) => now,
            Err(e) => break Err(e),
        };
        match again(chain, &mut plan, &state, written.as_ref(), how).await {
            Ok(None) => {}
            Ok(Some(numbered)) => {
                remove(chain, written.as_ref()).await;
                written = Some(numbered);
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
            if is_certain(&e) {
                remove(chain, written.as_ref()).await;
            }
            Err(e)
        }
    }
}

fn is_certain(error: &Error) -> bool {
    use crate::error::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::CommitConflict | Kind::InvalidAppend | Kind::InvalidInput
    )
}

async fn remove(chain: &Chain, written: Option<&Written>) {
    let Some(written) = written else { return };
    let path = chain.data_path(&written.slice.physical.to_string());
    if let Err(e) = chain.store().delete(&path).await {
        log::warn!("{path} is in no block and could not be removed: {e}");
    }
}

/// Numbers the rows anew where others brought rows meanwhile, or a schema.
async fn again(
    chain: &Chain,
    plan: &mut Plan,
    state: &State,
    written: Option<&Written>,
    how: &Ingest,
) -> Result<Option<Written>> {
    let Some(written) = written else {
        plan.new_schema = plan.new_schema.take().filter(|_| state.schema.is_none());
        return Ok(None);
    };
    let start = state.last_offset().map_or(0, |last| last + 1);
    let is_same = plan.vocabulary == state.vocabulary
        && start == written.slice.start
        && state.schema.is_none() == plan.new_schema.is_some();
    if is_same {
        return Ok(None);
    }
    let slices = [written.slice.clone()];
    let before = std::mem::replace(plan, Plan::again(state, plan, how)?);
    let rows = rows_of(chain, &before.target, &before.vocabulary, &slices)?;
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
    let name = |field: &Arc<Field>| {
        let to = match field.name() {
            name if *name == before.operation => after.operation.clone(),
            name if *name == before.event_time => after.event_time.clone(),
            name => name.clone(),
        };
        field.as_ref().clone().with_name(to)
    };
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

/// The columns that slices get.
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
    fn new(state: &State, given: &Schema, how: &Ingest) -> Result<Self> {
        let vocabulary = state.vocabulary.clone();
        let (target, new_schema) = if let Some(event) = &state.schema {
            (schema::arrow_of(event)?, None)
        } else {
            let inferred = inferred(given, &vocabulary, how.event_time.as_deref());
            let event = schema::event_of(&inferred, false)?;
            (schema::arrow_of(&event)?, Some(event))
        };
        Self::of(state, vocabulary, target, new_schema)
    }

    /// For rows that were written by another plan.
    fn again(state: &State, before: &Self, how: &Ingest) -> Result<Self> {
        let given = before.target.fields().iter().filter(|field| {
            let names = before.vocabulary.names();
            field.name() != names[0] && field.name() != names[2]
        });
        let given = Schema::new(given.cloned().collect::<Vec<_>>());
        let how = Ingest {
            event_time: None,
            ..how.clone()
        };
        Self::new(state, &given, &how)
    }

    fn of(
        state: &State,
        vocabulary: Vocabulary,
        target: Schema,
        new_schema: Option<Value>,
    ) -> Result<Self> {
        for name in vocabulary.names() {
            if target.index_of(name).is_err() {
                let message = format!(
                    "the schema of the dataset has no column {name:?}, which the vocabulary asks for"
                );
                return Err(Error::invalid(message));
            }
        }
        Ok(Self {
            vocabulary,
            target: Arc::new(target),
            new_schema,
            start: state.last_offset().map_or(0, |last| last + 1),
        })
    }

    /// What is to be appended.
    fn events(&self, state: &State, written: Option<&Written>, how: &Ingest) -> Result<Vec<Value>> {
        let mut events: Vec<Value> = self.new_schema.iter().cloned().collect();
        let before = state.watermark()?;
        let latest = written
            .and_then(|w| w.latest)
            .and_then(chrono::DateTime::from_timestamp_millis);
        let watermark = match how.watermark {
            Some(given) => Some(given),
            None => before.max(latest),
        };
        let advances = watermark != before || how.source_state.is_some();
        if written.is_none() && !advances {
            return Ok(events);
        }
        let carried = state
            .data
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
        events.push(event("AddData", fields));
        Ok(events)
    }
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
    time: Moment,
) -> Result<Option<Written>> {
    let tally: Arc<Mutex<Tally>> = Arc::new(Mutex::new(Tally::new(&plan.target)?));
    let numbering = Numbering {
        target: Arc::clone(&plan.target),
        vocabulary: plan.vocabulary.clone(),
        event_time: how.event_time.clone(),
        start: plan.start,
        system_time_ms: time.timestamp_millis(),
    };
    let rows = numbered(input, numbering, Arc::clone(&tally))?;
    write_slice(chain, rows, tally, plan.start, &how.options).await
}

/// Writes rows, which a tally is kept of as they pass, as a slice from an offset on.
pub(super) async fn write_slice(
    chain: &Chain,
    rows: Box<dyn RecordBatchReader + Send>,
    tally: Arc<Mutex<Tally>>,
    start: u64,
    options: &WriteOptions,
) -> Result<Option<Written>> {
    let store = chain.store();
    let staging = Staging::new(store, None, options.memory_limit_bytes);
    let identity = Identity {
        write_id: store.clock().new_id(),
        created_at: store.clock().now().to_rfc3339(),
        task: 0,
        sequence: 0,
        last: true,
    };
    let mut options = options.clone();
    options.rows_per_file = None;
    let mut writing = WritePlan::new(rows.schema(), options, identity)?;
    writing.keep_empty = false;
    writing.sink_bytes = staging.memory_bytes();
    // Its name is known when it is whole.
    let hidden = hidden_in(store, &chain.path("data"), "slice");
    let targets = Box::new(move |_| hidden.clone());
    let files = stage_hashed(store, staging, writing, rows, targets).await?;
    let Some(file) = files.first() else {
        return Ok(None);
    };
    let tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    let (logical, latest) = tally.finish()?;
    let physical = Multihash::new(SHA3_256, &file.sha3.unwrap_or_default());
    let target = chain.data_path(&physical.to_string());
    if let Err(e) = file.staged.publish(store, &target).await {
        discard(store, std::slice::from_ref(&file.staged)).await;
        return Err(e);
    }
    let slice = Slice {
        logical,
        physical,
        start,
        end: start + file.stats.rows - 1,
        size: file.stats.bytes,
    };
    Ok(Some(Written { slice, latest }))
}

/// Slices as a snapshot to scan.
pub(super) fn rows_of(
    chain: &Chain,
    schema: &SchemaRef,
    vocabulary: &Vocabulary,
    slices: &[Slice],
) -> Result<(Table, crate::table::format::Manifest)> {
    let table = Table::new(chain.store().clone(), chain.root())?;
    let files = slices.iter().map(|slice| crate::table::GivenFile {
        path: format!("data/{}", slice.physical),
        size_bytes: slice.size,
        rows: slice.rows(),
        bounds: Some((vocabulary.offset.clone(), slice.start, slice.end)),
    });
    let manifest = over(schema, files.collect())?;
    Ok((table, manifest))
}
