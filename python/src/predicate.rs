//! Predicates that Python evaluates, as `pds.predicate.Predicate`, and SQL.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{BooleanArray, RecordBatch};
use pds::table::{Bounds, ForeignPredicate, Predicate};
use pds::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::PyString;
use pyo3_arrow::{PyArray, PyRecordBatch};

use crate::error::PyCause;

/// A predicate behind the methods `holds` and `may_hold`.
#[derive(Debug)]
struct PyPredicate {
    object: Py<PyAny>,
    text: String,
    columns: Vec<String>,
}

/// The predicate that a `str` or a `Predicate` is.
pub(crate) fn predicate_of(given: &Bound<'_, PyAny>) -> PyResult<Predicate> {
    if given.is_instance_of::<PyString>() {
        return Ok(Predicate::Sql(given.extract()?));
    }
    Ok(Predicate::Foreign(Arc::new(PyPredicate {
        text: given.getattr("text")?.extract()?,
        columns: given.getattr("columns")?.extract()?,
        object: given.clone().unbind(),
    })))
}

impl PyPredicate {
    fn call(&self, method: &str, batches: &[&RecordBatch]) -> Result<BooleanArray> {
        let rows = batches.first().map_or(0, |batch| batch.num_rows());
        let call = |py: Python<'_>| -> PyResult<BooleanArray> {
            let mut given = Vec::with_capacity(batches.len());
            for batch in batches {
                given.push(PyRecordBatch::new((*batch).clone()).into_pyarrow(py)?);
            }
            let object = self.object.bind(py);
            let answer = object.call_method1(method, (given, rows))?;
            let (array, _) = answer.extract::<PyArray>()?.into_inner();
            let unusable = || pyo3::exceptions::PyTypeError::new_err("a filter is true or false");
            array.as_boolean_opt().cloned().ok_or_else(unusable)
        };
        let answer = Python::try_attach(call);
        let answer = answer.ok_or_else(|| Error::other("Python has ended"))?;
        let answer = answer.map_err(|e| {
            let message = format!("the filter {} cannot be evaluated", self.text);
            Error::invalid(message).with_source(PyCause(e))
        })?;
        if answer.len() != rows {
            let message = format!("{} answers of a filter about {rows}", answer.len());
            return Err(Error::other(message));
        }
        Ok(answer)
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
        let given = [&bounds.min, &bounds.max, &bounds.nulls, &bounds.rows];
        let answer = self.call("may_hold", &given)?;
        // What is not known may be.
        Ok(answer.iter().map(|may| may.unwrap_or(true)).collect())
    }
}
