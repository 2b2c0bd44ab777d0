//! Ingests of which many processes write the slices and one appends the blocks.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use pds::odf::{self, Chain, SharedIngest, SliceTask, TaskSlice};
use pds::table::{pack_message, unpack_message, unpack_messages};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::dataset::PyWriteOptions;
use crate::input::{extract_reader, extract_schema};
use crate::odf::{ChainHandle, parse_ingest_options};
use crate::odf_results::AppendFields;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<SharedIngestHandle>()?;
    module.add_function(wrap_pyfunction!(write_task_slice, module)?)
}

/// An ingest at one state of a chain.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
struct SharedIngestHandle(Arc<SharedIngest>);

#[pymethods]
impl SharedIngestHandle {
    /// Begins an ingest of rows with a schema at the newest block.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "those of an ingest")]
    fn begin(
        py: Python<'_>,
        chain: &ChainHandle,
        schema: &Bound<'_, PyAny>,
        event_time: Option<String>,
        watermark: Option<&str>,
        source_state: Option<&Bound<'_, PyAny>>,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Self> {
        let options =
            parse_ingest_options(py, event_time, watermark, source_state, &options, timeout)?;
        let schema = extract_schema(schema)?;
        let chain = into_py_result(py, chain.open_chain())?;
        let ingest = run(py, move || async move {
            SharedIngest::begin(chain, schema, options).await
        })?;
        Ok(Self(Arc::new(ingest)))
    }

    /// Returns what another process needs to write the rows that come after so many of this ingest.
    fn task<'py>(&self, py: Python<'py>, rows_before: u64) -> PyResult<Bound<'py, PyBytes>> {
        let task = self
            .0
            .task(rows_before)
            .and_then(|task| pack_message(&task));
        Ok(PyBytes::new(py, &into_py_result(py, task)?))
    }

    /// Appends a block for each slice of so many rows together; None if the slices have to be written again.
    fn commit(
        &self,
        py: Python<'_>,
        messages: Vec<Vec<u8>>,
        rows: u64,
    ) -> PyResult<Option<AppendFields>> {
        let slices: Vec<TaskSlice> = into_py_result(py, unpack_messages(&messages))?;
        let ingest = Arc::clone(&self.0);
        let appended = run(
            py,
            move || async move { ingest.commit(&slices, rows).await },
        )?;
        Ok(appended.map(AppendFields::from))
    }
}

/// Writes rows as the slice of a task. Returns a message for a commit; None without rows.
#[pyfunction]
fn write_task_slice<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    task: &[u8],
    data: &Bound<'_, PyAny>,
    options: PyWriteOptions,
    threads: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let chain = into_py_result(py, store.store().and_then(|s| Chain::new(s, &path)))?;
    let task: SliceTask = into_py_result(py, unpack_message(task))?;
    let options = into_py_result(py, options.to_write_options())?;
    let input = extract_reader(data)?;
    let slice = run(py, move || async move {
        odf::write_task_slice(&chain, &task, input, &options, threads).await
    })?;
    let message = into_py_result(py, slice.as_ref().map(pack_message).transpose())?;
    Ok(message.map(|message| PyBytes::new(py, &message)))
}
