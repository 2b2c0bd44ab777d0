//! Verification of snapshots, here or by many processes.

use std::sync::Arc;

use pds::table::{self, TaskSizes};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::handle::TableHandle;
use crate::runtime::{into_py_result, run};
use crate::table_results::{SplitVerificationFields, VerifyFields};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(verify_table, module)?)?;
    module.add_function(wrap_pyfunction!(split_verification, module)?)
}

/// Verifies all bytes of a snapshot, which may be that of a task.
#[pyfunction]
fn verify_table(py: Python<'_>, snapshot: &TableHandle) -> PyResult<VerifyFields> {
    let table = into_py_result(py, snapshot.table())?;
    let manifest = Arc::clone(&snapshot.manifest);
    let version = manifest.version;
    let report = run(
        py,
        move || async move { table::verify(&table, manifest).await },
    )?;
    Ok(VerifyFields {
        version,
        files: report.files,
        rows: report.rows,
        bytes: report.bytes,
        problems: report.problems,
    })
}

/// Verifies the lists of a snapshot; its tasks are for [`verify_table`].
#[pyfunction]
fn split_verification<'py>(
    py: Python<'py>,
    snapshot: &TableHandle,
    count: u64,
    min_bytes: u64,
    max_bytes: u64,
) -> PyResult<SplitVerificationFields<'py>> {
    let table = into_py_result(py, snapshot.table())?;
    let manifest = Arc::clone(&snapshot.manifest);
    let sizes = TaskSizes {
        count,
        min_bytes,
        max_bytes,
    };
    let split = run(py, move || async move {
        table::split_verification(&table, manifest, sizes).await
    })?;
    let tasks = split.tasks.iter().map(|task| PyBytes::new(py, task));
    Ok(SplitVerificationFields {
        tasks: tasks.collect(),
        problems: split.problems,
    })
}
