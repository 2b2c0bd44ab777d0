//! Files for other files with the same rows, as compaction makes them.

use std::collections::HashSet;

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::table::commit::Change;
use crate::table::format::{DataFile, Manifest, Operation, Tombstones};
use crate::table::listing::FileRef;

/// Puts files in the place of others. It conflicts when one of those has gone, or has lost rows or got
/// some back since the new ones were made.
#[derive(Debug, Clone)]
pub struct Replace {
    /// The name of what is done, for the history.
    pub operation: &'static str,
    /// The files that go.
    pub removed: Vec<FileRef>,
    /// The tombstones that the new files have taken into account, by path.
    pub applied: Vec<String>,
    /// The files that come.
    pub added: Vec<DataFile>,
    /// The version it was planned on.
    pub began_at: u64,
}

impl Change for Replace {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        if base.restored_since(self.began_at) {
            return Err(conflict("an older version was restored"));
        }
        if !base.lists(&self.removed) {
            return Err(conflict("a file that it replaces has been removed"));
        }
        let removed: HashSet<&str> = self.removed.iter().map(|f| f.path.as_str()).collect();
        let applied: HashSet<&str> = self.applied.iter().map(String::as_str).collect();
        let touches = |files: &[String]| files.iter().any(|f| removed.contains(f.as_str()));
        let newer = |t: &&Tombstones| touches(&t.files) && !applied.contains(t.path.as_str());
        if base.tombstones.iter().any(|t| newer(&t)) {
            return Err(conflict(
                "rows of a file that it replaces have been deleted",
            ));
        }
        let mut next = base.clone();
        next.take_out(&self.removed);
        next.data_files.extend(self.added.iter().cloned());
        let details = [
            ("files_removed", json!(self.removed.len())),
            ("files_added", json!(self.added.len())),
            ("read_version", json!(self.began_at)),
        ];
        Ok((next, Operation::new(self.operation, details)))
    }

    fn began_at(&self) -> Option<u64> {
        Some(self.began_at)
    }
}

fn conflict(why: &str) -> Error {
    Error::new(
        ErrorKind::CommitConflict,
        format!("{why} by another commit; plan it again on the newest version"),
    )
}
