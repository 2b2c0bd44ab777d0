//! Files that were there before.

use crate::error::{Error, ErrorKind, Result};
use crate::table::actions::Append;
use crate::table::commit::Change;
use crate::table::format::{CommitOperation, TableManifest};

/// Adds files of other makers. Where they stay in their place it conflicts with whatever brought rows
/// since they were looked for in the table: one of them might be listed twice.
#[derive(Debug, Clone)]
pub struct AddFiles {
    /// The files.
    pub append: Append,
    /// Where some were not copied: the version that does not list them.
    pub absent_at_version: Option<u64>,
}

impl Change for AddFiles {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if self
            .absent_at_version
            .is_some_and(|version| base.has_rows_added_since(version))
        {
            let message = "rows were added by another commit";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let (mut next, mut operation) = self.append.apply(base)?;
        if self.absent_at_version.is_some() {
            // One of them may have been a file of the table before: what was planned on it is over.
            next.restored_at = next.added_at;
        }
        "add_files".clone_into(&mut operation.name);
        Ok((next, operation))
    }

    fn base_version(&self) -> Option<u64> {
        self.append.base_version()
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.append.idempotency_key()
    }
}
