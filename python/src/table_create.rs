//! Creating a table together with its first rows.

use pds::table::actions::NewTable;
use pds::table::{self, Table, TableWriteOptions};
use pyo3::prelude::*;

use crate::commits::{PyCommitOptions, rewrite_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::{extract_reader, extract_schema};
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// The attributes of `pds.table.options.NewTable`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyNewTable<'py> {
    schema: Bound<'py, PyAny>,
    key: Vec<String>,
    sort_by: Vec<String>,
    exports: Vec<String>,
}

impl PyNewTable<'_> {
    pub(crate) fn to_new_table(&self, py: Python<'_>) -> PyResult<NewTable> {
        let schema = extract_schema(&self.schema)?;
        let new = NewTable::new(&schema, &self.key, &self.sort_by);
        into_py_result(py, new.and_then(|new| new.with_exports(&self.exports)))
    }
}

/// Creates a table whose first version has the rows of a stream, and opens that version.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    clippy::too_many_arguments,
    reason = "a call of the facade's own"
)]
fn create_table_with_rows(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    new_table: PyNewTable<'_>,
    data: &Bound<'_, PyAny>,
    options: PyWriteOptions,
    input_in_memory: bool,
    commit: PyCommitOptions,
) -> PyResult<TableHandle> {
    let new = new_table.to_new_table(py)?;
    let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
    let input = extract_reader(data)?;
    let write_options = TableWriteOptions {
        input_in_memory,
        idempotency_key: commit.idempotency_key,
        ..rewrite_options(py, &options, commit.timeout)?
    };
    let (snapshot, _) = run(py, move || async move {
        table::create_with_rows(&table, new, input, &write_options).await
    })?;
    Ok(TableHandle {
        store: store.clone_handle(),
        path,
        manifest: snapshot.manifest,
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(create_table_with_rows, module)?)
}
