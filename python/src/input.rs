//! Arrow streams from Python, without a copy.

use arrow_array::RecordBatchReader;
use pds::Error;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatchReader;

use crate::error::to_python;

/// The reader behind an object with `__arrow_c_stream__`.
pub(crate) fn reader(data: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    let py = data.py();
    let unusable =
        |e: PyErr| to_python(py, &Error::invalid(format!("the data cannot be used: {e}")));
    let reader = data.extract::<PyRecordBatchReader>().map_err(unusable)?;
    reader.into_reader()
}
