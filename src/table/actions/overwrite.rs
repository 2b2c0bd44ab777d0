//! The change that replaces all rows.

use serde_json::json;

use crate::error::Result;
use crate::table::format::{CommitOperation, DataFile, TableManifest};
use crate::versions::Change;

/// Replaces all files of the newest snapshot, those of concurrent commits included. Refused if a restore has
/// brought older columns back since `base_version`.
#[derive(Debug, Clone)]
pub struct Overwrite {
    /// The files to add.
    pub files: Vec<DataFile>,
    /// The version at which the writer of the files started.
    pub base_version: u64,
    /// A second overwrite with the same key changes nothing.
    pub idempotency_key: Option<String>,
}

impl Change<TableManifest> for Overwrite {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        if let Some(conflict) = base.schema_conflict_since(self.base_version) {
            return Err(conflict);
        }
        let mut next = base.clone();
        next.segments.clear();
        next.data_files.clone_from(&self.files);
        next.tombstones.clear();
        next.added_at = Some(base.version + 1);
        let rows = self.files.iter().map(|f| f.total_rows);
        let details = [
            ("files", json!(self.files.len())),
            ("rows", json!(rows.fold(0, u64::saturating_add))),
            ("files_removed", json!(base.file_count())),
        ];
        Ok((next, CommitOperation::new("overwrite", details)))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
