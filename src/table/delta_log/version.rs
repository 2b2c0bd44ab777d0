//! How the files of a version differ from those of the version before, and the actions for them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::actions::{Add, DeletionVector, Remove};
use super::schema::{DELETION_VECTORS, DeltaSchema, TYPE_WIDENING};
use super::statistics::statistics;
use crate::error::{Error, Result};
use crate::files::DataFile;
use crate::table::export::{LoadedVersion, encode_path};
use crate::table::names;
use crate::table::snapshot_file::SnapshotFile;

/// The differences of the files of two versions, by their positions in these.
#[derive(Debug, Default)]
pub(super) struct LogFileChanges {
    pub(super) removed: Vec<usize>,
    pub(super) added: Vec<usize>,
    /// Files of both versions that may have other rows, in the older and in the newer one.
    pub(super) changed: Vec<(usize, usize)>,
    /// Of the latter those, in the newer version, that are listed with another size or other columns.
    pub(super) replaced: Vec<usize>,
}

impl LoadedVersion {
    /// What readers must know of the version.
    pub(super) fn features(&self, schema: &DeltaSchema) -> Result<BTreeSet<&'static str>> {
        let mut features = schema.features();
        if !self.deletion_keys.is_empty() {
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
                        column.exported.name, narrower.name, column.exported.arrow_type
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
    pub(super) fn changes_since(&self, older: Option<&Self>) -> LogFileChanges {
        let mut changes = LogFileChanges::default();
        let old_files = older.map_or(&[][..], |older| &older.files);
        let numbered = old_files.iter().enumerate();
        let mut removed: HashMap<&str, usize> =
            numbered.map(|(at, f)| (f.file.path.as_str(), at)).collect();
        for (at, SnapshotFile { file, .. }) in self.files.iter().enumerate() {
            match (removed.remove(file.path.as_str()), older) {
                (Some(old), Some(older)) => {
                    let key = |version: &Self| version.deletion_keys.get(&file.path).cloned();
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
}
