//! Writing what a plan computed: the runs that the tables get, all at once but for large ones, which take memory.
//!
//! It is the last step of an update before the commit. A source or stage gets up to three runs: of its content, its key
//! mappings and its changed keys. A new run is merged with the newest stored ones of its table where these are small or
//! many (`levels`), so that a lookup has few runs to look into. After an error the other writes still end: so all files
//! that were written are known, and can be removed. Nothing refers to a run before `splice` puts it into a manifest.

use std::collections::BTreeMap;

use futures::future::join_all;

use super::diff::Delta;
use super::format::StoredRun;
use super::graph::Node;
use super::input::ConsumedStep;
use super::layers::{Layer, to_error};
use super::levels::{MAX_RUNS, runs_to_merge};
use super::lookup::{Keys, StoredTable};
use super::plan::{Computed, NodeDeltas, NodeOutput, Plan, StoredDeltas};
use super::rebuild::Rebuild;
use super::runs::SampledRun;
use super::splice::{NewRun, NodeChange, NodeReport};
use crate::error::Result;
use crate::files::run::DEFAULT_PAGE_ROWS;
use crate::files::{Spill, run_blocking};
use crate::sync::progress::{self, with_progress};

impl NodeOutput {
    /// The rows of a source that changed, or those that a stage emitted.
    pub(super) fn rows_out(&self) -> u64 {
        match self {
            Self::Local(d) => d.rows_out,
            Self::Stored(d) => d.rows_out,
        }
    }

    /// States change also where no value does: that of a hook counts its calls, those of groups their rows.
    pub(super) fn is_changed(&self) -> bool {
        match self {
            Self::Local(d) => {
                d.changed.rows() > 0 || d.content.rows.rows() > 0 || d.state.is_some()
            }
            Self::Stored(d) => d.changed.is_some() || d.content.is_some() || d.state.is_some(),
        }
    }
}

impl Plan {
    /// Writes what was computed, all runs at once; large ones wait for a permit.
    pub(super) async fn write(
        &self,
        mut computed: Computed,
        consumed: &BTreeMap<String, ConsumedStep>,
    ) -> Result<(Vec<NodeChange>, Vec<NodeReport>)> {
        progress::begin_phase("write");
        let mut writes = Vec::new();
        for node in self.graph.nodes() {
            let output = computed.remove(node.name());
            writes.push(self.write_node(node, output, consumed));
        }
        // All of them end, also after an error: what is written is known then, and can be removed.
        let written: Result<Vec<_>> = join_all(writes).await.into_iter().collect();
        Ok(written?.into_iter().unzip())
    }

    async fn write_node(
        &self,
        node: &Node,
        output: Option<NodeOutput>,
        consumed: &BTreeMap<String, ConsumedStep>,
    ) -> Result<(NodeChange, NodeReport)> {
        let stored = self.base.node(node.name());
        let mut entry = node.entry()?;
        entry.state = stored.and_then(|stored| stored.state.clone());
        entry.consumed = match consumed.get(node.name()) {
            Some(step) => Some(step.after.clone()),
            // What is pushed is not what the table has.
            None if self.sources.contains_key(node.name()) => None,
            None => stored.and_then(|stored| stored.consumed.clone()),
        };
        let rebuild = self.rebuilds.get(node.name());
        if let Node::Stage(stage) = node {
            let kept = stored.filter(|_| rebuild.is_none());
            entry.function_digests = stage.function_digests(kept);
        }
        let mut report = NodeReport {
            name: node.name().to_owned(),
            ..NodeReport::default()
        };
        let mut change = NodeChange {
            entry,
            content: NewRun::default(),
            mappings: NewRun::default(),
            update: None,
        };
        if rebuild == Some(&Rebuild::Replace) {
            let ids = |runs: &[StoredRun]| runs.iter().map(|run| run.id.clone()).collect();
            change.content.replaced = ids(self.base_runs(node, |entry| &entry.content));
            change.mappings.replaced = ids(self.base_runs(node, |entry| &entry.mappings));
        }
        match output {
            Some(NodeOutput::Local(deltas)) => {
                let written = self.write_deltas(node, deltas, &mut change, &mut report);
                // What it writes is counted by table, below.
                Box::pin(with_progress(None, written)).await?;
            }
            Some(NodeOutput::Stored(deltas)) => {
                self.put_stored(node, deltas, &mut change, &mut report)
                    .await?;
            }
            None => {}
        }
        for run in [&change.content.run, &change.mappings.run, &change.update]
            .into_iter()
            .flatten()
        {
            report.files_written += run.files.files.len() as u64;
            report.bytes_written += run.size_bytes();
        }
        report.reads += self.reads.counts_of(node.name());
        if let Some(progress) = progress::current() {
            progress.add_files(report.files_written);
            progress.add_bytes(report.bytes_written);
        }
        Ok((change, report))
    }

    async fn write_deltas(
        &self,
        node: &Node,
        deltas: NodeDeltas,
        change: &mut NodeChange,
        report: &mut NodeReport,
    ) -> Result<()> {
        change.entry.state = deltas.state.clone().or(change.entry.state.take());
        let sources = self.sources_of(node);
        let content = self.content(node, sources.as_ref());
        let mappings = self.mappings(node, sources.as_ref());
        let update = async {
            if deltas.mappings.is_none() {
                return Ok(None);
            }
            let rows = deltas.changed.read().map_err(to_error)?;
            let bytes = deltas.changed.bytes() as u64;
            let _permit = self.writer.acquire_permit(bytes).await;
            self.writer
                .write(rows, &node.columns().update(), false)
                .await
        };
        let (content, mappings, update) = futures::join!(
            self.write_delta(&content, Some(&deltas.content)),
            self.write_delta(&mappings, deltas.mappings.as_ref()),
            update
        );
        change.content.put(content?);
        change.mappings.put(mappings?);
        change.update = update?.map(|update| update.run);
        report.keys_in = deltas.keys_in;
        report.rows_out = deltas.rows_out;
        report.keys_out = deltas.changed.rows();
        Ok(())
    }

    /// Puts runs that tasks wrote into the tables.
    async fn put_stored(
        &self,
        node: &Node,
        deltas: StoredDeltas,
        change: &mut NodeChange,
        report: &mut NodeReport,
    ) -> Result<()> {
        change.entry.state = deltas.state.or(change.entry.state.take());
        let sources = self.sources_of(node);
        let content = self.content(node, sources.as_ref());
        let mappings = self.mappings(node, sources.as_ref());
        let (content, mappings) = futures::join!(
            self.put_run(&content, deltas.content),
            self.put_run(&mappings, deltas.mappings),
        );
        change.content.put(content?);
        change.mappings.put(mappings?);
        let changed = deltas.changed.map(|changed| changed.run);
        report.keys_in = deltas.keys_in;
        report.rows_out = deltas.rows_out;
        report.tasks = deltas.tasks;
        report.reads = deltas.reads;
        report.keys_out = changed.as_ref().map_or(0, |changed| changed.files.rows());
        match node {
            Node::Source(_) => changed.iter().for_each(|run| self.writer.set_aside(run)),
            Node::Stage(_) => change.update = changed,
        }
        Ok(())
    }

    /// Puts a written run into a table, merged with its newest runs if these are small, or too many.
    async fn put_run(&self, table: &StoredTable, written: Option<SampledRun>) -> Result<NewRun> {
        let Some(SampledRun { run, .. }) = written else {
            return Ok(NewRun::default());
        };
        let sizes: Vec<u64> = table.runs.iter().map(StoredRun::size_bytes).collect();
        let count = runs_to_merge(&sizes, run.size_bytes());
        let merged_bytes = run.size_bytes() + sizes[..count].iter().sum::<u64>();
        let is_large = merged_bytes > self.local_bytes() && sizes.len() < MAX_RUNS;
        // Without older rows there is nothing to delete.
        let has_needless_deletes = sizes.is_empty() && run.has_deletes;
        if !has_needless_deletes && (count == 0 || is_large) {
            return Ok(NewRun {
                replaced: Vec::new(),
                run: Some(run),
            });
        }
        self.writer.set_aside(&run);
        let _permit = self.writer.acquire_permit(merged_bytes).await;
        let layer = Layer {
            batches: table.read_run(&run, Keys::All)?,
            has_deletes: run.has_deletes,
        };
        self.write_merged(table, layer, count).await
    }

    /// Writes the rows that a table gets, together with those of its newest runs if these are small.
    async fn write_delta(&self, table: &StoredTable, delta: Option<&Delta>) -> Result<NewRun> {
        let Some(delta) = delta.filter(|delta| delta.rows.rows() > 0) else {
            return Ok(NewRun::default());
        };
        let sizes: Vec<u64> = table.runs.iter().map(StoredRun::size_bytes).collect();
        let count = runs_to_merge(&sizes, bytes_in_file(table, &delta.rows));
        let merged_bytes = delta.rows.bytes() as u64 + sizes[..count].iter().sum::<u64>();
        let _permit = self.writer.acquire_permit(merged_bytes).await;
        let layer = delta.layer(table.shape.schema.fields().len())?;
        self.write_merged(table, layer, count).await
    }

    /// Merges rows and the newest `count` runs of a table into one run.
    async fn write_merged(
        &self,
        table: &StoredTable,
        newer: Layer,
        count: usize,
    ) -> Result<NewRun> {
        let replaced = table.runs[..count].iter().map(|run| run.id.clone());
        let replaced = replaced.collect();
        let (rows, has_deletes) = {
            let table = table.clone();
            run_blocking(move || table.merge_newest(Some(newer), count)).await?
        };
        let written = self.writer.write(rows, &table.shape, has_deletes).await?;
        Ok(NewRun {
            replaced,
            run: written.map(|written| written.run),
        })
    }
}

/// About how many bytes rows of a table have in a file: those of as many rows of its oldest run, if that has a page. In
/// memory rows may have many times these, and a run that counts as larger than it is would be merged with large ones.
fn bytes_in_file(table: &StoredTable, rows: &Spill) -> u64 {
    let in_memory = rows.bytes() as u64;
    let oldest = table.runs.last().map(|run| &run.files);
    let Some(oldest) = oldest.filter(|run| run.rows() >= DEFAULT_PAGE_ROWS as u64) else {
        return in_memory;
    };
    let size = oldest.size_bytes().saturating_mul(rows.rows());
    (size / oldest.rows()).min(in_memory)
}
