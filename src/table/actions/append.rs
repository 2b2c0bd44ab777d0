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

impl Append {
    /// Refuses a snapshot whose columns its files may not fit.
    pub(in crate::table) fn check(&self, base: &Manifest) -> Result<()> {
        base.refuses_files_of(self.began_at).map_or(Ok(()), Err)
    }

    /// What several of them make of a snapshot.
    pub(in crate::table) fn all(appends: &[&Self], base: &Manifest) -> (Manifest, Operation) {
        let files = || appends.iter().flat_map(|append| &append.files);
        let total = |of: fn(&DataFile) -> u64| files().map(of).fold(0, u64::saturating_add);
        let mut next = base.clone();
        next.data_files.extend(files().cloned());
        if files().next().is_some() {
            next.added_at = Some(base.version + 1);
        }
        let mut operation = Operation::new(
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

impl Change for Append {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        self.check(base)?;
        Ok(Self::all(&[self], base))
    }

    fn began_at(&self) -> Option<u64> {
        Some(self.began_at)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
