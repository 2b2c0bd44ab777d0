//! Deletes, upserts and merges whose rows other processes find and one commits.
//!
//! The process that commits splits the table's files into tasks (`split_targets`). Tasks find rows, and stage new ones,
//! in any process (`find_deletes`, `find_upserts`, `merge_task`, `insert_task`, `unmatched_task`); each returns its
//! change as a message. `check_merge` tells before them what is wrong. Then the first process commits all messages at once (`commit_changes`), or removes the files
//! that they name (`discard_changes`). The callers are in `pds.table.task_changes`; what the functions do is in the
//! engine's modules `task_changes`, `change_targets` and `task_commit`.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use chrono::{DateTime, Utc};
use pds::table::format::{DataFile, PositionBitmap, TableManifest};
use pds::table::{
    self, Clause, MatchedTableRows, MergeRules, StagedSource, Table, TableWriteOptions, TaskChange,
    TaskOperation, TaskSizes, parse_scan_task, parse_task, unpack_messages,
};
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::commits::{CommitFields, PyCommitOptions, PyMergeClause, parse_clause, task_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::extract_schema;
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::staged_rows::unpack_all;
use crate::store::StoreHandle;
use crate::table_results::StagedSizeFields;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(is_key_range, module)?)?;
    module.add_function(wrap_pyfunction!(source_task, module)?)?;
    module.add_function(wrap_pyfunction!(staged_sizes, module)?)?;
    module.add_function(wrap_pyfunction!(split_targets, module)?)?;
    module.add_function(wrap_pyfunction!(find_deletes, module)?)?;
    module.add_function(wrap_pyfunction!(find_upserts, module)?)?;
    module.add_function(wrap_pyfunction!(check_merge, module)?)?;
    module.add_function(wrap_pyfunction!(merge_task, module)?)?;
    module.add_function(wrap_pyfunction!(matched_source_rows, module)?)?;
    module.add_function(wrap_pyfunction!(matched_table_rows, module)?)?;
    module.add_function(wrap_pyfunction!(unmatched_task, module)?)?;
    module.add_function(wrap_pyfunction!(insert_task, module)?)?;
    module.add_function(wrap_pyfunction!(commit_changes, module)?)?;
    module.add_function(wrap_pyfunction!(discard_changes, module)?)
}

/// A part of a table's files, with a part of the rows that are merged into it.
#[derive(FromPyObject)]
struct PyMergePart {
    /// The table's files, as a task of a scan.
    target: Vec<u8>,
    /// The columns of the source, as a task without files, and lists of its files.
    source: Vec<u8>,
    lists: Vec<Vec<u8>>,
    on: Option<Vec<String>>,
    clauses: Vec<PyMergeClause>,
    /// The time of `now()` in microseconds since 1970.
    now: i64,
    options: PyWriteOptions,
}

/// Rows that were staged to be upserted or merged.
#[derive(FromPyObject)]
struct PyStagedSource {
    /// The columns of the rows, as a task without files.
    task: Vec<u8>,
    /// For each part lists of its files.
    parts: Vec<Vec<Vec<u8>>>,
    on: Option<Vec<String>>,
    is_merge: bool,
    reads_all: bool,
}

impl PyStagedSource {
    fn parse(self) -> Result<StagedSource> {
        let parts = self.parts.iter().map(|lists| unpack_all(lists));
        Ok(StagedSource {
            task: parse_task(&self.task)?,
            parts: parts.collect::<Result<_>>()?,
            on: self.on,
            is_merge: self.is_merge,
            reads_all: self.reads_all,
        })
    }
}

/// What a part is merged by.
struct MergePart {
    target: Arc<TableManifest>,
    source: Arc<TableManifest>,
    on: Option<Vec<String>>,
    clauses: Vec<Clause>,
    now: DateTime<Utc>,
    options: TableWriteOptions,
}

impl MergePart {
    fn rules(&self) -> MergeRules<'_> {
        MergeRules {
            on: self.on.as_deref(),
            clauses: &self.clauses,
            now: self.now,
        }
    }
}

impl PyMergePart {
    fn parse(self, py: Python<'_>, threads: Option<usize>) -> PyResult<MergePart> {
        let parse = || -> Result<(TableManifest, TableManifest)> {
            let mut source = parse_task(&self.source)?;
            source.data_files = unpack_all(&self.lists)?;
            Ok((parse_task(&self.target)?, source))
        };
        let (target, source) = into_py_result(py, parse())?;
        let clauses = self
            .clauses
            .into_iter()
            .map(|clause| parse_clause(py, clause));
        Ok(MergePart {
            target: Arc::new(target),
            source: Arc::new(source),
            on: self.on,
            clauses: clauses.collect::<PyResult<_>>()?,
            now: DateTime::from_timestamp_micros(self.now).unwrap_or_default(),
            options: task_options(py, &self.options, threads)?,
        })
    }
}

pub(crate) fn open_table(py: Python<'_>, store: &StoreHandle, path: &str) -> PyResult<Table> {
    into_py_result(py, store.store().and_then(|s| Table::new(s, path)))
}

/// Packs a change as a message; removes the files of the change if that fails.
async fn pack_change(table: &Table, change: TaskChange) -> Result<Vec<u8>> {
    let message = table::pack_message(&change);
    if message.is_err() {
        table::discard_staged(table, change.files()).await;
    }
    message
}

/// Whether a delete of these rows reads none.
#[pyfunction]
fn is_key_range(
    py: Python<'_>,
    snapshot: &TableHandle,
    predicate: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let predicate = extract_predicate(predicate)?;
    let table = snapshot.table();
    into_py_result(
        py,
        table.and_then(|t| table::is_key_range(&t, &snapshot.manifest, &predicate)),
    )
}

/// What another process needs to stage rows with these columns.
#[pyfunction]
fn source_task<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    schema: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let task = table::source_task(&snapshot.manifest, &extract_schema(schema)?);
    Ok(PyBytes::new(py, &into_py_result(py, task)?))
}

/// The numbers of rows and of bytes of each list of staged files.
#[pyfunction]
fn staged_sizes(py: Python<'_>, lists: Vec<Vec<u8>>) -> PyResult<Vec<StagedSizeFields>> {
    let size = |list: Vec<u8>| {
        let files = unpack_all(&[list])?;
        let total = |value: fn(&DataFile) -> u64| files.iter().map(value).sum();
        Ok(StagedSizeFields {
            rows: total(|f| f.total_rows),
            bytes: total(|f| f.size_bytes),
        })
    };
    into_py_result(py, lists.into_iter().map(size).collect())
}

/// The files that a source is compared with.
#[derive(Debug, IntoPyObject)]
struct TargetTaskFields<'py> {
    tasks: Vec<Bound<'py, PyBytes>>,
    /// For each part of the source the positions of its tasks.
    parts: Vec<Vec<usize>>,
    /// How many files the tasks of all parts have.
    searches: usize,
}

/// Splits the files that a source is compared with into tasks.
#[pyfunction]
fn split_targets<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    source: PyStagedSource,
    count: u64,
    min_bytes: u64,
    max_bytes: u64,
    max_tasks: usize,
) -> PyResult<TargetTaskFields<'py>> {
    let table = into_py_result(py, snapshot.table())?;
    let source = into_py_result(py, source.parse())?;
    let base = Arc::clone(&snapshot.manifest);
    let sizes = TaskSizes {
        count,
        min_bytes,
        max_bytes,
    };
    let split = run(py, move || async move {
        table::split_targets(&table, base, &source, sizes, max_tasks).await
    })?;
    let tasks = split.tasks.iter().map(|task| PyBytes::new(py, task));
    Ok(TargetTaskFields {
        tasks: tasks.collect(),
        parts: split.parts,
        searches: split.searches,
    })
}

/// Finds the rows of a scan task that match a predicate; the message of it.
#[pyfunction]
fn find_deletes<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
    predicate: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let task = Arc::new(into_py_result(py, parse_scan_task(task))?);
    let predicate = extract_predicate(predicate)?;
    let message = run(py, move || async move {
        table::pack_message(&table::find_deletes(&table, task, &predicate).await?)
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Finds the rows of a part that an upsert replaces; the message of it.
#[pyfunction]
fn find_upserts<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    part: PyMergePart,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let part = part.parse(py, None)?;
    let message = run(py, move || async move {
        let on = part.on.as_deref();
        let change = table::find_upserts(&table, part.target, part.source, on).await?;
        table::pack_message(&change)
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Checks the key and the clauses of a part, whose target goes by the names of the columns of a snapshot.
#[pyfunction]
fn check_merge(py: Python<'_>, opened: &TableHandle, part: PyMergePart) -> PyResult<()> {
    let part = part.parse(py, None)?;
    let checked = table::check_merge(&opened.opened(), &part.target, &part.source, part.rules());
    into_py_result(py, checked)
}

/// Merges the rows of a part that match; the message of it.
#[pyfunction]
fn merge_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    part: PyMergePart,
    reports_matches: bool,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let part = part.parse(py, threads)?;
    let message = run(py, move || async move {
        let (target, source) = (Arc::clone(&part.target), Arc::clone(&part.source));
        let (rules, options) = (part.rules(), &part.options);
        let change = table::merge_task(&table, target, source, rules, reports_matches, options);
        pack_change(&table, change.await?).await
    })?;
    Ok(PyBytes::new(py, &message))
}

/// For each of some targets the rows that matched in some of the parts, for [`unmatched_task`].
#[pyfunction]
fn matched_table_rows(
    py: Python<'_>,
    messages: Vec<Vec<u8>>,
    targets: Vec<Vec<u8>>,
) -> PyResult<Vec<Bound<'_, PyBytes>>> {
    let packed = || -> Result<Vec<Vec<u8>>> {
        let changes = unpack_messages::<TaskChange>(&messages)?;
        let targets = targets.iter().map(|target| parse_task(target));
        let targets: Vec<TableManifest> = targets.collect::<Result<_>>()?;
        let matched = table::matched_table_rows(changes, &targets);
        matched.iter().map(table::pack_message).collect()
    };
    let packed = into_py_result(py, packed())?;
    Ok(packed.iter().map(|rows| PyBytes::new(py, rows)).collect())
}

/// Changes the rows of a part's target that matched no row of the source; the message of it.
#[pyfunction]
fn unmatched_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    part: PyMergePart,
    matched: Vec<u8>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let part = part.parse(py, threads)?;
    let message = run(py, move || async move {
        let matched: MatchedTableRows = table::unpack_message(&matched)?;
        let target = Arc::clone(&part.target);
        let (rules, options) = (part.rules(), &part.options);
        let change = table::unmatched_task(&table, target, &part.source, rules, matched, options);
        pack_change(&table, change.await?).await
    })?;
    Ok(PyBytes::new(py, &message))
}

/// The rows of a source that matched in some of the parts with the same source, for [`insert_task`].
#[pyfunction]
fn matched_source_rows(py: Python<'_>, messages: Vec<Vec<u8>>) -> PyResult<Bound<'_, PyBytes>> {
    let packed = unpack_messages::<TaskChange>(&messages)
        .and_then(|changes| table::pack_message(&table::matched_source_rows(&changes)));
    Ok(PyBytes::new(py, &into_py_result(py, packed)?))
}

/// Inserts the rows of a part's source that matched no row; the message of it.
#[pyfunction]
fn insert_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    part: PyMergePart,
    matched: Vec<u8>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let part = part.parse(py, threads)?;
    let message = run(py, move || async move {
        let matched: PositionBitmap = table::unpack_message(&matched)?;
        let (base, source) = (&part.target, Arc::clone(&part.source));
        let (rules, options) = (part.rules(), &part.options);
        let change = table::insert_task(&table, base, source, rules, matched, options);
        pack_change(&table, change.await?).await
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Commits the changes of messages: a delete by a predicate, or an upsert or a merge of a source.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "those of the Python function")]
fn commit_changes(
    py: Python<'_>,
    snapshot: &TableHandle,
    predicate: Option<&Bound<'_, PyAny>>,
    source: Option<PyStagedSource>,
    messages: Vec<Vec<u8>>,
    searches: Option<usize>,
    options: PyWriteOptions,
    commit: PyCommitOptions,
) -> PyResult<(Option<CommitFields>, TableHandle)> {
    let table = into_py_result(py, snapshot.table())?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let parsed = unpack_messages::<TaskChange>(&messages).and_then(|changes| {
        let operation = match (predicate, source) {
            (Some(predicate), None) => TaskOperation::Delete(predicate),
            (None, Some(source)) if source.is_merge => TaskOperation::Merge(source.parse()?),
            (None, Some(source)) => TaskOperation::Upsert(source.parse()?),
            _ => return Err(Error::invalid("a change has either a filter or a source")),
        };
        Ok((operation, changes))
    });
    let (operation, changes) = into_py_result(py, parsed)?;
    let is_delete = matches!(operation, TaskOperation::Delete(_));
    let options = commit.into_write_options(py, &options, false, &snapshot.manifest)?;
    let base = Arc::clone(&snapshot.manifest);
    let result = run(py, move || async move {
        table::commit_changes(&table, base, operation, (changes, searches), &options).await
    })?;
    let outcome = result.committed.map(|committed| {
        if is_delete {
            CommitFields::new(
                &committed,
                Some(result.deleted_rows),
                result.tombstone_bytes,
            )
        } else {
            CommitFields::of_files(&committed, &result.added)
        }
    });
    Ok((outcome, snapshot.with_manifest(result.snapshot.manifest)))
}

/// Removes the files of changes that are not to be committed.
#[pyfunction]
fn discard_changes(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    messages: Vec<Vec<u8>>,
) -> PyResult<()> {
    let table = open_table(py, store, &path)?;
    let changes = into_py_result(py, unpack_messages::<TaskChange>(&messages))?;
    run(py, move || async move {
        for change in &changes {
            table::discard_staged(&table, change.files()).await;
        }
        Ok(())
    })
}
