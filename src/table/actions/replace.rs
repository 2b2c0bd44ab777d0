//! The change of a compaction: replaces files by other files with the same rows.

use std::collections::HashSet;

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::table::format::{CommitOperation, DataFile, TableManifest, Tombstones};
use crate::table::names::lowest_base_version;
use crate::table::snapshot_file::FileRef;
use crate::table::targets::TargetSet;
use crate::versions::Change;

/// Tombstone files that replace several others with the same deletions.
#[derive(Debug, Clone, Default)]
pub struct MergedTombstones {
    /// The tombstone files that are replaced, as the plan found them.
    pub sources: Vec<Tombstones>,
    /// The tombstone files that replace them.
    pub written: Vec<Tombstones>,
}

/// Replaces files. It conflicts if one of the replaced files has left the table, or if rows of it were deleted
/// or restored after the new files were written.
#[derive(Debug, Clone)]
pub struct Replace {
    /// The name of the operation for the history.
    pub operation: &'static str,
    /// The files to remove.
    pub removed: Vec<FileRef>,
    /// The paths of the tombstone files whose deletions the new files leave out.
    pub applied_tombstones: Vec<String>,
    /// The files to add.
    pub added: Vec<DataFile>,
    /// The merged tombstones of files that stay.
    pub merged: MergedTombstones,
    /// The version on which the change was planned.
    pub base_version: u64,
}

impl Change<TableManifest> for Replace {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if base.was_restored_since(self.base_version) {
            return Err(conflict_error("restored an older version"));
        }
        if !base.contains_all(&self.removed) {
            return Err(conflict_error("removed or moved a file to be replaced"));
        }
        if base.has_new_tombstones(&self.applied_tombstones, self.removed.iter()) {
            return Err(conflict_error("deleted rows of a file to be replaced"));
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
        let added = self.added.iter().map(|f| &f.path);
        let merged = self.merged.written.iter().map(|t| &t.path);
        Some(lowest_base_version(self.base_version, added.chain(merged)))
    }
}

impl Replace {
    /// Replaces the source tombstones by the merged ones.
    fn merge_tombstones(&self, next: &mut TableManifest) -> Result<()> {
        let sources: HashSet<&str> = self.merged.sources.iter().map(|t| &*t.path).collect();
        let is_source = |t: &Tombstones| sources.contains(t.path.as_str());
        let (replaced, others) = next.tombstones.drain(..).partition(is_source);
        next.tombstones = others;
        let replaced: Vec<Tombstones> = replaced;
        // Files that have left the table since are no targets any more.
        let targets = TargetSet::new(&replaced);
        if targets.is_empty() && self.removed.is_empty() {
            return Err(conflict_error("removed the tombstones to be merged"));
        }
        if !TargetSet::new(&self.merged.sources).includes(&targets) {
            return Err(conflict_error("moved files with tombstones to be merged"));
        }
        for tombstones in &self.merged.written {
            let mut tombstones = tombstones.clone();
            targets.restrict(&mut tombstones);
            if !tombstones.is_unused() {
                next.tombstones.push(tombstones);
            }
        }
        Ok(())
    }
}

/// `action` is what the concurrent commit did.
fn conflict_error(action: &str) -> Error {
    Error::new(
        ErrorKind::CommitConflict,
        format!("a concurrent commit {action}; compact or sort again"),
    )
}
