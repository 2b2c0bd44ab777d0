//! The progress of calls of a thread, for another thread to read.
//!
//! A thread that has entered a [`ProgressHandle`] passes it to its calls by [`of_thread`]. What these calls start on other
//! threads, such as functions of a pipeline, does not see it.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use pds::sync::mutex::lock;
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

/// The counters; the fields of `pds.progress.Progress` that are counted, as a dict in Python.
#[derive(Debug, IntoPyObject)]
struct CountFields {
    phase: String,
    files: u64,
    files_total: Option<u64>,
    rows: u64,
    rows_total: Option<u64>,
    bytes: u64,
}

#[pymethods]
impl ProgressHandle {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Lets the next calls of this thread add to it.
    fn enter(&self) {
        let outer = OF_THREAD.replace(Some(Arc::clone(&self.progress)));
        *lock(&self.outer) = outer;
    }

    /// Ends that; on the same thread.
    fn exit(&self) {
        let outer = lock(&self.outer).take();
        OF_THREAD.set(outer);
    }

    /// What was counted until now.
    fn counts(&self) -> CountFields {
        let ProgressCounts {
            phase,
            files,
            expected_files,
            rows,
            expected_rows,
            bytes,
        } = self.progress.counts();
        CountFields {
            phase,
            files,
            files_total: expected_files,
            rows,
            rows_total: expected_rows,
            bytes,
        }
    }
}
