//! Nulls where a type has none: in columns, and in what is nested in them.
//!
//! A null among the values of a dictionary or of a run-end encoded array is a null of its rows. What is not visible may
//! be null: values under a null, and items that are in no list.

use std::mem::discriminant;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, make_array};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, Field};

use super::nested::{child_fields, visible_children};
use crate::error::{Error, Result};

/// Refuses a null in a column, or in a field nested in it, that is not nullable.
pub(super) fn check_required(batch: &RecordBatch) -> Result<()> {
    let mut columns = batch.schema_ref().fields().iter().zip(batch.columns());
    columns.try_for_each(|(field, column)| check_nulls(column, field, field.name()))
}

/// Refuses a null where the field, or one nested in it, is not nullable. The error has the path of that, which begins
/// with `name`.
pub(crate) fn check_nulls(array: &ArrayRef, field: &Field, name: &str) -> Result<()> {
    let (data_type, is_required) = (field.data_type(), !field.is_nullable());
    if !is_required && !contains_required(data_type) {
        return Ok(());
    }
    let data = array.to_data();
    // Visible or not: usually there are none, which is faster to see.
    if !has_nulls(&data, data_type, is_required) {
        return Ok(());
    }
    match find_null(&data, data_type, is_required, name, None) {
        None => Ok(()),
        Some(path) => Err(Error::invalid(format!(
            "null in {path:?}, which is not nullable; declare it as nullable or leave the row out"
        ))),
    }
}

/// Whether a field within the type is not nullable.
fn contains_required(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => contains_required(values),
        DataType::RunEndEncoded(_, values) => {
            !values.is_nullable() || contains_required(values.data_type())
        }
        _ => child_fields(data_type)
            .iter()
            .any(|field| !field.is_nullable() || contains_required(field.data_type())),
    }
}

/// Whether there is a null, visible or not, where a field is not nullable.
fn has_nulls(data: &ArrayData, data_type: &DataType, is_required: bool) -> bool {
    if is_required && (data.null_count() > 0 || *data.data_type() == DataType::Null) {
        return true;
    }
    if discriminant(data.data_type()) != discriminant(data_type) {
        return false;
    }
    let children = data.child_data();
    match data_type {
        DataType::Dictionary(_, values) => has_nulls(&children[0], values, is_required),
        DataType::RunEndEncoded(_, values) => {
            let is_required = is_required || !values.is_nullable();
            has_nulls(&children[1], values.data_type(), is_required)
        }
        _ => {
            let mut fields = child_fields(data_type).iter().zip(children);
            fields.any(|(field, child)| has_nulls(child, field.data_type(), !field.is_nullable()))
        }
    }
}

/// The path of a visible null where a field is not nullable; `path` is that of `data`.
fn find_null(
    data: &ArrayData,
    data_type: &DataType,
    is_required: bool,
    path: &str,
    outer: Option<&NullBuffer>,
) -> Option<String> {
    let own = logical_nulls(data);
    let is_visible = |nulls: &NullBuffer| outer.is_none_or(|outer| !outer.contains(nulls));
    if is_required && own.as_ref().is_some_and(is_visible) {
        return Some(path.to_owned());
    }
    if discriminant(data.data_type()) != discriminant(data_type) {
        return None;
    }
    let nulls = NullBuffer::union(outer, own.as_ref());
    let children = data.child_data();
    match data_type {
        DataType::Dictionary(_, values) => {
            let visible = visible_values(data, nulls.as_ref());
            find_null(&children[0], values, false, path, Some(&visible))
        }
        DataType::RunEndEncoded(_, values) => {
            let is_required = !values.is_nullable();
            find_null(&children[1], values.data_type(), is_required, path, None)
        }
        _ => {
            let visible = visible_children(data, nulls.as_ref());
            let mut fields = child_fields(data_type).iter().zip(children);
            fields.find_map(|(field, child)| {
                let (child_type, is_required) = (field.data_type(), !field.is_nullable());
                let path = format!("{path}.{}", field.name());
                find_null(child, child_type, is_required, &path, visible.as_ref())
            })
        }
    }
}

/// Which rows are null, by themselves or by the values that they stand for; None if none is.
fn logical_nulls(data: &ArrayData) -> Option<NullBuffer> {
    let nulls = match data.data_type() {
        DataType::Null | DataType::Dictionary(..) | DataType::RunEndEncoded(..) => {
            make_array(data.clone()).logical_nulls()
        }
        _ => data.nulls().cloned(),
    };
    nulls.filter(|nulls| nulls.null_count() > 0)
}

/// Which values of a dictionary are those of a valid row.
fn visible_values(data: &ArrayData, nulls: Option<&NullBuffer>) -> NullBuffer {
    let array = make_array(data.clone());
    let dictionary = array.as_any_dictionary();
    let mut visible = BooleanBufferBuilder::new(dictionary.values().len());
    visible.append_n(dictionary.values().len(), false);
    if !dictionary.values().is_empty() {
        for (row, key) in dictionary.normalized_keys().into_iter().enumerate() {
            if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
                visible.set_bit(key, true);
            }
        }
    }
    NullBuffer::new(visible.finish())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::{Int8Type, Int32Type};
    use arrow_array::{
        DictionaryArray, Int8Array, Int32Array, ListArray, ListViewArray, NullArray, RunArray,
        StringArray, StructArray,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::Fields;

    use super::*;

    /// What the error of a column of lists names, whose items are not nullable.
    fn null_in(lists: &ArrayRef, items: &ArrayRef) -> Option<String> {
        let item = Arc::new(Field::new("item", items.data_type().clone(), false));
        let data_type = match lists.data_type() {
            DataType::ListView(_) => DataType::ListView(item),
            _ => DataType::List(item),
        };
        let field = Field::new("c", data_type, true);
        let error = check_nulls(lists, &field, "c").err()?;
        error.to_string().split('"').nth(1).map(str::to_owned)
    }

    /// Lists of one item each.
    fn lists_of(items: &ArrayRef, valid: Vec<bool>) -> ArrayRef {
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        let offsets = OffsetBuffer::from_lengths(vec![1; items.len()]);
        let nulls = Some(NullBuffer::from(valid));
        Arc::new(ListArray::new(item, offsets, Arc::clone(items), nulls))
    }

    /// Items of which the second one is null, each in its own way.
    fn items() -> [ArrayRef; 5] {
        let keys = Int8Array::from(vec![0, 1, 0]);
        let texts = Arc::new(StringArray::from(vec![Some("a"), None]));
        let run_ends = Int32Array::from(vec![1, 2, 3]);
        let runs = Int8Array::from(vec![Some(1), None, Some(1)]);
        let plain = StringArray::from(vec![Some("a"), None, Some("a")]);
        let encoded = DictionaryArray::<Int8Type>::new(keys, texts);
        let outer_keys = Int8Array::from(vec![0, 1, 2]);
        [
            Arc::new(plain),
            Arc::new(encoded.clone()),
            Arc::new(DictionaryArray::<Int8Type>::new(
                outer_keys,
                Arc::new(encoded),
            )),
            Arc::new(RunArray::<Int32Type>::try_new(&run_ends, &runs).unwrap()),
            Arc::new(NullArray::new(3)),
        ]
    }

    #[test]
    fn a_null_item_of_a_valid_list_is_named() {
        for items in items() {
            let all = lists_of(&items, vec![true; 3]);
            assert_eq!(
                null_in(&all, &items).as_deref(),
                Some("c.item"),
                "{items:?}"
            );
            let is_all_null = *items.data_type() == DataType::Null;
            let without = lists_of(&items, vec![true, false, true]);
            assert_eq!(
                null_in(&without, &items).is_some(),
                is_all_null,
                "{items:?}"
            );
            let sliced = all.slice(2, 1);
            assert_eq!(null_in(&sliced, &items).is_some(), is_all_null, "{items:?}");
            assert_eq!(null_in(&lists_of(&items, vec![false; 3]), &items), None);
        }
    }

    #[test]
    fn items_that_no_view_has_may_be_null() {
        let [items, ..] = items();
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        for (offset, expected) in [(2, None), (1, Some("c.item")), (0, None)] {
            let (offsets, sizes) = (vec![0, offset].into(), vec![1, 1].into());
            let values = Arc::clone(&items);
            let views = ListViewArray::new(Arc::clone(&item), offsets, sizes, values, None);
            let views: ArrayRef = Arc::new(views);
            assert_eq!(null_in(&views, &items).as_deref(), expected, "{offset}");
        }
    }

    #[test]
    fn fields_of_a_null_may_be_null() {
        let numbers: ArrayRef = Arc::new(Int8Array::from(vec![None, Some(1), None]));
        let fields = Fields::from(vec![Field::new("n", DataType::Int8, true)]);
        let strict = Fields::from(vec![Field::new("n", DataType::Int8, false)]);
        let field = Field::new("c", DataType::Struct(strict), true);
        let check = |valid: Vec<bool>| {
            let (nulls, columns) = (NullBuffer::from(valid), vec![Arc::clone(&numbers)]);
            let structs = StructArray::new(fields.clone(), columns, Some(nulls));
            check_nulls(&(Arc::new(structs) as ArrayRef), &field, "key")
        };
        check(vec![false, true, false]).unwrap();
        let error = check(vec![true, true, false]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidInput);
        assert!(error.to_string().contains("\"key.n\""), "{error}");
    }

    #[test]
    fn of_a_dictionary_only_values_that_rows_have_are_looked_at() {
        let numbers: ArrayRef = Arc::new(Int8Array::from(vec![Some(1), None]));
        let fields = Fields::from(vec![Field::new("n", DataType::Int8, true)]);
        let structs = Arc::new(StructArray::new(fields, vec![numbers], None));
        let strict = DataType::Struct(vec![Field::new("n", DataType::Int8, false)].into());
        let strict = DataType::Dictionary(Box::new(DataType::Int8), Box::new(strict));
        for (key, is_allowed) in [(Some(0), true), (None, true), (Some(1), false)] {
            let keys = Int8Array::from(vec![Some(0), key]);
            let column = DictionaryArray::<Int8Type>::new(keys, Arc::clone(&structs) as ArrayRef);
            let field = Field::new("c", strict.clone(), true);
            let checked = check_nulls(&(Arc::new(column) as ArrayRef), &field, "c");
            assert_eq!(checked.is_ok(), is_allowed, "{key:?}");
        }
    }
}
