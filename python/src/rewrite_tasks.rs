//! Compaction by many processes.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use pds::Result;
use pds::table::{self, RewrittenGroup, TableWriteOptions, parse_task};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::commits::{CommitFields, rewrite_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;
use crate::task_changes::open_table;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plan_rewrites, module)?)?;
    module.add_function(wrap_pyfunction!(rewrite_task, module)?)?;
    module.add_function(wrap_pyfunction!(commit_rewrites, module)?)
}

/// The groups of files that a compaction would rewrite, as tasks for [`rewrite_task`].
#[pyfunction]
fn plan_rewrites<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    target_bytes: u64,
    predicate: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let table = into_py_result(py, snapshot.table())?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let manifest = Arc::clone(&snapshot.manifest);
    let tasks = run(py, move || async move {
        table::plan_rewrites(&table, manifest, target_bytes, predicate.as_ref()).await
    })?;
    Ok(tasks.iter().map(|task| PyBytes::new(py, task)).collect())
}

/// Rewrites the files of a task; the message of it.
#[pyfunction]
fn rewrite_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
    options: PyWriteOptions,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let task = Arc::new(into_py_result(py, parse_task(task))?);
    let options = TableWriteOptions {
        threads,
        ..rewrite_options(py, &options, 0.0)?
    };
    let message = run(py, move || async move {
        table::pack_message(&table::rewrite_task(&table, task, &options).await?)
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Commits the groups of messages of tasks of a snapshot. Returns None if nothing was committed.
#[pyfunction]
fn commit_rewrites(
    py: Python<'_>,
    snapshot: &TableHandle,
    messages: Vec<Vec<u8>>,
    options: PyWriteOptions,
    timeout: f64,
) -> PyResult<Option<(CommitFields, TableHandle)>> {
    let table = into_py_result(py, snapshot.table())?;
    let options = rewrite_options(py, &options, timeout)?;
    let groups = messages.iter().map(|m| table::unpack_message(m));
    let groups = into_py_result(py, groups.collect::<Result<Vec<RewrittenGroup>>>())?;
    let base = Arc::clone(&snapshot.manifest);
    let compacted = run(py, move || async move {
        table::commit_rewrites(&table, base, groups, &options).await
    })?;
    Ok(compacted.map(|c| snapshot.outcome_and_snapshot(&c.committed, &c.added)))
}
