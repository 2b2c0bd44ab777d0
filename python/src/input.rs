//! What Python hands over: Arrow streams and schemas, without a copy; numbers.

use std::time::Duration;

use arrow_array::RecordBatchReader;
use arrow_schema::SchemaRef;
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3_arrow::{PyRecordBatchReader, PySchema};

use crate::error::to_python;

/// The reader behind an object with `__arrow_c_stream__`.
pub(crate) fn reader(data: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    let py = data.py();
    let unusable =
        |e: PyErr| to_python(py, &Error::invalid(format!("the data cannot be used: {e}")));
    let reader = data.extract::<PyRecordBatchReader>().map_err(unusable)?;
    reader.into_reader()
}

/// A number of seconds that is not negative.
pub(crate) fn seconds(name: &str, value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_unusable| {
        Error::invalid(format!(
            "{name} must be a number of seconds that is not negative, not {value}"
        ))
    })
}

/// The schema behind an object with `__arrow_c_schema__`.
pub(crate) fn schema_of(schema: &Bound<'_, PyAny>) -> PyResult<SchemaRef> {
    let unusable = |e: PyErr| {
        let error = Error::invalid(format!("the schema cannot be used: {e}"));
        to_python(schema.py(), &error)
    };
    let schema = schema.extract::<PySchema>().map_err(unusable)?;
    Ok(schema.into_inner())
}
