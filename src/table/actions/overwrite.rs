//! Other rows in the place of all there are.

use serde_json::json;

use crate::error::Result;
use crate::table::commit::Change;
use crate::table::format::{DataFile, Manifest, Operation};

/// Puts files in the place of all others, whatever has been committed meanwhile.
#[derive(Debug, Clone)]
pub struct Overwrite {
    /// The files that come.
    pub files: Vec<DataFile>,
    /// The version at which their writer began.
    pub began_at: u64,
    /// A second overwrite with the same key changes nothing.
    pub idempotency_key: Option<String>,
}

impl Change for Overwrite {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        if let Some(refused) = base.refuses_files_of(self.began_at) {
            return Err(refused);
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
        Ok((next, Operation::new("overwrite", details)))
    }

    fn began_at(&self) -> Option<u64> {
        Some(self.began_at)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
