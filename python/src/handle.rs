//! The native half of a table's snapshot: its table, its filters, and commits on it.
//!
//! The methods that Python calls are in [`crate::table`].

use std::sync::Arc;

use pds::Result;
use pds::clock::SystemClock;
use pds::table::actions::{restore, tag};
use pds::table::format::{DataFile, TableManifest};
use pds::table::{
    Committed, Filter, OpenedColumns, ScanOptions, Table, TableColumns, TableWriteOptions,
};
use pds::versions::Tag;
use pds::versions::commit::{Change, commit};
use pyo3::prelude::*;

use crate::commits::{CommitFields, rewrite_options};
use crate::dataset::PyWriteOptions;
use crate::input::parse_seconds;
use crate::predicate::extract_predicate;
use crate::progress::of_thread;
use crate::runtime::{into_py_result, run};
use crate::store::StoreHandle;

/// One snapshot of a table.
#[pyclass(frozen, module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct TableHandle {
    pub(crate) store: StoreHandle,
    pub(crate) path: String,
    pub(crate) manifest: Arc<TableManifest>,
}

impl TableHandle {
    /// The table of the snapshot.
    pub(crate) fn table(&self) -> Result<Table> {
        Table::new(self.store.store()?, &self.path)
    }

    /// The columns of the snapshot, by which names in the caller's arguments are meant.
    pub(crate) fn opened(&self) -> OpenedColumns {
        OpenedColumns::of(&self.manifest)
    }

    /// The options of a rewrite by a caller who has read the snapshot.
    pub(crate) fn rewrite_options(
        &self,
        py: Python<'_>,
        options: &PyWriteOptions,
        timeout: f64,
    ) -> PyResult<TableWriteOptions> {
        Ok(TableWriteOptions {
            opened: self.opened(),
            ..rewrite_options(py, options, timeout)?
        })
    }

    /// Builds the filter of a predicate for the columns of the snapshot; None without a predicate.
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

    /// What a scan of the snapshot reads.
    pub(crate) fn scan_options(
        &self,
        columns: Option<Vec<String>>,
        py_predicate: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        use_stats: bool,
    ) -> PyResult<ScanOptions> {
        Ok(ScanOptions {
            columns,
            filter: self.build_filter(py_predicate, use_stats)?,
            limit,
            without_statistics: !use_stats,
        })
    }

    /// A handle on the same table with another snapshot.
    pub(crate) fn with_manifest(&self, manifest: Arc<TableManifest>) -> Self {
        Self {
            store: self.store.clone_handle(),
            path: self.path.clone(),
            manifest,
        }
    }

    /// The outcome of a commit that wrote `files`, and the snapshot after it.
    pub(crate) fn outcome_and_snapshot(
        &self,
        committed: &Committed,
        files: &[DataFile],
    ) -> (CommitFields, Self) {
        let snapshot = self.with_manifest(Arc::clone(&committed.snapshot.manifest));
        (CommitFields::of_files(committed, files), snapshot)
    }

    /// Tells the progress of this thread of a read that begins.
    pub(crate) fn report_read(&self, scan: &ScanOptions) {
        let Some(progress) = of_thread() else {
            return;
        };
        progress.begin_phase("read");
        if scan.filter.is_none() {
            let rows = self.manifest.stored_rows();
            progress.expect_rows(rows.min(scan.limit.unwrap_or(u64::MAX)));
        }
    }

    /// Opens another version of the table that the snapshot is of.
    pub(crate) fn open_version(&self, py: Python<'_>, version: u64) -> PyResult<Self> {
        let table = into_py_result(py, self.table())?;
        let seen = Arc::clone(&self.manifest);
        let manifest = run(py, move || async move {
            table.manifest_at_since(&seen, version).await
        })?;
        Ok(self.with_manifest(manifest))
    }

    /// Restores the content of a version of the table that the snapshot is of.
    pub(crate) fn commit_restore(
        &self,
        py: Python<'_>,
        version: u64,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        let table = into_py_result(py, self.table())?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let seen = Arc::clone(&self.manifest);
        let committed = run(py, move || async move {
            restore(&table, &seen, version, timeout).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &[]))
    }

    /// Tags a version, or removes the tag if `version` is None. A version that the snapshot lists has to be of its commit.
    pub(crate) fn commit_tag(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<u64>,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        let table = into_py_result(py, self.table())?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let seen = Arc::clone(&self.manifest);
        let commit_id = version.and_then(|version| self.manifest.commit_id_of(version));
        let change = Tag {
            name,
            version,
            commit_id: commit_id.cloned(),
        };
        let committed = run(py, move || async move {
            tag(&table, &seen, &change, timeout).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &[]))
    }

    /// Commits a change; returns its outcome and the snapshot after it.
    pub(crate) fn commit_change(
        &self,
        py: Python<'_>,
        change: impl Change<TableManifest> + 'static,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        let table = into_py_result(py, self.table())?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let committed = run(
            py,
            move || async move { commit(&table, &change, timeout).await },
        )?;
        Ok(self.outcome_and_snapshot(&committed, &[]))
    }
}
