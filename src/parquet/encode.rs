//! The work queue of a write: the columns of a few row groups, encoded by any free thread, oldest row group first,
//! within a memory budget.
//!
//! A column of a row group is a queue of arrays and the writers that encode them. One thread works on a column at a
//! time; different columns, also of different row groups, are encoded in parallel. When all rows of the oldest row
//! group are known and its first column is encoded, one thread appends column after column to the output. Where the
//! next one is not finished, it encodes like the others meanwhile.
//!
//! The thread that reads the input calls `open_group`, `push`, `close_group` and `finish` of [`Encoder`]; the others
//! run `run_worker`. Without workers, the input's thread encodes whenever it would have to wait. The first error or panic
//! stops all workers. A call of the input's thread returns it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};

use super::output::{ClosedRowGroup, Digests, OutputFiles};
use super::pending::{Appending, EncodeTask, Encoded, NextColumn, PendingGroups};
use super::size::slice_bytes;
use super::types::convert;
use super::{Cancel, panic_text};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::mutex;

/// The most row groups that are encoded at a time.
const MAX_PENDING_GROUPS: usize = 3;
/// Bytes of a column writer's compressor and page buffers, which `memory_size` does not count.
const WRITER_OVERHEAD_BYTES: usize = 512 << 10;
/// The most that the writers of a row group are charged for this overhead is the budget divided by this number.
const MAX_OVERHEAD_SHARE: usize = 4;
/// Fewer rows are not passed on to a writer at once, even if its pages are shorter.
const MIN_PIECE_ROWS: usize = 4 << 10;

struct EncoderState<'a> {
    pending: PendingGroups,
    /// None while a thread appends a row group to it.
    output: Option<Box<OutputFiles<'a>>>,
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
    /// The rows that a writer gets at once, whole pages.
    piece_rows: usize,
    /// What a column's writer is charged in addition to its `memory_size`.
    overhead_bytes: usize,
    cancel: Cancel,
}

enum WorkItem<'a> {
    Encode(EncodeTask),
    Append(Box<OutputFiles<'a>>, ClosedRowGroup, Appending),
}

impl<'a> Encoder<'a> {
    pub(super) fn new(
        output: OutputFiles<'a>,
        schemas: (SchemaRef, SchemaRef),
        pending: PendingGroups,
        (budget_bytes, leaves): (usize, usize),
        page_rows: usize,
        cancel: Cancel,
    ) -> Self {
        // Most of the budget is left for rows, however many columns there are.
        let share = budget_bytes / MAX_OVERHEAD_SHARE / leaves.max(1);
        Self {
            state: Mutex::new(EncoderState {
                pending,
                output: Some(Box::new(output)),
                has_workers: false,
                stopped: false,
                failure: None,
            }),
            work_available: Condvar::new(),
            space_available: Condvar::new(),
            schema: schemas.0,
            storage_schema: schemas.1,
            budget_bytes,
            piece_rows: page_rows.max(1) * (MIN_PIECE_ROWS / page_rows.max(1)).max(1),
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
        let leaves: usize = writers.iter().map(Vec::len).sum();
        let mut state = self.lock();
        // The row groups before it are closed, so the wait ends.
        let must_wait = |pending: &PendingGroups| {
            pending.waiting() >= MAX_PENDING_GROUPS
                || (!pending.is_empty()
                    && pending.used_bytes() + leaves * WRITER_OVERHEAD_BYTES > self.budget_bytes)
        };
        while must_wait(&state.pending) && state.failure.is_none() {
            state = self.wait_for_space(state)?;
        }
        let overhead_bytes = self.overhead_bytes;
        let pending = &mut state.pending;
        pending.open(writers, overhead_bytes, digests, opens_file);
        Ok(())
    }

    /// Queues a batch for the open row group. Returns false if the budget has no room for the batch as long as the
    /// row group is open: the caller closes the row group and pushes the batch into the next one.
    pub(super) fn push(&self, batch: &RecordBatch) -> Result<bool> {
        // Rows that the caller holds in memory are charged too: encoded they take about as much.
        let sizes: Vec<usize> = batch.columns().iter().map(|c| slice_bytes(c)).collect();
        let batch_bytes: usize = sizes.iter().sum();
        let mut state = self.lock();
        while state.pending.used_bytes() + batch_bytes > self.budget_bytes
            && state.failure.is_none()
        {
            if state.pending.is_idle() {
                if state.pending.has_rows() {
                    return Ok(false);
                }
                break;
            }
            state = self.wait_for_space(state)?;
        }
        state.pending.push(batch, &sizes);
        self.work_available.notify_all();
        self.check_failure(state)?;
        Ok(true)
    }

    /// Closes the open row group: no more rows will come.
    pub(super) fn close_group(&self) -> Result<()> {
        let mut state = self.lock();
        state.pending.close();
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
            if state.pending.is_empty()
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
            WorkItem::Append(mut output, group, mut appending) => {
                output.append(&group, &mut || self.next_chunks(&mut appending))?;
                // After an error nobody gets the output: what is half written would pass for the whole.
                let mut state = self.lock();
                state.output = Some(output);
                state.pending.end_append(&appending);
                Ok(())
            }
        }
    }

    /// The next column of the row group that is being appended; None after the last. Encodes until it is finished.
    fn next_chunks(&self, appending: &mut Appending) -> Result<Option<Vec<ArrowColumnChunk>>> {
        let mut state = self.lock();
        loop {
            if state.stopped {
                let message = "the write ended before all columns were encoded";
                return Err(Error::new(ErrorKind::Cancelled, message));
            }
            match state.pending.next_column(appending) {
                NextColumn::Finished(chunks) => {
                    self.space_available.notify_all();
                    return Ok(Some(chunks));
                }
                NextColumn::End => return Ok(None),
                NextColumn::Pending => {}
            }
            let Some(task) = state.pending.next_task() else {
                state = self.wait(&self.work_available, state)?;
                continue;
            };
            drop(state);
            self.encode(task)?;
            self.space_available.notify_all();
            self.work_available.notify_all();
            self.cancel.check()?;
            state = self.lock();
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
            // By whole pages: what the writers note of each row stays in the processor's cache, and pages end at the
            // same rows however the input is split into batches.
            let mut at = 0;
            while at < converted.len() {
                let rest_of_piece = self.piece_rows - task.rows % self.piece_rows;
                let rows = rest_of_piece.min(converted.len() - at);
                write_leaves(storage_field, &converted.slice(at, rows), &mut task.writers)?;
                at += rows;
                task.rows += rows;
            }
        }
        let column_writers = std::mem::take(&mut task.writers);
        let (encoded, memory_bytes) = if task.close {
            let closed = column_writers.into_iter().map(ArrowColumnWriter::close);
            let chunks = closed
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| write_error(field, &e))?;
            let sizes = chunks.iter().map(|c| c.close().bytes_written);
            let bytes = sizes.map(|n| usize::try_from(n).unwrap_or(0)).sum();
            (Encoded::Chunks(chunks), bytes)
        } else {
            let writers = column_writers.iter();
            let bytes = writers.map(|w| w.memory_size() + self.overhead_bytes).sum();
            (Encoded::Writers(column_writers), bytes)
        };
        self.lock().pending.put_back(&task, encoded, memory_bytes);
        Ok(())
    }
}

/// What a thread does next. It begins to append the oldest row group as soon as that is closed and its first column is
/// encoded: the chunks leave memory, and uploads run, while the other columns are encoded.
fn next_item<'a>(state: &mut EncoderState<'a>) -> Option<WorkItem<'a>> {
    if state.output.is_some()
        && let Some((group, appending)) = state.pending.begin_append()
        && let Some(output) = state.output.take()
    {
        return Some(WorkItem::Append(output, group, appending));
    }
    state.pending.next_task().map(WorkItem::Encode)
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
