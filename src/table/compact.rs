//! Compaction: small files become larger ones, rows that tombstones delete are left out, and many
//! small tombstone files become few.
//!
//! Rows keep their order within what is joined, which comes last. Sorting does it to all files at once.
//! What is written is committed in the place of what was read, if nobody has changed that meanwhile;
//! otherwise it is planned again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Table;
use super::actions::{MergedTombstones, Replace};
use super::commit::{Committed, commit_onto, is_retryable_conflict};
use super::delete::put_tombstones;
use super::format::{DataFile, TableManifest, Tombstones};
use super::listing::{FileRef, ListedFile, all_files};
use super::predicate::Predicate;
use super::scan::stream_files;
use super::snapshot::Snapshot;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{self, Deletions, Line};
use super::write::{TableWriteOptions, align_to_schema, is_definite_failure, remove, upload};
use crate::error::{Error, ErrorKind, Result};

/// Above this share of deleted rows a file is written again whatever its size.
const MAX_DELETED_PERCENT: u64 = 50;

/// Tombstone files of fewer bytes are small.
const TOMBSTONE_BYTES: u64 = 1 << 20;

/// What a compaction did.
#[derive(Debug)]
pub struct Compaction {
    /// The commit.
    pub committed: Committed,
    /// Files that were written.
    pub added: Vec<DataFile>,
}

/// Writes neighbouring files of fewer than half of `target_bytes` as files of about that size, and
/// files anew of which most rows are deleted; of those that may hold rows which are `meant`, where that
/// is given. None where nothing is worth it.
pub async fn compact(
    table: &Table,
    target_bytes: u64,
    meant: Option<&Predicate>,
    how: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let task = Task {
        operation: "compact",
        meant,
        plan: &|rows, meant| Ok((plan(rows, target_bytes, meant), how.clone())),
    };
    task.carry_out(table, how.timeout).await
}

/// Writes all rows anew, sorted by columns or, with None, by the table's sort order or else its key, as
/// files of about `target_bytes`. None where there are no rows.
pub async fn sort(
    table: &Table,
    by: Option<&[String]>,
    target_bytes: u64,
    how: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let task = Task {
        operation: "sort",
        meant: None,
        plan: &|rows, _| {
            let manifest = &rows.manifest;
            let own = [&manifest.sort_by, &manifest.key];
            let order = match by {
                Some(by) => rows.columns.ids_of(by)?,
                None => own
                    .into_iter()
                    .find(|ids| !ids.is_empty())
                    .cloned()
                    .unwrap_or_default(),
            };
            if order.is_empty() {
                let message = "the table has no sort order and no key; name the columns to sort by";
                return Err(Error::invalid(message));
            }
            let described = rows.files.iter().map(|listed| &listed.file);
            let bytes: u64 = described.clone().map(|file| file.size_bytes).sum();
            let count: u64 = described.map(|file| file.total_rows).sum();
            let files = bytes.div_ceil(target_bytes).max(1);
            let mut how = how.clone();
            how.write_options.rows_per_file = Some(count.div_ceil(files).max(1));
            how.sort_by = Some(order);
            let all: Vec<usize> = (0..rows.files.len()).collect();
            Ok((Vec::from_iter((!all.is_empty()).then_some(all)), how))
        },
    };
    task.carry_out(table, how.timeout).await
}

/// Groups of files, by position, each to be written anew, and how.
type Plan = (Vec<Vec<usize>>, TableWriteOptions);

/// Files that are written anew with the same rows.
struct Task<'a> {
    operation: &'static str,
    /// Only files that may hold such rows.
    meant: Option<&'a Predicate>,
    plan: &'a (dyn Fn(&SnapshotReader, &[bool]) -> Result<Plan> + Sync),
}

impl Task<'_> {
    async fn carry_out(&self, table: &Table, timeout: Duration) -> Result<Option<Compaction>> {
        let clock = table.store().clock();
        let deadline = clock.monotonic() + timeout;
        loop {
            let newest = table.newest().await?;
            let rows = SnapshotReader::new(table, Arc::clone(&newest.manifest), None).await;
            let rows = match rows {
                // What was the newest has been vacuumed meanwhile.
                Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                    continue;
                }
                rows => Arc::new(rows?),
            };
            let Some((change, written)) = self.write(table, &rows).await? else {
                return Ok(None);
            };
            let added = change.added.clone();
            match replace(table, change, newest, deadline).await {
                Ok(committed) => return Ok(Some(Compaction { committed, added })),
                Err(e) => {
                    if is_definite_failure(e.kind()) {
                        remove(table, &written).await;
                    }
                    if !is_retryable_conflict(e.kind()) || clock.monotonic() >= deadline {
                        return Err(e);
                    }
                    log::info!("{} of {:?} begins again: {e}", self.operation, table.root());
                }
            }
        }
    }

    /// The change and the objects that were written for it; None where there is nothing to do.
    async fn write(
        &self,
        table: &Table,
        rows: &Arc<SnapshotReader>,
    ) -> Result<Option<(Replace, Vec<String>)>> {
        let meant = match self.meant {
            Some(meant) => {
                let filter = meant.bind(&rows.columns, &**table.store().clock())?;
                rows.prune_listed_files(&filter).await?
            }
            None => vec![true; rows.files.len()],
        };
        let (groups, how) = (self.plan)(rows, &meant)?;
        let gone = groups.iter().flatten().map(|f| path_of(rows, *f));
        let gone: HashSet<&str> = gone.collect();
        let sources = mergeable(&rows.manifest, &gone);
        if groups.is_empty() && sources.is_empty() {
            return Ok(None);
        }
        let mut written: Vec<String> = Vec::new();
        let merged = match merge(table, rows, &sources, &gone, &mut written).await {
            Ok(merged) => MergedTombstones {
                sources: sources.iter().map(|t| t.path.clone()).collect(),
                written: merged,
            },
            Err(e) => {
                remove(table, &written).await;
                return Err(e);
            }
        };
        let mut added: Vec<DataFile> = Vec::new();
        for (done, group) in groups.iter().enumerate() {
            match rewrite(table, rows, group, &how).await {
                Ok(files) => {
                    written.extend(files.iter().map(|f| f.path.clone()));
                    added.extend(files);
                }
                Err(e) => {
                    remove(table, &written).await;
                    return Err(e);
                }
            }
            let (what, of) = (self.operation, groups.len());
            log::info!(
                "{what} of {:?}: {} of {of} groups of files written",
                table.root(),
                done + 1
            );
        }
        let change = self.change(rows, &groups, added, merged);
        Ok(Some((change, written)))
    }

    fn change(
        &self,
        rows: &SnapshotReader,
        groups: &[Vec<usize>],
        added: Vec<DataFile>,
        merged: MergedTombstones,
    ) -> Replace {
        let manifest = &rows.manifest;
        let removed = groups.iter().flatten().map(|f| rows.files[*f].reference());
        let removed: Vec<FileRef> = removed.collect();
        let gone: HashSet<&str> = removed.iter().map(|f| f.path.as_str()).collect();
        let touching = manifest.tombstones.iter();
        let touching = touching.filter(|t| t.files.iter().any(|f| gone.contains(f.as_str())));
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

/// Commits, again where the files that go are only listed elsewhere meanwhile.
async fn replace(
    table: &Table,
    mut change: Replace,
    newest: Snapshot,
    deadline: Duration,
) -> Result<Committed> {
    let clock = table.store().clock();
    let mut onto = Some(newest);
    loop {
        let left = deadline.saturating_sub(clock.monotonic());
        let error = match commit_onto(table, &change, onto.take(), left).await {
            Err(e) if e.kind() == ErrorKind::CommitConflict => e,
            done => return done,
        };
        match moved(table, &change).await {
            Ok(Some(moved)) if clock.monotonic() < deadline => change.removed = moved,
            _ => return Err(error),
        }
    }
}

/// The files that go as the newest snapshot lists them; None where one has left it, or all are where
/// they were.
async fn moved(table: &Table, change: &Replace) -> Result<Option<Vec<FileRef>>> {
    let manifest = table.newest().await?.manifest;
    let files = all_files(table, &manifest).await?;
    let references = files.iter().map(ListedFile::reference);
    let mut now: HashMap<String, FileRef> = references.map(|f| (f.path.clone(), f)).collect();
    let found = change.removed.iter().map(|f| now.remove(&f.path));
    let found: Option<Vec<FileRef>> = found.collect();
    Ok(found.filter(|found| *found != change.removed))
}

fn path_of(rows: &SnapshotReader, file: usize) -> &str {
    &rows.files[file].file.path
}

/// The tombstone files that are better fewer: the small ones of files that stay, where they would
/// not be as many afterwards.
fn mergeable<'a>(manifest: &'a TableManifest, gone: &HashSet<&str>) -> Vec<&'a Tombstones> {
    let stays = |t: &&Tombstones| t.files.iter().any(|f| !gone.contains(f.as_str()));
    let small = manifest.tombstones.iter().filter(stays);
    let small = small.filter(|t| t.size_bytes < TOMBSTONE_BYTES);
    let small: Vec<&Tombstones> = small.collect();
    let bytes: u64 = small.iter().map(|t| t.size_bytes).sum();
    // Of neighbours that were merged any two have more than that.
    if small.len() as u64 > 2 * (bytes / TOMBSTONE_BYTES) + 1 {
        return small;
    }
    Vec::new()
}

/// Writes what tombstones say of the files that stay as few tombstones, each of neighbouring files.
async fn merge(
    table: &Table,
    rows: &SnapshotReader,
    sources: &[&Tombstones],
    gone: &HashSet<&str>,
    paths: &mut Vec<String>,
) -> Result<Vec<Tombstones>> {
    let lines = rows.read_lines(sources.to_vec()).await?;
    let by_file = Deletions::by_file(&lines);
    let mut merged = Vec::new();
    let mut open: (Vec<Line>, Vec<String>, usize) = (Vec::new(), Vec::new(), 0);
    let mut close = async |(lines, files, _): (Vec<Line>, Vec<String>, usize)| {
        if lines.is_empty() {
            return Ok(());
        }
        let version = rows.manifest.version;
        let written = put_tombstones(table, version, &lines, files, None).await?;
        paths.push(written.path.clone());
        merged.push(written);
        Ok::<_, Error>(())
    };
    for listed in &rows.files {
        let path = &listed.file.path;
        let Some(deletions) = by_file.get(path).filter(|_| !gone.contains(path.as_str())) else {
            continue;
        };
        let lines = deletions.lines(path);
        let bytes = tombstone::encode(&lines).len();
        if (open.2 + bytes) as u64 > TOMBSTONE_BYTES {
            close(std::mem::take(&mut open)).await?;
        }
        open.0.extend(lines);
        open.1.push(path.clone());
        open.2 += bytes;
    }
    close(open).await?;
    Ok(merged)
}

/// Groups of neighbouring files, by position, each to become one.
fn plan(rows: &SnapshotReader, target_bytes: u64, meant: &[bool]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let (mut open, mut bytes): (Vec<usize>, u64) = (Vec::new(), 0);
    let mut close = |open: &mut Vec<usize>| {
        let group = std::mem::take(open);
        let wasteful = |file: &usize| is_wasteful(rows, *file);
        if group.len() > 1 || group.iter().any(wasteful) {
            groups.push(group);
        }
    };
    for (number, listed) in rows.files.iter().enumerate() {
        let file = &listed.file;
        let small = file.size_bytes < target_bytes / 2;
        if !meant[number] || (!small && !is_wasteful(rows, number)) {
            close(&mut open);
            bytes = 0;
            continue;
        }
        if bytes.saturating_add(file.size_bytes) > target_bytes {
            close(&mut open);
            bytes = 0;
        }
        open.push(number);
        bytes += file.size_bytes;
    }
    close(&mut open);
    groups
}

/// Whether most rows of a file are deleted.
fn is_wasteful(rows: &SnapshotReader, file: usize) -> bool {
    let described = &rows.files[file].file;
    let Some(deletions) = rows.deletions_of(file) else {
        return false;
    };
    let average = described.total_rows / described.row_group_count.max(1);
    let whole = average.saturating_mul(deletions.groups.len() as u64);
    let single = deletions.rows.values().map(roaring::RoaringBitmap::len);
    let by_key = deletions.keys.iter();
    let by_key = by_key.map(|(min, max)| share(described, rows.key_id(), min, max));
    let deleted = whole + single.sum::<u64>() + by_key.sum::<u64>();
    deleted.saturating_mul(100) > described.total_rows.saturating_mul(MAX_DELETED_PERCENT)
}

/// About how many rows of a file have a key in a range of whole numbers, as if keys lay evenly
/// between the file's bounds.
fn share(file: &DataFile, key: Option<u32>, min: &Value, max: &Value) -> u64 {
    let bound = |of: &BTreeMap<u32, Value>| of.get(&key?).and_then(Value::as_i64);
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
    let hit = high.min(max.into()) - low.max(min.into()) + 1;
    let rows = i128::from(file.total_rows) * hit.max(0) / (high - low + 1).max(1);
    u64::try_from(rows).unwrap_or_default()
}

/// Writes the rows of some files.
async fn rewrite(
    table: &Table,
    rows: &Arc<SnapshotReader>,
    group: &[usize],
    how: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    let columns = rows.columns.project(None)?;
    let scan = stream_files(Arc::clone(rows), group.to_vec(), columns, None)?;
    let input = align_to_schema(Box::new(scan.into_reader()), &rows.columns.file_schema())?;
    let written = upload(table, &rows.manifest, input, how).await?;
    let before = group.iter().map(|f| rows.files[*f].file.total_rows);
    let (before, after): (u64, u64) = (before.sum(), written.iter().map(|f| f.total_rows).sum());
    let untouched = group.iter().all(|f| rows.deletions_of(*f).is_none());
    if after > before || (untouched && after < before) {
        let named: Vec<String> = written.iter().map(|f| f.path.clone()).collect();
        remove(table, &named).await;
        return Err(Error::other(format!("{before} rows became {after}")));
    }
    Ok(written)
}
