//! Jobs: what tasks, which may run in other processes, compute of an update, and what they and the process that plans it
//! tell one another.
//!
//! A stage takes two jobs. The tasks of the first one compute the rows of ranges of source keys and write them as sorted
//! runs, which nothing names. What they wrote stands before the second job begins: its tasks read ranges of target keys of
//! all these runs, and apply them to the content. Where target keys are source keys, one job does both. The process that
//! plans takes one result of each task, whatever else its attempts have written; it commits, and holds no rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Pipeline;
use super::diff::{Delta, distinct, keys_only};
use super::format::{PipelineManifest, StoredRun};
use super::graph::{Graph, Node, SourceNode, StageNode};
use super::input::SourceUpdate;
use super::layers::{merge_streams, to_error};
use super::lookup::{Keys, StoredTable};
use super::node_reads::NodeReads;
use super::old_rows::OldRowsUse;
use super::plan::{NodeDeltas, Plan, StoredInput};
use super::read::removed_or;
use super::rebuild::Rebuild;
use super::runs::{RunSizes, RunWriter, SampledRun};
use super::split::range_of;
use super::stage::{ContentUpdate, StageRows, StageTables, apply_rows, changed_keys, compute_rows};
use super::staged_changes::StagedChanges;
use super::tables::TableShape;
use crate::error::{Error, Result};
use crate::files::{SortedBatches, Spill, run_blocking};
use crate::parquet::Cancel;
use crate::run::KeyRange;
use crate::store::metrics::ReadCounts;
use crate::versions::{pack_message, remove, unpack_message};

/// What the tasks of a job do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Work {
    /// They compute the rows of ranges of source keys.
    Compute,
    /// They apply computed rows to ranges of target keys.
    Apply {
        /// The computed rows, in no order.
        upserts: Vec<StoredRun>,
        /// The pairs that may have rows.
        deletes: Vec<StoredRun>,
    },
    /// Both, for ranges of source keys that are the target keys.
    Both,
    /// They compare changes of a source with ranges of its rows.
    Source(StagedChanges),
}

/// A job.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job {
    /// What the update is planned on, with the runs of the stage and its feeders alone.
    pub(super) base: PipelineManifest,
    /// The name of the stage or source.
    pub(super) node: String,
    /// The stages that are computed anew.
    pub(super) rebuilds: BTreeMap<String, Rebuild>,
    /// Whether all source keys are computed.
    pub(super) is_whole: bool,
    /// The feeders that change.
    pub(super) inputs: BTreeMap<String, StoredInput>,
    pub(super) work: Work,
    /// Where the ranges begin, from that of the second task on.
    pub(super) bounds: Vec<Value>,
    pub(super) memory_bytes: usize,
    pub(super) sizes: RunSizes,
}

/// What a task did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct TaskResult {
    pub(super) upserts: Option<SampledRun>,
    pub(super) deletes: Option<SampledRun>,
    pub(super) mappings: Option<SampledRun>,
    pub(super) content: Option<SampledRun>,
    pub(super) update: Option<SampledRun>,
    pub(super) keys_in: u64,
    pub(super) rows_out: u64,
    pub(super) reads: ReadCounts,
    pub(super) state: Option<Value>,
}

impl TaskResult {
    /// The runs that the task wrote.
    pub(super) fn runs(&self) -> impl Iterator<Item = &SampledRun> {
        [
            &self.upserts,
            &self.deletes,
            &self.mappings,
            &self.content,
            &self.update,
        ]
        .into_iter()
        .flatten()
    }
}

/// Runs a task of a job that [`super::update()`] gave to an engine, and returns its result. `graph` is that of the update.
/// What it writes is encoded by `threads`; None for one per processor. After an error nothing stays of it. It may be
/// called more than once for a task, at once too.
pub async fn run_task(
    pipeline: &Pipeline,
    graph: &Graph,
    job: &[u8],
    task: usize,
    threads: Option<usize>,
) -> Result<Vec<u8>> {
    let job: Job = unpack_message(job)?;
    let cancel = Cancel::default();
    let _stop_thread = cancel.guard();
    let task = Arc::new(Task::new(pipeline, graph, job, task, threads, cancel)?);
    let result = {
        let computing = Arc::clone(&task);
        match run_blocking(move || computing.compute()).await {
            Ok(computed) => task.write(computed).await,
            Err(e) => Err(e),
        }
    };
    match result.and_then(|result| pack_message(&result)) {
        Ok(message) => Ok(message),
        Err(e) => {
            remove(pipeline, &task.plan.writer.take_written()).await;
            let base_version = task.job.base.version;
            let oldest_version = match &task.job.work {
                Work::Source(changes) => changes.base_version.min(base_version),
                _ => base_version,
            };
            Err(removed_or(pipeline, oldest_version, e).await)
        }
    }
}

struct Task {
    plan: Plan,
    job: Job,
    node: Node,
    range: KeyRange,
}

/// What a task computed and has not written.
#[derive(Default)]
struct ComputedTask {
    rows: Option<StageRows>,
    update: Option<ContentUpdate>,
    source: Option<SourceUpdate>,
    keys_in: u64,
    rows_out: u64,
}

impl Task {
    fn new(
        pipeline: &Pipeline,
        graph: &Graph,
        job: Job,
        task: usize,
        threads: Option<usize>,
        cancel: Cancel,
    ) -> Result<Self> {
        let node = graph.node(&job.node).cloned().ok_or_else(|| {
            let message = format!(
                "the graph of the task has no stage or source {:?}",
                job.node
            );
            Error::invalid(message)
        })?;
        let plan = Plan {
            pipeline: pipeline.clone(),
            base: Arc::new(job.base.clone()),
            graph: Arc::new(graph.clone()),
            sources: Arc::default(),
            rebuilds: job.rebuilds.clone(),
            sample: None,
            memory_bytes: job.memory_bytes,
            writer: RunWriter::new(pipeline, job.base.version, job.sizes, job.memory_bytes)?
                .with_threads(threads),
            sizes: job.sizes,
            cancel,
            engine: None,
            reads: NodeReads::new(graph),
        };
        plan.forget_rebuilt();
        let order = match (&job.work, &node) {
            (Work::Compute | Work::Both, Node::Stage(stage)) => {
                plan.feeder_columns(stage)?.source()
            }
            _ => node.columns().update(),
        };
        Ok(Self {
            range: range_of(&job.bounds, &order, task)?,
            node,
            plan,
            job,
        })
    }

    fn keys_of_range(&self) -> Keys<'_> {
        Keys::In(std::slice::from_ref(&self.range))
    }

    fn compute(&self) -> Result<ComputedTask> {
        let stage = match &self.node {
            Node::Source(source) => return self.compare_source(source),
            Node::Stage(stage) => self.plan.stage_to_update(stage),
        };
        let is_applied = !matches!(self.job.work, Work::Compute);
        let tables = self.plan.stage_tables(&self.node, &stage, is_applied)?;
        match &self.job.work {
            Work::Apply { upserts, deletes } => {
                let update = self.apply(&stage, &tables, upserts, deletes)?;
                Ok(ComputedTask {
                    update: Some(update),
                    ..ComputedTask::default()
                })
            }
            Work::Both => {
                let mut computed = self.compute_rows(&stage, &tables)?;
                if let Some(rows) = &computed.rows {
                    let upserts = rows.upserts.clone();
                    let update = self.apply_rows(&stage, &tables, upserts, &rows.deletes);
                    computed.update = Some(update?);
                }
                Ok(computed)
            }
            _ => self.compute_rows(&stage, &tables),
        }
    }

    fn compare_source(&self, source: &SourceNode) -> Result<ComputedTask> {
        let Work::Source(changes) = &self.job.work else {
            return Err(Error::invalid("the job of a source is another"));
        };
        let memory = self.job.memory_bytes;
        let (table, keys) = (self.plan.content(&self.node, None), self.keys_of_range());
        let sorted = changes.gather(source, &table, keys, memory)?;
        let update = sorted.plan(&table, keys, memory / 64)?;
        Ok(ComputedTask {
            keys_in: update.keys.rows(),
            rows_out: update.rows.rows.rows(),
            source: Some(update),
            ..ComputedTask::default()
        })
    }

    fn compute_rows(&self, stage: &StageNode, tables: &StageTables) -> Result<ComputedTask> {
        let memory = self.job.memory_bytes;
        let inputs = self.read_inputs()?;
        let feeders = self.plan.feeder_tables(stage, &inputs);
        let changed = if self.job.is_whole {
            None
        } else {
            changed_keys(&feeders, memory / 64)?
        };
        let keys = changed.as_ref().map_or(self.keys_of_range(), Keys::Of);
        let rows = compute_rows(stage, tables, &feeders, keys, memory)?;
        Ok(ComputedTask {
            keys_in: changed.as_ref().map_or(0, Spill::rows),
            rows_out: rows.upserts.rows(),
            rows: Some(rows),
            ..ComputedTask::default()
        })
    }

    /// What the update adds to the feeders, of the keys in the range.
    fn read_inputs(&self) -> Result<BTreeMap<String, NodeDeltas>> {
        let inputs = self.job.inputs.iter().map(|(name, input)| {
            let keys = self.keys_of_range();
            let deltas = self.plan.read_input(&self.job.node, name, input, keys)?;
            Ok((name.clone(), deltas))
        });
        inputs.collect()
    }

    fn apply(
        &self,
        stage: &StageNode,
        tables: &StageTables,
        upserts: &[StoredRun],
        deletes: &[StoredRun],
    ) -> Result<ContentUpdate> {
        let memory = self.job.memory_bytes;
        let shape = &tables.content.shape;
        let upserts = self.merge_runs(&tables.content, upserts)?;
        let upserts = Spill::collect(&shape.schema, upserts, memory / 64).map_err(to_error)?;
        let pairs = StoredTable {
            shape: shape.first_columns(2),
            ..tables.content.clone()
        };
        let deletes = self.merge_runs(&pairs, deletes)?;
        let deletes = distinct(deletes, shape, 2, 0, memory / 64)?;
        self.apply_rows(stage, tables, upserts, &deletes)
    }

    /// Sets nothing aside: the tasks of the next stage are other processes.
    fn apply_rows(
        &self,
        stage: &StageNode,
        tables: &StageTables,
        upserts: Spill,
        deletes: &Spill,
    ) -> Result<ContentUpdate> {
        let (old, memory) = (OldRowsUse::default(), self.job.memory_bytes);
        apply_rows(stage, tables, upserts, deletes, old, memory)
    }

    /// The rows of runs in the range, in the order of a table; those of a pair are in one run.
    fn merge_runs(&self, table: &StoredTable, runs: &[StoredRun]) -> Result<SortedBatches> {
        let streams = runs
            .iter()
            .map(|run| table.read_run(run, self.keys_of_range()));
        let order = table.shape.keys(table.shape.order.len())?;
        let memory = self.job.memory_bytes / 64;
        merge_streams(streams, &table.shape.schema, &order, memory)
    }

    async fn write(&self, computed: ComputedTask) -> Result<TaskResult> {
        let ComputedTask {
            rows,
            update,
            source,
            keys_in,
            rows_out,
        } = computed;
        let sources = self.plan.sources_of(&self.node);
        let content = self.plan.content(&self.node, sources.as_ref());
        let mappings = self.plan.mappings(&self.node, sources.as_ref());
        let mut result = TaskResult {
            keys_in,
            rows_out,
            ..TaskResult::default()
        };
        if let Some(rows) = &rows {
            let has_op = !mappings.runs.is_empty();
            result.mappings = self.write_delta(&rows.mappings, &mappings, has_op).await?;
            if update.is_none() {
                let pairs = content.shape.first_columns(2);
                let deletes = keys_only(&rows.deletes)?;
                let upserts = rows.upserts.read().map_err(to_error)?;
                result.upserts = self.write_rows(upserts, &content.shape).await?;
                result.deletes = self.write_rows(deletes, &pairs).await?;
            }
        }
        if let Some(update) = update {
            let has_op = !content.runs.is_empty();
            result.content = self.write_delta(&update.content, &content, has_op).await?;
            let keys = update.update.read().map_err(to_error)?;
            result.update = self.write_rows(keys, &self.node.columns().update()).await?;
            result.state = update.state;
        }
        if let (Some(source), Work::Source(changes)) = (source, &self.job.work) {
            let has_op = !content.runs.is_empty() || !changes.deletes.is_empty();
            result.content = self.write_delta(&source.rows, &content, has_op).await?;
            let keys = keys_only(&source.keys)?;
            let shape = content.shape.first_columns(1);
            result.update = self.write_rows(keys, &shape).await?;
        }
        result.reads = self.plan.reads.counts_of(&self.job.node);
        Ok(result)
    }

    async fn write_rows(
        &self,
        rows: SortedBatches,
        shape: &TableShape,
    ) -> Result<Option<SampledRun>> {
        self.plan.writer.write(rows, shape, false).await
    }

    /// Writes what a table gets. The runs of all tasks have the same columns, `op` if one of them may delete.
    async fn write_delta(
        &self,
        delta: &Delta,
        table: &StoredTable,
        has_op: bool,
    ) -> Result<Option<SampledRun>> {
        if delta.has_deletes && !has_op {
            return Err(Error::other(
                "internal error: deletes of a table without rows",
            ));
        }
        let rows = delta.rows_to_write(&table.shape, has_op)?;
        self.plan.writer.write(rows, &table.shape, has_op).await
    }
}
