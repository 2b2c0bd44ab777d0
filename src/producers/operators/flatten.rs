//! A row for each element of a list.
//!
//! The value is a list or a map, or a struct with one in a field. Each element becomes a row with the same key, and
//! with the other fields of the struct. A list that is null or empty has no rows. Rows are picked by their positions
//! and leave when they are enough for a batch, so those of a long list are not in memory together.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch, StructArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, Schema};
use serde::{Deserialize, Serialize};

use super::super::cursor::{Picker, aligned};
use super::super::functions::{EmittedRows, Produce, Rows};
use super::super::layers::{to_arrow, to_error};
use super::fields::column_of;
use crate::error::{Error, Result};
use crate::parquet::nested::element_of;

/// The lists that become rows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flatten {
    /// The field of the value that is a list; None if the value is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// A planned operator.
#[derive(Debug)]
pub(super) struct Flattening {
    field: Option<String>,
    value: Field,
}

impl Flattening {
    pub(super) fn plan(flatten: &Flatten, value: &Field) -> Result<Self> {
        let Some(name) = &flatten.field else {
            let element = element_field(value)?;
            return Ok(Self {
                field: None,
                value: element.as_ref().clone().with_name("value"),
            });
        };
        let no_field = |names: Vec<&String>| {
            let message = format!("there is no field {name:?}; there are {names:?}");
            Error::invalid(message)
        };
        let DataType::Struct(fields) = value.data_type() else {
            return Err(no_field(Vec::new()));
        };
        let Some((list, _)) = fields.find(name) else {
            return Err(no_field(fields.iter().map(|field| field.name()).collect()));
        };
        let element = element_field(&fields[list])?;
        let fields = fields.iter().enumerate().map(|(at, field)| {
            if at == list {
                Arc::new(element.as_ref().clone().with_name(name))
            } else {
                Arc::clone(field)
            }
        });
        Ok(Self {
            field: Some(name.clone()),
            value: Field::new("value", DataType::Struct(fields.collect()), true),
        })
    }

    pub(super) fn value(&self) -> Field {
        self.value.clone()
    }

    /// The rows as they are repeated: the key, and the fields of the value besides the list.
    fn repeated(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = vec![("key".to_owned(), Arc::clone(rows.column(0)))];
        if let (Some(list), DataType::Struct(fields)) = (&self.field, self.value.data_type()) {
            for field in fields.iter().filter(|field| field.name() != list) {
                let column = column_of(rows.column(1), field.name())?;
                columns.push((field.name().clone(), column));
            }
        }
        let fields = columns
            .iter()
            .map(|(name, column)| Field::new(name.as_str(), column.data_type().clone(), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let columns = columns.into_iter().map(|(_, column)| column);
        RecordBatch::try_new(schema, columns.collect()).map_err(Error::from_cause)
    }

    /// Rows as they are emitted: what is repeated, and the elements.
    fn emit(&self, repeated: &RecordBatch, elements: &RecordBatch) -> Result<RecordBatch> {
        let (key, element) = (repeated.column(0), elements.column(0));
        let value: ArrayRef = match (&self.field, self.value.data_type()) {
            (Some(list), DataType::Struct(fields)) => {
                let mut others = repeated.columns()[1..].iter();
                let columns = fields.iter().map(|field| {
                    let is_list = field.name() == list;
                    if is_list {
                        Some(element)
                    } else {
                        others.next()
                    }
                });
                let columns: Vec<ArrayRef> = columns.flatten().cloned().collect();
                // Types may differ in what is nullable within them.
                let fields: Fields = fields
                    .iter()
                    .zip(&columns)
                    .map(|(field, column)| {
                        Field::new(field.name(), column.data_type().clone(), true)
                    })
                    .collect();
                Arc::new(StructArray::try_new(fields, columns, None).map_err(Error::from_cause)?)
            }
            _ => Arc::clone(element),
        };
        RecordBatch::try_from_iter([
            ("source_key", Arc::clone(key)),
            ("target_key", Arc::clone(key)),
            ("value", value),
        ])
        .map_err(Error::from_cause)
    }
}

fn element_field(list: &Field) -> Result<FieldRef> {
    element_of(list.data_type()).cloned().ok_or_else(|| {
        Error::invalid(format!(
            "the {} has the type {}; only lists and maps have elements",
            list.name(),
            list.data_type()
        ))
    })
}

/// The elements of all lists, and where those of a list are.
struct Elements {
    values: ArrayRef,
    ranges: Vec<(usize, usize)>,
}

impl Elements {
    /// Of lists of a type that [`element_of`] knows; those that are null have none.
    fn of(lists: &ArrayRef) -> Self {
        let (values, mut ranges) = if let Some(lists) = lists.as_list_opt::<i32>() {
            (Arc::clone(lists.values()), between(lists.value_offsets()))
        } else if let Some(lists) = lists.as_list_opt::<i64>() {
            (Arc::clone(lists.values()), between(lists.value_offsets()))
        } else if let Some(maps) = lists.as_map_opt() {
            let entries: ArrayRef = Arc::new(maps.entries().clone());
            (entries, between(maps.value_offsets()))
        } else if let Some(lists) = lists.as_list_view_opt::<i32>() {
            let ranges = from_sizes(lists.value_offsets(), lists.value_sizes());
            (Arc::clone(lists.values()), ranges)
        } else if let Some(lists) = lists.as_list_view_opt::<i64>() {
            let ranges = from_sizes(lists.value_offsets(), lists.value_sizes());
            (Arc::clone(lists.values()), ranges)
        } else {
            let lists = lists.as_fixed_size_list();
            let length = lists.value_length().as_usize();
            let ranges = (0..lists.len()).map(|row| (row * length, (row + 1) * length));
            (Arc::clone(lists.values()), ranges.collect())
        };
        if let Some(nulls) = lists.logical_nulls() {
            for (row, range) in ranges.iter_mut().enumerate() {
                if nulls.is_null(row) {
                    *range = (0, 0);
                }
            }
        }
        Self { values, ranges }
    }
}

fn between<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<(usize, usize)> {
    let ranges = offsets.windows(2);
    ranges
        .map(|ends| (ends[0].as_usize(), ends[1].as_usize()))
        .collect()
}

fn from_sizes<O: OffsetSizeTrait>(offsets: &[O], sizes: &[O]) -> Vec<(usize, usize)> {
    let ranges = offsets
        .iter()
        .zip(sizes)
        .map(|(first, size)| (first.as_usize(), first.as_usize() + size.as_usize()));
    ranges.collect()
}

/// The operator as the function of a stage.
#[derive(Debug)]
pub(super) struct FlattenFunction(pub(super) Arc<Flattening>);

impl Produce for FlattenFunction {
    fn produce(&self, feeds: Vec<Rows>, _: usize) -> Result<EmittedRows> {
        Ok(Box::new(FlatRows {
            operator: Arc::clone(&self.0),
            feeds: feeds.into(),
            batch: None,
            repeated: Picker::default(),
            elements: Picker::default(),
            emitted: VecDeque::new(),
        }))
    }
}

/// A batch whose lists are under way.
struct FlatBatch {
    repeated: Arc<RecordBatch>,
    elements: Arc<RecordBatch>,
    ranges: Vec<(usize, usize)>,
    row: usize,
    /// The next element of the row.
    element: usize,
}

struct FlatRows {
    operator: Arc<Flattening>,
    feeds: VecDeque<Rows>,
    batch: Option<FlatBatch>,
    repeated: Picker,
    elements: Picker,
    emitted: VecDeque<RecordBatch>,
}

impl FlatRows {
    /// The next batch of the feeds; None at their end.
    fn next_batch(&mut self) -> Result<Option<FlatBatch>> {
        while let Some(feed) = self.feeds.front_mut() {
            let Some(rows) = feed.next() else {
                self.feeds.pop_front();
                continue;
            };
            let rows = rows.map_err(to_error)?;
            let lists = match &self.operator.field {
                Some(name) => column_of(rows.column(1), name)?,
                None => Arc::clone(rows.column(1)),
            };
            let Elements { values, ranges } = Elements::of(&lists);
            let first = ranges.first().map_or(0, |(first, _)| *first);
            let elements = RecordBatch::try_from_iter_with_nullable([("element", values, true)]);
            return Ok(Some(FlatBatch {
                repeated: Arc::new(self.operator.repeated(&rows)?),
                elements: Arc::new(elements.map_err(Error::from_cause)?),
                ranges,
                row: 0,
                element: first,
            }));
        }
        Ok(None)
    }

    fn is_full(&self) -> bool {
        self.repeated.is_full() || self.elements.is_full()
    }

    fn pick(&mut self) -> Result<()> {
        loop {
            let mut batch = match self.batch.take() {
                Some(batch) => batch,
                None => match self.next_batch()? {
                    Some(batch) => batch,
                    None => return self.flush().map_err(to_error),
                },
            };
            while let Some((_, end)) = batch.ranges.get(batch.row).copied() {
                while batch.element < end && !self.is_full() {
                    self.repeated.pick(&batch.repeated, batch.row);
                    self.elements.pick(&batch.elements, batch.element);
                    batch.element += 1;
                }
                if batch.element < end {
                    self.batch = Some(batch);
                    return self.flush().map_err(to_error);
                }
                batch.row += 1;
                batch.element = batch.ranges.get(batch.row).map_or(0, |(first, _)| *first);
            }
        }
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        let (repeated, elements) = (self.repeated.take()?, self.elements.take()?);
        for (repeated, elements) in aligned(repeated, elements) {
            let emitted = self.operator.emit(&repeated, &elements);
            self.emitted.push_back(emitted.map_err(to_arrow)?);
        }
        Ok(())
    }
}

impl Iterator for FlatRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.emitted.is_empty()
            && let Err(e) = self.pick()
        {
            return Some(Err(e));
        }
        self.emitted.pop_front().map(Ok)
    }
}
