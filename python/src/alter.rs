//! Changes of a table's columns.

use pds::table::SetExports;
use pds::table::actions::{Alter, AlterOpened};
use pyo3::prelude::*;

use crate::commits::CommitFields;
use crate::handle::TableHandle;
use crate::input::extract_schema;
use crate::runtime::into_py_result;

/// Commits a change of columns that go by the names of the snapshot.
fn commit(
    py: Python<'_>,
    table: &TableHandle,
    alter: Alter,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    let opened = table.opened();
    table.commit_change(py, AlterOpened { alter, opened }, timeout)
}

/// Adds the only column of `schema` to the table.
#[pyfunction]
fn add_column(
    py: Python<'_>,
    table: &TableHandle,
    schema: &Bound<'_, PyAny>,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    let field = extract_schema(schema)?.field(0).clone();
    commit(py, table, Alter::Add(field), timeout)
}

/// Widens a column to the type that the only column of `schema` gives it.
#[pyfunction]
fn widen(
    py: Python<'_>,
    table: &TableHandle,
    schema: &Bound<'_, PyAny>,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    let field = extract_schema(schema)?.field(0).clone();
    let (column, to) = (field.name().clone(), field.data_type().clone());
    commit(py, table, Alter::Widen { column, to }, timeout)
}

/// Renames a column.
#[pyfunction]
fn rename_column(
    py: Python<'_>,
    table: &TableHandle,
    column: String,
    to: String,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    commit(py, table, Alter::Rename { column, to }, timeout)
}

/// Drops a column.
#[pyfunction]
fn drop_column(
    py: Python<'_>,
    table: &TableHandle,
    column: String,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    commit(py, table, Alter::Drop { column }, timeout)
}

/// Reorders the columns; `columns` names all of them.
#[pyfunction]
fn reorder(
    py: Python<'_>,
    table: &TableHandle,
    columns: Vec<String>,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    commit(py, table, Alter::Reorder { columns }, timeout)
}

/// Sets the formats to which every commit is exported.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]
fn set_exports(
    py: Python<'_>,
    table: &TableHandle,
    formats: Vec<String>,
    timeout: f64,
) -> PyResult<(CommitFields, TableHandle)> {
    let change = into_py_result(py, SetExports::new(&formats))?;
    table.commit_change(py, change, timeout)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(add_column, module)?)?;
    module.add_function(wrap_pyfunction!(widen, module)?)?;
    module.add_function(wrap_pyfunction!(rename_column, module)?)?;
    module.add_function(wrap_pyfunction!(drop_column, module)?)?;
    module.add_function(wrap_pyfunction!(reorder, module)?)?;
    module.add_function(wrap_pyfunction!(set_exports, module)?)?;
    Ok(())
}
