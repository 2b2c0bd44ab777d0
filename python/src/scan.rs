//! Streams of batches to Python: each call returns one batch, so that it can be interrupted and raises its own error.
//! Later calls raise, too: a batch may be lost with the one that was interrupted.
//!
//! A [`Scan`] belongs to the process that began it, whose threads send its batches. Reading it in a forked child is an
//! error of the kind `InvalidInput`; dropping it there leaves the parent's work alone.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use pds::Error;
use pds::dataset::{self, DatasetManifest, FileShare, PartSelection};
use pds::parquet::types::{convert_batch, storage_schema};
use pds::sync::mutex::lock;
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatch, PySchema};
use tokio::sync::Mutex;

use crate::item_stream::ReadFailure;
use crate::parts::PartIndex;
use crate::predicate::extract_predicate;
use crate::progress::of_thread;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

const CLOSED: &str = "the scan is closed; read the rows with a new one";

/// The rows of a dataset, a part or a table as a stream.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct Scan {
    schema: SchemaRef,
    /// The process whose threads send the batches.
    process: u32,
    batches: Arc<Mutex<Option<dataset::BatchStream>>>,
    failure: ReadFailure,
}

impl Scan {
    pub(crate) fn new(scan: dataset::BatchStream) -> Self {
        Self {
            schema: Arc::clone(&scan.schema),
            process: std::process::id(),
            batches: Arc::new(Mutex::new(Some(scan))),
            failure: ReadFailure::default(),
        }
    }

    /// Whether this is a forked child of the process that began the scan.
    fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    fn read_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let scan = Arc::clone(&self.batches);
        let batch = run(py, move || async move {
            match scan.lock().await.as_mut() {
                Some(scan) => scan.next().await.transpose(),
                None => Err(Error::invalid(CLOSED)),
            }
        })?;
        if let (Some(batch), Some(progress)) = (&batch, of_thread()) {
            progress.add_rows(batch.num_rows() as u64);
            progress.add_bytes(batch.get_array_memory_size() as u64);
        }
        batch
            .map(|batch| PyRecordBatch::new(batch).into_pyarrow(py))
            .transpose()
    }
}

impl Drop for Scan {
    fn drop(&mut self) {
        if self.is_inherited() {
            // Ending the parent's work in the child would wait for threads that the child does not have.
            std::mem::forget(Arc::clone(&self.batches));
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

    /// The next batch, as a `pyarrow.RecordBatch`; None at the end. After an error or `close`, every call raises.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.is_inherited() {
            let text = "a scan that was begun before a fork cannot be read in the child; begin it in the child";
            return into_py_result(py, Err(Error::invalid(text)));
        }
        self.failure.check(py)?;
        self.failure.note(self.read_batch(py))
    }

    /// Ends the scan and the work of its threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_inherited() {
            return Ok(());
        }
        self.failure.set(CLOSED.to_owned());
        let scan = Arc::clone(&self.batches);
        run(py, move || async move {
            scan.lock().await.take();
            Ok(())
        })
    }
}

/// A dataset whose parts are open; it can be read once.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct OpenDataset {
    schema: SchemaRef,
    opened: std::sync::Mutex<Option<dataset::OpenDataset>>,
}

#[pymethods]
impl OpenDataset {
    /// The schema of all columns, as a `pyarrow.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        PySchema::new(Arc::clone(&self.schema)).into_pyarrow(py)
    }

    /// Begins to read the rows; raises on the second call.
    #[pyo3(signature = (columns, predicate=None))]
    fn scan(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        predicate: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Scan> {
        let predicate = predicate.map(extract_predicate).transpose()?;
        let guard = lock(&self.opened);
        let unread = { guard }.take();
        let result =
            unread.ok_or_else(|| Error::other("the open dataset was already read; open it again"));
        let opened = into_py_result(py, result)?;
        let scan = run(py, move || async move {
            opened.scan(columns.as_deref(), predicate.as_ref())
        })?;
        Ok(Scan::new(scan))
    }
}

/// Opens the parts of a dataset, to read them as a stream.
#[pyfunction]
fn open_dataset(py: Python<'_>, store: &StoreHandle, key: String) -> PyResult<OpenDataset> {
    let store = into_py_result(py, store.store())?;
    let opened = run(py, move || async move {
        dataset::open_dataset(&store, &key).await
    })?;
    Ok(OpenDataset {
        schema: Arc::clone(opened.schema()),
        opened: std::sync::Mutex::new(Some(opened)),
    })
}

/// A part of a dataset, or a share of it.
#[derive(FromPyObject)]
struct PyPartSelection {
    index: usize,
    /// The number of the share, and how many the part has.
    share: Option<(u32, u32)>,
}

impl From<PyPartSelection> for PartSelection {
    fn from(selection: PyPartSelection) -> Self {
        let share = selection.share;
        Self {
            index: selection.index,
            share: share.map(|(index, count)| FileShare { index, count }),
        }
    }
}

/// Begins to read one part of the dataset that the manifest describes; `known` is the index of its parts.
#[pyfunction]
#[pyo3(signature = (store, key, manifest, part, columns, known=None))]
fn scan_part(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    manifest: &str,
    part: PyPartSelection,
    columns: Option<Vec<String>>,
    known: Option<PartIndex>,
) -> PyResult<Scan> {
    let store = into_py_result(py, store.store())?;
    let manifest = into_py_result(py, DatasetManifest::from_json(manifest.as_bytes()))?;
    let scan = run(py, move || async move {
        let part_index = known.as_ref().map(|py_index| &*py_index.0);
        dataset::scan_part(
            &store,
            &key,
            &manifest,
            part.into(),
            columns.as_deref(),
            part_index,
        )
        .await
    })?;
    Ok(Scan::new(scan))
}

/// Indexes the parts of the dataset that the manifest describes.
#[pyfunction]
fn index_parts(
    py: Python<'_>,
    store: &StoreHandle,
    key: String,
    manifest: &str,
) -> PyResult<PartIndex> {
    let store = into_py_result(py, store.store())?;
    let manifest = into_py_result(py, DatasetManifest::from_json(manifest.as_bytes()))?;
    let index = run(py, move || async move {
        dataset::index_parts(&store, &key, &manifest).await
    })?;
    Ok(PartIndex(Arc::new(index)))
}

/// A batch with the types as which Parquet stores its columns: without run-end encoding and list views.
#[pyfunction]
fn to_stored_types(py: Python<'_>, batch: PyRecordBatch) -> PyResult<Bound<'_, PyAny>> {
    let batch = batch.into_inner();
    let converted =
        storage_schema(batch.schema_ref()).and_then(|schema| convert_batch(&batch, &schema));
    PyRecordBatch::new(into_py_result(py, converted)?).into_pyarrow(py)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(open_dataset, module)?)?;
    module.add_function(wrap_pyfunction!(scan_part, module)?)?;
    module.add_function(wrap_pyfunction!(to_stored_types, module)?)?;
    module.add_function(wrap_pyfunction!(index_parts, module)?)
}
