//! Deletes rows by writing tombstones ([`super::tombstone`]); no data file is rewritten.
//!
//! A filter that is a closed range of a key of one column needs no data: a tombstone line for each file
//! holds the range ([`plan_by_key`]). For any other filter its columns are read from the row groups that may
//! hold matching rows, and the lines hold row groups and row numbers ([`RowFinder`]). A file of which
//! every row is deleted leaves the table without a tombstone.
//!
//! Rows that concurrent commits append are not deleted. If a concurrent commit rewrites a file of the plan,
//! or replaces rows of it, the delete is planned again on the newest snapshot, until the timeout; it then reads
//! only files that it does not know ([`super::findings`]). The filter is about the columns that the caller has read,
//! whatever their names are by then ([`super::opened_columns`]): if one was dropped, the delete fails with
//! [`crate::ErrorKind::CommitConflict`]. Other errors are those of [`crate::versions::commit`] and of reading.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::DataType;
use object_store::PutMode;
use serde_json::Value;

use super::actions::Delete;
use super::file_matches::DeletePlan;
use super::findings::{Bound, RowFinder};
use super::format::{DataFile, TableManifest, Tombstones};
use super::object_cache::ObjectCache;
use super::opened_columns::OpenedColumns;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{self, TombstoneLine, TombstoneScope};
use super::{Committed, Snapshot, Staged, Table, names};
use crate::error::Result;
use crate::files::TableColumns;
use crate::files::expr::Predicate;
use crate::files::expr::{ClosedRange, Filter};
use crate::sync::progress;
use crate::versions::Operation;
use crate::versions::commit::{RunResult, run};

/// The result of a delete.
#[derive(Debug)]
pub struct DeleteResult {
    /// The commit; None if no row matched.
    pub committed: Option<Committed>,
    /// The snapshot after the delete.
    pub snapshot: Snapshot,
    /// The number of deleted rows; None if they were deleted by key and not counted.
    pub rows: Option<u64>,
    /// The size of the tombstone file in bytes.
    pub bytes: u64,
}

/// Deletes the rows that satisfy `filter`, a predicate over the columns of `opened`, but none that a concurrent commit
/// appends.
pub async fn delete(
    table: &Table,
    filter: &Predicate,
    opened: OpenedColumns,
    timeout: Duration,
) -> Result<DeleteResult> {
    let mut operation = DeleteWhere {
        table,
        predicate: filter,
        filter: Bound::none(),
        opened,
        finder: RowFinder::default(),
        cache: Arc::default(),
        tombstones: StagedTombstones::default(),
    };
    let deleted = match run(table, &mut operation, Staged::new(table), timeout).await? {
        RunResult::Committed(committed, change) => DeleteResult {
            snapshot: committed.snapshot.clone(),
            committed: Some(committed),
            rows: change.rows,
            bytes: change.tombstones.map_or(0, |t| t.size_bytes),
        },
        RunResult::Replayed(Committed { snapshot, .. }) | RunResult::Unchanged(snapshot) => {
            DeleteResult {
                committed: None,
                snapshot,
                rows: Some(0),
                bytes: 0,
            }
        }
    };
    if let Some(progress) = progress::current() {
        progress.add_rows(deleted.rows.unwrap_or_default());
        progress.add_bytes(deleted.bytes);
    }
    Ok(deleted)
}

/// Whether the rows that satisfy a predicate are a range of the key, which [`delete`] deletes without reading a row.
pub fn is_key_range(
    table: &Table,
    manifest: &TableManifest,
    predicate: &Predicate,
) -> Result<bool> {
    let columns = TableColumns::from_manifest(manifest)?;
    let [id] = manifest.key.as_slice() else {
        return Ok(false);
    };
    let filter = predicate.bind(&columns, &**table.store().clock())?;
    let index = columns.ids.iter().position(|column_id| column_id == id);
    let range = index.and_then(|index| filter.to_closed_range(columns.schema.field(index).name()));
    Ok(range.is_some())
}

/// Deletes the rows that satisfy a predicate.
struct DeleteWhere<'a> {
    table: &'a Table,
    predicate: &'a Predicate,
    filter: Bound<Arc<Filter>>,
    /// The columns of the predicate.
    opened: OpenedColumns,
    finder: RowFinder,
    cache: Arc<ObjectCache>,
    tombstones: StagedTombstones,
}

impl Operation<TableManifest> for DeleteWhere<'_> {
    type Change = Delete;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<Delete>> {
        let manifest = &self.opened.rename(self.table, &base.manifest).await?;
        let plan = self.plan_rows(manifest).await?;
        if plan.is_empty() {
            return Ok(None);
        }
        let tombstones = self
            .tombstones
            .write(self.table, manifest, &plan, staged)
            .await?;
        Ok(Some(Delete {
            filter: self.predicate.to_string(),
            tombstones,
            scanned_files: plan.scanned_files,
            removed: plan.removed,
            base_tombstones: manifest.tombstone_paths(),
            rows: plan.rows,
            base_version: manifest.version,
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

impl DeleteWhere<'_> {
    async fn plan_rows(&mut self, manifest: &Arc<TableManifest>) -> Result<DeletePlan> {
        let columns = TableColumns::from_manifest(manifest)?;
        let clock = self.table.store().clock();
        let filter = self.filter.get(manifest, || {
            let filter = self.opened.bind_filter(self.predicate, manifest, &**clock);
            filter.map(Arc::new)
        })?;
        let cache = Some(Arc::clone(&self.cache));
        let bound = Some(Arc::clone(&filter));
        let manifest = Arc::clone(manifest);
        let reader = SnapshotReader::with_cache(self.table, manifest, bound, cache).await?;
        let key_plan = reader.key_id().and_then(|id| {
            let index = columns.ids.iter().position(|column_id| *column_id == id)?;
            let key = columns.schema.field(index);
            let range = filter.to_closed_range(key.name())?;
            plan_by_key(&reader, id, key.data_type(), &range)
        });
        if let Some(plan) = key_plan {
            return Ok(plan);
        }
        progress::begin_phase("match");
        self.finder.plan(&reader).await
    }
}

/// Plans the delete of a range of the key without reading a row. None if the range is open at an end
/// and a file has no bound to close it with.
fn plan_by_key(
    reader: &SnapshotReader,
    id: u32,
    data_type: &DataType,
    range: &ClosedRange,
) -> Option<DeletePlan> {
    let mut plan = DeletePlan::default();
    if matches!((as_integer(range.min.as_ref()), as_integer(range.max.as_ref())), (Some(a), Some(b)) if a > b)
    {
        return Some(plan);
    }
    for listed in &reader.files {
        let file = &listed.file;
        let is_known = file.knows_bounds(id, data_type);
        let low = file.min.get(&id).filter(|_| is_known);
        let high = file.max.get(&id).filter(|_| is_known);
        let min = range.min.as_ref().or(low)?;
        let max = range.max.as_ref().or(high)?;
        if is_within_range(file, id, min, max) {
            plan.removed.push(listed.to_file_ref());
            continue;
        }
        plan.scanned_files.push(listed.to_file_ref());
        plan.lines.push(TombstoneLine {
            file: file.path.clone(),
            deleted: TombstoneScope::Keys(min.clone(), max.clone()),
        });
    }
    Some(plan)
}

/// Whether all keys of the file certainly lie in a range of integers.
fn is_within_range(file: &DataFile, id: u32, min: &Value, max: &Value) -> bool {
    let (low, high) = (as_integer(file.min.get(&id)), as_integer(file.max.get(&id)));
    let (min, max) = (as_integer(Some(min)), as_integer(Some(max)));
    file.null_counts.get(&id) == Some(&0)
        && matches!((low, high, min, max), (Some(l), Some(h), Some(min), Some(max)) if min <= l && h <= max)
}

fn as_integer(value: Option<&Value>) -> Option<i64> {
    value.and_then(Value::as_i64)
}

/// The tombstone file of the last plan, which the next one uses again if it deletes the same rows.
#[derive(Debug, Default)]
pub(super) struct StagedTombstones {
    lines: Vec<TombstoneLine>,
    written: Option<Tombstones>,
}

impl StagedTombstones {
    /// Writes the tombstone file of a plan, unless the last plan had the same lines; None if it has none.
    pub(super) async fn write(
        &mut self,
        table: &Table,
        base: &TableManifest,
        plan: &DeletePlan,
        staged: &mut Staged,
    ) -> Result<Option<Tombstones>> {
        // A vacuum may have removed one that was written below the floor.
        let is_same = |written: &Tombstones| {
            names::base_version(&written.path).is_some_and(|version| version >= base.gc_floor)
                && self.lines == plan.lines
        };
        if let Some(written) = self.written.take_if(|written| is_same(written)) {
            return Ok(Some(self.keep(written, plan)));
        }
        if let Some(unused) = self.written.take() {
            staged.retire([&unused.path]);
        }
        if plan.lines.is_empty() {
            return Ok(None);
        }
        let written = put_tombstones(table, base.version, &plan.lines, staged).await?;
        self.lines.clone_from(&plan.lines);
        Ok(Some(self.keep(written, plan)))
    }

    /// The entry of a written file, about the files of a plan.
    fn keep(&mut self, written: Tombstones, plan: &DeletePlan) -> Tombstones {
        let mut tombstones = Tombstones {
            files: Vec::new(),
            positions: BTreeMap::new(),
            deleted_rows: plan.rows,
            ..written
        };
        for file in &plan.scanned_files {
            tombstones.add_target(file.listed_at());
        }
        self.written = Some(tombstones.clone());
        tombstones
    }
}

/// Writes a tombstone file. Its entry names no files and no number of rows yet.
pub(super) async fn put_tombstones(
    table: &Table,
    version: u64,
    lines: &[TombstoneLine],
    staged: &mut Staged,
) -> Result<Tombstones> {
    let clock = table.store().clock();
    let bytes = tombstone::encode(lines).map_err(|e| e.with_path(table.root()))?;
    let tombstones = Tombstones {
        path: names::tombstones(clock.now(), version, clock.new_id()),
        size_bytes: bytes.len() as u64,
        files: Vec::new(),
        positions: BTreeMap::new(),
        deleted_rows: None,
    };
    staged.add([tombstones.path.clone()]);
    let path = table.path(&tombstones.path);
    table.store().put(&path, bytes, PutMode::Overwrite).await?;
    Ok(tombstones)
}
