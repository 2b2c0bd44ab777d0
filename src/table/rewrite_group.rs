//! Rewrites one group of data files with the same rows: what a compaction and a sort commit.
//!
//! The group's files are chosen before; each plan reads them as the newest snapshot lists them. What was written
//! stays right as long as no version was restored and exactly the rows that the new files leave out are deleted
//! ([`Deletions::includes`], in both directions), wherever the files and their tombstones are listed by then.
//! Otherwise the group is written again, without files that have left the table.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::actions::{MergedTombstones, Replace};
use super::format::{DataFile, TableManifest};
use super::listing::all_files;
use super::snapshot_file::SnapshotFile;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use super::tombstone::Deletions;
use super::write::{TableWriteOptions, upload};
use super::{Snapshot, Staged, Table};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{BoxedReader, align_to_schema, stream_files};
use crate::versions::{Operation, remove};

/// Where files are listed, as far as it was read. All groups of a compaction share it: all lists are read again
/// only when a file is not where it was.
#[derive(Debug)]
pub(super) struct FileLocations {
    table: Table,
    files: HashMap<String, SnapshotFile>,
}

impl FileLocations {
    pub(super) fn new(table: &Table, files: &[SnapshotFile]) -> Self {
        let by_path = files.iter().map(|f| (f.file.path.clone(), f.clone()));
        Self {
            table: table.clone(),
            files: by_path.collect(),
        }
    }

    /// The files of these paths that a snapshot lists.
    async fn find(
        &mut self,
        manifest: &TableManifest,
        paths: &[String],
    ) -> Result<Vec<SnapshotFile>> {
        let known = |files: &HashMap<String, SnapshotFile>| -> Vec<SnapshotFile> {
            paths
                .iter()
                .filter_map(|path| files.get(path).cloned())
                .collect()
        };
        let files = known(&self.files);
        let references: Vec<_> = files.iter().map(SnapshotFile::to_file_ref).collect();
        let inline: HashMap<&str, &DataFile> = manifest
            .data_files
            .iter()
            .map(|file| (file.path.as_str(), file))
            .collect();
        // A path that left the manifest may have come back with another file.
        let are_same = files.iter().all(|known| {
            let listed = inline.get(known.file.path.as_str());
            listed.is_none_or(|file| **file == known.file)
        });
        if files.len() == paths.len() && manifest.contains_all(&references) && are_same {
            return Ok(files);
        }
        let listed = all_files(&self.table, manifest).await?.into_iter();
        self.files = listed.map(|f| (f.file.path.clone(), f)).collect();
        Ok(known(&self.files))
    }
}

/// New files for a group.
struct WrittenGroup {
    files: Vec<DataFile>,
    /// The version that was read.
    version: u64,
    /// By path the files that were read, and their deletions, which the new files leave out.
    sources: HashMap<String, Deletions>,
}

impl WrittenGroup {
    /// Whether the new files hold the rows of the reader's files.
    fn is_of(&self, reader: &SnapshotReader) -> bool {
        let none = Deletions::default();
        !reader.manifest().was_restored_since(self.version)
            && self.version >= reader.manifest().gc_floor
            && self.sources.len() == reader.files.len()
            && reader.files.iter().enumerate().all(|(index, listed)| {
                let deletions = reader.deletions_of(index).unwrap_or(&none);
                self.sources
                    .get(&listed.file.path)
                    .is_some_and(|d| d.includes(deletions) && deletions.includes(d))
            })
    }
}

/// Rewrites a group of files.
pub(super) struct RewriteGroup<'a> {
    table: &'a Table,
    /// The name of the operation for the history.
    name: &'static str,
    options: &'a TableWriteOptions,
    /// The reader of all files when the group was chosen.
    planned_on: &'a SnapshotReader,
    locations: &'a mut FileLocations,
    paths: Vec<String>,
    /// Fewer files are not worth a rewrite.
    min_files: usize,
    written: Option<WrittenGroup>,
    /// Another process has written the group, so it is not written again.
    is_written_elsewhere: bool,
}

impl<'a> RewriteGroup<'a> {
    pub(super) fn new(
        table: &'a Table,
        name: &'static str,
        options: &'a TableWriteOptions,
        planned_on: &'a SnapshotReader,
        locations: &'a mut FileLocations,
        (paths, min_files): (Vec<String>, usize),
    ) -> Self {
        Self {
            table,
            name,
            options,
            planned_on,
            locations,
            paths,
            min_files,
            written: None,
            is_written_elsewhere: false,
        }
    }
}

impl<'a> RewriteGroup<'a> {
    /// A group of which another process has written the files, from the snapshot `planned_on`. It conflicts with changes of
    /// these files and of their deletions since then.
    pub(super) fn written(
        table: &'a Table,
        name: &'static str,
        options: &'a TableWriteOptions,
        planned_on: &'a SnapshotReader,
        locations: &'a mut FileLocations,
        (paths, files): (Vec<String>, Vec<DataFile>),
    ) -> Self {
        let replaced: HashSet<&str> = paths.iter().map(String::as_str).collect();
        let sources = planned_on
            .files
            .iter()
            .enumerate()
            .filter(|(_, listed)| replaced.contains(listed.file.path.as_str()))
            .map(|(index, listed)| {
                let deletions = planned_on.deletions_of(index).cloned();
                (listed.file.path.clone(), deletions.unwrap_or_default())
            });
        let written = WrittenGroup {
            files,
            version: planned_on.manifest().version,
            sources: sources.collect(),
        };
        let group = (paths, 1);
        Self {
            written: Some(written),
            is_written_elsewhere: true,
            ..Self::new(table, name, options, planned_on, locations, group)
        }
    }
}

impl Operation<TableManifest> for RewriteGroup<'_> {
    type Change = Replace;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<Replace>> {
        let manifest = &base.manifest;
        let reader = self.open(manifest).await?;
        let written = match self.written.take() {
            Some(written) if written.is_of(&reader) => written,
            outdated => {
                if let Some(outdated) = outdated {
                    staged.retire(outdated.files.iter().map(|f| &f.path));
                }
                if self.is_written_elsewhere && !reader.files.is_empty() {
                    let message = "others have changed the files while they were rewritten";
                    return Err(Error::new(ErrorKind::CommitConflict, message));
                }
                if self.is_written_elsewhere || reader.files.len() < self.min_files {
                    return Ok(None);
                }
                self.write(&reader, staged).await?
            }
        };
        let files = FileIndex::of_files(&reader.files);
        let tombstones = manifest.tombstones.iter();
        let touching = tombstones.filter(|t| files.has_targets_of(t));
        let change = Replace {
            operation: self.name,
            removed: reader.files.iter().map(SnapshotFile::to_file_ref).collect(),
            applied_tombstones: touching.map(|t| t.path.clone()).collect(),
            added: written.files.clone(),
            merged: MergedTombstones::default(),
            base_version: manifest.version,
        };
        self.written = Some(written);
        Ok(Some(change))
    }

    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

impl RewriteGroup<'_> {
    /// A reader of the files of the group that a snapshot lists.
    async fn open(&mut self, manifest: &Arc<TableManifest>) -> Result<Arc<SnapshotReader>> {
        let files = self.locations.find(manifest, &self.paths).await?;
        let reader = self
            .planned_on
            .with_newer_files(Arc::clone(manifest), files);
        Ok(Arc::new(reader.await?))
    }

    /// Writes the rows of the files as new files.
    async fn write(
        &self,
        reader: &Arc<SnapshotReader>,
        staged: &mut Staged,
    ) -> Result<WrittenGroup> {
        let files = rewrite_files(self.table, reader, self.options).await?;
        staged.add(files.iter().map(|f| f.path.clone()));
        let listed = reader.files.iter().enumerate();
        let sources = listed.map(|(index, listed)| {
            let deletions = reader.deletions_of(index).cloned();
            (listed.file.path.clone(), deletions.unwrap_or_default())
        });
        Ok(WrittenGroup {
            files,
            version: reader.manifest().version,
            sources: sources.collect(),
        })
    }
}

/// Writes the rows of a reader as new files, and checks their number.
pub(super) async fn rewrite_files(
    table: &Table,
    reader: &Arc<SnapshotReader>,
    options: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    rewrite_rows(table, reader, options, Ok).await
}

/// As [`rewrite_files`], with the rows as `transform` returns them.
pub(super) async fn rewrite_rows(
    table: &Table,
    reader: &Arc<SnapshotReader>,
    options: &TableWriteOptions,
    transform: impl FnOnce(BoxedReader) -> Result<BoxedReader>,
) -> Result<Vec<DataFile>> {
    let columns = reader.columns.project(None)?;
    let indices = (0..reader.files.len()).collect();
    let scan = stream_files(Arc::clone(reader), indices, columns, None)?;
    let input = align_to_schema(Box::new(scan.into_reader()), &reader.columns.schema)?;
    let input = transform(input)?;
    let files = upload(table, reader.manifest(), input, options).await?;
    let before = reader
        .files
        .iter()
        .map(|f| f.file.total_rows)
        .fold(0, u64::saturating_add);
    let after: u64 = files.iter().map(|f| f.total_rows).sum();
    let untouched =
        !reader.has_filter() && (0..reader.files.len()).all(|f| reader.deletions_of(f).is_none());
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
