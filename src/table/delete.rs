//! Deleting rows: which ones, as tombstones; nothing of a data file is written again.
//!
//! A range of the key needs no data at all: one line a file says it. For any other filter its columns
//! are read, and the rows are named by row group.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;
use roaring::RoaringBitmap;
use serde_json::Value;

use super::actions::Delete;
use super::commit::{Committed, commit_onto, plans_again};
use super::filter::ClosedRange;
use super::format::{DataFile, Tombstones};
use super::listing::FileRef;
use super::predicate::Predicate;
use super::row_group::RowGroupScan;
use super::schema::TableColumns;
use super::snapshot::Snapshot;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{self, Deleted, Line};
use super::write::{is_certain, remove};
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};

/// Files looked through at once.
pub(super) const CONCURRENT_FILES: usize = 4;
/// Row groups of a file looked through at once.
pub(super) const CONCURRENT_GROUPS: usize = 2;

/// What a delete did.
#[derive(Debug)]
pub struct Deletion {
    /// The commit; None where there was nothing to delete.
    pub committed: Option<Committed>,
    /// The newest snapshot.
    pub snapshot: Snapshot,
    /// Rows that were deleted; None where they were not counted.
    pub rows: Option<u64>,
    /// The bytes of the tombstones.
    pub bytes: u64,
}

/// Deletes the rows for which `filter` holds. Rows that are appended meanwhile stay; files that are
/// rewritten meanwhile are looked at again.
pub async fn delete(table: &Table, filter: &Predicate, timeout: Duration) -> Result<Deletion> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + timeout;
    loop {
        let newest = table.newest().await?;
        let found = match find(table, &newest, filter).await {
            // What was the newest has been vacuumed meanwhile.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            found => found?,
        };
        if found.is_empty() {
            return Ok(Deletion {
                committed: None,
                snapshot: newest,
                rows: Some(0),
                bytes: 0,
            });
        }
        let tombstones = write_tombstones(table, &newest, &found).await?;
        let change = Delete {
            filter: filter.to_string(),
            tombstones,
            looked_at: found.looked_at,
            removed: found.removed,
            rows: found.rows,
            began_at: newest.manifest.version,
        };
        let left = deadline.saturating_sub(clock.monotonic());
        match commit_onto(table, &change, Some(newest), left).await {
            Ok(done) => {
                return Ok(Deletion {
                    snapshot: done.snapshot.clone(),
                    committed: Some(done),
                    rows: change.rows,
                    bytes: change.tombstones.map_or(0, |t| t.size_bytes),
                });
            }
            Err(e) => {
                if let Some(written) = change.tombstones.filter(|_| is_certain(e.kind())) {
                    remove(table, &[written.path]).await;
                }
                if !plans_again(e.kind()) || clock.monotonic() >= deadline {
                    return Err(e);
                }
            }
        }
    }
}

/// What is to be deleted of a snapshot.
#[derive(Debug, Default)]
pub(super) struct Found {
    lines: Vec<Line>,
    /// The files that these are about.
    pub(super) looked_at: Vec<FileRef>,
    /// Files of which nothing is left.
    pub(super) removed: Vec<FileRef>,
    pub(super) rows: Option<u64>,
}

impl Found {
    /// Whether nothing goes.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.removed.is_empty()
    }

    /// Adds what goes of other files.
    pub(super) fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.looked_at.extend(other.looked_at);
        self.removed.extend(other.removed);
        self.rows = self.rows.zip(other.rows).map(|(a, b)| a + b);
    }
}

async fn find(table: &Table, newest: &Snapshot, filter: &Predicate) -> Result<Found> {
    let manifest = &newest.manifest;
    let columns = TableColumns::from_manifest(manifest)?;
    let filter = Arc::new(filter.bind(&columns, &**table.store().clock())?);
    let rows = SnapshotReader::new(table, Arc::clone(manifest), Some(Arc::clone(&filter))).await?;
    let by_key = rows.key_id().and_then(|id| {
        let place = columns.ids.iter().position(|known| *known == id)?;
        let range = filter.to_closed_range(columns.schema.field(place).name())?;
        by_key(&rows, id, &range)
    });
    match by_key {
        Some(found) => Ok(found),
        None => by_row(&rows).await,
    }
}

/// A range of the key, without reading a row; None where a file's own bounds would be needed to say
/// it and are not known.
fn by_key(rows: &SnapshotReader, id: u32, range: &ClosedRange) -> Option<Found> {
    let mut found = Found::default();
    if matches!((number(range.min.as_ref()), number(range.max.as_ref())), (Some(a), Some(b)) if a > b)
    {
        return Some(found);
    }
    for listed in &rows.files {
        let file = &listed.file;
        let (low, high) = (file.min.get(&id), file.max.get(&id));
        let min = range.min.as_ref().or(low)?;
        let max = range.max.as_ref().or(high)?;
        if holds_all(file, id, min, max) {
            found.removed.push(listed.reference());
            continue;
        }
        found.looked_at.push(listed.reference());
        found.lines.push(Line {
            file: file.path.clone(),
            deleted: Deleted::Keys(min.clone(), max.clone()),
        });
    }
    Some(found)
}

/// Whether the file's keys certainly all lie in a range of whole numbers.
fn holds_all(file: &DataFile, id: u32, min: &Value, max: &Value) -> bool {
    let (low, high) = (number(file.min.get(&id)), number(file.max.get(&id)));
    let (min, max) = (number(Some(min)), number(Some(max)));
    file.null_counts.get(&id) == Some(&0)
        && matches!((low, high, min, max), (Some(l), Some(h), Some(min), Some(max)) if min <= l && h <= max)
}

fn number(value: Option<&Value>) -> Option<i64> {
    value.and_then(Value::as_i64)
}

/// The rows, by looking at every row group that may hold some.
pub(super) async fn by_row(rows: &SnapshotReader) -> Result<Found> {
    let files = (0..rows.files.len()).map(|file| rows_of(rows, file));
    let files: Vec<Found> = stream::iter(files)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    let mut all = Found {
        rows: Some(0),
        ..Found::default()
    };
    for found in files {
        all.add(found);
    }
    Ok(all)
}

async fn rows_of(rows: &SnapshotReader, file: usize) -> Result<Found> {
    let units = rows.open_row_groups(file).await?;
    let looked = units.iter().map(|unit| async move {
        let selection = rows.select(unit).await?;
        let hit = match &selection.mask {
            Some(kept) => kept.values().set_indices_u32().collect::<RoaringBitmap>(),
            None => (0..).take(unit.num_rows()).collect(),
        };
        Ok::<_, Error>(Hit {
            unit: unit.clone(),
            is_whole: hit.len() == selection.live_rows as u64,
            rows: hit,
        })
    });
    let looked: Vec<Hit> = stream::iter(looked)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    Ok(found_in(rows, file, looked))
}

/// Rows of a row group that go.
pub(super) struct Hit {
    pub(super) unit: RowGroupScan,
    pub(super) rows: RoaringBitmap,
    /// They are all that is left of it.
    pub(super) is_whole: bool,
}

/// What goes of a file, of whose row groups these were looked at.
pub(super) fn found_in(rows: &SnapshotReader, file: usize, looked: Vec<Hit>) -> Found {
    let listed = &rows.files[file];
    let count = looked.iter().map(|hit| hit.rows.len()).sum();
    let nothing_is_left = looked.first().is_some_and(|first| {
        let groups = looked.len() + first.unit.num_deleted_row_groups();
        groups == first.unit.num_file_row_groups() && looked.iter().all(|hit| hit.is_whole)
    });
    if nothing_is_left {
        return Found {
            removed: vec![listed.reference()],
            rows: Some(count),
            ..Found::default()
        };
    }
    let lines = looked.into_iter().filter(|hit| !hit.rows.is_empty());
    let lines = lines.map(|hit| {
        let number = u32::try_from(hit.unit.group).unwrap_or(u32::MAX);
        let deleted = if hit.is_whole {
            Deleted::RowGroup(number)
        } else {
            Deleted::Rows(number, hit.rows)
        };
        Line {
            file: listed.file.path.clone(),
            deleted,
        }
    });
    let lines: Vec<Line> = lines.collect();
    let looked_at = (!lines.is_empty()).then(|| listed.reference());
    Found {
        lines,
        looked_at: looked_at.into_iter().collect(),
        removed: Vec::new(),
        rows: Some(count),
    }
}

/// Writes the tombstone file, if any.
pub(super) async fn write_tombstones(
    table: &Table,
    newest: &Snapshot,
    found: &Found,
) -> Result<Option<Tombstones>> {
    if found.lines.is_empty() {
        return Ok(None);
    }
    let files = found.looked_at.iter().map(|f| f.path.clone()).collect();
    let version = newest.manifest.version;
    let written = put_tombstones(table, version, &found.lines, files, found.rows).await?;
    Ok(Some(written))
}

/// Writes a tombstone file that is about `files`.
pub(super) async fn put_tombstones(
    table: &Table,
    version: u64,
    lines: &[Line],
    files: Vec<String>,
    deleted_rows: Option<u64>,
) -> Result<Tombstones> {
    let clock = table.store().clock();
    let bytes = tombstone::encode(lines);
    let described = Tombstones {
        path: names::tombstones(clock.now(), version, clock.new_id()),
        size_bytes: bytes.len() as u64,
        files,
        deleted_rows,
    };
    let path = table.path(&described.path);
    table.store().put(&path, bytes, PutMode::Overwrite).await?;
    Ok(described)
}
