//! Compaction by many processes: one chooses groups of files, others rewrite a group each, one commits them.
//!
//! The groups are those of a local compaction ([`super::compact`]), and each is a commit of its own with the rules of a
//! local one. But a group is not written again: if others have changed its files or their deletions, it stays as it is.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::compact::{Compaction, CompactionProgress, choose_groups};
use super::format::{CommitId, DataFile, TableManifest};
use super::rewrite_group::{FileLocations, RewriteGroup, rewrite_files};
use super::scan_tasks::pack_groups;
use super::snapshot_reader::SnapshotReader;
use super::staged::check_descends;
use super::write::TableWriteOptions;
use super::{Predicate, Staged, Table};
use crate::error::{Error, Result};
use crate::versions::remove;

/// A group of files that was rewritten.
#[derive(Debug, Serialize, Deserialize)]
pub struct RewrittenGroup {
    /// The version that was read.
    version: u64,
    commit_id: CommitId,
    replaced: Vec<String>,
    added: Vec<DataFile>,
}

impl RewrittenGroup {
    /// New files without the paths of those that they replace.
    pub(super) fn new(version: u64, commit_id: CommitId, added: Vec<DataFile>) -> Self {
        Self {
            version,
            commit_id,
            replaced: Vec::new(),
            added,
        }
    }

    /// New files in place of all files of a reader.
    pub(super) fn of_all(reader: &SnapshotReader, added: Vec<DataFile>) -> Self {
        let replaced = reader.files.iter().map(|listed| listed.file.path.clone());
        Self {
            replaced: replaced.collect(),
            ..Self::new(
                reader.manifest.version,
                reader.manifest.commit_id.clone(),
                added,
            )
        }
    }

    pub(super) fn into_added(self) -> Vec<DataFile> {
        self.added
    }
}

/// The groups that [`super::compact()`] would rewrite of a version, each as a task of a scan.
pub async fn plan_rewrites(
    table: &Table,
    manifest: Arc<TableManifest>,
    target_bytes: u64,
    predicate: Option<&Predicate>,
) -> Result<Vec<Vec<u8>>> {
    let reader = SnapshotReader::new(table, Arc::clone(&manifest), None).await?;
    let groups = choose_groups(table, &reader, target_bytes, predicate).await?;
    pack_groups(&manifest, &reader.files, &groups)
}

/// Writes the rows of a task's files as new files, which no version names.
pub async fn rewrite_task(
    table: &Table,
    task: Arc<TableManifest>,
    options: &TableWriteOptions,
) -> Result<RewrittenGroup> {
    let reader = Arc::new(SnapshotReader::new(table, task, None).await?);
    let added = rewrite_files(table, &reader, options).await?;
    Ok(RewrittenGroup::of_all(&reader, added))
}

/// Commits groups that were rewritten from the version `base`, one after the other, and merges small tombstone files. The
/// files of groups that are not committed for certain are removed: the same groups must not be committed twice. None
/// if nothing was to be committed; [`crate::ErrorKind::CommitConflict`] if others have changed the files of all groups.
pub async fn commit_rewrites(
    table: &Table,
    base: Arc<TableManifest>,
    groups: Vec<RewrittenGroup>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    commit_named(table, "compact", base, groups, options).await
}

/// As [`commit_rewrites`], by operations of this name.
pub(super) async fn commit_named(
    table: &Table,
    name: &'static str,
    base: Arc<TableManifest>,
    groups: Vec<RewrittenGroup>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let mut pending = VecDeque::from(groups);
    let result = commit_groups(table, name, base, &mut pending, options).await;
    if result.is_err() {
        let paths = pending.iter().flat_map(|group| &group.added);
        let paths: Vec<String> = paths.map(|file| file.path.clone()).collect();
        remove(table, &paths).await;
    }
    result
}

/// Commits groups, and takes each out before.
async fn commit_groups(
    table: &Table,
    name: &'static str,
    base: Arc<TableManifest>,
    pending: &mut VecDeque<RewrittenGroup>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let is_of_base =
        |group: &RewrittenGroup| group.version == base.version && group.commit_id == base.commit_id;
    if !pending.iter().all(is_of_base) {
        return Err(Error::invalid(
            "the files were rewritten from another version",
        ));
    }
    let newest = table.newest().await?;
    check_descends(table, &newest.manifest, &base).await?;
    let planned_on = SnapshotReader::new(table, base, None).await?;
    let mut locations = FileLocations::new(table, &planned_on.files);
    let mut compaction = CompactionProgress::new(table, newest);
    while let Some(group) = pending.pop_front() {
        let mut staged = Staged::new(table);
        staged.add(group.added.iter().map(|file| file.path.clone()));
        let group = (group.replaced, group.added);
        let mut operation =
            RewriteGroup::written(table, name, options, &planned_on, &mut locations, group);
        compaction.run(&mut operation, staged, options).await?;
    }
    compaction.merge_tombstones(options).await?;
    compaction.finish()
}
