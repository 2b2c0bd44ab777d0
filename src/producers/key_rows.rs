//! Keys that have many rows, of which an update may need only the first ones.
//!
//! Keys with few rows are looked up together. The rows of one that has many are read piece by piece, until enough are
//! there: whether a key has any row costs a page, however many it has.

use arrow_array::ArrayRef;
use arrow_schema::ArrowError;
use std::sync::Arc;

use super::diff::{Delta, KeyWriter, keys_only};
use super::layers::{Layer, newest_rows, to_arrow, to_error};
use super::lookup::{StoredTable, cancellable};
use crate::error::Result;
use crate::files::{SortedBatches, Spill};
use crate::run::KeySelection;

/// A key that can be in more blocks of a table has many rows: to wait for its first ones costs less than to read all.
const MAX_BLOCKS: usize = 32;

/// Keys, in the order of a table.
pub(super) struct SplitKeys {
    /// Those with few rows.
    pub(super) few: Spill,
    /// Those with many.
    pub(super) many: Spill,
}

impl StoredTable {
    /// Tells keys with few stored rows from those with many. They are the first column of the order.
    pub(super) fn split_keys(&self, keys: &Spill, memory_bytes: usize) -> Result<SplitKeys> {
        let split = || -> Result<SplitKeys, ArrowError> {
            let mut few = KeyWriter::new(&self.shape, 1, memory_bytes);
            let mut many = KeyWriter::new(&self.shape, 1, memory_bytes);
            for batch in keys_only(keys).map_err(to_arrow)? {
                let batch = Arc::new(batch?);
                let counts = self.count_blocks(batch.column(0)).map_err(to_arrow)?;
                for (row, blocks) in counts.into_iter().enumerate() {
                    let writer = if blocks > MAX_BLOCKS {
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

    /// The number of blocks of all runs that each key can be in.
    fn count_blocks(&self, keys: &ArrayRef) -> Result<Vec<usize>> {
        let mut sums = vec![0; keys.len()];
        for run in &self.runs {
            self.cancel.check()?;
            // A block has a row at least.
            if run.files.rows() <= MAX_BLOCKS as u64 {
                continue;
            }
            let (reader, _) = self.reader(run, 1)?;
            let counted = reader.count_blocks(std::slice::from_ref(keys));
            let counts = tokio::runtime::Handle::current().block_on(counted)?;
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        Ok(sums)
    }

    /// The newest rows of one key, with the first `columns` columns and with those of `newer` before the stored ones. They
    /// are read as far as they are asked for.
    pub(super) fn read_key(
        &self,
        newer: Option<&Delta>,
        key: &ArrayRef,
        columns: usize,
    ) -> Result<SortedBatches> {
        let selection = KeySelection::Keys(vec![Arc::clone(key)]);
        let mut layers: Vec<Layer> = Vec::new();
        layers.extend(newer.map(|newer| newer.layer(columns)).transpose()?);
        for run in &self.runs {
            let (reader, positions) = self.reader(run, columns)?;
            let stream = reader.read_on_demand(&selection, &positions, self.memory_bytes)?;
            layers.push(Layer {
                batches: cancellable(Box::new(stream.into_reader()), &self.cancel),
                has_deletes: run.has_deletes,
            });
        }
        let kept: Vec<usize> = (0..columns).collect();
        let schema = Arc::new(self.shape.schema.project(&kept).map_err(to_error)?);
        let by = self.shape.sort_columns(self.shape.wins_by);
        newest_rows(layers, &schema, &by, false)
    }
}
