//! What commits of tables take and tell.

use pds::Error;
use pds::table::commit::Committed;
use pds::table::format::DataFile;
use pds::table::{Clause, Then, Upload, When};
use pyo3::prelude::*;

use crate::dataset::Options;
use crate::input::seconds;
use crate::runtime::checked;

/// Version, commit, attempts, seconds waited, whether replayed, rows, files, bytes.
pub(crate) type Outcome = (u64, String, u32, f64, bool, u64, usize, u64);

/// How files are written anew.
pub(crate) fn rewriting(py: Python<'_>, options: &Options, timeout: f64) -> PyResult<Upload> {
    Ok(Upload {
        options: checked(py, options.check())?,
        resident: false,
        overwrite: false,
        idempotency_key: None,
        timeout: checked(py, seconds("commit_timeout", timeout))?,
        order: None,
    })
}

/// The outcome of a commit of these files.
pub(crate) fn outcome(done: &Committed, files: &[DataFile]) -> Outcome {
    let total = |of: fn(&DataFile) -> u64| files.iter().map(of).sum();
    (
        done.version,
        done.commit_id.as_str().to_owned(),
        done.attempts,
        done.waited.as_secs_f64(),
        done.replayed,
        total(|f| f.total_rows),
        files.len(),
        total(|f| f.size_bytes),
    )
}

/// Which rows, as the methods of a merge name them, a predicate, and what with them: None deletes, no
/// column writes all.
pub(crate) type GivenClause = (String, Option<String>, Option<Vec<(String, String)>>);

/// A clause of a merge.
pub(crate) fn clause(py: Python<'_>, given: GivenClause) -> PyResult<Clause> {
    let (when, predicate, written) = given;
    let when = match when.as_str() {
        "matched" => Ok(When::Matched),
        "not_matched" => Ok(When::NotMatched),
        "not_matched_by_source" => Ok(When::NotMatchedBySource),
        other => Err(Error::invalid(format!("there is no clause {other:?}"))),
    };
    Ok(Clause {
        when: checked(py, when)?,
        predicate,
        then: match written {
            None => Then::Delete,
            Some(columns) if columns.is_empty() => Then::WriteAll,
            Some(columns) => Then::Write(columns),
        },
    })
}
