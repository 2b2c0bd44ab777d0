//! Reads the tombstone files of a snapshot.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::format::{TableManifest, Tombstones, corrupted_error};
use super::object_cache::{ObjectCache, read_object};
use super::snapshot_file::SnapshotFile;
use super::targets::FileIndex;
use super::tombstone::{self, Deletions, TombstoneLine};
use crate::error::Result;

/// Number of tombstone files read at once.
const CONCURRENT_TOMBSTONES: usize = 16;

/// The deletions in some files of a snapshot, by path.
pub(super) async fn read_deletions(
    table: &Table,
    manifest: &TableManifest,
    files: &[SnapshotFile],
    cache: Option<&ObjectCache>,
) -> Result<BTreeMap<String, Arc<Deletions>>> {
    let files = FileIndex::of_files(files);
    let tombstones = manifest.tombstones.iter();
    let touching = tombstones.filter(|t| files.has_targets_of(t));
    let lines = read_lines(table, manifest, touching.collect(), &files, cache).await?;
    let by_file = Deletions::by_file(&lines);
    Ok(by_file.into_iter().map(|(f, d)| (f, Arc::new(d))).collect())
}

/// The lines of some of a snapshot's tombstone files about some of its files.
pub(super) async fn read_lines(
    table: &Table,
    manifest: &TableManifest,
    tombstones: Vec<&Tombstones>,
    files: &FileIndex<'_>,
    cache: Option<&ObjectCache>,
) -> Result<Vec<TombstoneLine>> {
    let reads = tombstones.into_iter().map(|tombstone_file| async move {
        let read = read_file(table, manifest, tombstone_file, cache).await;
        // Lines about files that the manifest does not name for this tombstone do not count,
        // although such a file may have come back.
        let targets: HashSet<&str> = files.targets_of(tombstone_file).collect();
        read.map(|mut lines| {
            lines.retain(|line| targets.contains(line.file.as_str()));
            lines
        })
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = reads.collect();
    let lines: Vec<Vec<TombstoneLine>> = stream::iter(tasks)
        .buffered(CONCURRENT_TOMBSTONES)
        .try_collect()
        .await?;
    Ok(lines.into_iter().flatten().collect())
}

/// All lines of a snapshot's tombstone file.
pub(super) async fn read_file(
    table: &Table,
    manifest: &TableManifest,
    tombstone_file: &Tombstones,
    cache: Option<&ObjectCache>,
) -> Result<Vec<TombstoneLine>> {
    let path = table.path(&tombstone_file.path);
    let max_bytes = tombstone::MAX_TOMBSTONE_BYTES;
    let bytes = match read_object(table, &tombstone_file.path, max_bytes, cache).await {
        Ok(bytes) => bytes,
        Err(e) => {
            return Err(table
                .missing_reference_error(manifest, &tombstone_file.path, e)
                .await);
        }
    };
    let length = bytes.len() as u64;
    if length != tombstone_file.size_bytes {
        // Lines that are cut off would bring rows back.
        let expected = tombstone_file.size_bytes;
        let reason = format!("it has {length} bytes, the manifest says {expected}");
        return Err(corrupted_error(&tombstone_file.path, &reason).with_path(&path));
    }
    let parsed = tombstone::parse(&bytes, &tombstone_file.path);
    parsed.map_err(|e| e.with_path(&path))
}

/// The pairs of a tombstone file and one of some data files that it is about. Equal pairs mean equal deletions.
pub(super) fn tombstoned_files<'a>(
    tombstones: &'a [Tombstones],
    files: &FileIndex<'a>,
) -> HashSet<(&'a str, &'a str)> {
    let pairs = tombstones
        .iter()
        .flat_map(|t| files.targets_of(t).map(|path| (&*t.path, path)));
    pairs.collect()
}
