//! Scans of tables as tasks for other processes.

use std::sync::Arc;

use pds::table::{self, TaskSizes, parse_scan_task, parse_task};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::handle::TableHandle;
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(split_scan, module)?)?;
    module.add_function(wrap_pyfunction!(split_scan_of_files, module)?)?;
    module.add_function(wrap_pyfunction!(open_scan_task, module)?)?;
    module.add_function(wrap_pyfunction!(with_columns, module)?)
}

/// Splits a scan of a snapshot into tasks, for [`open_scan_task`].
#[pyfunction]
fn split_scan<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    predicate: Option<&Bound<'_, PyAny>>,
    columns: Option<Vec<String>>,
    count: u64,
    min_bytes: u64,
    max_bytes: u64,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let table = into_py_result(py, snapshot.table())?;
    let predicate = predicate.map(extract_predicate).transpose()?;
    let manifest = Arc::clone(&snapshot.manifest);
    let sizes = TaskSizes {
        count,
        min_bytes,
        max_bytes,
    };
    let tasks = run(py, move || async move {
        let columns = columns.as_deref();
        table::split_scan(&table, manifest, predicate.as_ref(), columns, sizes).await
    })?;
    Ok(tasks.iter().map(|task| PyBytes::new(py, task)).collect())
}

/// Splits a scan of the files at the positions from the first to before the last; by default those up to the end.
#[pyfunction]
fn split_scan_of_files<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    columns: Option<Vec<String>>,
    positions: (usize, Option<usize>),
    count: u64,
    min_bytes: u64,
    max_bytes: u64,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let table = into_py_result(py, snapshot.table())?;
    let manifest = Arc::clone(&snapshot.manifest);
    let positions = positions.0..positions.1.unwrap_or(usize::MAX);
    let sizes = TaskSizes {
        count,
        min_bytes,
        max_bytes,
    };
    let tasks = run(py, move || async move {
        table::split_scan_of_files(&table, manifest, columns.as_deref(), positions, sizes).await
    })?;
    Ok(tasks.iter().map(|task| PyBytes::new(py, task)).collect())
}

/// The snapshot with the files, or shares of files, of a task alone; sends no request.
#[pyfunction]
fn open_scan_task(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
) -> PyResult<TableHandle> {
    Ok(TableHandle {
        store: store.clone_handle(),
        path,
        manifest: Arc::new(into_py_result(py, parse_scan_task(task))?),
    })
}

/// A snapshot whose rows are read with the columns of the version of a task.
#[pyfunction]
fn with_columns(py: Python<'_>, snapshot: &TableHandle, task: &[u8]) -> PyResult<TableHandle> {
    let columns = parse_task(task);
    let manifest = columns.and_then(|c| table::with_columns_of(&snapshot.manifest, &c));
    Ok(snapshot.with_manifest(Arc::new(into_py_result(py, manifest)?)))
}
