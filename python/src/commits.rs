//! Arguments and results of table commits.

use std::sync::Arc;

use pds::Error;
use pds::table::Committed;
use pds::table::format::{DataFile, TableManifest};
use pds::table::{Clause, ClauseAction, ClauseKind, OpenedColumns, TableWriteOptions};
use pds::versions::RequiredVersion;
use pyo3::prelude::*;

use crate::dataset::PyWriteOptions;
use crate::input::parse_seconds;
use crate::runtime::into_py_result;

/// The outcome of a commit; a dict in Python.
#[derive(Debug, IntoPyObject)]
pub(crate) struct CommitFields {
    version: u64,
    commit_id: String,
    /// The number of rows written or deleted; None if they were not counted.
    rows: Option<u64>,
    /// The number of data files written.
    files: usize,
    /// The size of what was written, in bytes, without the manifest and the pointer.
    bytes: u64,
    attempts: u32,
    /// The time waited, in seconds.
    waited: f64,
    replayed: bool,
}

/// The attributes of `pds.table.options.CommitOptions`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyCommitOptions {
    pub(crate) idempotency_key: Option<String>,
    if_version: Option<u64>,
    pub(crate) timeout: f64,
}

impl PyCommitOptions {
    /// The options of a write of rows by a caller who has read the version `opened`.
    pub(crate) fn into_write_options(
        self,
        py: Python<'_>,
        options: &PyWriteOptions,
        input_in_memory: bool,
        opened: &Arc<TableManifest>,
    ) -> PyResult<TableWriteOptions> {
        let is_opened = |version| opened.version == version;
        let if_version = self.if_version.map(|version| RequiredVersion {
            version,
            commit_id: is_opened(version).then(|| opened.commit_id.clone()),
        });
        Ok(TableWriteOptions {
            input_in_memory,
            idempotency_key: self.idempotency_key,
            if_version,
            opened: OpenedColumns::of(opened),
            ..rewrite_options(py, options, self.timeout)?
        })
    }
}

/// The options with which files are rewritten.
pub(crate) fn rewrite_options(
    py: Python<'_>,
    options: &PyWriteOptions,
    timeout: f64,
) -> PyResult<TableWriteOptions> {
    Ok(TableWriteOptions {
        write_options: into_py_result(py, options.to_write_options())?,
        input_in_memory: false,
        overwrite: false,
        merge_schema: false,
        idempotency_key: None,
        if_version: None,
        timeout: into_py_result(py, parse_seconds("commit_timeout", timeout))?,
        sort_by: None,
        threads: None,
        opened: OpenedColumns::default(),
    })
}

/// The options with which a task writes files, which another process commits.
pub(crate) fn task_options(
    py: Python<'_>,
    options: &PyWriteOptions,
    threads: Option<usize>,
) -> PyResult<TableWriteOptions> {
    Ok(TableWriteOptions {
        threads,
        ..rewrite_options(py, options, 0.0)?
    })
}

impl CommitFields {
    /// A commit that wrote these files.
    pub(crate) fn of_files(committed: &Committed, files: &[DataFile]) -> Self {
        let total = |value: fn(&DataFile) -> u64| files.iter().map(value).sum();
        Self {
            files: files.len(),
            ..Self::new(
                committed,
                Some(total(|f| f.total_rows)),
                total(|f| f.size_bytes),
            )
        }
    }

    /// A commit that wrote or deleted `rows`, with `bytes` written, and no data file.
    pub(crate) fn new(committed: &Committed, rows: Option<u64>, bytes: u64) -> Self {
        Self {
            version: committed.version,
            commit_id: committed.commit_id.as_str().to_owned(),
            rows,
            files: 0,
            bytes,
            attempts: committed.attempts,
            waited: committed.waited.as_secs_f64(),
            replayed: committed.replayed,
        }
    }
}

/// The attributes of `pds.table.merge.MergeClause`.
#[derive(Debug, FromPyObject)]
pub(crate) struct PyMergeClause {
    /// Which rows: `matched`, `not_matched` or `not_matched_by_source`.
    rows: String,
    predicate: Option<String>,
    /// Columns with their values; None deletes the rows, an empty list writes all columns.
    assignments: Option<Vec<(String, String)>>,
}

/// Parses a clause of a merge.
pub(crate) fn parse_clause(py: Python<'_>, clause: PyMergeClause) -> PyResult<Clause> {
    let kind = match clause.rows.as_str() {
        "matched" => Ok(ClauseKind::Matched),
        "not_matched" => Ok(ClauseKind::NotMatched),
        "not_matched_by_source" => Ok(ClauseKind::NotMatchedBySource),
        other => Err(Error::invalid(format!(
            "unknown clause {other:?} of a merge"
        ))),
    };
    Ok(Clause {
        kind: into_py_result(py, kind)?,
        predicate: clause.predicate,
        action: match clause.assignments {
            None => ClauseAction::Delete,
            Some(columns) if columns.is_empty() => ClauseAction::WriteAll,
            Some(columns) => ClauseAction::Write(columns),
        },
    })
}
