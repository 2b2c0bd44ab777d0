//! Compaction: rewrites small data files as larger ones, files with mostly deleted rows without these
//! rows, and many small tombstone files as few.
//!
//! [`compact`] rewrites groups of neighboring files and keeps the order of rows within a group; new files
//! come last in the table. The files are chosen once, from one snapshot. Each group is a commit of its own
//! ([`RewriteGroup`]), so that writers who never stop cost a group at most, and what was written is not lost with
//! what comes after it. In the end small tombstone files are merged in one more commit. [`sort`] rewrites
//! all files as one group in sorted order: groups sorted alone would overlap.
//!
//! If concurrent commits change the files of a group in all attempts until the timeout, the group stays as it is; it
//! is an error if no group was committed. A rewrite fails with [`ErrorKind::Other`] if it wrote more rows
//! than it read, or fewer although none was deleted. Other errors are those of [`crate::versions::commit`] and of reading;
//! groups that were committed before stay committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::actions::Replace;
use super::format::{DataFile, TableManifest};
use super::opened_columns::OpenedColumns;
use super::rewrite_group::{FileLocations, RewriteGroup};
use super::snapshot_reader::SnapshotReader;
use super::tombstone_merge::MergeTombstones;
use super::write::TableWriteOptions;
use super::{Committed, Snapshot, Staged, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::files::expr::Predicate;
use crate::sync::progress;
use crate::versions::CommitOutcome;
use crate::versions::Operation;
use crate::versions::commit::{RunResult, run_on};

/// The name of the operation for the history.
const COMPACT: &str = "compact";
/// A file with a larger share of deleted rows is rewritten whatever its size.
const MAX_DELETED_PERCENT: u64 = 50;

/// The result of a compaction or a sort.
#[derive(Debug)]
pub struct Compaction {
    /// The last commit, with the attempts and delays of all.
    pub committed: Committed,
    /// The data files that the commits added.
    pub added: Vec<DataFile>,
}

/// Rewrites neighboring files of fewer than half of `target_bytes` as files of about that size, and files
/// of which most rows are deleted. With a `predicate` only files that may hold rows that satisfy it.
/// Returns None if there is nothing to rewrite.
pub async fn compact(
    table: &Table,
    target_bytes: u64,
    predicate: Option<&Predicate>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let (newest, reader) = open_newest(table, options.timeout).await?;
    let predicate = predicate.map(|predicate| (predicate, &options.opened));
    let groups = choose_groups(table, &reader, target_bytes, predicate).await?;
    let mut compaction = CompactionProgress::new(table, newest);
    let mut locations = FileLocations::new(table, &reader.files);
    expect_rows_of(&reader, groups.iter().flatten().copied());
    let count = groups.len();
    for (index, group) in groups.into_iter().enumerate() {
        let has_deleted = group.iter().any(|file| is_mostly_deleted(&reader, *file));
        let paths = group.iter().map(|f| reader.files[*f].file.path.clone());
        let group = (paths.collect(), if has_deleted { 1 } else { 2 });
        let mut operation =
            RewriteGroup::new(table, COMPACT, options, &reader, &mut locations, group);
        let staged = Staged::new(table);
        compaction.run(&mut operation, staged, options).await?;
        log::info!(
            "{COMPACT} of the table {:?}: {} of {count} groups of files done",
            table.root(),
            index + 1
        );
    }
    compaction.merge_tombstones(options).await?;
    compaction.finish()
}

/// The groups to rewrite of a snapshot, of files that may hold rows that satisfy the predicate, which is about columns
/// that have the same names in the snapshot.
pub(super) async fn choose_groups(
    table: &Table,
    reader: &SnapshotReader,
    target_bytes: u64,
    predicate: Option<(&Predicate, &OpenedColumns)>,
) -> Result<Vec<Vec<usize>>> {
    let selected = match predicate {
        Some((predicate, opened)) => {
            let manifest = reader.manifest();
            let filter = opened.bind_filter(predicate, manifest, &**table.store().clock())?;
            let names = filter.column_ids(&reader.columns);
            opened.check_unchanged(names.keys(), manifest)?;
            reader.prune_listed_files(&filter).await?
        }
        None => vec![true; reader.files.len()],
    };
    Ok(plan_groups(reader, target_bytes, &selected))
}

/// Rewrites all rows as sorted files of about `target_bytes`. The columns default to the table's sort
/// order, or to its key if it has none. Returns None if the table has no files.
pub async fn sort(
    table: &Table,
    by: Option<&[String]>,
    target_bytes: u64,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let (newest, reader) = open_newest(table, options.timeout).await?;
    let by = by.map(|names| options.opened.current_names(names, reader.manifest()));
    let by = by.transpose()?;
    let sort_by = find_sort_columns(&reader.columns, reader.manifest(), by.as_deref())?;
    let data_files = reader.files.iter().map(|listed| &listed.file);
    let bytes = data_files
        .clone()
        .map(|file| file.size_bytes)
        .fold(0, u64::saturating_add);
    let row_count = data_files
        .clone()
        .map(|file| file.total_rows)
        .fold(0, u64::saturating_add);
    expect_rows_of(&reader, 0..reader.files.len());
    let file_count = bytes.div_ceil(target_bytes).max(1);
    let mut options = options.clone();
    options.write_options.rows_per_file = Some(row_count.div_ceil(file_count).max(1));
    options.sort_by = Some(sort_by);
    let group = (data_files.map(|file| file.path.clone()).collect(), 1);
    let mut locations = FileLocations::new(table, &reader.files);
    let mut operation = RewriteGroup::new(table, "sort", &options, &reader, &mut locations, group);
    let mut compaction = CompactionProgress::new(table, newest);
    let staged = Staged::new(table);
    compaction.run(&mut operation, staged, &options).await?;
    compaction.finish()
}

/// Says how many rows are rewritten at most: deleted ones are left out.
fn expect_rows_of(reader: &SnapshotReader, files: impl Iterator<Item = usize>) {
    if let Some(progress) = progress::current() {
        let rows = files.map(|file| reader.files[file].file.total_rows);
        progress.expect_rows(rows.fold(0, u64::saturating_add));
    }
}

/// The ids of the columns to sort by.
pub(super) fn find_sort_columns(
    columns: &TableColumns,
    manifest: &TableManifest,
    by: Option<&[String]>,
) -> Result<Vec<u32>> {
    let default_orders = [&manifest.sort_by, &manifest.key];
    let sort_by = match by {
        Some(by) => columns.ids_of(by)?,
        None => default_orders
            .into_iter()
            .find(|ids| !ids.is_empty())
            .cloned()
            .unwrap_or_default(),
    };
    if sort_by.is_empty() {
        let message = "the table has no sort order and no key; name the columns to sort by";
        return Err(Error::invalid(message));
    }
    Ok(sort_by)
}

/// Opens all files of the newest snapshot.
async fn open_newest(table: &Table, timeout: Duration) -> Result<(Snapshot, SnapshotReader)> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + timeout;
    loop {
        let newest = table.newest().await?;
        match SnapshotReader::new(table, Arc::clone(&newest.manifest), None).await {
            // A vacuum has removed this snapshot since it was read.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {}
            reader => return Ok((newest, reader?)),
        }
    }
}

/// What was committed so far.
pub(super) struct CompactionProgress<'a> {
    table: &'a Table,
    /// The snapshot that was read or committed last.
    newest: Snapshot,
    compaction: Option<Compaction>,
    conflict: Option<Error>,
}

impl<'a> CompactionProgress<'a> {
    pub(super) fn new(table: &'a Table, newest: Snapshot) -> Self {
        Self {
            table,
            newest,
            compaction: None,
            conflict: None,
        }
    }

    /// Commits an operation, beginning with the last snapshot.
    pub(super) async fn run(
        &mut self,
        operation: &mut impl Operation<TableManifest, Change = Replace>,
        staged: Staged,
        options: &TableWriteOptions,
    ) -> Result<()> {
        let (table, newest) = (self.table, self.newest.clone());
        let result = run_on(table, operation, staged, Some(newest), options.timeout).await;
        self.add(result)
    }

    /// Merges small tombstone files.
    pub(super) async fn merge_tombstones(&mut self, options: &TableWriteOptions) -> Result<()> {
        let mut operation = MergeTombstones {
            table: self.table,
            name: COMPACT,
            written: Vec::new(),
        };
        let staged = Staged::new(self.table);
        self.run(&mut operation, staged, options).await
    }

    /// Adds the result of a commit. Only an error after which the others cannot go on is returned.
    fn add(&mut self, result: CommitOutcome<RunResult<TableManifest, Replace>>) -> Result<()> {
        let (mut committed, change) = match result {
            Ok(RunResult::Committed(committed, change)) => (committed, change),
            Ok(RunResult::Replayed(_) | RunResult::Unchanged(_)) => return Ok(()),
            Err(e) if e.is_conflict() => {
                let conflict = Error::from(e);
                log::warn!(
                    "files of {:?} stay as they are: {conflict}",
                    self.table.root()
                );
                self.conflict.get_or_insert(conflict);
                return Ok(());
            }
            Err(e) => return Err(e.into()),
        };
        let mut added = Vec::new();
        if let Some(before) = self.compaction.take() {
            committed.attempts += before.committed.attempts;
            committed.waited += before.committed.waited;
            added = before.added;
        }
        added.extend(change.added);
        self.newest = committed.snapshot.clone();
        self.compaction = Some(Compaction { committed, added });
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Option<Compaction>> {
        match (self.compaction, self.conflict) {
            (None, Some(conflict)) => Err(conflict),
            (compaction, _) => Ok(compaction),
        }
    }
}

/// The groups of neighboring files to rewrite, as indices; each group becomes about one file.
fn plan_groups(reader: &SnapshotReader, target_bytes: u64, selected: &[bool]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let (mut pending, mut bytes): (Vec<usize>, u64) = (Vec::new(), 0);
    let mut flush = |pending: &mut Vec<usize>| {
        let group = std::mem::take(pending);
        let mostly_deleted = |file: &usize| is_mostly_deleted(reader, *file);
        if group.len() > 1 || group.iter().any(mostly_deleted) {
            groups.push(group);
        }
    };
    for (index, listed) in reader.files.iter().enumerate() {
        let file = &listed.file;
        let is_small = file.size_bytes < target_bytes / 2;
        if !selected[index] || (!is_small && !is_mostly_deleted(reader, index)) {
            flush(&mut pending);
            bytes = 0;
            continue;
        }
        if bytes.saturating_add(file.size_bytes) > target_bytes {
            flush(&mut pending);
            bytes = 0;
        }
        pending.push(index);
        bytes += file.size_bytes;
    }
    flush(&mut pending);
    groups
}

/// Whether more than [`MAX_DELETED_PERCENT`] of a file's rows are deleted, by estimate.
fn is_mostly_deleted(reader: &SnapshotReader, file: usize) -> bool {
    let data_file = &reader.files[file].file;
    let Some(deletions) = reader.deletions_of(file) else {
        return false;
    };
    let rows_per_group = data_file.total_rows / data_file.row_group_count.max(1);
    let whole_group_rows = rows_per_group.saturating_mul(deletions.groups.len() as u64);
    let single_rows = deletions.rows.values().map(roaring::RoaringBitmap::len);
    let key_ranges = deletions.keys.iter();
    let by_key =
        key_ranges.map(|(min, max)| estimate_deleted_rows(data_file, reader.key_id(), min, max));
    let counts = single_rows.chain(by_key);
    let deleted = counts.fold(whole_group_rows, u64::saturating_add);
    deleted.saturating_mul(100) > data_file.total_rows.saturating_mul(MAX_DELETED_PERCENT)
}

/// Estimates how many rows of a file have a key in a range of integers, as if keys were spread evenly
/// between the file's bounds. 0 if the bounds or the range are not integers.
fn estimate_deleted_rows(file: &DataFile, key: Option<u32>, min: &Value, max: &Value) -> u64 {
    let bound = |bounds: &BTreeMap<u32, Value>| bounds.get(&key?).and_then(Value::as_i64);
    let ends = (
        bound(&file.min),
        bound(&file.max),
        min.as_i64(),
        max.as_i64(),
    );
    let (Some(low), Some(high), Some(min), Some(max)) = ends else {
        return 0;
    };
    let (low, high) = (i128::from(low), i128::from(high));
    let overlap = high.min(max.into()) - low.max(min.into()) + 1;
    let rows = i128::from(file.total_rows) * overlap.max(0) / (high - low + 1).max(1);
    u64::try_from(rows).unwrap_or_default()
}
