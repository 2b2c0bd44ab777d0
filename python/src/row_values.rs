//! Values of Arrow arrays as Python values, and Python values as Arrow arrays, of the types that most rows have.

#![expect(
    clippy::needless_pass_by_value,
    reason = "pyo3 hands arguments over by value"
)]

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, FieldRef};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};
use pyo3_arrow::{PyArray, PyField};

/// The metadata of a field whose values are of an extension type.
pub(crate) const EXTENSION: &str = "ARROW:extension:name";

/// Lists the values of an array as its `to_pylist` does, in a fraction of its time. Gives None for types other than
/// integers, floats, booleans, texts and bytes.
#[pyfunction]
fn list_values(py: Python<'_>, array: PyArray) -> PyResult<Option<Bound<'_, PyList>>> {
    let (array, field) = array.into_inner();
    if field.metadata().contains_key(EXTENSION) {
        return Ok(None);
    }
    let values = match array.data_type() {
        DataType::Int8 => numbers::<Int8Type>(py, &array),
        DataType::Int16 => numbers::<Int16Type>(py, &array),
        DataType::Int32 => numbers::<Int32Type>(py, &array),
        DataType::Int64 => numbers::<Int64Type>(py, &array),
        DataType::UInt8 => numbers::<UInt8Type>(py, &array),
        DataType::UInt16 => numbers::<UInt16Type>(py, &array),
        DataType::UInt32 => numbers::<UInt32Type>(py, &array),
        DataType::UInt64 => numbers::<UInt64Type>(py, &array),
        DataType::Float32 => numbers::<Float32Type>(py, &array),
        DataType::Float64 => numbers::<Float64Type>(py, &array),
        DataType::Boolean => PyList::new(py, array.as_boolean().iter()),
        DataType::Utf8 => PyList::new(py, array.as_string::<i32>().iter()),
        DataType::LargeUtf8 => PyList::new(py, array.as_string::<i64>().iter()),
        DataType::Utf8View => PyList::new(py, array.as_string_view().iter()),
        DataType::Binary => bytes(py, array.as_binary::<i32>().iter()),
        DataType::LargeBinary => bytes(py, array.as_binary::<i64>().iter()),
        DataType::BinaryView => bytes(py, array.as_binary_view().iter()),
        _ => return Ok(None),
    };
    values.map(Some)
}

pub(crate) fn into_pyarrow<'py>(py: Python<'py>, array: &PyArray) -> PyResult<Bound<'py, PyAny>> {
    Ok(array.to_pyarrow(py)?.unbind().into_bound(py))
}

fn numbers<'py, T>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyList>>
where
    T: ArrowPrimitiveType,
    T::Native: IntoPyObject<'py>,
{
    let array = array.as_primitive::<T>();
    if array.null_count() == 0 {
        return PyList::new(py, array.values().iter().copied());
    }
    PyList::new(py, array.iter())
}

fn bytes<'py, 'a>(
    py: Python<'py>,
    values: impl Iterator<Item = Option<&'a [u8]>>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, values.map(|value| value.map(|v| PyBytes::new(py, v))))
}

/// Makes a dict of each row of columns; None where `valid` says that there is none.
#[pyfunction]
fn make_dicts<'py>(
    py: Python<'py>,
    names: Vec<Bound<'py, PyString>>,
    columns: Vec<Bound<'py, PyList>>,
    valid: Option<Vec<bool>>,
) -> PyResult<Bound<'py, PyList>> {
    let dicts = PyList::empty(py);
    for row in 0..columns.first().map_or(0, PyListMethods::len) {
        let is_null = valid.as_ref().and_then(|valid| valid.get(row)) == Some(&false);
        if is_null {
            dicts.append(py.None())?;
            continue;
        }
        let dict = PyDict::new(py);
        for (name, column) in names.iter().zip(&columns) {
            dict.set_item(name, column.get_item(row)?)?;
        }
        dicts.append(dict)?;
    }
    Ok(dicts)
}

/// Makes lists of these lengths of items; None for a length that is None.
#[pyfunction]
fn make_lists<'py>(
    py: Python<'py>,
    items: &Bound<'py, PyList>,
    lengths: Vec<Option<usize>>,
) -> PyResult<Bound<'py, PyList>> {
    let mut end = 0;
    let lists = lengths.into_iter().map(|length| {
        let begin = end;
        end += length.unwrap_or(0);
        length.map(|_| items.get_slice(begin, end))
    });
    PyList::new(py, lists)
}

/// Makes an array of values whose Python type is exactly that of the field: `int`, `float`, `str` or `bool`. Gives None
/// for a field of another type, and if there is any other value: who calls this converts it, or names it in an error.
#[pyfunction]
fn exact_array<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyList>,
    field: PyField,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let field: FieldRef = field.into_inner();
    let array = match field.data_type() {
        _ if field.metadata().contains_key(EXTENSION) => None,
        DataType::Int64 => integers(values),
        DataType::Float64 => floats(values),
        DataType::Utf8 => texts(values),
        DataType::Boolean => truths(values),
        _ => None,
    };
    let is_fit = |array: &ArrayRef| field.is_nullable() || array.null_count() == 0;
    let Some(array) = array.filter(is_fit) else {
        return Ok(None);
    };
    into_pyarrow(py, &PyArray::from_array_ref(array)).map(Some)
}

fn integers(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut builder = Int64Builder::with_capacity(values.len());
    for value in values {
        if value.is_none() {
            builder.append_null();
        } else {
            builder.append_value(value.cast_exact::<PyInt>().ok()?.extract().ok()?);
        }
    }
    Some(Arc::new(builder.finish()))
}

fn floats(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut builder = Float64Builder::with_capacity(values.len());
    for value in values {
        if value.is_none() {
            builder.append_null();
        } else {
            builder.append_value(value.cast_exact::<PyFloat>().ok()?.value());
        }
    }
    Some(Arc::new(builder.finish()))
}

/// None also for more bytes than offsets of 32 bits have.
fn texts(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut builder = StringBuilder::with_capacity(values.len(), 0);
    let mut bytes = 0;
    for value in values {
        if value.is_none() {
            builder.append_null();
            continue;
        }
        let text = value.cast_exact::<PyString>().ok()?.to_str().ok()?;
        bytes += text.len();
        i32::try_from(bytes).ok()?;
        builder.append_value(text);
    }
    Some(Arc::new(builder.finish()))
}

fn truths(values: &Bound<'_, PyList>) -> Option<ArrayRef> {
    let mut builder = BooleanBuilder::with_capacity(values.len());
    for value in values {
        if value.is_none() {
            builder.append_null();
        } else {
            builder.append_value(value.cast_exact::<PyBool>().ok()?.is_true());
        }
    }
    Some(Arc::new(builder.finish()))
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(list_values, module)?)?;
    module.add_function(wrap_pyfunction!(make_dicts, module)?)?;
    module.add_function(wrap_pyfunction!(make_lists, module)?)?;
    module.add_function(wrap_pyfunction!(exact_array, module)?)
}
