//! A snapshot of a table on the side of Rust: its table, its filters and the commits on it.
//!
//! What Python calls on it is in [`crate::table`].

use std::sync::Arc;

use pds::Result;
use pds::clock::SystemClock;
use pds::table::commit::{Change, Committed, commit};
use pds::table::format::{DataFile, Manifest};
use pds::table::{Columns, Filter, Table};
use pyo3::prelude::*;

use crate::commits::{Outcome, outcome};
use crate::input::seconds;
use crate::predicate::predicate_of;
use crate::runtime::{checked, run};
use crate::store::StoreHandle;

/// One snapshot of a table.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct TableHandle {
    pub(crate) store: StoreHandle,
    pub(crate) path: String,
    pub(crate) manifest: Arc<Manifest>,
}

impl TableHandle {
    /// The table it is of.
    pub(crate) fn table(&self) -> Result<Table> {
        Table::new(self.store.store()?, &self.path)
    }

    /// The filter that a predicate is of the snapshot.
    pub(crate) fn filter(
        &self,
        given: Option<&Bound<'_, PyAny>>,
        use_stats: bool,
    ) -> PyResult<Option<Arc<Filter>>> {
        let Some(given) = given else {
            return Ok(None);
        };
        let predicate = predicate_of(given)?;
        let columns = Columns::of(&self.manifest);
        let filter = columns.and_then(|c| predicate.filter_with(&c, &SystemClock, use_stats));
        Ok(Some(Arc::new(checked(given.py(), filter)?)))
    }

    /// The same table with another snapshot.
    pub(crate) fn with(&self, manifest: Arc<Manifest>) -> Self {
        Self {
            store: self.store.again(),
            path: self.path.clone(),
            manifest,
        }
    }

    /// The outcome of a commit of these files, and the snapshot after it.
    pub(crate) fn after(&self, done: &Committed, files: &[DataFile]) -> (Outcome, Self) {
        let after = self.with(Arc::clone(&done.snapshot.manifest));
        (outcome(done, files), after)
    }

    /// Runs a commit; gives its outcome and the snapshot after it.
    pub(crate) fn committed(
        &self,
        py: Python<'_>,
        change: impl Change + 'static,
        timeout: f64,
    ) -> PyResult<(Outcome, Self)> {
        let table = checked(py, self.table())?;
        let timeout = checked(py, seconds("commit_timeout", timeout))?;
        let done = run(
            py,
            move || async move { commit(&table, &change, timeout).await },
        )?;
        Ok(self.after(&done, &[]))
    }
}
