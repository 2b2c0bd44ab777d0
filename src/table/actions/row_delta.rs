//! The change of upserts, merges and overwrites of some rows: deletes rows and adds files.

use serde_json::json;

use super::Delete;
use crate::error::{Error, ErrorKind, Result};
use crate::table::format::{CommitOperation, DataFile, TableManifest};
use crate::versions::Change;

/// Deletes rows and adds files in one commit. It conflicts like [`Delete`], and if a concurrent commit has added
/// rows since the scan, because some of them may have to be deleted. If the new rows were derived from the
/// deleted ones, it also conflicts with concurrent deletes of rows in the same files.
#[derive(Debug, Clone)]
pub struct RowDelta {
    /// The name of the operation for the history.
    pub operation: &'static str,
    /// The rows to delete.
    pub deletes: Delete,
    /// The files to add.
    pub added: Vec<DataFile>,
    /// Whether the new rows were derived from the deleted ones.
    pub is_derived: bool,
    /// Further counts for the history.
    pub counts: Vec<(&'static str, u64)>,
    /// The version at which the writer of the files started.
    pub base_version: u64,
    /// A second change with the same key changes nothing.
    pub idempotency_key: Option<String>,
}

impl RowDelta {
    /// Whether rows of the scanned files have been deleted since the scan.
    fn has_conflicting_deletes(&self, base: &TableManifest) -> bool {
        let files = self
            .deletes
            .scanned_files
            .iter()
            .chain(&self.deletes.removed);
        self.is_derived && base.has_new_tombstones(&self.deletes.base_tombstones, files)
    }
}

impl Change<TableManifest> for RowDelta {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if let Some(conflict) = base.schema_conflict_since(self.base_version) {
            return Err(conflict);
        }
        if base.has_rows_added_since(self.deletes.base_version) {
            let message =
                "a concurrent commit added rows, which may have to be replaced, too; write again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        if self.has_conflicting_deletes(base) {
            let message = "a concurrent commit deleted rows of the files to change; write again";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let (mut next, mut operation) = self.deletes.apply(base)?;
        next.data_files.extend(self.added.iter().cloned());
        if !self.added.is_empty() {
            next.added_at = Some(base.version + 1);
        }
        let rows = self.added.iter().map(|f| f.total_rows);
        let details = [
            ("files", json!(self.added.len())),
            ("rows", json!(rows.fold(0, u64::saturating_add))),
            ("rows_deleted", json!(self.deletes.rows)),
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

    fn base_version(&self) -> Option<u64> {
        let deletes = self.deletes.base_version()?;
        Some(self.base_version.min(deletes))
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
