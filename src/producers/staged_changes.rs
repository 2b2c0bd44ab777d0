//! Changes of a source that other processes sort in parts, as runs in the store that nothing names.
//!
//! [`stage_rows`] sorts a part of the rows, in any process, writes them as a run and returns a message. An update takes
//! the messages of all parts (`StagedChanges`) and merges their rows. No version ever names these runs:
//! [`discard_rows`] removes them, or else a vacuum, after which an update with them fails with
//! [`ErrorKind::TransactionExpired`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Pipeline;
use super::format::PipelineManifest;
use super::functions::Rows;
use super::graph::SourceNode;
use super::input::{
    ChangeScope, Changes, PushedRows, SourceChanges, of_source, order_of_rows, shape_of, sort_rows,
};
use super::layers::{merge_streams, to_error};
use super::lookup::{Keys, StoredTable};
use super::runs::{RunSizes, RunWriter, SampledRun};
use super::tables::TableShape;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{SortColumn, SortKeys, Spill, run_blocking};
use crate::parquet::Cancel;
use crate::versions::{pack_message, remove, unpack_message, unpack_messages};

/// Rows that were staged.
#[derive(Debug, Serialize, Deserialize)]
struct StagedRows {
    run: Option<SampledRun>,
    /// The version in the names of its files.
    base_version: u64,
    /// Whether the rows of a key are in the order of their values.
    is_canonical: bool,
}

/// How rows are staged.
#[derive(Debug, Clone, Copy)]
pub struct StageOptions {
    /// Whether they are keys alone.
    pub is_keys: bool,
    /// Whether the rows of a key are sorted by their values. Rows that are staged in parts have no other order.
    pub is_canonical: bool,
    /// The limit of the memory that it takes, in bytes.
    pub memory_limit_bytes: usize,
    /// The sizes of the run.
    pub sizes: RunSizes,
    /// The number of threads that encode; None for one per processor.
    pub threads: Option<usize>,
}

/// Sorts rows that are pushed to a source, or keys of it, and writes them as a run that nothing names. Returns a message
/// for [`PushedRows::Staged`].
pub async fn stage_rows(
    pipeline: &Pipeline,
    source: &SourceNode,
    rows: Rows,
    options: StageOptions,
) -> Result<Vec<u8>> {
    let cancel = Cancel::default();
    let _stop_thread = cancel.guard();
    let columns = if options.is_keys { 1 } else { 2 };
    let memory_bytes = options.memory_limit_bytes;
    let is_canonical = options.is_canonical;
    let shape = shape_of(source);
    let base_version = match pipeline.find_newest().await? {
        Some(newest) => newest.manifest.version,
        None => 0,
    };
    let writer = RunWriter::new(pipeline, base_version, options.sizes, memory_bytes)?
        .with_threads(options.threads);
    let sorted = {
        let (source, cancel) = (source.clone(), cancel.clone());
        run_blocking(move || sort_rows(&source, rows, columns, is_canonical, memory_bytes, &cancel))
    };
    let sorted = sorted.await.map_err(|e| of_source(source, e))?;
    let shape = if options.is_keys {
        shape.first_columns(1)
    } else {
        shape
    };
    let rows = sorted.read().map_err(to_error)?;
    let message = writer.write(rows, &shape, false).await.and_then(|run| {
        pack_message(&StagedRows {
            run,
            base_version,
            is_canonical,
        })
    });
    if message.is_err() {
        remove(pipeline, &writer.take_written()).await;
    }
    message
}

/// Removes staged rows, which no version names.
pub async fn discard_rows(pipeline: &Pipeline, messages: &[Vec<u8>]) -> Result<()> {
    let mut names: Vec<String> = Vec::new();
    for message in messages {
        let rows: StagedRows = unpack_message(message)?;
        if let Some(written) = &rows.run {
            names.extend(written.run.file_names());
        }
    }
    remove(pipeline, &names).await;
    Ok(())
}

/// Changes of a source, of which the rows are sorted in parts.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StagedChanges {
    pub(super) upserts: Vec<SampledRun>,
    pub(super) deletes: Vec<SampledRun>,
    pub(super) scope: ChangeScope,
    /// Whether the rows of a key are in the order of their values.
    is_canonical: bool,
    /// The oldest version in the names of the files.
    pub(super) base_version: u64,
}

impl StagedChanges {
    pub(super) fn new(changes: Changes) -> Result<Self> {
        let unpack = |rows: Option<PushedRows>| -> Result<Vec<StagedRows>> {
            match rows {
                None => Ok(Vec::new()),
                Some(PushedRows::Staged(messages)) => unpack_messages(&messages),
                Some(PushedRows::Stream(_)) => Err(Error::invalid(
                    "stage the upserts and the deletes, or none of both",
                )),
            }
        };
        let (upserts, deletes) = (unpack(changes.upserts)?, unpack(changes.deletes)?);
        let is_canonical = upserts.iter().all(|rows| rows.is_canonical);
        let versions = upserts.iter().chain(&deletes).map(|rows| rows.base_version);
        let base_version = versions.min().unwrap_or(u64::MAX);
        let runs = |rows: Vec<StagedRows>| rows.into_iter().filter_map(|rows| rows.run).collect();
        Ok(Self {
            upserts: runs(upserts),
            deletes: runs(deletes),
            scope: changes.scope,
            is_canonical,
            base_version,
        })
    }

    /// Fails with [`ErrorKind::TransactionExpired`] if a vacuum may have removed the rows; `newest` is the pipeline.
    pub(super) fn check_retained(&self, newest: &PipelineManifest) -> Result<()> {
        if self.base_version >= newest.gc_floor {
            return Ok(());
        }
        let message = "a vacuum removed the rows that were staged for the update; push them again";
        Err(Error::new(ErrorKind::TransactionExpired, message))
    }

    /// Forgets the samples of the runs, which tasks do not need.
    pub(super) fn drop_samples(&mut self) {
        for run in self.upserts.iter_mut().chain(&mut self.deletes) {
            run.sample.clear();
        }
    }

    /// The runs.
    pub(super) fn runs(&self) -> impl Iterator<Item = &SampledRun> {
        self.upserts.iter().chain(&self.deletes)
    }

    /// The size of the runs in bytes.
    pub(super) fn size_bytes(&self) -> u64 {
        self.runs().map(|run| run.run.size_bytes()).sum()
    }

    /// The changes of the keys in a range.
    pub(super) fn gather(
        &self,
        source: &SourceNode,
        table: &StoredTable,
        keys: Keys<'_>,
        memory_bytes: usize,
    ) -> Result<SourceChanges> {
        let shape = &table.shape;
        let gather = |runs: &[SampledRun], shape: TableShape, order: &[SortColumn]| {
            let table = StoredTable {
                shape: shape.clone(),
                ..table.clone()
            };
            let streams = runs.iter().map(|run| table.read_run(&run.run, keys));
            let order = Arc::new(SortKeys::new(&shape.schema, order)?);
            let rows = merge_streams(streams, &shape.schema, &order, memory_bytes / 64)?;
            Spill::collect(&shape.schema, rows, memory_bytes / 16).map_err(to_error)
        };
        let upserts = gather(
            &self.upserts,
            shape.clone(),
            &order_of_rows(shape, self.is_canonical),
        )?;
        let deletes = gather(
            &self.deletes,
            shape.first_columns(1),
            &shape.sort_columns(1),
        )?;
        SourceChanges::from_sorted(source, upserts, &deletes, self.scope, memory_bytes)
    }
}

/// Changes of a source, before they are compared with its rows.
#[derive(Debug, Clone)]
pub(super) enum SourceInput {
    Sorted(SourceChanges),
    Staged(StagedChanges),
}

impl SourceInput {
    /// Reads changes, or the messages of those that are staged.
    pub(super) fn read(
        source: &SourceNode,
        changes: Changes,
        memory_bytes: usize,
        cancel: &Cancel,
    ) -> Result<Self> {
        if changes.scope == ChangeScope::All && changes.deletes.is_some() {
            let message =
                "deletes are not needed beside all rows: keys that are not among them are deleted";
            return Err(of_source(source, Error::invalid(message)));
        }
        let is_staged = |rows: &Option<PushedRows>| matches!(rows, Some(PushedRows::Staged(_)));
        if is_staged(&changes.upserts) || is_staged(&changes.deletes) {
            return StagedChanges::new(changes).map(Self::Staged);
        }
        let is_canonical = changes.is_canonical;
        let sorted = |rows: Option<PushedRows>, columns: usize| {
            if let Some(PushedRows::Stream(rows)) = rows {
                return sort_rows(source, rows, columns, is_canonical, memory_bytes, cancel);
            }
            let kept: Vec<usize> = (0..columns).collect();
            let schema = shape_of(source).schema.project(&kept).map_err(to_error)?;
            Spill::collect(&Arc::new(schema), [], 0).map_err(to_error)
        };
        let upserts = sorted(changes.upserts, 2).map_err(|e| of_source(source, e))?;
        let deletes = sorted(changes.deletes, 1).map_err(|e| of_source(source, e))?;
        SourceChanges::from_sorted(source, upserts, &deletes, changes.scope, memory_bytes)
            .map(Self::Sorted)
    }

    /// Whether nothing is pushed.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Sorted(changes) => changes.is_empty(),
            Self::Staged(changes) => {
                changes.scope != ChangeScope::All && changes.runs().next().is_none()
            }
        }
    }
}
