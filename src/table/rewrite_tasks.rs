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
use super::write::TableWriteOptions;
use super::{OpenedColumns, Predicate, Staged, Table};
use crate::error::{Error, Result};
use crate::versions::{Ancestor, remove};

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
    /// New files in place of all files of a reader.
    pub(super) fn of_all(reader: &SnapshotReader, added: Vec<DataFile>) -> Self {
        let replaced = reader.files.iter().map(|listed| listed.file.path.clone());
        Self {
            version: reader.manifest().version,
            commit_id: reader.manifest().commit_id.clone(),
            replaced: replaced.collect(),
            added,
        }
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
    let opened = OpenedColumns::of(&manifest);
    let predicate = predicate.map(|predicate| (predicate, &opened));
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
    let mut pending = VecDeque::from(groups);
    let committed = async {
        let mut compaction = commit_groups(table, "compact", base, &mut pending, options).await?;
        compaction.merge_tombstones(options).await?;
        compaction.finish()
    };
    let result = committed.await;
    if result.is_err() {
        remove_files(table, &pending).await;
    }
    result
}

/// Commits one group, and nothing else, by an operation of this name; otherwise as [`commit_rewrites`].
pub(super) async fn commit_alone(
    table: &Table,
    name: &'static str,
    base: Arc<TableManifest>,
    group: RewrittenGroup,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let mut pending = VecDeque::from([group]);
    match commit_groups(table, name, base, &mut pending, options).await {
        Ok(compaction) => compaction.finish(),
        Err(e) => {
            remove_files(table, &pending).await;
            Err(e)
        }
    }
}

async fn remove_files(table: &Table, groups: &VecDeque<RewrittenGroup>) {
    let paths: Vec<String> = groups
        .iter()
        .flat_map(|group| &group.added)
        .map(|file| file.path.clone())
        .collect();
    remove(table, &paths).await;
}

/// Commits groups, and takes each out before.
async fn commit_groups<'a>(
    table: &'a Table,
    name: &'static str,
    base: Arc<TableManifest>,
    pending: &mut VecDeque<RewrittenGroup>,
    options: &TableWriteOptions,
) -> Result<CompactionProgress<'a>> {
    let is_of_base =
        |group: &RewrittenGroup| group.version == base.version && group.commit_id == base.commit_id;
    if !pending.iter().all(is_of_base) {
        return Err(Error::invalid(
            "the files were rewritten from another version",
        ));
    }
    let newest = table.newest().await?;
    let begun = Ancestor::of(&*base);
    begun.check_descends(table, &newest.manifest).await?;
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
    Ok(compaction)
}
