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

/// What became of the feeds of a call.
#[derive(Debug, Default)]
struct FeedState {
    /// The first error of a feed, which passes Python as text only.
    failure: Option<Error>,
    /// How many feeds are not read to their end.
    unread: usize,
}

type Feeds = Arc<Mutex<FeedState>>;

impl Produce for PyProducer {
    fn produce(&self, feeds: Vec<Rows>, _: usize) -> Result<EmittedRows> {
        let state = Feeds::default();
        let feeds: Vec<Rows> = feeds.into_iter().map(|feed| watch(feed, &state)).collect();
        let started = Python::attach(|py| {
            let readers = feeds
                .into_iter()
                .map(|feed| PyRecordBatchReader::new(feed).into_pyarrow(py))
                .collect::<PyResult<Vec<_>>>()?;
            let iterable = self.function.bind(py).call1((readers,))?;
            Ok(iterable.try_iter()?.unbind())
        });
        let batches = started.map_err(|e| cause_of(e, &state))?;
        Ok(Box::new(EmittedBatches {
            batches,
            feeds: state,
        }))
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
        let feeds = Feeds::default();
        let rows = watch(rows, &feeds);
        let state = state.map(Value::to_string);
        let started = Python::attach(|py| {
            let reader = PyRecordBatchReader::new(rows).into_pyarrow(py)?;
            let pass = self.hook.bind(py).call1((reader, state))?;
            let batches = pass.try_iter()?.unbind();
            Ok((pass.unbind(), batches))
        });
        let (pass, batches) = started.map_err(|e| cause_of(e, &feeds))?;
        Ok(Box::new(PyPreservePass {
            pass,
            batches: EmittedBatches { batches, feeds },
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

/// The feed, whose end or first error is noted.
fn watch(mut feed: Rows, feeds: &Feeds) -> Rows {
    let (schema, feeds) = (feed.schema(), Arc::clone(feeds));
    lock(&feeds).unread += 1;
    let mut has_ended = false;
    let batches = std::iter::from_fn(move || match feed.next() {
        None => {
            if !std::mem::replace(&mut has_ended, true) {
                lock(&feeds).unread -= 1;
            }
            None
        }
        Some(Ok(batch)) => Some(Ok(batch)),
        Some(Err(error)) => {
            let (error, text) = match error {
                ArrowError::ExternalError(source) => {
                    let text = source.to_string();
                    let error = source.downcast::<Error>().map(|error| *error);
                    (error.unwrap_or_else(|_| Error::other(&text)), text)
                }
                error => {
                    let text = error.to_string();
                    (Error::from_cause(error), text)
                }
            };
            lock(&feeds).failure.get_or_insert(error);
            Some(Err(ArrowError::ComputeError(text)))
        }
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// The error of the feed that an exception passes on, or the exception.
fn cause_of(exception: PyErr, feeds: &Feeds) -> Error {
    let of_feed = lock(feeds).failure.take();
    of_feed.unwrap_or_else(|| from_python(exception))
}

/// The batches that a function gives.
struct EmittedBatches {
    batches: Py<PyIterator>,
    feeds: Feeds,
}

impl EmittedBatches {
    /// Fails if the function has ended and its feeds have not: what it gave is not all.
    fn check_feeds(&self) -> Result<()> {
        let mut feeds = lock(&self.feeds);
        if let Some(error) = feeds.failure.take() {
            return Err(error);
        }
        if feeds.unread > 0 {
            let message = "internal error: a function ended before it had read all of its rows";
            return Err(Error::other(message));
        }
        Ok(())
    }
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
        match next {
            Ok(None) => self.check_feeds().err().map(Err),
            next => next.map_err(|e| cause_of(e, &self.feeds)).transpose(),
        }
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
