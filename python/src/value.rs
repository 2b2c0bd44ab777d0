//! JSON values as plain Python objects and back.

use pds::{Error, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple};
use serde_json::{Map, Number, Value};

use crate::error::to_python;

/// Objects in objects; more is no event.
const MAX_DEPTH: usize = 128;

/// Dicts, lists, strings, numbers, booleans and None.
pub(crate) fn to_object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => PyNone::get(py).to_owned().into_any(),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_pyobject(py)?.into_any(),
            (None, Some(number)) => number.into_pyobject(py)?.into_any(),
            (None, None) => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| to_object(py, item));
            PyList::new(py, items.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::Object(fields) => {
            let made = PyDict::new(py);
            for (key, value) in fields {
                made.set_item(key, to_object(py, value)?)?;
            }
            made.into_any()
        }
    })
}

/// The JSON value of such objects.
pub(crate) fn of_object(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    of_nested(given, 0)
}

fn of_nested(given: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    let py = given.py();
    if depth > MAX_DEPTH {
        let error = Error::invalid(format!("more than {MAX_DEPTH} objects in objects"));
        return Err(to_python(py, &error));
    }
    if given.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(value) = given.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if given.is_instance_of::<PyInt>() {
        return number(given).map_err(|e| to_python(py, &e));
    }
    if given.is_instance_of::<PyFloat>() {
        let found = Number::from_f64(given.extract()?);
        let found = found.ok_or_else(|| Error::invalid(format!("{given} is no number of JSON")));
        return found.map(Value::Number).map_err(|e| to_python(py, &e));
    }
    if given.is_instance_of::<PyList>() || given.is_instance_of::<PyTuple>() {
        let items = given.try_iter()?;
        let items = items.map(|item| of_nested(&item?, depth + 1));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    if let Ok(fields) = given.cast::<PyDict>() {
        let mut made = Map::new();
        for (key, value) in fields {
            let key = key.cast::<PyString>()?.to_str()?.to_owned();
            made.insert(key, of_nested(&value, depth + 1)?);
        }
        return Ok(Value::Object(made));
    }
    let kind = given.get_type().qualname()?;
    Err(PyTypeError::new_err(format!(
        "{kind} cannot be written as JSON"
    )))
}

fn number(given: &Bound<'_, PyAny>) -> Result<Value> {
    let unsigned = given.extract::<u64>().map(Value::from);
    let signed = || given.extract::<i64>().map(Value::from);
    unsigned.or_else(|_| signed()).map_err(|_too_large| {
        Error::invalid(format!("{given} is outside the whole numbers of 64 bits"))
    })
}
