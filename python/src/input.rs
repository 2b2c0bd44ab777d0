//! Arguments from Python: Arrow streams and schemas, which are not copied, numbers of seconds and scopes.

use std::time::Duration;

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use pds::parquet::types::batch_with_plain_values;
use pds::producers::ChangeScope;
use pds::{Error, Result};
use pyo3::exceptions::{PyKeyboardInterrupt, PySystemExit};
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatchReader, PySchema};

use crate::error::{PyCause, to_python};

/// The record batch reader of an object with `__arrow_c_stream__`. All rows that callers write come in here.
pub(crate) fn extract_reader(
    data: &Bound<'_, PyAny>,
) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    let py = data.py();
    let unusable =
        |e: PyErr| to_python(py, &Error::invalid(format!("the data cannot be used: {e}")));
    let py_reader = data.extract::<PyRecordBatchReader>().map_err(unusable)?;
    let reader = py_reader.into_reader()?;
    let schema = reader.schema();
    let batches = reader.map(|batch| {
        let batch = batch.map_err(restore_interrupt)?;
        batch_with_plain_values(&batch).map_err(|e| ArrowError::ExternalError(Box::new(e)))
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

/// Restores an exception that ends a program (Ctrl-C, `sys.exit`), of which an Arrow stream passes on only the name.
fn restore_interrupt(error: ArrowError) -> ArrowError {
    let text = error.to_string();
    // The text is the exception alone, or its traceback, which ends with it.
    let last_line = text.trim_end().lines().next_back().unwrap_or_default();
    let exception = last_line
        .rsplit("Python exception: ")
        .next()
        .unwrap_or_default();
    let is_exception = |name: &str| {
        text.contains("Python exception")
            && exception
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    };
    let original = if is_exception("KeyboardInterrupt") {
        PyKeyboardInterrupt::new_err(())
    } else if is_exception("SystemExit") {
        PySystemExit::new_err(())
    } else {
        return error;
    };
    ArrowError::ExternalError(Box::new(PyCause(original)))
}

/// Parses a non-negative number of seconds; the error names the argument.
pub(crate) fn parse_seconds(name: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_unusable| {
        Error::invalid(format!(
            "{name} must be a non-negative number of seconds, not {value}"
        ))
    })
}

/// The schema of an object with `__arrow_c_schema__`.
pub(crate) fn extract_schema(schema: &Bound<'_, PyAny>) -> PyResult<SchemaRef> {
    let unusable = |e: PyErr| {
        let error = Error::invalid(format!("the schema cannot be used: {e}"));
        to_python(schema.py(), &error)
    };
    let py_schema = schema.extract::<PySchema>().map_err(unusable)?;
    Ok(py_schema.into_inner())
}

/// Which keys of a source change.
pub(crate) fn parse_scope(text: &str) -> Result<ChangeScope> {
    match text {
        "named" => Ok(ChangeScope::Named),
        "all" => Ok(ChangeScope::All),
        "listed" => Ok(ChangeScope::Listed),
        _ => Err(Error::other(format!(
            "internal error: no scope of changes is {text:?}"
        ))),
    }
}
