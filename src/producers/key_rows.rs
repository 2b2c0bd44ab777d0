//! Keys that have many rows, of which an update may need only the first ones.
//!
//! Keys with few rows are looked up together. The rows of one that has many are read piece by piece, until enough are
//! there: whether a key has any row costs a page, however many it has.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, SchemaRef};
use futures::future::try_join_all;

use super::cursor::Cursor;
use super::diff::{Delta, KeyWriter, distinct, keys_only};
use super::layers::{Layer, merge_streams, to_arrow, to_error};
use super::lookup::{Keys, StoredTable, cancellable};
use crate::error::Result;
use crate::files::{SortKeys, SortedBatches, Spill, SpillWriter};
use crate::run::{KeySelection, RunEnd, RunReader};

/// A key that can be in more blocks of a table has many rows: to wait for its first ones costs less than to read all.
const MAX_BLOCKS: usize = 32;
/// A key that can be in more blocks than this for each run is not looked up as a whole.
const MAX_BLOCKS_OF_RUN: usize = 2;

/// Keys, in the order of a table.
pub(super) struct SplitKeys {
    /// Those with few rows.
    pub(super) few: Spill,
    /// Those with many.
    pub(super) many: Spill,
}

impl StoredTable {
    /// Tells keys with few stored rows from those with many. They are the first column of the order. Keys that are alike
    /// where key indexes cut them are looked up together, since each alone would read the rows of all.
    pub(super) fn split_keys(&self, keys: &Spill, memory_bytes: usize) -> Result<SplitKeys> {
        if keys.rows() == 1 {
            // To read it as one with many rows costs no more than to ask.
            let none = KeyWriter::new(&self.shape, 1, memory_bytes).finish();
            return Ok(SplitKeys {
                few: none.map_err(to_error)?,
                many: keys.clone(),
            });
        }
        self.split_by_blocks(keys, MAX_BLOCKS, memory_bytes)
    }

    /// As [`Self::split_keys`]: keys that can be in more than [`MAX_BLOCKS_OF_RUN`] blocks for each run have many rows.
    pub(super) fn split_by_runs(&self, keys: &Spill, memory_bytes: usize) -> Result<SplitKeys> {
        self.split_by_blocks(keys, MAX_BLOCKS_OF_RUN * self.runs.len(), memory_bytes)
    }

    /// As [`Self::split_keys`]: keys that can be in more than `max_blocks` blocks have many rows.
    fn split_by_blocks(
        &self,
        keys: &Spill,
        max_blocks: usize,
        memory_bytes: usize,
    ) -> Result<SplitKeys> {
        let split = || -> Result<SplitKeys, ArrowError> {
            let mut few = KeyWriter::new(&self.shape, 1, memory_bytes);
            let mut many = KeyWriter::new(&self.shape, 1, memory_bytes);
            for batch in keys_only(keys).map_err(to_arrow)? {
                let batch = Arc::new(batch?);
                let counts = self.count_blocks(batch.column(0)).map_err(to_arrow)?;
                for (row, blocks) in counts.into_iter().enumerate() {
                    let writer = if blocks > max_blocks {
                        &mut many
                    } else {
                        &mut few
                    };
                    writer.add((&batch, row), 0)?;
                }
            }
            Ok(SplitKeys {
                few: few.finish()?,
                many: many.finish()?,
            })
        };
        split().map_err(to_error)
    }

    /// The first `columns` columns of the rows in all runs, each once, in their order, those of deletes among them.
    pub(super) fn distinct_keys(&self, columns: usize, memory_bytes: usize) -> Result<Spill> {
        let streams = self.runs.iter().map(|run| -> Result<SortedBatches> {
            let rows = cancellable(self.read_run(run, Keys::All)?, &self.cancel);
            let positions: Vec<usize> = (0..columns).collect();
            Ok(Box::new(rows.map(move |batch| batch?.project(&positions))))
        });
        let shape = self.shape.first_columns(columns);
        let order = shape.keys(columns)?;
        let merged = merge_streams(streams, &shape.schema, &order, memory_bytes)?;
        distinct(merged, &shape, columns, 0, memory_bytes)
    }

    /// The number of blocks of all runs that each key can be in.
    fn count_blocks(&self, keys: &ArrayRef) -> Result<Vec<usize>> {
        self.cancel.check()?;
        // A key has few rows in a run of few rows, which has no more blocks than rows.
        let runs = self.runs.iter();
        let runs = runs.filter(|run| run.files.rows() > MAX_BLOCKS as u64);
        let readers = runs.map(|run| Ok(self.reader(run, 1)?.0));
        let readers = readers.collect::<Result<Vec<RunReader>>>()?;
        let counted = readers
            .iter()
            .map(|reader| reader.count_blocks(std::slice::from_ref(keys)));
        let counted = tokio::runtime::Handle::current().block_on(try_join_all(counted))?;
        let mut sums = vec![0; keys.len()];
        for counts in counted {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        Ok(sums)
    }

    /// The newest rows of one key from an end on, with the first `columns` columns, and from the start with those of
    /// `newer` before the stored ones. They are read as far as they are asked for.
    pub(super) fn read_key(
        &self,
        newer: Option<&Delta>,
        key: &ArrayRef,
        columns: usize,
        from: RunEnd,
    ) -> Result<SortedBatches> {
        let selection = KeySelection::Keys(vec![Arc::clone(key)]);
        let mut layers: Vec<Layer> = Vec::new();
        layers.extend(newer.map(|newer| newer.layer(columns)).transpose()?);
        for run in &self.runs {
            let (reader, positions) = self.reader(run, columns)?;
            let stream = reader.read_on_demand(from, &selection, &positions, self.memory_bytes)?;
            layers.push(Layer {
                batches: cancellable(Box::new(stream.into_reader()), &self.cancel),
                has_deletes: run.has_deletes,
            });
        }
        self.newest_of(layers, columns, from)
    }
}

/// The rows of a delta key by key, in the order of the keys.
pub(super) struct DeltaByKey {
    rows: Cursor,
    schema: SchemaRef,
    has_deletes: bool,
    memory_bytes: usize,
}

impl DeltaByKey {
    /// `order` is that of the key.
    pub(super) fn new(delta: &Delta, order: &Arc<SortKeys>, memory_bytes: usize) -> Result<Self> {
        let rows = delta.rows.read().map_err(to_error)?;
        Ok(Self {
            rows: Cursor::new(rows, order).map_err(to_error)?,
            schema: Arc::clone(delta.rows.schema()),
            has_deletes: delta.has_deletes,
            memory_bytes,
        })
    }

    /// The rows of a key, which comes after those of earlier calls.
    pub(super) fn take(&mut self, key: &[u8]) -> Result<Delta> {
        let mut take = || -> Result<Spill, ArrowError> {
            let mut spill = SpillWriter::new(&self.schema, self.memory_bytes);
            self.rows.seek(key)?;
            while let (true, Some((batch, rows))) = (self.rows.is_at(key), self.rows.group()) {
                spill.push(batch.slice(rows.start, rows.len()))?;
                self.rows.advance_to(rows.end)?;
            }
            spill.finish()
        };
        Ok(Delta {
            rows: take().map_err(to_error)?,
            has_deletes: self.has_deletes,
        })
    }
}

/// The first rows of keys with many, key by key.
pub(super) struct FirstRows {
    table: StoredTable,
    /// What an update adds.
    newer: Option<DeltaByKey>,
    order: Arc<SortKeys>,
    /// How many rows of a key are enough.
    limit: u64,
    keys: Cursor,
    rows: Option<SortedBatches>,
    left: u64,
}

impl FirstRows {
    /// Of keys that a [`KeyWriter`] set aside.
    pub(super) fn new(
        table: &StoredTable,
        newer: Option<&Delta>,
        keys: &Spill,
        limit: u64,
        memory_bytes: usize,
    ) -> Result<Self> {
        let order = table.shape.keys(1)?;
        let newer = newer.map(|newer| DeltaByKey::new(newer, &order, memory_bytes));
        Ok(Self {
            newer: newer.transpose()?,
            keys: Cursor::new(keys_only(keys)?, &order).map_err(to_error)?,
            table: table.clone(),
            order,
            limit,
            rows: None,
            left: 0,
        })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            if self.left > 0
                && let Some(rows) = &mut self.rows
                && let Some(batch) = rows.next().transpose()?
            {
                let rows = usize::try_from(self.left).unwrap_or(usize::MAX);
                let batch = batch.slice(0, batch.num_rows().min(rows));
                self.left -= batch.num_rows() as u64;
                return Ok(Some(batch));
            }
            let Some((batch, row)) = self.keys.row() else {
                return Ok(None);
            };
            let key = batch.column(0).slice(row, 1);
            self.keys.advance()?;
            let encoded = self.order.convert_columns(std::slice::from_ref(&key))?;
            let newer = self
                .newer
                .as_mut()
                .map(|newer| newer.take(encoded.row(0).data()));
            let newer = newer.transpose().map_err(to_arrow)?;
            let columns = self.table.shape.visible;
            let rows = self
                .table
                .read_key(newer.as_ref(), &key, columns, RunEnd::First);
            self.rows = Some(rows.map_err(to_arrow)?);
            self.left = self.limit;
        }
    }
}

impl Iterator for FirstRows {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}
