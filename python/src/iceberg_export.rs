//! Tables as Iceberg tables.

use pds::table::{self, IcebergOptions, Location};
use pyo3::prelude::*;

use crate::handle::TableHandle;
use crate::runtime::{into_py_result, run};
use crate::table_results::IcebergExportFields;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(export_iceberg, module)?)?;
    module.add_function(wrap_pyfunction!(check_iceberg_location, module)?)
}

/// Refuses the URL of a folder that readers of Iceberg cannot find.
#[pyfunction]
fn check_iceberg_location(py: Python<'_>, url: &str) -> PyResult<()> {
    into_py_result(py, table::check_iceberg_location(url))
}

/// Exports the newest version of a table. `location` is as a user gave it (`given`), or as this process reaches the folder
/// (`store`), the latter perhaps only for a first export (`first`).
#[pyfunction]
fn export_iceberg(
    py: Python<'_>,
    snapshot: &TableHandle,
    location: String,
    origin: &str,
    leave_out: Option<Vec<String>>,
    rebuild: bool,
) -> PyResult<IcebergExportFields> {
    let table = into_py_result(py, snapshot.table())?;
    let location = match origin {
        "given" => Location::Given(location),
        "store" => Location::OfStore(location),
        _ => Location::OfFirst(location),
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
