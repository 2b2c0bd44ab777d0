//! The methods of a table's snapshot that Python calls.
//!
//! Reads use the snapshot of the handle; writes commit to the newest snapshot and return a new handle
//! with the result. Calls that use the store run through [`crate::runtime::run`], which releases the GIL and
//! maps errors.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use chrono::DateTime;
use pds::store::Store;
use pds::table::actions::create;
use pds::table::format::{CommitId, DataFile, TableManifest, TimestampMicros};
use pds::table::{
    self, ReplaceTarget, ScanOptions, Table, TableColumns, TableWriteOptions, Versioned,
};
use pds::versions::commit::was_committed;
use pds::versions::list_versioned;
use pds::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;

use crate::commits::{CommitFields, PyCommitOptions, PyMergeClause, parse_clause};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::{extract_reader, parse_seconds};
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::scan::Scan;
use crate::store::StoreHandle;
use crate::table_create::PyNewTable;
use crate::table_results::{CheckFields, FileListFields, ScanPlanFields, VacuumFields};

#[pymethods]
impl TableHandle {
    /// Creates a table and opens its first version.
    #[staticmethod]
    fn create(
        py: Python<'_>,
        store: &StoreHandle,
        path: String,
        new_table: PyNewTable<'_>,
    ) -> PyResult<Self> {
        let new = new_table.to_new_table(py)?;
        let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
        let snapshot = run(py, move || async move { create(&table, new).await })?;
        Ok(Self {
            store: store.clone_handle(),
            path,
            manifest: snapshot.manifest,
        })
    }

    /// Opens the newest snapshot of a table, or that of `version`.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        store: &StoreHandle,
        path: String,
        version: Option<u64>,
    ) -> PyResult<Self> {
        let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
        let manifest = run(py, move || async move {
            match version {
                None => table.newest().await.map(|snapshot| snapshot.manifest),
                Some(version) => table.manifest_at(version).await,
            }
        })?;
        Ok(Self {
            store: store.clone_handle(),
            path,
            manifest,
        })
    }

    /// Opens the snapshot of a version.
    fn at(&self, py: Python<'_>, version: u64) -> PyResult<Self> {
        self.open_version(py, version)
    }

    /// Opens the snapshot that was the newest at a time, in microseconds since 1970.
    fn at_time(&self, py: Python<'_>, micros: i64) -> PyResult<Self> {
        let out_of_range = || Error::invalid(format!("timestamp out of range: {micros} µs"));
        let parsed = DateTime::from_timestamp_micros(micros).ok_or_else(out_of_range);
        let time = TimestampMicros::new(into_py_result(py, parsed)?);
        let table = into_py_result(py, self.table())?;
        let seen = Arc::clone(&self.manifest);
        let manifest = run(py, move || async move {
            let newest = table.newest_since(&seen).await?.manifest;
            table::at_time(&table, &newest, time).await
        })?;
        Ok(self.with_manifest(manifest))
    }

    /// The version of the snapshot.
    #[getter]
    fn version(&self) -> u64 {
        self.manifest.version
    }

    /// The id of the commit.
    #[getter]
    fn commit_id(&self) -> &str {
        self.manifest.commit_id.as_str()
    }

    /// The time of the commit in microseconds since 1970, later than that of any version before.
    #[getter]
    fn created_at(&self) -> i64 {
        self.manifest.created_at.as_micros()
    }

    /// The columns, as a `pyarrow.Schema`.
    #[getter]
    fn schema<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let columns = into_py_result(py, TableColumns::from_manifest(&self.manifest))?;
        PySchema::new(columns.schema).into_pyarrow(py)
    }

    /// The manifest as JSON.
    fn manifest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.manifest.to_bytes())
    }

    /// Reads the history of the last `limit` versions: an entry as JSON for each, newest first.
    fn history<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let table = into_py_result(py, self.table())?;
        let newest = Arc::clone(&self.manifest);
        let entries = run(py, move || async move {
            table::history(&table, &newest, limit).await
        })?;
        let bytes = entries.iter().map(|e| PyBytes::new(py, &e.to_bytes()));
        Ok(bytes.collect())
    }

    /// The formats to which every commit is exported.
    #[getter]
    fn exports(&self) -> Vec<String> {
        self.manifest.exports.iter().cloned().collect()
    }

    /// The number of data files; sends no request.
    #[getter]
    fn file_count(&self) -> u64 {
        self.manifest.file_count()
    }

    /// Reads the list of data files.
    fn files(&self, py: Python<'_>) -> PyResult<FileListFields> {
        let table = into_py_result(py, self.table())?;
        let manifest = Arc::clone(&self.manifest);
        let files = run(py, move || async move {
            table::all_files(&table, &manifest).await
        })?;
        let counts = |count: fn(&DataFile) -> u64| files.iter().map(|f| count(&f.file)).collect();
        Ok(FileListFields {
            size_bytes: counts(|f| f.size_bytes),
            row_group_count: counts(|f| f.row_group_count),
            total_rows: counts(|f| f.total_rows),
            path: files.into_iter().map(|f| f.file.path).collect(),
        })
    }

    /// Raises `InvalidInput` if a filter does not fit the snapshot's columns.
    fn check_filter(&self, predicate: &Bound<'_, PyAny>) -> PyResult<()> {
        self.build_filter(Some(predicate), true).map(drop)
    }

    /// Streams the snapshot's rows.
    fn scan(
        &self,
        py: Python<'_>,
        columns: Option<Vec<String>>,
        predicate: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        use_stats: bool,
    ) -> PyResult<Scan> {
        let table = into_py_result(py, self.table())?;
        let scan_options = self.scan_options(columns, predicate, limit, use_stats)?;
        let manifest = Arc::clone(&self.manifest);
        self.report_read(&scan_options);
        let scan = run(py, move || async move {
            table::scan(&table, manifest, scan_options).await
        })?;
        Ok(Scan::new(scan))
    }

    /// Counts the snapshot's rows.
    fn count(
        &self,
        py: Python<'_>,
        predicate: Option<&Bound<'_, PyAny>>,
        limit: Option<u64>,
        use_stats: bool,
    ) -> PyResult<u64> {
        let table = into_py_result(py, self.table())?;
        let filter = self.build_filter(predicate, use_stats)?;
        let manifest = Arc::clone(&self.manifest);
        run(py, move || async move {
            table::count(&table, manifest, filter, limit).await
        })
    }

    /// Plans a scan.
    fn explain(
        &self,
        py: Python<'_>,
        predicate: Option<&Bound<'_, PyAny>>,
        use_stats: bool,
    ) -> PyResult<ScanPlanFields> {
        let table = into_py_result(py, self.table())?;
        let scan_options = ScanOptions {
            filter: self.build_filter(predicate, use_stats)?,
            ..ScanOptions::default()
        };
        let manifest = Arc::clone(&self.manifest);
        let plan = run(py, move || async move {
            table::explain(&table, manifest, scan_options).await
        })?;
        Ok(ScanPlanFields {
            files: plan.files,
            files_read: plan.files_read,
            row_groups: plan.row_groups,
            row_groups_read: plan.row_groups_read,
            rows_read: plan.rows_read,
            tombstones_read: plan.tombstones_read,
        })
    }

    /// Checks the objects of the table.
    fn check(&self, py: Python<'_>) -> PyResult<CheckFields> {
        let table = into_py_result(py, self.table())?;
        let report = run(py, move || async move { table::check(&table).await })?;
        Ok(CheckFields {
            version: report.version,
            missing: report.missing,
            mismatched: report.mismatched,
            orphans: report.orphans,
        })
    }

    /// Streams the changes after version `since`, or 0, up to this snapshot.
    fn changes(&self, py: Python<'_>, since: u64, columns: Option<Vec<String>>) -> PyResult<Scan> {
        let since = match since {
            0 => Arc::new(table::before_first(&self.at(py, 1)?.manifest)),
            _ => self.at(py, since)?.manifest,
        };
        let table = into_py_result(py, self.table())?;
        let until = Arc::clone(&self.manifest);
        let scan = run(py, move || async move {
            table::scan_changes(&table, since, until, columns.as_deref())
        })?;
        Ok(Scan::new(scan))
    }

    /// Deletes rows. Returns the outcome, or None if no row matched, and the snapshot after it.
    fn delete(
        &self,
        py: Python<'_>,
        predicate: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<(Option<CommitFields>, Self)> {
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let predicate = extract_predicate(predicate)?;
        let (table, opened) = (into_py_result(py, self.table())?, self.opened());
        let deleted = run(py, move || async move {
            table::delete(&table, &predicate, opened, timeout).await
        })?;
        let after = self.with_manifest(deleted.snapshot.manifest);
        let outcome = deleted
            .committed
            .map(|committed| CommitFields::new(&committed, deleted.rows, deleted.bytes));
        Ok((outcome, after))
    }

    /// Writes a stream: `append`, `merge_schema` (an append that adds the columns that are missing) or `overwrite`.
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        mode: &str,
        options: PyWriteOptions,
        input_in_memory: bool,
        commit: PyCommitOptions,
    ) -> PyResult<(CommitFields, Self)> {
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let write_options = TableWriteOptions {
            overwrite: mode == "overwrite",
            merge_schema: mode == "merge_schema",
            ..commit.into_write_options(py, &options, input_in_memory, &self.manifest)?
        };
        let (committed, files) = run(py, move || async move {
            table::write(&table, input, &write_options).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Replaces the rows that satisfy a predicate by a stream, or without a predicate the rows with the same
    /// values in the columns `on`.
    #[expect(clippy::too_many_arguments, reason = "a call of the facade's own")]
    fn replace_rows(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        predicate: Option<&Bound<'_, PyAny>>,
        on: Option<Vec<String>>,
        options: PyWriteOptions,
        input_in_memory: bool,
        commit: PyCommitOptions,
    ) -> PyResult<(CommitFields, Self)> {
        let write_options =
            commit.into_write_options(py, &options, input_in_memory, &self.manifest)?;
        let predicate = predicate.map(extract_predicate).transpose()?;
        let target = predicate.map_or(ReplaceTarget::MatchingKeys(on), ReplaceTarget::Predicate);
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let (committed, files) = run(py, move || async move {
            table::replace_rows(&table, input, &target, &write_options).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Merges a stream by clauses. Returns the outcome, or None if nothing changed, and the new snapshot.
    fn merge(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        on: Option<Vec<String>>,
        clauses: Vec<PyMergeClause>,
        options: PyWriteOptions,
        commit: PyCommitOptions,
    ) -> PyResult<(Option<CommitFields>, Self)> {
        let parsed_clauses = clauses.into_iter().map(|clause| parse_clause(py, clause));
        let clauses = parsed_clauses.collect::<PyResult<Vec<_>>>()?;
        let write_options = commit.into_write_options(py, &options, false, &self.manifest)?;
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let merged = run(py, move || async move {
            table::merge(&table, input, on.as_deref(), &clauses, &write_options).await
        })?;
        let outcome = merged
            .committed
            .map(|committed| CommitFields::of_files(&committed, &merged.added));
        Ok((outcome, self.with_manifest(merged.snapshot.manifest)))
    }

    /// Adds existing Parquet files.
    fn add_files(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        hive_partitioning: bool,
        idempotency_key: Option<String>,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let table = into_py_result(py, self.table())?;
        let (committed, files) = run(py, move || async move {
            let key = idempotency_key.as_deref();
            table::add_files(&table, &paths, hive_partitioning, key, timeout).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Rewrites small files as larger ones. Returns None if there is nothing to rewrite.
    fn compact(
        &self,
        py: Python<'_>,
        target_bytes: u64,
        predicate: Option<&Bound<'_, PyAny>>,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Option<(CommitFields, Self)>> {
        let row_predicate = predicate.map(extract_predicate).transpose()?;
        let (table, write_options) = (
            into_py_result(py, self.table())?,
            self.rewrite_options(py, &options, timeout)?,
        );
        let compacted = run(py, move || async move {
            table::compact(&table, target_bytes, row_predicate.as_ref(), &write_options).await
        });
        Ok(compacted?
            .map(|compacted| self.outcome_and_snapshot(&compacted.committed, &compacted.added)))
    }

    /// Rewrites all rows as sorted files. Returns None if there are no files.
    fn sort(
        &self,
        py: Python<'_>,
        by: Option<Vec<String>>,
        target_bytes: u64,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Option<(CommitFields, Self)>> {
        let (table, write_options) = (
            into_py_result(py, self.table())?,
            self.rewrite_options(py, &options, timeout)?,
        );
        let sorted = run(py, move || async move {
            table::sort(&table, by.as_deref(), target_bytes, &write_options).await
        })?;
        Ok(sorted.map(|sorted| self.outcome_and_snapshot(&sorted.committed, &sorted.added)))
    }

    /// Restores the content of a version as a new version.
    fn restore(
        &self,
        py: Python<'_>,
        version: u64,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        self.commit_restore(py, version, timeout)
    }

    /// Tags a version, or removes the tag if `version` is None.
    fn tag(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<u64>,
        timeout: f64,
    ) -> PyResult<(CommitFields, Self)> {
        self.commit_tag(py, name, version, timeout)
    }

    /// Removes the objects that no retained version references.
    fn vacuum(
        &self,
        py: Python<'_>,
        retention: f64,
        dry_run: bool,
        timeout: f64,
    ) -> PyResult<VacuumFields> {
        let retention = into_py_result(py, parse_seconds("retention", retention))?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let table = into_py_result(py, self.table())?;
        let report = run(py, move || async move {
            table::vacuum_exported(&table, retention, dry_run, timeout).await
        })?;
        Ok(report.into())
    }

    /// Returns the version that a commit created, or None if it created none.
    fn was_committed(&self, py: Python<'_>, commit_id: &str) -> PyResult<Option<u64>> {
        let commit_id = into_py_result(py, CommitId::parse(commit_id))?;
        let table = into_py_result(py, self.table())?;
        run(py, move || async move {
            was_committed(&table, &commit_id).await
        })
    }
}

/// Whether there is a table at `path`.
#[pyfunction]
fn table_exists(py: Python<'_>, store: &StoreHandle, path: String) -> PyResult<bool> {
    let store: Store = into_py_result(py, store.store())?;
    let table = into_py_result(py, Table::new(store, &path))?;
    run(py, move || async move {
        match table.newest().await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    })
}

/// Removes a table.
#[pyfunction]
fn drop_table(py: Python<'_>, store: &StoreHandle, path: String) -> PyResult<()> {
    let store: Store = into_py_result(py, store.store())?;
    let table = into_py_result(py, Table::new(store, &path))?;
    run(
        py,
        move || async move { table::drop_exported(&table).await },
    )
}

/// The paths of the tables below a folder.
#[pyfunction]
fn list_tables(py: Python<'_>, store: &StoreHandle, prefix: String) -> PyResult<Vec<String>> {
    let store: Store = into_py_result(py, store.store())?;
    run(py, move || async move {
        list_versioned::<TableManifest>(&store, &prefix).await
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TableHandle>()?;
    module.add_function(wrap_pyfunction!(table_exists, module)?)?;
    module.add_function(wrap_pyfunction!(drop_table, module)?)?;
    module.add_function(wrap_pyfunction!(list_tables, module)?)
}
