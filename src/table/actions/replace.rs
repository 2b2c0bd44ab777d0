//! Files for other files with the same rows, as compaction makes them.

use std::collections::HashSet;

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::table::commit::Change;
use crate::table::format::{CommitOperation, DataFile, TableManifest, Tombstones};
use crate::table::listing::FileRef;

/// Tombstones that say what several others say.
#[derive(Debug, Clone, Default)]
pub struct MergedTombstones {
    /// The others, by path.
    pub sources: Vec<String>,
    /// What takes their place.
    pub written: Vec<Tombstones>,
}

/// Puts files in the place of others. It conflicts when one of those has gone, or has lost rows or got
/// some back since the new ones were made.
#[derive(Debug, Clone)]
pub struct Replace {
    /// The name of what is done, for the history.
    pub operation: &'static str,
    /// The files that go.
    pub removed: Vec<FileRef>,
    /// The tombstones that the new files have taken into account, by path.
    pub applied_tombstones: Vec<String>,
    /// The files that come.
    pub added: Vec<DataFile>,
    /// Tombstones of files that stay, in the place of others.
    pub merged: MergedTombstones,
    /// The version it was planned on.
    pub base_version: u64,
}

impl Change for Replace {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if base.was_restored_since(self.base_version) {
            return Err(conflict_error("an older version was restored"));
        }
        if !base.contains_all(&self.removed) {
            return Err(conflict_error("a file that it replaces has been removed"));
        }
        let removed: HashSet<&str> = self.removed.iter().map(|f| f.path.as_str()).collect();
        let applied: HashSet<&str> = self.applied_tombstones.iter().map(String::as_str).collect();
        let touches = |files: &[String]| files.iter().any(|f| removed.contains(f.as_str()));
        let is_newer = |t: &&Tombstones| touches(&t.files) && !applied.contains(t.path.as_str());
        if base.tombstones.iter().any(|t| is_newer(&t)) {
            return Err(conflict_error(
                "rows of a file that it replaces have been deleted",
            ));
        }
        let mut next = base.clone();
        self.merge_tombstones(&mut next)?;
        next.remove_files(&self.removed);
        next.data_files.extend(self.added.iter().cloned());
        let details = [
            ("files_removed", json!(self.removed.len())),
            ("files_added", json!(self.added.len())),
            ("read_version", json!(self.base_version)),
        ];
        Ok((next, CommitOperation::new(self.operation, details)))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }
}

impl Replace {
    /// Puts the merged tombstones in the place of those they were made of.
    fn merge_tombstones(&self, next: &mut TableManifest) -> Result<()> {
        let source_paths = self.merged.sources.iter().map(String::as_str);
        let sources: HashSet<&str> = source_paths.collect();
        let is_source = |t: &Tombstones| sources.contains(t.path.as_str());
        let present = next.tombstones.iter().filter(|t| is_source(t));
        // Of files that have left since there is nothing more to say.
        let file_paths = present.flat_map(|t| t.files.iter().cloned());
        let files: HashSet<String> = file_paths.collect();
        if files.is_empty() && self.removed.is_empty() {
            return Err(conflict_error(
                "the tombstones that it merges have been removed",
            ));
        }
        next.tombstones.retain(|t| !is_source(t));
        for tombstones in &self.merged.written {
            let mut tombstones = tombstones.clone();
            tombstones.files.retain(|file| files.contains(file));
            if !tombstones.files.is_empty() {
                next.tombstones.push(tombstones);
            }
        }
        Ok(())
    }
}

fn conflict_error(reason: &str) -> Error {
    Error::new(
        ErrorKind::CommitConflict,
        format!("{reason} by another commit; plan it again on the newest version"),
    )
}
