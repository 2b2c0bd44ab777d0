//! Whether an export is of the table in whose folder it is.

use crate::error::Result;
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
