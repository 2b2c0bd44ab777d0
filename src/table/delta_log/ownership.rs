//! Whether a log is of the table in whose folder it is.

use super::actions::ExportState;
use crate::error::Result;
use crate::table::Table;
use crate::table::format::TableManifest;

/// Whether an export is of this table, and not of one that was here before; None if that is not known.
pub(super) async fn is_of_table(
    table: &Table,
    newest: &TableManifest,
    export: &ExportState,
) -> Result<Option<bool>> {
    let mut commit_id = newest.commit_id_of(export.version).cloned();
    if commit_id.is_none() {
        // Of a version that is not the newest yet, too.
        let manifest = table.read_manifest(export.version).await?;
        commit_id = manifest.map(|manifest| manifest.commit_id);
    }
    let is_equal = commit_id.map(|commit_id| commit_id == export.commit_id);
    Ok(is_equal.or((export.version > newest.version).then_some(false)))
}
