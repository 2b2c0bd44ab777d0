//! Reads the tombstone files of a snapshot.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::folder::Table;
use super::format::{TableManifest, Tombstones};
use super::listing::SnapshotFile;
use super::tombstone::{self, Deletions, TombstoneLine};
use crate::error::Result;

/// Number of tombstone files read at once.
const CONCURRENT_TOMBSTONES: usize = 16;

/// The deletions in some files of a snapshot, by path.
pub(super) async fn read_deletions(
    table: &Table,
    manifest: &TableManifest,
    files: &[SnapshotFile],
) -> Result<BTreeMap<String, Arc<Deletions>>> {
    let paths: HashSet<&str> = files.iter().map(|f| f.file.path.as_str()).collect();
    let touching = manifest
        .tombstones
        .iter()
        .filter(|t| t.files.iter().any(|f| paths.contains(f.as_str())));
    let lines = read_lines(table, manifest, touching.collect()).await?;
    let by_file = Deletions::by_file(&lines);
    Ok(by_file.into_iter().map(|(f, d)| (f, Arc::new(d))).collect())
}

/// The lines of some of a snapshot's tombstone files.
pub(super) async fn read_lines(
    table: &Table,
    manifest: &TableManifest,
    tombstones: Vec<&Tombstones>,
) -> Result<Vec<TombstoneLine>> {
    let reads = tombstones.into_iter().map(|tombstone_file| async move {
        let path = table.path(&tombstone_file.path);
        let request =
            table
                .store()
                .get_at_most(&path, GetOptions::default(), tombstone::MAX_TOMBSTONE_BYTES);
        match request.await {
            Ok((bytes, _)) => {
                let parsed = tombstone::parse(&bytes, &tombstone_file.path);
                let mut lines = parsed.map_err(|e| e.with_path(&path))?;
                // Lines about files that the manifest does not name for this tombstone do not count,
                // although such a file may have come back.
                let files: HashSet<&str> =
                    tombstone_file.files.iter().map(String::as_str).collect();
                lines.retain(|line| files.contains(line.file.as_str()));
                Ok(lines)
            }
            Err(e) => Err(table
                .missing_object_error(manifest.version, &tombstone_file.path, e)
                .await),
        }
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = reads.collect();
    let lines: Vec<Vec<TombstoneLine>> = stream::iter(tasks)
        .buffered(CONCURRENT_TOMBSTONES)
        .try_collect()
        .await?;
    Ok(lines.into_iter().flatten().collect())
}

/// The pairs of a tombstone file and one of some data files that it is about. Equal pairs mean equal deletions.
pub(super) fn tombstoned_files(
    manifest: &TableManifest,
    paths: &HashSet<&str>,
) -> HashSet<(String, String)> {
    let pairs = manifest.tombstones.iter().flat_map(|t| {
        let files = t.files.iter().filter(|f| paths.contains(f.as_str()));
        files.map(|f| (t.path.clone(), f.clone()))
    });
    pairs.collect()
}
