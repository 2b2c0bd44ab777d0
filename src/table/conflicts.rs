//! Conflict checks: what commits after a version have done that a change planned on that version must know.

use std::collections::HashSet;

use super::format::TableManifest;
use super::snapshot_file::FileRef;
use super::targets::FileIndex;
use crate::error::{Error, ErrorKind};

impl TableManifest {
    /// Whether a restore after `version` may have brought deleted rows back.
    pub(super) fn was_restored_since(&self, version: u64) -> bool {
        self.restored_at.is_some_and(|at| at > version)
    }

    /// The error of files that were written at `version`, if a later restore of older columns means
    /// that they may not fit the schema.
    pub(super) fn schema_conflict_since(&self, version: u64) -> Option<Error> {
        self.columns_restored_at.filter(|at| *at > version)?;
        let message = "older columns were restored while the rows were written; write again";
        // Not CommitConflict: a new plan would use the same files.
        Some(Error::new(ErrorKind::TransactionExpired, message))
    }

    /// The paths of the tombstone files.
    pub(super) fn tombstone_paths(&self) -> Vec<String> {
        self.tombstones.iter().map(|t| t.path.clone()).collect()
    }

    /// Whether some of `files` have tombstones that are not among the `known` tombstone files.
    pub(super) fn has_new_tombstones<'a>(
        &self,
        known: &[String],
        files: impl Iterator<Item = &'a FileRef>,
    ) -> bool {
        let known: HashSet<&str> = known.iter().map(String::as_str).collect();
        let files = FileIndex::of_refs(files);
        let mut new_tombstones = self
            .tombstones
            .iter()
            .filter(|t| !known.contains(t.path.as_str()));
        new_tombstones.any(|t| files.has_targets_of(t))
    }

    /// Whether a commit after `version` may have added rows.
    pub(super) fn has_rows_added_since(&self, version: u64) -> bool {
        self.added_at.is_some_and(|at| at > version)
    }
}
