//! A Delta log when its table is vacuumed or dropped.

use super::export::{DeltaOptions, export_delta};
use super::log_files::{self, Log};
use super::vectors;
use crate::error::Result;
use crate::table::Table;
use crate::table::export::{ExportOwner, find_owner};
use crate::table::format::TableManifest;

/// Whether there is an export to be kept up to date.
pub(in crate::table) async fn is_exported(table: &Table) -> Result<bool> {
    log_files::exists(table).await
}

/// Exports the newest version if there is a log.
pub(in crate::table) async fn export_again(table: &Table) -> Result<()> {
    if !is_exported(table).await? {
        return Ok(());
    }
    export_delta(table, &DeltaOptions::default()).await?;
    Ok(())
}

/// Removes the log of the table, so that readers find none instead of missing files. Returns the objects that it named, to
/// be removed after the table: none if the log is of another system.
pub(in crate::table) async fn remove_exported(
    table: &Table,
    newest: &TableManifest,
) -> Result<Vec<String>> {
    let state = Log::list(table).await?.last_state(table).await;
    let last = state.map(|last| last.map(|last| (last.version, last.commit_id)));
    match find_owner(table, newest, last).await? {
        ExportOwner::Nobody => {}
        ExportOwner::Table => log_files::remove(table).await?,
        // Nor are the vectors that it names ours to remove.
        ExportOwner::Other => return Ok(Vec::new()),
    }
    // Those of a table that is created meanwhile are not among them.
    vectors::list_objects(table).await
}
