//! Updates: from the changes of sources to the next version of the whole pipeline, by one commit.
//!
//! [`update()`] reads and sorts the changes of the sources. A plan then computes what they change in each stage, in the
//! order of the graph, from the newest snapshot and in temporary files. It writes the runs, all at once, and commits.
//!
//! Crash points: before the manifest is created, what was written is orphaned, and a vacuum removes it; after it, the
//! pipeline has the next version. A late write of a run hits a name of its own. A plan that lost its race to another
//! update is made again, from the sorted changes; one that lost to a compaction is not, as long as the runs that it
//! replaces are still the newest. An update that lost a race gets a lease (`update_lease`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::format::PipelineManifest;
use super::function_digest::report_changed_functions;
use super::functions::ChangedFunctionHook;
use super::graph::{Graph, Node};
use super::input::{Changes, ConsumedStep};
use super::node_reads::NodeReads;
use super::plan::Plan;
use super::read::removed_or;
use super::rebuild::{Rebuild, RebuildOptions, find_rebuilds};
use super::runs::{RunSizes, RunWriter};
use super::splice::{NodeReport, PipelineUpdate};
use super::staged_changes::SourceInput;
use super::update_lease::UpdateLease;
use super::{Committed, Pipeline, Snapshot, Staged};
use crate::error::{Error, ErrorKind, Result};
use crate::files::run_blocking;
use crate::parquet::Cancel;
use crate::versions::commit::{RunResult, run_on};
use crate::versions::{
    Change, CommitId, Operation, TimestampMicros, Transaction, check_idempotency_key, create_first,
    find_replay, is_not_created, remove,
};

/// What is left at least of the timeout after a wait for the lease.
const MIN_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of an update.
#[derive(Debug, Clone)]
pub struct UpdateOptions {
    /// The version after which no other may have changed data; 0 for a pipeline without data, None for any.
    pub base_version: Option<u64>,
    /// A second update with the same key changes nothing.
    pub idempotency_key: Option<String>,
    /// Which stages are computed anew.
    pub rebuild: RebuildOptions,
    /// How far sources have read the tables that feed them, and how far they had before. It is a conflict if another
    /// update of the pipeline has read more meanwhile.
    pub consumed: BTreeMap<String, ConsumedStep>,
    /// The limit of the memory that it takes, in bytes.
    pub memory_limit_bytes: usize,
    /// The sizes of the runs that it writes.
    pub sizes: RunSizes,
    /// For how long the commit is retried.
    pub timeout: Duration,
    /// Is called for the stages whose functions changed and whose versions did not.
    pub changed_function: Option<Arc<dyn ChangedFunctionHook>>,
    /// Runs the tasks of large stages; None for this process alone.
    pub engine: Option<Arc<dyn Engine>>,
}

/// The commit of an update.
#[derive(Debug, Clone)]
pub struct UpdateReport {
    /// The version that it created.
    pub version: u64,
    /// The id of the commit.
    pub commit_id: CommitId,
    /// An earlier update had the same idempotency key; this one changed nothing.
    pub is_replayed: bool,
    /// What it did, for each source and stage of the graph.
    pub nodes: Vec<NodeReport>,
}

/// Updates a pipeline, or makes its first version. Fails with [`ErrorKind::CommitConflict`] if there is a newer version
/// than the caller's base, with [`ErrorKind::DefinitionChanged`] if the graph is not the stored one.
pub async fn update(
    pipeline: &Pipeline,
    graph: &Graph,
    changes: BTreeMap<String, Changes>,
    options: &UpdateOptions,
) -> Result<UpdateReport> {
    let mut operation = UpdateOperation::new(pipeline, graph, changes, options).await?;
    let mut leased = LeasedUpdate {
        lease: UpdateLease::new(pipeline),
        update: &mut operation,
    };
    let updated = leased.run().await;
    leased.lease.release().await;
    operation.remove_staged().await;
    updated
}

impl UpdateReport {
    /// The report of an earlier update with an idempotency key; None without one. Then it refuses a base version
    /// after which data were changed. [`update()`] does both, too, but only when the rows are staged.
    pub async fn find_replay(
        pipeline: &Pipeline,
        idempotency_key: Option<&str>,
        base_version: Option<u64>,
    ) -> Result<Option<Self>> {
        let newest = match find_replay(pipeline, idempotency_key).await {
            Ok((_, Some(earlier))) => return Ok(Some(report(&earlier, Vec::new()))),
            Ok((newest, None)) => newest.manifest,
            // The pipeline has no version yet.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Arc::new(PipelineManifest::empty_of(pipeline))
            }
            Err(e) => return Err(e),
        };
        check_base(pipeline, &newest, base_version)?;
        Ok(None)
    }
}

pub(super) fn report(committed: &Committed, nodes: Vec<NodeReport>) -> UpdateReport {
    UpdateReport {
        version: committed.version,
        commit_id: committed.commit_id.clone(),
        is_replayed: committed.replayed,
        nodes,
    }
}

/// Makes the first version of a pipeline. What is staged is removed unless that version may name it. Fails with
/// [`ErrorKind::AlreadyExists`] if there is a version.
pub(super) async fn create_from(
    pipeline: &Pipeline,
    change: PipelineUpdate,
    staged: Staged,
) -> Result<UpdateReport> {
    let (mut manifest, operation) = change.apply(&PipelineManifest::empty_of(pipeline))?;
    manifest.operation = operation;
    manifest.version = 1;
    let mut commit_id = None;
    let created = create_first(pipeline, |id, now| {
        manifest.commit_id = CommitId::new(id);
        commit_id = Some(manifest.commit_id.clone());
        manifest.created_at = TimestampMicros::new(now);
        if let Some(key) = change.idempotency_key {
            let transaction = Transaction {
                version: 1,
                commit_id: manifest.commit_id.clone(),
                created_at: manifest.created_at,
            };
            manifest.transactions.insert(key, transaction);
        }
        manifest
    });
    match created.await {
        // Others may have committed since.
        Ok(newest) => Ok(UpdateReport {
            version: 1,
            commit_id: commit_id.unwrap_or_else(|| newest.manifest.commit_id.clone()),
            is_replayed: false,
            nodes: change.reports,
        }),
        Err(e) => {
            if is_not_created(&e) {
                staged.remove_all().await;
            }
            Err(e)
        }
    }
}

async fn read_changes(
    graph: &Graph,
    changes: BTreeMap<String, Changes>,
    memory_bytes: usize,
) -> Result<BTreeMap<String, SourceInput>> {
    let cancel = Cancel::default();
    let _stop_thread = cancel.guard();
    let mut sources = BTreeMap::new();
    for (name, changes) in changes {
        let source = match graph.node(&name) {
            Some(Node::Source(source)) => source.clone(),
            Some(Node::Stage(_)) => {
                return Err(Error::invalid(format!(
                    "{name:?} is a stage; only sources are updated"
                )));
            }
            None => return Err(Error::invalid(format!("there is no source {name:?}"))),
        };
        let cancel = cancel.clone();
        let read = run_blocking(move || SourceInput::read(&source, changes, memory_bytes, &cancel));
        sources.insert(name, read.await?);
    }
    Ok(sources)
}

/// An update that is under way.
pub(super) struct UpdateOperation<'a> {
    pipeline: &'a Pipeline,
    graph: Arc<Graph>,
    sources: Arc<BTreeMap<String, SourceInput>>,
    options: &'a UpdateOptions,
    /// The files that the last plan wrote.
    written: Vec<String>,
    /// The stages whose functions the caller knows to be others.
    reported: BTreeSet<String>,
}

/// An update that waits for its lease.
struct LeasedUpdate<'a, 'b> {
    update: &'b mut UpdateOperation<'a>,
    lease: UpdateLease,
}

impl Operation<PipelineManifest> for LeasedUpdate<'_, '_> {
    type Change = PipelineUpdate;

    async fn plan(
        &mut self,
        base: &Snapshot,
        staged: &mut Staged,
    ) -> Result<Option<PipelineUpdate>> {
        let planned = Box::pin(self.update.plan(base, staged));
        self.lease.renew_during(planned).await
    }

    async fn before_replan(&mut self, base: &Snapshot, deadline: Duration) -> Result<bool> {
        self.update.check(&base.manifest)?;
        self.lease.acquire(deadline).await
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.update.options.idempotency_key.as_deref()
    }
}

impl LeasedUpdate<'_, '_> {
    async fn run(&mut self) -> Result<UpdateReport> {
        let pipeline = self.update.pipeline;
        let clock = Arc::clone(pipeline.store().clock());
        let mut deadline = clock.monotonic() + self.update.options.timeout;
        let newest = loop {
            if let Some(newest) = self.find_newest(deadline).await? {
                break newest;
            }
            let started_at = clock.monotonic();
            if let Some(report) = self.update.create().await? {
                return Ok(report);
            }
            deadline += clock.monotonic().saturating_sub(started_at);
        };
        let left = deadline.saturating_sub(clock.monotonic());
        let timeout = left.max(MIN_TIMEOUT.min(self.update.options.timeout));
        let staged = Staged::new(pipeline);
        match run_on(pipeline, self, staged, Some(newest), timeout).await? {
            RunResult::Committed(committed, change) => Ok(report(&committed, change.reports)),
            RunResult::Replayed(committed) => Ok(report(&committed, Vec::new())),
            RunResult::Unchanged(_) => {
                Err(Error::other("internal error: an update without a change"))
            }
        }
    }

    /// The newest snapshot, after the updates before which this one has to wait, until `deadline`. What ends without a
    /// plan does not wait.
    async fn find_newest(&mut self, deadline: Duration) -> Result<Option<Snapshot>> {
        let pipeline = self.update.pipeline;
        let (newest, is_held_by_other) =
            futures::future::join(pipeline.find_newest(), self.lease.is_held_by_other()).await;
        let Some(newest) = newest? else {
            return Ok(None);
        };
        if !is_held_by_other {
            return Ok(Some(newest));
        }
        let (newest, replay) = find_replay(pipeline, self.idempotency_key()).await?;
        if replay.is_some() {
            return Ok(Some(newest));
        }
        self.update.check(&newest.manifest)?;
        self.lease.acquire(deadline).await?;
        pipeline.find_newest().await
    }
}

impl<'a> UpdateOperation<'a> {
    /// Reads the changes.
    pub(super) async fn new(
        pipeline: &'a Pipeline,
        graph: &Graph,
        changes: BTreeMap<String, Changes>,
        options: &'a UpdateOptions,
    ) -> Result<Self> {
        check_idempotency_key(options.idempotency_key.as_deref())?;
        let sources = read_changes(graph, changes, options.memory_limit_bytes).await?;
        Ok(Self {
            pipeline,
            graph: Arc::new(graph.clone()),
            sources: Arc::new(sources),
            options,
            written: Vec::new(),
            reported: BTreeSet::new(),
        })
    }

    /// Removes the rows that were staged: no version names them.
    pub(super) async fn remove_staged(&self) {
        let staged = self.sources.values().filter_map(|input| match input {
            SourceInput::Sorted(_) => None,
            SourceInput::Staged(changes) => Some(changes.runs()),
        });
        let names: Vec<String> = staged
            .flatten()
            .flat_map(|run| run.run.file_names())
            .collect();
        remove(self.pipeline, &names).await;
    }

    /// Makes the first version; None if another process has.
    async fn create(&mut self) -> Result<Option<UpdateReport>> {
        let empty = Arc::new(PipelineManifest::empty_of(self.pipeline));
        let mut staged = Staged::new(self.pipeline);
        let change = match self.plan_on(empty, &mut staged).await {
            Ok(change) => change,
            Err(e) => {
                staged.remove_all().await;
                // Another process has made versions since, and vacuumed.
                let is_expired = e.kind() == ErrorKind::VersionExpired;
                let is_overtaken = is_expired && self.pipeline.find_newest().await?.is_some();
                return if is_overtaken { Ok(None) } else { Err(e) };
            }
        };
        match create_from(self.pipeline, change, staged).await {
            Ok(report) => Ok(Some(report)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn plan(
        &mut self,
        base: &Snapshot,
        staged: &mut Staged,
    ) -> Result<Option<PipelineUpdate>> {
        let earlier = std::mem::take(&mut self.written);
        let change = self.plan_on(Arc::clone(&base.manifest), staged).await?;
        staged.retire(&earlier);
        Ok(Some(change))
    }

    pub(super) async fn plan_on(
        &mut self,
        base: Arc<PipelineManifest>,
        staged: &mut Staged,
    ) -> Result<PipelineUpdate> {
        let rebuilds = self.check(&base)?;
        let hook = self.options.changed_function.as_ref();
        report_changed_functions(&self.graph, &base, &rebuilds, hook, &mut self.reported).await?;
        let cancel = Cancel::default();
        let _stop_thread = cancel.guard();
        let plan = Plan {
            pipeline: self.pipeline.clone(),
            base: Arc::clone(&base),
            graph: Arc::clone(&self.graph),
            sources: Arc::clone(&self.sources),
            rebuilds,
            sample: self.options.rebuild.sample,
            memory_bytes: self.options.memory_limit_bytes,
            writer: RunWriter::new(
                self.pipeline,
                base.version,
                self.options.sizes,
                self.options.memory_limit_bytes,
            )?
            .with_cached_files(),
            sizes: self.options.sizes,
            cancel,
            engine: self.options.engine.clone(),
            reads: NodeReads::new(&self.graph),
        };
        let plan = Arc::new(plan);
        let written = match plan.compute().await {
            Ok(computed) => plan.write(computed, &self.options.consumed).await,
            Err(e) => Err(e),
        };
        remove(self.pipeline, &plan.writer.take_temporary()).await;
        let files = plan.writer.take_written();
        staged.add(files.iter().cloned());
        self.written = files;
        let (nodes, reports) = match written {
            Ok(written) => written,
            Err(e) => return Err(removed_or(self.pipeline, self.oldest_version(&base), e).await),
        };
        Ok(PipelineUpdate {
            base_version: base.version,
            base_commit: (base.version > 0).then(|| base.commit_id.clone()),
            base_data_version: base.data_version,
            idempotency_key: self.options.idempotency_key.clone(),
            nodes,
            reports,
        })
    }

    /// Refuses what cannot be done on this version or a later one; returns what is rebuilt.
    fn check(&self, base: &PipelineManifest) -> Result<BTreeMap<String, Rebuild>> {
        check_base(self.pipeline, base, self.options.base_version)?;
        self.check_consumed(base)?;
        for input in self.sources.values() {
            if let SourceInput::Staged(changes) = input {
                changes.check_retained(base)?;
            }
        }
        find_rebuilds(&self.graph, base, &self.options.rebuild)
    }

    /// The oldest version in the names of what an update of `base` reads.
    fn oldest_version(&self, base: &PipelineManifest) -> u64 {
        let staged = self.sources.values().filter_map(|input| match input {
            SourceInput::Sorted(_) => None,
            SourceInput::Staged(changes) => Some(changes.base_version),
        });
        staged.min().unwrap_or(base.version).min(base.version)
    }

    /// Refuses changes of a table that another update has read.
    fn check_consumed(&self, newest: &PipelineManifest) -> Result<()> {
        for (name, step) in &self.options.consumed {
            let stored = newest.node(name).and_then(|node| node.consumed.as_ref());
            if stored != step.before.as_ref() {
                let message = format!("another update has read the table of {name:?} meanwhile");
                let error = Error::new(ErrorKind::CommitConflict, message);
                return Err(error.with_path(self.pipeline.root()));
            }
        }
        Ok(())
    }
}

/// Refuses a base version that is not the last one that changed data.
fn check_base(
    pipeline: &Pipeline,
    newest: &PipelineManifest,
    base_version: Option<u64>,
) -> Result<()> {
    let Some(base) = base_version else {
        return Ok(());
    };
    let conflict = |message: String| {
        let error = Error::new(ErrorKind::CommitConflict, message);
        Err(error.with_path(pipeline.root()))
    };
    if base > newest.version {
        return Err(Error::invalid(format!(
            "there is no version {base}; the newest is {}",
            newest.version
        )));
    }
    let has_data = newest.nodes.iter().any(|node| !node.content.is_empty());
    if base < newest.data_version && (base > 0 || has_data) {
        return conflict(format!(
            "the pipeline was updated to version {} after version {base}, on which this update is based; nothing \
             was committed",
            newest.data_version
        ));
    }
    Ok(())
}
