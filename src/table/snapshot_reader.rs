//! Reads the rows of a snapshot that are not deleted and that match a filter.
//!
//! A [`SnapshotReader`] lists the files that may hold such rows, by their statistics, with their
//! deletions; how it reads them is in [`crate::files`].
//!
//! A missing object is an error of the kind `VersionExpired` if a vacuum has removed the version, otherwise
//! `PartCorrupted`; so is a file whose length or number of rows differs from the manifest.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use futures::future::BoxFuture;

use super::Table;
use super::format::{DataFile, TableManifest};
use super::listing;
use super::object_cache::ObjectCache;
use super::segment::to_data_file;
use super::snapshot_file::SnapshotFile;
use super::targets::FileIndex;
use super::tombstone::Deletions;
use super::tombstone_reader::{read_deletions, tombstoned_files};
use crate::error::{Error, Result};
use crate::files::expr::Filter;
use crate::files::{FileScanner, FileShare, FileSource, TableColumns};
use crate::store::Store;

/// Reads the rows of a snapshot, all of them or those that match a filter.
pub(super) type SnapshotReader = FileScanner<SnapshotFiles>;

/// The files of a snapshot.
#[derive(Debug)]
pub(super) struct SnapshotFiles {
    table: Table,
    manifest: Arc<TableManifest>,
    cache: Option<Arc<ObjectCache>>,
}

impl FileSource for SnapshotFiles {
    type Listed = SnapshotFile;

    fn entry(file: &SnapshotFile) -> &DataFile {
        &file.file
    }

    fn store(&self) -> &Store {
        self.table.store()
    }

    fn path(&self, relative: &str) -> String {
        self.table.path(relative)
    }

    fn share_of(&self, path: &str) -> Option<FileShare> {
        self.manifest.shares.get(path).copied()
    }

    fn missing_object_error<'a>(&'a self, path: &'a str, error: Error) -> BoxFuture<'a, Error> {
        let manifest = &*self.manifest;
        Box::pin(self.table.missing_reference_error(manifest, path, error))
    }
}

impl SnapshotReader {
    /// Lists the files that may hold matching rows, and reads their tombstones.
    pub(super) async fn new(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Self> {
        Self::with_cache(table, manifest, filter, None).await
    }

    /// As [`Self::new`]; lists and tombstones are read through the cache of an operation.
    pub(super) async fn with_cache(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
        cache: Option<Arc<ObjectCache>>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let mut reader = Self::without_files(table, manifest, columns, filter);
        reader.source.cache = cache;
        reader.files = reader.list_files().await?;
        reader.deletions = reader.read_tombstones().await?;
        Ok(reader)
    }

    /// The files that may hold rows that match a filter.
    pub(super) async fn find_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        filter: Option<Arc<Filter>>,
    ) -> Result<Vec<SnapshotFile>> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let reader = Self::without_files(table, manifest, columns, filter);
        reader.list_files().await
    }

    /// A reader of some files of a snapshot, whose columns may differ from the snapshot's.
    pub(super) async fn with_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        columns: TableColumns,
        files: Vec<SnapshotFile>,
    ) -> Result<Self> {
        let mut reader = Self::without_files(table, manifest, columns, None);
        reader.files = files;
        reader.deletions = reader.read_tombstones().await?;
        Ok(reader)
    }

    /// A reader of some files of a newer snapshot. Uses the deletions that this one has read, if the same
    /// tombstone files are about these files.
    pub(super) async fn with_newer_files(
        &self,
        manifest: Arc<TableManifest>,
        files: Vec<SnapshotFile>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let mut reader = Self::without_files(&self.source.table, manifest, columns, None);
        reader.files = files;
        let paths: HashSet<&str> = reader.files.iter().map(|f| f.file.path.as_str()).collect();
        let is_needed = |f: &&SnapshotFile| paths.contains(f.file.path.as_str());
        let known_files: Vec<&SnapshotFile> = self.files.iter().filter(is_needed).collect();
        let is_known = known_files.len() == paths.len()
            && tombstoned_files(
                &self.manifest().tombstones,
                &FileIndex::of_files(known_files),
            ) == tombstoned_files(
                &reader.manifest().tombstones,
                &FileIndex::of_files(&reader.files),
            );
        reader.deletions = if is_known {
            let known = self.deletions.iter();
            known
                .filter(|(path, _)| paths.contains(path.as_str()))
                .map(|(path, deletions)| (path.clone(), Arc::clone(deletions)))
                .collect()
        } else {
            reader.read_tombstones().await?
        };
        Ok(reader)
    }

    fn without_files(
        table: &Table,
        manifest: Arc<TableManifest>,
        columns: TableColumns,
        filter: Option<Arc<Filter>>,
    ) -> Self {
        let key = match manifest.key.as_slice() {
            [id] => Some(*id),
            _ => None,
        };
        let source = SnapshotFiles {
            table: table.clone(),
            manifest,
            cache: None,
        };
        Self::from_source(source, columns, filter, key)
    }

    /// The manifest of the snapshot.
    pub(super) fn manifest(&self) -> &Arc<TableManifest> {
        &self.source.manifest
    }

    /// The files that may hold matching rows.
    async fn list_files(&self) -> Result<Vec<SnapshotFile>> {
        let SnapshotFiles {
            table,
            manifest,
            cache,
        } = &self.source;
        let segments: Vec<DataFile> = manifest.segments.iter().map(to_data_file).collect();
        let selected = self.prune_by_filter(&segments).await?;
        let listed = listing::list_files(table, manifest, &selected, cache.as_deref()).await?;
        self.select_files(listed).await
    }

    async fn read_tombstones(&self) -> Result<BTreeMap<String, Arc<Deletions>>> {
        let SnapshotFiles {
            table,
            manifest,
            cache,
        } = &self.source;
        read_deletions(table, manifest, &self.files, cache.as_deref()).await
    }
}
