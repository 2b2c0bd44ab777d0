//! Updates of large stages by tasks of an engine, which may run them in other processes ([`super::job`]).
//!
//! A stage is computed by tasks if it has more than [`super::Engine::local_bytes`] of work: what the update adds to its feeders,
//! and what it reads of their stored rows. The keys of these say where the ranges of the tasks begin.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::diff::Delta;
use super::engine::Engine;
use super::format::{NodeEntry, PipelineManifest, StoredRun};
use super::graph::{Node, StageNode};
use super::job::{Job, TaskResult, Work};
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::operators::StageFunction;
use super::plan::{Computed, NodeOutput, Plan, StoredDeltas};
use super::rebuild::Rebuild;
use super::runs::SampledRun;
use super::split::KeySample;
use super::staged_changes::StagedChanges;
use crate::error::{Error, Result};
use crate::files::run::DEFAULT_PAGE_ROWS;
use crate::files::run_blocking;
use crate::store::metrics::ReadCounts;
use crate::versions::{pack_message, unpack_message};

/// How much a stage has to do.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageWork {
    /// Whether all keys are computed.
    pub(super) is_whole: bool,
    /// About how many bytes are read.
    pub(super) bytes: u64,
}

/// About how many bytes of runs are read to look up so many keys, of which each needs a page at least.
fn bytes_of_lookup(runs: &[StoredRun], keys: u64) -> u64 {
    let of_run = |run: &StoredRun| {
        let bytes = run.size_bytes();
        let pages = run.files.rows().div_ceil(DEFAULT_PAGE_ROWS as u64).max(1);
        bytes.min((bytes / pages).saturating_mul(keys))
    };
    runs.iter().map(of_run).sum()
}

impl Plan {
    /// The most bytes of work that this process does of one stage.
    pub(super) fn local_bytes(&self) -> u64 {
        let engine = self.engine.as_ref();
        engine.map_or(u64::MAX, |engine| engine.local_bytes())
    }

    pub(super) fn work_of(
        &self,
        stage: &StageNode,
        is_whole: bool,
        computed: &Computed,
    ) -> StageWork {
        let outputs = || {
            let names = stage.feeders.iter();
            names.filter_map(|name| computed.get(name))
        };
        let keys: u64 = outputs().map(count_changed_keys).sum();
        let added: u64 = outputs().map(added_bytes).sum();
        let read = stage.feeders.iter().map(|name| {
            let keys = if is_whole { u64::MAX } else { keys };
            bytes_of_lookup(self.stored_content(name), keys)
        });
        StageWork {
            is_whole,
            bytes: added + read.sum::<u64>(),
        }
    }

    /// Updates a stage by tasks. The outputs of its feeders are stored for them.
    pub(super) async fn run_jobs(
        self: &Arc<Self>,
        engine: &Arc<dyn Engine>,
        node: &Node,
        stage: &StageNode,
        work: StageWork,
        computed: &mut Computed,
    ) -> Result<StoredDeltas> {
        let feeders = self.store_outputs(stage, computed).await?;
        let inputs = feeders
            .iter()
            .map(|(name, deltas)| (name.clone(), deltas.as_input()));
        let tasks = tasks_of(work.bytes, engine.task_bytes());
        let bounds = self.split_sources(stage, work, &feeders, tasks)?;
        let does_both = !matches!(stage.function, StageFunction::Produce(_));
        let mut job = Job {
            base: self.manifest_of_job(&stage.name, &stage.feeders),
            node: stage.name.clone(),
            rebuilds: self.rebuilds.clone(),
            is_whole: work.is_whole,
            inputs: inputs.collect(),
            work: if does_both { Work::Both } else { Work::Compute },
            bounds,
            memory_bytes: self.memory_bytes,
            sizes: self.sizes,
        };
        let results = self.run_job(engine, &job).await?;
        let mut deltas = StoredDeltas {
            keys_in: results.iter().map(|result| result.keys_in).sum(),
            rows_out: results.iter().map(|result| result.rows_out).sum(),
            tasks: results.len() as u64,
            reads: results.iter().map(|result| result.reads).sum(),
            mappings: self.concat(results.iter().map(|result| &result.mappings)),
            ..StoredDeltas::default()
        };
        let results = if does_both {
            results
        } else {
            (job.work, job.bounds) = self.plan_apply(&**engine, node, stage, &results)?;
            job.inputs.clear();
            let results = self.run_job(engine, &job).await?;
            deltas.tasks += results.len() as u64;
            let reads: ReadCounts = results.iter().map(|result| result.reads).sum();
            deltas.reads += reads;
            results
        };
        deltas.content = self.concat(results.iter().map(|result| &result.content));
        deltas.changed = self.concat(results.iter().map(|result| &result.update));
        deltas.state = results.into_iter().find_map(|result| result.state);
        if self.rebuilds.get(&stage.name) == Some(&Rebuild::Replace) {
            deltas.changed = self.store_replaced(node, deltas.changed).await?;
        }
        Ok(deltas)
    }

    /// Compares staged changes of a source with its rows, by tasks.
    pub(super) async fn run_source_job(
        &self,
        engine: &Arc<dyn Engine>,
        node: &Node,
        mut changes: StagedChanges,
    ) -> Result<StoredDeltas> {
        let mut sample = KeySample::default();
        for run in changes.runs() {
            sample.add(&run.sample, run.run.size_bytes());
        }
        let tasks = tasks_of(changes.size_bytes(), engine.task_bytes());
        changes.drop_samples();
        let job = Job {
            base: self.manifest_of_job(node.name(), &[]),
            node: node.name().to_owned(),
            rebuilds: BTreeMap::new(),
            is_whole: false,
            inputs: BTreeMap::new(),
            bounds: sample.split(&node.columns().source(), tasks)?,
            work: Work::Source(changes),
            memory_bytes: self.memory_bytes,
            sizes: self.sizes,
        };
        let results = self.run_job(engine, &job).await?;
        Ok(StoredDeltas {
            content: self.concat(results.iter().map(|result| &result.content)),
            mappings: None,
            changed: self.concat(results.iter().map(|result| &result.update)),
            keys_in: results.iter().map(|result| result.keys_in).sum(),
            rows_out: results.iter().map(|result| result.rows_out).sum(),
            tasks: results.len() as u64,
            reads: results.iter().map(|result| result.reads).sum(),
            state: None,
        })
    }

    /// The second job: what the first one computed, and the ranges of target keys.
    fn plan_apply(
        &self,
        engine: &dyn Engine,
        node: &Node,
        stage: &StageNode,
        results: &[TaskResult],
    ) -> Result<(Work, Vec<Value>)> {
        let mut sample = KeySample::default();
        let (mut bytes, mut rows) = (0, 0);
        let mut take = |run: &Option<SampledRun>| {
            let SampledRun { run, sample: keys } = run.as_ref()?;
            sample.add(keys, run.size_bytes());
            bytes += run.size_bytes();
            rows += run.files.rows();
            self.writer.set_aside(run);
            Some(run.clone())
        };
        let work = Work::Apply {
            upserts: results.iter().filter_map(|r| take(&r.upserts)).collect(),
            deletes: results.iter().filter_map(|r| take(&r.deletes)).collect(),
        };
        let content = self.stored_content(&stage.name);
        let bytes = bytes + bytes_of_lookup(content, rows);
        let tasks = if stage.preserve.is_some() {
            // A hook sees the rows in their order.
            1
        } else {
            tasks_of(bytes, engine.task_bytes())
        };
        Ok((work, sample.split(&node.columns().update(), tasks)?))
    }

    /// The outputs of a stage's feeders, in the store.
    async fn store_outputs(
        &self,
        stage: &StageNode,
        computed: &mut Computed,
    ) -> Result<BTreeMap<String, StoredDeltas>> {
        let mut stored = BTreeMap::new();
        for name in &stage.feeders {
            let (Some(output), Some(node)) = (computed.get_mut(name), self.graph.node(name)) else {
                continue;
            };
            let deltas = match output {
                NodeOutput::Stored(deltas) => deltas.clone(),
                NodeOutput::Local(_) => {
                    let deltas = self.store_output(node, output).await?;
                    *output = NodeOutput::Stored(deltas.clone());
                    deltas
                }
            };
            stored.insert(name.clone(), deltas);
        }
        Ok(stored)
    }

    /// Writes the output of a source or stage that was computed here.
    async fn store_output(&self, node: &Node, output: &NodeOutput) -> Result<StoredDeltas> {
        let NodeOutput::Local(deltas) = output else {
            return Err(Error::other("internal error: an output that is stored"));
        };
        let sources = self.sources_of(node);
        let content = self.content(node, sources.as_ref()).shape;
        let mappings = self.mappings(node, sources.as_ref()).shape;
        let write_delta = async |delta: &Delta, shape| {
            let rows = delta.rows_to_write(shape, delta.has_deletes)?;
            self.writer.write(rows, shape, delta.has_deletes).await
        };
        let mut changed = node.columns().update();
        let mut keys = deltas.changed.read().map_err(to_error)?;
        if matches!(node, Node::Source(_)) {
            changed = changed.first_columns(1);
            keys = Box::new(keys.map(|batch| batch?.project(&[0])));
        }
        Ok(StoredDeltas {
            content: write_delta(&deltas.content, &content).await?,
            mappings: match &deltas.mappings {
                Some(delta) => write_delta(delta, &mappings).await?,
                None => None,
            },
            changed: self.writer.write(keys, &changed, false).await?,
            keys_in: deltas.keys_in,
            rows_out: deltas.rows_out,
            tasks: 0,
            reads: ReadCounts::default(),
            state: deltas.state.clone(),
        })
    }

    /// Where the ranges of source keys begin.
    fn split_sources(
        &self,
        stage: &StageNode,
        work: StageWork,
        feeders: &BTreeMap<String, StoredDeltas>,
        tasks: usize,
    ) -> Result<Vec<Value>> {
        let shape = self.feeder_columns(stage)?.source();
        let mut sample = KeySample::default();
        for name in &stage.feeders {
            let output = feeders.get(name);
            let mut read = KeySample::default();
            if let Some(content) = output.and_then(|deltas| deltas.content.as_ref()) {
                read.add(&content.sample, content.run.size_bytes());
            }
            for run in self.stored_content(name) {
                read.add_files(run);
            }
            if !work.is_whole {
                // What is read lies between the changed keys.
                for deltas in feeders.values() {
                    let Some(changed) = &deltas.changed else {
                        continue;
                    };
                    let mut near = read.clone();
                    near.limit_to(&changed.run, &shape)?;
                    near.add(&changed.sample, near.total().max(changed.run.size_bytes()));
                    sample.append(near);
                }
                continue;
            }
            sample.append(read);
        }
        sample.split(&shape, tasks)
    }

    /// The manifest as tasks need it.
    fn manifest_of_job(&self, own: &str, feeders: &[String]) -> PipelineManifest {
        let is_read = |name: &String| *name == own || feeders.contains(name);
        let nodes = self.base.nodes.iter().map(|node| NodeEntry {
            content: if is_read(&node.name) {
                node.content.clone()
            } else {
                Vec::new()
            },
            mappings: if node.name == own {
                node.mappings.clone()
            } else {
                Vec::new()
            },
            update: None,
            ..node.clone()
        });
        PipelineManifest {
            version: self.base.version,
            nodes: nodes.collect(),
            ..PipelineManifest::empty(self.base.commit_id.clone(), self.base.created_at)
        }
    }

    async fn run_job(&self, engine: &Arc<dyn Engine>, job: &Job) -> Result<Vec<TaskResult>> {
        let tasks = job.bounds.len() + 1;
        let (engine, stage, message) = (Arc::clone(engine), job.node.clone(), pack_message(job)?);
        log::debug!(
            "stage {stage:?} of {:?}: a job of {tasks} tasks",
            self.pipeline.root()
        );
        let messages = run_blocking(move || engine.run(&stage, message, tasks)).await?;
        if messages.len() != tasks {
            let message = format!("{} of {tasks} tasks gave a result", messages.len());
            return Err(Error::other(message));
        }
        let results = messages.into_iter().map(|message| {
            let result: TaskResult = unpack_message(&message?)?;
            for written in result.runs() {
                self.writer.add_written(&written.run);
            }
            Ok(result)
        });
        // All of them, also after an error: what they wrote is known then, and can be removed.
        let results: Vec<Result<TaskResult>> = results.collect();
        results.into_iter().collect()
    }

    /// The runs of ranges, in their order, as one.
    fn concat<'r>(&self, runs: impl Iterator<Item = &'r Option<SampledRun>>) -> Option<SampledRun> {
        let mut runs = runs.flatten().cloned();
        let mut all = runs.next()?;
        all.run.id = self.writer.new_id();
        for SampledRun { run, sample } in runs {
            all.run.files.files.extend(run.files.files);
            all.sample.extend(sample);
        }
        Some(all)
    }

    /// The changed keys of a stage with new tables, those of its old ones among them.
    async fn store_replaced(
        self: &Arc<Self>,
        node: &Node,
        added: Option<SampledRun>,
    ) -> Result<Option<SampledRun>> {
        let update = StoredTable {
            shape: node.columns().update(),
            ..self.content(node, self.sources_of(node).as_ref())
        };
        let shape = update.shape.clone();
        let added = added.map(|added| added.run);
        if let Some(run) = &added {
            self.writer.set_aside(run);
        }
        let (plan, node) = (Arc::clone(self), node.clone());
        let rows = run_blocking(move || {
            let added = plan.read_run(&update, added.as_ref(), Keys::All)?;
            plan.changes_of_replaced(&node, added.rows)
        })
        .await?
        .read()
        .map_err(to_error)?;
        self.writer.write(rows, &shape, false).await
    }
}

/// How many tasks so much work is.
fn tasks_of(bytes: u64, task_bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(task_bytes.max(1)).max(1)).unwrap_or(usize::MAX)
}

fn count_changed_keys(output: &NodeOutput) -> u64 {
    match output {
        NodeOutput::Local(deltas) => deltas.changed.rows(),
        NodeOutput::Stored(deltas) => {
            let changed = deltas.changed.as_ref();
            changed.map_or(0, |changed| changed.run.files.rows())
        }
    }
}

/// About how many bytes an output adds.
fn added_bytes(output: &NodeOutput) -> u64 {
    match output {
        NodeOutput::Local(deltas) => deltas.content.rows.bytes() as u64,
        NodeOutput::Stored(deltas) => {
            let content = deltas.content.as_ref();
            content.map_or(0, |content| content.run.size_bytes())
        }
    }
}
