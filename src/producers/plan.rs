//! The plan of an update: what its changes make of each source and stage, computed in the order of the graph from one
//! snapshot, and written at the end, all runs at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, new_null_array};
use futures::future::join_all;
use serde_json::Value;

use super::Pipeline;
use super::apply::replaced_keys;
use super::diff::{Delta, distinct, keys_only};
use super::feeders::FeederTable;
use super::format::{NodeEntry, PipelineManifest, StoredRun};
use super::functions::Rows;
use super::graph::{Graph, Node, StageNode};
use super::input::{ConsumedStep, SourceChanges};
use super::layers::to_error;
use super::levels::runs_to_merge;
use super::lookup::{Keys, StoredTable};
use super::read::{StoredNode, TableName};
use super::rebuild::Rebuild;
use super::runs::RunWriter;
use super::splice::{NewRun, NodeChange, NodeReport};
use super::stage::{StageTables, changed_keys, update_stage};
use super::tables::{KeyAndValue, TableShape};
use crate::error::Result;
use crate::files::{SortedBatches, Spill, run_blocking, sort_batches};
use crate::parquet::Cancel;

/// The computation of one plan.
pub(super) struct Plan {
    pub(super) pipeline: Pipeline,
    pub(super) base: Arc<PipelineManifest>,
    pub(super) graph: Arc<Graph>,
    pub(super) sources: Arc<BTreeMap<String, SourceChanges>>,
    /// The stages that are computed anew.
    pub(super) rebuilds: BTreeMap<String, Rebuild>,
    pub(super) memory_bytes: usize,
    pub(super) writer: RunWriter,
    /// Ends the computation.
    pub(super) cancel: Cancel,
}

/// What a source or stage gets.
pub(super) struct NodeDeltas {
    content: Delta,
    mappings: Option<Delta>,
    /// The changed keys, in the first column.
    changed: Spill,
    keys_in: u64,
    rows_out: u64,
    /// The state of its hook.
    state: Option<Value>,
}

pub(super) type Computed = BTreeMap<String, NodeDeltas>;

impl Plan {
    /// What the changes make of each source and stage.
    pub(super) fn compute(&self) -> Result<Computed> {
        let mut computed = Computed::new();
        for node in self.graph.nodes() {
            let deltas = match node {
                Node::Source(source) => match self.sources.get(&source.name) {
                    Some(changes) if !changes.is_empty() => {
                        let stored = self.content(node, None);
                        let update = changes.plan(&stored, self.memory_bytes / 64)?;
                        Some(NodeDeltas {
                            keys_in: update.keys.rows(),
                            rows_out: update.rows.rows.rows(),
                            state: None,
                            content: update.rows,
                            mappings: None,
                            changed: update.keys,
                        })
                    }
                    _ => None,
                },
                Node::Stage(stage) => self.compute_stage(node, stage, &computed)?,
            };
            // States change also where no value does: that of a hook counts its calls, those of groups their rows.
            let is_changed = |d: &NodeDeltas| {
                d.changed.rows() > 0 || d.content.rows.rows() > 0 || d.state.is_some()
            };
            if let Some(deltas) = deltas.filter(is_changed) {
                computed.insert(node.name().to_owned(), deltas);
            }
        }
        Ok(computed)
    }

    fn compute_stage(
        &self,
        node: &Node,
        stage: &StageNode,
        computed: &Computed,
    ) -> Result<Option<NodeDeltas>> {
        let rebuild = self.rebuilds.get(&stage.name).copied();
        let is_whole = rebuild.is_some() || self.base.node(&stage.name).is_none();
        if !is_whole
            && !stage
                .feeders
                .iter()
                .any(|feeder| computed.contains_key(feeder))
        {
            return Ok(None);
        }
        let feeders = self.feeder_tables(stage, computed);
        let changed = if is_whole {
            None
        } else {
            changed_keys(&feeders, self.memory_bytes / 64)?
        };
        let sources = self.sources_of(node);
        let tables = StageTables {
            content: self.content(node, sources.as_ref()),
            mappings: self.mappings(node, sources.as_ref()),
            update: node.columns().update(),
            replaced: match (rebuild, &stage.preserve) {
                (Some(Rebuild::Replace), Some(_)) => self.rows_of_replaced(node)?,
                _ => None,
            },
            state: self
                .base
                .node(node.name())
                .and_then(|stored| stored.state.clone()),
        };
        // What a rebuilt stage feeds gets the difference.
        let stage = StageNode {
            skip_unchanged: stage.skip_unchanged || rebuild == Some(Rebuild::Compare),
            ..stage.clone()
        };
        let update = update_stage(
            &stage,
            &tables,
            &feeders,
            changed.as_ref(),
            self.memory_bytes,
        )?;
        let changed = match rebuild {
            Some(Rebuild::Replace) => self.changes_of_replaced(node, update.update)?,
            _ => update.update,
        };
        Ok(Some(NodeDeltas {
            content: update.content,
            mappings: Some(update.mappings),
            changed,
            keys_in: update.keys_in,
            rows_out: update.rows_out,
            state: update.state,
        }))
    }

    fn feeder_tables<'a>(&self, stage: &StageNode, computed: &'a Computed) -> Vec<FeederTable<'a>> {
        let names = stage.feeders.iter();
        let feeders = names.filter_map(|name| self.graph.node(name));
        let tables = feeders.map(|feeder| {
            let deltas = computed.get(feeder.name());
            FeederTable {
                columns: feeder.columns(),
                table: self.content(feeder, self.sources_of(feeder).as_ref()),
                delta: deltas.map(|deltas| &deltas.content),
                changed: deltas.map(|deltas| &deltas.changed),
            }
        });
        tables.collect()
    }

    /// The changed keys of a stage with new tables, those of its old tables among them if they have the same type.
    fn changes_of_replaced(&self, node: &Node, added: Spill) -> Result<Spill> {
        let Some(stored) = self.base.node(node.name()) else {
            return Ok(added);
        };
        let (old, new) = (KeyAndValue::from_entry(stored)?, node.columns());
        if old.key.data_type() != new.key.data_type() {
            return Ok(added);
        }
        let memory_bytes = self.memory_bytes / 64;
        let table = self.replaced_content(&stored.name)?;
        // The source key decides too which rows are the newest.
        let old_keys = distinct(table.read(Keys::All, 2)?, &table.shape, 1, 0, memory_bytes)?;
        let mut old_keys: SortedBatches = keys_only(&old_keys)?;
        if old.descending != new.descending {
            let schema = Arc::new(table.shape.schema.project(&[0]).map_err(to_error)?);
            let unsorted: Rows = Box::new(RecordBatchIterator::new(old_keys, schema));
            let order = new.update().sort_columns(1);
            old_keys = Box::new(sort_batches(unsorted, &order, self.memory_bytes / 4)?);
        }
        replaced_keys(old_keys, &added, &new.update(), memory_bytes)
    }

    /// The rows of the old tables of a stage with new ones, as the new ones would have them without source keys. None
    /// if the type of the key or value is another.
    fn rows_of_replaced(&self, node: &Node) -> Result<Option<Spill>> {
        let Some(stored) = self.base.node(node.name()) else {
            return Ok(None);
        };
        let (old, new) = (KeyAndValue::from_entry(stored)?, node.columns());
        if old.key.data_type() != new.key.data_type()
            || old.value.data_type() != new.value.data_type()
        {
            return Ok(None);
        }
        let shape = self.content(node, self.sources_of(node).as_ref()).shape;
        let schema = Arc::clone(&shape.schema);
        let rows = self.replaced_content(&stored.name)?.read(Keys::All, 3)?;
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let sources = new_null_array(schema.field(1).data_type(), batch.num_rows());
            let columns = vec![
                Arc::clone(batch.column(0)),
                sources,
                Arc::clone(batch.column(2)),
            ];
            RecordBatch::try_new(Arc::clone(&schema), columns)
        });
        let unsorted: Rows = Box::new(RecordBatchIterator::new(rows, Arc::clone(&shape.schema)));
        let rows = sort_batches(unsorted, &shape.sort_columns(1), self.memory_bytes / 4)?;
        let rows = Spill::collect(&shape.schema, rows, self.memory_bytes / 64);
        rows.map(Some).map_err(to_error)
    }

    fn replaced_content(&self, name: &str) -> Result<StoredTable> {
        let mut stored = StoredNode::find(&self.pipeline, &self.base, name, self.memory_bytes)?;
        stored.cancel = self.cancel.clone();
        Ok(stored.open(TableName::Content)?.0)
    }

    /// The source keys of a stage; None for a source.
    fn sources_of(&self, node: &Node) -> Option<KeyAndValue> {
        match node {
            Node::Source(_) => None,
            Node::Stage(stage) => {
                let first = self.graph.node(stage.feeders.first()?)?;
                Some(first.columns().into_sources_of(&node.columns()))
            }
        }
    }

    fn content(&self, node: &Node, sources: Option<&KeyAndValue>) -> StoredTable {
        let columns = node.columns();
        let shape = sources.map_or_else(|| columns.source(), |sources| columns.content(sources));
        self.stored(shape, node, |entry| &entry.content)
    }

    fn mappings(&self, node: &Node, sources: Option<&KeyAndValue>) -> StoredTable {
        let columns = node.columns();
        let shape = columns.mappings(sources.unwrap_or(&columns));
        self.stored(shape, node, |entry| &entry.mappings)
    }

    fn stored(
        &self,
        shape: TableShape,
        node: &Node,
        runs: fn(&NodeEntry) -> &Vec<StoredRun>,
    ) -> StoredTable {
        StoredTable {
            store: self.pipeline.store().clone(),
            folder: self.pipeline.root().to_owned(),
            shape,
            runs: match self.rebuilds.get(node.name()) {
                Some(Rebuild::Replace) => Vec::new(),
                _ => self.base_runs(node, runs).to_vec(),
            },
            memory_bytes: self.memory_bytes / 32,
            cancel: self.cancel.clone(),
        }
    }

    fn base_runs(&self, node: &Node, runs: fn(&NodeEntry) -> &Vec<StoredRun>) -> &[StoredRun] {
        let stored = self.base.node(node.name());
        stored.map(runs).map_or(&[], Vec::as_slice)
    }

    /// Writes what was computed, all runs at once.
    pub(super) async fn write(
        &self,
        mut computed: Computed,
        consumed: &BTreeMap<String, ConsumedStep>,
    ) -> Result<(Vec<NodeChange>, Vec<NodeReport>)> {
        let mut writes = Vec::new();
        for node in self.graph.nodes() {
            let deltas = computed.remove(node.name());
            writes.push(self.write_node(node, deltas, consumed));
        }
        // All of them end, also after an error: what is written is known then, and can be removed.
        let written: Result<Vec<_>> = join_all(writes).await.into_iter().collect();
        Ok(written?.into_iter().unzip())
    }

    async fn write_node(
        &self,
        node: &Node,
        deltas: Option<NodeDeltas>,
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
        if self.rebuilds.get(node.name()) == Some(&Rebuild::Replace) {
            let ids = |runs: &[StoredRun]| runs.iter().map(|run| run.id.clone()).collect();
            change.content.replaced = ids(self.base_runs(node, |entry| &entry.content));
            change.mappings.replaced = ids(self.base_runs(node, |entry| &entry.mappings));
        }
        let Some(deltas) = deltas else {
            return Ok((change, report));
        };
        change.entry.state = deltas.state.clone().or(change.entry.state);
        let sources = self.sources_of(node);
        let content = self.content(node, sources.as_ref());
        let mappings = self.mappings(node, sources.as_ref());
        let update = async {
            if deltas.mappings.is_none() {
                return Ok(None);
            }
            let rows = deltas.changed.read().map_err(to_error)?;
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
        change.update = update?;
        report.keys_in = deltas.keys_in;
        report.rows_out = deltas.rows_out;
        report.keys_out = deltas.changed.rows();
        for run in [&change.content.run, &change.mappings.run, &change.update]
            .into_iter()
            .flatten()
        {
            report.files_written += run.files.files.len() as u64;
            report.bytes_written += run.size_bytes();
        }
        Ok((change, report))
    }

    /// Writes the rows that a table gets, together with those of its newest runs if these are small.
    async fn write_delta(&self, table: &StoredTable, delta: Option<&Delta>) -> Result<NewRun> {
        let Some(delta) = delta.filter(|delta| delta.rows.rows() > 0) else {
            return Ok(NewRun::default());
        };
        let sizes: Vec<u64> = table.runs.iter().map(StoredRun::size_bytes).collect();
        let count = runs_to_merge(&sizes, delta.rows.bytes() as u64);
        let layer = Some(delta.layer(table.shape.schema.fields().len())?);
        let (rows, has_deletes) = {
            let table = table.clone();
            run_blocking(move || table.merge_newest(layer, count)).await?
        };
        Ok(NewRun {
            replaced: table.runs[..count]
                .iter()
                .map(|run| run.id.clone())
                .collect(),
            run: self.writer.write(rows, &table.shape, has_deletes).await?,
        })
    }
}
