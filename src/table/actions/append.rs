//! More files. Appends fit every snapshot, so they do not conflict, but with a restore of other columns.

use serde_json::json;

use crate::error::Result;
use crate::table::commit::Change;
use crate::table::format::{DataFile, Manifest, Operation};

/// Adds data files that were uploaded before.
#[derive(Debug, Clone)]
pub struct Append {
    /// The files.
    pub files: Vec<DataFile>,
    /// The version at which their writer began.
    pub began_at: u64,
    /// A second append with the same key adds nothing.
    pub idempotency_key: Option<String>,
}

impl Change for Append {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        if let Some(refused) = base.refuses_files_of(self.began_at) {
            return Err(refused);
        }
        let mut next = base.clone();
        next.data_files.extend(self.files.iter().cloned());
        next.added_at = Some(base.version + 1);
        let total =
            |of: fn(&DataFile) -> u64| self.files.iter().map(of).fold(0, u64::saturating_add);
        let (rows, bytes) = (total(|f| f.total_rows), total(|f| f.size_bytes));
        let details = [
            ("files", json!(self.files.len())),
            ("rows", json!(rows)),
            ("bytes", json!(bytes)),
        ];
        Ok((next, Operation::new("append", details)))
    }

    fn began_at(&self) -> Option<u64> {
        Some(self.began_at)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
