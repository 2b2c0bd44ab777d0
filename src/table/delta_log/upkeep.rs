//! A Delta log when its table is vacuumed or dropped.

use super::export::{DeltaOptions, export_delta};
use super::log_files::{self, Log};
use super::vectors;
use crate::error::{ErrorKind, Result};
use crate::table::Table;
use crate::table::export::is_of_table;
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
    let log = Log::list(table).await?;
    let last = match log.last_state(table).await {
        // It is not ours to remove.
        Err(e) if e.kind() == ErrorKind::ExportConflict => return Ok(Vec::new()),
        last => last?,
    };
    if let Some(last) = last {
        if is_of_table(table, newest, last.version, &last.commit_id).await? != Some(true) {
            // Nor are the vectors that it names.
            return Ok(Vec::new());
        }
        log_files::remove(table).await?;
    }
    // Those of a table that is created meanwhile are not among them.
    vectors::list_objects(table).await
}
