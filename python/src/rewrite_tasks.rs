//! Compaction and sorting by many processes.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use pds::table::{self, SortTaskResult, TaskSizes, parse_task, unpack_messages};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::commits::{CommitFields, rewrite_options, task_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;
use crate::table_results::{RangePlanFields, SortPlanFields};
use crate::task_changes::open_table;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plan_rewrites, module)?)?;
    module.add_function(wrap_pyfunction!(rewrite_task, module)?)?;
    module.add_function(wrap_pyfunction!(commit_rewrites, module)?)?;
    module.add_function(wrap_pyfunction!(plan_sort, module)?)?;
    module.add_function(wrap_pyfunction!(sort_task, module)?)?;
    module.add_function(wrap_pyfunction!(plan_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(range_task, module)?)?;
    module.add_function(wrap_pyfunction!(commit_sort, module)?)?;
    module.add_function(wrap_pyfunction!(discard_runs, module)?)
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
    let options = task_options(py, &options, threads)?;
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
    let groups = into_py_result(py, unpack_messages(&messages))?;
    let base = Arc::clone(&snapshot.manifest);
    let compacted = run(py, move || async move {
        Box::pin(table::commit_rewrites(&table, base, groups, &options)).await
    })?;
    Ok(compacted.map(|c| snapshot.outcome_and_snapshot(&c.committed, &c.added)))
}

/// The ids of the columns to sort by, and the files in groups, as tasks for [`sort_task`].
#[pyfunction]
fn plan_sort<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    by: Option<Vec<String>>,
    count: u64,
    min_bytes: u64,
    max_bytes: u64,
) -> PyResult<SortPlanFields<'py>> {
    let table = into_py_result(py, snapshot.table())?;
    let manifest = Arc::clone(&snapshot.manifest);
    let sizes = TaskSizes {
        count,
        min_bytes,
        max_bytes,
    };
    let plan = run(py, move || async move {
        table::plan_sort(&table, manifest, by.as_deref(), sizes).await
    })?;
    let tasks = plan.tasks.iter().map(|task| PyBytes::new(py, task));
    Ok(SortPlanFields {
        tasks: tasks.collect(),
        by: plan.by,
    })
}

/// Sorts the files of a task; the message of it.
#[pyfunction]
fn sort_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
    by: Vec<u32>,
    options: PyWriteOptions,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let table = open_table(py, store, &path)?;
    let task = Arc::new(into_py_result(py, parse_task(task))?);
    let options = task_options(py, &options, threads)?;
    let message = run(py, move || async move {
        table::pack_message(&table::sort_task(&table, task, &by, &options).await?)
    })?;
    Ok(PyBytes::new(py, &message))
}

/// The files of all messages of [`sort_task`], and the ranges for [`range_task`].
#[pyfunction]
fn plan_ranges<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    by: Vec<u32>,
    messages: Vec<Vec<u8>>,
    target_bytes: u64,
) -> PyResult<RangePlanFields<'py>> {
    let manifest = Arc::clone(&snapshot.manifest);
    let plan = run(py, move || async move {
        table::plan_ranges(&manifest, &by, unpack_messages(&messages)?, target_bytes)
    })?;
    let ranges = plan.ranges.iter().map(|range| PyBytes::new(py, range));
    Ok(RangePlanFields {
        runs: PyBytes::new(py, &plan.runs),
        ranges: ranges.collect(),
    })
}

/// Writes the rows of a range; the message of it.
#[pyfunction]
fn range_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: (Vec<u8>, Vec<u8>, Vec<u32>),
    options: PyWriteOptions,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (runs, range, by) = task;
    let table = open_table(py, store, &path)?;
    let runs = Arc::new(into_py_result(py, parse_task(&runs))?);
    let options = task_options(py, &options, threads)?;
    let message = run(py, move || async move {
        let written = table::range_task(&table, runs, &range, &by, &options).await?;
        table::pack_message(&written)
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Commits the files of all ranges, and removes those of the runs. Returns None if nothing was committed.
#[pyfunction]
fn commit_sort(
    py: Python<'_>,
    snapshot: &TableHandle,
    runs: Vec<Vec<u8>>,
    ranges: Vec<Vec<u8>>,
    options: PyWriteOptions,
    timeout: f64,
) -> PyResult<Option<(CommitFields, TableHandle)>> {
    let table = into_py_result(py, snapshot.table())?;
    let options = rewrite_options(py, &options, timeout)?;
    let base = Arc::clone(&snapshot.manifest);
    let runs = into_py_result(py, unpack_messages(&runs))?;
    let ranges = into_py_result(py, unpack_messages(&ranges))?;
    let sorted = run(py, move || async move {
        table::commit_sort(&table, base, runs, ranges, &options).await
    })?;
    Ok(sorted.map(|c| snapshot.outcome_and_snapshot(&c.committed, &c.added)))
}

/// Removes the files of runs that are not to be sorted further.
#[pyfunction]
fn discard_runs(py: Python<'_>, snapshot: &TableHandle, runs: Vec<Vec<u8>>) -> PyResult<()> {
    let table = into_py_result(py, snapshot.table())?;
    let runs: Vec<SortTaskResult> = into_py_result(py, unpack_messages(&runs))?;
    run(py, move || async move {
        for sorted in runs {
            table::discard_staged(&table, sorted.files()).await;
        }
        Ok(())
    })
}
