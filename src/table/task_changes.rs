//! Changes of rows of which many processes find and write parts and one commits them.
//!
//! A process gets a scan task and finds what a delete, an upsert or a merge changes in its files ([`find_deletes`],
//! [`find_upserts`], [`merge_task`], [`insert_task`]); new rows it uploads as files that no version names. The rows of
//! an upsert and the source of a merge are files that other processes staged ([`super::staged`]): each task reads those
//! whose keys it searches. One process commits all parts as one version ([`super::task_commit`]).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

use super::actions::NewTable;
use super::clauses::MergeRules;
use super::file_matches::FileRows;
use super::findings::{self, CONCURRENT_FILES};
use super::format::{DataFile, FileShare, PositionBitmap, TableManifest};
use super::keys::resolve_match_columns;
use super::merge_rows::{MergeContext, merge_file};
use super::opened_columns::OpenedColumns;
use super::packed_task::pack;
use super::scan::scan;
use super::scan_tasks::without_files;
use super::snapshot_reader::SnapshotReader;
use super::write::{TableWriteOptions, upload};
use super::{Predicate, Table, TableColumns};
use crate::error::{Error, Result};
use crate::files::expr::{Filter, KeySet};
use crate::files::{ScanOptions, align_to_schema, run_blocking};

/// What a task changes in its files, and the files that it wrote.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TaskChange {
    /// How many files the task has compared with keys of a source, of which other tasks may have other keys.
    pub(super) searched_files: usize,
    /// What a task without a source has searched; a whole file is its only share.
    pub(super) searched_shares: Vec<(String, FileShare)>,
    pub(super) deletes: Vec<FileRows>,
    /// Paths of files with rows that matched and stay: without them other rows would be inserted.
    pub(super) matched_files: Vec<String>,
    /// The rows of the source that matched a row of the task's files.
    pub(super) matched_source_rows: PositionBitmap,
    /// The rows of the task's files that these matched, if the rows without a match are changed by others.
    pub(super) matched_rows: Vec<FileRows>,
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

/// The rows of some files that match rows of a source.
#[derive(Debug, Serialize, Deserialize)]
pub struct MatchedTableRows(Vec<FileRows>);

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

/// How many files some tasks have searched; one that was in shares only if each of these was searched once: a task that
/// comes twice does not make up for one that is missing.
pub(super) fn count_searches(changes: &[TaskChange]) -> usize {
    let mut shares: BTreeMap<&str, (RoaringBitmap, usize, u32)> = BTreeMap::new();
    for (path, share) in changes.iter().flat_map(|change| &change.searched_shares) {
        let (indices, times, count) = shares.entry(path).or_default();
        indices.insert(share.index);
        *times += 1;
        *count = share.count;
    }
    let is_whole = |(indices, times, count): &(RoaringBitmap, usize, u32)| {
        indices.len() == u64::from(*count) && *times as u64 == indices.len()
    };
    let whole_shares = shares.values().filter(|shares| is_whole(shares)).count();
    let files = changes.iter().map(|change| change.searched_files);
    files.sum::<usize>() + whole_shares
}

/// Finds the rows of a task's files, or of its shares of files, that match a predicate.
pub async fn find_deletes(
    table: &Table,
    task: Arc<TableManifest>,
    predicate: &Predicate,
) -> Result<TaskChange> {
    let columns = TableColumns::from_manifest(&task)?;
    let filter = Arc::new(predicate.bind(&columns, &**table.store().clock())?);
    let whole = FileShare { index: 0, count: 1 };
    let share_of = |path: &String| task.shares.get(path).copied().unwrap_or(whole);
    let paths = task.data_files.iter().map(|file| &file.path);
    let searched_shares = paths.map(|path| (path.clone(), share_of(path))).collect();
    let reader = SnapshotReader::new(table, task, Some(filter)).await?;
    Ok(TaskChange {
        searched_shares,
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

/// Checks a merge into the files of a task, whose columns go by the caller's names, as [`super::merge`] does: what the
/// clauses compute may be something else since columns changed their types. Of the source only the columns are needed.
pub fn check_merge(
    opened: &OpenedColumns,
    task: &TableManifest,
    source: &TableManifest,
    rules: MergeRules<'_>,
) -> Result<()> {
    let source = RecordBatch::new_empty(TableColumns::from_manifest(source)?.schema);
    let context = opened.bind(task, |task| MergeContext::new(task, &source, rules))?;
    opened.check_types(&context.find_columns_of_expressions(), task)
}

/// Merges rows of `source` into the files of a task, by the clauses of rows that match and, if there are some, of rows
/// that the source does not have: then it must be the whole source. If `reports_matches`, [`unmatched_task`] can be run
/// for the rows that no part of the source has.
pub async fn merge_task(
    table: &Table,
    task: Arc<TableManifest>,
    source: Arc<TableManifest>,
    rules: MergeRules<'_>,
    reports_matches: bool,
    options: &TableWriteOptions,
) -> Result<TaskChange> {
    let source = read_source(table, source).await?;
    let mut context = MergeContext::new(&task, &source, rules)?;
    context.reports_matches = reports_matches;
    merge_files(table, task, context, options).await
}

/// Changes the rows of a task's files that no row of the source matches, by the clauses about those; `matched` are the
/// others. Of the source only the columns are needed.
pub async fn unmatched_task(
    table: &Table,
    task: Arc<TableManifest>,
    source: &TableManifest,
    rules: MergeRules<'_>,
    matched: MatchedTableRows,
    options: &TableWriteOptions,
) -> Result<TaskChange> {
    let source = RecordBatch::new_empty(TableColumns::from_manifest(source)?.schema);
    let mut context = MergeContext::new(&task, &source, rules)?;
    let matched = matched.0.into_iter();
    context.others = matched.map(|rows| (rows.path.clone(), rows)).collect();
    merge_files(table, task, context, options).await
}

async fn merge_files(
    table: &Table,
    task: Arc<TableManifest>,
    context: MergeContext,
    options: &TableWriteOptions,
) -> Result<TaskChange> {
    let context = Arc::new(context);
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
        if !output.matched_rows.is_empty() {
            let matched = FileRows::of_groups(path.clone(), output.matched_rows);
            change.matched_rows.push(matched);
        }
        let rows = output.matches.into_rows(path.clone(), false);
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

/// The rows of the table that matched in some of the tasks, for each [`unmatched_task`] those of its files.
pub fn matched_table_rows(
    changes: Vec<TaskChange>,
    tasks: &[TableManifest],
) -> Vec<MatchedTableRows> {
    let mut by_path: BTreeMap<String, FileRows> = BTreeMap::new();
    for rows in changes.into_iter().flat_map(|change| change.matched_rows) {
        match by_path.entry(rows.path.clone()) {
            Entry::Vacant(entry) => drop(entry.insert(rows)),
            // Rows that match twice are refused by the commit if they are changed.
            Entry::Occupied(mut entry) => drop(entry.get_mut().add(rows)),
        }
    }
    let of_task = |task: &TableManifest| {
        let files = task.data_files.iter();
        MatchedTableRows(
            files
                .filter_map(|file| by_path.remove(&file.path))
                .collect(),
        )
    };
    tasks.iter().map(of_task).collect()
}
