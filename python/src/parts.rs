//! Staged parts, and what parts of a dataset are, as Python objects that can be sent to another process.

use std::sync::Arc;

use pds::dataset::{PartIndex as EngineIndex, StagedPart as EnginePart};
use pds::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::into_py_result;

/// A part that waits to be published.
#[pyclass(frozen, from_py_object, module = "pds._pds")]
#[derive(Debug, Clone)]
pub(crate) struct StagedPart(pub(crate) EnginePart);

#[pymethods]
impl StagedPart {
    /// Rows of the part.
    #[getter]
    fn rows(&self) -> u64 {
        self.0.rows
    }

    /// Bytes of the part.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The task that wrote it.
    #[getter]
    fn task(&self) -> u64 {
        self.0.task
    }

    /// Its number among the task's parts.
    #[getter]
    fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// The part as bytes, for messages.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = serde_json::to_vec(&self.0)
            .map_err(|e| Error::other("a part cannot be sent").with_source(e));
        Ok(PyBytes::new(py, &into_py_result(py, bytes)?))
    }

    /// The part that `to_bytes` made.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let parsed = serde_json::from_slice(data).map(Self).map_err(|e| {
            Error::new(ErrorKind::InvalidInput, "these bytes are no staged part").with_source(e)
        });
        into_py_result(py, parsed)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let from_bytes = py.get_type::<Self>().getattr("from_bytes")?;
        Ok((from_bytes, (self.to_bytes(py)?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        let part = &self.0;
        format!(
            "StagedPart(task={}, sequence={}, rows={}, bytes={})",
            part.task, part.sequence, part.rows, part.bytes
        )
    }
}

/// What each part of a dataset is, in order: `read_part` compares the part it reads with it.
#[pyclass(frozen, from_py_object, module = "pds._pds")]
#[derive(Debug, Clone)]
pub(crate) struct PartIndex(pub(crate) Arc<EngineIndex>);

#[pymethods]
impl PartIndex {
    /// Bytes of each part.
    #[getter]
    fn sizes(&self) -> Vec<u64> {
        self.0.entries.iter().map(|part| part.bytes).collect()
    }

    /// Rows of each part.
    #[getter]
    fn rows(&self) -> Vec<u64> {
        self.0.entries.iter().map(|part| part.rows).collect()
    }

    fn __len__(&self) -> usize {
        self.0.entries.len()
    }

    /// The index as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = serde_json::to_vec(&*self.0)
            .map_err(|e| Error::other("an index of parts cannot be sent").with_source(e));
        Ok(PyBytes::new(py, &into_py_result(py, bytes)?))
    }

    /// The index that `to_bytes` made.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let parsed = serde_json::from_slice(data).map(|index| Self(Arc::new(index)));
        let parsed = parsed.map_err(|e| {
            let message = "these bytes are no index of parts";
            Error::new(ErrorKind::InvalidInput, message).with_source(e)
        });
        into_py_result(py, parsed)
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let from_bytes = py.get_type::<Self>().getattr("from_bytes")?;
        Ok((from_bytes, (self.to_bytes(py)?,)))
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        format!("PartIndex({} parts)", self.0.entries.len())
    }
}
