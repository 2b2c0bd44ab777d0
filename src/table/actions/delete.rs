//! The change that deletes rows: adds tombstones, and removes files of which every row is deleted.

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::table::format::{CommitOperation, TableManifest, Tombstones};
use crate::table::names::lowest_base_version;
use crate::table::snapshot_file::FileRef;
use crate::versions::Change;

/// Deletes rows of files that were scanned. Two deletes on one file add up. A delete conflicts if one of its
/// files has left the table, or has lost rows while other rows were added (by an upsert or a merge), because its rows may
/// be in another file; and if an older version was restored, because the restored rows were not scanned.
#[derive(Debug, Clone)]
pub struct Delete {
    /// The predicate as text, for the history.
    pub filter: String,
    /// The tombstone file; None if only whole files are removed.
    pub tombstones: Option<Tombstones>,
    /// The files that the tombstones are about, and others whose rows decided what is changed.
    pub scanned_files: Vec<FileRef>,
    /// The files of which all remaining rows are deleted.
    pub removed: Vec<FileRef>,
    /// The paths of the tombstone files at the scan.
    pub base_tombstones: Vec<String>,
    /// The number of deleted rows; None if they were not counted.
    pub rows: Option<u64>,
    /// The version on which the delete was planned.
    pub base_version: u64,
}

impl Change<TableManifest> for Delete {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if base.was_restored_since(self.base_version) {
            let message = "a concurrent commit restored an older version; delete again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        if !base.contains_all(self.scanned_files.iter().chain(&self.removed)) {
            let message =
                "a concurrent commit removed or rewrote a file with rows to delete; delete again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let files = self.scanned_files.iter().chain(&self.removed);
        if base.has_rows_added_since(self.base_version)
            && base.has_new_tombstones(&self.base_tombstones, files)
        {
            let message =
                "a concurrent commit replaced rows of a file with rows to delete; delete again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let mut next = base.clone();
        next.tombstones.extend(self.tombstones.clone());
        next.remove_files(&self.removed);
        let details = [
            ("filter", json!(self.filter)),
            ("rows", json!(self.rows)),
            ("read_version", json!(self.base_version)),
            ("files_removed", json!(self.removed.len())),
        ];
        Ok((next, CommitOperation::new("delete", details)))
    }

    fn base_version(&self) -> Option<u64> {
        let tombstones = self.tombstones.iter().map(|t| &t.path);
        Some(lowest_base_version(self.base_version, tombstones))
    }
}
