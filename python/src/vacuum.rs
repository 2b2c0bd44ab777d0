//! Vacuums whose objects other processes remove.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use pds::table;
use pds::versions::vacuum::{self, Expired};
use pds::versions::{Ancestor, CommitId};
use pyo3::prelude::*;

use crate::handle::TableHandle;
use crate::input::parse_seconds;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;
use crate::table_results::ExpiredFields;
use crate::task_changes::open_table;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(begin_vacuum, module)?)?;
    module.add_function(wrap_pyfunction!(remove_expired, module)?)?;
    module.add_function(wrap_pyfunction!(end_vacuum, module)?)
}

/// Commits a vacuum, and returns what is to be removed.
#[pyfunction]
fn begin_vacuum(
    py: Python<'_>,
    snapshot: &TableHandle,
    retention: f64,
    timeout: f64,
) -> PyResult<ExpiredFields> {
    let retention = into_py_result(py, parse_seconds("retention", retention))?;
    let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
    let table = into_py_result(py, snapshot.table())?;
    let Expired {
        report,
        e_tags,
        version,
    } = run(py, move || async move {
        table::begin_vacuum(&table, retention, timeout).await
    })?;
    Ok(ExpiredFields {
        oldest_version: report.oldest_version,
        files: report.files,
        manifests: report.manifests,
        e_tags,
        bytes: report.bytes,
        version: version.version(),
        commit_id: version.commit_id().as_str().to_owned(),
    })
}

/// Removes objects of a vacuum, which is a version and its commit; manifests with their ETags.
#[pyfunction]
fn remove_expired(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    vacuum: (u64, String),
    files: Vec<String>,
    manifests: Vec<(String, Option<String>)>,
) -> PyResult<()> {
    let table = open_table(py, store, &path)?;
    let commit_id = into_py_result(py, CommitId::parse(&vacuum.1))?;
    let version = Ancestor::new(vacuum.0, commit_id);
    run(py, move || async move {
        vacuum::remove_expired_of(&table, &version, &files, manifests).await
    })
}

/// Removes what only expired versions had in exports.
#[pyfunction]
fn end_vacuum(py: Python<'_>, snapshot: &TableHandle, retention: f64) -> PyResult<()> {
    let retention = into_py_result(py, parse_seconds("retention", retention))?;
    let table = into_py_result(py, snapshot.table())?;
    run(py, move || async move {
        table::end_vacuum(&table, retention).await
    })
}
