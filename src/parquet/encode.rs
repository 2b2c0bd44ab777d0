//! The work queue of a write: the columns of a few row groups, encoded by any free thread, oldest row group first,
//! within a memory budget.
//!
//! A column of a row group is a queue of arrays and the writers that encode them. One thread works on a column at a
//! time; different columns, also of different row groups, are encoded in parallel. When all columns of the oldest row
//! group are encoded, one thread appends it to the output while the others go on.
//!
//! The thread that reads the input calls `open_group`, `push`, `close_group` and `finish` of [`Encoder`]; the others
//! run `run_worker`. Without workers, the input's thread encodes whenever it would have to wait. The first error or panic
//! stops all workers. A call of the input's thread returns it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};

use super::dictionary::Dictionaries;
use super::output::{Digests, EncodedRowGroup, OutputFiles};
use super::size::slice_bytes;
use super::types::convert;
use super::{Cancel, panic_text};
use crate::error::{Error, Result};
use crate::sync::mutex;

/// The most row groups that are encoded at a time.
const MAX_PENDING_GROUPS: usize = 3;
/// Bytes of a column writer's compressor and page buffers, which `memory_size` does not count.
const WRITER_OVERHEAD_BYTES: usize = 512 << 10;
/// The most that the writers of a row group are charged for this overhead is the budget divided by this number.
const MAX_OVERHEAD_SHARE: usize = 4;

/// A row group that is being encoded.
struct PendingRowGroup {
    id: u64,
    columns: Vec<PendingColumn>,
    digests: Digests,
    dictionaries: Dictionaries,
    rows: u64,
    opens_file: bool,
    /// No more rows will come.
    closed: bool,
    /// Columns whose chunks are not finished.
    unfinished: usize,
}

#[derive(Default)]
struct PendingColumn {
    queue: VecDeque<ArrayRef>,
    /// The size of the queued arrays.
    queued_bytes: usize,
    writers: Vec<ArrowColumnWriter>,
    /// The memory of the writers or of the finished chunks.
    memory_bytes: usize,
    busy: bool,
    chunks: Option<Vec<ArrowColumnChunk>>,
}

struct EncoderState<'a> {
    groups: VecDeque<PendingRowGroup>,
    groups_opened: u64,
    /// None while a thread appends a row group to it.
    output: Option<Box<OutputFiles<'a>>>,
    used_bytes: usize,
    /// Threads encode beside that of the input.
    has_workers: bool,
    stopped: bool,
    failure: Option<Error>,
}

/// The work queue that the threads of a write share.
pub(super) struct Encoder<'a> {
    state: Mutex<EncoderState<'a>>,
    work_available: Condvar,
    space_available: Condvar,
    schema: SchemaRef,
    storage_schema: SchemaRef,
    budget_bytes: usize,
    /// What a column's writer is charged in addition to its `memory_size`.
    overhead_bytes: usize,
    cancel: Cancel,
}

/// The queued arrays of one column and its writers, taken by a thread.
struct EncodeTask {
    group: u64,
    column: usize,
    arrays: VecDeque<ArrayRef>,
    arrays_bytes: usize,
    writers: Vec<ArrowColumnWriter>,
    close: bool,
}

enum WorkItem<'a> {
    Encode(EncodeTask),
    Append(Box<OutputFiles<'a>>, EncodedRowGroup, usize),
}

impl<'a> Encoder<'a> {
    pub(super) fn new(
        output: OutputFiles<'a>,
        schemas: (SchemaRef, SchemaRef),
        budget_bytes: usize,
        leaves: usize,
        cancel: Cancel,
    ) -> Self {
        // Most of the budget is left for rows, however many columns there are.
        let share = budget_bytes / MAX_OVERHEAD_SHARE / leaves.max(1);
        Self {
            state: Mutex::new(EncoderState {
                groups: VecDeque::new(),
                groups_opened: 0,
                output: Some(Box::new(output)),
                used_bytes: 0,
                has_workers: false,
                stopped: false,
                failure: None,
            }),
            work_available: Condvar::new(),
            space_available: Condvar::new(),
            schema: schemas.0,
            storage_schema: schemas.1,
            budget_bytes,
            overhead_bytes: share.min(WRITER_OVERHEAD_BYTES),
            cancel,
        }
    }

    fn lock(&self) -> MutexGuard<'_, EncoderState<'a>> {
        mutex::lock(&self.state)
    }

    /// Opens a row group; waits until the budget has room for it.
    pub(super) fn open_group(
        &self,
        writers: Vec<Vec<ArrowColumnWriter>>,
        digests: Digests,
        opens_file: bool,
    ) -> Result<()> {
        let columns: Vec<PendingColumn> = writers
            .into_iter()
            .map(|writers| PendingColumn {
                memory_bytes: writers.len() * self.overhead_bytes,
                writers,
                ..PendingColumn::default()
            })
            .collect();
        let overhead: usize = columns.iter().map(|c| c.memory_bytes).sum();
        let leaves: usize = columns.iter().map(|c| c.writers.len()).sum();
        let mut state = self.lock();
        // The row groups before it are closed, so the wait ends.
        let must_wait = |state: &EncoderState<'_>| {
            let groups = state.groups.len();
            groups >= MAX_PENDING_GROUPS
                || (groups > 0
                    && state.used_bytes + leaves * WRITER_OVERHEAD_BYTES > self.budget_bytes)
        };
        while must_wait(&state) && state.failure.is_none() {
            state = self.wait_for_space(state)?;
        }
        state.used_bytes += overhead;
        state.groups_opened += 1;
        let id = state.groups_opened;
        state.groups.push_back(PendingRowGroup {
            id,
            unfinished: columns.len(),
            columns,
            digests,
            dictionaries: Dictionaries::default(),
            rows: 0,
            opens_file,
            closed: false,
        });
        Ok(())
    }

    /// Queues a batch for the open row group. Returns false if the budget has no room for the batch as long as the
    /// row group is open: the caller closes the row group and pushes the batch into the next one.
    pub(super) fn push(&self, batch: &RecordBatch) -> Result<bool> {
        // Rows that the caller holds in memory are charged too: encoded they take about as much.
        let sizes: Vec<usize> = batch.columns().iter().map(|c| slice_bytes(c)).collect();
        let batch_bytes: usize = sizes.iter().sum();
        let mut state = self.lock();
        while state.used_bytes + batch_bytes > self.budget_bytes && state.failure.is_none() {
            let is_idle = state.groups.len() == 1
                && state
                    .groups
                    .iter()
                    .flat_map(|g| &g.columns)
                    .all(|c| !c.busy && c.queue.is_empty());
            if is_idle && state.groups.back().is_some_and(|g| g.rows > 0) {
                return Ok(false);
            }
            if is_idle {
                break;
            }
            state = self.wait_for_space(state)?;
        }
        state.used_bytes += batch_bytes;
        if let Some(group) = state.groups.back_mut() {
            group.rows += batch.num_rows() as u64;
            group.dictionaries.observe(batch);
            for ((column, array), bytes) in group.columns.iter_mut().zip(batch.columns()).zip(sizes)
            {
                column.queue.push_back(ArrayRef::clone(array));
                column.queued_bytes += bytes;
            }
        }
        self.work_available.notify_all();
        self.check_failure(state)?;
        Ok(true)
    }

    /// Closes the open row group: no more rows will come.
    pub(super) fn close_group(&self) -> Result<()> {
        let mut state = self.lock();
        if let Some(group) = state.groups.back_mut() {
            group.closed = true;
        }
        self.work_available.notify_all();
        self.check_failure(state)
    }

    /// Encodes beside the workers until all row groups are appended, and returns the output.
    pub(super) fn finish(&self) -> Result<Box<OutputFiles<'a>>> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.failure.take() {
                return Err(error);
            }
            if state.groups.is_empty()
                && let Some(output) = state.output.take()
            {
                return Ok(output);
            }
            state = self.help(state)?;
        }
    }

    /// Waits until a worker has done something; without workers, does it.
    fn wait_for_space<'g>(
        &'g self,
        state: MutexGuard<'g, EncoderState<'a>>,
    ) -> Result<MutexGuard<'g, EncoderState<'a>>> {
        if state.has_workers {
            self.wait(&self.space_available, state)
        } else {
            self.help(state)
        }
    }

    /// Runs a work item, or waits for those who do.
    fn help<'g>(
        &'g self,
        mut state: MutexGuard<'g, EncoderState<'a>>,
    ) -> Result<MutexGuard<'g, EncoderState<'a>>> {
        let Some(item) = next_item(&mut state) else {
            return self.wait(&self.space_available, state);
        };
        drop(state);
        self.run(item);
        self.cancel.check()?;
        Ok(self.lock())
    }

    /// Leaves the work to threads that run [`Self::run_worker`].
    pub(super) fn use_workers(&self) {
        self.lock().has_workers = true;
    }

    /// Tells the threads to stop.
    pub(super) fn stop(&self) {
        self.lock().stopped = true;
        self.work_available.notify_all();
    }

    fn check_failure(&self, mut state: MutexGuard<'_, EncoderState<'a>>) -> Result<()> {
        self.cancel.check()?;
        state.failure.take().map_or(Ok(()), Err)
    }

    fn wait<'g>(
        &self,
        condition: &Condvar,
        state: MutexGuard<'g, EncoderState<'a>>,
    ) -> Result<MutexGuard<'g, EncoderState<'a>>> {
        self.cancel.check()?;
        let tick = std::time::Duration::from_millis(100);
        let (state, _) = condition
            .wait_timeout(state, tick)
            .unwrap_or_else(PoisonError::into_inner);
        Ok(state)
    }

    /// Runs a worker thread until `stop` or the first error.
    pub(super) fn run_worker(&self) {
        while let Some(item) = self.wait_for_item() {
            self.run(item);
        }
    }

    /// Runs one work item; its error or panic stops the encoder.
    fn run(&self, item: WorkItem<'a>) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step(item)));
        let ended = outcome.unwrap_or_else(|panic| {
            let message = format!("encoding panicked: {}", panic_text(panic.as_ref()));
            Err(Error::other(message))
        });
        if let Err(error) = ended {
            self.fail(error);
        }
        self.space_available.notify_all();
        self.work_available.notify_all();
    }

    fn step(&self, item: WorkItem<'a>) -> Result<()> {
        match item {
            WorkItem::Encode(task) => self.encode(task),
            WorkItem::Append(mut output, group, memory_bytes) => {
                let result = output.append(group);
                let mut state = self.lock();
                state.output = Some(output);
                state.used_bytes -= memory_bytes;
                result
            }
        }
    }

    fn fail(&self, error: Error) {
        let mut state = self.lock();
        state.failure.get_or_insert(error);
        state.stopped = true;
    }

    /// The next work item, or None once the encoder is stopped.
    fn wait_for_item(&self) -> Option<WorkItem<'a>> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(item) = next_item(&mut state) {
                return Some(item);
            }
            // The thread of the input sees a cancellation too.
            state = self.wait(&self.work_available, state).ok()?;
        }
    }

    fn encode(&self, mut task: EncodeTask) -> Result<()> {
        let field = self.schema.field(task.column);
        let storage_field = self.storage_schema.field(task.column);
        for array in task.arrays.drain(..) {
            self.cancel.check()?;
            let converted = convert(&array, storage_field.data_type(), field.name())?;
            write_leaves(storage_field, &converted, &mut task.writers)?;
        }
        let column_writers = std::mem::take(&mut task.writers);
        let mut memory_bytes: usize = column_writers
            .iter()
            .map(|w| w.memory_size() + self.overhead_bytes)
            .sum();
        let (writers, finished_chunks) = if task.close {
            let closed = column_writers.into_iter().map(ArrowColumnWriter::close);
            let chunks = closed
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| write_error(field, &e))?;
            memory_bytes = chunks
                .iter()
                .map(|c| usize::try_from(c.close().bytes_written).unwrap_or(0))
                .sum();
            (Vec::new(), Some(chunks))
        } else {
            (column_writers, None)
        };
        self.put_back(&task, writers, finished_chunks, memory_bytes);
        Ok(())
    }

    fn put_back(
        &self,
        task: &EncodeTask,
        writers: Vec<ArrowColumnWriter>,
        finished_chunks: Option<Vec<ArrowColumnChunk>>,
        memory_bytes: usize,
    ) {
        let mut state = self.lock();
        let Some(group) = state.groups.iter_mut().find(|g| g.id == task.group) else {
            return;
        };
        if finished_chunks.is_some() {
            group.unfinished -= 1;
        }
        let column = &mut group.columns[task.column];
        let charged_bytes = column.memory_bytes + task.arrays_bytes;
        column.memory_bytes = memory_bytes;
        column.writers = writers;
        column.chunks = finished_chunks;
        column.busy = false;
        state.used_bytes = state.used_bytes + memory_bytes - charged_bytes;
    }
}

fn next_item<'a>(state: &mut EncoderState<'a>) -> Option<WorkItem<'a>> {
    next_append(state).or_else(|| next_encode(state))
}

/// The oldest row group, if it is encoded and no thread is appending.
fn next_append<'a>(state: &mut EncoderState<'a>) -> Option<WorkItem<'a>> {
    let is_complete = state
        .groups
        .front()
        .is_some_and(|g| g.closed && g.unfinished == 0);
    if !is_complete || state.output.is_none() {
        return None;
    }
    let (output, group) = (state.output.take()?, state.groups.pop_front()?);
    let memory_bytes = group.columns.iter().map(|c| c.memory_bytes).sum();
    let encoded = EncodedRowGroup {
        chunks: group
            .columns
            .into_iter()
            .filter_map(|c| c.chunks)
            .flatten()
            .collect(),
        digests: group.digests,
        dictionaries: group.dictionaries,
        rows: group.rows,
        opens_file: group.opens_file,
    };
    Some(WorkItem::Append(output, encoded, memory_bytes))
}

/// The column with the most queued bytes, of the oldest row group that has work.
fn next_encode<'a>(state: &mut EncoderState<'a>) -> Option<WorkItem<'a>> {
    for group in &mut state.groups {
        let (closed, id) = (group.closed, group.id);
        let has_work =
            |c: &PendingColumn| !c.busy && c.chunks.is_none() && (closed || !c.queue.is_empty());
        let candidates = group
            .columns
            .iter_mut()
            .enumerate()
            .filter(|(_, c)| has_work(c));
        let Some((index, column)) = candidates.max_by_key(|(_, c)| c.queued_bytes) else {
            continue;
        };
        column.busy = true;
        let task = EncodeTask {
            group: id,
            column: index,
            arrays: std::mem::take(&mut column.queue),
            arrays_bytes: std::mem::take(&mut column.queued_bytes),
            writers: std::mem::take(&mut column.writers),
            close: closed,
        };
        return Some(WorkItem::Encode(task));
    }
    None
}

fn write_leaves(field: &Field, array: &ArrayRef, writers: &mut [ArrowColumnWriter]) -> Result<()> {
    let leaves = compute_leaves(field, array).map_err(|e| write_error(field, &e))?;
    for (writer, leaf) in writers.iter_mut().zip(leaves) {
        writer.write(&leaf).map_err(|e| write_error(field, &e))?;
    }
    Ok(())
}

fn write_error(field: &Field, error: &parquet::errors::ParquetError) -> Error {
    Error::invalid(format!(
        "column {:?} cannot be written: {error}",
        field.name()
    ))
}
