//! Arguments and results of table commits.

use pds::Error;
use pds::table::commit::Committed;
use pds::table::format::DataFile;
use pds::table::{Clause, ClauseAction, ClauseKind, TableWriteOptions};
use pyo3::prelude::*;

use crate::dataset::PyWriteOptions;
use crate::input::parse_seconds;
use crate::runtime::into_py_result;

/// The version, commit id, attempts, seconds waited, whether it was replayed, rows, files and bytes of a commit.
pub(crate) type OutcomeFields = (u64, String, u32, f64, bool, u64, usize, u64);

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
        idempotency_key: None,
        timeout: into_py_result(py, parse_seconds("commit_timeout", timeout))?,
        sort_by: None,
    })
}

/// The outcome of a commit that wrote `files`.
pub(crate) fn outcome_fields(committed: &Committed, files: &[DataFile]) -> OutcomeFields {
    let total = |value: fn(&DataFile) -> u64| files.iter().map(value).sum();
    (
        committed.version,
        committed.commit_id.as_str().to_owned(),
        committed.attempts,
        committed.waited.as_secs_f64(),
        committed.replayed,
        total(|f| f.total_rows),
        files.len(),
        total(|f| f.size_bytes),
    )
}

/// A clause of a merge: which rows (as the methods of a merge name them), the predicate, and the columns with their
/// values. None deletes the rows; an empty list writes all columns.
pub(crate) type ClauseFields = (String, Option<String>, Option<Vec<(String, String)>>);

/// Parses a clause of a merge.
pub(crate) fn parse_clause(py: Python<'_>, fields: ClauseFields) -> PyResult<Clause> {
    let (when_name, predicate, assignments) = fields;
    let when = match when_name.as_str() {
        "matched" => Ok(ClauseKind::Matched),
        "not_matched" => Ok(ClauseKind::NotMatched),
        "not_matched_by_source" => Ok(ClauseKind::NotMatchedBySource),
        other => Err(Error::invalid(format!(
            "unknown clause {other:?} of a merge"
        ))),
    };
    Ok(Clause {
        kind: into_py_result(py, when)?,
        predicate,
        action: match assignments {
            None => ClauseAction::Delete,
            Some(columns) if columns.is_empty() => ClauseAction::WriteAll,
            Some(columns) => ClauseAction::Write(columns),
        },
    })
}
