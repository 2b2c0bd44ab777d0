//! What differs between two versions of a stage, key by key, whatever happened between them.
//!
//! The rows of a key are compared at both ends, so all that is searched are the keys that can differ:
//!
//! - Those that are named by the runs that only one of the versions has. Rows that both versions take from the same runs
//!   are the same. Only the two versions are read.
//! - Where a compaction has rewritten many rows, those that the versions between say that they changed, if these are there
//!   and have fewer.
//! - All keys, where the stage is new or has another order of keys.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::{ArrowError, SchemaRef};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::Pipeline;
use super::changes::{ChangeWriter, change_schema, find_stage};
use super::cursor::Cursor;
use super::diff::{CHANGED, ChangeType, HAD, HAS, diff, flags_of};
use super::format::{PipelineManifest, StoredRun};
use super::functions::Rows;
use super::keys::{are_stored_alike, nullable};
use super::layers::to_error;
use super::lookup::Keys;
use super::read::{StoredNode, TableName, as_declared, stream as stream_rows};
use super::tables::{KeyAndValue, TableShape};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{BatchStream, SortedBatches, Spill, sort_batches};
use crate::versions::Versioned;

/// How many manifests are read ahead.
const VERSIONS_AHEAD: usize = 16;
/// As many bytes of runs take about as long to read as the manifest of a version.
const VERSION_BYTES: u64 = 256 << 10;
/// What more versions say that they changed is not read: it would be in too many runs to be merged.
const MAX_VERSIONS: u64 = 4096;

/// Streams the net changes of a stage after the version `since`, up to and including that of `until`: the columns of
/// [`super::changes()`], and one change of each key. `since` is 0 for the pipeline before its first version, and a stage
/// that the version did not have had no rows.
///
/// Fails with [`ErrorKind::InvalidInput`] if `since` is newer than `until` or does not exist, or the stage is a source,
/// with [`ErrorKind::VersionExpired`] if a vacuum removed a version that is needed, and with
/// [`ErrorKind::DefinitionChanged`] if the types of the key or value are others.
pub async fn net_changes(
    pipeline: &Pipeline,
    since: u64,
    until: &Arc<PipelineManifest>,
    name: &str,
    memory_bytes: usize,
) -> Result<BatchStream> {
    let node = find_stage(pipeline, until, name, memory_bytes)?;
    let before = match since.cmp(&until.version) {
        Ordering::Greater => {
            let message = format!(
                "cannot read changes from {since} to {}: the first version must not be the newer one",
                until.version
            );
            return Err(Error::invalid(message).with_path(pipeline.root()));
        }
        Ordering::Equal => Arc::clone(until),
        Ordering::Less if since == 0 => Arc::new(PipelineManifest::empty_of(pipeline)),
        Ordering::Less => pipeline.manifest_at(since).await?,
    };
    let range = VersionRange {
        pipeline,
        before: &before,
        until,
    };
    let comparison = range.plan_comparison(node, name, memory_bytes).await?;
    let last = until.retained_version();
    let versions: Vec<u64> = match &comparison.candidates {
        Candidates::OfUpdates(_) => (since..=last).collect(),
        _ if since == 0 => vec![last],
        _ => vec![since, last],
    };
    let schema = change_schema(&comparison.new.columns);
    let declared = Arc::clone(&schema);
    let cancel = comparison.new.cancel.clone();
    let read_from = (pipeline, until.as_ref(), versions.as_slice());
    Ok(stream_rows(schema, read_from, &cancel, move || {
        let rows = comparison.changed_rows(memory_bytes)?;
        Ok(as_declared(rows, declared))
    }))
}

/// The versions between which changes are read.
struct VersionRange<'a> {
    pipeline: &'a Pipeline,
    before: &'a PipelineManifest,
    until: &'a PipelineManifest,
}

/// What the versions after the first one did to a stage.
struct StageLog {
    /// The name that it had in the first version; None if it was not there in every version.
    old_name: Option<String>,
    /// The keys that they changed.
    updates: Vec<StoredRun>,
    /// Whether the type and the order of the key were always the same, so that the keys are all that changed.
    has_same_keys: bool,
}

/// A stage at both ends.
struct Comparison {
    /// None if it had no rows.
    old: Option<StoredNode>,
    new: StoredNode,
    candidates: Candidates,
}

/// The keys that can differ.
enum Candidates {
    /// All that either version has.
    All,
    /// Those that runs of the contents name.
    OfContent(Vec<StoredRun>),
    /// Those that runs of changed keys name.
    OfUpdates(Vec<StoredRun>),
}

impl VersionRange<'_> {
    /// Finds the stage at both ends, and the keys that can differ.
    async fn plan_comparison(
        &self,
        new: StoredNode,
        name: &str,
        memory_bytes: usize,
    ) -> Result<Comparison> {
        let (old_name, log) = if self.before.version == 0 {
            (None, None)
        } else if self.before.node(name).is_some() {
            (Some(name.to_owned()), None)
        } else {
            let Some(log) = self.read_log(name).await? else {
                return Err(self.unknown_error(name).await);
            };
            let is_there = |name: &String| self.before.node(name).is_some();
            (log.old_name.clone().filter(is_there), Some(log))
        };
        let Some(old_name) = old_name else {
            return Ok(Comparison {
                old: None,
                new,
                candidates: Candidates::All,
            });
        };
        let mut old = StoredNode::find(self.pipeline, self.before, &old_name, memory_bytes)?;
        old.cancel = new.cancel.clone();
        self.check_types(&old.columns, &new.columns, name)?;
        let was_stage = !old.entry.feeders.is_empty();
        let candidates = if was_stage && old.columns.descending == new.columns.descending {
            let runs = unshared_runs(&old, &new);
            self.find_candidates(name, &old_name, runs, log).await?
        } else {
            Candidates::All
        };
        Ok(Comparison {
            old: Some(old),
            new,
            candidates,
        })
    }

    /// The keys that can differ. `runs` are those that only one of the ends has.
    async fn find_candidates(
        &self,
        name: &str,
        old_name: &str,
        runs: Vec<StoredRun>,
        mut log: Option<StageLog>,
    ) -> Result<Candidates> {
        let bytes = size_bytes(&runs);
        let versions = self.until.version - self.before.version;
        let is_few = versions <= MAX_VERSIONS;
        if log.is_none() && is_few && bytes > versions.saturating_mul(VERSION_BYTES) {
            log = self.read_log(name).await?;
        }
        let is_usable = |log: &StageLog| {
            is_few
                && log.has_same_keys
                && log.old_name.as_deref() == Some(old_name)
                && size_bytes(&log.updates) < bytes
        };
        Ok(match log.filter(is_usable) {
            Some(log) => Candidates::OfUpdates(log.updates),
            None => Candidates::OfContent(runs),
        })
    }

    /// Reads what the versions did, the newest first. None if one of them is not there any more.
    async fn read_log(&self, name: &str) -> Result<Option<StageLog>> {
        let (pipeline, until) = (self.pipeline, self.until);
        let own = until.find_node(name).and_then(KeyAndValue::from_entry)?;
        let mut log = StageLog {
            old_name: Some(name.to_owned()),
            updates: Vec::new(),
            has_same_keys: true,
        };
        let versions: Vec<u64> = (self.before.version + 1..=until.version).rev().collect();
        let newest = pipeline.newest().await?.manifest;
        let mut manifests = stream::iter(versions)
            .map(move |version| pipeline.read_manifest(version))
            .buffered(VERSIONS_AHEAD)
            .boxed();
        let mut after: Option<PipelineManifest> = None;
        while let Some(read) = manifests.try_next().await? {
            let is_last = after.is_none();
            // The last one may be a preview, which has the id of the version before it, and no object. Of the others a
            // vacuum that did not end may have left the manifest, and not the runs.
            let is_own = |read: &PipelineManifest| {
                if is_last {
                    read.commit_id == until.commit_id
                } else {
                    newest.header().retains(read.version)
                }
            };
            let manifest = match read.filter(is_own) {
                Some(manifest) => manifest,
                None if is_last => until.clone(),
                None => return Ok(None),
            };
            if after.is_some_and(|after| !follows(&after, &manifest)) {
                return Ok(None);
            }
            log.add(&manifest, &own)?;
            if log.old_name.is_none() {
                return Ok(Some(log));
            }
            after = Some(manifest);
        }
        let is_linked = after.is_none_or(|after| follows(&after, self.before));
        Ok(is_linked.then_some(log))
    }

    /// Nobody can say whether a stage had another name.
    async fn unknown_error(&self, name: &str) -> Error {
        let (since, until) = (self.before.version, self.until);
        let newest = self.pipeline.newest().await;
        let oldest = match &newest {
            Ok(newest) => newest.manifest.oldest_version,
            Err(_) => until.oldest_version,
        };
        let message = format!(
            "version {since} has no stage {name:?}, and versions after it, of which one may have renamed it, have been \
             vacuumed; the oldest available version is {oldest}: read the whole stage, and go on from version {}",
            until.version
        );
        Error::new(ErrorKind::VersionExpired, message).with_path(self.pipeline.root())
    }

    fn check_types(&self, old: &KeyAndValue, new: &KeyAndValue, name: &str) -> Result<()> {
        let fields = [
            ("key", &old.key, &new.key),
            ("value", &old.value, &new.value),
        ];
        for (what, old, new) in fields {
            if !are_stored_alike(old, new) {
                let message = format!(
                    "the {what} of stage {name:?} is {} in version {}, and {} in version {}; read the whole stage, and \
                     go on from there",
                    old.data_type(),
                    self.before.version,
                    new.data_type(),
                    self.until.version
                );
                let changed = Error::new(ErrorKind::DefinitionChanged, message);
                return Err(changed.with_path(self.pipeline.root()));
            }
        }
        Ok(())
    }
}

impl StageLog {
    /// Adds the version before those that were added.
    fn add(&mut self, manifest: &PipelineManifest, own: &KeyAndValue) -> Result<()> {
        let name = self.old_name.take();
        let Some((entry, name)) = name.and_then(|name| Some((manifest.node(&name)?, name))) else {
            return Ok(());
        };
        let columns = KeyAndValue::from_entry(entry)?;
        // Versions of before 2026-12 do not list the old keys of a rebuild where a field of the key may be null from then
        // on, or not any more.
        self.has_same_keys &= columns.descending == own.descending
            && columns.key.data_type() == own.key.data_type()
            && nullable(&columns.key, "key") == nullable(&own.key, "key");
        if manifest.data_version == manifest.version {
            self.updates.extend(entry.update.clone());
        }
        let detail = |key: &str| manifest.operation.details.get(key).and_then(Value::as_str);
        let is_renamed = manifest.operation.name == "rename" && detail("to") == Some(name.as_str());
        self.old_name = match detail("from") {
            Some(from) if is_renamed => Some(from.to_owned()),
            _ => Some(name),
        };
        Ok(())
    }
}

impl Comparison {
    /// The changes, in the order of the key, as they are stored.
    fn changed_rows(&self, memory_bytes: usize) -> Result<SortedBatches> {
        let (columns, spill_bytes) = (&self.new.columns, memory_bytes / 64);
        let shape = columns.source();
        let candidates = self.read_candidates(spill_bytes)?;
        let keys = candidates.as_ref().map_or(Keys::All, Keys::Of);
        let new = read_key_values(&self.new, keys, &shape)?;
        let new = Spill::collect(&shape.schema, new, spill_bytes).map_err(to_error)?;
        let old: SortedBatches = match &self.old {
            None => Box::new(std::iter::empty()),
            Some(old) if old.columns.descending == columns.descending => {
                read_key_values(old, keys, &shape)?
            }
            Some(old) => {
                let rows = read_key_values(old, keys, &shape)?;
                let schema = Arc::clone(&shape.schema);
                let unsorted: Rows = Box::new(RecordBatchIterator::new(rows, schema));
                Box::new(sort_batches(
                    unsorted,
                    &shape.sort_columns(1),
                    memory_bytes / 4,
                )?)
            }
        };
        let changes = diff(old, new.read().map_err(to_error)?, &shape, spill_bytes)?;
        write_changes(&changes, &new, &shape, spill_bytes)
    }

    /// The keys that can differ; None for all.
    fn read_candidates(&self, memory_bytes: usize) -> Result<Option<Spill>> {
        let (shape, runs) = match &self.candidates {
            Candidates::All => return Ok(None),
            Candidates::OfContent(runs) => (self.new.open(TableName::Content)?.0.shape, runs),
            Candidates::OfUpdates(runs) => (self.new.columns.update(), runs),
        };
        let table = self.new.table(shape.first_columns(1), runs);
        table.distinct_keys(1, memory_bytes).map(Some)
    }
}

/// Whether a version comes after another, or is a preview that does.
fn follows(after: &PipelineManifest, before: &PipelineManifest) -> bool {
    after.recent_commits.first() == Some(&before.commit_id) || after.commit_id == before.commit_id
}

/// The runs of the contents that only one of two versions has. Both read the others in the same order.
fn unshared_runs(old: &StoredNode, new: &StoredNode) -> Vec<StoredRun> {
    let [old, new] = [old, new].map(|node| node.entry.content.as_slice());
    let lacks = |runs: &[StoredRun], run: &StoredRun| runs.iter().all(|other| other.id != run.id);
    let of_old = old.iter().filter(|run| lacks(new, run));
    let of_new = new.iter().filter(|run| lacks(old, run));
    of_old.chain(of_new).cloned().collect()
}

fn size_bytes(runs: &[StoredRun]) -> u64 {
    runs.iter().map(StoredRun::size_bytes).sum()
}

/// The rows of some keys as those of a source: `key` and `value`, in the order of the content.
fn read_key_values(node: &StoredNode, keys: Keys<'_>, pairs: &TableShape) -> Result<SortedBatches> {
    let (content, _) = node.open(TableName::Content)?;
    let columns = content.shape.visible;
    let rows = content.read(keys, columns)?;
    let schema: SchemaRef = Arc::clone(&pairs.schema);
    Ok(Box::new(rows.map(move |batch| {
        let batch = batch?;
        let pair = [0, columns - 1].map(|at| Arc::clone(batch.column(at)));
        RecordBatch::try_new(Arc::clone(&schema), pair.into())
    })))
}

/// The rows of the keys that changed, with their types.
fn write_changes(
    changes: &Spill,
    new: &Spill,
    shape: &TableShape,
    memory_bytes: usize,
) -> Result<SortedBatches> {
    let order = shape.keys(1)?;
    let walk = || -> Result<Spill, ArrowError> {
        let mut changes = Cursor::new(changes.read()?, &order)?;
        let mut rows = Cursor::new(new.read()?, &order)?;
        let mut writer = ChangeWriter::new(&shape.schema, memory_bytes);
        while let (Some(key), Some(row)) = (changes.key(), changes.row()) {
            let flags = flags_of(row);
            if flags & CHANGED != 0 && flags & HAS == 0 {
                writer.add(row, ChangeType::Delete as i32, true)?;
            } else if flags & CHANGED != 0 {
                rows.seek(key)?;
                let mut change = if flags & HAD == 0 {
                    ChangeType::Add
                } else {
                    ChangeType::Update
                };
                while let (true, Some(row)) = (rows.is_at(key), rows.row()) {
                    writer.add(row, change as i32, false)?;
                    change = ChangeType::Update;
                    rows.advance()?;
                }
            }
            changes.advance()?;
        }
        writer.finish()
    };
    walk().and_then(|spill| spill.read()).map_err(to_error)
}
