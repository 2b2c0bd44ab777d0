//! Whether an export is of the table in whose folder it is.

use crate::error::{ErrorKind, Result};
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::versions::CommitId;

/// Whether the export of a version, which names its commit, is of this table, and not of one that was here before; None if
/// that is not known.
pub(in crate::table) async fn is_of_table(
    table: &Table,
    newest: &TableManifest,
    version: u64,
    exported: &CommitId,
) -> Result<Option<bool>> {
    let mut commit_id = newest.commit_id_of(version).cloned();
    if commit_id.is_none() {
        // Of a version that is not the newest yet, too.
        let manifest = table.read_manifest(version).await?;
        commit_id = manifest.map(|manifest| manifest.commit_id);
    }
    let is_equal = commit_id.map(|commit_id| commit_id == *exported);
    Ok(is_equal.or((version > newest.version).then_some(false)))
}

/// Whose export is in the folder of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::table) enum ExportOwner {
    /// The table is not exported.
    Nobody,
    /// This table.
    Table,
    /// Another system, or another table that was here before; or that is not known. It is not ours to remove.
    Other,
}

/// Whose an export is; `last` are the version and the commit of the newest exported version, as they were read.
pub(in crate::table) async fn find_owner(
    table: &Table,
    newest: &TableManifest,
    last: Result<Option<(u64, CommitId)>>,
) -> Result<ExportOwner> {
    let last = match last {
        Err(e) if e.kind() == ErrorKind::ExportConflict => return Ok(ExportOwner::Other),
        last => last?,
    };
    let Some((version, commit_id)) = last else {
        return Ok(ExportOwner::Nobody);
    };
    match is_of_table(table, newest, version, &commit_id).await? {
        Some(true) => Ok(ExportOwner::Table),
        _ => Ok(ExportOwner::Other),
    }
}
