//! What commits do to the runs of a pipeline: an update puts a run in the place of a table's newest ones.
//!
//! The change of an update is valid as long as no other update came first, and each table still begins with the runs
//! that it merged; then the new run takes their place. A compaction that has replaced these runs is a conflict, and the
//! update plans anew. A compaction replaces its own runs wherever they are neighbours.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::format::{NodeEntry, PipelineManifest, StoredRun};
use crate::error::{Error, ErrorKind, Result};
use crate::store::metrics::ReadCounts;
use crate::versions::{Change, CommitId, CommitOperation, Versioned};

/// What an update did to a source or stage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// The name.
    pub name: String,
    /// The source keys that changed.
    pub keys_in: u64,
    /// The rows that the function gave.
    pub rows_out: u64,
    /// The target keys that changed.
    pub keys_out: u64,
    /// The files that were written.
    pub files_written: u64,
    /// Their size in bytes.
    pub bytes_written: u64,
    /// The requests to read what is stored, and the bytes that these gave, those of its tasks included.
    pub reads: ReadCounts,
    /// How many tasks of an engine computed it; 0 if the process of the update did.
    pub tasks: u64,
}

/// The change of an update.
#[derive(Debug)]
pub(super) struct PipelineUpdate {
    /// The version in the names of its files.
    pub(super) base_version: u64,
    /// The commit of this version; None before the first one.
    pub(super) base_commit: Option<CommitId>,
    pub(super) base_data_version: u64,
    pub(super) idempotency_key: Option<String>,
    pub(super) nodes: Vec<NodeChange>,
    pub(super) reports: Vec<NodeReport>,
}

/// What becomes of a source or a stage.
#[derive(Debug)]
pub(super) struct NodeChange {
    /// Its entry, without runs.
    pub(super) entry: NodeEntry,
    pub(super) content: NewRun,
    pub(super) mappings: NewRun,
    pub(super) update: Option<StoredRun>,
}

/// A run that a table gets in the place of its newest ones.
#[derive(Debug, Default)]
pub(super) struct NewRun {
    pub(super) replaced: Vec<String>,
    pub(super) run: Option<StoredRun>,
}

impl NewRun {
    /// Adds a run and those that it replaces.
    pub(super) fn put(&mut self, other: Self) {
        self.replaced.extend(other.replaced);
        self.run = other.run;
    }

    fn apply(&self, name: &str, runs: &[StoredRun]) -> Result<Vec<StoredRun>> {
        let ids = runs.iter().map(|run| &run.id).take(self.replaced.len());
        if !ids.eq(&self.replaced) {
            let message = format!("runs of {name:?} that the update merged have been compacted");
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let kept = runs[self.replaced.len()..].iter();
        Ok(self.run.iter().chain(kept).cloned().collect())
    }

    /// The runs of a table, wherever the replaced ones are neighbours; None if they are not. The newest of them may have
    /// been merged into a run before the others meanwhile: this names every key that they named.
    pub(super) fn replace_in(&self, runs: &[StoredRun]) -> Option<Vec<StoredRun>> {
        for merged in 0..self.replaced.len() {
            let left = &self.replaced[merged..];
            let is_left = |window: &[StoredRun]| window.iter().map(|run| &run.id).eq(left);
            let Some(at) = runs.windows(left.len()).position(is_left) else {
                continue;
            };
            if merged == 0 || at > 0 {
                let (newer, older) = (&runs[..at], &runs[at + left.len()..]);
                let compacted = newer.iter().chain(&self.run).chain(older);
                return Some(compacted.cloned().collect());
            }
        }
        None
    }
}

impl Change<PipelineManifest> for PipelineUpdate {
    fn apply(&self, base: &PipelineManifest) -> Result<(PipelineManifest, CommitOperation)> {
        let planned = base.header().commit_id_of(self.base_version);
        let is_other = self.base_commit.is_some() && planned != self.base_commit.as_ref();
        if is_other || base.data_version != self.base_data_version {
            let message = format!(
                "another update made version {} meanwhile",
                base.data_version
            );
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let mut next = base.clone();
        next.data_version = base.version + 1;
        let nodes = self.nodes.iter().map(|change| {
            let stored = base.node(&change.entry.name);
            let runs = |of: fn(&NodeEntry) -> &Vec<StoredRun>| {
                stored.map(of).map_or(&[][..], Vec::as_slice)
            };
            let name = &change.entry.name;
            let mut entry = change.entry.clone();
            entry.content = change.content.apply(name, runs(|node| &node.content))?;
            entry.mappings = change.mappings.apply(name, runs(|node| &node.mappings))?;
            entry.update.clone_from(&change.update);
            Ok(entry)
        });
        next.nodes = nodes.collect::<Result<Vec<_>>>()?;
        for node in &next.nodes {
            next.removed.remove(&node.name);
        }
        let keys: BTreeMap<&str, u64> = self
            .reports
            .iter()
            .map(|report| (report.name.as_str(), report.keys_out))
            .collect();
        let bytes: u64 = self.reports.iter().map(|report| report.bytes_written).sum();
        let details: [(&str, Value); 2] = [("keys", json!(keys)), ("bytes", json!(bytes))];
        Ok((next, CommitOperation::new("update", details)))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }
}
