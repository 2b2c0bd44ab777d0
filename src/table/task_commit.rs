//! Commits what the tasks of a delete, an upsert or a merge have found and written as one version.
//!
//! The commit conflicts with others as that of a local change does. It is not planned again: the caller has tasks of a
//! newer version searched then, with the same staged files.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::actions::{Delete, RowDelta};
use super::change_targets::{StagedSource, find_targets};
use super::delete::StagedTombstones;
use super::file_matches::{DeletePlan, FileRows};
use super::format::{DataFile, TableManifest, Tombstones};
use super::snapshot_file::{FileRef, SnapshotFile};
use super::snapshot_reader::SnapshotReader;
use super::task_changes::{TaskChange, count_searches};
use super::write::TableWriteOptions;
use super::{Committed, Predicate, Snapshot, Staged, Table, TableColumns};
use crate::error::{Error, Result};
use crate::versions::commit::commit_onto;
use crate::versions::{
    Ancestor, Change, OnVersion, check_idempotency_key, check_required_version, find_replay,
};

/// What is changed by all tasks together.
#[derive(Debug)]
pub enum TaskOperation {
    /// A delete of the rows that match a predicate.
    Delete(Predicate),
    /// An upsert of the rows in files that were staged for a version.
    Upsert(StagedSource),
    /// A merge of rows that were staged for a version.
    Merge(StagedSource),
}

/// The result of a commit of changes by tasks.
#[derive(Debug)]
pub struct TasksCommitted {
    /// The commit; None if nothing changed.
    pub committed: Option<Committed>,
    /// The snapshot after the change.
    pub snapshot: Snapshot,
    /// The number of deleted rows, the updated ones among them.
    pub deleted_rows: u64,
    /// The size of the tombstone file in bytes.
    pub tombstone_bytes: u64,
    /// The data files that the commit added.
    pub added: Vec<DataFile>,
}

/// Commits the changes of tasks of the version `base` as one version, unless nothing changes. `searches` is how many
/// files the tasks have together, a file counted once for each part of the source; by default each file once.
///
/// Errors are [`crate::ErrorKind::CommitConflict`] as for a local change, and
/// [`crate::ErrorKind::TransactionExpired`] as for [`super::commit_staged`]. Files of the tasks are never removed.
pub async fn commit_changes(
    table: &Table,
    base: Arc<TableManifest>,
    operation: TaskOperation,
    (changes, searches): (Vec<TaskChange>, Option<usize>),
    options: &TableWriteOptions,
) -> Result<TasksCommitted> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let (newest, replay) = find_replay(table, options.idempotency_key.as_deref()).await?;
    if let Some(committed) = replay {
        return Ok(TasksCommitted::unchanged(
            committed.snapshot.clone(),
            Some(committed),
        ));
    }
    let begun = Ancestor::of(&*base);
    begun.check_descends(table, &newest.manifest).await?;
    if let TaskOperation::Upsert(source) | TaskOperation::Merge(source) = &operation {
        let staged = Ancestor::of(&source.task);
        staged.check_descends(table, &*base).await?;
    }
    let files = find_files(table, &base, &operation).await?;
    let total = Total::new(&files, changes, searches.unwrap_or(files.len()))?;
    let may_be_empty =
        matches!(operation, TaskOperation::Upsert(_)) || options.idempotency_key.is_some();
    if total.is_empty() && !may_be_empty {
        check_required_version(table, options.if_version.as_ref(), &*newest.manifest)?;
        let deletes = total.to_deletes(&base, operation.filter(), None);
        // A conflict if there may be something to change since `base`.
        let (change, _) = operation.into_change(total, deletes, options);
        change.apply(&newest.manifest)?;
        return Ok(TasksCommitted::unchanged(newest, None));
    }
    let (written, staged) = write_tombstones(table, &base, &total.plan).await?;
    let mut result = TasksCommitted::unchanged(newest.clone(), None);
    result.tombstone_bytes = written.as_ref().map_or(0, |t| t.size_bytes);
    result.deleted_rows = total.plan.rows.unwrap_or_default();
    let deletes = total.to_deletes(&base, operation.filter(), written);
    let (change, added) = operation.into_change(total, deletes, options);
    result.added = added;
    let change = OnVersion {
        change: &*change,
        version: options.if_version.as_ref(),
        ancestor: Ancestor::of(&*newest.manifest),
    };
    let outcome = commit_onto(table, &change, Some(newest.clone()), options.timeout).await;
    let is_unused = match &outcome {
        Ok(committed) => committed.replayed,
        Err(error) => error.allows_removal(),
    };
    if is_unused {
        staged.remove_all().await;
    }
    let committed = outcome?;
    if committed.replayed {
        result = TasksCommitted::unchanged(newest, None);
    }
    result.snapshot = committed.snapshot.clone();
    result.committed = Some(committed);
    Ok(result)
}

/// Writes the tombstone file of a plan; nothing stays of it after an error.
async fn write_tombstones(
    table: &Table,
    base: &TableManifest,
    plan: &DeletePlan,
) -> Result<(Option<Tombstones>, Staged)> {
    let mut staged = Staged::new(table);
    let mut tombstones = StagedTombstones::default();
    match tombstones.write(table, base, plan, &mut staged).await {
        Ok(written) => Ok((written, staged)),
        Err(error) => {
            staged.remove_all().await;
            Err(error)
        }
    }
}

impl TaskOperation {
    /// The change, and the files that it adds.
    fn into_change(
        self,
        total: Total,
        deletes: Delete,
        options: &TableWriteOptions,
    ) -> (Box<dyn Change<TableManifest>>, Vec<DataFile>) {
        let counts = [
            ("rows_updated", total.updated),
            ("rows_inserted", total.inserted),
        ];
        let base_version = deletes.base_version;
        let change = match self {
            Self::Delete(_) => return (Box::new(deletes), Vec::new()),
            Self::Upsert(source) => RowDelta {
                operation: "upsert",
                deletes,
                added: source.parts.into_iter().flatten().collect(),
                is_derived: false,
                counts: Vec::new(),
                base_version: source.task.version,
                idempotency_key: options.idempotency_key.clone(),
            },
            Self::Merge(_) => RowDelta {
                operation: "merge",
                deletes,
                added: total.added,
                is_derived: true,
                counts: counts.to_vec(),
                base_version,
                idempotency_key: options.idempotency_key.clone(),
            },
        };
        let added = change.added.clone();
        (Box::new(change), added)
    }

    /// The filter for the history.
    fn filter(&self) -> String {
        match self {
            Self::Delete(predicate) => predicate.to_string(),
            Self::Upsert(_) | Self::Merge(_) => String::new(),
        }
    }
}

impl TasksCommitted {
    fn unchanged(snapshot: Snapshot, committed: Option<Committed>) -> Self {
        Self {
            committed,
            snapshot,
            deleted_rows: 0,
            tombstone_bytes: 0,
            added: Vec::new(),
        }
    }
}

/// The files that the tasks have searched together, by path.
async fn find_files(
    table: &Table,
    base: &Arc<TableManifest>,
    operation: &TaskOperation,
) -> Result<HashMap<String, SnapshotFile>> {
    let files = match operation {
        TaskOperation::Delete(predicate) => {
            let columns = TableColumns::from_manifest(base)?;
            let filter = predicate.bind(&columns, &**table.store().clock())?;
            SnapshotReader::find_files(table, Arc::clone(base), Some(Arc::new(filter))).await?
        }
        TaskOperation::Upsert(source) | TaskOperation::Merge(source) => {
            find_targets(table, base, source).await?
        }
    };
    let by_path = files
        .into_iter()
        .map(|listed| (listed.file.path.clone(), listed));
    Ok(by_path.collect())
}

/// The changes of all tasks.
#[derive(Default)]
struct Total {
    plan: DeletePlan,
    /// Files with rows that matched and stay as they are.
    matched_files: Vec<FileRef>,
    added: Vec<DataFile>,
    updated: u64,
    inserted: u64,
}

impl Total {
    fn new(
        files: &HashMap<String, SnapshotFile>,
        changes: Vec<TaskChange>,
        searches: usize,
    ) -> Result<Self> {
        let done = count_searches(&changes);
        if done != searches {
            let message = format!(
                "internal error: there were to be {searches} searches of files, and there were {done}"
            );
            return Err(Error::other(message));
        }
        let listed = |path: &str| {
            let unknown = || {
                Error::other(format!(
                    "internal error: a task has searched {path:?}, which the version does not list"
                ))
            };
            files.get(path).ok_or_else(unknown)
        };
        let mut total = Self::default();
        let mut deletes: BTreeMap<String, FileRows> = BTreeMap::new();
        let mut matched = HashSet::new();
        for change in changes {
            total.added.extend(change.added);
            total.updated += change.updated;
            total.inserted += change.inserted;
            matched.extend(change.matched_files);
            for rows in change.deletes {
                match deletes.entry(rows.path.clone()) {
                    Entry::Vacant(entry) => drop(entry.insert(rows)),
                    Entry::Occupied(mut entry) => {
                        if !entry.get_mut().add(rows) {
                            return Err(Error::invalid(
                                "two rows of the source have the same key; keep one of them",
                            ));
                        }
                    }
                }
            }
        }
        total.plan.rows = Some(0);
        for (path, rows) in &deletes {
            total.plan.add(rows.to_plan(listed(path)?));
            matched.remove(path);
        }
        for path in &matched {
            total.matched_files.push(listed(path)?.to_file_ref());
        }
        Ok(total)
    }

    fn to_deletes(
        &self,
        base: &TableManifest,
        filter: String,
        tombstones: Option<Tombstones>,
    ) -> Delete {
        let rows = self.plan.rows;
        Delete {
            filter,
            tombstones,
            scanned_files: [self.plan.scanned_files.clone(), self.matched_files.clone()].concat(),
            removed: self.plan.removed.clone(),
            base_tombstones: base.tombstone_paths(),
            rows: rows.map(|rows| rows.saturating_sub(self.updated)),
            base_version: base.version,
        }
    }

    fn is_empty(&self) -> bool {
        self.plan.is_empty() && self.added.is_empty()
    }
}
