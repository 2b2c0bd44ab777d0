//! A table that is exported, when it is vacuumed or dropped.

use std::time::Duration;

use super::Table;
use super::delta_log::{self, DeltaOptions, export_delta};
use super::export::{ExportFormat, ExportOwner, find_owner};
use super::format::TableManifest;
use super::iceberg::{self, IcebergOptions, export_iceberg};
use crate::error::{Error, ErrorKind, Result};
use crate::versions::remove_versions;
use crate::versions::vacuum::{
    Expired, VacuumReport, before, find_expired, refuse_links, store_time, vacuum_after,
};

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
    let formats = find_own_formats(table).await?;
    let export = async || export_all(table, &formats).await;
    let report = vacuum_after(table, retention, dry_run, timeout, export).await?;
    if !dry_run {
        prune_exports(table, &formats, retention).await;
    }
    Ok(report)
}

/// Begins a vacuum as [`vacuum_exported`] does, whose objects other processes remove; then [`end_vacuum`] follows.
pub async fn begin_vacuum(
    table: &Table,
    retention: Duration,
    timeout: Duration,
) -> Result<Expired> {
    let formats = find_own_formats(table).await?;
    let export = async || export_all(table, &formats).await;
    find_expired(table, retention, false, timeout, export).await
}

/// Removes what only expired versions had in exports.
pub async fn end_vacuum(table: &Table, retention: Duration) -> Result<()> {
    let formats = find_own_formats(table).await?;
    prune_exports(table, &formats, retention).await;
    Ok(())
}

/// Exports the newest version before a vacuum removes anything.
async fn export_all(table: &Table, formats: &[ExportFormat]) -> Result<()> {
    for format in formats {
        let exported = format.export_newest(table).await;
        exported.map_err(|e| {
            let metadata = format.metadata();
            e.context(format!(
                "nothing was removed, because the {metadata} would name files that are gone"
            ))
        })?;
    }
    Ok(())
}

/// What differs between the formats.
impl ExportFormat {
    /// The folders of an export, relative to the table.
    fn folders(self) -> [&'static str; 2] {
        match self {
            Self::Delta => delta_log::FOLDERS,
            Self::Iceberg => iceberg::FOLDERS,
        }
    }

    /// Whether there is an export to be kept up to date.
    async fn is_exported(self, table: &Table) -> Result<bool> {
        match self {
            Self::Delta => delta_log::is_exported(table).await,
            Self::Iceberg => iceberg::is_exported(table).await,
        }
    }

    /// Exports the newest version if there is an export.
    async fn export_newest(self, table: &Table) -> Result<()> {
        if !self.is_exported(table).await? {
            return Ok(());
        }
        match self {
            Self::Delta => {
                export_delta(table, &DeltaOptions::default()).await?;
            }
            Self::Iceberg => {
                table.store().learn_conditions(table.root()).await;
                export_iceberg(table, &IcebergOptions::default()).await?;
            }
        }
        Ok(())
    }

    /// Removes what only expired versions had, unless it is young. Returns the number of objects.
    async fn prune(self, table: &Table, retention: Duration) -> Result<usize> {
        if !self.is_exported(table).await? {
            return Ok(0);
        }
        let cutoff = before(store_time(table.store(), table.root()).await?, retention);
        match self {
            Self::Delta => {
                let newest = table.newest().await?.manifest;
                delta_log::prune(table, &newest, cutoff).await
            }
            Self::Iceberg => iceberg::prune(table, cutoff).await,
        }
    }

    /// Removes the export of the table, so that readers find none instead of missing files. Returns the objects that it
    /// named, to be removed after the table: none if the export is of another system.
    async fn remove(self, table: &Table, newest: &TableManifest) -> Result<Vec<String>> {
        let last = match self {
            Self::Delta => delta_log::last_exported(table).await,
            Self::Iceberg => iceberg::last_exported(table).await,
        };
        match (find_owner(table, newest, last).await?, self) {
            (ExportOwner::Nobody, _) => {}
            (ExportOwner::Table, Self::Delta) => delta_log::remove(table).await?,
            (ExportOwner::Table, Self::Iceberg) => iceberg::remove(table).await?,
            // Nor are the objects that it names ours to remove.
            (ExportOwner::Other, _) => return Ok(Vec::new()),
        }
        // Those of a table that is created meanwhile are not among them.
        match self {
            Self::Delta => delta_log::list_objects(table).await,
            Self::Iceberg => iceberg::list_objects(table).await,
        }
    }
}

/// The formats in whose folders only this table can have exports. Refuses folders with an export that are symbolic links,
/// as those of the table are refused.
async fn find_own_formats(table: &Table) -> Result<Vec<ExportFormat>> {
    let mut formats = Vec::new();
    for format in ExportFormat::ALL {
        let is_own = match find_link(table, &format.folders()).await? {
            Some(refused) => refuse_exported(format.is_exported(table).await, refused)?,
            None => true,
        };
        if is_own {
            formats.push(format);
        }
    }
    Ok(formats)
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
async fn prune_exports(table: &Table, formats: &[ExportFormat], retention: Duration) {
    let retention = retention.max(MIN_EXPORT_AGE);
    let root = table.root();
    for export_format in formats {
        let format = export_format.title();
        match export_format.prune(table, retention).await {
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

/// Removes a table with its exports, which go first, so that their readers find no table instead of missing files.
pub async fn drop_exported(table: &Table) -> Result<()> {
    table.store().refuse_link(table.root()).await?;
    // Exports are removed first, so all is looked at before that.
    refuse_links(table).await?;
    let formats = find_own_formats(table).await?;
    let newest = match table.newest().await {
        Ok(newest) => newest.manifest,
        // What can be removed without knowing the versions is removed below.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::ManifestCorrupted) => {
            return remove_versions(table).await;
        }
        Err(e) => return Err(e),
    };
    let mut named = Vec::new();
    for format in formats {
        named.extend(format.remove(table, &newest).await?);
    }
    remove_versions(table).await?;
    table.store().delete_all(&named).await
}
