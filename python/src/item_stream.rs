//! Iterators that raise at every call after one that raised, an interrupt included.
//!
//! Python ends a generator that raised: whoever asks it for its next item gets its end. To one who tries once more, or
//! reads on after Ctrl-C, the items so far would seem to be all. It is noted here and not in Python, where Ctrl-C may
//! come before the first instruction of a function.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use pds::Error;
use pds::sync::mutex::lock;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::runtime::into_py_result;

/// Why later calls of a read fail. The exception itself would hold the frames of its callers.
#[derive(Debug, Default)]
pub(crate) struct ReadFailure(Mutex<Option<String>>);

impl ReadFailure {
    /// Fails if an earlier call did, or has closed what is read.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let message = lock(&self.0).clone();
        into_py_result(py, message.map_or(Ok(()), |text| Err(Error::invalid(text))))
    }

    /// The result of a call, whose error is noted.
    pub(crate) fn note<T>(&self, result: PyResult<T>) -> PyResult<T> {
        result.inspect_err(|error| {
            let text = error.to_string();
            let text = text.trim_end_matches([':', ' ']);
            self.set(format!(
                "the rows cannot be read on, because an earlier call failed ({text}) and rows may be lost; read them \
                 from the start, with a new scan or reader"
            ));
        })
    }

    /// Has later calls fail with a message, unless they do already.
    pub(crate) fn set(&self, message: String) {
        lock(&self.0).get_or_insert(message);
    }
}

/// An iterator over the items of another one, which fails at every call after one that failed.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct ItemStream {
    items: Py<PyIterator>,
    is_running: AtomicBool,
    failure: ReadFailure,
}

#[pymethods]
impl ItemStream {
    #[new]
    fn new(items: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self {
            items: items.try_iter()?.unbind(),
            is_running: AtomicBool::new(false),
            failure: ReadFailure::default(),
        })
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        if self.is_running.swap(true, Ordering::Acquire) {
            let message = "another thread reads these rows; read them in one thread";
            return into_py_result(py, Err(Error::invalid(message)));
        }
        let next = self.failure.check(py).and_then(|()| {
            let next = self.items.bind(py).clone().next().transpose();
            self.failure.note(next)
        });
        self.is_running.store(false, Ordering::Release);
        Ok(next?.map(Bound::unbind))
    }
}
