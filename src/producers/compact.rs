//! Compaction: the newest runs of a table, or all of them, become one. It changes no rows.
//!
//! It replaces exactly the runs that it read, where they are still neighbours in the newest snapshot, so it conflicts with
//! no update: one that put a run before them keeps it, and where one has merged some of them itself, what the compaction
//! wrote for this table is left to a vacuum. Deletes are dropped only where no older run is left.

use std::collections::HashSet;
use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::json;

use super::format::{NodeEntry, PipelineManifest, StoredRun};
use super::lookup::StoredTable;
use super::read::{StoredNode, TableName, expired_or};
use super::runs::{RunSizes, RunWriter};
use super::splice::NewRun;
use super::{Pipeline, Snapshot, Staged};
use crate::error::{Error, ErrorKind, Result};
use crate::files::run_blocking;
use crate::versions::commit::{RunResult, run};
use crate::versions::{Change, CommitOperation, Operation};

/// The tables that are merged at a time.
const CONCURRENT_TABLES: usize = 4;

/// The options of a compaction.
#[derive(Debug, Clone)]
pub struct CompactOptions {
    /// The oldest run of a table is merged, too, if the others have at least this fraction of its bytes.
    pub min_delta: f64,
    /// The sizes of the runs that it writes.
    pub sizes: RunSizes,
    /// The limit of the memory that it takes, in bytes.
    pub memory_limit_bytes: usize,
    /// For how long the commit is retried.
    pub timeout: Duration,
}

/// What a compaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompactReport {
    /// The version that it created, or the newest one if there was nothing to merge.
    pub version: u64,
    /// The tables that have fewer runs.
    pub tables: u64,
    /// The runs that were merged.
    pub runs: u64,
    /// The size of the files that were written, in bytes.
    pub bytes_written: u64,
}

/// Merges runs of all tables of a pipeline.
pub async fn compact(pipeline: &Pipeline, options: &CompactOptions) -> Result<CompactReport> {
    let mut operation = CompactOperation {
        pipeline,
        options,
        written: Vec::new(),
    };
    let staged = Staged::new(pipeline);
    let ended = run(pipeline, &mut operation, staged, options.timeout).await?;
    let (version, merged) = match ended {
        RunResult::Committed(committed, change) => {
            let runs = committed
                .snapshot
                .manifest
                .nodes
                .iter()
                .flat_map(NodeEntry::runs);
            let ids: HashSet<&str> = runs.map(|run| run.id.as_str()).collect();
            // What an update has merged meanwhile is as it is.
            let is_merged = |table: &MergedTable| match &table.run.run {
                Some(run) => ids.contains(run.id.as_str()),
                None => !table
                    .run
                    .replaced
                    .iter()
                    .any(|id| ids.contains(id.as_str())),
            };
            let tables = change.tables.into_iter().filter(is_merged).collect();
            (committed.version, tables)
        }
        RunResult::Replayed(committed) => (committed.version, Vec::new()),
        RunResult::Unchanged(snapshot) => (snapshot.manifest.version, Vec::new()),
    };
    let runs = merged.iter().map(|table| table.run.replaced.len() as u64);
    let written = merged.iter().filter_map(|table| table.run.run.as_ref());
    Ok(CompactReport {
        version,
        tables: merged.len() as u64,
        runs: runs.sum(),
        bytes_written: written.map(StoredRun::size_bytes).sum(),
    })
}

struct CompactOperation<'a> {
    pipeline: &'a Pipeline,
    options: &'a CompactOptions,
    /// The files that the last plan wrote.
    written: Vec<String>,
}

impl Operation<PipelineManifest> for CompactOperation<'_> {
    type Change = Compaction;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<Compaction>> {
        staged.retire(&std::mem::take(&mut self.written));
        let base = &base.manifest;
        let memory_bytes = self.options.memory_limit_bytes / CONCURRENT_TABLES;
        let writer = RunWriter::new(
            self.pipeline,
            base.version,
            self.options.sizes,
            memory_bytes,
        )?;
        let mut pending = Vec::new();
        for node in &base.nodes {
            let stored = StoredNode::find(self.pipeline, base, &node.name, memory_bytes)?;
            for name in tables_of(node) {
                let (table, _) = stored.open(*name)?;
                let count = self.runs_to_merge(&table.runs);
                if count > 1 {
                    pending.push(merge(&writer, &node.name, *name, table, count));
                }
            }
        }
        // All of them end, also after an error: what is written is known then, and can be removed.
        let merged: Vec<Result<MergedTable>> = stream::iter(pending)
            .buffer_unordered(CONCURRENT_TABLES)
            .collect()
            .await;
        self.written = writer.take_written();
        staged.add(self.written.iter().cloned());
        let tables = match merged.into_iter().collect::<Result<Vec<_>>>() {
            Ok(tables) => tables,
            Err(e) => return Err(expired_or(self.pipeline, base.version, e).await),
        };
        Ok((!tables.is_empty()).then_some(Compaction {
            base_version: base.version,
            tables,
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

fn tables_of(node: &NodeEntry) -> &'static [TableName] {
    if node.feeders.is_empty() {
        &[TableName::Content]
    } else {
        &[TableName::Content, TableName::KeyMappings]
    }
}

async fn merge(
    writer: &RunWriter,
    node: &str,
    name: TableName,
    table: StoredTable,
    count: usize,
) -> Result<MergedTable> {
    let shape = table.shape.clone();
    let replaced = table.runs[..count]
        .iter()
        .map(|run| run.id.clone())
        .collect();
    let (rows, has_deletes) = run_blocking(move || table.merge_newest(None, count)).await?;
    let written = writer.write(rows, &shape, has_deletes).await?;
    Ok(MergedTable {
        node: node.to_owned(),
        name,
        run: NewRun {
            replaced,
            run: written.map(|written| written.run),
        },
    })
}

impl CompactOperation<'_> {
    /// How many of the newest runs become one.
    fn runs_to_merge(&self, runs: &[StoredRun]) -> usize {
        let Some((oldest, newer)) = runs.split_last() else {
            return 0;
        };
        let newer_bytes: u64 = newer.iter().map(StoredRun::size_bytes).sum();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53 bytes")]
        let is_enough = newer_bytes as f64 >= self.options.min_delta * oldest.size_bytes() as f64;
        if is_enough { runs.len() } else { newer.len() }
    }
}

/// The change of a compaction.
#[derive(Debug)]
struct Compaction {
    base_version: u64,
    tables: Vec<MergedTable>,
}

#[derive(Debug)]
struct MergedTable {
    node: String,
    name: TableName,
    run: NewRun,
}

impl Change<PipelineManifest> for Compaction {
    fn apply(&self, base: &PipelineManifest) -> Result<(PipelineManifest, CommitOperation)> {
        let mut next = base.clone();
        let mut merged = 0;
        for node in &mut next.nodes {
            node.update = None;
            for table in self.tables.iter().filter(|table| table.node == node.name) {
                let runs = match table.name {
                    TableName::Content => &mut node.content,
                    TableName::KeyMappings => &mut node.mappings,
                };
                if let Some(compacted) = table.run.replace_in(runs) {
                    *runs = compacted;
                    merged += 1;
                }
            }
        }
        if merged == 0 {
            let message = "updates have merged the runs that the compaction read";
            return Err(Error::new(ErrorKind::CommitConflict, message));
        }
        let details = [("tables", json!(merged))];
        Ok((next, CommitOperation::new("compact", details)))
    }

    fn base_version(&self) -> Option<u64> {
        Some(self.base_version)
    }
}
