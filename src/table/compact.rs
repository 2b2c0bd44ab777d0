//! Compaction: small files become larger ones, and rows that tombstones delete are left out.
//!
//! Rows keep their order within what is joined, which comes last. What is written is committed in the
//! place of what was read, if nobody has changed that meanwhile; otherwise it is planned again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Table;
use super::actions::Replace;
use super::commit::{Committed, commit_onto, plans_again};
use super::format::DataFile;
use super::listing::{FileRef, ListedFile, all_files};
use super::rows::Rows;
use super::scan::stream_files;
use super::snapshot::Snapshot;
use super::write::{Upload, conform, is_certain, remove, upload};
use crate::error::{Error, ErrorKind, Result};

/// Above this share of deleted rows a file is written again whatever its size.
const MAX_DELETED_PERCENT: u64 = 50;

/// What a compaction did.
#[derive(Debug)]
pub struct Compaction {
    /// The commit.
    pub committed: Committed,
    /// Files that were written.
    pub added: Vec<DataFile>,
}

/// Writes neighbouring files of fewer than half of `target_bytes` as files of about that size, and
/// files anew of which most rows are deleted. None where nothing is worth it.
pub async fn compact(table: &Table, target_bytes: u64, how: &Upload) -> Result<Option<Compaction>> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + how.timeout;
    loop {
        let newest = table.newest().await?;
        let manifest = Arc::clone(&newest.manifest);
        let rows = Arc::new(Rows::new(table, Arc::clone(&manifest), None).await?);
        let plan = plan(&rows, target_bytes);
        if plan.is_empty() {
            return Ok(None);
        }
        let added = rewrite(table, &rows, &plan, how).await?;
        let change = change(&rows, &plan, &added);
        match replace(table, change, newest, deadline).await {
            Ok(committed) => {
                return Ok(Some(Compaction { committed, added }));
            }
            Err(e) => {
                if is_certain(e.kind()) {
                    let named: Vec<String> = added.iter().map(|f| f.path.clone()).collect();
                    remove(table, &named).await;
                }
                if !plans_again(e.kind()) || clock.monotonic() >= deadline {
                    return Err(e);
                }
            }
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

/// Groups of neighbouring files, by position, each to become one.
fn plan(rows: &Rows, target_bytes: u64) -> Vec<Vec<usize>> {
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
        if !small && !is_wasteful(rows, number) {
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
fn is_wasteful(rows: &Rows, file: usize) -> bool {
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

async fn rewrite(
    table: &Table,
    rows: &Arc<Rows>,
    plan: &[Vec<usize>],
    how: &Upload,
) -> Result<Vec<DataFile>> {
    let mut added: Vec<DataFile> = Vec::new();
    for group in plan {
        match rewrite_group(table, rows, group, how).await {
            Ok(files) => added.extend(files),
            Err(e) => {
                let named: Vec<String> = added.iter().map(|f| f.path.clone()).collect();
                remove(table, &named).await;
                return Err(e);
            }
        }
    }
    Ok(added)
}

async fn rewrite_group(
    table: &Table,
    rows: &Arc<Rows>,
    group: &[usize],
    how: &Upload,
) -> Result<Vec<DataFile>> {
    let columns = rows.columns.project(None)?;
    let scan = stream_files(Arc::clone(rows), group.to_vec(), columns, None)?;
    let input = conform(Box::new(scan.into_reader()), &rows.columns)?;
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

fn change(rows: &Rows, plan: &[Vec<usize>], added: &[DataFile]) -> Replace {
    let manifest = &rows.manifest;
    let removed = plan.iter().flatten().map(|f| rows.files[*f].reference());
    let removed: Vec<FileRef> = removed.collect();
    let gone: HashSet<&str> = removed.iter().map(|f| f.path.as_str()).collect();
    let touching = manifest.tombstones.iter();
    let touching = touching.filter(|t| t.files.iter().any(|f| gone.contains(f.as_str())));
    Replace {
        operation: "compact",
        applied: touching.map(|t| t.path.clone()).collect(),
        added: added.to_vec(),
        began_at: manifest.version,
        removed,
    }
}
