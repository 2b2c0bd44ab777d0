//! Calls of a user's function key by key: the values that it reads, and the pairs that it gives.
//!
//! What is done for each value, each pair and each key is here; what is done for each chunk of rows, and the errors,
//! are in `pds.producers.rows`.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString, PyTuple};
use pyo3_arrow::PyArray;

use crate::nested_rows::NestedRows;
use crate::row_values::into_pyarrow;

/// Where the values of a key come from.
#[derive(Debug)]
enum Feed {
    /// There are no more.
    End,
    /// A chunk that has all of them.
    Chunk(Py<PyAny>),
    /// A cursor that is at the key.
    Cursor(Py<PyAny>),
}

/// The values of one key: lazy, for one pass, until the call of the function ends.
#[pyclass(module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct RowValues {
    /// The values of a chunk; None before the first one is asked for.
    items: Option<Py<PyList>>,
    next: usize,
    end: usize,
    feed: Feed,
    is_open: bool,
    /// The error of reading the values. A function that catches it would take it for their end.
    failure: Option<PyErr>,
}

#[pymethods]
impl RowValues {
    /// Of the key at which a cursor is; without a cursor there are none.
    #[new]
    fn new(cursor: Option<Py<PyAny>>) -> Self {
        Self::of(cursor.map_or(Feed::End, Feed::Cursor), 0, 0)
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        loop {
            if let Some(items) = &self.items
                && self.next < self.end
            {
                let item = items.bind(py).get_item(self.next)?;
                self.next += 1;
                return Ok(Some(item.unbind()));
            }
            if !self.is_open {
                let message = "values were used after the call for their key ended; read them during the call";
                return Err(PyRuntimeError::new_err(message));
            }
            self.check(py)?;
            match self.read(py) {
                Ok(true) => {}
                Ok(false) => {
                    self.feed = Feed::End;
                    return Ok(None);
                }
                Err(error) => self.failure = Some(error),
            }
        }
    }

    /// Raises the error of reading the values, if one did.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match &self.failure {
            Some(error) => Err(error.clone_ref(py)),
            None => Ok(()),
        }
    }

    /// Ends the values: later use raises a `RuntimeError`.
    fn close(&mut self) {
        (self.items, self.feed) = (None, Feed::End);
        self.is_open = false;
        // It has the frames of the function, which have these values.
        self.failure = None;
    }
}

impl RowValues {
    fn of(feed: Feed, next: usize, end: usize) -> Self {
        Self {
            items: None,
            next,
            end,
            feed,
            is_open: true,
            failure: None,
        }
    }

    /// Takes the values of the next chunk; false if there is none.
    fn read(&mut self, py: Python<'_>) -> PyResult<bool> {
        match &self.feed {
            Feed::End => Ok(false),
            Feed::Chunk(_) if self.items.is_some() => Ok(false),
            Feed::Chunk(chunk) => {
                let items = chunk.bind(py).getattr(intern!(py, "values"))?;
                self.items = Some(items.cast_into::<PyList>()?.unbind());
                Ok(true)
            }
            Feed::Cursor(cursor) => {
                let method = if self.items.is_none() {
                    intern!(py, "read")
                } else {
                    intern!(py, "read_more")
                };
                let (items, next, end) = cursor.bind(py).call_method0(method)?.extract()?;
                (self.items, self.next, self.end) = (Some(items), next, end);
                Ok(next < end)
            }
        }
    }
}

/// A column that emitted keys or values are added to.
#[derive(Debug)]
struct Column {
    /// A `pds.producers.convert.ColumnBuilder`.
    builder: Py<PyAny>,
    /// Its list of values, if these are added as they are.
    rows: Option<Py<PyList>>,
    /// Takes the values that it can.
    nested: Option<Py<NestedRows>>,
    /// The most characters or bytes of a value that is not counted; None for a column whose values are never.
    uncounted: Option<usize>,
}

impl Column {
    fn new(builder: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = builder.py();
        Ok(Self {
            rows: builder.getattr(intern!(py, "flat_rows"))?.extract()?,
            nested: builder.getattr(intern!(py, "nested"))?.extract()?,
            uncounted: builder.getattr(intern!(py, "uncounted"))?.extract()?,
            builder: builder.clone().unbind(),
        })
    }

    /// Adds a value. Gives whether the size of the column may have changed.
    fn append(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = value.py();
        if let Some(rows) = &self.rows
            && self.is_uncounted(value)?
        {
            rows.bind(py).append(value)?;
            return Ok(false);
        }
        if let Some(nested) = &self.nested
            && nested.bind(py).try_borrow_mut()?.append(value)?
        {
            return Ok(true);
        }
        let builder = self.builder.bind(py);
        builder.call_method1(intern!(py, "append"), (value,))?;
        Ok(true)
    }

    fn is_uncounted(&self, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let Some(most) = self.uncounted else {
            return Ok(true);
        };
        let is_sized =
            value.is_exact_instance_of::<PyString>() || value.is_exact_instance_of::<PyBytes>();
        Ok(value.is_none() || (is_sized && value.len()? <= most))
    }

    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        let nested = match &self.nested {
            Some(nested) => nested.bind(py).try_borrow()?.size,
            None => 0,
        };
        let size: usize = self
            .builder
            .bind(py)
            .getattr(intern!(py, "size"))?
            .extract()?;
        Ok(size + nested)
    }
}

/// A call of the function that has not ended.
#[derive(Debug)]
struct Call {
    values: Py<RowValues>,
    pairs: Option<Py<PyIterator>>,
}

/// How many rows and bytes a batch may still get.
#[derive(Debug, Clone, Copy)]
struct Room {
    rows: usize,
    size: usize,
}

/// Calls a function for the keys of chunks, and takes the pairs that it gives apart.
#[pyclass(module = "pds._pds")]
#[derive(Debug)]
pub(crate) struct RowCalls {
    function: Py<PyAny>,
    /// The type of generators.
    generator: Py<PyAny>,
    /// Gives an iterator over what else the function returned, or raises the error for it.
    iterate: Py<PyAny>,
    /// Raises the error for what is not a pair.
    check_pair: Py<PyAny>,
    columns: [Column; 2],
    /// The group in its chunk of each pair that was taken.
    groups: Vec<i64>,
    call: Option<Call>,
    /// The group that is called for.
    #[pyo3(get, set)]
    group: usize,
}

#[pymethods]
impl RowCalls {
    #[new]
    fn new(
        function: Py<PyAny>,
        generator: Py<PyAny>,
        iterate: Py<PyAny>,
        check_pair: Py<PyAny>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            function,
            generator,
            iterate,
            check_pair,
            columns: [Column::new(key)?, Column::new(value)?],
            groups: Vec::new(),
            call: None,
            group: 0,
        })
    }

    /// The number of pairs that were taken since `take_groups`.
    #[getter]
    fn rows(&self) -> usize {
        self.groups.len()
    }

    /// The iterator over the pairs of the call that has not ended.
    #[getter]
    fn pairs(&self, py: Python<'_>) -> Option<Py<PyIterator>> {
        let pairs = self.call.as_ref()?.pairs.as_ref()?;
        Some(pairs.clone_ref(py))
    }

    /// The group of each pair that was taken, as an array of pyarrow; they begin anew.
    fn take_groups<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let groups: ArrayRef = Arc::new(Int64Array::from(std::mem::take(&mut self.groups)));
        into_pyarrow(py, &PyArray::from_array_ref(groups))
    }

    /// Takes pairs of the group until there is no room (false) or they end (true).
    fn take(&mut self, pairs: &Bound<'_, PyIterator>, rows: usize, size: usize) -> PyResult<bool> {
        self.take_pairs(pairs, Room { rows, size })
    }

    /// Calls the function for the groups of a chunk up to `end`, which have all their values there. Takes the pairs
    /// until there is no room (false) or no group (true).
    fn call(
        &mut self,
        chunk: &Bound<'_, PyAny>,
        end: usize,
        rows: usize,
        size: usize,
    ) -> PyResult<bool> {
        let py = chunk.py();
        let mut room = Room { rows, size };
        let keys = chunk.getattr(intern!(py, "keys"))?.cast_into::<PyList>()?;
        let bounds = chunk.getattr(intern!(py, "bounds"))?;
        let bounds = bounds.cast_into::<PyList>()?;
        while self.group < end {
            let pairs = match self.pairs(py) {
                Some(pairs) => pairs.into_bound(py),
                None => self.start(chunk, &keys, &bounds)?,
            };
            let rows = self.groups.len();
            let is_done = self.take_pairs(&pairs, room)?;
            self.check_values(py)?;
            if !is_done {
                return Ok(false);
            }
            room.rows -= self.groups.len() - rows;
            self.end_call(py)?;
            self.group += 1;
        }
        Ok(true)
    }

    /// Ends the call that has not ended, and a generator with it.
    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        let pairs = self.pairs(py).map(|pairs| pairs.into_bound(py));
        let closed = match pairs {
            Some(pairs) if self.is_generator(&pairs) => {
                pairs.call_method0(intern!(py, "close")).map(drop)
            }
            _ => Ok(()),
        };
        self.end_call(py)?;
        closed
    }
}

impl RowCalls {
    fn start<'py>(
        &mut self,
        chunk: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyList>,
        bounds: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyIterator>> {
        let py = chunk.py();
        let (begin, end) = (
            bounds.get_item(self.group)?.extract()?,
            bounds.get_item(self.group + 1)?.extract()?,
        );
        let feed = Feed::Chunk(chunk.clone().unbind());
        let values = Py::new(py, RowValues::of(feed, begin, end))?;
        self.call = Some(Call {
            values: values.clone_ref(py),
            pairs: None,
        });
        let key = keys.get_item(self.group)?;
        let result = self.function.bind(py).call1((key, values))?;
        let pairs = if self.is_generator(&result) {
            result.try_iter()?
        } else {
            self.iterate.bind(py).call1((result,))?.try_iter()?
        };
        if let Some(call) = &mut self.call {
            call.pairs = Some(pairs.clone().unbind());
        }
        Ok(pairs)
    }

    fn is_generator(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type().is(&self.generator)
    }

    /// Fails if the function has caught an error of its values.
    fn check_values(&self, py: Python<'_>) -> PyResult<()> {
        match &self.call {
            Some(call) => call.values.bind(py).try_borrow()?.check(py),
            None => Ok(()),
        }
    }

    fn end_call(&mut self, py: Python<'_>) -> PyResult<()> {
        if let Some(call) = self.call.take() {
            call.values.bind(py).try_borrow_mut()?.close();
        }
        Ok(())
    }

    fn take_pairs(&mut self, pairs: &Bound<'_, PyIterator>, room: Room) -> PyResult<bool> {
        let py = pairs.py();
        let group = i64::try_from(self.group)?;
        let [keys, values] = &self.columns;
        let mut rows = 0;
        for pair in pairs {
            let pair = pair?;
            let (key, value) = match pair.cast_exact::<PyTuple>() {
                Ok(pair) if pair.len() == 2 => (pair.get_item(0)?, pair.get_item(1)?),
                _ => {
                    self.check_pair.bind(py).call1((&pair,))?;
                    (pair.get_item(0)?, pair.get_item(1)?)
                }
            };
            let has_grown = keys.append(&key)? | values.append(&value)?;
            self.groups.push(group);
            rows += 1;
            if rows == room.rows || (has_grown && keys.size(py)? + values.size(py)? >= room.size) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RowValues>()?;
    module.add_class::<RowCalls>()
}
