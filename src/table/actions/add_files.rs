//! Files that were there before.

use crate::error::{Error, ErrorKind, Result};
use crate::table::actions::Append;
use crate::table::commit::Change;
use crate::table::format::{Manifest, Operation};

/// Adds files of other makers. Where they stay in their place it conflicts with whatever brought rows
/// since: one of them might be listed twice.
#[derive(Debug, Clone)]
pub struct AddFiles {
    /// The files.
    pub append: Append,
    /// Some were not copied.
    pub in_place: bool,
}

impl Change for AddFiles {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        if self.in_place && base.added_since(self.append.began_at) {
            let message = "rows were added by another commit";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let (next, mut operation) = self.append.apply(base)?;
        "add_files".clone_into(&mut operation.name);
        Ok((next, operation))
    }

    fn began_at(&self) -> Option<u64> {
        self.append.began_at()
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.append.idempotency_key()
    }
}
