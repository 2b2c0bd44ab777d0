//! Arrow streams from Python, without a copy.

use arrow_array::RecordBatchReader;
use pyo3::prelude::*;
use pyo3_arrow::PyRecordBatchReader;

/// The reader behind an object with `__arrow_c_stream__`.
pub(crate) fn reader(data: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    data.extract::<PyRecordBatchReader>()?.into_reader()
}
