//! Creates a table: its first manifest, then its pointer.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, probe_conditional_writes};
use crate::table::format::{
    Base64, CommitId, CommitOperation, FORMAT, Pointer, TableManifest, TableSchema, TimestampMicros,
};
use crate::table::{Snapshot, Table, Versioned, names};
use crate::versions::CommitError;

/// The properties of a new table.
#[derive(Debug, Clone)]
pub struct NewTable {
    /// The columns.
    pub schema: TableSchema,
    /// The exact Arrow schema: an IPC schema message.
    pub arrow_schema: Bytes,
    /// The ids of the columns that identify a row.
    pub key: Vec<u32>,
    /// The ids of the columns that files are sorted by.
    pub sort_by: Vec<u32>,
}

impl NewTable {
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
            arrow_schema: Base64(self.arrow_schema),
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
            transactions: std::collections::BTreeMap::new(),
            older_transactions: Vec::new(),
            tags: std::collections::BTreeMap::new(),
        }
    }
}

/// Creates a table. Fails with [`ErrorKind::AlreadyExists`] if there is a table, also one whose pointer was
/// lost; with [`ErrorKind::ManifestCorrupted`] if manifests of a removed table are left, whose slots the new
/// versions would reach; with [`ErrorKind::UnsafeStore`], before anything is created, on a store that does
/// not honor conditional writes.
///
/// Crash point: between the manifest and the pointer. The next process that opens the table puts the pointer.
/// Late requests: a manifest that lands after another writer's table was vacuumed is no commit, which the
/// newest manifest shows; a pointer that lands late is behind, and writers advance it.
pub async fn create(table: &Table, new_table: NewTable) -> Result<Snapshot> {
    if table.find_newest().await?.is_some() {
        return Err(already_exists_error(table));
    }
    probe_conditional_writes(&table.store, table.root()).await?;
    let clock = table.store.clock();
    let manifest = new_table.into_manifest(clock.new_id(), clock.now());
    let path = table.path(&names::manifest(1));
    match Register::new(&table.store, &path)
        .create(manifest.to_bytes())
        .await
        .map_err(|e| CommitError::from_write(&manifest.commit_id, e))?
    {
        CasResult::Won(_) => {}
        CasResult::Conflict(_) | CasResult::Missing => return Err(already_exists_error(table)),
    }
    let path = table.path(names::POINTER);
    let pointer_bytes = Pointer::for_manifest(&manifest).to_bytes();
    let pointer_created = Register::new(&table.store, &path)
        .create(pointer_bytes)
        .await;
    let unknown = |cause| CommitError::Unknown {
        id: manifest.commit_id.clone(),
        cause,
    };
    // Once the manifest exists, the next process that opens the table puts the pointer: no error is definite.
    match pointer_created.map_err(unknown)? {
        CasResult::Won(pointer) => {
            table.observe(1, &manifest.commit_id);
            Ok(Snapshot {
                manifest: Arc::new(manifest),
                pointer,
            })
        }
        // Another process opened the table, put the pointer and may have committed already; or the
        // manifest landed in a slot that a vacuum of another writer's table had emptied.
        CasResult::Conflict(_) | CasResult::Missing => {
            let newest = table.newest().await.map_err(unknown)?;
            match newest.manifest.commit_id_of(1) {
                Some(commit_id) if *commit_id == manifest.commit_id => Ok(newest),
                Some(_) => Err(already_exists_error(table)),
                None => {
                    let message = "version 1 is older than the retained commit history";
                    Err(unknown(Error::other(message)).into())
                }
            }
        }
    }
}

fn already_exists_error(table: &Table) -> Error {
    let message = format!("a table already exists at {:?}", table.root());
    Error::new(ErrorKind::AlreadyExists, message).with_path(table.root())
}
