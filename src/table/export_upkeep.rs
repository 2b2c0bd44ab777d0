//! A table that is exported, when it is vacuumed or dropped.

use std::time::Duration;

use super::{Table, delta_log, iceberg};
use crate::error::{Error, ErrorKind, Result};
use crate::versions::remove_versions;
use crate::versions::vacuum::{VacuumReport, before, refuse_links, store_time, vacuum_after};

/// Younger objects of exports stay, because requests for them, or exports that name them, may still be under way.
const MIN_EXPORT_AGE: Duration = Duration::from_hours(24);

/// As [`vacuum`](crate::versions::vacuum::vacuum), of a table that may be exported: exports are brought up to date before
/// anything is removed.
pub async fn vacuum_exported(
    table: &Table,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
) -> Result<VacuumReport> {
    let formats = OwnFormats::find(table).await?;
    let export = async || {
        if formats.has_delta {
            let exported = delta_log::export_again(table).await;
            let context =
                "nothing was removed, because the Delta log would name files that are gone";
            exported.map_err(|e| e.context(context))?;
        }
        if formats.has_iceberg {
            let exported = iceberg::export_again(table).await;
            let context =
                "nothing was removed, because the Iceberg metadata would name files that are gone";
            exported.map_err(|e| e.context(context))?;
        }
        Ok::<_, Error>(())
    };
    let report = vacuum_after(table, retention, dry_run, timeout, export).await?;
    if !dry_run {
        prune_exports(table, &formats, retention).await;
    }
    Ok(report)
}

/// The formats in whose folders only this table can have exports.
struct OwnFormats {
    has_delta: bool,
    has_iceberg: bool,
}

impl OwnFormats {
    /// Refuses folders with an export that are symbolic links, as those of the table are refused.
    async fn find(table: &Table) -> Result<Self> {
        Ok(Self {
            has_delta: match find_link(table, &delta_log::FOLDERS).await? {
                Some(refused) => refuse_exported(delta_log::is_exported(table).await, refused)?,
                None => true,
            },
            has_iceberg: match find_link(table, &iceberg::FOLDERS).await? {
                Some(refused) => refuse_exported(iceberg::is_exported(table).await, refused)?,
                None => true,
            },
        })
    }
}

/// The refusal of the first folder that is a symbolic link.
async fn find_link(table: &Table, folders: &[&str]) -> Result<Option<Error>> {
    let paths: Vec<String> = folders.iter().map(|folder| table.path(folder)).collect();
    match table.store().refuse_links(&paths).await {
        Err(e) if e.kind() == ErrorKind::InvalidPath => Ok(Some(e)),
        checked => checked.map(|()| None),
    }
}

/// False for a link without an export behind it, from where nothing is removed.
fn refuse_exported(is_exported: Result<bool>, refused: Error) -> Result<bool> {
    match is_exported {
        Ok(false) => Ok(false),
        // It leads out of the store, where no export writes.
        Err(e) if e.kind() == ErrorKind::InvalidPath => Ok(false),
        _ => Err(refused),
    }
}

/// Removes what only expired versions had in exports, unless it is young. What fails is left to the next vacuum.
async fn prune_exports(table: &Table, formats: &OwnFormats, retention: Duration) {
    let retention = retention.max(MIN_EXPORT_AGE);
    let mut pruned = Vec::new();
    if formats.has_delta {
        pruned.push(("Delta", prune_delta(table, retention).await));
    }
    if formats.has_iceberg {
        pruned.push(("Iceberg", prune_iceberg(table, retention).await));
    }
    let root = table.root();
    for (format, removed) in pruned {
        match removed {
            Ok(0) => {}
            Ok(count) => {
                log::info!(
                    "{count} objects of the export of {root:?} to {format} have expired and were removed"
                );
            }
            Err(e) => {
                log::warn!(
                    "what has expired of the export of {root:?} to {format} was not removed: {e}"
                );
            }
        }
    }
}

async fn prune_delta(table: &Table, retention: Duration) -> Result<usize> {
    if !delta_log::is_exported(table).await? {
        return Ok(0);
    }
    let cutoff = before(store_time(table).await?, retention);
    let newest = table.newest().await?.manifest;
    delta_log::prune(table, &newest, cutoff).await
}

async fn prune_iceberg(table: &Table, retention: Duration) -> Result<usize> {
    if !iceberg::is_exported(table).await? {
        return Ok(0);
    }
    let cutoff = before(store_time(table).await?, retention);
    iceberg::prune(table, cutoff).await
}

/// Removes a table with its exports, which go first, so that their readers find no table instead of missing files.
pub async fn drop_exported(table: &Table) -> Result<()> {
    table.store().refuse_link(table.root()).await?;
    // Exports are removed first, so all is looked at before that.
    refuse_links(table).await?;
    let formats = OwnFormats::find(table).await?;
    let newest = match table.newest().await {
        Ok(newest) => newest.manifest,
        // What can be removed without knowing the versions is removed below.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ManifestCorrupted) => {
            return remove_versions(table).await;
        }
        Err(e) => return Err(e),
    };
    let mut named = Vec::new();
    if formats.has_delta {
        named.extend(delta_log::remove_exported(table, &newest).await?);
    }
    if formats.has_iceberg {
        named.extend(iceberg::remove_exported(table, &newest).await?);
    }
    remove_versions(table).await?;
    table.store().delete_all(&named).await
}
