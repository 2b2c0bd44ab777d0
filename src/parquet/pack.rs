//! Converts columns to dictionary types, also where these are nested.
//!
//! arrow-cast builds a dictionary of the numbers that the source stores, whatever their unit, and cannot build one of
//! booleans, durations or lists. So the values are first cast to the value type of the dictionary ([`unpack_type`]);
//! then the dictionary is built of the distinct values ([`pack`]). Too many values for the key type are an
//! [`ArrowError::DictionaryKeyOverflowError`]. Nor does arrow-cast convert between sorted and unsorted maps: the Arrow
//! schema says which maps are sorted, Parquet does not.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array, make_array};
use arrow_cast::cast;
use arrow_data::ArrayData;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields};
use arrow_select::take::take;

use super::nested::{child_fields, element_of};

/// `target`, with the value type in place of each dictionary that is not a dictionary in `source`, and with maps that
/// are sorted where those of `source` are.
pub(super) fn unpack_type(source: &DataType, target: &DataType) -> DataType {
    use DataType::{
        Dictionary, FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded,
        Struct,
    };
    let item =
        |field: &FieldRef| with_type(field, unpack_type(item_type(source), field.data_type()));
    match (source, target) {
        (Dictionary(_, from), Dictionary(key, to)) => {
            Dictionary(key.clone(), Box::new(unpack_type(from, to)))
        }
        (from, Dictionary(_, to)) => unpack_type(from, to),
        (RunEndEncoded(_, from), RunEndEncoded(ends, to)) => {
            let values = unpack_type(from.data_type(), to.data_type());
            RunEndEncoded(Arc::clone(ends), with_type(to, values))
        }
        (from, RunEndEncoded(ends, to)) => {
            let values = unpack_type(from, to.data_type());
            RunEndEncoded(Arc::clone(ends), with_type(to, values))
        }
        (Dictionary(_, from), to) => unpack_type(from, to),
        (RunEndEncoded(_, from), to) => unpack_type(from.data_type(), to),
        (_, List(field)) => List(item(field)),
        (_, LargeList(field)) => LargeList(item(field)),
        (_, ListView(field)) => ListView(item(field)),
        (_, LargeListView(field)) => LargeListView(item(field)),
        (_, FixedSizeList(field, size)) => FixedSizeList(item(field), *size),
        // A cast cannot change whether a map is sorted; `pack` does.
        (Map(_, sorted), Map(field, _)) | (_, Map(field, sorted)) => Map(item(field), *sorted),
        (_, Struct(fields)) => {
            let child = |(at, field): (usize, &FieldRef)| {
                let data_type = unpack_type(child_type(source, at, field), field.data_type());
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
fn item_type(list: &DataType) -> &DataType {
    element_of(list).map_or(&DataType::Null, |item| item.data_type())
}

/// The type of the field that becomes a struct's field: the one of the same name or, if there is none, at its position.
fn child_type<'t>(source: &'t DataType, at: usize, field: &Field) -> &'t DataType {
    let DataType::Struct(fields) = source else {
        return &DataType::Null;
    };
    let named = fields.iter().find(|f| f.name() == field.name());
    let source_field = named.or_else(|| fields.get(at));
    source_field.map_or(&DataType::Null, |source_field| source_field.data_type())
}

/// Converts an array of the type that [`unpack_type`] returned to `target`, by building its dictionaries, and by
/// setting whether maps are sorted.
pub(super) fn pack(array: ArrayRef, target: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == target {
        return Ok(array);
    }
    pack_data(array.to_data(), target).map(make_array)
}

fn pack_data(data: ArrayData, target: &DataType) -> Result<ArrayData, ArrowError> {
    use DataType::{Dictionary, RunEndEncoded};
    if data.data_type() == target {
        return Ok(data);
    }
    let types: Vec<&DataType> = match (data.data_type(), target) {
        (Dictionary(..), Dictionary(_, values)) => vec![values],
        (_, Dictionary(key, values)) => {
            let values = make_array(pack_data(data, values)?);
            return build_dictionary(&values, key, target);
        }
        (_, RunEndEncoded(ends, values)) => vec![ends.data_type(), values.data_type()],
        _ => child_fields(target)
            .iter()
            .map(|field| field.data_type())
            .collect(),
    };
    let children_and_types = data.child_data().iter().zip(types);
    let packed_children =
        children_and_types.map(|(child, target)| pack_data(child.clone(), target));
    let children = packed_children.collect::<Result<Vec<_>, _>>()?;
    let builder = data.into_builder().data_type(target.clone());
    builder.child_data(children).build()
}

/// Builds the dictionary of the distinct values, in the order in which they occur.
fn build_dictionary(
    values: &ArrayRef,
    key: &DataType,
    target: &DataType,
) -> Result<ArrayData, ArrowError> {
    let (row_keys, indices) = find_distinct(values)?;
    let keys = cast(&row_keys, key)?;
    if keys.null_count() > values.logical_null_count() {
        return Err(ArrowError::DictionaryKeyOverflowError);
    }
    let distinct_values = take(values, &indices, None)?;
    let builder = keys.to_data().into_builder().data_type(target.clone());
    builder.child_data(vec![distinct_values.to_data()]).build()
}

/// For each row the number of its distinct value, null for a null; and for each distinct value its first row.
fn find_distinct(values: &ArrayRef) -> Result<(UInt32Array, UInt64Array), ArrowError> {
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
    let mut keys_by_row: HashMap<&[u8], u32> = HashMap::new();
    let (mut keys, mut indices) = (Vec::with_capacity(values.len()), Vec::new());
    for row in 0..values.len() {
        if is_null(row) {
            keys.push(None);
            continue;
        }
        let next_key = u32::try_from(indices.len()).map_err(too_many)?;
        let key = match &rows {
            Some(rows) => *keys_by_row.entry(rows.row(row).data()).or_insert(next_key),
            None => next_key,
        };
        if key == next_key {
            indices.push(row as u64);
        }
        keys.push(Some(key));
    }
    Ok((keys.into(), indices.into()))
}
