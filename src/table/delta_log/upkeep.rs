//! A table with a Delta log, when it is vacuumed or dropped.

use std::time::Duration;

use super::export::{DeltaOptions, export_delta};
use super::log_files::{self, Log};
use super::vectors;
use crate::error::{ErrorKind, Result};
use crate::table::Table;
use crate::table::export::is_of_table;
use crate::versions::remove_versions;
use crate::versions::vacuum::{VacuumReport, vacuum_after};

/// As [`vacuum`](crate::versions::vacuum::vacuum), of a table that may have a Delta log, which is brought up to date
/// before anything is removed.
pub async fn vacuum_exported(
    table: &Table,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
) -> Result<VacuumReport> {
    let export = async || {
        if !log_files::exists(table).await? {
            return Ok(());
        }
        let exported = export_delta(table, &DeltaOptions::default()).await;
        exported.map(drop).map_err(|e| {
            e.context("nothing was removed, because the Delta log would name files that are gone")
        })
    };
    vacuum_after(table, retention, dry_run, timeout, export).await
}

/// Removes a table with its Delta log, which goes first, so that its readers find no table instead of missing files.
pub async fn drop_exported(table: &Table) -> Result<()> {
    let newest = match table.newest().await {
        Ok(newest) => newest.manifest,
        // What can be removed without knowing the versions is removed below.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ManifestCorrupted) => {
            return remove_versions(table).await;
        }
        Err(e) => return Err(e),
    };
    let log = Log::list(table).await?;
    let last = match log.last_state(table).await {
        // It is not ours to remove.
        Err(e) if e.kind() == ErrorKind::ExportConflict => return remove_versions(table).await,
        last => last?,
    };
    if let Some(last) = last
        && is_of_table(table, &newest, last.version, &last.commit_id).await? == Some(true)
    {
        log_files::remove(table).await?;
    }
    // Those of a table that is created meanwhile are not among them.
    let vectors = vectors::list_objects(table).await?;
    remove_versions(table).await?;
    table.store().delete_all(&vectors).await
}
