//! Creates a table: its first manifest.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use crate::error::Result;
use crate::table::format::{
    CommitId, CommitOperation, EncodedSchema, FORMAT, TableManifest, TableSchema, TimestampMicros,
};
use crate::table::{Snapshot, Table};
use crate::versions::create_first;

/// The properties of a new table.
#[derive(Debug, Clone)]
pub struct NewTable {
    /// The columns.
    pub schema: TableSchema,
    /// The exact Arrow schema: an IPC schema message.
    pub arrow_schema: EncodedSchema,
    /// The ids of the columns that identify a row.
    pub key: Vec<u32>,
    /// The ids of the columns that files are sorted by.
    pub sort_by: Vec<u32>,
    /// The formats to which every commit is exported.
    pub exports: BTreeSet<String>,
}

impl NewTable {
    /// The manifest of the table before its first version.
    pub(in crate::table) fn draft(&self) -> TableManifest {
        let mut draft = self.clone().into_manifest(0, DateTime::UNIX_EPOCH);
        draft.version = 0;
        draft
    }

    /// The manifest of version 1.
    pub(in crate::table) fn into_manifest(
        self,
        commit_id: u128,
        created_at: DateTime<Utc>,
    ) -> TableManifest {
        TableManifest {
            format: FORMAT,
            version: 1,
            previous: None,
            commit_id: CommitId::new(commit_id),
            created_at: TimestampMicros::new(created_at),
            operation: CommitOperation::new("create", []),
            schema: self.schema,
            arrow_schema: self.arrow_schema,
            key: self.key,
            sort_by: self.sort_by,
            segments: Vec::new(),
            data_files: Vec::new(),
            tombstones: Vec::new(),
            oldest_version: 1,
            gc_floor: 0,
            restored_at: None,
            added_at: None,
            columns_restored_at: None,
            recent_commits: Vec::new(),
            transactions: BTreeMap::new(),
            older_transactions: Vec::new(),
            tags: BTreeMap::new(),
            exports: self.exports,
            shares: BTreeMap::new(),
        }
    }
}

/// Creates an empty table. Fails with [`ErrorKind::AlreadyExists`] if there is a table, also one whose pointer was lost; with
/// [`ErrorKind::ManifestCorrupted`] if manifests of a removed table are left; with [`ErrorKind::UnsafeStore`], before
/// anything is created, on a store that does not honor conditional writes; with [`ErrorKind::InvalidInput`] for a
/// column without a name.
///
/// [`ErrorKind::AlreadyExists`]: crate::ErrorKind::AlreadyExists
/// [`ErrorKind::InvalidInput`]: crate::ErrorKind::InvalidInput
/// [`ErrorKind::ManifestCorrupted`]: crate::ErrorKind::ManifestCorrupted
/// [`ErrorKind::UnsafeStore`]: crate::ErrorKind::UnsafeStore
pub async fn create(table: &Table, new_table: NewTable) -> Result<Snapshot> {
    // A table of an earlier version may be there with such a column.
    if let Err(unnamed) = new_table.check_names()
        && table.find_newest().await?.is_none()
    {
        return Err(unnamed);
    }
    let first = |commit_id, created_at| new_table.into_manifest(commit_id, created_at);
    create_first(table, first).await
}
