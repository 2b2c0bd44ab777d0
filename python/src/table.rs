//! Tables: one snapshot as Python holds it, and what is done on the newest.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use chrono::DateTime;
use pds::store::Store;
use pds::table::actions::{NewTable, Restore, Tag, create};
use pds::table::commit::was_committed;
use pds::table::format::{CommitId, DataFile, TimestampMicros};
use pds::table::{
    self, ReplaceTarget, ScanOptions, Table, TableColumns, TableWriteOptions, vacuum,
};
use pds::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;

use crate::commits::{ClauseFields, OutcomeFields, outcome_fields, parse_clause, rewrite_options};
use crate::dataset::PyWriteOptions;
use crate::handle::TableHandle;
use crate::input::{extract_reader, extract_schema, parse_seconds};
use crate::predicate::extract_predicate;
use crate::runtime::{into_py_result, run};
use crate::scan::Scan;
use crate::store::StoreHandle;

/// Version; paths that are missing, of another length, named by nobody.
type CheckFields = (u64, Vec<String>, Vec<String>, Vec<String>);

#[pymethods]
impl TableHandle {
    /// Creates a table.
    #[staticmethod]
    fn create(
        py: Python<'_>,
        store: &StoreHandle,
        path: String,
        schema: &Bound<'_, PyAny>,
        key: Vec<String>,
        sort_by: Vec<String>,
    ) -> PyResult<Self> {
        let new = into_py_result(py, NewTable::new(&extract_schema(schema)?, &key, &sort_by))?;
        let table = into_py_result(py, store.store().and_then(|s| Table::new(s, &path)))?;
        let snapshot = run(py, move || async move { create(&table, new).await })?;
        Ok(Self {
            store: store.clone_handle(),
            path,
            manifest: snapshot.manifest,
        })
    }

    /// Opens a table's newest snapshot, or that of a version.
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

    /// The snapshot of a version.
    fn at(&self, py: Python<'_>, version: u64) -> PyResult<Self> {
        Self::open(py, &self.store, self.path.clone(), Some(version))
    }

    /// The snapshot that was the newest so many microseconds after 1970.
    fn at_time(&self, py: Python<'_>, micros: i64) -> PyResult<Self> {
        let outside = || Error::invalid(format!("{micros} microseconds are no moment"));
        let time = DateTime::from_timestamp_micros(micros).ok_or_else(outside);
        let time = TimestampMicros::new(into_py_result(py, time)?);
        let table = into_py_result(py, self.table())?;
        let manifest = run(py, move || async move {
            let newest = table.newest().await?.manifest;
            table::at_time(&table, &newest, time).await
        })?;
        Ok(self.with_manifest(manifest))
    }

    /// The snapshot's number.
    #[getter]
    fn version(&self) -> u64 {
        self.manifest.version
    }

    /// When it was made, in microseconds after 1970: later than any version before.
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

    /// The manifest's JSON.
    fn manifest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.manifest.to_bytes())
    }

    /// The JSON of the last versions' manifests, newest first.
    fn history<'py>(&self, py: Python<'py>, limit: u64) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let table = into_py_result(py, self.table())?;
        let newest = Arc::clone(&self.manifest);
        let manifests = run(py, move || async move {
            table::history(&table, &newest, limit).await
        })?;
        let bytes = manifests.iter().map(|m| PyBytes::new(py, &m.to_bytes()));
        Ok(bytes.collect())
    }

    /// How many data files there are; nothing is read.
    #[getter]
    fn file_count(&self) -> u64 {
        self.manifest.file_count()
    }

    /// The data files: path, bytes, row groups, rows.
    fn files(&self, py: Python<'_>) -> PyResult<Vec<(String, u64, u64, u64)>> {
        let table = into_py_result(py, self.table())?;
        let manifest = Arc::clone(&self.manifest);
        let files = run(py, move || async move {
            table::all_files(&table, &manifest).await
        })?;
        let row = |f: DataFile| (f.path, f.size_bytes, f.row_group_count, f.total_rows);
        Ok(files.into_iter().map(|entry| row(entry.file)).collect())
    }

    /// Checks a filter; raises `InvalidInput`.
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
        let scan_options = ScanOptions {
            columns,
            filter: self.build_filter(predicate, use_stats)?,
            limit,
        };
        let manifest = Arc::clone(&self.manifest);
        let scan = run(py, move || async move {
            table::scan(&table, manifest, scan_options).await
        })?;
        Ok(Scan::new(scan))
    }

    /// What a scan would read: files, those read, row groups, those read, rows, tombstone files.
    fn explain(
        &self,
        py: Python<'_>,
        predicate: Option<&Bound<'_, PyAny>>,
        use_stats: bool,
    ) -> PyResult<(u64, u64, u64, u64, u64, u64)> {
        let table = into_py_result(py, self.table())?;
        let scan_options = ScanOptions {
            filter: self.build_filter(predicate, use_stats)?,
            ..ScanOptions::default()
        };
        let manifest = Arc::clone(&self.manifest);
        let plan = run(py, move || async move {
            table::explain(&table, manifest, scan_options).await
        })?;
        Ok((
            plan.files,
            plan.files_read,
            plan.row_groups,
            plan.row_groups_read,
            plan.rows_read,
            plan.tombstones_read,
        ))
    }

    /// Checks the table: version, what is missing, what has another length, what nobody names.
    fn check(&self, py: Python<'_>) -> PyResult<CheckFields> {
        let table = into_py_result(py, self.table())?;
        let report = run(py, move || async move { table::check(&table).await })?;
        Ok((
            report.version,
            report.missing,
            report.mismatched,
            report.orphans,
        ))
    }

    /// Streams the changes after a version up to this snapshot.
    fn changes(&self, py: Python<'_>, since: u64) -> PyResult<Scan> {
        let since = self.at(py, since)?.manifest;
        let table = into_py_result(py, self.table())?;
        let until = Arc::clone(&self.manifest);
        let scan = run(py, move || async move {
            table::scan_changes(&table, since, until)
        })?;
        Ok(Scan::new(scan))
    }

    /// Deletes rows: the outcome, or None where there was nothing to delete; rows, tombstone bytes.
    fn delete(
        &self,
        py: Python<'_>,
        predicate: &Bound<'_, PyAny>,
        timeout: f64,
    ) -> PyResult<(Option<OutcomeFields>, Option<u64>, u64, Self)> {
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let predicate = extract_predicate(predicate)?;
        let table = into_py_result(py, self.table())?;
        let deleted = run(py, move || async move {
            table::delete(&table, &predicate, timeout).await
        })?;
        let after = self.with_manifest(deleted.snapshot.manifest);
        let outcome = deleted
            .committed
            .map(|committed| outcome_fields(&committed, &[]));
        Ok((outcome, deleted.rows, deleted.bytes, after))
    }

    /// Appends a stream, or puts it in the place of all there is.
    #[expect(clippy::too_many_arguments, reason = "a call of the facade's own")]
    fn write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        options: PyWriteOptions,
        input_in_memory: bool,
        overwrite: bool,
        idempotency_key: Option<String>,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        let options = into_py_result(py, options.to_write_options())?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let write_options = TableWriteOptions {
            write_options: options,
            input_in_memory,
            overwrite,
            idempotency_key,
            timeout,
            sort_by: None,
        };
        let (committed, files) = run(py, move || async move {
            table::write(&table, input, &write_options).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Puts a stream in the place of the rows for which a predicate holds, or with None of those with
    /// the same values in the columns `on`.
    #[expect(clippy::too_many_arguments, reason = "a call of the facade's own")]
    fn replace_rows(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        options: PyWriteOptions,
        input_in_memory: bool,
        predicate: Option<&Bound<'_, PyAny>>,
        on: Option<Vec<String>>,
        idempotency_key: Option<String>,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        let write_options = TableWriteOptions {
            write_options: into_py_result(py, options.to_write_options())?,
            input_in_memory,
            overwrite: false,
            idempotency_key,
            timeout: into_py_result(py, parse_seconds("commit_timeout", timeout))?,
            sort_by: None,
        };
        let predicate = predicate.map(extract_predicate).transpose()?;
        let target = predicate.map_or(ReplaceTarget::MatchingKeys(on), ReplaceTarget::Predicate);
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let (committed, files) = run(py, move || async move {
            table::replace_rows(&table, input, &target, &write_options).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Merges a stream by clauses: the outcome, or None where there was nothing to do.
    #[expect(clippy::too_many_arguments, reason = "a call of the facade's own")]
    fn merge(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        on: Option<Vec<String>>,
        clauses: Vec<ClauseFields>,
        options: PyWriteOptions,
        idempotency_key: Option<String>,
        timeout: f64,
    ) -> PyResult<(Option<OutcomeFields>, Self)> {
        let parsed_clauses = clauses.into_iter().map(|fields| parse_clause(py, fields));
        let clauses = parsed_clauses.collect::<PyResult<Vec<_>>>()?;
        let write_options = TableWriteOptions {
            idempotency_key,
            ..rewrite_options(py, &options, timeout)?
        };
        let table = into_py_result(py, self.table())?;
        let input = extract_reader(data)?;
        let merged = run(py, move || async move {
            table::merge(&table, input, on.as_deref(), &clauses, &write_options).await
        })?;
        let outcome = merged
            .committed
            .map(|committed| outcome_fields(&committed, &merged.added));
        Ok((outcome, self.with_manifest(merged.snapshot.manifest)))
    }

    /// Adds Parquet files that are there already.
    fn add_files(
        &self,
        py: Python<'_>,
        paths: Vec<String>,
        idempotency_key: Option<String>,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let table = into_py_result(py, self.table())?;
        let (committed, files) = run(py, move || async move {
            table::add_files(&table, &paths, idempotency_key.as_deref(), timeout).await
        })?;
        Ok(self.outcome_and_snapshot(&committed, &files))
    }

    /// Writes small files as larger ones: the outcome, or None.
    fn compact(
        &self,
        py: Python<'_>,
        target_bytes: u64,
        predicate: Option<&Bound<'_, PyAny>>,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Option<(OutcomeFields, Self)>> {
        let row_predicate = predicate.map(extract_predicate).transpose()?;
        let (table, write_options) = (
            into_py_result(py, self.table())?,
            rewrite_options(py, &options, timeout)?,
        );
        let compacted = run(py, move || async move {
            table::compact(&table, target_bytes, row_predicate.as_ref(), &write_options).await
        });
        Ok(compacted?
            .map(|compacted| self.outcome_and_snapshot(&compacted.committed, &compacted.added)))
    }

    /// Writes all rows anew, sorted: the outcome, or None.
    fn sort(
        &self,
        py: Python<'_>,
        by: Option<Vec<String>>,
        target_bytes: u64,
        options: PyWriteOptions,
        timeout: f64,
    ) -> PyResult<Option<(OutcomeFields, Self)>> {
        let (table, write_options) = (
            into_py_result(py, self.table())?,
            rewrite_options(py, &options, timeout)?,
        );
        let sorted = run(py, move || async move {
            table::sort(&table, by.as_deref(), target_bytes, &write_options).await
        })?;
        Ok(sorted.map(|sorted| self.outcome_and_snapshot(&sorted.committed, &sorted.added)))
    }

    /// Makes a version's content the newest.
    fn restore(
        &self,
        py: Python<'_>,
        version: u64,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        let from = self.at(py, version)?.manifest;
        self.commit_change(py, Restore { from }, timeout)
    }

    /// Gives a version a name, or takes the name away.
    fn tag(
        &self,
        py: Python<'_>,
        name: String,
        version: Option<u64>,
        timeout: f64,
    ) -> PyResult<(OutcomeFields, Self)> {
        self.commit_change(py, Tag { name, version }, timeout)
    }

    /// Removes what no kept version needs: oldest version, files, manifests, bytes.
    fn vacuum(
        &self,
        py: Python<'_>,
        retention: f64,
        dry_run: bool,
        timeout: f64,
    ) -> PyResult<(u64, Vec<String>, Vec<String>, u64)> {
        let retention = into_py_result(py, parse_seconds("retention", retention))?;
        let timeout = into_py_result(py, parse_seconds("commit_timeout", timeout))?;
        let table = into_py_result(py, self.table())?;
        let report = run(py, move || async move {
            vacuum::vacuum(&table, retention, dry_run, timeout).await
        })?;
        Ok((
            report.oldest_version,
            report.files,
            report.manifests,
            report.bytes,
        ))
    }

    /// The version that a commit made; None if it made none.
    fn was_committed(&self, py: Python<'_>, commit_id: &str) -> PyResult<Option<u64>> {
        let commit_id = into_py_result(py, CommitId::parse(commit_id))?;
        let table = into_py_result(py, self.table())?;
        run(py, move || async move {
            was_committed(&table, &commit_id).await
        })
    }
}

/// Whether there is a table.
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

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TableHandle>()?;
    module.add_function(wrap_pyfunction!(table_exists, module)?)
}
