//! Tables as Delta tables: a Delta log beside the table's own metadata, over the same data files.
//!
//! Version V of the log is version V of the table. What a version of the log says follows from manifests alone, so
//! exports that run at once, or end early, do no harm. The protocol is in `docs/design/2026-11-27-export-delta.md`.
//!
//! Errors: those of [`crate::versions`]; [`ErrorKind::InvalidInput`] for columns and files that readers of Delta would read
//! wrongly; [`ErrorKind::ExportConflict`] if another system has written into the log.

mod actions;
mod checkpoint;
mod exporter;
mod file_check;
mod log_files;
mod paths;
mod schema;
mod statistics;
mod types;
mod vectors;
mod version;

use std::sync::Arc;
use std::time::Duration;

use self::actions::ExportState;
use self::exporter::Exporter;
use self::log_files::Log;
use self::version::Version;
use super::Table;
use super::format::TableManifest;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::versions::remove_versions;
use crate::versions::vacuum::{VacuumReport, vacuum_after};

/// How often an export starts again because a vacuum removed versions during it.
const MAX_RESTARTS: u32 = 20;
/// After so many commits, or so many bytes of them, comes a checkpoint.
const CHECKPOINT_COMMITS: u64 = 100;
const CHECKPOINT_BYTES: u64 = 16 << 20;

/// What to export.
#[derive(Debug, Clone, Default)]
pub struct DeltaOptions {
    /// The names of columns to leave out; None for those of the last export.
    pub leave_out: Option<Vec<String>>,
    /// Whether a log that is there is removed and written anew.
    pub rebuild: bool,
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaExport {
    /// The newest version of the log.
    pub version: u64,
    /// The number of versions that were written.
    pub versions: u64,
    /// The bytes of all objects that were written.
    pub bytes: u64,
}

/// Writes the versions that a table's Delta log lacks, up to the newest.
pub async fn export_delta(table: &Table, options: &DeltaOptions) -> Result<DeltaExport> {
    let mut options = options.clone();
    if options.rebuild {
        options.leave_out = remove_log(table, options.leave_out).await?;
    }
    for _ in 0..MAX_RESTARTS {
        match Box::pin(try_export(table, &options)).await {
            // A vacuum that found no log may have removed files of the version.
            Ok(export) if table.newest().await?.manifest.retains(export.version) => {
                return Ok(export);
            }
            Err(e) if e.kind() != ErrorKind::VersionExpired => return Err(e),
            _ => {}
        }
    }
    let message = format!(
        "gave up after {MAX_RESTARTS} attempts: vacuums removed versions during every export; try again"
    );
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.root()))
}

/// As [`vacuum`](crate::versions::vacuum::vacuum), of a table that may have a Delta log, which is brought up to date before anything is removed.
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

/// Removes a table with its Delta log, which goes first.
pub async fn drop_exported(table: &Table) -> Result<()> {
    log_files::remove_with_vectors(table).await?;
    remove_versions(table).await
}

/// Removes the log, unless the newest version cannot be exported. Returns the names of the columns to leave out: those
/// that were given, or else those of the log.
async fn remove_log(table: &Table, leave_out: Option<Vec<String>>) -> Result<Option<Vec<String>>> {
    let newest = table.newest().await?.manifest;
    let last = Log::list(table).await?.last_state(table).await?;
    let leave_out = leave_out.or_else(|| {
        let left_out = last?.left_out;
        let columns = newest.schema.columns.iter();
        let names = columns.filter(|column| left_out.contains(&column.id));
        Some(names.map(|column| column.name.clone()).collect())
    });
    let left_out = resolve(&newest, leave_out.as_deref().unwrap_or_default())?;
    let version = Version::load(table, Arc::clone(&newest)).await?;
    let mut exporter = Exporter::new(table, &newest, left_out);
    exporter.check(&version).await?;
    log_files::remove(table).await?;
    Ok(leave_out)
}

async fn try_export(table: &Table, options: &DeltaOptions) -> Result<DeltaExport> {
    let newest = table.newest().await?.manifest;
    let log = Log::list(table).await?;
    let last = log.last_export(table, &newest).await?;
    if let Some(last) = last.as_ref().filter(|last| last.version > newest.version) {
        // Another export may have seen a newer version.
        return check_newer(table, last).await;
    }
    let left_out = match (&options.leave_out, &last) {
        (None, None) => Vec::new(),
        (None, Some(last)) => last.left_out.clone(),
        (Some(names), _) => resolve(&newest, names)?,
    };
    let last_version = last.as_ref().map(|last| last.version);
    let mut exporter = match last {
        None => {
            let identity = identity(table, &newest).await?;
            Exporter::new(table, &identity, left_out.clone())
        }
        Some(last) => Exporter::after(table, last),
    };
    check_left_out(&newest, exporter.left_out(), &left_out)?;
    let last_retained = last_version.filter(|version| *version >= newest.oldest_version);
    let is_continued = match last_retained {
        Some(last) => export_after(table, &log, last, &newest, &mut exporter).await?,
        None => false,
    };
    if !is_continued {
        begin(table, &newest, &mut exporter).await?;
        check_left_out(&newest, exporter.left_out(), &left_out)?;
    } else if is_checkpoint_due(&log, &exporter) || !log.has_sound_checkpoint(table).await? {
        let version = Version::load(table, Arc::clone(&newest)).await?;
        exporter.checkpoint(&version).await?;
    }
    Ok(DeltaExport {
        version: newest.version,
        versions: exporter.versions,
        bytes: exporter.bytes,
    })
}

/// Whether readers have much to read after the newest checkpoint.
fn is_checkpoint_due(log: &Log, exporter: &Exporter<'_>) -> bool {
    let (commits, bytes) = log.since_checkpoint();
    commits + exporter.versions >= CHECKPOINT_COMMITS || bytes + exporter.bytes >= CHECKPOINT_BYTES
}

/// A log with a version that the table did not have when it was read.
async fn check_newer(table: &Table, last: &ExportState) -> Result<DeltaExport> {
    let newest = table.newest().await?.manifest;
    let mut commit_id = newest.commit_id_of(last.version).cloned();
    if commit_id.is_none() {
        // The pointer may be behind.
        let manifest = table.read_manifest(last.version).await?;
        commit_id = manifest.map(|manifest| manifest.commit_id);
    }
    if commit_id.as_ref() != Some(&last.commit_id) {
        return Err(log_files::unknown_version_error(
            table,
            last,
            newest.version,
        ));
    }
    Ok(DeltaExport {
        version: last.version,
        versions: 0,
        bytes: 0,
    })
}

/// Refuses other columns to leave out than a log has. Those that were dropped since do not count.
fn check_left_out(newest: &TableManifest, of_log: &[u32], asked: &[u32]) -> Result<()> {
    let is_there = |id: &&u32| newest.schema.columns.iter().any(|column| column.id == **id);
    if of_log
        .iter()
        .filter(is_there)
        .eq(asked.iter().filter(is_there))
    {
        return Ok(());
    }
    Err(Error::invalid(
        "leave_out differs from that of the last export; with rebuild=True the log is written anew",
    ))
}

/// Exports all versions after one of the log. False if one of them cannot be exported, which may have been mended since.
async fn export_after(
    table: &Table,
    log: &Log,
    last: u64,
    newest: &Arc<TableManifest>,
    exporter: &mut Exporter<'_>,
) -> Result<bool> {
    if last == newest.version {
        return Ok(true);
    }
    let mut older = load(table, newest, last).await?;
    log_files::check_commit(table, &older.manifest, exporter.last().cloned())?;
    for number in last + 1..=newest.version {
        let written = async {
            let version = load(table, newest, number).await?;
            exporter.export(Some(&older), &version).await?;
            if log.has_checkpoint(number) {
                exporter.checkpoint(&version).await?;
            }
            Ok(version)
        };
        match written.await {
            Ok(version) => older = version,
            Err(e) if number < newest.version && is_about_the_version(&e) => {
                log::info!(
                    "version {number} has no place in the Delta log, which goes on with version {}: {e}",
                    newest.version
                );
                return Ok(false);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// Whether an error says that a version cannot be exported, or that some of its objects are gone or damaged.
fn is_about_the_version(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::InvalidInput
            | ErrorKind::PartCorrupted
            | ErrorKind::ManifestCorrupted
            | ErrorKind::NotFound
    )
}

/// Exports the newest version of a table without a log, or with one whose next version has expired or cannot be exported:
/// with a checkpoint, at which readers begin.
async fn begin(
    table: &Table,
    newest: &Arc<TableManifest>,
    exporter: &mut Exporter<'_>,
) -> Result<()> {
    let older = match newest.previous {
        Some(previous) => Some(load(table, newest, previous).await?),
        None => None,
    };
    let version = Version::load(table, Arc::clone(newest)).await?;
    exporter.begin(older.as_ref(), &version).await
}

/// A version up to the newest.
async fn load(table: &Table, newest: &Arc<TableManifest>, version: u64) -> Result<Version> {
    let manifest = match newest.commit_id_of(version) {
        _ if version == newest.version => Arc::clone(newest),
        // With its commit id, it is known to be this version without another look at the newest one.
        Some(commit_id) => match table.read_manifest(version).await? {
            Some(manifest) if manifest.commit_id == *commit_id => Arc::new(manifest),
            _ => table.manifest_at(version).await?,
        },
        None => table.manifest_at(version).await?,
    };
    Version::load(table, manifest).await
}

/// The manifest that gives the Delta table its identity: that of the first version, if it is still there.
async fn identity(table: &Table, newest: &Arc<TableManifest>) -> Result<Arc<TableManifest>> {
    if newest.version > 1 && newest.retains(1) {
        return table.manifest_at(1).await;
    }
    Ok(Arc::clone(newest))
}

/// The ids of columns, sorted; without those that were dropped.
fn resolve(manifest: &TableManifest, names: &[String]) -> Result<Vec<u32>> {
    let columns = TableColumns::from_manifest(manifest)?;
    let is_dropped = |name: &String| {
        let is_there = manifest.schema.columns.iter().any(|c| c.name == *name);
        !is_there
            && manifest
                .schema
                .retired
                .values()
                .any(|stored| stored == name)
    };
    let names: Vec<String> = names
        .iter()
        .filter(|name| !is_dropped(name))
        .cloned()
        .collect();
    let mut ids = columns.ids_of(&names).map_err(|e| e.context("leave_out"))?;
    ids.sort_unstable();
    Ok(ids)
}
