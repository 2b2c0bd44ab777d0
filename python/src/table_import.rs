//! Creating a table of the files of another system's table.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pds::Error;
use pds::sync::mutex::lock;
use pds::table::actions::NewTable;
use pds::table::{self, ImportColumn, ImportFile, ImportSource, PreparedImport, Table};
use pyo3::prelude::*;

use crate::handle::TableHandle;
use crate::input::extract_schema;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// Names and field ids.
type PyColumn = (Vec<String>, Vec<i32>);
/// Path, constants by the column's name, and positions of deleted rows as little-endian numbers of 64 bits.
type PyFile = (String, BTreeMap<String, Option<String>>, Vec<u8>);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ImportHandle>()?;
    module.add_function(wrap_pyfunction!(prepare_import, module)?)
}

/// Files of which a table can be created.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
struct ImportHandle {
    store: StoreHandle,
    path: String,
    prepared: Mutex<Option<PreparedImport>>,
}

/// Reads and checks files in the folder of a table that is to be created.
#[pyfunction]
fn prepare_import(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    schema: &Bound<'_, PyAny>,
    columns: Vec<PyColumn>,
    files: Vec<PyFile>,
) -> PyResult<ImportHandle> {
    let new = into_py_result(py, NewTable::new(&extract_schema(schema)?, &[], &[]))?;
    let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
    let columns: Vec<ImportColumn> = columns
        .into_iter()
        .map(|(names, field_ids)| ImportColumn { names, field_ids })
        .collect();
    let files: Vec<ImportFile> = files
        .into_iter()
        .map(|(path, constants, positions)| {
            ImportFile::new(path, constants, positions_from(&positions))
        })
        .collect();
    let prepared = run(py, move || async move {
        table::prepare_import(&table, new, &columns, &files).await
    })?;
    Ok(ImportHandle {
        store: store.clone_handle(),
        path,
        prepared: Mutex::new(Some(prepared)),
    })
}

#[pymethods]
impl ImportHandle {
    /// Creates the table, once, and opens its first version. The arguments are what the history says of its source.
    fn commit(
        &self,
        py: Python<'_>,
        source_format: String,
        version: String,
        location: String,
    ) -> PyResult<TableHandle> {
        let mut prepared = lock(&self.prepared);
        let taken = prepared.take();
        drop(prepared);
        let taken = taken.ok_or_else(|| Error::invalid("the import was committed before"));
        let prepared = into_py_result(py, taken)?;
        let source = ImportSource {
            format: source_format,
            version,
            location,
        };
        let snapshot = run(py, move || async move { prepared.commit(&source).await })?;
        Ok(TableHandle {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest: snapshot.manifest,
        })
    }
}

fn positions_from(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let numbers = bytes.as_chunks().0.iter();
    numbers.map(|number| u64::from_le_bytes(*number))
}
