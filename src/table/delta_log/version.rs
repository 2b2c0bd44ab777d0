//! The files of a version as Delta has them, and how they differ from those of the version before.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::actions::{Add, DeletionVector, Remove};
use super::paths::encode_path;
use super::schema::{DELETION_VECTORS, DeltaSchema, TYPE_WIDENING};
use super::statistics::statistics;
use super::vectors::VectorKey;
use crate::error::{Error, Result};
use crate::files::{DataFile, TableColumns};
use crate::table::format::TableManifest;
use crate::table::listing::all_files;
use crate::table::snapshot_file::SnapshotFile;
use crate::table::targets::FileIndex;
use crate::table::{Table, names};

/// A version of a table with its data files.
pub(super) struct Version {
    pub(super) manifest: Arc<TableManifest>,
    pub(super) columns: TableColumns,
    pub(super) files: Vec<SnapshotFile>,
    /// By the path of a file that tombstones are about.
    vector_keys: HashMap<String, VectorKey>,
}

/// The differences of the files of two versions, by their positions in these.
#[derive(Debug, Default)]
pub(super) struct FileChanges {
    pub(super) removed: Vec<usize>,
    pub(super) added: Vec<usize>,
    /// Files of both versions that may have other rows, in the older and in the newer one.
    pub(super) changed: Vec<(usize, usize)>,
    /// Of the latter those, in the newer version, that are listed with another size or other columns.
    pub(super) replaced: Vec<usize>,
}

impl Version {
    /// Reads the lists of files.
    pub(super) async fn load(table: &Table, manifest: Arc<TableManifest>) -> Result<Self> {
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
            let key = VectorKey::new(&manifest, file, &paths);
            (file.to_owned(), key)
        });
        let vector_keys = keys.collect();
        Ok(Self {
            manifest,
            columns,
            files,
            vector_keys,
        })
    }

    /// What the name of a file's vector follows from; `None` if no tombstone is about the file.
    pub(super) fn vector_key(&self, file: usize) -> Option<&VectorKey> {
        self.vector_keys.get(&self.files[file].file.path)
    }

    /// What readers must know of the version.
    pub(super) fn features(&self, schema: &DeltaSchema) -> Result<BTreeSet<&'static str>> {
        let mut features = schema.features();
        if !self.vector_keys.is_empty() {
            features.insert(DELETION_VECTORS);
        }
        // The files of writers that began before a column was widened have the narrower type; of others that is not known.
        let bases = self
            .files
            .iter()
            .map(|f| names::base_version(&f.file.path).unwrap_or(0));
        let oldest = bases.min().unwrap_or(u64::MAX);
        for column in &schema.columns {
            for narrower in column.narrower.iter().filter(|n| oldest < n.before) {
                if !narrower.can_become(column) {
                    let message = format!(
                        "column {:?} was widened from {}, and readers of Delta cannot read files from before as {}: \
                         rewrite the table by `optimize.sort`, or name the column in leave_out",
                        column.name, narrower.name, column.arrow_type
                    );
                    return Err(Error::invalid(message));
                }
                features.insert(TYPE_WIDENING);
            }
        }
        Ok(features)
    }

    /// Whether the rows of the version are those of the one before.
    pub(super) fn is_rewrite(&self) -> bool {
        matches!(self.manifest.operation.name.as_str(), "compact" | "sort")
    }

    /// How the files differ from those of an older version.
    pub(super) fn changes_since(&self, older: Option<&Self>) -> FileChanges {
        let mut changes = FileChanges::default();
        let old_files = older.map_or(&[][..], |older| &older.files);
        let numbered = old_files.iter().enumerate();
        let mut removed: HashMap<&str, usize> =
            numbered.map(|(at, f)| (f.file.path.as_str(), at)).collect();
        for (at, SnapshotFile { file, .. }) in self.files.iter().enumerate() {
            match (removed.remove(file.path.as_str()), older) {
                (Some(old), Some(older)) => {
                    let key = |version: &Self| version.vector_keys.get(&file.path).cloned();
                    let is_replaced = !file.has_rows_of(&old_files[old].file);
                    if is_replaced {
                        changes.replaced.push(at);
                    }
                    if is_replaced || key(older) != key(self) {
                        changes.changed.push((old, at));
                    }
                }
                _ => changes.added.push(at),
            }
        }
        changes.removed = removed.into_values().collect();
        changes.removed.sort_unstable();
        changes
    }

    /// The action that adds a file.
    pub(super) fn add(
        &self,
        file: usize,
        schema: &DeltaSchema,
        deletion_vector: Option<DeletionVector>,
        data_change: bool,
    ) -> Add {
        let file = &self.files[file].file;
        Add {
            path: encode_path(&file.path),
            partition_values: BTreeMap::new(),
            size: file.size_bytes,
            modification_time: self.millis(),
            data_change,
            stats: statistics(file, schema, deletion_vector.is_some()),
            deletion_vector,
        }
    }

    /// The action that removes a file of an older version.
    pub(super) fn remove(
        &self,
        file: &DataFile,
        deletion_vector: Option<DeletionVector>,
        data_change: bool,
    ) -> Remove {
        Remove {
            path: encode_path(&file.path),
            deletion_timestamp: self.millis(),
            data_change,
            extended_file_metadata: true,
            partition_values: BTreeMap::new(),
            size: file.size_bytes,
            deletion_vector,
        }
    }

    /// The time of the commit in milliseconds.
    pub(super) fn millis(&self) -> i64 {
        self.manifest.created_at.as_micros().div_euclid(1000)
    }
}
