//! What has happened to a table since a version, as far as a change that was planned on it cares.

use super::format::TableManifest;
use crate::error::{Error, ErrorKind};

impl TableManifest {
    /// Whether rows that were deleted after `version` may be back.
    pub(super) fn was_restored_since(&self, version: u64) -> bool {
        self.restored_at.is_some_and(|at| at > version)
    }

    /// Whether files that were written at `version` may not fit the columns.
    pub(super) fn schema_conflict_since(&self, version: u64) -> Option<Error> {
        self.columns_restored_at.filter(|at| *at > version)?;
        let message = "older columns were restored while the rows were written; write again";
        // Planning again would not help.
        Some(Error::new(ErrorKind::TransactionExpired, message))
    }

    /// Whether there may be rows that were not there at `version`.
    pub(super) fn has_rows_added_since(&self, version: u64) -> bool {
        self.added_at.is_some_and(|at| at > version)
    }
}
