//! Reading the tables of a pipeline at a version.
//!
//! This is for callers; updates use `lookup`. Columns have the types that were declared, and those that only pds needs
//! are left out. Keys may come in any order. If a vacuum removes a run while it is read, the error is `VersionExpired`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_schema::{Field, Schema, SchemaRef};

use super::Pipeline;
use super::cursor::Cursor;
use super::diff::{distinct, keys_only};
use super::feeders::WithKeys;
use super::format::{NodeEntry, PipelineManifest, StoredRun};
use super::functions::Rows;
use super::keys::{normalize, retype};
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable};
use super::source_keys::{SOURCE_KEY, plain_source_keys};
use super::tables::{KeyAndValue, SourceKeys, TableShape};
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::files::{BatchStream, SortedBatches, Spill, run_blocking, sort_batches};
use crate::parquet::Cancel;
use crate::versions::Versioned;

/// A table of a source or stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableName {
    /// The content of a stage (`target_key`, `source_key`, `value`), or the rows of a source (`key`, `value`).
    Content,
    /// The key mappings of a stage (`source_key`, `target_key`).
    KeyMappings,
}

/// A stored source or stage, and what it takes to read it.
#[derive(Debug, Clone)]
pub(super) struct StoredNode {
    pub(super) entry: NodeEntry,
    pub(super) columns: KeyAndValue,
    /// Its source keys; None for a source.
    sources: Option<SourceKeys>,
    pipeline: Pipeline,
    memory_bytes: usize,
    /// Ends the reading.
    pub(super) cancel: Cancel,
}

impl StoredNode {
    /// Fails with [`ErrorKind::NotFound`] if the version has no such source or stage.
    pub(super) fn find(
        pipeline: &Pipeline,
        manifest: &PipelineManifest,
        name: &str,
        memory_bytes: usize,
    ) -> Result<Self> {
        let find = |name: &str| {
            let entry = manifest.find_node(name);
            entry.map_err(|e| e.with_path(pipeline.root()))
        };
        let entry = find(name)?;
        let feeders = entry
            .feeders
            .iter()
            .map(|name| find(name))
            .map(|feeder| KeyAndValue::from_entry(feeder?))
            .collect::<Result<Vec<_>>>()?;
        let is_nullable = feeders.iter().any(|feeder| feeder.key.is_nullable());
        let columns = KeyAndValue::from_entry(entry)?;
        let sources = feeders.into_iter().next().map(|feeder| {
            let feeder = KeyAndValue {
                key: feeder.key.clone().with_nullable(is_nullable),
                ..feeder
            };
            columns.source_keys(&feeder)
        });
        Ok(Self {
            entry: entry.clone(),
            columns,
            sources,
            pipeline: pipeline.clone(),
            memory_bytes,
            cancel: Cancel::default(),
        })
    }

    pub(super) fn table(&self, shape: TableShape, runs: &[StoredRun]) -> StoredTable {
        StoredTable {
            store: self.pipeline.store().clone(),
            folder: self.pipeline.root().to_owned(),
            shape,
            runs: runs.to_vec(),
            memory_bytes: self.memory_bytes / 16,
            cancel: self.cancel.clone(),
        }
    }

    /// The table, and the fields of its columns as they were declared.
    pub(super) fn open(&self, table: TableName) -> Result<(StoredTable, SchemaRef)> {
        let own = &self.columns;
        let named = |field: &Field, name: &str| field.clone().with_name(name);
        let (shape, runs, fields) = match (table, &self.sources) {
            (TableName::Content, None) => (
                own.source(),
                &self.entry.content,
                vec![named(&own.key, "key"), named(&own.value, "value")],
            ),
            (TableName::Content, Some(sources)) => (
                own.content(sources),
                &self.entry.content,
                vec![
                    named(&own.key, "target_key"),
                    named(&sources.key, "source_key"),
                    named(&own.value, "value"),
                ],
            ),
            (TableName::KeyMappings, Some(sources)) => (
                own.mappings(sources),
                &self.entry.mappings,
                vec![
                    named(&sources.key, "source_key"),
                    named(&own.key, "target_key"),
                ],
            ),
            (TableName::KeyMappings, None) => {
                let name = &self.entry.name;
                return Err(Error::invalid(format!(
                    "{name:?} is a source; it has no key mappings"
                )));
            }
        };
        Ok((self.table(shape, runs), Arc::new(Schema::new(fields))))
    }

    /// The changed keys of the version, in the order of the key.
    pub(super) fn update(&self) -> Result<SortedBatches> {
        let shape = self.columns.update();
        self.table(shape, self.entry.update.as_slice())
            .read(Keys::All, 2)
    }
}

/// The columns of a table as they were declared; the first one is the key that [`read`] looks up.
pub fn schema(
    pipeline: &Pipeline,
    manifest: &PipelineManifest,
    name: &str,
    table: TableName,
) -> Result<SchemaRef> {
    let node = StoredNode::find(pipeline, manifest, name, 0)?;
    Ok(node.open(table)?.1)
}

/// Streams the rows of a table in its order; those of some keys, if they are given: target keys of a content, keys of a
/// source, source keys of key mappings.
pub fn read(
    pipeline: &Pipeline,
    manifest: &PipelineManifest,
    name: &str,
    table: TableName,
    keys: Option<Rows>,
    memory_bytes: usize,
) -> Result<BatchStream> {
    let node = StoredNode::find(pipeline, manifest, name, memory_bytes)?;
    let has_order = node.columns.order_by.is_some();
    let of_join =
        table == TableName::KeyMappings && node.columns.source_key.is_some() && !has_order;
    let is_ordered = table == TableName::Content && has_order;
    let content = of_join.then(|| node.open(TableName::Content)).transpose()?;
    let (table, schema) = node.open(table)?;
    let declared = Arc::clone(&schema);
    let versions = [manifest.retained_version()];
    let read_from = (pipeline, manifest, versions.as_slice());
    Ok(stream(schema, read_from, &node.cancel, move || {
        let columns = table.shape.visible;
        let keys = keys
            .map(|keys| sort_keys(keys, &table.shape, memory_bytes))
            .transpose()?;
        let rows = match content {
            Some((content, _)) => {
                mappings_of_join(&content, &table.shape, keys.as_ref(), memory_bytes)?
            }
            None => table.read(keys.as_ref().map_or(Keys::All, Keys::Of), columns)?,
        };
        let rows = if is_ordered {
            without_order(rows)
        } else {
            rows
        };
        Ok(as_declared(rows, declared))
    }))
}

/// The rows of a content whose values are in an order, with the plain source keys.
fn without_order(rows: SortedBatches) -> SortedBatches {
    Box::new(rows.map(|batch| {
        let batch = batch?;
        let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
        for (name, column) in ["target_key", SOURCE_KEY, "value"]
            .into_iter()
            .zip(batch.columns())
        {
            let is_source = name == SOURCE_KEY;
            let column = if is_source {
                plain_source_keys(column)?
            } else {
                Arc::clone(column)
            };
            columns.push((name, column));
        }
        RecordBatch::try_from_iter(columns)
    }))
}

/// The key mappings of a join, which stores none: those of its rows.
fn mappings_of_join(
    content: &StoredTable,
    shape: &TableShape,
    keys: Option<&Spill>,
    memory_bytes: usize,
) -> Result<SortedBatches> {
    let schema = Arc::clone(&shape.schema);
    let pairs = content.read(Keys::All, 2)?.map({
        let schema = Arc::clone(&schema);
        move |batch| {
            let batch = batch?;
            let columns = [1, 0].map(|at| Arc::clone(batch.column(at)));
            RecordBatch::try_new(Arc::clone(&schema), columns.into())
        }
    });
    let pairs: Rows = Box::new(RecordBatchIterator::new(pairs, schema));
    let sorted = sort_batches(pairs, &shape.sort_columns(2), memory_bytes / 4)?;
    let rows = keys_only(&distinct(Box::new(sorted), shape, 2, 0, memory_bytes / 16)?)?;
    let Some(keys) = keys else {
        return Ok(rows);
    };
    let order = shape.keys(1)?;
    let keys = Cursor::new(keys_only(keys)?, &order).map_err(to_error)?;
    Ok(Box::new(WithKeys { rows, keys, order }))
}

/// Keys from a caller, which may be in any order, as they are looked up.
fn sort_keys(keys: Rows, shape: &TableShape, memory_bytes: usize) -> Result<Spill> {
    let stored = Arc::new(shape.schema.project(&[0]).map_err(to_error)?);
    let field = stored.field(0).clone();
    if keys.schema().fields().len() != 1 {
        return Err(Error::invalid("keys are one column"));
    }
    let target = Arc::clone(&stored);
    let batches = keys.map(move |batch| {
        let column = retype(batch?.column(0), field.data_type()).map_err(to_arrow)?;
        RecordBatch::try_new(Arc::clone(&target), vec![normalize(&column)])
    });
    let input: Rows = Box::new(RecordBatchIterator::new(batches, stored));
    let sorted = sort_batches(input, &shape.sort_columns(1), memory_bytes / 4)?;
    distinct(Box::new(sorted), shape, 1, 0, memory_bytes / 16)
}

/// The rows with the types that were declared.
pub(super) fn as_declared(rows: SortedBatches, schema: SchemaRef) -> SortedBatches {
    Box::new(rows.map(move |batch| {
        let batch = batch?;
        let columns: Result<Vec<ArrayRef>> = batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| retype(column, field.data_type()))
            .collect();
        let columns = columns.map_err(|e| to_arrow(as_corrupted(&e)))?;
        RecordBatch::try_new(Arc::clone(&schema), columns)
    }))
}

fn as_corrupted(e: &Error) -> Error {
    corrupted_error("a run", &e.to_string())
}

/// Streams what a function gives that reads versions of a pipeline, the last of them by its manifest, and computes in a
/// thread.
pub(super) fn stream(
    schema: SchemaRef,
    (pipeline, manifest, versions): (&Pipeline, &PipelineManifest, &[u64]),
    cancel: &Cancel,
    rows: impl FnOnce() -> Result<SortedBatches> + Send + 'static,
) -> BatchStream {
    let (pipeline, versions) = (pipeline.clone(), versions.to_vec());
    let preview_base = manifest.preview_base();
    BatchStream::spawn(schema, cancel, move |sender| async move {
        let sent = run_blocking(move || {
            for batch in rows()? {
                if sender.blocking_send(Ok(batch.map_err(to_error)?)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        match sent.await {
            Ok(()) => Ok(()),
            Err(e) => Err(any_expired_or(&pipeline, &versions, preview_base, e).await),
        }
    })
}

/// As [`expired_or`], of reading several versions: the error names one that a vacuum removed, where there is one.
/// `preview_base` is what the last one is a preview on.
async fn any_expired_or(
    pipeline: &Pipeline,
    versions: &[u64],
    preview_base: Option<u64>,
    error: Error,
) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let mut of_version = versions.last().copied();
    if let Ok(Some(newest)) = pipeline.find_newest().await {
        let header = newest.manifest.header();
        let expired = versions.iter().find(|version| !header.retains(**version));
        if let (None, Some(base)) = (expired, preview_base) {
            return preview_expired_or(pipeline, base, error).await;
        }
        of_version = expired.copied().or(of_version);
    }
    match of_version {
        Some(version) => expired_or(pipeline, version, error).await,
        None => error,
    }
}

/// As [`expired_or`], of reading a preview that was made from version `base`; 0 for none. Vacuums remove the runs that
/// it wrote whether or not that version is tagged.
pub(super) async fn preview_expired_or(pipeline: &Pipeline, base: u64, error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound
        && let Ok(Some(newest)) = pipeline.find_newest().await
        && base < newest.manifest.gc_floor
        && (base == 0 || newest.manifest.header().retains(base))
    {
        let message = "a vacuum removed rows of the preview; make another one";
        let expired = Error::new(ErrorKind::VersionExpired, message);
        return expired.with_path(pipeline.root()).with_source(error);
    }
    expired_or(pipeline, base.max(1), error).await
}

/// The error of reading a version, whose files a vacuum may have removed
/// ([`ErrorKind::VersionExpired`](crate::ErrorKind::VersionExpired)).
pub(super) async fn expired_or(pipeline: &Pipeline, version: u64, error: Error) -> Error {
    let path = error.path().unwrap_or("a run").to_owned();
    pipeline.missing_object_error(version, &path, error).await
}

/// The error of an update that was planned on a version: as [`expired_or`], also if it misses a run that nothing names.
/// Vacuums remove these whether or not the version is tagged.
pub(super) async fn removed_or(pipeline: &Pipeline, version: u64, error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound
        && let Ok(Some(newest)) = pipeline.find_newest().await
        && version < newest.manifest.gc_floor
    {
        return error.with_kind(ErrorKind::VersionExpired);
    }
    expired_or(pipeline, version, error).await
}

/// The newest snapshot of a pipeline; None if it has no version yet.
pub async fn open(pipeline: &Pipeline) -> Result<Option<Arc<PipelineManifest>>> {
    let newest = pipeline.find_newest().await?;
    Ok(newest.map(|snapshot| snapshot.manifest))
}
