//! Whether a version is a later one of the same table: one that was dropped and created again has the same numbers.

use super::format::{CommitId, TableManifest};
use crate::error::{Error, ErrorKind, Result};

/// A version that later ones have to descend from.
pub(super) struct Ancestor {
    version: u64,
    commit_id: CommitId,
}

impl Ancestor {
    pub(super) fn new(manifest: &TableManifest) -> Self {
        Self {
            version: manifest.version,
            commit_id: manifest.commit_id.clone(),
        }
    }

    /// Fails for a manifest of another table in the same place. One with many versions more cannot be told from it.
    pub(super) fn check(&self, manifest: &TableManifest) -> Result<()> {
        let id = match manifest.version.checked_sub(self.version) {
            None => None,
            Some(0) => Some(&manifest.commit_id),
            Some(distance) => {
                let position = usize::try_from(distance - 1).unwrap_or(usize::MAX);
                match manifest.recent_commits.get(position) {
                    None => return Ok(()),
                    id => id,
                }
            }
        };
        if id == Some(&self.commit_id) {
            return Ok(());
        }
        let message =
            "the table was dropped and created again while the rows were written; write again";
        Err(Error::new(ErrorKind::TransactionExpired, message))
    }
}
