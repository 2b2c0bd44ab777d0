//! Iceberg metadata when its table is vacuumed or dropped.

use super::export::{IcebergOptions, export_iceberg};
use super::folder::{self, Listing};
use crate::error::Result;
use crate::table::Table;
use crate::table::export::{ExportOwner, find_owner};
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
    table.store().learn_conditions(table.root()).await;
    export_iceberg(table, &IcebergOptions::default()).await?;
    Ok(())
}

/// Removes the metadata of the table, so that readers find none instead of missing files. Returns the objects that it named,
/// to be removed after the table: none if the metadata is of another system.
pub(in crate::table) async fn remove_exported(
    table: &Table,
    newest: &TableManifest,
) -> Result<Vec<String>> {
    let metadata = Listing::list(table).await?.last(table).await;
    let last = metadata.map(|last| last.map(|(_, state)| (state.version, state.commit_id)));
    match find_owner(table, newest, last).await? {
        ExportOwner::Nobody => {}
        ExportOwner::Table => folder::remove(table).await?,
        // Nor are the objects that it names ours to remove.
        ExportOwner::Other => return Ok(Vec::new()),
    }
    // Those of a table that is created meanwhile are not among them.
    folder::list_objects(table).await
}
