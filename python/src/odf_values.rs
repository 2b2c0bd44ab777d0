//! Identities, hashes and schemas of the Open Data Fabric for Python.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use arrow_schema::Schema;
use pds::odf::{self, DatasetId, Multihash, schema};
use pds::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3_arrow::PySchema;

use crate::input::extract_schema;
use crate::odf_results::{DatasetIdFields, IdentityFields, MultihashFields};
use crate::runtime::into_py_result;
use crate::value::{from_object, to_object};

/// Generates an identity with its private key.
#[pyfunction]
fn new_identity(py: Python<'_>) -> PyResult<IdentityFields<'_>> {
    let identity = into_py_result(py, DatasetId::generate())?;
    Ok(IdentityFields {
        id: identity.id.to_string(),
        private_key: PyBytes::new(py, &identity.private_key),
    })
}

/// Parses an identity.
#[pyfunction]
fn parse_dataset_id(py: Python<'_>, text: &str) -> PyResult<DatasetIdFields> {
    let id: DatasetId = into_py_result(py, text.parse())?;
    Ok(DatasetIdFields {
        id: id.to_string(),
        did_key: id.to_did_key(),
    })
}

/// Parses a multihash.
#[pyfunction]
fn parse_multihash<'py>(py: Python<'py>, text: &str) -> PyResult<MultihashFields<'py>> {
    let hash: Multihash = into_py_result(py, text.parse())?;
    Ok(MultihashFields {
        code: hash.code(),
        digest: PyBytes::new(py, hash.digest()),
        base16: hash.to_string(),
        base58: hash.to_base58(),
    })
}

/// Computes the SHA3-256 of some bytes.
#[pyfunction]
fn sha3_256(raw: Vec<u8>) -> String {
    Multihash::sha3_256(&raw).to_string()
}

/// Converts a schema to a `SetDataSchema` event, with the system columns `names` in front.
#[pyfunction]
fn schema_event<'py>(
    py: Python<'py>,
    schema: &Bound<'_, PyAny>,
    names: Option<[String; 4]>,
    raw: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let data_schema = extract_schema(schema)?;
    let mut fields = Vec::new();
    if let Some([offset, operation, system_time, event_time]) = names {
        let vocabulary = odf::Vocabulary {
            offset,
            operation,
            system_time,
            event_time,
        };
        for field in odf::system_fields(&vocabulary) {
            let name = field.name().clone();
            let known_field = data_schema.field_with_name(&name);
            fields.push(known_field.map_or(field, Clone::clone));
        }
    }
    let system_names: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
    let other_fields = data_schema
        .fields()
        .iter()
        .filter(|field| !system_names.contains(field.name()));
    fields.extend(other_fields.map(|field| field.as_ref().clone()));
    let event = into_py_result(py, schema::event_from_arrow(&Schema::new(fields), raw))?;
    to_object(py, &event)
}

/// Converts a `SetDataSchema` event to its `pyarrow.Schema`.
#[pyfunction]
fn event_schema<'py>(py: Python<'py>, event: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let event = from_object(event)?;
    let as_invalid = |e: Error| match e.kind() {
        ErrorKind::BlockCorrupted => e.with_kind(ErrorKind::InvalidInput),
        _ => e,
    };
    let schema = into_py_result(py, schema::arrow_from_event(&event).map_err(as_invalid))?;
    PySchema::new(Arc::new(schema)).into_pyarrow(py)
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(new_identity, module)?)?;
    module.add_function(wrap_pyfunction!(parse_dataset_id, module)?)?;
    module.add_function(wrap_pyfunction!(parse_multihash, module)?)?;
    module.add_function(wrap_pyfunction!(sha3_256, module)?)?;
    module.add_function(wrap_pyfunction!(schema_event, module)?)?;
    module.add_function(wrap_pyfunction!(event_schema, module)?)
}
