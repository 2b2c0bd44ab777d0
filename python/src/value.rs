//! Conversion between JSON values and plain Python objects.

use pds::{Error, Result};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyNone, PyString, PyTuple};
use serde_json::{Map, Number, Value};

use crate::error::to_python;

/// The deepest nesting of a JSON value that is accepted.
const MAX_DEPTH: usize = 128;

/// Converts JSON to dicts, lists, strings, numbers, booleans and None.
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
            let objects = items.iter().map(|item| to_object(py, item));
            PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)?.into_any()
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (key, value) in fields {
                dict.set_item(key, to_object(py, value)?)?;
            }
            dict.into_any()
        }
    })
}

/// Converts such objects, and tuples, to JSON. An object of another type raises `TypeError`.
pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    from_nested(object, 0)
}

fn from_nested(object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    let py = object.py();
    if depth > MAX_DEPTH {
        let error = Error::invalid(format!(
            "the value is nested deeper than {MAX_DEPTH} levels"
        ));
        return Err(to_python(py, &error));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    if object.is_instance_of::<PyInt>() {
        return from_integer(object).map_err(|e| to_python(py, &e));
    }
    if object.is_instance_of::<PyFloat>() {
        let parsed = Number::from_f64(object.extract()?);
        let number = parsed.ok_or_else(|| Error::invalid(format!("{object} is not a JSON number")));
        return number.map(Value::Number).map_err(|e| to_python(py, &e));
    }
    if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
        let elements = object.try_iter()?;
        let items = elements.map(|item| from_nested(&item?, depth + 1));
        return Ok(Value::Array(items.collect::<PyResult<_>>()?));
    }
    if let Ok(fields) = object.cast::<PyDict>() {
        let mut map = Map::new();
        for (key, value) in fields {
            let key = key.cast::<PyString>()?.to_str()?.to_owned();
            map.insert(key, from_nested(&value, depth + 1)?);
        }
        return Ok(Value::Object(map));
    }
    let type_name = object.get_type().qualname()?;
    Err(PyTypeError::new_err(format!(
        "cannot convert {type_name} to JSON"
    )))
}

fn from_integer(object: &Bound<'_, PyAny>) -> Result<Value> {
    let unsigned = object.extract::<u64>().map(Value::from);
    let signed = || object.extract::<i64>().map(Value::from);
    unsigned
        .or_else(|_| signed())
        .map_err(|_too_large| Error::invalid(format!("{object} does not fit in a 64-bit integer")))
}
