//! The functions of stages: the engine calls Python with readers, and takes record batches from it.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchIterator};
use arrow_schema::ArrowError;
use pds::producers::{ChangedFunctionHook, EmittedRows, Preserve, PreservePass, Produce, Rows};
use pds::sync::mutex::lock;
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader};
use serde_json::Value;

use crate::error::from_python;

/// A Python function from readers to an iterable of record batches.
#[derive(Debug)]
pub(crate) struct PyProducer {
    pub(crate) function: Py<PyAny>,
}

/// The error of a feed, which passes Python as text only.
type FeedError = Arc<Mutex<Option<Error>>>;

impl Produce for PyProducer {
    fn produce(&self, feeds: Vec<Rows>, _: usize) -> Result<EmittedRows> {
        let failure = FeedError::default();
        let feeds: Vec<Rows> = feeds
            .into_iter()
            .map(|feed| watch(feed, &failure))
            .collect();
        let started = Python::attach(|py| {
            let readers = feeds
                .into_iter()
                .map(|feed| PyRecordBatchReader::new(feed).into_pyarrow(py))
                .collect::<PyResult<Vec<_>>>()?;
            let iterable = self.function.bind(py).call1((readers,))?;
            Ok(iterable.try_iter()?.unbind())
        });
        let batches = started.map_err(|e| cause_of(e, &failure))?;
        Ok(Box::new(EmittedBatches { batches, failure }))
    }
}

/// A Python hook that preserves values.
#[derive(Debug)]
pub(crate) struct PyPreserve {
    pub(crate) hook: Py<PyAny>,
}

/// A pass of such a hook.
struct PyPreservePass {
    pass: Py<PyAny>,
    batches: EmittedBatches,
}

impl Preserve for PyPreserve {
    fn begin(&self, rows: Rows, state: Option<&Value>) -> Result<Box<dyn PreservePass>> {
        let failure = FeedError::default();
        let rows = watch(rows, &failure);
        let state = state.map(Value::to_string);
        let started = Python::attach(|py| {
            let reader = PyRecordBatchReader::new(rows).into_pyarrow(py)?;
            let pass = self.hook.bind(py).call1((reader, state))?;
            let batches = pass.try_iter()?.unbind();
            Ok((pass.unbind(), batches))
        });
        let (pass, batches) = started.map_err(|e| cause_of(e, &failure))?;
        Ok(Box::new(PyPreservePass {
            pass,
            batches: EmittedBatches { batches, failure },
        }))
    }
}

impl Iterator for PyPreservePass {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.next()
    }
}

impl PreservePass for PyPreservePass {
    fn state(&mut self) -> Result<Value> {
        let text = Python::attach(|py| {
            let state = self.pass.bind(py).call_method0("get_state")?;
            state.extract::<String>()
        })
        .map_err(from_python)?;
        serde_json::from_str(&text).map_err(Error::from_cause)
    }
}

/// The feed, whose error is kept.
fn watch(feed: Rows, failure: &FeedError) -> Rows {
    let (schema, failure) = (feed.schema(), Arc::clone(failure));
    let batches = feed.map(move |batch| match batch {
        Err(ArrowError::ExternalError(source)) => {
            let text = source.to_string();
            if let Ok(error) = source.downcast::<Error>() {
                *lock(&failure) = Some(*error);
            }
            Err(ArrowError::ComputeError(text))
        }
        other => other,
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// The error of the feed that an exception passes on, or the exception.
fn cause_of(exception: PyErr, failure: &FeedError) -> Error {
    let of_feed = lock(failure).take();
    of_feed.unwrap_or_else(|| from_python(exception))
}

/// The batches that a function gives.
struct EmittedBatches {
    batches: Py<PyIterator>,
    failure: FeedError,
}

impl Iterator for EmittedBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = Python::attach(|py| {
            let mut batches = self.batches.bind(py).clone();
            let next = batches.next().transpose()?;
            let batch = next.map(|batch| batch.extract::<PyRecordBatch>());
            Ok(batch.transpose()?.map(PyRecordBatch::into_inner))
        });
        next.map_err(|e| cause_of(e, &self.failure)).transpose()
    }
}

/// Called with the name of a stage.
#[derive(Debug)]
pub(crate) struct PyChangedFunctionHook {
    pub(crate) function: Py<PyAny>,
}

impl ChangedFunctionHook for PyChangedFunctionHook {
    fn report(&self, stage: &str) -> Result<()> {
        let reported = Python::attach(|py| self.function.call1(py, (stage,)));
        reported.map(drop).map_err(from_python)
    }
}
