//! A table that is exported, when it is vacuumed or dropped.

use std::time::Duration;

use super::{Table, delta_log, iceberg};
use crate::error::{ErrorKind, Result};
use crate::versions::remove_versions;
use crate::versions::vacuum::{VacuumReport, vacuum_after};

/// As [`vacuum`](crate::versions::vacuum::vacuum), of a table that may be exported: exports are brought up to date before
/// anything is removed.
pub async fn vacuum_exported(
    table: &Table,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
) -> Result<VacuumReport> {
    let export = async || {
        let exported = delta_log::export_again(table).await;
        exported.map_err(|e| {
            e.context("nothing was removed, because the Delta log would name files that are gone")
        })?;
        let exported = iceberg::export_again(table).await;
        exported.map_err(|e| {
            e.context(
                "nothing was removed, because the Iceberg metadata would name files that are gone",
            )
        })
    };
    vacuum_after(table, retention, dry_run, timeout, export).await
}

/// Removes a table with its exports, which go first, so that their readers find no table instead of missing files.
pub async fn drop_exported(table: &Table) -> Result<()> {
    let newest = match table.newest().await {
        Ok(newest) => newest.manifest,
        // What can be removed without knowing the versions is removed below.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ManifestCorrupted) => {
            return remove_versions(table).await;
        }
        Err(e) => return Err(e),
    };
    let mut named = delta_log::remove_exported(table, &newest).await?;
    named.extend(iceberg::remove_exported(table, &newest).await?);
    remove_versions(table).await?;
    table.store().delete_all(&named).await
}
