//! What commits of tables take and tell.

use pds::Error;
use pds::table::commit::Committed;
use pds::table::format::DataFile;
use pds::table::{Clause, Then, Upload, When};
use pyo3::prelude::*;

use crate::dataset::PyWriteOptions;
use crate::input::parse_seconds;
use crate::runtime::into_py_result;

/// Version, commit, attempts, seconds waited, whether replayed, rows, files, bytes.
pub(crate) type OutcomeFields = (u64, String, u32, f64, bool, u64, usize, u64);

/// How files are written anew.
pub(crate) fn rewrite_options(
    py: Python<'_>,
    options: &PyWriteOptions,
    timeout: f64,
) -> PyResult<Upload> {
    Ok(Upload {
        options: into_py_result(py, options.to_write_options())?,
        resident: false,
        overwrite: false,
        idempotency_key: None,
        timeout: into_py_result(py, parse_seconds("commit_timeout", timeout))?,
        order: None,
    })
}

/// The outcome of a commit of these files.
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

/// Which rows, as the methods of a merge name them, a predicate, and what with them: None deletes, no
/// column writes all.
pub(crate) type ClauseFields = (String, Option<String>, Option<Vec<(String, String)>>);

/// A clause of a merge.
pub(crate) fn parse_clause(py: Python<'_>, fields: ClauseFields) -> PyResult<Clause> {
    let (when_name, predicate, assignments) = fields;
    let when = match when_name.as_str() {
        "matched" => Ok(When::Matched),
        "not_matched" => Ok(When::NotMatched),
        "not_matched_by_source" => Ok(When::NotMatchedBySource),
        other => Err(Error::invalid(format!("there is no clause {other:?}"))),
    };
    Ok(Clause {
        when: into_py_result(py, when)?,
        predicate,
        then: match assignments {
            None => Then::Delete,
            Some(columns) if columns.is_empty() => Then::WriteAll,
            Some(columns) => Then::Write(columns),
        },
    })
}
