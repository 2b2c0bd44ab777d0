//! The least and the greatest value of keys with many rows, where the feeder has the values in their order: read from the
//! ends of a key, not from all of its rows.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::feeders::FeederTable;
use super::key_rows::DeltaByKey;
use super::layers::to_error;
use super::lookup::StoredTable;
use super::operators::{Arguments, Groups, UnresolvedEnd};
use crate::error::Result;
use crate::files::SortKeys;
use crate::run::RunEnd;

/// If an update changes more rows or, about, bytes of a key, all of its rows are read.
const MAX_CHANGED_ROWS: u64 = 1 << 16;
const MAX_CHANGED_BYTES: usize = 16 << 20;

/// Reads the ends of keys, in their order.
pub(super) struct KeyEnds<'a> {
    /// The rows before the update.
    table: &'a StoredTable,
    /// What the update changes.
    delta: Option<DeltaByKey>,
    order: Arc<SortKeys>,
    pairs: Arc<SortKeys>,
}

impl<'a> KeyEnds<'a> {
    pub(super) fn new(feeder: &'a FeederTable<'_>, memory_bytes: usize) -> Result<Self> {
        let table = &feeder.table;
        let order = table.shape.keys(1)?;
        let delta = feeder.delta;
        let delta = delta.map(|delta| DeltaByKey::new(delta, &order, memory_bytes));
        Ok(Self {
            table,
            delta: delta.transpose()?,
            order,
            pairs: table.shape.keys(table.shape.wins_by)?,
        })
    }

    /// Resolves the group of the key in the first column of a row. False if it takes all of its rows.
    pub(super) fn resolve(
        &mut self,
        (batch, row): (&Arc<RecordBatch>, usize),
        groups: &mut Groups<'_>,
    ) -> Result<bool> {
        let key = batch.column(0).slice(row, 1);
        let Some(ends) = groups.unresolved_ends() else {
            return Ok(false);
        };
        let encoded = self.order.convert_columns(std::slice::from_ref(&key));
        let encoded = encoded.map_err(to_error)?;
        let Some(changed) = self.changed_pairs(encoded.row(0).data())? else {
            return Ok(false);
        };
        for end in ends {
            let from = if end.is_first {
                RunEnd::First
            } else {
                RunEnd::Last
            };
            let columns = self.table.shape.visible;
            let mut value: Option<(Arguments, usize)> = None;
            for rows in self.table.read_key(None, &key, columns, from)? {
                value = self.first_value(&rows.map_err(to_error)?, end, &changed, groups)?;
                if value.is_some() {
                    break;
                }
            }
            groups.resolve(end, value.as_ref().map(|(values, row)| (values, *row)));
        }
        Ok(true)
    }

    /// The pairs of a key that the update changes; None if these are many.
    fn changed_pairs(&mut self, key: &[u8]) -> Result<Option<HashSet<Box<[u8]>>>> {
        let mut changed = HashSet::new();
        let Some(delta) = &mut self.delta else {
            return Ok(Some(changed));
        };
        let delta = delta.take(key)?;
        if delta.rows.rows() > MAX_CHANGED_ROWS || delta.rows.bytes() > MAX_CHANGED_BYTES {
            return Ok(None);
        }
        for batch in delta.rows.read().map_err(to_error)? {
            let pairs = self.pairs.convert_batch(&batch.map_err(to_error)?);
            changed.extend(
                pairs
                    .map_err(to_error)?
                    .iter()
                    .map(|pair| pair.data().into()),
            );
        }
        Ok(Some(changed))
    }

    /// The first of some rows that did not change and has a value.
    fn first_value(
        &self,
        rows: &RecordBatch,
        end: UnresolvedEnd,
        changed: &HashSet<Box<[u8]>>,
        groups: &Groups<'_>,
    ) -> Result<Option<(Arguments, usize)>> {
        let values = groups.arguments(rows)?;
        let pairs = self.pairs.convert_batch(rows).map_err(to_error)?;
        let stay = (0..rows.num_rows()).filter(|row| !changed.contains(pairs.row(*row).data()));
        let row = values.first_valid(end, stay);
        Ok(row.map(|row| (values, row)))
    }
}
