//! How many rows and keys of each source and stage a preview changes.
//!
//! Compared are the rows of the run that the preview wrote and those that its pairs have in the version before: a pair that
//! did not change may be in the run and counts nothing, one that changed is there. All is streamed; the pairs are set aside
//! in temporary files.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_schema::ArrowError;
use futures::{StreamExt, TryStreamExt, stream};

use super::Pipeline;
use super::cursor::{Cursor, RowsEqual};
use super::diff::distinct;
use super::format::{PipelineManifest, StoredRun};
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable};
use super::read::{StoredNode, TableName, preview_expired_or};
use super::rebuild::is_widened;
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{SortedBatches, run_blocking};
use crate::parquet::Cancel;

/// How many sources and stages are counted at once.
const CONCURRENT_NODES: usize = 4;

/// How many rows and keys of a source or stage an update changes. The rows of a pair of target key and source key (of a
/// source: those of a key) are compared one by one, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangeCounts {
    /// The name.
    pub name: String,
    /// The keys that had no row and have some.
    pub keys_added: u64,
    /// The keys that have rows as before, not all of them the same.
    pub keys_updated: u64,
    /// The keys that have no row any more.
    pub keys_deleted: u64,
    /// The rows that came.
    pub rows_added: u64,
    /// The rows that have another value.
    pub rows_updated: u64,
    /// The rows that went.
    pub rows_deleted: u64,
}

/// The version that a preview shows, and the one before it.
#[derive(Debug, Clone)]
pub struct PreviewedVersions {
    pub(super) pipeline: Pipeline,
    pub(super) before: Arc<PipelineManifest>,
    pub(super) after: Arc<PipelineManifest>,
}

impl PreviewedVersions {
    /// Counts what differs, for each source and stage. A stage whose old tables could not hold the new rows has lost all
    /// rows that it had, and all that it has are new. Fails with
    /// [`ErrorKind::VersionExpired`](crate::ErrorKind::VersionExpired) if a vacuum removed old rows.
    pub async fn count_changes(self, memory_bytes: usize) -> Result<Vec<ChangeCounts>> {
        let cancel = Cancel::default();
        let _stop_threads = cancel.guard();
        let memory_bytes = memory_bytes / CONCURRENT_NODES;
        let counted = self.after.nodes.iter().map(|node| {
            let (versions, name, cancel) = (self.clone(), node.name.clone(), cancel.clone());
            run_blocking(move || {
                let counts = versions.count_node(&name, memory_bytes, &cancel);
                counts.map_err(|e| e.context(format!("changes of {name:?}")))
            })
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let jobs: Vec<_> = counted.collect();
        let results = stream::iter(jobs).buffered(CONCURRENT_NODES);
        match results.try_collect().await {
            Ok(counts) => Ok(counts),
            Err(e) => Err(preview_expired_or(&self.pipeline, self.before.version, e).await),
        }
    }

    fn count_node(&self, name: &str, memory_bytes: usize, cancel: &Cancel) -> Result<ChangeCounts> {
        let mut counts = ChangeCounts {
            name: name.to_owned(),
            ..ChangeCounts::default()
        };
        let table = |manifest: &PipelineManifest| -> Result<(StoredNode, StoredTable)> {
            let mut node = StoredNode::find(&self.pipeline, manifest, name, memory_bytes)?;
            node.cancel = cancel.clone();
            let table = node.open(TableName::Content)?.0;
            Ok((node, table))
        };
        let (node, after) = table(&self.after)?;
        let (has_same_keys, before) = if self.before.node(name).is_some() {
            let (old, before) = table(&self.before)?;
            let types = [&old, &node].map(|stored| stored.columns.key.data_type());
            (types[0] == types[1], before)
        } else {
            let before = StoredTable {
                runs: Vec::new(),
                ..after.clone()
            };
            (true, before)
        };
        let ids = |table: &StoredTable| -> Vec<String> {
            table.runs.iter().map(|run| run.id.clone()).collect()
        };
        if ids(&before) == ids(&after) {
            return Ok(counts);
        }
        let is_same_table = has_same_keys && is_held_by(&before.shape, &after.shape);
        if is_same_table {
            let mut comparison = Comparison::new(&after.shape, counts);
            comparison.compare(&before, &after, memory_bytes / 64)?;
            counts = comparison.finish();
        } else {
            counts.rows_added = count_rows(&after)?;
            counts.rows_deleted = count_rows(&before)?;
        }
        if !node.entry.feeders.is_empty() {
            counts.count_keys(&node, is_same_table)?;
        }
        if !has_same_keys {
            // The changed keys of the version have the new type.
            counts.keys_deleted = count_keys_of(&before)?;
        }
        Ok(counts)
    }
}

impl ChangeCounts {
    /// Counts the keys of a stage that came and went. Those with other rows have been counted of one with the same table.
    fn count_keys(&mut self, node: &StoredNode, is_same_table: bool) -> Result<()> {
        let changed = self.keys_updated;
        let mut by_type = [0_u64; 3];
        for batch in node.update()? {
            let batch = batch.map_err(to_error)?;
            let types = batch.column(1).as_primitive::<Int32Type>();
            for kind in types.values() {
                let at = usize::try_from(*kind).ok();
                if let Some(count) = at.and_then(|at| by_type.get_mut(at)) {
                    *count += 1;
                }
            }
        }
        // In the order of their numbers.
        let [added, updated, deleted] = by_type;
        self.keys_added = added;
        self.keys_deleted = deleted;
        self.keys_updated = if is_same_table {
            changed.saturating_sub(added + deleted)
        } else {
            updated
        };
        Ok(())
    }
}

/// Whether a table can hold the rows of another.
fn is_held_by(rows: &TableShape, table: &TableShape) -> bool {
    let (rows_fields, fields) = (rows.schema.fields(), table.schema.fields());
    let mut pairs = rows_fields.iter().zip(fields);
    rows.order == table.order
        && rows_fields.len() == fields.len()
        && pairs.all(|(stored, field)| is_widened(stored, field))
}

fn count_rows(table: &StoredTable) -> Result<u64> {
    let mut rows = 0;
    for batch in table.read(Keys::All, table.shape.wins_by)? {
        rows += batch.map_err(to_error)?.num_rows() as u64;
    }
    Ok(rows)
}

fn count_keys_of(table: &StoredTable) -> Result<u64> {
    let rows = table.read(Keys::All, table.shape.wins_by)?;
    Ok(distinct(rows, &table.shape, 1, 0, table.memory_bytes)?.rows())
}

/// Compares the rows of a table before and after an update.
struct Comparison {
    shape: TableShape,
    counts: ChangeCounts,
    /// The keys whose rows differ.
    changed_keys: u64,
    /// The last one of them, encoded.
    last_key: Option<Vec<u8>>,
}

/// How many rows of a pair are the same, have another value, are gone or are new.
#[derive(Default)]
struct PairRows {
    same: u64,
    updated: u64,
    deleted: u64,
    added: u64,
}

impl Comparison {
    fn new(shape: &TableShape, counts: ChangeCounts) -> Self {
        Self {
            shape: shape.clone(),
            counts,
            changed_keys: 0,
            last_key: None,
        }
    }

    fn compare(
        &mut self,
        before: &StoredTable,
        after: &StoredTable,
        memory_bytes: usize,
    ) -> Result<()> {
        let is_shared = |run: &StoredRun| before.runs.iter().any(|old| old.id == run.id);
        let runs = after.runs.iter().cloned();
        let (shared, written): (Vec<StoredRun>, Vec<StoredRun>) = runs.partition(is_shared);
        let of_runs = |runs: &[StoredRun]| StoredTable {
            runs: runs.to_vec(),
            ..after.clone()
        };
        let columns = self.shape.schema.fields().len();
        let (old, new) = (of_runs(&before.runs), of_runs(&written));
        let old_rows = if shared.is_empty() {
            old.read(Keys::All, columns)?
        } else {
            let pairs = new.distinct_keys(self.shape.wins_by, memory_bytes)?;
            old.read(Keys::Of(&pairs), columns)?
        };
        let new_rows = new.read(Keys::All, columns)?;
        self.walk(old_rows, new_rows).map_err(to_error)
    }

    fn walk(&mut self, old: SortedBatches, new: SortedBatches) -> Result<(), ArrowError> {
        let shape = self.shape.clone();
        let order = shape.keys(shape.wins_by).map_err(to_arrow)?;
        let keys = shape.keys(1).map_err(to_arrow)?;
        let mut equal = RowsEqual::new(&shape.schema, shape.wins_by..shape.visible);
        let (mut old, mut new) = (Cursor::new(old, &order)?, Cursor::new(new, &order)?);
        let mut pair = Vec::new();
        loop {
            let next = match (old.key(), new.key()) {
                (Some(a), Some(b)) => a.min(b),
                (Some(key), None) | (None, Some(key)) => key,
                (None, None) => return Ok(()),
            };
            pair.clear();
            pair.extend_from_slice(next);
            let is_old = old.is_at(&pair);
            let first = if is_old { old.row() } else { new.row() };
            let key = first.map(|(batch, row)| batch.column(0).slice(row, 1));
            let rows = PairRows::read(&pair, [&mut old, &mut new], &mut equal)?;
            if rows.updated + rows.deleted + rows.added == 0 {
                continue;
            }
            self.add(&rows);
            let last_key = self.last_key.as_deref();
            if last_key.is_none_or(|last| !pair.starts_with(last))
                && let Some(key) = key
            {
                let encoded = keys.convert_columns(&[key])?;
                self.last_key = Some(encoded.row(0).data().to_vec());
                self.changed_keys += 1;
            }
        }
    }

    fn add(&mut self, rows: &PairRows) {
        self.counts.rows_added += rows.added;
        self.counts.rows_updated += rows.updated;
        self.counts.rows_deleted += rows.deleted;
        // Of a source, a pair is a key.
        let is_key = self.shape.wins_by == 1;
        let is_in_both = rows.same + rows.updated > 0;
        if is_key && !is_in_both {
            self.counts.keys_added += u64::from(rows.deleted == 0);
            self.counts.keys_deleted += u64::from(rows.added == 0);
        }
    }

    /// The counts. All keys whose rows differ and that are not known to have come or gone count as updated.
    fn finish(mut self) -> ChangeCounts {
        let known = self.counts.keys_added + self.counts.keys_deleted;
        self.counts.keys_updated = self.changed_keys - known;
        self.counts
    }
}

impl PairRows {
    /// Reads the old and the new rows of a pair.
    fn read(
        pair: &[u8],
        [old, new]: [&mut Cursor; 2],
        equal: &mut RowsEqual,
    ) -> Result<Self, ArrowError> {
        let mut rows = Self::default();
        while let (true, true, Some(a), Some(b)) =
            (old.is_at(pair), new.is_at(pair), old.row(), new.row())
        {
            if equal.equal([a, b])? {
                rows.same += 1;
            } else {
                rows.updated += 1;
            }
            old.advance()?;
            new.advance()?;
        }
        while old.is_at(pair) {
            rows.deleted += 1;
            old.advance()?;
        }
        while new.is_at(pair) {
            rows.added += 1;
            new.advance()?;
        }
        Ok(rows)
    }
}
