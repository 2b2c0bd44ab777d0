//! Folding: the groups of a stage that keeps a state for each key, from their stored states and what changed among their
//! rows.
//!
//! A key whose result depends on rows that are not at hand, as the least value does when it leaves, is set aside; all its
//! rows are folded then, from nothing.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use super::cursor::{Cursor, Picker};
use super::diff::KeyWriter;
use super::emitted::check_emitted;
use super::graph::StageNode;
use super::key_ends::KeyEnds;
use super::layers::{to_arrow, to_error};
use super::lookup::StoredTable;
use super::operators::{Aggregation, Arguments, GroupEnd, Groups, Sign};
use super::tables::TableShape;
use crate::error::{Error, Result};
use crate::files::{SortKeys, SortedBatches, Spill, SpillWriter};
use crate::parquet::Cancel;

/// Computes the groups of a stage, and sets their rows aside.
pub(super) struct StageFold<'a> {
    stage: &'a StageNode,
    groups: Groups<'a>,
    content: &'a TableShape,
    cancel: &'a Cancel,
    /// The rows of the feeders.
    feed: &'a TableShape,
    feed_keys: Arc<SortKeys>,
    /// The keys of the groups that have ended.
    keys: Picker,
    /// Where results that depend on all rows of a key can be read without these.
    ends: Option<KeyEnds<'a>>,
    unresolved: KeyWriter,
    memory_bytes: usize,
    spill: SpillWriter,
}

/// A cursor, and the arguments of its batch.
struct Side {
    cursor: Cursor,
    arguments: Option<(Arc<RecordBatch>, Arguments)>,
}

impl Side {
    fn new(rows: SortedBatches, keys: &Arc<SortKeys>) -> Result<Self> {
        Ok(Self {
            cursor: Cursor::new(rows, keys).map_err(to_error)?,
            arguments: None,
        })
    }

    /// Adds the rows with a key to its group, or takes them out.
    fn take_group(&mut self, key: &[u8], groups: &mut Groups<'_>, sign: Sign) -> Result<()> {
        self.cursor.seek(key).map_err(to_error)?;
        while self.cursor.is_at(key) {
            let Some((batch, rows)) = self.cursor.group() else {
                break;
            };
            let batch = Arc::clone(batch);
            groups.update(self.arguments_of(&batch, groups)?, rows.clone(), sign);
            self.cursor.advance_to(rows.end).map_err(to_error)?;
        }
        Ok(())
    }

    fn arguments_of(
        &mut self,
        batch: &Arc<RecordBatch>,
        groups: &Groups<'_>,
    ) -> Result<&Arguments> {
        let is_known = |known: &(Arc<RecordBatch>, Arguments)| Arc::ptr_eq(&known.0, batch);
        if !self.arguments.as_ref().is_some_and(is_known) {
            self.arguments = Some((Arc::clone(batch), groups.arguments(batch)?));
        }
        match &self.arguments {
            Some((_, arguments)) => Ok(arguments),
            None => Err(Error::other("internal error: a batch without arguments")),
        }
    }
}

impl<'a> StageFold<'a> {
    /// `feed` is the shape of the rows that are folded.
    pub(super) fn new(
        stage: &'a StageNode,
        aggregation: &'a Aggregation,
        content: &'a StoredTable,
        feed: &'a TableShape,
        memory_bytes: usize,
    ) -> Result<Self> {
        Ok(Self {
            stage,
            groups: aggregation.groups()?,
            content: &content.shape,
            cancel: &content.cancel,
            feed,
            feed_keys: feed.keys(1)?,
            keys: Picker::default(),
            ends: None,
            unresolved: KeyWriter::new(feed, 1, memory_bytes),
            memory_bytes,
            spill: SpillWriter::new(&content.shape.schema, memory_bytes),
        })
    }

    /// Reads what is left open from the ends of keys from now on.
    pub(super) fn set_ends(&mut self, ends: KeyEnds<'a>) {
        self.ends = Some(ends);
    }

    /// Folds what `removed` takes from the stored groups of some keys and `added` brings. All are in the order of the key.
    /// Gives the keys of which all rows have to be folded.
    pub(super) fn fold_changes(
        &mut self,
        keys: SortedBatches,
        stored: SortedBatches,
        removed: SortedBatches,
        added: SortedBatches,
    ) -> Result<Spill> {
        let mut keys = Cursor::new(keys, &self.feed_keys).map_err(to_error)?;
        // A group has its key twice, in the order of the feeders.
        let content_keys = self.content.keys(1)?;
        let mut stored = Cursor::new(stored, &content_keys).map_err(to_error)?;
        let mut results: Option<(Arc<RecordBatch>, Arguments)> = None;
        let mut removed = Side::new(removed, &self.feed_keys)?;
        let mut added = Side::new(added, &self.feed_keys)?;
        while let (Some(key), Some((batch, row))) = (keys.key(), keys.row()) {
            stored.seek(key).map_err(to_error)?;
            let group = stored.row().filter(|_| stored.is_at(key));
            match group {
                None => self.groups.begin(None)?,
                Some((group, at)) => {
                    let is_known = |known: &(Arc<RecordBatch>, _)| Arc::ptr_eq(&known.0, group);
                    if !results.as_ref().is_some_and(is_known) {
                        results = Some((Arc::clone(group), self.groups.stored(group)?));
                    }
                    let results = results.as_ref().map(|(_, results)| (&**group, results, at));
                    self.groups.begin(results)?;
                }
            }
            removed.take_group(key, &mut self.groups, Sign::Removed)?;
            added.take_group(key, &mut self.groups, Sign::Added)?;
            self.end_group((batch, row))?;
            keys.advance().map_err(to_error)?;
        }
        self.flush().map_err(to_error)?;
        let next = KeyWriter::new(self.feed, 1, self.memory_bytes);
        let unresolved = std::mem::replace(&mut self.unresolved, next);
        unresolved.finish().map_err(to_error)
    }

    /// Folds rows, all of each key.
    pub(super) fn fold_rows(&mut self, rows: SortedBatches) -> Result<()> {
        let mut rows = Side::new(rows, &self.feed_keys)?;
        while let (Some(key), Some((batch, row))) = (rows.cursor.key(), rows.cursor.row()) {
            let (key, batch) = (key.to_vec(), Arc::clone(batch));
            self.groups.begin(None)?;
            rows.take_group(&key, &mut self.groups, Sign::Added)?;
            self.end_group((&batch, row))?;
        }
        self.flush().map_err(to_error)
    }

    /// Ends the group of the key in the first column of a row.
    fn end_group(&mut self, (batch, row): (&Arc<RecordBatch>, usize)) -> Result<()> {
        let of_key = |e: Error| {
            let key = arrow_cast::display::array_value_to_string(batch.column(0), row)
                .unwrap_or_else(|_| "?".to_owned());
            e.context(format!("stage {:?}, key {key}", self.stage.name))
        };
        let mut ended = self.groups.end().map_err(of_key)?;
        if ended == GroupEnd::Unresolved
            && let Some(ends) = &mut self.ends
            && ends.resolve((batch, row), &mut self.groups)?
        {
            ended = self.groups.end().map_err(of_key)?;
        }
        match ended {
            GroupEnd::Empty => {}
            GroupEnd::Unresolved => self.unresolved.add((batch, row), 0).map_err(to_error)?,
            GroupEnd::Result => {
                self.keys.pick(batch, row);
                if self.keys.is_full() || self.groups.is_full() {
                    self.flush().map_err(to_error)?;
                }
            }
        }
        Ok(())
    }

    /// Sets the rows of the ended groups aside. The batches of their keys must have the same columns.
    fn flush(&mut self) -> Result<(), ArrowError> {
        self.cancel.check().map_err(to_arrow)?;
        let (values, states) = self.groups.take().map_err(to_arrow)?;
        let mut first = 0;
        for keys in self.keys.take()? {
            let (key, rows) = (keys.column(0), keys.num_rows());
            let columns = [
                ("target_key", Arc::clone(key)),
                ("source_key", Arc::clone(key)),
                ("value", values.slice(first, rows)),
                ("state", states.slice(first, rows)),
            ];
            let emitted = RecordBatch::try_from_iter(columns)?;
            let emitted = check_emitted(&emitted, self.stage, &self.content.schema);
            self.spill.push(emitted.map_err(to_arrow)?)?;
            first += rows;
        }
        Ok(())
    }

    /// The rows, with the columns of the content.
    pub(super) fn finish(mut self) -> Result<Spill> {
        self.flush().map_err(to_error)?;
        self.spill.finish().map_err(to_error)
    }
}
