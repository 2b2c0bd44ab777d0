//! The row groups of a write that are being encoded, oldest first, and which of their columns is encoded next.
//!
//! Rows of a stream are encoded where most of them wait. Once all rows of a row group are known, its columns are ended
//! in the order of the file, so that the first chunks leave memory while the last ones are still encoded.

use std::collections::VecDeque;

use arrow_array::{ArrayRef, RecordBatch};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowColumnWriter};

use super::dictionary::Dictionaries;
use super::output::{ClosedRowGroup, Digests};

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
}

#[derive(Default)]
struct PendingColumn {
    queue: VecDeque<ArrayRef>,
    /// The size of the queued arrays.
    queued_bytes: usize,
    writers: Vec<ArrowColumnWriter>,
    /// The number of rows that the writers have.
    rows: usize,
    /// The memory of the writers or of the finished chunks.
    memory_bytes: usize,
    busy: bool,
    chunks: Option<Vec<ArrowColumnChunk>>,
}

/// The queued arrays of one column and its writers, taken by a thread.
pub(super) struct EncodeTask {
    group: u64,
    pub(super) column: usize,
    pub(super) arrays: VecDeque<ArrayRef>,
    arrays_bytes: usize,
    pub(super) writers: Vec<ArrowColumnWriter>,
    /// The number of rows that the writers have.
    pub(super) rows: usize,
    /// Whether no more arrays will come.
    pub(super) close: bool,
}

/// What a thread made of a task.
pub(super) enum Encoded {
    Writers(Vec<ArrowColumnWriter>),
    Chunks(Vec<ArrowColumnChunk>),
}

/// A row group that is being appended to the output, and what is charged for the column that was taken last.
pub(super) struct Appending {
    group: u64,
    next_column: usize,
    memory_bytes: usize,
}

/// The next column of a row group that is being appended.
pub(super) enum NextColumn {
    Finished(Vec<ArrowColumnChunk>),
    /// It is not encoded yet.
    Pending,
    /// All were taken.
    End,
}

/// The row groups that are being encoded, oldest first.
pub(super) struct PendingGroups {
    groups: VecDeque<PendingRowGroup>,
    opened: u64,
    /// The oldest row group is being appended.
    is_appending: bool,
    /// The number of threads that encode.
    threads: usize,
    /// The rows of a row group come at once.
    in_memory: bool,
    used_bytes: usize,
}

impl PendingGroups {
    pub(super) fn new(threads: usize, in_memory: bool) -> Self {
        Self {
            groups: VecDeque::new(),
            opened: 0,
            is_appending: false,
            threads,
            in_memory,
            used_bytes: 0,
        }
    }

    /// The memory of all row groups.
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The number of row groups of which none is being appended.
    pub(super) fn waiting(&self) -> usize {
        self.groups.len() - usize::from(self.is_appending)
    }

    /// Whether there is but one row group, and nothing of it waits or is being encoded.
    pub(super) fn is_idle(&self) -> bool {
        let mut columns = self.groups.iter().flat_map(|g| &g.columns);
        self.groups.len() == 1 && columns.all(|c| !c.busy && c.queue.is_empty())
    }

    /// Whether the open row group has rows.
    pub(super) fn has_rows(&self) -> bool {
        self.groups.back().is_some_and(|g| g.rows > 0)
    }

    /// Opens a row group; each writer is charged `overhead_bytes`.
    pub(super) fn open(
        &mut self,
        writers: Vec<Vec<ArrowColumnWriter>>,
        overhead_bytes: usize,
        digests: Digests,
        opens_file: bool,
    ) {
        let to_column = |writers: Vec<ArrowColumnWriter>| PendingColumn {
            memory_bytes: writers.len() * overhead_bytes,
            writers,
            ..PendingColumn::default()
        };
        let columns: Vec<PendingColumn> = writers.into_iter().map(to_column).collect();
        self.used_bytes += columns.iter().map(|c| c.memory_bytes).sum::<usize>();
        self.opened += 1;
        self.groups.push_back(PendingRowGroup {
            id: self.opened,
            columns,
            digests,
            dictionaries: Dictionaries::default(),
            rows: 0,
            opens_file,
            closed: false,
        });
    }

    /// Queues a batch, the columns of which have these sizes, for the open row group.
    pub(super) fn push(&mut self, batch: &RecordBatch, sizes: &[usize]) {
        let Some(group) = self.groups.back_mut() else {
            return;
        };
        self.used_bytes += sizes.iter().sum::<usize>();
        group.rows += batch.num_rows() as u64;
        group.dictionaries.observe(batch);
        for ((column, array), bytes) in group.columns.iter_mut().zip(batch.columns()).zip(sizes) {
            column.queue.push_back(ArrayRef::clone(array));
            column.queued_bytes += bytes;
        }
    }

    /// Closes the open row group: no more rows will come.
    pub(super) fn close(&mut self) {
        if let Some(group) = self.groups.back_mut() {
            group.closed = true;
        }
    }

    /// A column of the oldest row group that has work.
    pub(super) fn next_task(&mut self) -> Option<EncodeTask> {
        for group in &mut self.groups {
            let index = if group.closed || self.in_memory {
                group.next_in_order(self.threads)
            } else {
                group.fullest()
            };
            if let Some(index) = index {
                return group.take(index);
            }
        }
        None
    }

    /// Puts back what became of a task, which takes `memory_bytes` now.
    pub(super) fn put_back(&mut self, task: &EncodeTask, encoded: Encoded, memory_bytes: usize) {
        let mut groups = self.groups.iter_mut();
        let group = groups.find(|g| g.id == task.group);
        let Some(column) = group.and_then(|g| g.columns.get_mut(task.column)) else {
            return;
        };
        let charged_bytes = column.memory_bytes + task.arrays_bytes;
        column.memory_bytes = memory_bytes;
        column.rows = task.rows;
        match encoded {
            Encoded::Writers(writers) => column.writers = writers,
            Encoded::Chunks(chunks) => column.chunks = Some(chunks),
        }
        column.busy = false;
        self.used_bytes = self.used_bytes + memory_bytes - charged_bytes;
    }

    /// Begins to append the oldest row group, if all its rows are known and its first column is encoded.
    pub(super) fn begin_append(&mut self) -> Option<(ClosedRowGroup, Appending)> {
        let group = self.groups.front_mut()?;
        let is_ready = group.columns.first().is_none_or(|c| c.chunks.is_some());
        if !group.closed || !is_ready || self.is_appending {
            return None;
        }
        self.is_appending = true;
        let closed = ClosedRowGroup {
            digests: Digests::clone(&group.digests),
            dictionaries: std::mem::take(&mut group.dictionaries),
            rows: group.rows,
            opens_file: group.opens_file,
        };
        let appending = Appending {
            group: group.id,
            next_column: 0,
            memory_bytes: 0,
        };
        Some((closed, appending))
    }

    /// Takes the next column. What was taken before it has been appended, and stops being charged.
    pub(super) fn next_column(&mut self, appending: &mut Appending) -> NextColumn {
        self.used_bytes -= std::mem::take(&mut appending.memory_bytes);
        let mut groups = self.groups.iter_mut();
        let Some(group) = groups.find(|g| g.id == appending.group) else {
            return NextColumn::End;
        };
        let Some(column) = group.columns.get_mut(appending.next_column) else {
            return NextColumn::End;
        };
        let Some(chunks) = column.chunks.take() else {
            return NextColumn::Pending;
        };
        // `next_task` leaves out a column that was taken.
        column.busy = true;
        appending.memory_bytes = std::mem::take(&mut column.memory_bytes);
        appending.next_column += 1;
        NextColumn::Finished(chunks)
    }

    /// Removes a row group that was appended, or that never will be.
    pub(super) fn end_append(&mut self, appending: &Appending) {
        self.used_bytes -= appending.memory_bytes;
        self.groups.retain(|g| g.id != appending.group);
        self.is_appending = false;
    }
}

impl PendingRowGroup {
    /// The first column that has work, so that chunks can leave in the order of the file. But a column with so many of
    /// the bytes that the other threads would wait for it in the end comes before.
    fn next_in_order(&self, threads: usize) -> Option<usize> {
        let mut waiting = self.waiting();
        let (first, column) = waiting.next()?;
        let (mut largest, mut total) = ((first, column.queued_bytes), column.queued_bytes);
        for (index, column) in waiting {
            total += column.queued_bytes;
            if column.queued_bytes > largest.1 {
                largest = (index, column.queued_bytes);
            }
        }
        let is_long = largest.1.saturating_mul(threads) >= total;
        Some(if is_long { largest.0 } else { first })
    }

    /// The column with the most queued bytes.
    fn fullest(&self) -> Option<usize> {
        let fullest = self.waiting().max_by_key(|(_, c)| c.queued_bytes)?;
        Some(fullest.0)
    }

    /// The columns that a thread can take.
    fn waiting(&self) -> impl Iterator<Item = (usize, &PendingColumn)> {
        let has_work = |c: &PendingColumn| {
            !c.busy && c.chunks.is_none() && (self.closed || !c.queue.is_empty())
        };
        let columns = self.columns.iter().enumerate();
        columns.filter(move |(_, c)| has_work(c))
    }

    fn take(&mut self, index: usize) -> Option<EncodeTask> {
        let column = self.columns.get_mut(index)?;
        column.busy = true;
        Some(EncodeTask {
            group: self.id,
            column: index,
            arrays: std::mem::take(&mut column.queue),
            arrays_bytes: std::mem::take(&mut column.queued_bytes),
            writers: std::mem::take(&mut column.writers),
            rows: column.rows,
            close: self.closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::Int64Array;

    use super::*;

    /// One row group, the columns of which wait with these sizes.
    fn group_of(sizes: &[usize], in_memory: bool) -> PendingGroups {
        let mut groups = PendingGroups::new(2, in_memory);
        let writers = sizes.iter().map(|_| Vec::new()).collect();
        groups.open(writers, 0, Arc::new(Vec::new()), true);
        let numbers = || Arc::new(Int64Array::from(vec![1])) as ArrayRef;
        let columns = (0..sizes.len()).map(|i| (format!("c{i}"), numbers()));
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        groups.push(&batch, sizes);
        groups
    }

    fn take_all(groups: &mut PendingGroups) -> Vec<usize> {
        let tasks = std::iter::from_fn(|| groups.next_task());
        tasks.map(|task| task.column).collect()
    }

    fn finish(groups: &mut PendingGroups, task: &EncodeTask, memory_bytes: usize) {
        groups.put_back(task, Encoded::Chunks(Vec::new()), memory_bytes);
    }

    #[test]
    fn the_fullest_column_of_a_stream_comes_first_and_the_first_one_in_the_end() {
        let mut groups = group_of(&[10, 30, 20, 20], false);
        assert_eq!(groups.next_task().unwrap().column, 1);
        groups.close();
        assert_eq!(take_all(&mut groups), [0, 2, 3]);
    }

    #[test]
    fn a_column_that_the_others_would_wait_for_comes_before() {
        for in_memory in [true, false] {
            let mut groups = group_of(&[10, 10, 10, 10, 35], in_memory);
            groups.close();
            assert_eq!(take_all(&mut groups), [0, 4, 1, 2, 3]);
        }
    }

    #[test]
    fn columns_leave_in_the_order_of_the_file_and_are_charged_until_then() {
        let mut groups = group_of(&[10, 10, 10], true);
        let tasks: Vec<EncodeTask> = std::iter::from_fn(|| groups.next_task()).collect();
        assert!(
            tasks.iter().all(|task| !task.close),
            "the row group is open"
        );
        for task in &tasks {
            groups.put_back(task, Encoded::Writers(Vec::new()), 10);
        }
        assert!(groups.begin_append().is_none());
        groups.close();
        let tasks: Vec<EncodeTask> = std::iter::from_fn(|| groups.next_task()).collect();
        finish(&mut groups, &tasks[1], 5);
        assert!(
            groups.begin_append().is_none(),
            "the first column is not encoded"
        );
        finish(&mut groups, &tasks[0], 4);
        let (closed, mut appending) = groups.begin_append().unwrap();
        assert_eq!(closed.rows, 1);
        assert!(groups.begin_append().is_none(), "one thread appends");
        assert_eq!((groups.waiting(), groups.used_bytes()), (0, 19));
        let mut next = |groups: &mut PendingGroups| match groups.next_column(&mut appending) {
            NextColumn::Finished(_) => "finished",
            NextColumn::Pending => "pending",
            NextColumn::End => "end",
        };
        assert_eq!(next(&mut groups), "finished");
        assert_eq!(groups.used_bytes(), 19);
        assert_eq!(next(&mut groups), "finished");
        assert_eq!(groups.used_bytes(), 15);
        assert_eq!(next(&mut groups), "pending");
        assert_eq!(groups.used_bytes(), 10);
        finish(&mut groups, &tasks[2], 3);
        assert_eq!([next(&mut groups), next(&mut groups)], ["finished", "end"]);
        groups.end_append(&appending);
        assert!(groups.is_empty());
        assert_eq!(groups.used_bytes(), 0);
    }
}
