//! Predicates of Python: SQL texts, and `pds.predicate.Predicate` objects, which Python evaluates.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{BooleanArray, RecordBatch};
use pds::table::{Bounds, ForeignPredicate, Predicate};
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3_arrow::{PyArray, PyRecordBatch};

use crate::error::PyCause;

/// A predicate that is evaluated by the methods `holds` and `may_hold` of a Python object.
#[derive(Debug)]
struct PyPredicate {
    object: Py<PyAny>,
    text: String,
    columns: Vec<String>,
}

/// Converts a `str`, which is SQL, or a `pds.predicate.Predicate`.
pub(crate) fn extract_predicate(object: &Bound<'_, PyAny>) -> PyResult<Predicate> {
    if object.is_instance_of::<PyString>() {
        return Ok(Predicate::Sql(object.extract()?));
    }
    Ok(Predicate::Foreign(Arc::new(PyPredicate {
        text: object.getattr("text")?.extract()?,
        columns: object.getattr("columns")?.extract()?,
        object: object.clone().unbind(),
    })))
}

impl PyPredicate {
    fn call(&self, method: &str, batches: &[&RecordBatch]) -> Result<BooleanArray> {
        let rows = batches.first().map_or(0, |batch| batch.num_rows());
        let call = |py: Python<'_>| -> PyResult<BooleanArray> {
            let mut py_batches = Vec::with_capacity(batches.len());
            for batch in batches {
                py_batches.push(PyRecordBatch::new((*batch).clone()).into_pyarrow(py)?);
            }
            let object = self.object.bind(py);
            let answer = object.call_method1(method, (py_batches, rows))?;
            let (array, _) = answer.extract::<PyArray>()?.into_inner();
            let unusable =
                || pyo3::exceptions::PyTypeError::new_err("a filter must be true or false");
            array.as_boolean_opt().cloned().ok_or_else(unusable)
        };
        let attached = Python::try_attach(call);
        let result =
            attached.ok_or_else(|| Error::other("the Python interpreter has shut down"))?;
        let mask = result.map_err(|e| {
            let message = format!("the filter {} cannot be evaluated", self.text);
            Error::invalid(message).with_source(PyCause(e))
        })?;
        if mask.len() != rows {
            let (text, values) = (&self.text, mask.len());
            let message = format!("the filter {text} returned {values} values for {rows} rows");
            return Err(Error::other(message));
        }
        Ok(mask)
    }
}

impl ForeignPredicate for PyPredicate {
    fn text(&self) -> &str {
        &self.text
    }

    fn columns(&self) -> &[String] {
        &self.columns
    }

    fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        self.call("holds", &[rows])
    }

    fn may_hold(&self, bounds: &Bounds) -> Result<Vec<bool>> {
        let batches = [
            &bounds.min,
            &bounds.max,
            &bounds.null_counts,
            &bounds.row_counts,
        ];
        let mask = self.call("may_hold", &batches)?;
        // Null means unknown, so the predicate may hold.
        Ok(mask.iter().map(|may| may.unwrap_or(true)).collect())
    }
}
