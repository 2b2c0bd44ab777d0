//! Appends rows to a chain: [`ingest()`] writes one Parquet file, named by its hash, and the block that names it.
//!
//! The system columns come first: the offset of the row, its operation, the time at which it was written and the time
//! at which it happened. The bytes of the file and the rows are hashed while the file is written.
//!
//! If another writer appends first, the change decides: after new rows, a new vocabulary or new columns, the rows are
//! written again from the file that was written, with the offsets, names and columns that are valid then. A slice has
//! the columns of the schema before it, also if that schema was appended while the slice was written: the head moves
//! only from the block that the plan was made for, and every new head gets a new plan.
//!
//! Crash points: until the head is moved, no chain has the slice and the blocks ([`super::vacuum()`] removes them).
//! After an error before the new head was sent, or a refused one, the slice is removed; after an unknown outcome it
//! stays, for a block may name it.
//!
//! Errors: [`crate::ErrorKind::InvalidInput`] for rows that do not fit the schema or the rules of system columns,
//! [`crate::ErrorKind::CommitConflict`] when every race was lost until the timeout,
//! [`crate::ErrorKind::TransactionExpired`] when a vacuum may have removed the slice,
//! [`crate::ErrorKind::CommitStateUnknown`] when the answer of the store was lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatchReader;
use arrow_schema::{Field, Schema, SchemaRef};
use chrono::Datelike;
use serde_json::Value;

use super::append::{Appended, MIN_RETRY_DELAY};
use super::chain::{Chain, ChainHead};
use super::event::{DataEvent, Event, Slice, SourceState};
use super::head::{HeadError, HeadResult, HeadUpdate};
use super::lease::WriteLease;
use super::rows::{SliceStats, SystemColumns, add_system_columns};
use super::rules::ChainState;
use super::schema;
use super::slice::{
    SliceOptions, UncommittedSlice, remove_slice, scan_slices, slice_files, write_slice,
};
use super::slice_columns::schema_to_write;
use super::time::UtcDateTime;
use super::vocabulary::{Vocabulary, system_fields};
use crate::error::{Error, Result};
use crate::files::ScanOptions;
use crate::parquet::options::WriteOptions;

/// The options of an ingest.
#[derive(Debug, Clone)]
pub struct IngestOptions {
    /// The column of the input with the event time. Defaults to the one that has the vocabulary's name.
    pub event_time: Option<String>,
    /// The watermark: no rows with an older event time are expected. Defaults to the latest event time of the
    /// dataset.
    pub watermark: Option<UtcDateTime>,
    /// The state from which the source continues, a `SourceState` of the specification.
    pub source_state: Option<SourceState>,
    /// The options of the data file: codec, row groups, memory.
    pub write_options: WriteOptions,
    /// How long the append is repeated after lost races.
    pub timeout: Duration,
}

/// The result of an ingest.
#[derive(Debug, Clone)]
pub struct Ingested {
    /// The appended blocks; none if there was nothing to append.
    pub appended: Appended,
    /// The new slice; None if there were no rows.
    pub slice: Option<Slice>,
}

/// Appends rows to a chain.
pub async fn ingest(
    chain: &Chain,
    input: Box<dyn RecordBatchReader + Send>,
    options: &IngestOptions,
) -> Result<Ingested> {
    let deadline = chain.store().clock().monotonic() + options.timeout;
    let (head, state) = chain.state().await?;
    state.check_readable()?;
    let slices_schema = chain.schema_of_slices(&state).await?;
    let plan = IngestPlan::new(&state, slices_schema.as_ref(), &input.schema(), options)?;
    let time = chain.time_after(&state);
    let lease = WriteLease::new(chain);
    let slice = write(chain, &plan, input, options, time).await?;
    let mut write = SliceWrite { plan, slice, lease };
    match append_slice(chain, &mut write, (head, state), options, deadline).await {
        Ok(appended) => Ok(Ingested {
            appended,
            slice: write.slice.map(|new_slice| new_slice.slice),
        }),
        Err(HeadError::NotMoved(e)) => {
            if let Some(new_slice) = &write.slice {
                remove_slice(chain, &new_slice.slice).await;
            }
            Err(e)
        }
        // A block may name the slice.
        Err(unknown @ HeadError::Unknown { .. }) => Err(unknown.into_error()),
    }
}

/// A slice that no block names yet; None if there are no rows.
struct SliceWrite {
    plan: IngestPlan,
    slice: Option<UncommittedSlice>,
    /// That of the slice.
    lease: WriteLease,
}

/// Appends the block that names the slice, until `deadline` while other writers come first.
async fn append_slice(
    chain: &Chain,
    write: &mut SliceWrite,
    newest: (ChainHead, Arc<ChainState>),
    options: &IngestOptions,
    deadline: Duration,
) -> HeadResult<Appended> {
    let (mut head, mut state) = newest;
    let (mut attempts, mut delay) = (0, MIN_RETRY_DELAY);
    loop {
        attempts += 1;
        let planned = write.plan.events(&state, write.slice.as_slice(), options);
        let events = planned.map_err(HeadError::NotMoved)?;
        let time = chain.time_after(&state);
        let lease = &write.lease;
        if let HeadUpdate::Appended(blocks) = chain
            .try_append(&head, &state, time, &events, lease)
            .await?
        {
            return Ok(Appended { blocks, attempts });
        }
        if chain.store().clock().monotonic() >= deadline {
            return Err(HeadError::NotMoved(chain.timeout_error(options.timeout)));
        }
        delay = chain.back_off(delay).await;
        (head, state) = chain.state().await.map_err(HeadError::NotMoved)?;
        let rebased = write.rebase(chain, &state, options).await;
        rebased.map_err(HeadError::NotMoved)?;
    }
}

impl SliceWrite {
    /// Makes a new plan after a lost race, and replaces the slice if it has to be written again.
    async fn rebase(
        &mut self,
        chain: &Chain,
        state: &ChainState,
        options: &IngestOptions,
    ) -> Result<()> {
        let lease = WriteLease::new(chain);
        let slice = self.slice.as_ref();
        if let Some(rewritten) = rebase(chain, &mut self.plan, state, slice, options).await? {
            self.lease = lease;
            if let Some(old_slice) = self.slice.replace(rewritten) {
                remove_slice(chain, &old_slice.slice).await;
            }
        }
        Ok(())
    }
}

/// Makes a new plan for the state after a lost race, and writes the rows again if rows, the vocabulary or columns
/// changed. Returns the new slice; None if the old one stays valid.
async fn rebase(
    chain: &Chain,
    plan: &mut IngestPlan,
    state: &ChainState,
    new_slice: Option<&UncommittedSlice>,
    options: &IngestOptions,
) -> Result<Option<UncommittedSlice>> {
    state.check_readable()?;
    let slices_schema = chain.schema_of_slices(state).await?;
    let new_plan = IngestPlan::rebased(state, slices_schema.as_ref(), plan, options)?;
    let Some(new_slice) = new_slice else {
        *plan = new_plan;
        return Ok(None);
    };
    if new_plan == *plan {
        return Ok(None);
    }
    let slices = [new_slice.slice.clone()];
    let old_plan = std::mem::replace(plan, new_plan);
    let files = slice_files(&old_plan.slice_schema, &old_plan.vocabulary, &slices);
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
    let old_rows = scan_slices(chain, &files, &scan_options).await?;
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

/// Returns the rows with their system columns renamed from one vocabulary to another.
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

/// Returns a field under the name that another vocabulary has for it.
fn rename_system_field(field: &Field, before: &Vocabulary, after: &Vocabulary) -> Field {
    let new_name = match field.name() {
        name if *name == before.operation => &after.operation,
        name if *name == before.event_time => &after.event_time,
        name => name,
    };
    field.clone().with_name(new_name)
}

/// The columns and the first offset of the new slice.
#[derive(Debug, PartialEq)]
pub(super) struct IngestPlan {
    pub(super) vocabulary: Vocabulary,
    /// All columns of a slice.
    pub(super) slice_schema: SchemaRef,
    /// The `SetDataSchema` event of these columns, if the chain has none yet.
    pub(super) new_schema_event: Option<Value>,
    /// The offset of the first row.
    pub(super) start: u64,
}

impl IngestPlan {
    /// Makes a plan. `slices_schema` is that of slices that no `SetDataSchema` describes.
    pub(super) fn new(
        state: &ChainState,
        slices_schema: Option<&Schema>,
        input_schema: &Schema,
        options: &IngestOptions,
    ) -> Result<Self> {
        let vocabulary = state.vocabulary.clone();
        let (target, new_schema_event) = if let Some(event) = &state.schema_event {
            (schema::arrow_from_event(event)?, None)
        } else {
            let event_time = options.event_time.as_deref();
            let inferred = match slices_schema {
                Some(slices_schema) => slices_schema.clone(),
                None => infer_schema(input_schema, &vocabulary, event_time),
            };
            let event = schema::event_from_arrow(&inferred, false)?;
            (schema::arrow_from_event(&event)?, Some(event))
        };
        Self::with_schema(state, vocabulary, target, new_schema_event)
    }

    /// Makes a plan for rows that were written by an older plan.
    fn rebased(
        state: &ChainState,
        slices_schema: Option<&Schema>,
        old_plan: &Self,
        options: &IngestOptions,
    ) -> Result<Self> {
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
        Self::new(state, slices_schema, &input_schema, &options)
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
                    "the schema of the dataset has no column {name:?}, which the vocabulary names; append a \
                     SetVocab with the name of its column, or a SetDataSchema with this column"
                );
                return Err(Error::invalid(message));
            }
        }
        vocabulary.check_types(&slice_schema, state.last_offset().is_some())?;
        Ok(Self {
            vocabulary,
            slice_schema: Arc::new(slice_schema),
            new_schema_event,
            start: next_offset(state)?,
        })
    }

    /// Makes the events to append, one for each slice; none if nothing changes. The watermark and the state of the
    /// source that the options have are those of the last slice.
    pub(super) fn events(
        &self,
        state: &ChainState,
        new_slices: &[UncommittedSlice],
        options: &IngestOptions,
    ) -> Result<Vec<Value>> {
        let mut events: Vec<Value> = self.new_schema_event.iter().cloned().collect();
        let mut data = state.next_data_event();
        let (last_slice, other_slices) = match new_slices.split_last() {
            Some((last, others)) => (Some(last), others),
            None => (None, new_slices),
        };
        for new_slice in other_slices {
            let latest_event_time = new_slice.latest_event_time()?;
            if options.watermark.is_none() {
                data.new_watermark = data.new_watermark.max(latest_event_time);
            }
            data.new_data = Some(new_slice.slice.clone());
            let next_data = DataEvent {
                prev_offset: data.last_offset(),
                new_data: None,
                ..data.clone()
            };
            events.push(Event::AddData(data).to_fields());
            data = next_data;
        }
        // Times that no block can name are refused with an explicit watermark, too.
        let latest_event_time = last_slice
            .map(UncommittedSlice::latest_event_time)
            .transpose()?
            .flatten();
        let watermark = match options.watermark {
            Some(explicit) => Some(explicit),
            None => data.new_watermark.max(latest_event_time),
        };
        let source = options.source_state.as_ref();
        let previous_state = source.and_then(|s| state.source_states.get(&s.source_name));
        let advances = watermark != data.new_watermark || source != previous_state;
        if last_slice.is_none() && !advances {
            return Ok(events);
        }
        data.new_data = last_slice.map(|new_slice| new_slice.slice.clone());
        data.new_watermark = watermark;
        data.new_source_state.clone_from(&options.source_state);
        events.push(Event::AddData(data).to_fields());
        Ok(events)
    }
}

impl UncommittedSlice {
    fn latest_event_time(&self) -> Result<Option<UtcDateTime>> {
        self.latest_event_time_micros
            .map(event_time_from_micros)
            .transpose()
    }
}

/// Converts microseconds since 1970 to a time of the years that a block can store.
fn event_time_from_micros(microseconds: i64) -> Result<UtcDateTime> {
    let event_time = chrono::DateTime::from_timestamp_micros(microseconds);
    event_time
        .filter(|event_time| (0..=9999).contains(&event_time.year()))
        .ok_or_else(|| {
            let message = format!(
                "the event time {microseconds} µs since 1970 is outside of the years 0 to 9999"
            );
            Error::invalid(message)
        })
}

/// Returns the offset of the next row.
fn next_offset(state: &ChainState) -> Result<u64> {
    let next = state
        .last_offset()
        .map_or(Some(0), |last| last.checked_add(1));
    next.ok_or_else(|| Error::invalid("offset overflow: the range of offsets is used up"))
}

/// Infers the schema of a dataset from its first rows: the system columns, then the columns of the input. Seconds
/// become milliseconds, as which files store them.
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
    schema_to_write(&Schema::new(fields))
}

/// Writes rows as a slice; None without rows.
async fn write(
    chain: &Chain,
    plan: &IngestPlan,
    input: Box<dyn RecordBatchReader + Send>,
    options: &IngestOptions,
    time: UtcDateTime,
) -> Result<Option<UncommittedSlice>> {
    let system_columns = SystemColumns {
        slice_schema: Arc::clone(&plan.slice_schema),
        vocabulary: plan.vocabulary.clone(),
        event_time: options.event_time.clone(),
        start: plan.start,
        system_time_ms: time.timestamp_millis(),
    };
    let options = SliceOptions {
        write_options: &options.write_options,
        threads: None,
    };
    write_rows(chain, system_columns, input, options).await
}

/// Writes rows with their system columns as a slice; None without rows.
pub(super) async fn write_rows(
    chain: &Chain,
    system_columns: SystemColumns,
    input: Box<dyn RecordBatchReader + Send>,
    options: SliceOptions<'_>,
) -> Result<Option<UncommittedSlice>> {
    let stats = SliceStats::new(&system_columns.file_schema())?;
    let stats: Arc<Mutex<SliceStats>> = Arc::new(Mutex::new(stats));
    let start = system_columns.start;
    let rows = add_system_columns(input, system_columns, Arc::clone(&stats))?;
    write_slice(chain, rows, stats, start, options).await
}
