//! The change that appends data files.
//!
//! An append applies to every snapshot, unless a restore has brought older columns back since it started.

use serde_json::json;

use crate::error::Result;
use crate::table::format::{CommitOperation, DataFile, TableManifest};
use crate::versions::Change;
use crate::versions::GroupChange;

/// Adds uploaded data files.
#[derive(Debug, Clone)]
pub struct Append {
    /// The files to add.
    pub files: Vec<DataFile>,
    /// The version at which the writer of the files started.
    pub base_version: u64,
    /// A second append with the same key adds nothing.
    pub idempotency_key: Option<String>,
}

impl GroupChange<TableManifest> for Append {
    /// Refuses a snapshot whose columns may not fit the files.
    fn check(&self, base: &TableManifest) -> Result<()> {
        base.schema_conflict_since(self.base_version)
            .map_or(Ok(()), Err)
    }

    fn apply_all(appends: &[&Self], base: &TableManifest) -> (TableManifest, CommitOperation) {
        let files = || appends.iter().flat_map(|append| &append.files);
        let total =
            |count_of: fn(&DataFile) -> u64| files().map(count_of).fold(0, u64::saturating_add);
        let mut next = base.clone();
        next.data_files.extend(files().cloned());
        if files().next().is_some() {
            next.added_at = Some(base.version + 1);
        }
        let mut operation = CommitOperation::new(
            "append",
            [
                ("files", json!(files().count())),
                ("rows", json!(total(|f| f.total_rows))),
                ("bytes", json!(total(|f| f.size_bytes))),
            ],
        );
        if appends.len() > 1 {
            let name = "appends".to_owned();
            operation.details.insert(name, json!(appends.len()));
        }
        (next, operation)
    }
}

impl Change<TableManifest> for Append {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        self.check(base)?;
        Ok(Self::apply_all(&[self], base))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
