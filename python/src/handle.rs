//! A snapshot of a table on the side of Rust: its table, its filters and the commits on it.
//!
//! What Python calls on it is in [`crate::table`].

use std::sync::Arc;

use pds::Result;
use pds::clock::SystemClock;
use pds::table::commit::{Change, Committed, commit};
use pds::table::format::{DataFile, Manifest};
use pds::table::{Filter, Table, TableColumns};
use pyo3::prelude::*;

use crate::commits::{OutcomeFields, outcome_fields};
use crate::input::parse_seconds;
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
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
    pub(crate) fn build_filter(
        &self,
        py_predicate: Option<&Bound<'_, PyAny>>,
        use_stats: bool,
    ) -> PyResult<Option<Arc<Filter>>> {
        let Some(py_predicate) = py_predicate else {
            return Ok(None);
        };
        let predicate = extract_predicate(py_predicate)?;
        let columns = TableColumns::from_manifest(&self.manifest);
        let filter = columns.and_then(|c| predicate.bind_with(&c, &SystemClock, use_stats));
        Ok(Some(Arc::new(into_py_result(py_predicate.py(), filter)?)))
    }

    /// The same table with another snapshot.
    pub(crate) fn with_manifest(&self, manifest: Arc<Manifest>) -> Self {
        Self {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest,
        }
    }

    /// The outcome of a commit of these files, and the snapshot after it.
    pub(crate) fn outcome_and_snapshot(
        &self,
        committed: &Committed,
        files: &[DataFile],
    ) -> (OutcomeFields, Self) {
        let snapshot = self.with_manifest(Arc::clone(&committed.snapshot.manifest));
        (outcome_fields(committed, files), snapshot)
    }

    /// Runs a commit; gives its outcome and the snapshot after it.
    pub(crate) fn commit_change(
        &self,
        py: Python<'_>,
        change: impl Change + 'static,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        let table = into_py_result(py, self.table())?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let committed = run(
            py,
            move || async move { commit(&table, &change, timeout).await },
        )?;
        Ok(self.outcome_and_snapshot(&committed, &[]))
    }
}
