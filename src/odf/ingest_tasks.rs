//! Ingests of which many processes write the slices, and one appends the blocks of all by one move of the head.
//!
//! [`SharedIngest::begin`] reads the chain and fixes the columns. [`SharedIngest::task`] is all that another process
//! needs to write rows as a slice by [`write_task_slice`], the offset of the first row too: the rows of the tasks
//! before must have been counted. [`SharedIngest::commit`] appends a block for each slice. The chain is the same as if
//! each slice had been ingested by a call of its own, one after the other.
//!
//! If another writer appended rows, columns or a vocabulary meanwhile, a commit appends nothing, and the slices have to
//! be written again for a new [`SharedIngest`].
//!
//! Crash points: those of [`super::ingest()`]. What no block names is removed by a commit that appended nothing, or by
//! [`super::vacuum()`]: such as the slices of tasks whose messages were lost. A slice is
//! younger than the lease under which the head moves, which begins with the [`SharedIngest`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::SchemaRef;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::append::{Appended, MIN_RETRY_DELAY};
use super::chain::{Chain, ChainHead};
use super::event::Slice;
use super::head::{HeadError, HeadResult, HeadUpdate};
use super::ingest::{IngestOptions, IngestPlan, write_rows};
use super::lease::WriteLease;
use super::rows::{SliceStats, SystemColumns, add_system_columns};
use super::rules::ChainState;
use super::schema;
use super::slice::{SliceOptions, UncommittedSlice};
use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};
use crate::parquet::options::WriteOptions;

/// What a process needs to write rows as a slice; plain data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SliceTask {
    vocabulary: Vocabulary,
    /// The `SetDataSchema` event of the columns.
    schema_event: Value,
    event_time: Option<String>,
    /// The offset of the first row.
    start: u64,
    system_time_ms: i64,
}

/// A slice that a task has written; plain data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TaskSlice {
    logical_hash: String,
    physical_hash: String,
    start: u64,
    end: u64,
    size: u64,
    latest_event_time_micros: Option<i64>,
}

impl SliceTask {
    fn to_system_columns(&self) -> Result<SystemColumns> {
        Ok(SystemColumns {
            slice_schema: Arc::new(schema::arrow_from_event(&self.schema_event)?),
            vocabulary: self.vocabulary.clone(),
            event_time: self.event_time.clone(),
            start: self.start,
            system_time_ms: self.system_time_ms,
        })
    }
}

impl TaskSlice {
    fn new(written: &UncommittedSlice) -> Self {
        let slice = &written.slice;
        Self {
            logical_hash: slice.logical_hash.to_string(),
            physical_hash: slice.physical_hash.to_string(),
            start: slice.start,
            end: slice.end,
            size: slice.size,
            latest_event_time_micros: written.latest_event_time_micros,
        }
    }

    fn to_uncommitted(&self) -> Result<UncommittedSlice> {
        Ok(UncommittedSlice {
            slice: Slice {
                logical_hash: self.logical_hash.parse()?,
                physical_hash: self.physical_hash.parse()?,
                start: self.start,
                end: self.end,
                size: self.size,
            },
            latest_event_time_micros: self.latest_event_time_micros,
        })
    }
}

/// Writes rows as the slice of a task; None without rows.
pub async fn write_task_slice(
    chain: &Chain,
    task: &SliceTask,
    input: Box<dyn RecordBatchReader + Send>,
    write_options: &WriteOptions,
    threads: usize,
) -> Result<Option<TaskSlice>> {
    let options = SliceOptions {
        write_options,
        threads: Some(threads),
    };
    let written = write_rows(chain, task.to_system_columns()?, input, options).await?;
    Ok(written.as_ref().map(TaskSlice::new))
}

/// Removes slices that no block names. An error is logged only.
async fn discard_slices(chain: &Chain, slices: &[TaskSlice]) {
    let paths: Vec<String> = slices
        .iter()
        .map(|slice| chain.data_path(&slice.physical_hash))
        .collect();
    if let Err(e) = chain.store().delete_all(&paths).await {
        log::warn!("slices that no block names could not be removed: {e}");
    }
}

/// An ingest at one state of the chain.
#[derive(Debug)]
pub struct SharedIngest {
    chain: Chain,
    head: ChainHead,
    state: Arc<ChainState>,
    input_schema: SchemaRef,
    plan: IngestPlan,
    /// That of all slices.
    lease: WriteLease,
    system_time_ms: i64,
    options: IngestOptions,
    /// Its blocks may name the slices: they are not removed by another commit.
    was_committed: AtomicBool,
}

impl SharedIngest {
    /// Begins an ingest at the newest block. Refuses columns that the rows of a task would be refused for.
    pub async fn begin(
        chain: Chain,
        input_schema: SchemaRef,
        options: IngestOptions,
    ) -> Result<Self> {
        let lease = WriteLease::new(&chain);
        let (head, state) = chain.state().await?;
        state.check_readable()?;
        let slices_schema = chain.schema_of_slices(&state).await?;
        let plan = IngestPlan::new(&state, slices_schema.as_ref(), &input_schema, &options)?;
        let system_time_ms = chain.time_after(&state).timestamp_millis();
        let shared = Self {
            chain,
            head,
            state,
            input_schema,
            plan,
            lease,
            system_time_ms,
            options,
            was_committed: AtomicBool::new(false),
        };
        let system_columns = shared.task(0)?.to_system_columns()?;
        let slice_stats = SliceStats::new(&system_columns.file_schema())?;
        let schema = Arc::clone(&shared.input_schema);
        let no_rows = Box::new(RecordBatchIterator::new(std::iter::empty(), schema));
        add_system_columns(no_rows, system_columns, Arc::new(slice_stats.into()))?;
        Ok(shared)
    }

    /// Returns the task that writes the rows that come after so many rows of this ingest.
    pub fn task(&self, rows_before: u64) -> Result<SliceTask> {
        let event = self.plan.new_schema_event.as_ref();
        let schema_event = event.or(self.state.schema_event.as_ref());
        let start = self.plan.start.checked_add(rows_before);
        Ok(SliceTask {
            vocabulary: self.plan.vocabulary.clone(),
            schema_event: schema_event
                .ok_or_else(|| Error::other("internal error: an ingest without a schema"))?
                .clone(),
            event_time: self.options.event_time.clone(),
            start: start.ok_or_else(|| {
                Error::invalid("offset overflow: the range of offsets is used up")
            })?,
            system_time_ms: self.system_time_ms,
        })
    }

    /// Appends a block for each slice, in their order, all or none; together they must have so many rows. None if they have
    /// to be written again: nothing was appended then, and the slices are removed, as after an error other than
    /// [`crate::ErrorKind::CommitStateUnknown`]. Slices that are not those of all tasks, and those of a second commit, are
    /// refused and stay: a block may name them.
    pub async fn commit(&self, slices: &[TaskSlice], rows: u64) -> Result<Option<Appended>> {
        let new_slices = self.check_slices(slices, rows)?;
        if self.was_committed.swap(true, Ordering::SeqCst) {
            return Err(Error::invalid(
                "the ingest was committed before; begin another, and write the slices for it",
            ));
        }
        match self.append(&new_slices).await {
            Ok(Some(appended)) => Ok(Some(appended)),
            Ok(None) => {
                discard_slices(&self.chain, slices).await;
                Ok(None)
            }
            Err(HeadError::NotMoved(e)) => {
                discard_slices(&self.chain, slices).await;
                Err(e)
            }
            // The blocks may name the slices.
            Err(unknown @ HeadError::Unknown { .. }) => Err(unknown.into_error()),
        }
    }

    async fn append(&self, new_slices: &[UncommittedSlice]) -> HeadResult<Option<Appended>> {
        let chain = &self.chain;
        let deadline = chain.store().clock().monotonic() + self.options.timeout;
        let (mut head, mut state) = (self.head.clone(), Arc::clone(&self.state));
        let (mut attempts, mut delay) = (0, MIN_RETRY_DELAY);
        loop {
            attempts += 1;
            let planned = self.plan.events(&state, new_slices, &self.options);
            let events = planned.map_err(HeadError::NotMoved)?;
            let time = chain.time_after(&state);
            let update = chain.try_append(&head, &state, time, &events, &self.lease);
            if let HeadUpdate::Appended(blocks) = update.await? {
                return Ok(Some(Appended { blocks, attempts }));
            }
            if chain.store().clock().monotonic() >= deadline {
                return Err(HeadError::NotMoved(
                    chain.timeout_error(self.options.timeout),
                ));
            }
            delay = chain.back_off(delay).await;
            (head, state) = chain.state().await.map_err(HeadError::NotMoved)?;
            let outdated = self.is_outdated(&state).await;
            if outdated.map_err(HeadError::NotMoved)? {
                return Ok(None);
            }
        }
    }

    /// Whether slices have other offsets, names or columns in this state.
    async fn is_outdated(&self, state: &ChainState) -> Result<bool> {
        state.check_readable()?;
        let slices_schema = self.chain.schema_of_slices(state).await?;
        let slices_schema = slices_schema.as_ref();
        let plan = IngestPlan::new(state, slices_schema, &self.input_schema, &self.options)?;
        Ok(plan != self.plan)
    }

    /// Checks that the offsets of the slices follow one another, from the first row to the last.
    fn check_slices(&self, slices: &[TaskSlice], rows: u64) -> Result<Vec<UncommittedSlice>> {
        let mut start = self.plan.start;
        for slice in slices {
            if slice.start != start || slice.end < start {
                let message = format!(
                    "the slices of tasks do not follow one another: expected the offset {start}, found {} to {}",
                    slice.start, slice.end
                );
                return Err(Error::invalid(message));
            }
            start = slice.end.saturating_add(1);
        }
        if start != self.plan.start.saturating_add(rows) {
            let written = start - self.plan.start;
            let message = format!("the slices of tasks have {written} rows together, not {rows}");
            return Err(Error::invalid(message));
        }
        slices.iter().map(TaskSlice::to_uncommitted).collect()
    }
}
