//! Merges small tombstone files: an operation of its own at the end of a compaction.
//!
//! The merged files hold the same deletions. Deletions only grow, so it does no harm if a concurrent commit
//! has merged some of the sources already; a restore is a conflict ([`Replace`]).

use std::sync::Arc;

use super::actions::{MergedTombstones, Replace};
use super::delete::put_tombstones;
use super::format::{TableManifest, Tombstones};
use super::snapshot_file::ListedAt;
use super::snapshot_reader::SnapshotReader;
use super::targets::{FileIndex, TargetSet};
use super::tombstone::{self, Deletions, TombstoneLine};
use super::tombstone_reader::read_lines;
use super::{Snapshot, Staged, Table};
use crate::error::{Error, Result};
use crate::versions::Operation;

/// A tombstone file of fewer bytes is merged with others.
const SMALL_TOMBSTONE_BYTES: u64 = 1 << 20;

/// Merges the small tombstone files of a table.
pub(super) struct MergeTombstones<'a> {
    pub(super) table: &'a Table,
    /// The name of the operation for the history.
    pub(super) name: &'static str,
    /// The paths of merged files that the last plan wrote.
    pub(super) written: Vec<String>,
}

impl Operation<TableManifest> for MergeTombstones<'_> {
    type Change = Replace;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<Replace>> {
        staged.retire(&std::mem::take(&mut self.written));
        let manifest = &base.manifest;
        let sources = mergeable_tombstones(manifest);
        if sources.is_empty() {
            return Ok(None);
        }
        let reader = SnapshotReader::new(self.table, Arc::clone(manifest), None).await?;
        let written = merge_tombstones(self.table, &reader, &sources, staged).await?;
        self.written = written.iter().map(|t| t.path.clone()).collect();
        Ok(Some(Replace {
            operation: self.name,
            removed: Vec::new(),
            applied_tombstones: Vec::new(),
            added: Vec::new(),
            merged: MergedTombstones {
                sources: sources.into_iter().cloned().collect(),
                written,
            },
            base_version: manifest.version,
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

/// The tombstone files to merge: the small ones, if merging them makes them fewer.
fn mergeable_tombstones(manifest: &TableManifest) -> Vec<&Tombstones> {
    let tombstones = manifest.tombstones.iter();
    let small: Vec<&Tombstones> = tombstones
        .filter(|t| t.size_bytes < SMALL_TOMBSTONE_BYTES)
        .collect();
    let bytes: u64 = small.iter().map(|t| t.size_bytes).sum();
    // Any two neighbors that come from a merge have more bytes together than SMALL_TOMBSTONE_BYTES.
    if small.len() as u64 > 2 * (bytes / SMALL_TOMBSTONE_BYTES) + 1 {
        return small;
    }
    Vec::new()
}

/// Writes the deletions of `sources` as few tombstone files, each about neighboring data files.
async fn merge_tombstones(
    table: &Table,
    reader: &SnapshotReader,
    sources: &[&Tombstones],
    staged: &mut Staged,
) -> Result<Vec<Tombstones>> {
    let files = FileIndex::of_files(&reader.files);
    let lines = read_lines(table, reader.manifest(), sources.to_vec(), &files, None).await?;
    let targets = TargetSet::new(sources.iter().copied());
    let by_file = Deletions::by_file(&lines);
    let mut merged = Vec::new();
    let mut pending: (Vec<TombstoneLine>, Vec<ListedAt<'_>>, usize) = Default::default();
    let mut flush = async |(lines, files, _): (Vec<TombstoneLine>, Vec<ListedAt<'_>>, usize)| {
        if lines.is_empty() {
            return Ok(());
        }
        let version = reader.manifest().version;
        let mut tombstones = put_tombstones(table, version, &lines, staged).await?;
        for listed_at in files {
            targets.copy_target(listed_at, &mut tombstones);
        }
        merged.push(tombstones);
        Ok::<_, Error>(())
    };
    for listed in &reader.files {
        let path = &listed.file.path;
        let Some(deletions) = by_file.get(path) else {
            continue;
        };
        let lines = deletions.to_lines(path);
        let bytes = tombstone::encode(&lines)?.len();
        if (pending.2 + bytes) as u64 > SMALL_TOMBSTONE_BYTES {
            flush(std::mem::take(&mut pending)).await?;
        }
        pending.0.extend(lines);
        pending.1.push(listed.listed_at());
        pending.2 += bytes;
    }
    flush(pending).await?;
    Ok(merged)
}
