//! Structs and lists of Python values as Arrow arrays, each copied when it is added.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, ListArray, StructArray};
use arrow_buffer::{NullBufferBuilder, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, FieldRef, Fields};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use pyo3_arrow::{PyArray, PyField};

use crate::row_values::{EXTENSION, into_pyarrow};

/// About the most bytes of all values: offsets have 32 bits.
const MAX_BYTES: usize = 1 << 30;

/// The values of one field.
#[derive(Debug)]
struct Column {
    is_nullable: bool,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Integers(Int64Builder),
    Floats(Float64Builder),
    Texts(StringBuilder),
    Truths(BooleanBuilder),
    Structs {
        fields: Fields,
        names: Vec<Py<PyString>>,
        columns: Vec<Column>,
        valid: NullBufferBuilder,
    },
    Lists {
        item: FieldRef,
        items: Box<Column>,
        lengths: Vec<usize>,
        valid: NullBufferBuilder,
    },
}

impl Column {
    /// None if the field has, or has within it, another type.
    fn new(py: Python<'_>, field: &FieldRef) -> Option<Self> {
        if field.metadata().contains_key(EXTENSION) {
            return None;
        }
        let values = match field.data_type() {
            DataType::Int64 => Values::Integers(Int64Builder::new()),
            DataType::Float64 => Values::Floats(Float64Builder::new()),
            DataType::Utf8 => Values::Texts(StringBuilder::new()),
            DataType::Boolean => Values::Truths(BooleanBuilder::new()),
            DataType::Struct(fields) if !fields.is_empty() => Values::Structs {
                fields: fields.clone(),
                names: fields
                    .iter()
                    .map(|f| PyString::intern(py, f.name()).unbind())
                    .collect(),
                columns: fields
                    .iter()
                    .map(|f| Self::new(py, f))
                    .collect::<Option<_>>()?,
                valid: NullBufferBuilder::new(0),
            },
            DataType::List(item) => Values::Lists {
                item: Arc::clone(item),
                items: Box::new(Self::new(py, item)?),
                lengths: Vec::new(),
                valid: NullBufferBuilder::new(0),
            },
            _ => return None,
        };
        Some(Self {
            is_nullable: field.is_nullable(),
            values,
        })
    }

    /// About how many bytes a value takes; None if it is of another Python type, or one that the field does not take.
    fn measure(&self, value: &Bound<'_, PyAny>) -> Option<usize> {
        if value.is_none() {
            return self.is_nullable.then_some(8);
        }
        match &self.values {
            Values::Integers(_) => {
                let number = value.cast_exact::<PyInt>().ok()?;
                number.extract::<i64>().ok().map(|_| 8)
            }
            Values::Floats(_) => value.cast_exact::<PyFloat>().ok().map(|_| 8),
            Values::Truths(_) => value.cast_exact::<PyBool>().ok().map(|_| 8),
            Values::Texts(_) => {
                let text = value.cast_exact::<PyString>().ok()?.to_str().ok()?;
                Some(8 + text.len())
            }
            Values::Structs { names, columns, .. } => {
                let columns = columns.iter();
                if let Ok(tuple) = value.cast_exact::<PyTuple>() {
                    let is_fit = tuple.len() == names.len();
                    let sizes = columns.zip(tuple).map(|(column, v)| column.measure(&v));
                    return if is_fit { sizes.sum() } else { None };
                }
                let dict = value.cast_exact::<PyDict>().ok()?;
                let is_fit = dict.len() == names.len();
                let sizes = columns.zip(names).map(|(column, name)| {
                    let value = dict.get_item(name).ok()??;
                    column.measure(&value)
                });
                if is_fit { sizes.sum() } else { None }
            }
            Values::Lists { items, .. } => {
                let list = value.cast_exact::<PyList>().ok()?;
                let sizes = list.iter().map(|value| items.measure(&value));
                sizes.sum::<Option<usize>>().map(|size| size + 8)
            }
        }
    }

    /// Adds a value that was measured.
    fn append(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        if value.is_none() {
            self.append_null();
            return Ok(());
        }
        match &mut self.values {
            Values::Integers(builder) => builder.append_value(value.extract()?),
            Values::Floats(builder) => builder.append_value(value.extract()?),
            Values::Texts(builder) => builder.append_value(value.cast::<PyString>()?.to_str()?),
            Values::Truths(builder) => builder.append_value(value.extract()?),
            Values::Structs {
                names,
                columns,
                valid,
                ..
            } => {
                valid.append_non_null();
                let columns = columns.iter_mut();
                if let Ok(tuple) = value.cast_exact::<PyTuple>() {
                    return columns
                        .zip(tuple)
                        .try_for_each(|(column, v)| column.append(&v));
                }
                for (column, name) in columns.zip(names) {
                    column.append(&value.get_item(&*name)?)?;
                }
            }
            Values::Lists {
                items,
                lengths,
                valid,
                ..
            } => {
                valid.append_non_null();
                let list = value.cast::<PyList>()?;
                lengths.push(list.len());
                for value in list {
                    items.append(&value)?;
                }
            }
        }
        Ok(())
    }

    fn append_null(&mut self) {
        match &mut self.values {
            Values::Integers(builder) => builder.append_null(),
            Values::Floats(builder) => builder.append_null(),
            Values::Texts(builder) => builder.append_null(),
            Values::Truths(builder) => builder.append_null(),
            Values::Structs { columns, valid, .. } => {
                valid.append_null();
                columns.iter_mut().for_each(Self::append_null);
            }
            Values::Lists { lengths, valid, .. } => {
                valid.append_null();
                lengths.push(0);
            }
        }
    }

    /// The values, and none are left.
    fn finish(&mut self) -> Result<ArrayRef, ArrowError> {
        Ok(match &mut self.values {
            Values::Integers(builder) => Arc::new(builder.finish()),
            Values::Floats(builder) => Arc::new(builder.finish()),
            Values::Texts(builder) => Arc::new(builder.finish()),
            Values::Truths(builder) => Arc::new(builder.finish()),
            Values::Structs {
                fields,
                columns,
                valid,
                ..
            } => {
                let columns = columns.iter_mut().map(Self::finish);
                let columns = columns.collect::<Result<_, _>>()?;
                Arc::new(StructArray::try_new(
                    fields.clone(),
                    columns,
                    valid.finish(),
                )?)
            }
            Values::Lists {
                item,
                items,
                lengths,
                valid,
            } => {
                let mut end = 0;
                let ends = lengths.drain(..).map(|length| {
                    end += length;
                    i32::try_from(end)
                });
                let offsets = std::iter::once(Ok(0)).chain(ends);
                let offsets = offsets.collect::<Result<Vec<i32>, _>>();
                let offsets = offsets.map_err(|e| ArrowError::from_external_error(e.into()))?;
                let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
                let (item, items) = (Arc::clone(item), items.finish()?);
                Arc::new(ListArray::try_new(item, offsets, items, valid.finish())?)
            }
        })
    }
}

/// Structs, or lists, of `int`, `float`, `str` and `bool` and of such structs and lists, for a column.
#[pyclass(module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct NestedRows {
    column: Column,
    /// About how many bytes they have.
    #[pyo3(get)]
    pub(crate) size: usize,
    rows: usize,
    is_open: bool,
}

#[pymethods]
impl NestedRows {
    /// None for a field that has a type of another kind within it.
    #[staticmethod]
    fn of(py: Python<'_>, field: PyField) -> Option<Self> {
        let field: FieldRef = field.into_inner();
        let is_nested = matches!(field.data_type(), DataType::Struct(_) | DataType::List(_));
        let column = Column::new(py, &field).filter(|_| is_nested)?;
        Some(Self {
            column,
            size: 0,
            rows: 0,
            is_open: true,
        })
    }

    /// Adds a copy of a value. Gives false, and adds nothing, if the value has other Python types than exactly these, if
    /// there is no room for it, or if values were taken back.
    pub(crate) fn append(&mut self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let size = self.column.measure(value).filter(|_| self.is_open);
        let Some(size) = size.filter(|size| self.size + size <= MAX_BYTES) else {
            return Ok(false);
        };
        self.column.append(value)?;
        self.size += size;
        self.rows += 1;
        Ok(true)
    }

    /// The values as an array of pyarrow, or None if there are none. Others begin.
    fn finish<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.is_open = true;
        let array = self.column.finish();
        let array = array.map_err(|e| PyValueError::new_err(e.to_string()))?;
        self.size = 0;
        if std::mem::take(&mut self.rows) == 0 {
            return Ok(None);
        }
        into_pyarrow(py, &PyArray::from_array_ref(array)).map(Some)
    }

    /// As `finish`, and takes no others until `finish`.
    fn take_back<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let array = self.finish(py)?;
        self.is_open = false;
        Ok(array)
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NestedRows>()
}
