//! Reading the rows of some keys of a table, or all of them.
//!
//! The keys come from a [`Spill`] in the order of the table, of any length. They are looked up by chunks, of which two
//! are under way at a time in each run: of a run only the pages are read that can hold a key. All runs are asked at once.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader};
use arrow_schema::ArrowError;
use arrow_select::concat::concat_batches;

use super::diff::keys_only;
use super::format::StoredRun;
use super::layers::{Layer, newest_rows, to_arrow, to_error};
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{SortedBatches, Spill};
use crate::parquet::Cancel;
use crate::run::{KeyRange, KeySelection, RunEnd, RunReader};
use crate::store::Store;

/// The most keys that are looked up at once.
const CHUNK_ROWS: usize = 1 << 16;
/// How many chunks are under way at a time.
const CHUNKS_AHEAD: usize = 2;

/// Which rows are read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Keys<'a> {
    All,
    /// Those whose first column is in one of these ranges, which are disjoint and in the order of the table.
    In(&'a [KeyRange]),
    /// Those of these keys, the first columns of the order, as a [`super::diff::KeyWriter`] set them aside.
    Of(&'a Spill),
}

/// The stored runs of a table, newest first.
#[derive(Debug, Clone)]
pub(super) struct StoredTable {
    pub(super) store: Store,
    /// The folder of the pipeline.
    pub(super) folder: String,
    pub(super) shape: TableShape,
    pub(super) runs: Vec<StoredRun>,
    /// About how many bytes of each run are in memory at a time.
    pub(super) memory_bytes: usize,
    /// Ends the reading.
    pub(super) cancel: Cancel,
}

impl StoredTable {
    /// The newest rows, with the first `columns` columns, and with those of `newer` layers, newest first, before its own.
    pub(super) fn read_under(
        &self,
        newer: impl IntoIterator<Item = Layer>,
        keys: Keys<'_>,
        columns: usize,
    ) -> Result<SortedBatches> {
        let mut layers: Vec<Layer> = newer.into_iter().collect();
        layers.extend(self.layers(&self.runs, keys, columns)?);
        self.newest_of(layers, columns, RunEnd::First)
    }

    /// The newest rows of layers, newest first, which have the first `columns` columns and come from one end.
    pub(super) fn newest_of(
        &self,
        layers: Vec<Layer>,
        columns: usize,
        from: RunEnd,
    ) -> Result<SortedBatches> {
        let first_columns: Vec<usize> = (0..columns).collect();
        let schema = self.shape.schema.project(&first_columns);
        let schema = Arc::new(schema.map_err(to_error)?);
        let mut by = self.shape.sort_columns(self.shape.wins_by);
        if from == RunEnd::Last {
            for column in &mut by {
                column.options.descending = !column.options.descending;
                column.options.nulls_first = !column.options.nulls_first;
            }
        }
        newest_rows(layers, &schema, &by, false)
    }

    /// As [`Self::read_under`], of the stored runs alone.
    pub(super) fn read(&self, keys: Keys<'_>, columns: usize) -> Result<SortedBatches> {
        self.read_under(None, keys, columns)
    }

    /// Some rows of a run that is not one of the table, but has its columns; the last one is `op` if it has it.
    pub(super) fn read_run(&self, run: &StoredRun, keys: Keys<'_>) -> Result<SortedBatches> {
        self.lookup(run, keys, self.shape.schema.fields().len())
    }

    /// Looks up keys in each run. All requests are sent before the rows are asked for.
    pub(super) fn look_up_runs(&self, keys: &Spill) -> Result<Vec<SortedBatches>> {
        let columns = self.shape.schema.fields().len();
        let runs = self.runs.iter();
        runs.map(|run| self.lookup(run, Keys::Of(keys), columns))
            .collect()
    }

    /// The first runs and `newer` rows before them, as one run: deletes are kept unless these are all runs.
    pub(super) fn merge_newest(
        &self,
        newer: Option<Layer>,
        runs: usize,
    ) -> Result<(SortedBatches, bool)> {
        let keeps_deletes = runs < self.runs.len();
        let mut layers: Vec<Layer> = newer.into_iter().collect();
        layers.extend(self.layers(
            &self.runs[..runs],
            Keys::All,
            self.shape.schema.fields().len(),
        )?);
        let by = self.shape.sort_columns(self.shape.wins_by);
        let has_deletes = keeps_deletes && layers.iter().any(|layer| layer.has_deletes);
        let rows = newest_rows(layers, &self.shape.schema, &by, has_deletes)?;
        Ok((rows, has_deletes))
    }

    fn layers(&self, runs: &[StoredRun], keys: Keys<'_>, columns: usize) -> Result<Vec<Layer>> {
        let layers = runs.iter().map(|run| {
            Ok(Layer {
                batches: cancellable(self.lookup(run, keys, columns)?, &self.cancel),
                has_deletes: run.has_deletes,
            })
        });
        layers.collect()
    }

    /// Opens a run for the first `columns` columns, which it gives the positions of.
    pub(super) fn reader(
        &self,
        run: &StoredRun,
        columns: usize,
    ) -> Result<(RunReader, Vec<usize>)> {
        let (schema, op) = if run.has_deletes {
            (
                self.shape.schema_with_op(),
                Some(self.shape.schema.fields().len()),
            )
        } else {
            (Arc::clone(&self.shape.schema), None)
        };
        let reader = RunReader::new(
            &self.store,
            &self.folder,
            &schema,
            &self.shape.order,
            run.files.clone(),
        )?;
        Ok((reader, (0..columns).chain(op).collect()))
    }

    fn lookup(&self, run: &StoredRun, keys: Keys<'_>, columns: usize) -> Result<SortedBatches> {
        let (reader, columns) = self.reader(run, columns)?;
        let selected = |selection: &KeySelection| -> Result<SortedBatches> {
            let stream = reader.read(selection, &columns, self.memory_bytes)?;
            Ok(Box::new(stream.into_reader()))
        };
        match keys {
            Keys::All => selected(&KeySelection::All),
            Keys::In(ranges) => selected(&KeySelection::Ranges(ranges.to_vec())),
            Keys::Of(spill) => {
                let mut lookup = Lookup {
                    reader,
                    columns,
                    memory_bytes: self.memory_bytes / CHUNKS_AHEAD,
                    keys: keys_only(spill)?,
                    ahead: VecDeque::new(),
                };
                lookup.read_ahead()?;
                Ok(Box::new(lookup))
            }
        }
    }
}

/// The batches, until the work is cancelled.
pub(super) fn cancellable(batches: SortedBatches, cancel: &Cancel) -> SortedBatches {
    let cancel = cancel.clone();
    Box::new(batches.map(move |batch| {
        cancel.check().map_err(to_arrow)?;
        batch
    }))
}

/// The rows of a run with some keys.
struct Lookup {
    reader: RunReader,
    columns: Vec<usize>,
    memory_bytes: usize,
    keys: SortedBatches,
    ahead: VecDeque<Box<dyn RecordBatchReader + Send>>,
}

impl Lookup {
    fn read_ahead(&mut self) -> Result<()> {
        while self.ahead.len() < CHUNKS_AHEAD {
            let Some(keys) = self.next_keys().map_err(to_error)? else {
                break;
            };
            let selection = KeySelection::Keys(keys);
            let stream = self
                .reader
                .read(&selection, &self.columns, self.memory_bytes)?;
            self.ahead.push_back(Box::new(stream.into_reader()));
        }
        Ok(())
    }

    fn next_keys(&mut self) -> Result<Option<Vec<ArrayRef>>, ArrowError> {
        let (mut batches, mut rows) = (Vec::new(), 0);
        while rows < CHUNK_ROWS
            && let Some(batch) = self.keys.next()
        {
            let batch = batch?;
            rows += batch.num_rows();
            batches.push(batch);
        }
        let Some(first) = batches.first() else {
            return Ok(None);
        };
        Ok(Some(
            concat_batches(&first.schema(), &batches)?
                .columns()
                .to_vec(),
        ))
    }
}

impl Iterator for Lookup {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ahead.front_mut()?.next() {
                return Some(batch);
            }
            self.ahead.pop_front();
            if let Err(e) = self.read_ahead() {
                return Some(Err(to_arrow(e)));
            }
        }
    }
}
