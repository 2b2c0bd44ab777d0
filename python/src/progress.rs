//! The progress of calls of a thread, for another thread to read.
//!
//! A thread that has entered a [`ProgressHandle`] passes it to its calls by [`of_thread`]. What these calls start on other
//! threads, such as functions of a pipeline, does not see it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use pds::sync::progress::{Progress, ProgressCounts};
use pyo3::prelude::*;

thread_local! {
    static OF_THREAD: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

/// The progress that the calls of this thread add to.
pub(crate) fn of_thread() -> Option<Arc<Progress>> {
    OF_THREAD.with_borrow(Clone::clone)
}

/// The counters of the calls that a thread makes between `enter` and `exit`.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug, Default)]
pub(crate) struct ProgressHandle {
    progress: Arc<Progress>,
    outer: Mutex<Option<Arc<Progress>>>,
}

type CountFields = (String, u64, Option<u64>, u64, Option<u64>, u64);

#[pymethods]
impl ProgressHandle {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Lets the next calls of this thread add to it.
    fn enter(&self) {
        let outer = OF_THREAD.replace(Some(Arc::clone(&self.progress)));
        *self.outer.lock().unwrap_or_else(PoisonError::into_inner) = outer;
    }

    /// Ends that; on the same thread.
    fn exit(&self) {
        let outer = self
            .outer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        OF_THREAD.set(outer);
    }

    /// The phase, the files and their total, the rows and their total, and the bytes.
    fn counts(&self) -> CountFields {
        let ProgressCounts {
            phase,
            files,
            expected_files,
            rows,
            expected_rows,
            bytes,
        } = self.progress.counts();
        (phase, files, expected_files, rows, expected_rows, bytes)
    }
}
