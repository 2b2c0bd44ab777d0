//! The change that adds existing files.

use crate::error::{Error, ErrorKind, Result};
use crate::table::actions::Append;
use crate::table::format::{CommitOperation, TableManifest};
use crate::versions::Change;

/// Adds existing files. If some of them were not copied, it conflicts with every commit that added rows after
/// the check that the table does not list them: a file might be listed twice.
#[derive(Debug, Clone)]
pub struct AddFiles {
    /// The append of the files.
    pub append: Append,
    /// The version that was checked not to list the files; None if all of them were copied.
    pub absent_at_version: Option<u64>,
}

impl Change<TableManifest> for AddFiles {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if self
            .absent_at_version
            .is_some_and(|version| base.has_rows_added_since(version))
        {
            let message =
                "a concurrent commit added rows, and may have added the same files; add them again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let (mut next, mut operation) = self.append.apply(base)?;
        if self.absent_at_version.is_some() {
            // A file may have been in the table before: changes that were planned on that file must conflict.
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
