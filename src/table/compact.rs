//! Compaction: rewrites small data files as larger ones, files with mostly deleted rows without these
//! rows, and many small tombstone files as few.
//!
//! [`compact`] rewrites groups of neighboring files and keeps the order of rows within a group; new files
//! come last in the table. [`sort`] rewrites all files as one group in sorted order.
//!
//! The commit ([`Replace`]) replaces the files that were read. If a concurrent commit has changed them, the
//! compaction is planned again on the newest snapshot until the timeout. If they are only listed elsewhere
//! since (in another segment), the commit is repeated without writing again.
//!
//! A rewrite fails with [`ErrorKind::Other`] if it wrote more rows than it read, or fewer although none was
//! deleted. Other errors are those of [`super::commit`] and of reading.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Table;
use super::actions::{MergedTombstones, Replace};
use super::commit::{Committed, commit_onto};
use super::delete::put_tombstones;
use super::format::{DataFile, TableManifest, Tombstones};
use super::listing::{FileRef, SnapshotFile, all_files};
use super::outcome::{CommitError, CommitOutcome};
use super::scan::stream_files;
use super::snapshot::Snapshot;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{self, Deletions, TombstoneLine};
use super::write::{TableWriteOptions, align_to_schema, remove, upload};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::Predicate;

/// A file with a larger share of deleted rows is rewritten whatever its size.
const MAX_DELETED_PERCENT: u64 = 50;

/// A tombstone file of fewer bytes is merged with others.
const SMALL_TOMBSTONE_BYTES: u64 = 1 << 20;

/// The result of a compaction or a sort.
#[derive(Debug)]
pub struct Compaction {
    /// The commit.
    pub committed: Committed,
    /// The data files that the commit added.
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
    let task = RewriteTask {
        operation: "compact",
        predicate,
        plan: &|reader, selected| {
            Ok((plan_groups(reader, target_bytes, selected), options.clone()))
        },
    };
    task.run(table, options.timeout).await
}

/// Rewrites all rows as sorted files of about `target_bytes`. The columns default to the table's sort
/// order, or to its key if it has none. Returns None if the table has no files.
pub async fn sort(
    table: &Table,
    by: Option<&[String]>,
    target_bytes: u64,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let task = RewriteTask {
        operation: "sort",
        predicate: None,
        plan: &|reader, _| {
            let manifest = &reader.manifest;
            let default_orders = [&manifest.sort_by, &manifest.key];
            let sort_by = match by {
                Some(by) => reader.columns.ids_of(by)?,
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
            let data_files = reader.files.iter().map(|listed| &listed.file);
            let bytes: u64 = data_files.clone().map(|file| file.size_bytes).sum();
            let row_count: u64 = data_files.map(|file| file.total_rows).sum();
            let file_count = bytes.div_ceil(target_bytes).max(1);
            let mut options = options.clone();
            options.write_options.rows_per_file = Some(row_count.div_ceil(file_count).max(1));
            options.sort_by = Some(sort_by);
            let indices: Vec<usize> = (0..reader.files.len()).collect();
            Ok((
                Vec::from_iter((!indices.is_empty()).then_some(indices)),
                options,
            ))
        },
    };
    task.run(table, options.timeout).await
}

/// The groups of files to rewrite, as indices into the reader's files, and the options to write with.
type RewritePlan = (Vec<Vec<usize>>, TableWriteOptions);

/// A rewrite of files with the same rows: a compaction or a sort.
struct RewriteTask<'a> {
    operation: &'static str,
    /// Restricts the rewrite to files that may hold rows that satisfy it.
    predicate: Option<&'a Predicate>,
    plan: &'a (dyn Fn(&SnapshotReader, &[bool]) -> Result<RewritePlan> + Sync),
}

impl RewriteTask<'_> {
    async fn run(&self, table: &Table, timeout: Duration) -> Result<Option<Compaction>> {
        let clock = table.store().clock();
        let deadline = clock.monotonic() + timeout;
        loop {
            let newest = table.newest().await?;
            let reader_result =
                SnapshotReader::new(table, Arc::clone(&newest.manifest), None).await;
            let reader = match reader_result {
                // A vacuum has removed this snapshot since it was read.
                Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                    continue;
                }
                reader => Arc::new(reader?),
            };
            let Some((change, written_paths)) = self.write(table, &reader).await? else {
                return Ok(None);
            };
            let added = change.added.clone();
            match commit_replace(table, change, newest, deadline).await {
                Ok(committed) => return Ok(Some(Compaction { committed, added })),
                Err(e) => {
                    if e.allows_removal() {
                        remove(table, &written_paths).await;
                    }
                    let can_retry = e.is_conflict() && clock.monotonic() < deadline;
                    let error = Error::from(e);
                    if !can_retry {
                        return Err(error);
                    }
                    log::info!(
                        "{} of the table {:?} is planned again: {error}",
                        self.operation,
                        table.root()
                    );
                }
            }
        }
    }

    /// Writes the new files. Returns the change and the paths of the written objects, or None if there is
    /// nothing to rewrite. After an error the written objects are removed.
    async fn write(
        &self,
        table: &Table,
        reader: &Arc<SnapshotReader>,
    ) -> Result<Option<(Replace, Vec<String>)>> {
        let selected = match self.predicate {
            Some(predicate) => {
                let filter = predicate.bind(&reader.columns, &**table.store().clock())?;
                reader.prune_listed_files(&filter).await?
            }
            None => vec![true; reader.files.len()],
        };
        let (groups, options) = (self.plan)(reader, &selected)?;
        let removed_paths: HashSet<&str> = groups
            .iter()
            .flatten()
            .map(|f| path_of(reader, *f))
            .collect();
        let sources = mergeable_tombstones(&reader.manifest, &removed_paths);
        if groups.is_empty() && sources.is_empty() {
            return Ok(None);
        }
        let mut written_paths: Vec<String> = Vec::new();
        let merged =
            match merge_tombstones(table, reader, &sources, &removed_paths, &mut written_paths)
                .await
            {
                Ok(merged) => MergedTombstones {
                    sources: sources.iter().map(|t| t.path.clone()).collect(),
                    written: merged,
                },
                Err(e) => {
                    remove(table, &written_paths).await;
                    return Err(e);
                }
            };
        let mut added: Vec<DataFile> = Vec::new();
        for (index, group) in groups.iter().enumerate() {
            match rewrite_group(table, reader, group, &options).await {
                Ok(files) => {
                    written_paths.extend(files.iter().map(|f| f.path.clone()));
                    added.extend(files);
                }
                Err(e) => {
                    remove(table, &written_paths).await;
                    return Err(e);
                }
            }
            let (operation, group_count) = (self.operation, groups.len());
            log::info!(
                "{operation} of the table {:?}: {} of {group_count} groups of files written",
                table.root(),
                index + 1
            );
        }
        let change = self.build_replace(reader, &groups, added, merged);
        Ok(Some((change, written_paths)))
    }

    fn build_replace(
        &self,
        reader: &SnapshotReader,
        groups: &[Vec<usize>],
        added: Vec<DataFile>,
        merged: MergedTombstones,
    ) -> Replace {
        let manifest = &reader.manifest;
        let removed: Vec<FileRef> = groups
            .iter()
            .flatten()
            .map(|f| reader.files[*f].to_file_ref())
            .collect();
        let removed_paths: HashSet<&str> = removed.iter().map(|f| f.path.as_str()).collect();
        let tombstones = manifest.tombstones.iter();
        let touching =
            tombstones.filter(|t| t.files.iter().any(|f| removed_paths.contains(f.as_str())));
        Replace {
            operation: self.operation,
            applied_tombstones: touching.map(|t| t.path.clone()).collect(),
            added,
            merged,
            base_version: manifest.version,
            removed,
        }
    }
}

/// Commits the change; repeats a commit that conflicts only because its files are listed elsewhere now.
async fn commit_replace(
    table: &Table,
    mut change: Replace,
    newest: Snapshot,
    deadline: Duration,
) -> CommitOutcome<Committed> {
    let clock = table.store().clock();
    let mut cached_snapshot = Some(newest);
    loop {
        let remaining = deadline.saturating_sub(clock.monotonic());
        let error = match commit_onto(table, &change, cached_snapshot.take(), remaining).await {
            Err(CommitError::NotCommitted(e)) if e.kind() == ErrorKind::CommitConflict => e,
            result => return result,
        };
        match find_moved_files(table, &change).await {
            Ok(Some(moved_files)) if clock.monotonic() < deadline => change.removed = moved_files,
            _ => return Err(CommitError::NotCommitted(error)),
        }
    }
}

/// The files to remove as the newest snapshot lists them; None if one has left the table, or if all are
/// listed where they were.
async fn find_moved_files(table: &Table, change: &Replace) -> Result<Option<Vec<FileRef>>> {
    let manifest = table.newest().await?.manifest;
    let files = all_files(table, &manifest).await?;
    let references = files.iter().map(SnapshotFile::to_file_ref);
    let mut newest_by_path: HashMap<String, FileRef> =
        references.map(|f| (f.path.clone(), f)).collect();
    let moved: Option<Vec<FileRef>> = change
        .removed
        .iter()
        .map(|f| newest_by_path.remove(&f.path))
        .collect();
    Ok(moved.filter(|files| *files != change.removed))
}

fn path_of(reader: &SnapshotReader, file: usize) -> &str {
    &reader.files[file].file.path
}

/// The tombstone files to merge: the small ones of files that stay, if merging them makes them fewer.
fn mergeable_tombstones<'a>(
    manifest: &'a TableManifest,
    removed_paths: &HashSet<&str>,
) -> Vec<&'a Tombstones> {
    let covers_kept_file =
        |t: &&Tombstones| t.files.iter().any(|f| !removed_paths.contains(f.as_str()));
    let small: Vec<&Tombstones> = manifest
        .tombstones
        .iter()
        .filter(covers_kept_file)
        .filter(|t| t.size_bytes < SMALL_TOMBSTONE_BYTES)
        .collect();
    let bytes: u64 = small.iter().map(|t| t.size_bytes).sum();
    // Any two neighbors that come from a merge have more bytes together than SMALL_TOMBSTONE_BYTES.
    if small.len() as u64 > 2 * (bytes / SMALL_TOMBSTONE_BYTES) + 1 {
        return small;
    }
    Vec::new()
}

/// Writes the deletions of `sources` in files that stay as few tombstone files, each about neighboring data
/// files. Adds the paths of written objects to `paths`.
async fn merge_tombstones(
    table: &Table,
    reader: &SnapshotReader,
    sources: &[&Tombstones],
    removed_paths: &HashSet<&str>,
    paths: &mut Vec<String>,
) -> Result<Vec<Tombstones>> {
    let lines = reader.read_lines(sources.to_vec()).await?;
    let by_file = Deletions::by_file(&lines);
    let mut merged = Vec::new();
    let mut pending: (Vec<TombstoneLine>, Vec<String>, usize) = (Vec::new(), Vec::new(), 0);
    let mut flush = async |(lines, files, _): (Vec<TombstoneLine>, Vec<String>, usize)| {
        if lines.is_empty() {
            return Ok(());
        }
        let version = reader.manifest.version;
        let tombstones = put_tombstones(table, version, &lines, files, None).await?;
        paths.push(tombstones.path.clone());
        merged.push(tombstones);
        Ok::<_, Error>(())
    };
    for listed in &reader.files {
        let path = &listed.file.path;
        let Some(deletions) = by_file
            .get(path)
            .filter(|_| !removed_paths.contains(path.as_str()))
        else {
            continue;
        };
        let lines = deletions.to_lines(path);
        let bytes = tombstone::encode(&lines).len();
        if (pending.2 + bytes) as u64 > SMALL_TOMBSTONE_BYTES {
            flush(std::mem::take(&mut pending)).await?;
        }
        pending.0.extend(lines);
        pending.1.push(path.clone());
        pending.2 += bytes;
    }
    flush(pending).await?;
    Ok(merged)
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
    let deleted = whole_group_rows + single_rows.sum::<u64>() + by_key.sum::<u64>();
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

/// Writes the rows of a group of files as new files, and checks their number.
async fn rewrite_group(
    table: &Table,
    reader: &Arc<SnapshotReader>,
    group: &[usize],
    options: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    let columns = reader.columns.project(None)?;
    let scan = stream_files(Arc::clone(reader), group.to_vec(), columns, None)?;
    let input = align_to_schema(Box::new(scan.into_reader()), &reader.columns.schema)?;
    let files = upload(table, &reader.manifest, input, options).await?;
    let before = group.iter().map(|f| reader.files[*f].file.total_rows);
    let (before, after): (u64, u64) = (before.sum(), files.iter().map(|f| f.total_rows).sum());
    let untouched = group.iter().all(|f| reader.deletions_of(*f).is_none());
    if after > before || (untouched && after < before) {
        let paths: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
        remove(table, &paths).await;
        let message = format!(
            "internal error: rewriting {before} rows of the table {:?} wrote {after} rows; nothing was \
             committed",
            table.root()
        );
        return Err(Error::other(message));
    }
    Ok(files)
}
