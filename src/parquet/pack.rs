//! Columns as dictionaries, also of types within them.
//!
//! arrow-cast makes the dictionary of the numbers that the source is stored as, whatever their unit, and
//! none of booleans, durations and lists. So values first become what the dictionary is of, and then
//! the dictionary is made of the rows that differ.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array, make_array};
use arrow_cast::cast;
use arrow_data::ArrayData;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use arrow_select::take::take;

/// `target` with the values of those dictionaries that are none in `source`.
pub(super) fn unpacked(source: &DataType, target: &DataType) -> DataType {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded,
        Struct,
    };
    let item = |field: &FieldRef| with_type(field, unpacked(item_of(source), field.data_type()));
    match (source, target) {
        (Dictionary(_, from), Dictionary(key, to)) => {
            Dictionary(key.clone(), Box::new(unpacked(from, to)))
        }
        (from, Dictionary(_, to)) => unpacked(from, to),
        (RunEndEncoded(_, from), RunEndEncoded(ends, to)) => {
            let values = unpacked(from.data_type(), to.data_type());
            RunEndEncoded(Arc::clone(ends), with_type(to, values))
        }
        (from, RunEndEncoded(ends, to)) => {
            let values = unpacked(from, to.data_type());
            RunEndEncoded(Arc::clone(ends), with_type(to, values))
        }
        (Dictionary(_, from), to) => unpacked(from, to),
        (RunEndEncoded(_, from), to) => unpacked(from.data_type(), to),
        (_, List(field)) => List(item(field)),
        (_, LargeList(field)) => LargeList(item(field)),
        (_, ListView(field)) => ListView(item(field)),
        (_, LargeListView(field)) => LargeListView(item(field)),
        (_, FixedSizeList(field, size)) => FixedSizeList(item(field), *size),
        (_, Map(field, sorted)) => Map(item(field), *sorted),
        (_, Struct(fields)) => {
            let child = |(at, field): (usize, &FieldRef)| {
                let data_type = unpacked(child_of(source, at, field), field.data_type());
                with_type(field, data_type)
            };
            Struct(fields.iter().enumerate().map(child).collect::<Fields>())
        }
        (_, other) => other.clone(),
    }
}

fn with_type(field: &FieldRef, data_type: DataType) -> FieldRef {
    if *field.data_type() == data_type {
        return Arc::clone(field);
    }
    Arc::new(Field::clone(field).with_data_type(data_type))
}

/// The type of a list's items; the null type where `list` is not a list.
fn item_of(list: &DataType) -> &DataType {
    match list {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => field.data_type(),
        _ => &DataType::Null,
    }
}

/// What becomes a struct's field: that of its name or, where none has it, of its place.
fn child_of<'t>(source: &'t DataType, at: usize, field: &Field) -> &'t DataType {
    let DataType::Struct(fields) = source else {
        return &DataType::Null;
    };
    let named = fields.iter().find(|f| f.name() == field.name());
    let found = named.or_else(|| fields.get(at));
    found.map_or(&DataType::Null, |found| found.data_type())
}

/// An array of the type that [`unpacked`] gives, with the dictionaries of `target`.
pub(super) fn pack(array: ArrayRef, target: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == target {
        return Ok(array);
    }
    packed(array.to_data(), target).map(make_array)
}

fn packed(data: ArrayData, target: &DataType) -> Result<ArrayData, ArrowError> {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded,
        Struct,
    };
    if data.data_type() == target {
        return Ok(data);
    }
    let types: Vec<&DataType> = match (data.data_type(), target) {
        (Dictionary(..), Dictionary(_, values)) => vec![values],
        (_, Dictionary(key, values)) => {
            let values = make_array(packed(data, values)?);
            return dictionary(&values, key, target);
        }
        (_, RunEndEncoded(ends, values)) => vec![ends.data_type(), values.data_type()],
        (
            _,
            List(field)
            | LargeList(field)
            | ListView(field)
            | LargeListView(field)
            | FixedSizeList(field, _)
            | Map(field, _),
        ) => vec![field.data_type()],
        (_, Struct(fields)) => fields.iter().map(|field| field.data_type()).collect(),
        _ => Vec::new(),
    };
    let children = data.child_data().iter().zip(types);
    let children = children.map(|(child, target)| packed(child.clone(), target));
    let children = children.collect::<Result<Vec<_>, _>>()?;
    let builder = data.into_builder().data_type(target.clone());
    builder.child_data(children).build()
}

/// The dictionary of the rows that differ, in the order in which they occur.
fn dictionary(
    values: &ArrayRef,
    key: &DataType,
    target: &DataType,
) -> Result<ArrayData, ArrowError> {
    let (keys, chosen) = distinct(values)?;
    let keys = cast(&keys, key)?;
    if keys.null_count() > values.logical_null_count() {
        return Err(ArrowError::DictionaryKeyOverflowError);
    }
    let chosen = take(values, &chosen, None)?;
    let builder = keys.to_data().into_builder().data_type(target.clone());
    builder.child_data(vec![chosen.to_data()]).build()
}

/// For each row which of the distinct ones it is, none for a null; and where these are.
fn distinct(values: &ArrayRef) -> Result<(UInt32Array, UInt64Array), ArrowError> {
    let nulls = values.logical_nulls();
    let is_null = |row| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    let too_many = |_| ArrowError::DictionaryKeyOverflowError;
    let field = SortField::new(values.data_type().clone());
    let rows = if RowConverter::supports_fields(std::slice::from_ref(&field)) {
        let converter = RowConverter::new(vec![field])?;
        Some(converter.convert_columns(std::slice::from_ref(values))?)
    } else {
        None
    };
    let mut known: HashMap<&[u8], u32> = HashMap::new();
    let (mut keys, mut chosen) = (Vec::with_capacity(values.len()), Vec::new());
    for row in 0..values.len() {
        if is_null(row) {
            keys.push(None);
            continue;
        }
        let next = u32::try_from(chosen.len()).map_err(too_many)?;
        let number = match &rows {
            Some(rows) => *known.entry(rows.row(row).data()).or_insert(next),
            None => next,
        };
        if number == next {
            chosen.push(row as u64);
        }
        keys.push(Some(number));
    }
    Ok((keys.into(), chosen.into()))
}
