//! The objects of a Delta log: listed, created, and removed.
//!
//! `Log` is a listing of the log. Commits are created where there is none, and never replaced; a checkpoint is replaced
//! if it does not say what it should (`Match`); the hint `_last_checkpoint` may be older, since readers list the log
//! from there on. The names recur when a table is dropped and created again, so an object is replaced or removed only
//! by the ETag that was read. Commits of another system or of another table are an `ExportConflict`.

use std::collections::HashMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::{GetOptions, GetRange, PutMode, PutResult};
use serde_json::{Value, json};

use super::actions::{DeltaExportState, read_commit_state};
use super::checkpoint::read_state;
use crate::error::{Error, ErrorKind, Result};
use crate::files::open;
use crate::parquet::file::TAIL_BYTES;
use crate::store::Condition;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::versions::CommitId;

/// The folder of the log, relative to the table.
pub(super) const FOLDER: &str = "_delta_log";
const LAST_CHECKPOINT: &str = "_delta_log/_last_checkpoint";
/// The first line of a file of the log is shorter.
const FIRST_LINE_BYTES: u64 = 1 << 20;

/// How often is tried what other exports undo.
const MAX_ROUNDS: u32 = 20;

/// What is in a log.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Versions with a commit, and the bytes of these, in order.
    commits: Vec<(u64, u64)>,
    /// Versions with a checkpoint, in order.
    checkpoints: Vec<u64>,
    /// The times at which the objects of versions were last written.
    written: Vec<(u64, DateTime<Utc>)>,
    /// The ETags of the objects, by path relative to the table.
    e_tags: HashMap<String, String>,
}

impl Log {
    pub(super) async fn list(table: &Table) -> Result<Self> {
        let listing = table.store().list_folder(&table.path(FOLDER)).await?;
        let mut log = Self::default();
        for object in listing.files {
            let name = object.location.filename().unwrap_or_default();
            let version = if let Some(version) = parse(name, ".json") {
                log.commits.push((version, object.size));
                version
            } else if let Some(version) = parse(name, ".checkpoint.parquet") {
                log.checkpoints.push(version);
                version
            } else {
                continue;
            };
            log.written.push((version, object.last_modified));
            let path = format!("{FOLDER}/{name}");
            log.e_tags.extend(object.e_tag.map(|e_tag| (path, e_tag)));
        }
        log.commits.sort_unstable();
        log.checkpoints.sort_unstable();
        Ok(log)
    }

    /// What the newest export says, which may be of another table that was here before; None without an export. Refuses
    /// a log that another system wrote.
    pub(super) async fn last_state(&self, table: &Table) -> Result<Option<DeltaExportState>> {
        let Some((version, _)) = self.commits.last() else {
            return Ok(None);
        };
        let state = read_commit(table, *version).await?;
        let state = state.filter(|state| state.version == *version);
        state
            .ok_or_else(|| foreign_error(table, *version))
            .map(Some)
    }

    /// The highest version of a checkpoint.
    pub(super) fn highest_checkpoint(&self) -> Option<u64> {
        self.checkpoints.last().copied()
    }

    /// The newest checkpoint from which readers get to the newest version.
    fn last_checkpoint(&self) -> Option<u64> {
        let (newest, _) = self.commits.last()?;
        let usable = self
            .checkpoints
            .iter()
            .rev()
            .find(|version| **version <= *newest)?;
        let later = self.commits.iter().filter(|(version, _)| version > usable);
        (later.count() as u64 == newest - usable).then_some(*usable)
    }

    /// The number of commits after the newest checkpoint, and their bytes.
    pub(super) fn since_checkpoint(&self) -> (u64, u64) {
        let checkpoint = self.last_checkpoint().unwrap_or_default();
        let later = self
            .commits
            .iter()
            .filter(|(version, _)| *version > checkpoint);
        later.fold((0, 0), |(count, bytes), (_, size)| {
            (count + 1, bytes + size)
        })
    }

    /// Whether readers begin at a checkpoint that says what its version says: an export that ended early may have left one
    /// that another export was faster than.
    pub(super) async fn has_sound_checkpoint(&self, table: &Table) -> Result<bool> {
        let Some(version) = self.last_checkpoint() else {
            return Ok(false);
        };
        is_sound(table, version).await
    }

    pub(super) fn has_checkpoint(&self, version: u64) -> bool {
        self.checkpoints.contains(&version)
    }

    /// The first version of which an object was written since a time.
    pub(super) fn first_since(&self, time: DateTime<Utc>) -> Option<u64> {
        let since = self.written.iter().filter(|(_, written)| *written >= time);
        since.map(|(version, _)| *version).min()
    }

    /// The newest checkpoint of a version or of one before it.
    pub(super) fn checkpoint_until(&self, version: u64) -> Option<u64> {
        let until = self.checkpoints.iter().filter(|c| **c <= version);
        until.max().copied()
    }

    /// The versions with a commit before a version.
    pub(super) fn commits_below(&self, version: u64) -> impl Iterator<Item = u64> {
        let versions = self.commits.iter().map(|(commit, _)| *commit);
        versions.take_while(move |commit| *commit < version)
    }

    /// The paths of all objects of versions before a version, in order, relative to the table.
    pub(super) fn objects_below(&self, version: u64) -> Vec<String> {
        let commits = self.commits_below(version).map(|v| (v, commit(v)));
        let checkpoints = self.checkpoints.iter().filter(|v| **v < version);
        let mut objects: Vec<_> = commits
            .chain(checkpoints.map(|v| (*v, checkpoint(*v))))
            .collect();
        objects.sort();
        objects.into_iter().map(|(_, path)| path).collect()
    }

    /// The ETag of an object, by its path relative to the table.
    pub(super) fn e_tag(&self, path: &str) -> Option<&str> {
        self.e_tags.get(path).map(String::as_str)
    }

    fn is_empty(&self) -> bool {
        self.commits.is_empty() && self.checkpoints.is_empty()
    }
}

/// Whether there is a log that exports wrote.
pub(in crate::table) async fn exists(table: &Table) -> Result<bool> {
    let log = Log::list(table).await?;
    match log.last_state(table).await {
        Err(e) if e.kind() == ErrorKind::ExportConflict => {
            log::warn!("the Delta log is not kept up to date: {e}");
            Ok(false)
        }
        Err(e) => Err(e),
        Ok(_) => Ok(!log.is_empty()),
    }
}

/// The newest version of the log and its commit; None without an export.
pub(in crate::table) async fn last_exported(table: &Table) -> Result<Option<(u64, CommitId)>> {
    let last = Log::list(table).await?.last_state(table).await?;
    Ok(last.map(|state| (state.version, state.commit_id)))
}

/// Whether the checkpoint of a version says what its commit says.
pub(super) async fn is_sound(table: &Table, version: u64) -> Result<bool> {
    let state = read_checkpoint(table, version).await?;
    Ok(state.is_some() && state == read_commit(table, version).await?)
}

/// The state that an export wrote with a version.
async fn read_commit(table: &Table, version: u64) -> Result<Option<DeltaExportState>> {
    let path = table.path(&commit(version));
    let options = GetOptions::new().with_range(Some(GetRange::Bounded(0..FIRST_LINE_BYTES)));
    let (bytes, _) = table.store().get(&path, options).await?;
    Ok(read_commit_state(&bytes))
}

/// Refuses a version of the log that is of another commit than that of the table.
fn check_commit(
    table: &Table,
    manifest: &TableManifest,
    state: Option<DeltaExportState>,
) -> Result<DeltaExportState> {
    let state = state.ok_or_else(|| foreign_error(table, manifest.version))?;
    if state.commit_id != manifest.commit_id {
        return Err(other_table_error(table, manifest.version));
    }
    Ok(state)
}

pub(super) fn other_table_error(table: &Table, version: u64) -> Error {
    let message = format!(
        "version {version} of the Delta log is of another table that was here before; export_delta(rebuild=True) removes \
         the log and writes a new one"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.path(&commit(version)))
}

fn foreign_error(table: &Table, version: u64) -> Error {
    let message = format!(
        "another system wrote version {version} of the Delta log; nothing was written or removed: move the folder \
         _delta_log away and export again"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.path(&commit(version)))
}

/// Creates the file of a version, and returns its state. Another export may have created it: then it has to be of the same
/// commit.
pub(super) async fn create_commit(
    table: &Table,
    manifest: &TableManifest,
    bytes: Bytes,
    state: DeltaExportState,
) -> Result<DeltaExportState> {
    let path = table.path(&commit(manifest.version));
    match table.store().create(&path, bytes).await {
        Ok(_) => Ok(state),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let state = read_commit(table, manifest.version).await?;
            check_commit(table, manifest, state)
        }
        Err(e) => Err(e),
    }
}

/// Which checkpoint of a version may stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    /// One of the same commit.
    Commit,
    /// One of the same export.
    State,
}

/// Creates a checkpoint, or replaces one that may not stay: of a log that was here before, or of an export that another
/// one was faster than.
pub(super) async fn place_checkpoint(
    table: &Table,
    version: u64,
    bytes: &Bytes,
    state: &DeltaExportState,
    stays: Match,
) -> Result<()> {
    let store = table.store();
    let path = table.path(&checkpoint(version));
    for _ in 0..MAX_ROUNDS {
        let placed = match store.create(&path, bytes.clone()).await {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let present = read_checkpoint(table, version).await?;
                let may_stay = present.is_some_and(|present| match stays {
                    Match::Commit => present.commit_id == state.commit_id,
                    Match::State => present == *state,
                });
                if may_stay {
                    return Ok(());
                }
                replace_checkpoint(table, version, bytes).await
            }
            created => created,
        };
        match placed {
            Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
            result => return result.map(drop),
        }
    }
    let message = "gave up: other exports replace the checkpoint; try again";
    Err(Error::new(ErrorKind::Unavailable, message).with_path(path))
}

/// Replaces the checkpoint that is there now, if it does not change meanwhile.
async fn replace_checkpoint(table: &Table, version: u64, bytes: &Bytes) -> Result<PutResult> {
    let (store, path) = (table.store(), table.path(&checkpoint(version)));
    let e_tag = store.head(&path).await?.e_tag;
    let condition = e_tag.map_or(Condition::Always, Condition::Matches);
    store.put_if(&path, bytes.clone(), &condition).await
}

/// The state of the export that wrote a checkpoint; `None` if it is missing or another system wrote it.
async fn read_checkpoint(table: &Table, version: u64) -> Result<Option<DeltaExportState>> {
    let path = table.path(&checkpoint(version));
    match open(table.store(), &path, TAIL_BYTES).await {
        Ok(part) => Ok(read_state(part.file.metadata())),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PartCorrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Names the newest checkpoint. Readers list the log from there on, so an older one that comes late does no harm.
pub(super) async fn name_checkpoint(table: &Table, version: u64, actions: usize) -> Result<()> {
    let hint = json!({"version": version, "size": actions}).to_string();
    let path = table.path(LAST_CHECKPOINT);
    table
        .store()
        .put(&path, hint.into(), PutMode::Overwrite)
        .await?;
    Ok(())
}

/// Makes readers look for checkpoints themselves if `_last_checkpoint` names one that is not there: it came late.
pub(super) async fn check_hint(table: &Table, log: &Log) -> Result<()> {
    let path = table.path(LAST_CHECKPOINT);
    let options = GetOptions::new().with_range(Some(GetRange::Bounded(0..FIRST_LINE_BYTES)));
    let hint = match table.store().get(&path, options).await {
        Ok((bytes, _)) => serde_json::from_slice::<Value>(&bytes).unwrap_or_default(),
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let is_there = |version| log.has_checkpoint(version);
    if !hint["version"].as_u64().is_some_and(is_there) {
        table.store().delete(&path).await?;
    }
    Ok(())
}

/// Removes a log that exports of this library wrote. The newest version goes first: until the end readers find an older
/// one. The names recur in the log that comes after it, so a request that is late removes only what was
/// listed; the hint, without which readers list the log, may go.
pub(in crate::table) async fn remove(table: &Table) -> Result<()> {
    let store = table.store();
    // A store that is probed first is probed beside the log.
    store.condition_support(table.root()).await?;
    for _ in 0..MAX_ROUNDS {
        let log = Log::list(table).await?;
        if log.is_empty() {
            return Ok(());
        }
        match log.last_state(table).await {
            // Another process removes it, too.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            state => drop(state?),
        }
        store.delete(&table.path(LAST_CHECKPOINT)).await?;
        for path in log.objects_below(u64::MAX).iter().rev() {
            store
                .delete_unchanged(&table.path(path), log.e_tag(path))
                .await?;
        }
    }
    let message =
        "other exports write into the Delta log, which is being removed; stop them and try again";
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.path(FOLDER)))
}

/// The path of the file of a version, relative to the table.
pub(super) fn commit(version: u64) -> String {
    format!("{FOLDER}/{version:020}.json")
}

fn checkpoint(version: u64) -> String {
    format!("{FOLDER}/{version:020}.checkpoint.parquet")
}

fn parse(name: &str, extension: &str) -> Option<u64> {
    let digits = name.strip_suffix(extension)?;
    let is_version = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_version.then(|| digits.parse().ok())?
}
