//! A version of a table with its data files, and what is deleted of these.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::deletions::DeletionKey;
use crate::error::Result;
use crate::files::TableColumns;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::table::listing::all_files;
use crate::table::snapshot_file::SnapshotFile;
use crate::table::snapshot_reader::SnapshotReader;
use crate::table::targets::FileIndex;

/// A version of a table with its data files.
pub(in crate::table) struct LoadedVersion {
    pub(in crate::table) manifest: Arc<TableManifest>,
    pub(in crate::table) columns: TableColumns,
    pub(in crate::table) files: Vec<SnapshotFile>,
    /// By the path of a file that tombstones are about.
    pub(in crate::table) deletion_keys: HashMap<String, DeletionKey>,
}

impl LoadedVersion {
    /// Reads the lists of files.
    pub(in crate::table) async fn load(
        table: &Table,
        manifest: Arc<TableManifest>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(&manifest)?;
        let files = all_files(table, &manifest).await?;
        let index = FileIndex::of_files(&files);
        let mut tombstones: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for entry in &manifest.tombstones {
            for file in index.targets_of(entry) {
                tombstones.entry(file).or_default().insert(&entry.path);
            }
        }
        let keys = tombstones.into_iter().map(|(file, paths)| {
            let key = DeletionKey::new(&manifest, file, &paths);
            (file.to_owned(), key)
        });
        let deletion_keys = keys.collect();
        Ok(Self {
            manifest,
            columns,
            files,
            deletion_keys,
        })
    }

    /// What a name for a file's deleted rows follows from; `None` if no tombstone is about the file.
    pub(in crate::table) fn deletion_key(&self, file: usize) -> Option<&DeletionKey> {
        self.deletion_keys.get(&self.files[file].file.path)
    }

    /// A reader of some of the files.
    pub(in crate::table) async fn reader(
        &self,
        table: &Table,
        files: &[usize],
    ) -> Result<SnapshotReader> {
        let files = files.iter().map(|file| self.files[*file].clone());
        let (manifest, columns) = (Arc::clone(&self.manifest), self.columns.clone());
        SnapshotReader::with_files(table, manifest, columns, files.collect()).await
    }

    /// The time of the commit in milliseconds.
    pub(in crate::table) fn millis(&self) -> i64 {
        self.manifest.created_at.as_micros().div_euclid(1000)
    }
}
