//! Deletes rows by writing tombstones ([`super::tombstone`]); no data file is rewritten.
//!
//! A filter that is a closed range of a key of one column needs no data: a tombstone line for each file
//! holds the range ([`plan_by_key`]). For any other filter its columns are read from the row groups that may
//! hold matching rows, and the lines hold row groups and row numbers ([`plan_by_row`]). A file of which
//! every row is deleted leaves the table without a tombstone.
//!
//! Rows that concurrent commits append are not deleted. If a concurrent commit rewrites a file of the plan,
//! the delete is planned again on the newest snapshot, until the timeout. Errors are those of
//! [`super::commit`] and of reading.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;
use roaring::RoaringBitmap;
use serde_json::Value;

use super::actions::Delete;
use super::commit::{Committed, commit_onto};
use super::format::{DataFile, Tombstones};
use super::listing::FileRef;
use super::row_group::RowGroupScan;
use super::snapshot::Snapshot;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{self, TombstoneLine, TombstoneScope};
use super::write::remove;
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::files::expr::ClosedRange;
use crate::files::expr::Predicate;

/// The maximum number of files that are scanned concurrently.
pub(super) const CONCURRENT_FILES: usize = 4;
/// The maximum number of row groups of a file that are scanned concurrently.
pub(super) const CONCURRENT_GROUPS: usize = 2;

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

/// Deletes the rows that satisfy `filter`, but none that a concurrent commit appends.
pub async fn delete(table: &Table, filter: &Predicate, timeout: Duration) -> Result<DeleteResult> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + timeout;
    loop {
        let newest = table.newest().await?;
        let plan = match plan_delete(table, &newest, filter).await {
            // A vacuum has removed this snapshot since it was read.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            plan => plan?,
        };
        if plan.is_empty() {
            return Ok(DeleteResult {
                committed: None,
                snapshot: newest,
                rows: Some(0),
                bytes: 0,
            });
        }
        let tombstones = write_tombstones(table, &newest, &plan).await?;
        let change = Delete {
            filter: filter.to_string(),
            tombstones,
            scanned_files: plan.scanned_files,
            removed: plan.removed,
            base_tombstones: newest.manifest.tombstone_paths(),
            rows: plan.rows,
            base_version: newest.manifest.version,
        };
        let remaining = deadline.saturating_sub(clock.monotonic());
        match commit_onto(table, &change, Some(newest), remaining).await {
            Ok(committed) => {
                return Ok(DeleteResult {
                    snapshot: committed.snapshot.clone(),
                    committed: Some(committed),
                    rows: change.rows,
                    bytes: change.tombstones.map_or(0, |t| t.size_bytes),
                });
            }
            Err(e) => {
                if let Some(unused_tombstones) = change.tombstones.filter(|_| e.allows_removal()) {
                    remove(table, &[unused_tombstones.path]).await;
                }
                if !e.is_conflict() || clock.monotonic() >= deadline {
                    return Err(e.into());
                }
            }
        }
    }
}

/// The rows to delete from a snapshot.
#[derive(Debug, Default)]
pub(super) struct DeletePlan {
    lines: Vec<TombstoneLine>,
    /// The files that the lines are about.
    pub(super) scanned_files: Vec<FileRef>,
    /// The files of which all remaining rows are deleted.
    pub(super) removed: Vec<FileRef>,
    /// The number of rows to delete; None if they are not counted.
    pub(super) rows: Option<u64>,
}

impl DeletePlan {
    /// Whether no row is to be deleted.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.removed.is_empty()
    }

    /// Adds the plan of other files.
    pub(super) fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.scanned_files.extend(other.scanned_files);
        self.removed.extend(other.removed);
        self.rows = self.rows.zip(other.rows).map(|(a, b)| a + b);
    }
}

async fn plan_delete(table: &Table, newest: &Snapshot, filter: &Predicate) -> Result<DeletePlan> {
    let manifest = &newest.manifest;
    let columns = TableColumns::from_manifest(manifest)?;
    let filter = Arc::new(filter.bind(&columns, &**table.store().clock())?);
    let reader =
        SnapshotReader::new(table, Arc::clone(manifest), Some(Arc::clone(&filter))).await?;
    let key_plan = reader.key_id().and_then(|id| {
        let index = columns.ids.iter().position(|column_id| *column_id == id)?;
        let range = filter.to_closed_range(columns.schema.field(index).name())?;
        plan_by_key(&reader, id, &range)
    });
    match key_plan {
        Some(plan) => Ok(plan),
        None => plan_by_row(&reader).await,
    }
}

/// Plans the delete of a range of the key without reading a row. None if the range is open at an end
/// and a file has no bound to close it with.
fn plan_by_key(reader: &SnapshotReader, id: u32, range: &ClosedRange) -> Option<DeletePlan> {
    let mut plan = DeletePlan::default();
    if matches!((as_integer(range.min.as_ref()), as_integer(range.max.as_ref())), (Some(a), Some(b)) if a > b)
    {
        return Some(plan);
    }
    for listed in &reader.files {
        let file = &listed.file;
        let (low, high) = (file.min.get(&id), file.max.get(&id));
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

/// Plans the delete by scanning the row groups that may hold matching rows.
pub(super) async fn plan_by_row(reader: &SnapshotReader) -> Result<DeletePlan> {
    let scans = (0..reader.files.len()).map(|file| match_file(reader, file));
    let plans: Vec<DeletePlan> = stream::iter(scans)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    let mut combined = DeletePlan {
        rows: Some(0),
        ..DeletePlan::default()
    };
    for plan in plans {
        combined.add(plan);
    }
    Ok(combined)
}

async fn match_file(reader: &SnapshotReader, file: usize) -> Result<DeletePlan> {
    let row_groups = reader.open_row_groups(file).await?;
    let scans = row_groups.iter().map(|row_group| async move {
        let selection = reader.select(row_group).await?;
        let row_numbers = match &selection.mask {
            Some(mask) => mask.values().set_indices_u32().collect::<RoaringBitmap>(),
            None => (0..).take(row_group.num_rows()).collect(),
        };
        Ok::<_, Error>(MatchedRows {
            row_group: row_group.clone(),
            covers_group: row_numbers.len() == selection.live_rows as u64,
            rows: row_numbers,
        })
    });
    let matches: Vec<MatchedRows> = stream::iter(scans)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    Ok(plan_file(reader, file, matches))
}

/// The rows of a row group that are to be deleted.
pub(super) struct MatchedRows {
    pub(super) row_group: RowGroupScan,
    /// Row numbers within the row group, from 0.
    pub(super) rows: RoaringBitmap,
    /// The rows are all remaining rows of the row group.
    pub(super) covers_group: bool,
}

/// Plans the delete for one file from the matches in its scanned row groups.
pub(super) fn plan_file(
    reader: &SnapshotReader,
    file: usize,
    matches: Vec<MatchedRows>,
) -> DeletePlan {
    let listed = &reader.files[file];
    let count = matches
        .iter()
        .map(|group_match| group_match.rows.len())
        .sum();
    let is_fully_deleted = matches.first().is_some_and(|first| {
        let groups = matches.len() + first.row_group.num_deleted_row_groups();
        groups == first.row_group.num_file_row_groups()
            && matches.iter().all(|group_match| group_match.covers_group)
    });
    if is_fully_deleted {
        return DeletePlan {
            removed: vec![listed.to_file_ref()],
            rows: Some(count),
            ..DeletePlan::default()
        };
    }
    let to_line = |group_match: MatchedRows| {
        let group = u32::try_from(group_match.row_group.group).unwrap_or(u32::MAX);
        let deleted = if group_match.covers_group {
            TombstoneScope::RowGroup(group)
        } else {
            TombstoneScope::Rows(group, group_match.rows)
        };
        TombstoneLine {
            file: listed.file.path.clone(),
            deleted,
        }
    };
    let lines: Vec<TombstoneLine> = matches
        .into_iter()
        .filter(|group_match| !group_match.rows.is_empty())
        .map(to_line)
        .collect();
    let scanned_file = (!lines.is_empty()).then(|| listed.to_file_ref());
    DeletePlan {
        lines,
        scanned_files: scanned_file.into_iter().collect(),
        removed: Vec::new(),
        rows: Some(count),
    }
}

/// Writes the tombstone file of a plan; None if the plan has no lines.
pub(super) async fn write_tombstones(
    table: &Table,
    newest: &Snapshot,
    plan: &DeletePlan,
) -> Result<Option<Tombstones>> {
    if plan.lines.is_empty() {
        return Ok(None);
    }
    let files = plan.scanned_files.iter().map(|f| f.path.clone()).collect();
    let version = newest.manifest.version;
    let tombstones = put_tombstones(table, version, &plan.lines, files, plan.rows).await?;
    Ok(Some(tombstones))
}

/// Writes a tombstone file that is about `files`.
pub(super) async fn put_tombstones(
    table: &Table,
    version: u64,
    lines: &[TombstoneLine],
    files: Vec<String>,
    deleted_rows: Option<u64>,
) -> Result<Tombstones> {
    let clock = table.store().clock();
    let bytes = tombstone::encode(lines);
    let tombstones = Tombstones {
        path: names::tombstones(clock.now(), version, clock.new_id()),
        size_bytes: bytes.len() as u64,
        files,
        deleted_rows,
    };
    let path = table.path(&tombstones.path);
    table.store().put(&path, bytes, PutMode::Overwrite).await?;
    Ok(tombstones)
}
