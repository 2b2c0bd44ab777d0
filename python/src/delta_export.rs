//! Tables as Delta tables.

use pds::table::{self, DeltaOptions};
use pyo3::prelude::*;

use crate::handle::TableHandle;
use crate::runtime::{into_py_result, run};
use crate::table_results::DeltaExportFields;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(export_delta, module)?)
}

/// Writes the versions that the Delta log of a table lacks.
#[pyfunction]
fn export_delta(
    py: Python<'_>,
    snapshot: &TableHandle,
    leave_out: Option<Vec<String>>,
    rebuild: bool,
) -> PyResult<DeltaExportFields> {
    let table = into_py_result(py, snapshot.table())?;
    let options = DeltaOptions { leave_out, rebuild };
    let exported = run(py, move || async move {
        table::export_delta(&table, &options).await
    })?;
    Ok(DeltaExportFields {
        version: exported.version,
        versions: exported.versions,
        bytes: exported.bytes,
    })
}
