//! An export: which versions are written, and how.
//!
//! All versions after the newest one of the log are written, one commit each. If that is not possible, because the next
//! version has expired or cannot be exported, the log goes on with a checkpoint of the newest version. Nobody
//! coordinates exports: each lists the log, goes on from there, and starts again if a vacuum removed versions
//! meanwhile. A log of another table or another system is an `ExportConflict`.

use std::sync::Arc;

use super::exporter::Exporter;
use super::log_files::{self, Log};
use super::rebuild::remove_log;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::progress;
use crate::table::Table;
use crate::table::export::{
    LoadedVersion, is_of_table, keep_left_out, read_identity, resolve_leave_out,
};
use crate::table::format::TableManifest;

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
    progress::begin_phase("export to Delta");
    let newest = table.newest().await?.manifest;
    let mut left_out = match &options.leave_out {
        None => None,
        Some(names) => Some(resolve_leave_out(&newest, names)?),
    };
    if options.rebuild {
        left_out = Some(remove_log(table, &newest, left_out).await?);
    }
    for _ in 0..MAX_RESTARTS {
        let exported = Box::pin(try_export(table, left_out.as_deref())).await;
        match exported {
            // A vacuum that found no log may have removed files of the version.
            Ok(export) if is_readable(table, export.version).await? => return Ok(export),
            Err(e) if e.kind() != ErrorKind::VersionExpired => return Err(e),
            _ => {}
        }
    }
    let message = format!(
        "gave up after {MAX_RESTARTS} attempts: vacuums removed versions during every export; try again"
    );
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.root()))
}

async fn is_readable(table: &Table, version: u64) -> Result<bool> {
    let newest = table.newest().await?.manifest;
    Ok(version > newest.version || newest.retains(version))
}

async fn try_export(table: &Table, left_out: Option<&[u32]>) -> Result<DeltaExport> {
    let newest = table.newest().await?.manifest;
    let log = Log::list(table).await?;
    let last = log.last_state(table).await?;
    if let Some(last) = &last {
        match is_of_table(table, &newest, last.version, &last.commit_id).await? {
            Some(true) => {}
            Some(false) => return Err(log_files::other_table_error(table, last.version)),
            None => return Err(unknown_error(table, last.version)),
        }
    }
    if let Some(last) = last.as_ref().filter(|last| last.version > newest.version) {
        // Another export saw a newer version.
        return Ok(DeltaExport {
            version: last.version,
            versions: 0,
            bytes: 0,
        });
    }
    check_checkpoints(table, &log).await?;
    let left_out = match &last {
        None => left_out.unwrap_or_default().to_vec(),
        Some(last) => keep_left_out(&newest, &last.left_out, last.last_id, left_out)?,
    };
    let last_version = last.as_ref().map(|last| last.version);
    let mut exporter = match last {
        None => {
            let identity = read_identity(table, &newest).await?;
            Exporter::new(table, &identity, left_out.clone())
        }
        Some(last) => Exporter::after(table, &newest, last, left_out.clone()),
    };
    let last_retained = last_version.filter(|version| *version >= newest.oldest_version);
    let is_continued = match last_retained {
        Some(last) => export_after(table, &log, last, &newest, &mut exporter).await?,
        None => false,
    };
    if !is_continued {
        begin(table, &newest, &mut exporter).await?;
    } else if is_checkpoint_due(&log, &exporter) || !log.has_sound_checkpoint(table).await? {
        let version = LoadedVersion::load(table, Arc::clone(&newest)).await?;
        exporter.checkpoint(&version).await?;
    } else {
        log_files::check_hint(table, &log).await?;
    }
    if exporter.left_out() != left_out {
        return Err(Error::invalid(
            "another export, which left out other columns, was faster; with rebuild=True the log is written anew",
        ));
    }
    Ok(DeltaExport {
        version: newest.version,
        versions: exporter.versions,
        bytes: exporter.bytes,
    })
}

fn unknown_error(table: &Table, version: u64) -> Error {
    let message = format!(
        "version {version} of the Delta log has expired, and it is not known whether it is of this table or of one that was \
         here before; export_delta(rebuild=True, leave_out=[...]) removes the log and writes a new one"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.root())
}

/// Refuses a log with a checkpoint of a version that the table does not have: readers begin at it.
async fn check_checkpoints(table: &Table, log: &Log) -> Result<()> {
    let Some(highest) = log.highest_checkpoint() else {
        return Ok(());
    };
    // Another export may have seen a newer version than this one.
    if highest <= table.newest().await?.manifest.version {
        return Ok(());
    }
    Err(log_files::other_table_error(table, highest))
}

/// Whether readers have much to read after the newest checkpoint.
fn is_checkpoint_due(log: &Log, exporter: &Exporter<'_>) -> bool {
    let (commits, bytes) = log.since_checkpoint();
    commits + exporter.versions >= CHECKPOINT_COMMITS
        || bytes + exporter.log_bytes() >= CHECKPOINT_BYTES
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
    let mut older = match load(table, newest, last).await {
        Err(e) if is_about_the_version(&e) => return Ok(false),
        older => older?,
    };
    if log.has_checkpoint(last) && !log.has_sound_checkpoint(table).await? {
        exporter.checkpoint(&older).await?;
    }
    for number in last + 1..=newest.version {
        let written = async {
            let version = load(table, newest, number).await?;
            exporter.export(&older, &version).await?;
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
    let version = LoadedVersion::load(table, Arc::clone(newest)).await?;
    exporter.begin(older.as_ref(), &version).await
}

/// A version up to the newest.
async fn load(table: &Table, newest: &Arc<TableManifest>, version: u64) -> Result<LoadedVersion> {
    let manifest = match newest.commit_id_of(version) {
        _ if version == newest.version => Arc::clone(newest),
        // With its commit id, it is known to be this version without another look at the newest one.
        Some(commit_id) => match table.read_manifest(version).await? {
            Some(manifest) if manifest.commit_id == *commit_id => Arc::new(manifest),
            _ => table.manifest_at(version).await?,
        },
        None => table.manifest_at(version).await?,
    };
    LoadedVersion::load(table, manifest).await
}
