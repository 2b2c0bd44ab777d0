//! Iceberg metadata when its table is vacuumed or dropped.

use super::export::{IcebergOptions, export_iceberg};
use super::folder::{self, Listing};
use crate::error::{ErrorKind, Result};
use crate::table::Table;
use crate::table::export::is_of_table;
use crate::table::format::TableManifest;

/// Whether there is an export to be kept up to date.
pub(in crate::table) async fn is_exported(table: &Table) -> Result<bool> {
    folder::exists(table).await
}

/// Exports the newest version if there was an export before.
pub(in crate::table) async fn export_again(table: &Table) -> Result<()> {
    if !is_exported(table).await? {
        return Ok(());
    }
    export_iceberg(table, &IcebergOptions::default()).await?;
    Ok(())
}

/// Removes the metadata of the table, so that readers find none instead of missing files. Returns the objects that it named,
/// to be removed after the table: none if the metadata is of another system.
pub(in crate::table) async fn remove_exported(
    table: &Table,
    newest: &TableManifest,
) -> Result<Vec<String>> {
    let last = match Listing::list(table).await?.last(table).await {
        // It is not ours to remove.
        Err(e) if e.kind() == ErrorKind::ExportConflict => return Ok(Vec::new()),
        last => last?,
    };
    if let Some((_, state)) = last {
        if is_of_table(table, newest, state.version, &state.commit_id).await? != Some(true) {
            // Nor are the objects that it names.
            return Ok(Vec::new());
        }
        folder::remove(table).await?;
    }
    // Those of a table that is created meanwhile are not among them.
    folder::list_objects(table).await
}
