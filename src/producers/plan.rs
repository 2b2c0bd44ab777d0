//! The plan of an update: what its changes make of each source and stage, computed in the order of the graph from one
//! snapshot, and written at the end, all runs at once.
//!
//! `compute` leaves what it has in temporary files, or in runs that tasks of an engine wrote (`distribute`); `write` is
//! in `outputs`. A plan reads one snapshot: when another commit comes first, the update makes a new plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Pipeline;
use super::diff::Delta;
use super::engine::Engine;
use super::feeders::FeederTable;
use super::format::{NodeEntry, PipelineManifest, StoredRun};
use super::graph::{Graph, Node, SourceNode, StageNode};
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::node_reads::NodeReads;
use super::old_rows::{OldRows, OldRowsUse};
use super::operators::StageFunction;
use super::rebuild::Rebuild;
use super::runs::{RunSizes, RunWriter, SampledRun};
use super::stage::{StageTables, apply_rows, changed_keys, compute_rows};
use super::staged_changes::SourceInput;
use super::tables::{KeyAndValue, SourceKeys, TableShape};
use crate::error::{Error, Result};
use crate::files::{Spill, run_blocking};
use crate::parquet::Cancel;
use crate::run::KeyRange;
use crate::store::Store;
use crate::store::metrics::ReadCounts;
use crate::sync::progress;

/// The computation of one plan.
pub(super) struct Plan {
    pub(super) pipeline: Pipeline,
    pub(super) base: Arc<PipelineManifest>,
    pub(super) graph: Arc<Graph>,
    pub(super) sources: Arc<BTreeMap<String, SourceInput>>,
    /// The stages that are computed anew.
    pub(super) rebuilds: BTreeMap<String, Rebuild>,
    /// Of these about which part of their keys; None for all.
    pub(super) sample: Option<f64>,
    pub(super) memory_bytes: usize,
    pub(super) writer: RunWriter,
    /// The sizes of the runs that tasks write.
    pub(super) sizes: RunSizes,
    /// Ends the computation.
    pub(super) cancel: Cancel,
    /// Runs the tasks of large stages.
    pub(super) engine: Option<Arc<dyn Engine>>,
    pub(super) reads: NodeReads,
}

/// What a source or stage gets, in temporary files.
#[derive(Debug, Clone)]
pub(super) struct NodeDeltas {
    pub(super) content: Delta,
    pub(super) mappings: Option<Delta>,
    /// The changed keys, in the first column.
    pub(super) changed: Spill,
    pub(super) keys_in: u64,
    pub(super) rows_out: u64,
    /// The state of its hook.
    pub(super) state: Option<Value>,
    /// Stored rows that it has read, while later stages take them.
    pub(super) old: Option<OldRows>,
}

/// What a source or stage gets: runs that are written, and that nothing names yet.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredDeltas {
    pub(super) content: Option<SampledRun>,
    pub(super) mappings: Option<SampledRun>,
    /// The changed keys: the run of the update of a stage. That of a source has no other column.
    pub(super) changed: Option<SampledRun>,
    pub(super) keys_in: u64,
    pub(super) rows_out: u64,
    /// How many tasks have written it.
    pub(super) tasks: u64,
    /// What these have read.
    pub(super) reads: ReadCounts,
    /// The state of its hook.
    pub(super) state: Option<Value>,
}

impl StoredDeltas {
    pub(super) fn as_input(&self) -> StoredInput {
        let run = |sampled: &Option<SampledRun>| sampled.as_ref().map(|s| s.run.clone());
        StoredInput {
            content: run(&self.content),
            changed: run(&self.changed),
        }
    }
}

/// What an update adds to a feeder of a stage.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct StoredInput {
    pub(super) content: Option<StoredRun>,
    /// The changed keys, in the first column.
    pub(super) changed: Option<StoredRun>,
}

/// What a source or stage gets.
#[derive(Debug, Clone)]
pub(super) enum NodeOutput {
    Local(NodeDeltas),
    /// Runs that are written, and that nothing names yet.
    Stored(StoredDeltas),
}

pub(super) type Computed = BTreeMap<String, NodeOutput>;

impl Plan {
    /// The store through which a source or stage reads, and is counted.
    pub(super) fn store_of(&self, name: &str) -> Store {
        self.reads.store_of(name, self.pipeline.store())
    }

    /// What the changes make of each source and stage.
    pub(super) async fn compute(self: &Arc<Self>) -> Result<Computed> {
        self.forget_rebuilt();
        Box::pin(self.open_runs()).await?;
        let mut computed = Computed::new();
        let progress = progress::current();
        for (at, node) in self.graph.nodes().iter().enumerate() {
            progress::begin_phase(&format!("compute {}", node.name()));
            let output = match node {
                Node::Source(source) => self.compute_source(node, source).await?,
                Node::Stage(stage) => self.compute_stage(node, stage, &mut computed).await?,
            };
            drop_old_rows(&mut computed, &self.graph.nodes()[at + 1..]);
            if let (Some(progress), Some(output)) = (&progress, &output) {
                progress.add_rows(output.rows_out());
            }
            if let Some(output) = output.filter(NodeOutput::is_changed) {
                computed.insert(node.name().to_owned(), output);
            }
        }
        Ok(computed)
    }

    async fn compute_source(
        self: &Arc<Self>,
        node: &Node,
        source: &SourceNode,
    ) -> Result<Option<NodeOutput>> {
        let input = self.sources.get(node.name()).cloned();
        let Some(input) = input.filter(|input| !input.is_empty()) else {
            return Ok(None);
        };
        if let (Some(engine), SourceInput::Staged(changes)) = (&self.engine, &input)
            && changes.size_bytes() > engine.local_bytes()
        {
            let deltas = self.run_source_job(engine, node, changes.clone()).await?;
            return Ok(Some(NodeOutput::Stored(deltas)));
        }
        let (stored, source) = (self.content(node, None), source.clone());
        let memory_bytes = self.memory_bytes;
        let update = run_blocking(move || {
            let changes = match input {
                SourceInput::Sorted(changes) => changes,
                SourceInput::Staged(changes) => {
                    changes.gather(&source, &stored, Keys::All, memory_bytes)?
                }
            };
            changes.plan(&stored, Keys::All, memory_bytes / 64)
        });
        let update = update.await?;
        Ok(Some(NodeOutput::Local(NodeDeltas {
            keys_in: update.keys.rows(),
            rows_out: update.rows.rows.rows(),
            state: None,
            content: update.rows,
            mappings: None,
            changed: update.keys,
            old: None,
        })))
    }

    async fn compute_stage(
        self: &Arc<Self>,
        node: &Node,
        stage: &StageNode,
        computed: &mut Computed,
    ) -> Result<Option<NodeOutput>> {
        let feeders = stage.feeders.iter();
        let is_whole = self.is_whole(stage);
        if !is_whole && !feeders.clone().any(|name| computed.contains_key(name)) {
            return Ok(None);
        }
        let is_stored = !stage.feeders.iter().any(|name| computed.contains_key(name));
        let sample = match (self.sample, self.rebuilds.get(&stage.name)) {
            // What is new in a feeder has no index.
            (Some(part), Some(Rebuild::Compare)) if is_stored => {
                Some(self.sample_ranges(stage, part).await?)
            }
            _ => None,
        };
        if let (Some(engine), None) = (&self.engine, &sample) {
            let work = self.work_of(stage, is_whole, computed);
            if work.bytes > engine.local_bytes() {
                let run = self.run_jobs(engine, node, stage, work, computed);
                return run.await.map(|deltas| Some(NodeOutput::Stored(deltas)));
            }
        }
        let outputs = feeders.filter_map(|name| Some((name.clone(), computed.get(name)?.clone())));
        let outputs: Computed = outputs.collect();
        let (plan, node, stage) = (Arc::clone(self), node.clone(), stage.clone());
        let deltas =
            run_blocking(move || plan.compute_here(&node, &stage, outputs, sample.as_deref()))
                .await?;
        Ok(Some(NodeOutput::Local(deltas)))
    }

    /// Whether all keys of a stage are computed.
    pub(super) fn is_whole(&self, stage: &StageNode) -> bool {
        self.rebuilds.contains_key(&stage.name) || self.base.node(&stage.name).is_none()
    }

    /// Computes a stage in this process, or only ranges of its keys; `outputs` are those of its feeders.
    fn compute_here(
        &self,
        node: &Node,
        stage: &StageNode,
        outputs: Computed,
        sample: Option<&[KeyRange]>,
    ) -> Result<NodeDeltas> {
        let inputs = outputs.into_iter().map(|(name, output)| match output {
            NodeOutput::Local(deltas) => Ok((name, deltas)),
            NodeOutput::Stored(deltas) => {
                let deltas = self.read_input(&stage.name, &name, &deltas.as_input(), Keys::All)?;
                Ok((name, deltas))
            }
        });
        let inputs = inputs.collect::<Result<BTreeMap<_, _>>>()?;
        let feeders = self.feeder_tables(stage, &inputs);
        let changed = if self.is_whole(stage) {
            None
        } else {
            changed_keys(&feeders, self.memory_bytes / 64)?
        };
        let keys = match (&changed, sample) {
            (Some(changed), _) => Keys::Of(changed),
            (None, Some(ranges)) => Keys::In(ranges),
            (None, None) => Keys::All,
        };
        let stage = self.stage_to_update(stage);
        let tables = self.stage_tables(node, &stage, true)?;
        let rows = compute_rows(&stage, &tables, &feeders, keys, self.memory_bytes)?;
        let rows_out = rows.upserts.rows();
        let ahead = self.look_ahead(&stage, &tables.content.shape, &rows)?;
        let update = apply_rows(
            &stage,
            &tables,
            rows.upserts,
            &rows.deletes,
            self.use_of_old_rows(&stage),
            self.memory_bytes,
        )?;
        ahead.finish()?;
        let changed_targets = match self.rebuilds.get(&stage.name) {
            Some(Rebuild::Replace) => self.changes_of_replaced(node, update.update)?,
            _ => update.update,
        };
        Ok(NodeDeltas {
            content: update.content,
            mappings: Some(rows.mappings),
            changed: changed_targets,
            keys_in: changed.as_ref().map_or(0, Spill::rows),
            rows_out,
            state: update.state,
            old: update.old,
        })
    }

    /// The stage as it is updated: what a rebuilt stage feeds gets the difference.
    pub(super) fn stage_to_update(&self, stage: &StageNode) -> StageNode {
        let is_compared = self.rebuilds.get(&stage.name) == Some(&Rebuild::Compare);
        StageNode {
            skip_unchanged: stage.skip_unchanged || is_compared,
            ..stage.clone()
        }
    }

    /// The stored tables of a stage; with what its hook is to see if rows are applied to them.
    pub(super) fn stage_tables(
        &self,
        node: &Node,
        stage: &StageNode,
        is_applied: bool,
    ) -> Result<StageTables> {
        let sources = self.sources_of(node);
        let stored = self.base.node(node.name());
        Ok(StageTables {
            content: self.content(node, sources.as_ref()),
            mappings: self.mappings(node, sources.as_ref()),
            update: node.columns().update(),
            replaced: match (self.rebuilds.get(&stage.name), &stage.preserve) {
                (Some(Rebuild::Replace), Some(_)) if is_applied => self.rows_of_replaced(node)?,
                _ => None,
            },
            state: stored.and_then(|stored| stored.state.clone()),
        })
    }

    /// The key and the order of what feeds a stage.
    pub(super) fn feeder_columns(&self, stage: &StageNode) -> Result<KeyAndValue> {
        let first = stage.feeders.first().and_then(|name| self.graph.node(name));
        let columns = first.map(Node::columns);
        columns.ok_or_else(|| Error::other("internal error: a stage without a feeder"))
    }

    /// Reads, for `stage`, what is written of a source's or stage's output.
    pub(super) fn read_input(
        &self,
        stage: &str,
        name: &str,
        input: &StoredInput,
        keys: Keys<'_>,
    ) -> Result<NodeDeltas> {
        let Some(node) = self.graph.node(name) else {
            return Err(Error::other(
                "internal error: a feeder that is not declared",
            ));
        };
        let table = StoredTable {
            store: self.store_of(stage),
            ..self.content(node, self.sources_of(node).as_ref())
        };
        let keys_of_update = StoredTable {
            shape: node.columns().update().first_columns(1),
            ..table.clone()
        };
        Ok(NodeDeltas {
            content: self.read_run(&table, input.content.as_ref(), keys)?,
            mappings: None,
            changed: self
                .read_run(&keys_of_update, input.changed.as_ref(), keys)?
                .rows,
            keys_in: 0,
            rows_out: 0,
            state: None,
            old: None,
        })
    }

    /// Reads a run that has the columns of a table; nothing without one.
    pub(super) fn read_run(
        &self,
        table: &StoredTable,
        run: Option<&StoredRun>,
        keys: Keys<'_>,
    ) -> Result<Delta> {
        let has_deletes = run.is_some_and(|run| run.has_deletes);
        let schema = if has_deletes {
            table.shape.schema_with_op()
        } else {
            Arc::clone(&table.shape.schema)
        };
        let rows = match run {
            Some(run) => table.read_run(run, keys)?,
            None => Box::new(std::iter::empty()),
        };
        let rows = Spill::collect(&schema, rows, self.memory_bytes / 64).map_err(to_error)?;
        Ok(Delta { rows, has_deletes })
    }

    /// The feeders of a stage; `inputs` are their outputs.
    pub(super) fn feeder_tables<'a>(
        &self,
        stage: &StageNode,
        inputs: &'a BTreeMap<String, NodeDeltas>,
    ) -> Vec<FeederTable<'a>> {
        let names = stage.feeders.iter();
        let feeders = names.filter_map(|name| self.graph.node(name));
        let tables = feeders.map(|feeder| {
            let deltas = inputs.get(feeder.name());
            FeederTable {
                columns: feeder.columns(),
                table: StoredTable {
                    store: self.store_of(&stage.name),
                    ..self.content(feeder, self.sources_of(feeder).as_ref())
                },
                delta: deltas.map(|deltas| &deltas.content),
                changed: deltas.map(|deltas| &deltas.changed),
                old: deltas.and_then(|deltas| deltas.old.as_ref()),
            }
        });
        tables.collect()
    }

    /// What later stages take of the stored rows of a stage as they were.
    fn use_of_old_rows(&self, stage: &StageNode) -> OldRowsUse {
        let mut old = OldRowsUse::default();
        if self.is_whole(stage) {
            return old;
        }
        for node in self.graph.nodes() {
            if let Node::Stage(next) = node
                && next.feeders.contains(&stage.name)
                && !self.is_whole(next)
            {
                old.groups |= matches!(next.function, StageFunction::Produce(_));
                old.pairs |= matches!(next.function, StageFunction::Fold(_));
            }
        }
        old
    }

    /// The source keys of a stage; None for a source.
    pub(super) fn sources_of(&self, node: &Node) -> Option<SourceKeys> {
        match node {
            Node::Source(_) => None,
            Node::Stage(stage) => {
                let first = self.graph.node(stage.feeders.first()?)?;
                Some(node.columns().source_keys(&first.columns()))
            }
        }
    }

    pub(super) fn content(&self, node: &Node, sources: Option<&SourceKeys>) -> StoredTable {
        let columns = node.columns();
        let shape = sources.map_or_else(|| columns.source(), |sources| columns.content(sources));
        self.stored(shape, node, |entry| &entry.content)
    }

    pub(super) fn mappings(&self, node: &Node, sources: Option<&SourceKeys>) -> StoredTable {
        let columns = node.columns();
        // A source has none, of any shape.
        let shape = match sources {
            Some(sources) => columns.mappings(sources),
            None => columns.mappings(&columns.source_keys(&columns)),
        };
        self.stored(shape, node, |entry| &entry.mappings)
    }

    fn stored(
        &self,
        shape: TableShape,
        node: &Node,
        runs: fn(&NodeEntry) -> &Vec<StoredRun>,
    ) -> StoredTable {
        StoredTable {
            store: self.store_of(node.name()),
            folder: self.pipeline.root().to_owned(),
            shape,
            runs: if self.is_replaced(node.name()) {
                Vec::new()
            } else {
                self.base_runs(node, runs).to_vec()
            },
            memory_bytes: self.memory_bytes / 32,
            cancel: self.cancel.clone(),
        }
    }

    /// Whether the tables of a stage are new ones.
    fn is_replaced(&self, name: &str) -> bool {
        self.rebuilds.get(name) == Some(&Rebuild::Replace)
    }

    /// The runs of a content that the update reads.
    pub(super) fn stored_content(&self, name: &str) -> &[StoredRun] {
        match self.base.node(name) {
            Some(stored) if !self.is_replaced(name) => &stored.content,
            _ => &[],
        }
    }

    pub(super) fn base_runs(
        &self,
        node: &Node,
        runs: fn(&NodeEntry) -> &Vec<StoredRun>,
    ) -> &[StoredRun] {
        let stored = self.base.node(node.name());
        stored.map(runs).map_or(&[], Vec::as_slice)
    }
}

/// Drops the old rows that no later node takes.
fn drop_old_rows(computed: &mut Computed, later: &[Node]) {
    for (name, output) in computed {
        let takes =
            |node: &Node| matches!(node, Node::Stage(stage) if stage.feeders.contains(name));
        if let NodeOutput::Local(deltas) = output
            && !later.iter().any(takes)
        {
            deltas.old = None;
        }
    }
}
