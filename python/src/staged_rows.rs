//! Writes to tables of which many processes stage the rows and one commits them.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use pds::Result;
use pds::clock::SystemClock;
use pds::table::format::DataFile;
use pds::table::{self, OpenedColumns, ReplacedRows, Table, TableWriteOptions, unpack_messages};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::commits::{CommitFields, PyCommitOptions, task_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::{extract_reader, extract_schema};
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(writer_task, module)?)?;
    module.add_function(wrap_pyfunction!(writer_task_with_columns, module)?)?;
    module.add_function(wrap_pyfunction!(begin_staged, module)?)?;
    module.add_function(wrap_pyfunction!(name_columns, module)?)?;
    module.add_function(wrap_pyfunction!(check_same_names, module)?)?;
    module.add_function(wrap_pyfunction!(stage_rows, module)?)?;
    module.add_function(wrap_pyfunction!(commit_staged, module)?)?;
    module.add_function(wrap_pyfunction!(discard_staged, module)?)
}

/// What another process needs for [`stage_rows`].
#[pyfunction]
fn writer_task<'py>(py: Python<'py>, snapshot: &TableHandle) -> PyResult<Bound<'py, PyBytes>> {
    let task = into_py_result(py, table::writer_task(&snapshot.manifest))?;
    Ok(PyBytes::new(py, &task))
}

/// A task of [`writer_task`] for rows with columns that it does not have, too.
#[pyfunction]
fn writer_task_with_columns<'py>(
    py: Python<'py>,
    task: &[u8],
    schema: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let base = into_py_result(py, table::parse_task(task))?;
    let rows = extract_schema(schema)?;
    let task = into_py_result(py, table::writer_task_with_columns(&base, &rows))?;
    Ok(PyBytes::new(py, &task))
}

/// The outcome of the commit with the idempotency key, if there is one, and the newest snapshot.
#[pyfunction]
fn begin_staged(
    py: Python<'_>,
    snapshot: &TableHandle,
    predicate: Option<&Bound<'_, PyAny>>,
    options: PyWriteOptions,
    commit: PyCommitOptions,
) -> PyResult<(Option<CommitFields>, TableHandle)> {
    let table = into_py_result(py, snapshot.table())?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let options = commit.into_write_options(py, &options, false, &snapshot.manifest)?;
    let (newest, replay) = run(py, move || async move {
        table::begin_staged(&table, predicate.as_ref(), &options).await
    })?;
    let outcome = replay.map(|committed| CommitFields::of_files(&committed, &[]));
    Ok((outcome, snapshot.with_manifest(newest.manifest)))
}

/// A snapshot under the names that its columns had in another one. Refuses a predicate with a column that was dropped
/// since.
#[pyfunction]
fn name_columns(
    py: Python<'_>,
    snapshot: &TableHandle,
    opened: &TableHandle,
    predicate: Option<&Bound<'_, PyAny>>,
) -> PyResult<TableHandle> {
    let table = into_py_result(py, snapshot.table())?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let (mut columns, newest) = (
        OpenedColumns::of(&opened.manifest),
        Arc::clone(&snapshot.manifest),
    );
    let named = run(py, move || async move {
        let named = columns.rename(&table, &newest).await?;
        if let Some(predicate) = &predicate {
            columns.bind_filter(predicate, &named, &SystemClock)?;
        }
        Ok(named)
    })?;
    Ok(snapshot.with_manifest(named))
}

/// Refuses a snapshot in which names of another one, or the columns of a predicate on that, mean something else.
#[pyfunction]
fn check_same_names(
    py: Python<'_>,
    snapshot: &TableHandle,
    opened: &TableHandle,
    predicate: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let predicate = predicate.map(extract_predicate).transpose()?;
    let (columns, newest) = (
        OpenedColumns::of(&opened.manifest),
        Arc::clone(&snapshot.manifest),
    );
    run(py, move || async move {
        columns.check_same_names(predicate.as_ref(), &newest, &SystemClock)
    })
}

/// Writes a stream as data files that no version names; a packed list of them.
#[pyfunction]
#[pyo3(signature = (store, path, task, data, predicate, options, threads=None))]
#[expect(clippy::too_many_arguments, reason = "those of the Python function")]
fn stage_rows<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
    data: &Bound<'_, PyAny>,
    predicate: Option<&Bound<'_, PyAny>>,
    options: PyWriteOptions,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
    let base = into_py_result(py, table::parse_task(task))?;
    let input = extract_reader(data)?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let options = task_options(py, &options, threads)?;
    let list = run(py, move || async move {
        let files = table::stage(&table, &base, input, predicate.as_ref(), &options).await?;
        let list = table::pack_message(&files);
        if list.is_err() {
            table::discard_staged(&table, &files).await;
        }
        list
    })?;
    Ok(PyBytes::new(py, &list))
}

/// Commits the files of lists, in this order, beside the rows or in place of all, or of those of a predicate, which
/// tasks may have found in the version `searched`.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "those of the Python function")]
fn commit_staged(
    py: Python<'_>,
    snapshot: &TableHandle,
    task: &[u8],
    lists: Vec<Vec<u8>>,
    overwrite: bool,
    predicate: Option<&Bound<'_, PyAny>>,
    searched: Option<&TableHandle>,
    messages: Vec<Vec<u8>>,
    new_columns: Vec<String>,
    options: PyWriteOptions,
    commit: PyCommitOptions,
) -> PyResult<(CommitFields, TableHandle)> {
    let table = into_py_result(py, snapshot.table())?;
    let base = Arc::new(into_py_result(py, table::parse_task(task))?);
    let files = into_py_result(py, unpack_all(&lists))?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let changes = into_py_result(py, unpack_messages(&messages))?;
    let replaced = searched.map(|searched| ReplacedRows {
        searched: Arc::clone(&searched.manifest),
        changes,
    });
    let options = TableWriteOptions {
        overwrite,
        ..commit.into_write_options(py, &options, false, &base)?
    };
    let (committed, files) = run(py, move || async move {
        let target = (predicate, replaced);
        table::commit_staged(&table, &base, files, target, &new_columns, &options).await
    })?;
    Ok(snapshot.outcome_and_snapshot(&committed, &files))
}

/// Removes the files of lists that are not to be committed.
#[pyfunction]
fn discard_staged(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    lists: Vec<Vec<u8>>,
) -> PyResult<()> {
    let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
    let files = into_py_result(py, unpack_all(&lists))?;
    run(py, move || async move {
        table::discard_staged(&table, &files).await;
        Ok(())
    })
}

/// The files of lists.
pub(crate) fn unpack_all(lists: &[Vec<u8>]) -> Result<Vec<DataFile>> {
    let mut files = Vec::new();
    for list in lists {
        files.append(&mut table::unpack_message::<Vec<DataFile>>(list)?);
    }
    Ok(files)
}
