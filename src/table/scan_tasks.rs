//! A scan as tasks, each for a process of its own.
//!
//! A task is a manifest of the same version that lists some of its files ([`split_scan`]): who has it reads no other
//! list. The rows of all tasks, one task after the other, are those of the scan in their order.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;

use super::format::{TableManifest, Tombstones};
use super::snapshot_file::SnapshotFile;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use super::{Table, Versioned};
use crate::error::{Error, Result};
use crate::files::expr::Filter;

/// The most bytes of the manifest of a task.
const MAX_TASK_BYTES: u64 = 256 << 20;
const ZSTD_LEVEL: i32 = 3;

/// How large tasks are.
#[derive(Debug, Clone, Copy)]
pub struct TaskSizes {
    /// How many tasks there should be, unless their sizes would be beyond the limits.
    pub count: u64,
    /// The least bytes of the files of a task. All tasks but the last have as many, unless the next file is too large.
    pub min_bytes: u64,
    /// The most bytes of the files of a task that has more than one.
    pub max_bytes: u64,
}

/// Splits a scan of the rows that match a filter into tasks. Files without such rows, as far as statistics tell, are left
/// out. Without files there is no task. A task is a manifest as JSON, compressed with zstd.
pub async fn split_scan(
    table: &Table,
    manifest: Arc<TableManifest>,
    filter: Option<Arc<Filter>>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let files = SnapshotReader::find_files(table, Arc::clone(&manifest), filter).await?;
    let total = files
        .iter()
        .map(|f| f.file.size_bytes)
        .fold(0, u64::saturating_add);
    let limit = (total / sizes.count.max(1)).clamp(sizes.min_bytes, sizes.max_bytes);
    let common = TableManifest {
        segments: Vec::new(),
        data_files: Vec::new(),
        tombstones: Vec::new(),
        recent_commits: manifest.recent_commits.iter().take(1).cloned().collect(),
        transactions: BTreeMap::new(),
        older_transactions: Vec::new(),
        tags: BTreeMap::new(),
        ..TableManifest::clone(&manifest)
    };
    let tasks = group_by_size(&files, limit).into_iter();
    let packed = tasks.map(|files| {
        let task = restrict(&common, &manifest.tombstones, files);
        let packed = zstd::bulk::compress(&task.to_bytes(), ZSTD_LEVEL);
        packed.map_err(|e| Error::other("a task of a scan cannot be packed").with_source(e))
    });
    packed.collect()
}

/// The manifest of a task. [`crate::ErrorKind::InvalidInput`] for bytes that are none.
pub fn parse_task(task: &[u8]) -> Result<TableManifest> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Error::invalid(format!("these bytes are no task of a scan: {reason}"))
    };
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(task).map_err(|e| invalid(&e))?;
    let mut decoder = decoder.take(MAX_TASK_BYTES);
    decoder.read_to_end(&mut json).map_err(|e| invalid(&e))?;
    let version: TaskVersion = serde_json::from_slice(&json).map_err(|e| invalid(&e))?;
    TableManifest::parse(&json, version.version).map_err(|e| invalid(&e.message()))
}

#[derive(Deserialize)]
struct TaskVersion {
    version: u64,
}

/// Groups neighbors whose sizes together are not above a limit.
fn group_by_size(files: &[SnapshotFile], limit: u64) -> Vec<&[SnapshotFile]> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0_u64);
    for (position, file) in files.iter().enumerate() {
        let size = file.file.size_bytes;
        if position > first && bytes.saturating_add(size) > limit {
            groups.push(&files[first..position]);
            (first, bytes) = (position, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    if first < files.len() {
        groups.push(&files[first..]);
    }
    groups
}

/// The manifest of a task: its files, and the tombstones that are about them.
fn restrict(
    common: &TableManifest,
    tombstones: &[Tombstones],
    files: &[SnapshotFile],
) -> TableManifest {
    let index = FileIndex::of_files(files);
    let touching = tombstones.iter().filter(|t| index.has_targets_of(t));
    let tombstones = touching.map(|tombstones| Tombstones {
        files: index.targets_of(tombstones).map(str::to_owned).collect(),
        positions: BTreeMap::new(),
        ..tombstones.clone()
    });
    let data_files = files.iter().map(|listed| {
        let mut file = listed.file.clone();
        // They have told what they can.
        file.min.clear();
        file.max.clear();
        file.null_counts.clear();
        file
    });
    TableManifest {
        data_files: data_files.collect(),
        tombstones: tombstones.collect(),
        ..common.clone()
    }
}
