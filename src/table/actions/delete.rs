//! Rows that are no more: tombstones, and files of which nothing is left.

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::table::commit::Change;
use crate::table::format::{CommitOperation, TableManifest, Tombstones};
use crate::table::listing::FileRef;

/// Takes rows away from files that were looked at. Two of these on one file add up; it conflicts when
/// a file has gone, for then its rows may be in another, and when an older version was brought back,
/// for then there may be rows that were not looked at.
#[derive(Debug, Clone)]
pub struct Delete {
    /// As the user wrote it, for the history.
    pub filter: String,
    /// The tombstones that were written; None where only whole files go.
    pub tombstones: Option<Tombstones>,
    /// The files that these are about.
    pub scanned_files: Vec<FileRef>,
    /// Files of which nothing is left.
    pub removed: Vec<FileRef>,
    /// Rows that go; None where they were not counted.
    pub rows: Option<u64>,
    /// The version at which it was planned.
    pub base_version: u64,
}

impl Change for Delete {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if base.was_restored_since(self.base_version) {
            let message = "an older version was restored by another commit";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        if !base.contains_all(self.scanned_files.iter().chain(&self.removed)) {
            let message = "a file with rows to delete has been rewritten by another commit";
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
        Some(self.base_version)
    }
}
