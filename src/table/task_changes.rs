//! Changes of rows of which many processes find and write parts and one commits them.
//!
//! A process gets a scan task and finds what a delete, an upsert or a merge changes in its files ([`find_deletes`],
//! [`find_upserts`], [`merge_task`], [`insert_task`]); new rows it uploads as files that no version names. The rows of an
//! upsert and the source of a merge are files that other processes staged ([`super::staged`]): each task reads those
//! whose keys it searches. One process commits all parts as one version ([`super::task_commit`]).

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

use super::actions::NewTable;
use super::clauses::MergeRules;
use super::findings::{self, CONCURRENT_FILES, FileRows};
use super::format::{DataFile, PositionBitmap, TableManifest};
use super::keys::resolve_match_columns;
use super::merge_rows::{MergeContext, merge_file};
use super::scan::{ScanOptions, scan};
use super::scan_tasks::{pack, without_files};
use super::snapshot_reader::SnapshotReader;
use super::write::{TableWriteOptions, upload};
use super::{Predicate, Table, TableColumns};
use crate::error::{Error, Result};
use crate::files::expr::{Filter, KeySet};
use crate::files::{align_to_schema, run_blocking};

/// What a task changes in its files, and the files that it wrote.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TaskChange {
    /// How many files the task has.
    pub(super) searched_files: usize,
    pub(super) deletes: Vec<FileRows>,
    /// Paths of files with rows that matched and stay: without them other rows would be inserted.
    pub(super) matched_files: Vec<String>,
    /// The rows of the source that matched a row of the task's files.
    pub(super) matched_source_rows: PositionBitmap,
    pub(super) added: Vec<DataFile>,
    pub(super) updated: u64,
    pub(super) inserted: u64,
}

impl TaskChange {
    /// The files that the task wrote.
    pub fn files(&self) -> &[DataFile] {
        &self.added
    }
}

/// What a process needs to stage the rows of a merge's source: a scan task without files and with the source's columns.
pub fn source_task(manifest: &TableManifest, source: &SchemaRef) -> Result<Vec<u8>> {
    let columns = NewTable::new(source, &[], &[])?;
    pack(&TableManifest {
        schema: columns.schema,
        arrow_schema: columns.arrow_schema,
        key: Vec::new(),
        sort_by: Vec::new(),
        ..without_files(manifest)
    })
}

/// Finds the rows of a task's files that match a predicate.
pub async fn find_deletes(
    table: &Table,
    task: Arc<TableManifest>,
    predicate: &Predicate,
) -> Result<TaskChange> {
    let columns = TableColumns::from_manifest(&task)?;
    let filter = Arc::new(predicate.bind(&columns, &**table.store().clock())?);
    let searched_files = task.data_files.len();
    let reader = SnapshotReader::new(table, task, Some(filter)).await?;
    Ok(TaskChange {
        searched_files,
        deletes: findings::find_rows(&reader).await?,
        ..TaskChange::default()
    })
}

/// Finds the rows of a task's files that have the key of a row of `source`. No two rows of that may have the same key.
pub async fn find_upserts(
    table: &Table,
    task: Arc<TableManifest>,
    source: Arc<TableManifest>,
    on: Option<&[String]>,
) -> Result<TaskChange> {
    let columns = TableColumns::from_manifest(&source)?;
    let positions = resolve_match_columns(on, &source, &columns)?;
    let names: Vec<String> = positions
        .iter()
        .map(|at| columns.schema.field(*at).name())
        .cloned()
        .collect();
    let mut keys = KeySet::new(&columns, &positions)?;
    let options = ScanOptions {
        columns: Some(names),
        ..ScanOptions::default()
    };
    let mut batches = scan(table, source, options).await?;
    while let Some(batch) = batches.next().await {
        keys.add(batch?.columns())?;
    }
    let searched_files = task.data_files.len();
    let mut deletes = Vec::new();
    if !keys.is_empty() && searched_files > 0 {
        let filter = Filter::from_keys(Arc::new(keys), &TableColumns::from_manifest(&task)?)?;
        let reader = SnapshotReader::new(table, task, Some(Arc::new(filter))).await?;
        deletes = findings::find_rows(&reader).await?;
    }
    Ok(TaskChange {
        searched_files,
        deletes,
        ..TaskChange::default()
    })
}

/// Merges rows of `source` into the files of a task, by the clauses of rows that match and, if there are some, of rows
/// that the source does not have: then it must be the whole source.
pub async fn merge_task(
    table: &Table,
    task: Arc<TableManifest>,
    source: Arc<TableManifest>,
    rules: MergeRules<'_>,
    options: &TableWriteOptions,
) -> Result<TaskChange> {
    let source = read_source(table, source).await?;
    let context = Arc::new(MergeContext::new(&task, &source, rules)?);
    let mut change = TaskChange {
        searched_files: task.data_files.len(),
        ..TaskChange::default()
    };
    if context.key_filter.is_some() && context.keys.is_empty() {
        return Ok(change);
    }
    let filter = context.key_filter.clone();
    let reader = Arc::new(SnapshotReader::new(table, Arc::clone(&task), filter).await?);
    // A Vec, because the future of the iterator itself would not be Send.
    let files: Vec<_> = (0..reader.files.len())
        .map(|file| merge_file(&context, &reader, file))
        .collect();
    let mut outputs = stream::iter(files).buffered(CONCURRENT_FILES);
    let mut batches = Vec::new();
    for listed in &reader.files {
        let Some(output) = outputs.try_next().await? else {
            break;
        };
        let path = listed.file.path.clone();
        let rows = output.matches.into_rows(path.clone());
        if !rows.is_empty() {
            change.deletes.push(rows);
        } else if !output.matched_source_rows.is_empty() {
            change.matched_files.push(path);
        }
        change.matched_source_rows.0 |= output.matched_source_rows;
        change.updated += output.updated;
        batches.extend(output.batches);
    }
    drop(outputs);
    change.added = upload_batches(table, &task, batches, options).await?;
    Ok(change)
}

/// Inserts rows of `source`, as the clauses of rows without a match say. Those at positions in `matched` have one.
pub async fn insert_task(
    table: &Table,
    base: &TableManifest,
    source: Arc<TableManifest>,
    rules: MergeRules<'_>,
    matched: PositionBitmap,
    options: &TableWriteOptions,
) -> Result<TaskChange> {
    let source = read_source(table, source).await?;
    let context = MergeContext::new(base, &source, rules)?;
    let output = run_blocking(move || context.insert_unmatched(&matched.0)).await?;
    Ok(TaskChange {
        inserted: output.written_rows,
        added: upload_batches(table, base, output.batches, options).await?,
        ..TaskChange::default()
    })
}

/// Reads the files of a source as one batch.
async fn read_source(table: &Table, source: Arc<TableManifest>) -> Result<RecordBatch> {
    let schema = TableColumns::from_manifest(&source)?.schema;
    let mut stream = scan(table, source, ScanOptions::default()).await?;
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    run_blocking(move || {
        concat_batches(&schema, &batches).map_err(|e| {
            let message = format!("rows of the source do not fit in one batch: {e}");
            Error::invalid(message).with_source(e)
        })
    })
    .await
}

async fn upload_batches(
    table: &Table,
    base: &TableManifest,
    batches: Vec<RecordBatch>,
    options: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    let Some(schema) = batches.first().map(RecordBatch::schema) else {
        return Ok(Vec::new());
    };
    let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
    let file_schema = TableColumns::from_manifest(base)?.schema;
    let input = align_to_schema(Box::new(reader), &file_schema)?;
    upload(table, base, input, options).await
}

/// The rows of a source that matched a row of the table in some of the tasks.
pub fn matched_source_rows(changes: &[TaskChange]) -> PositionBitmap {
    let all = changes.iter().map(|change| &change.matched_source_rows.0);
    PositionBitmap(all.fold(RoaringBitmap::new(), |mut all, rows| {
        all |= rows;
        all
    }))
}
