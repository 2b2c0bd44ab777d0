//! The work list of a write: columns of a few row groups, encoded by any free thread, oldest row
//! group first, within a memory budget.
//!
//! A column of a row group is a queue of arrays and the writers that take them. One thread works
//! on a column at a time; different columns, also of different row groups, go on in parallel. When
//! all columns of the oldest row group are done, one thread appends it to the output while the
//! others go on.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Field, SchemaRef};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, compute_leaves};

use super::dictionary::Dictionaries;
use super::output::{Digests, EncodedGroup, Output};
use super::size::slice_bytes;
use super::types::convert;
use super::{Cancel, panic_text};
use crate::error::{Error, Result};

/// Row groups that may be in the works at once.
const MAX_GROUPS: usize = 3;
/// Compressor and page buffers of a column writer that `memory_size` does not count.
const WRITER_OVERHEAD_BYTES: usize = 512 << 10;
/// The budget divided by this is what the writers of a row group are charged for that at most.
const MAX_OVERHEAD_SHARE: usize = 4;

/// The columns of one row group.
struct Group {
    id: u64,
    columns: Vec<Column>,
    digests: Digests,
    dictionaries: Dictionaries,
    rows: u64,
    opens_file: bool,
    /// No more rows will come.
    closed: bool,
    unfinished: usize,
}

#[derive(Default)]
struct Column {
    queue: VecDeque<ArrayRef>,
    /// The size of the queued slices: the work that waits.
    queued_bytes: usize,
    writers: Vec<ArrowColumnWriter>,
    /// What the writers or the finished chunks hold.
    held_bytes: usize,
    busy: bool,
    done: Option<Vec<ArrowColumnChunk>>,
}

struct State<'a> {
    groups: VecDeque<Group>,
    groups_opened: u64,
    /// Taken out while a thread appends a row group.
    output: Option<Box<Output<'a>>>,
    used_bytes: usize,
    ended: bool,
    failure: Option<Error>,
}

/// The shared work list.
pub(super) struct Encoder<'a> {
    state: Mutex<State<'a>>,
    work: Condvar,
    room: Condvar,
    schema: SchemaRef,
    storage: SchemaRef,
    budget_bytes: usize,
    /// What a column's writer is charged for beside what it says of itself.
    overhead_bytes: usize,
    cancel: Cancel,
}

/// A column taken from the list to be worked on.
struct Task {
    group: u64,
    column: usize,
    arrays: VecDeque<ArrayRef>,
    arrays_bytes: usize,
    writers: Vec<ArrowColumnWriter>,
    close: bool,
}

enum Next<'a> {
    Encode(Task),
    Append(Box<Output<'a>>, EncodedGroup, usize),
    Stop,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(
        output: Output<'a>,
        schemas: (SchemaRef, SchemaRef),
        budget_bytes: usize,
        leaves: usize,
        cancel: Cancel,
    ) -> Self {
        // However many columns there are, most of the budget is for rows.
        let share = budget_bytes / MAX_OVERHEAD_SHARE / leaves.max(1);
        Self {
            state: Mutex::new(State {
                groups: VecDeque::new(),
                groups_opened: 0,
                output: Some(Box::new(output)),
                used_bytes: 0,
                ended: false,
                failure: None,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            schema: schemas.0,
            storage: schemas.1,
            budget_bytes,
            overhead_bytes: share.min(WRITER_OVERHEAD_BYTES),
            cancel,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a row group once there is room for another.
    pub(super) fn open_group(
        &self,
        writers: Vec<Vec<ArrowColumnWriter>>,
        digests: Digests,
        opens_file: bool,
    ) -> Result<()> {
        let columns: Vec<Column> = writers
            .into_iter()
            .map(|writers| Column {
                held_bytes: writers.len() * self.overhead_bytes,
                writers,
                ..Column::default()
            })
            .collect();
        let overhead: usize = columns.iter().map(|c| c.held_bytes).sum();
        let leaves: usize = columns.iter().map(|c| c.writers.len()).sum();
        let mut state = self.lock();
        // Those before it are closed, so they come to an end.
        let waits = |state: &State<'_>| {
            let groups = state.groups.len();
            groups >= MAX_GROUPS
                || (groups > 0
                    && state.used_bytes + leaves * WRITER_OVERHEAD_BYTES > self.budget_bytes)
        };
        while waits(&state) && state.failure.is_none() {
            state = self.wait(&self.room, state)?;
        }
        state.used_bytes += overhead;
        state.groups_opened += 1;
        let id = state.groups_opened;
        state.groups.push_back(Group {
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

    /// Queues a batch for the open row group. False: there is no memory for it as long as the row
    /// group is open, so it should be closed and the batch put into the next.
    pub(super) fn push(&self, batch: &RecordBatch) -> Result<bool> {
        // Also of rows that are in memory anyway: about as much is what they are encoded as.
        let sizes: Vec<usize> = batch.columns().iter().map(|c| slice_bytes(c)).collect();
        let wanted: usize = sizes.iter().sum();
        let mut state = self.lock();
        while state.used_bytes + wanted > self.budget_bytes && state.failure.is_none() {
            let quiet = state.groups.len() == 1
                && state
                    .groups
                    .iter()
                    .flat_map(|g| &g.columns)
                    .all(|c| !c.busy && c.queue.is_empty());
            if quiet && state.groups.back().is_some_and(|g| g.rows > 0) {
                return Ok(false);
            }
            if quiet {
                break;
            }
            state = self.wait(&self.room, state)?;
        }
        state.used_bytes += wanted;
        if let Some(group) = state.groups.back_mut() {
            group.rows += batch.num_rows() as u64;
            group.dictionaries.observe(batch);
            for ((column, array), bytes) in group.columns.iter_mut().zip(batch.columns()).zip(sizes)
            {
                column.queue.push_back(ArrayRef::clone(array));
                column.queued_bytes += bytes;
            }
        }
        self.work.notify_all();
        self.result(state)?;
        Ok(true)
    }

    /// No more rows for the open row group.
    pub(super) fn close_group(&self) -> Result<()> {
        let mut state = self.lock();
        if let Some(group) = state.groups.back_mut() {
            group.closed = true;
        }
        self.work.notify_all();
        self.result(state)
    }

    /// Waits until everything is appended and gives the output back.
    pub(super) fn end(&self) -> Result<Box<Output<'a>>> {
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
            state = self.wait(&self.room, state)?;
        }
    }

    /// Tells the threads to stop.
    pub(super) fn stop(&self) {
        self.lock().ended = true;
        self.work.notify_all();
    }

    fn result(&self, mut state: MutexGuard<'_, State<'a>>) -> Result<()> {
        self.cancel.check()?;
        state.failure.take().map_or(Ok(()), Err)
    }

    fn wait<'g>(
        &self,
        condition: &Condvar,
        state: MutexGuard<'g, State<'a>>,
    ) -> Result<MutexGuard<'g, State<'a>>> {
        self.cancel.check()?;
        let tick = std::time::Duration::from_millis(100);
        let (state, _) = condition
            .wait_timeout(state, tick)
            .unwrap_or_else(PoisonError::into_inner);
        Ok(state)
    }

    /// The life of a worker thread.
    pub(super) fn work(&self) {
        loop {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step()));
            let failure = match outcome {
                Ok(Ok(true)) => continue,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => error,
                Err(panic) => {
                    Error::other(format!("encoding failed: {}", panic_text(panic.as_ref())))
                }
            };
            let mut state = self.lock();
            state.failure.get_or_insert(failure);
            state.ended = true;
            drop(state);
            self.work.notify_all();
            self.room.notify_all();
            return;
        }
    }

    /// Does one piece of work; false when there will be no more.
    fn step(&self) -> Result<bool> {
        match self.next()? {
            Next::Stop => return Ok(false),
            Next::Encode(task) => self.encode(task)?,
            Next::Append(mut output, group, held) => {
                let appended = output.append(group);
                let mut state = self.lock();
                state.output = Some(output);
                state.used_bytes -= held;
                drop(state);
                appended?;
            }
        }
        self.room.notify_all();
        self.work.notify_all();
        Ok(true)
    }

    fn next(&self) -> Result<Next<'a>> {
        let mut state = self.lock();
        loop {
            if state.ended {
                return Ok(Next::Stop);
            }
            if let Some(next) = next_append(&mut state).or_else(|| next_encode(&mut state)) {
                return Ok(next);
            }
            state = self.wait(&self.work, state)?;
        }
    }

    fn encode(&self, mut task: Task) -> Result<()> {
        let field = self.schema.field(task.column);
        let stored = self.storage.field(task.column);
        for array in task.arrays.drain(..) {
            self.cancel.check()?;
            let array = convert(&array, stored.data_type(), field.name())?;
            write_leaves(stored, &array, &mut task.writers)?;
        }
        let writers = std::mem::take(&mut task.writers);
        let mut held: usize = writers
            .iter()
            .map(|w| w.memory_size() + self.overhead_bytes)
            .sum();
        let (writers, done) = if task.close {
            let closed = writers.into_iter().map(ArrowColumnWriter::close);
            let chunks = closed
                .collect::<Result<Vec<_>, _>>()
                .map_err(|e| unwritable(field, &e))?;
            held = chunks
                .iter()
                .map(|c| usize::try_from(c.close().bytes_written).unwrap_or(0))
                .sum();
            (Vec::new(), Some(chunks))
        } else {
            (writers, None)
        };
        self.put_back(&task, writers, done, held);
        Ok(())
    }

    fn put_back(
        &self,
        task: &Task,
        writers: Vec<ArrowColumnWriter>,
        done: Option<Vec<ArrowColumnChunk>>,
        held: usize,
    ) {
        let mut state = self.lock();
        let Some(group) = state.groups.iter_mut().find(|g| g.id == task.group) else {
            return;
        };
        if done.is_some() {
            group.unfinished -= 1;
        }
        let column = &mut group.columns[task.column];
        let before = column.held_bytes + task.arrays_bytes;
        column.held_bytes = held;
        column.writers = writers;
        column.done = done;
        column.busy = false;
        state.used_bytes = state.used_bytes + held - before;
    }
}

/// The oldest row group, if it is complete and nobody is appending.
fn next_append<'a>(state: &mut State<'a>) -> Option<Next<'a>> {
    let ready = state
        .groups
        .front()
        .is_some_and(|g| g.closed && g.unfinished == 0);
    if !ready || state.output.is_none() {
        return None;
    }
    let (output, group) = (state.output.take()?, state.groups.pop_front()?);
    let held = group.columns.iter().map(|c| c.held_bytes).sum();
    let encoded = EncodedGroup {
        chunks: group
            .columns
            .into_iter()
            .filter_map(|c| c.done)
            .flatten()
            .collect(),
        digests: group.digests,
        dictionaries: group.dictionaries,
        rows: group.rows,
        opens_file: group.opens_file,
    };
    Some(Next::Append(output, encoded, held))
}

/// The column of the oldest row group with the most to do.
fn next_encode<'a>(state: &mut State<'a>) -> Option<Next<'a>> {
    for group in &mut state.groups {
        let (closed, id) = (group.closed, group.id);
        let waits = |c: &Column| !c.busy && c.done.is_none() && (closed || !c.queue.is_empty());
        let candidates = group
            .columns
            .iter_mut()
            .enumerate()
            .filter(|(_, c)| waits(c));
        let Some((index, column)) = candidates.max_by_key(|(_, c)| c.queued_bytes) else {
            continue;
        };
        column.busy = true;
        let task = Task {
            group: id,
            column: index,
            arrays: std::mem::take(&mut column.queue),
            arrays_bytes: std::mem::take(&mut column.queued_bytes),
            writers: std::mem::take(&mut column.writers),
            close: closed,
        };
        return Some(Next::Encode(task));
    }
    None
}

fn write_leaves(field: &Field, array: &ArrayRef, writers: &mut [ArrowColumnWriter]) -> Result<()> {
    let leaves = compute_leaves(field, array).map_err(|e| unwritable(field, &e))?;
    for (writer, leaf) in writers.iter_mut().zip(leaves) {
        writer.write(&leaf).map_err(|e| unwritable(field, &e))?;
    }
    Ok(())
}

fn unwritable(field: &Field, error: &parquet::errors::ParquetError) -> Error {
    Error::invalid(format!(
        "column {:?} cannot be written: {error}",
        field.name()
    ))
}
