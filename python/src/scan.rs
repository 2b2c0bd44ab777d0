//! Streams out: one batch a call, so that every call can be interrupted and raises its own error.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use pds::dataset::{self, Manifest};
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatch, PySchema};
use tokio::sync::Mutex;

use crate::runtime::{checked, run};
use crate::store::StoreHandle;

/// The rows of a dataset, a part or a table as a stream.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct Scan {
    schema: SchemaRef,
    scan: Arc<Mutex<Option<dataset::Scan>>>,
}

impl Scan {
    pub(crate) fn new(scan: dataset::Scan) -> Self {
        Self {
            schema: Arc::clone(&scan.schema),
            scan: Arc::new(Mutex::new(Some(scan))),
        }
    }
}

#[pymethods]
impl Scan {
    /// The schema, as a `pyarrow.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PySchema::new(Arc::clone(&self.schema)).into_pyarrow(py)
    }

    /// The next batch, as a `pyarrow.RecordBatch`; None at the end.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let scan = Arc::clone(&self.scan);
        let batch = run(py, move || async move {
            match scan.lock().await.as_mut() {
                Some(scan) => scan.next().await.transpose(),
                None => Ok(None),
            }
        })?;
        batch
            .map(|batch| PyRecordBatch::new(batch).into_pyarrow(py))
            .transpose()
    }

    /// Ends the work behind the stream.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let scan = Arc::clone(&self.scan);
        run(py, move || async move {
            scan.lock().await.take();
            Ok(())
        })
    }
}

/// Streams a dataset.
#[pyfunction]
fn scan_dataset(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    columns: Option<Vec<String>>,
) -> PyResult<Scan> {
    let store = checked(py, store.store())?;
    let scan = run(py, move || async move {
        dataset::scan(&store, &key, columns.as_deref()).await
    })?;
    Ok(Scan::new(scan))
}

/// Streams one part of the dataset that the manifest describes.
#[pyfunction]
fn scan_part(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    manifest: &str,
    index: usize,
    columns: Option<Vec<String>>,
) -> PyResult<Scan> {
    let store = checked(py, store.store())?;
    let manifest = checked(py, Manifest::from_json(manifest.as_bytes()))?;
    let scan = run(py, move || async move {
        dataset::scan_part(&store, &key, &manifest, index, columns.as_deref()).await
    })?;
    Ok(Scan::new(scan))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(scan_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(scan_part, module)?)
}
