//! Updates of pipelines by tasks of an engine that is a Python object.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use pds::producers::{self, Engine, Node, Pipeline, StageOptions};
use pds::{Error, ErrorKind, Result};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::from_python;
use crate::input::extract_reader;
use crate::pipeline::{PyNode, PyUpdateOptions, build_graph};
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// The attributes of `pds.producers.engine.BoundEngine`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyEngine {
    local_bytes: u64,
    task_bytes: u64,
    /// Called with the name of a stage, a job and the number of its tasks, gives a list of the results of tasks.
    run_tasks: Py<PyAny>,
}

impl Engine for PyEngine {
    fn local_bytes(&self) -> u64 {
        self.local_bytes
    }

    fn task_bytes(&self) -> u64 {
        self.task_bytes
    }

    fn run(&self, stage: &str, job: Vec<u8>, tasks: usize) -> Result<Vec<Result<Vec<u8>>>> {
        let results = Python::attach(|py| {
            let arguments = (stage, PyBytes::new(py, &job), tasks);
            let results = self.run_tasks.bind(py).call1(arguments)?;
            results.extract::<Vec<PyTaskResult>>()
        });
        let results = results.map_err(from_python)?;
        Ok(results.into_iter().map(PyTaskResult::into_result).collect())
    }
}

/// What a task gave.
#[derive(FromPyObject)]
enum PyTaskResult {
    Message(PyBackedBytes),
    /// An exception.
    Failure(Py<PyAny>),
}

impl PyTaskResult {
    fn into_result(self) -> Result<Vec<u8>> {
        match self {
            Self::Message(message) => Ok(message.to_vec()),
            Self::Failure(failure) => Python::attach(|py| {
                let class = failure.bind(py).get_type().name();
                let kind = class.ok().filter(|name| name == "VersionExpired");
                let error = from_python(PyErr::from_value(failure.into_bound(py)));
                // Such an update is planned again.
                Err(match kind {
                    Some(_) => error.with_kind(ErrorKind::VersionExpired),
                    None => error,
                })
            }),
        }
    }
}

/// Runs a task of a job, and returns its result. `threads` is how many encode; None for one per processor.
#[pyfunction]
#[pyo3(signature = (store, path, nodes, job, task, threads=None))]
fn run_pipeline_task<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    nodes: Vec<PyNode<'py>>,
    job: Vec<u8>,
    task: usize,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let graph = build_graph(py, nodes)?;
    let result = run(py, move || async move {
        producers::run_task(&pipeline, &graph, &job, task, threads).await
    })?;
    Ok(PyBytes::new(py, &result))
}

/// The attributes of `pds.producers.engine.SourceRows`.
#[derive(FromPyObject)]
struct PySourceRows<'py> {
    source: PyNode<'py>,
    is_keys: bool,
    is_canonical: bool,
    arguments: PyUpdateOptions,
}

/// Sorts rows that are pushed to a source, or keys of it, and writes them as a run that nothing names. Returns a message
/// that stands for them in the changes of an update. `threads` is how many encode; None for one per processor.
#[pyfunction]
#[pyo3(signature = (store, path, target, rows, threads=None))]
fn stage_source_rows<'py>(
    py: Python<'py>,
    store: &StoreHandle,
    path: String,
    target: PySourceRows<'py>,
    rows: &Bound<'py, PyAny>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let graph = build_graph(py, vec![target.source])?;
    let rows = extract_reader(rows)?;
    let options = StageOptions {
        is_keys: target.is_keys,
        is_canonical: target.is_canonical,
        memory_limit_bytes: target.arguments.memory_limit,
        sizes: target.arguments.sizes(),
        threads,
    };
    let message = run(py, move || async move {
        let Some(Node::Source(source)) = graph.nodes().first() else {
            return Err(Error::invalid("rows are pushed to sources"));
        };
        producers::stage_rows(&pipeline, source, rows, options).await
    })?;
    Ok(PyBytes::new(py, &message))
}

/// Removes rows that were staged; the messages are those of `stage_source_rows`.
#[pyfunction]
fn discard_source_rows(
    py: Python<'_>,
    store: &StoreHandle,
    path: String,
    messages: Vec<PyBackedBytes>,
) -> PyResult<()> {
    let pipeline = into_py_result(py, store.store().and_then(|s| Pipeline::new(s, &path)))?;
    let messages: Vec<Vec<u8>> = messages.iter().map(|message| message.to_vec()).collect();
    run(py, move || async move {
        producers::discard_rows(&pipeline, &messages).await
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(run_pipeline_task, module)?)?;
    module.add_function(wrap_pyfunction!(stage_source_rows, module)?)?;
    module.add_function(wrap_pyfunction!(discard_source_rows, module)?)
}
