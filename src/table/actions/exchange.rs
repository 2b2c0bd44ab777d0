//! Rows for other rows.

use std::collections::HashSet;

use serde_json::json;

use super::Delete;
use crate::error::{Error, ErrorKind, Result};
use crate::table::commit::Change;
use crate::table::format::{DataFile, Manifest, Operation};

/// Takes rows away and adds files in one commit. It conflicts as a delete does, and when others have
/// brought rows since these were looked for: there may be some that should go. Where new rows were made of
/// those that go, it conflicts with their deletion as well.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// The name of what is done, for the history.
    pub operation: &'static str,
    /// The rows that go.
    pub gone: Delete,
    /// The files that come.
    pub added: Vec<DataFile>,
    /// Where new rows were made of rows that go: the tombstones that were known then, by path.
    pub seen: Option<Vec<String>>,
    /// More to tell in the history.
    pub counts: Vec<(&'static str, u64)>,
    /// The version at which their writer began.
    pub began_at: u64,
    /// A second one with the same key changes nothing.
    pub idempotency_key: Option<String>,
}

impl Exchange {
    /// Whether rows of the files that were looked at have been deleted since.
    fn has_lost_rows(&self, base: &Manifest) -> bool {
        let Some(seen) = &self.seen else {
            return false;
        };
        let seen: HashSet<&str> = seen.iter().map(String::as_str).collect();
        let files = self.gone.looked_at.iter().chain(&self.gone.removed);
        let files: HashSet<&str> = files.map(|f| f.path.as_str()).collect();
        let mut new = base
            .tombstones
            .iter()
            .filter(|t| !seen.contains(t.path.as_str()));
        new.any(|t| t.files.iter().any(|f| files.contains(f.as_str())))
    }
}

impl Change for Exchange {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        if let Some(refused) = base.refuses_files_of(self.began_at) {
            return Err(refused);
        }
        if base.added_since(self.gone.began_at) {
            let message = "rows were added by another commit";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        if self.has_lost_rows(base) {
            let message = "rows that it changes were deleted by another commit";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let (mut next, mut operation) = self.gone.apply(base)?;
        next.data_files.extend(self.added.iter().cloned());
        if !self.added.is_empty() {
            next.added_at = Some(base.version + 1);
        }
        let rows = self.added.iter().map(|f| f.total_rows);
        let details = [
            ("files", json!(self.added.len())),
            ("rows", json!(rows.fold(0, u64::saturating_add))),
            ("rows_deleted", json!(self.gone.rows)),
        ];
        self.operation.clone_into(&mut operation.name);
        for (name, value) in details {
            operation.details.insert(name.to_owned(), value);
        }
        for (name, count) in &self.counts {
            operation.details.insert((*name).to_owned(), json!(count));
        }
        operation
            .details
            .retain(|name, value| name != "filter" || *value != json!(""));
        Ok((next, operation))
    }

    fn began_at(&self) -> Option<u64> {
        Some(self.began_at)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
