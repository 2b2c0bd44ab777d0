//! Staged parts, and the index of a dataset's parts, as Python objects that can be pickled.

use std::sync::Arc;

use pds::Error;
use pds::dataset::{PartIndex as EngineIndex, StagedPart as EnginePart};
use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::runtime::into_py_result;

/// The function that makes an object again, and its arguments.
type Reduced<'py> = (Bound<'py, PyAny>, (Bound<'py, PyBytes>,));

fn reduce<'py, T: PyTypeInfo>(
    py: Python<'py>,
    bytes: Bound<'py, PyBytes>,
) -> PyResult<Reduced<'py>> {
    Ok((py.get_type::<T>().getattr("from_bytes")?, (bytes,)))
}

fn encode<'py>(
    py: Python<'py>,
    json: serde_json::Result<Vec<u8>>,
    name: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = json.map_err(|e| Error::other(format!("cannot serialize {name}")).with_source(e));
    Ok(PyBytes::new(py, &into_py_result(py, bytes)?))
}

fn decode<T>(py: Python<'_>, parsed: serde_json::Result<T>, name: &str) -> PyResult<T> {
    let invalid =
        |e: serde_json::Error| Error::invalid(format!("the bytes are not {name}")).with_source(e);
    into_py_result(py, parsed.map_err(invalid))
}

/// A part that is uploaded and not yet published.
#[pyclass(frozen, from_py_object, module = "pds._pds")]
#[derive(Debug, Clone)]
pub(crate) struct StagedPart(pub(crate) EnginePart);

#[pymethods]
impl StagedPart {
    /// The number of rows of the part.
    #[getter]
    fn rows(&self) -> u64 {
        self.0.rows
    }

    /// The size of the part in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// The number of the task that wrote the part.
    #[getter]
    fn task(&self) -> u64 {
        self.0.task
    }

    /// The part's number among the parts of its task.
    #[getter]
    fn sequence(&self) -> u64 {
        self.0.sequence
    }

    /// Encodes the part as bytes, for messages.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        encode(py, serde_json::to_vec(&self.0), "a staged part")
    }

    /// Decodes bytes of `to_bytes`; raises `InvalidInput` for other bytes.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        decode(py, serde_json::from_slice(data), "a staged part").map(Self)
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        reduce::<Self>(py, self.to_bytes(py)?)
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

/// The parts of a dataset as they were when they were indexed, in order. `read_part` compares its part with them.
#[pyclass(frozen, from_py_object, module = "pds._pds")]
#[derive(Debug, Clone)]
pub(crate) struct PartIndex(pub(crate) Arc<EngineIndex>);

#[pymethods]
impl PartIndex {
    /// The size of each part in bytes.
    #[getter]
    fn sizes(&self) -> Vec<u64> {
        self.0.entries.iter().map(|part| part.bytes).collect()
    }

    /// The number of rows of each part.
    #[getter]
    fn rows(&self) -> Vec<u64> {
        self.0.entries.iter().map(|part| part.rows).collect()
    }

    /// The number of row groups of each part.
    #[getter]
    fn row_groups(&self) -> Vec<u64> {
        self.0.entries.iter().map(|part| part.row_groups).collect()
    }

    fn __len__(&self) -> usize {
        self.0.entries.len()
    }

    /// Encodes the index as bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        encode(py, serde_json::to_vec(&*self.0), "a part index")
    }

    /// Decodes bytes of `to_bytes`; raises `InvalidInput` for other bytes.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let index = decode(py, serde_json::from_slice(data), "a part index")?;
        Ok(Self(Arc::new(index)))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        reduce::<Self>(py, self.to_bytes(py)?)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    fn __repr__(&self) -> String {
        format!("PartIndex({} parts)", self.0.entries.len())
    }
}
