//! Tables as Iceberg tables.

use pds::table::{self, IcebergOptions, Location};
use pyo3::prelude::*;

use crate::handle::TableHandle;
use crate::runtime::{into_py_result, run};
use crate::table_results::IcebergExportFields;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(export_iceberg, module)?)
}

/// Exports the newest version of a table. `location` is that of the store unless `is_given`.
#[pyfunction]
fn export_iceberg(
    py: Python<'_>,
    snapshot: &TableHandle,
    location: String,
    is_given: bool,
    leave_out: Option<Vec<String>>,
    rebuild: bool,
) -> PyResult<IcebergExportFields> {
    let table = into_py_result(py, snapshot.table())?;
    let location = if is_given {
        Location::Given(location)
    } else {
        Location::OfStore(location)
    };
    let options = IcebergOptions {
        location: Some(location),
        leave_out,
        rebuild,
    };
    let exported = run(py, move || async move {
        table::export_iceberg(&table, &options).await
    })?;
    Ok(IcebergExportFields {
        version: exported.version,
        versions: exported.versions,
        bytes: exported.bytes,
        metadata_location: exported.metadata_location,
    })
}
