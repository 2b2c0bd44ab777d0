//! Values in the one form in which a file gives them back, so that all who see rows see what their readers will see.
//!
//! Makers of Arrow data, pyarrow among them, leave anything under a null: values of a struct's fields, items of a list,
//! keys that a dictionary does not have. A function of batches that takes a field sees it; casts, sorts and
//! comparisons of Arrow fail at it. In the one form
//! - what is under a null is null, and a list that is null has no items;
//! - a list array has no items but those of its rows;
//! - a row of a dictionary is null by its key, never by a null among the values, which Arrow casts to an empty view.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::RunEndIndexType;
use arrow_array::{
    Array, ArrayRef, BooleanArray, OffsetSizeTrait, PrimitiveArray, RunArray, StructArray,
    UInt64Array, downcast_run_array, make_array,
};
use arrow_buffer::{
    ArrowNativeType, BooleanBuffer, BooleanBufferBuilder, Buffer, NullBuffer, OffsetBuffer,
};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};
use arrow_select::filter::filter;
use arrow_select::nullif::nullif;
use arrow_select::take::{TakeOptions, take};

use super::nested::visible_children;
use crate::error::{Error, Result};

/// The values in their one form. An error names the column.
pub(crate) fn plain_values(array: &ArrayRef, column: &str) -> Result<ArrayRef> {
    to_plain(array, None)
        .map_err(|e| Error::invalid(format!("column {column:?}: {e}")).with_source(e))
}

/// `array` with these nulls in addition to its own.
pub(crate) fn with_nulls(array: &ArrayRef, nulls: Option<&NullBuffer>) -> Result<ArrayRef> {
    mask(array, nulls)
        .map_err(|e| Error::other(format!("cannot add nulls to a field: {e}")).with_source(e))
}

fn to_plain(array: &ArrayRef, outer: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let array = &mask(array, outer)?;
    match array.data_type() {
        DataType::Struct(_) => to_plain_struct(array),
        DataType::List(_) | DataType::Map(..) => to_plain_list::<i32>(array),
        DataType::LargeList(_) => to_plain_list::<i64>(array),
        DataType::ListView(_) => to_plain_views::<i32>(array),
        DataType::LargeListView(_) => to_plain_views::<i64>(array),
        DataType::FixedSizeList(_, size) => {
            to_plain_fixed(array, usize::try_from(*size).unwrap_or_default())
        }
        DataType::Dictionary(..) => to_plain_dictionary(array),
        DataType::RunEndEncoded(..) => to_plain_runs(array),
        _ => Ok(Arc::clone(array)),
    }
}

fn mask(array: &ArrayRef, nulls: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let has_all = |nulls: &NullBuffer| array.nulls().is_some_and(|own| own.contains(nulls));
    let Some(nulls) = nulls.filter(|nulls| nulls.null_count() > 0 && !has_all(nulls)) else {
        return Ok(Arc::clone(array));
    };
    match array.data_type() {
        DataType::RunEndEncoded(..) => downcast_run_array!(
            array => mask_runs(array, nulls),
            _ => Ok(Arc::clone(array)),
        ),
        DataType::Union(..) => {
            let row_range = 0..array.len() as u64;
            let rows = UInt64Array::new(row_range.collect(), Some(nulls.clone()));
            take(array, &rows, None)
        }
        _ => nullif(array, &BooleanArray::new(!nulls.inner(), None)),
    }
}

/// The runs with these nulls in addition to their own. Arrow's `take` of runs does not look at nulls of its indices.
fn mask_runs<R: RunEndIndexType>(
    runs: &RunArray<R>,
    nulls: &NullBuffer,
) -> Result<ArrayRef, ArrowError> {
    let (mut run_ends, mut places) = (Vec::new(), Vec::new());
    for row in 0..runs.len() {
        let place = nulls
            .is_valid(row)
            .then(|| runs.get_physical_index(row) as u64);
        if places.last() == Some(&place) {
            run_ends.pop();
        } else {
            places.push(place);
        }
        run_ends.push(R::Native::from_usize(row + 1));
    }
    let values = take(runs.values(), &UInt64Array::from(places), None)?;
    let masked_ends: PrimitiveArray<R> = run_ends.into_iter().collect();
    let masked: ArrayRef = Arc::new(RunArray::try_new(&masked_ends, &values)?);
    with_type(masked, runs.data_type())
}

/// The same data with a type whose fields have other names.
fn with_type(array: ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    if array.data_type() == data_type {
        return Ok(array);
    }
    let builder = array.to_data().into_builder();
    builder.data_type(data_type.clone()).build().map(make_array)
}

/// The items that are `visible`. Arrow gives the fields within runs other names.
fn filter_visible(items: &ArrayRef, visible: BooleanBuffer) -> Result<ArrayRef, ArrowError> {
    let filtered = filter(items, &BooleanArray::new(visible, None))?;
    with_type(filtered, items.data_type())
}

fn to_plain_struct(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let structs = array.as_struct();
    let (columns, nulls) = (structs.columns(), structs.nulls());
    let plain_columns = columns.iter().map(|column| to_plain(column, nulls));
    let plain_columns = plain_columns.collect::<Result<Vec<_>, _>>()?;
    let mut pairs = columns.iter().zip(&plain_columns);
    if pairs.all(|(column, plain)| Arc::ptr_eq(column, plain)) {
        return Ok(Arc::clone(array));
    }
    let (fields, nulls) = (structs.fields().clone(), nulls.cloned());
    let plain = StructArray::try_new_with_length(fields, plain_columns, nulls, structs.len())?;
    Ok(Arc::new(plain))
}

fn to_plain_list<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data = array.to_data();
    let offsets = &data.buffer::<O>(0)[..=data.len()];
    let is_valid = |row: usize| data.nulls().is_none_or(|nulls| nulls.is_valid(row));
    let lengths = || {
        let pairs = offsets.windows(2).enumerate();
        pairs.map(|(row, pair)| (row, pair[1].as_usize() - pair[0].as_usize()))
    };
    let all_items = make_array(data.child_data()[0].clone());
    let length = offsets[data.len()].as_usize() - offsets[0].as_usize();
    // Lists without items may begin behind the last one.
    let is_detached = length == 0 && offsets[0].as_usize() > 0;
    let begin = if is_detached {
        0
    } else {
        offsets[0].as_usize()
    };
    let mut items = all_items.slice(begin, length);
    if data.null_count() > 0 && lengths().any(|(row, length)| length > 0 && !is_valid(row)) {
        let mut visible = BooleanBufferBuilder::new(items.len());
        lengths().for_each(|(row, length)| visible.append_n(length, is_valid(row)));
        items = filter_visible(&items, visible.finish())?;
    }
    let plain_items = to_plain(&items, None)?;
    if plain_items.len() == all_items.len() && Arc::ptr_eq(&plain_items, &items) && !is_detached {
        return Ok(Arc::clone(array));
    }
    let new_lengths = lengths().map(|(row, length)| if is_valid(row) { length } else { 0 });
    let new_offsets = OffsetBuffer::<O>::from_lengths(new_lengths).into_inner();
    let builder = data.into_builder().buffers(vec![new_offsets.into_inner()]);
    let children = vec![plain_items.to_data()];
    builder.child_data(children).build().map(make_array)
}

/// Lists that may lie in any order and share items; they go on sharing them.
fn to_plain_views<O: OffsetSizeTrait>(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data = array.to_data();
    let (offsets, sizes) = (data.buffer::<O>(0), data.buffer::<O>(1));
    let is_valid = |row: usize| data.nulls().is_none_or(|nulls| nulls.is_valid(row));
    let all_items = make_array(data.child_data()[0].clone());
    let visible = visible_children(&data, data.nulls())
        .unwrap_or_else(|| NullBuffer::new_valid(all_items.len()));
    let items = if visible.null_count() > 0 {
        filter_visible(&all_items, visible.inner().clone())?
    } else {
        Arc::clone(&all_items)
    };
    let plain_items = to_plain(&items, None)?;
    let has_items = |row: usize| sizes[row].as_usize() > 0;
    let is_plain = (0..data.len()).all(|row| is_valid(row) || !has_items(row));
    if is_plain && Arc::ptr_eq(&plain_items, &all_items) {
        return Ok(Arc::clone(array));
    }
    let mut count = 0;
    let place = |is_visible: bool| {
        count += usize::from(is_visible);
        count - usize::from(is_visible)
    };
    let places: Vec<usize> = visible.iter().map(place).collect();
    let views = (0..data.len()).map(|row| {
        if has_items(row) && is_valid(row) {
            (O::usize_as(places[offsets[row].as_usize()]), sizes[row])
        } else {
            (O::usize_as(0), O::usize_as(0))
        }
    });
    let (new_offsets, new_sizes): (Vec<O>, Vec<O>) = views.unzip();
    let buffers = vec![Buffer::from_vec(new_offsets), Buffer::from_vec(new_sizes)];
    let builder = data.into_builder().buffers(buffers);
    let children = vec![plain_items.to_data()];
    builder.child_data(children).build().map(make_array)
}

fn to_plain_fixed(array: &ArrayRef, size: usize) -> Result<ArrayRef, ArrowError> {
    let items = array.as_fixed_size_list().values();
    let hidden = array.nulls().map(|nulls| nulls.expand(size));
    let plain_items = to_plain(items, hidden.as_ref())?;
    if Arc::ptr_eq(&plain_items, items) {
        return Ok(Arc::clone(array));
    }
    let builder = array.to_data().into_builder();
    let children = vec![plain_items.to_data()];
    builder.child_data(children).build().map(make_array)
}

fn to_plain_dictionary(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let dictionary = array.as_any_dictionary();
    let values = to_plain(dictionary.values(), None)?;
    if let Some(nulls) = values.logical_nulls()
        && nulls.null_count() > 0
    {
        return without_null_values(array, &values, &nulls);
    }
    if Arc::ptr_eq(&values, dictionary.values()) {
        return Ok(Arc::clone(array));
    }
    Ok(dictionary.with_values(values))
}

/// The dictionary array with values that are valid: null keys stand for those that are not.
fn without_null_values(
    array: &ArrayRef,
    values: &ArrayRef,
    nulls: &NullBuffer,
) -> Result<ArrayRef, ArrowError> {
    let keys = array.as_any_dictionary().keys();
    let valid_values = filter_visible(values, nulls.inner().clone())?;
    let mut count = 0_u64;
    let number = |is_valid: bool| {
        count += u64::from(is_valid);
        is_valid.then(|| count - 1)
    };
    let numbers: UInt64Array = nulls.iter().map(number).collect();
    let new_keys_by_key = cast(&numbers, keys.data_type())?;
    let options = TakeOptions { check_bounds: true };
    let new_keys = take(&new_keys_by_key, keys, Some(options))?;
    let builder = new_keys
        .to_data()
        .into_builder()
        .data_type(array.data_type().clone());
    let children = vec![valid_values.to_data()];
    builder.child_data(children).build().map(make_array)
}

fn to_plain_runs(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let array = &downcast_run_array!(
        array => cut_runs(array),
        _ => Ok(None),
    )?
    .unwrap_or_else(|| Arc::clone(array));
    let data = array.to_data();
    let values = make_array(data.child_data()[1].clone());
    let plain_values = to_plain(&values, None)?;
    if Arc::ptr_eq(&plain_values, &values) {
        return Ok(Arc::clone(array));
    }
    let children = vec![data.child_data()[0].clone(), plain_values.to_data()];
    let builder = data.into_builder().child_data(children);
    builder.build().map(make_array)
}

/// The runs without the values of rows that were sliced off; None if there are no such values.
fn cut_runs<R: RunEndIndexType>(runs: &RunArray<R>) -> Result<Option<ArrayRef>, ArrowError> {
    if runs.values_slice().len() == runs.values().len() {
        return Ok(None);
    }
    mask_runs(runs, &NullBuffer::new_valid(runs.len())).map(Some)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Int8Type, Int32Type};
    use arrow_array::{
        DictionaryArray, FixedSizeListArray, Int8Array, Int32Array, LargeListArray, ListArray,
        ListViewArray, MapArray, RecordBatch, StringArray,
    };
    use arrow_data::ArrayData;
    use arrow_schema::{Field, FieldRef, Schema};
    use arrow_select::concat::concat;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    fn item_of(array: &ArrayRef) -> FieldRef {
        Arc::new(Field::new("item", array.data_type().clone(), true))
    }

    fn nulls(valid: [bool; 3]) -> NullBuffer {
        NullBuffer::from(valid.to_vec())
    }

    fn struct_of(column: ArrayRef, nulls: Option<NullBuffer>) -> ArrayRef {
        let fields = vec![item_of(&column)].into();
        Arc::new(StructArray::new(fields, vec![column], nulls))
    }

    /// Six structs of which the second and the fifth are null, over numbers.
    fn structs() -> ArrayRef {
        let valid = NullBuffer::from(vec![true, false, true, true, false, true]);
        struct_of(
            Arc::new(Int32Array::from(vec![1, 2, 3, 4, 5, 6])),
            Some(valid),
        )
    }

    /// One item, null, and two items, of six: as each kind of list that Parquet has. The null hides two items.
    fn lists(items: &ArrayRef) -> Vec<ArrayRef> {
        let (item, valid) = (item_of(items), Some(nulls([true, false, true])));
        let offsets = OffsetBuffer::new(vec![1, 2, 4, 6].into());
        let large_offsets = OffsetBuffer::new(vec![1, 2, 4, 6].into());
        let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..6));
        let key = Arc::new(Field::new("key", DataType::Int32, false));
        let value = Arc::new(Field::new("value", items.data_type().clone(), true));
        let columns = vec![keys, Arc::clone(items)];
        let entries = StructArray::new(vec![key, value].into(), columns, None);
        let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let (field, values) = (|| Arc::clone(&item), || Arc::clone(items));
        vec![
            Arc::new(ListArray::new(
                field(),
                offsets.clone(),
                values(),
                valid.clone(),
            )),
            Arc::new(LargeListArray::new(
                field(),
                large_offsets,
                values(),
                valid.clone(),
            )),
            Arc::new(FixedSizeListArray::new(field(), 2, values(), valid.clone())),
            Arc::new(MapArray::new(entry, offsets, entries, valid, false)),
        ]
    }

    /// What a file gives back.
    fn read_back(array: &ArrayRef) -> ArrayRef {
        let schema = Arc::new(Schema::new(vec![item_of(array)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(array)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::<u8>::new(), schema, None).unwrap();
        writer.write(&batch).unwrap();
        let file = bytes::Bytes::from(writer.into_inner().unwrap());
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let mut batches = reader.build().unwrap();
        Arc::clone(batches.next().unwrap().unwrap().column(0))
    }

    /// Arrow calls arrays equal whatever their nulls hide, so what is nested in them is compared by itself.
    fn assert_same_form(array: &ArrayData, expected: &ArrayData) {
        assert_eq!(&make_array(array.clone()), &make_array(expected.clone()));
        let pairs = array.child_data().iter().zip(expected.child_data());
        pairs.for_each(|(child, expected)| assert_same_form(child, expected));
    }

    #[test]
    fn values_have_the_form_in_which_a_file_gives_them_back() {
        let hidden_lists = lists(&structs()).into_iter().flat_map(|list| {
            let nested = lists(&struct_of(
                concat(&[list.as_ref(), list.as_ref()]).unwrap(),
                Some(NullBuffer::from(vec![true, true, false, true, false, true])),
            ));
            let in_struct = struct_of(Arc::clone(&list), Some(nulls([true, true, false])));
            nested.into_iter().chain([in_struct, list])
        });
        for array in hidden_lists.chain([structs()]) {
            for array in [array.slice(1, array.len() - 1), array] {
                let plain = plain_values(&array, "c").unwrap();
                assert_eq!(&plain, &array);
                assert_same_form(&plain.to_data(), &read_back(&array).to_data());
                let second = plain_values(&plain, "c").unwrap();
                assert!(Arc::ptr_eq(&second, &plain), "{plain:?}");
            }
        }
    }

    #[test]
    fn views_go_on_sharing_items() {
        let items = structs();
        let (offsets, sizes) = (vec![4, 2, 4].into(), vec![2, 2, 2].into());
        let valid = Some(nulls([true, false, true]));
        let views = ListViewArray::new(item_of(&items), offsets, sizes, items, valid);
        let views: ArrayRef = Arc::new(views);
        let plain = plain_values(&views, "c").unwrap();
        assert_eq!(&plain, &views);
        let lists = plain.as_list_view::<i32>();
        assert_eq!(
            (&lists.offsets()[..], &lists.sizes()[..]),
            (&[0, 0, 0][..], &[2, 0, 2][..])
        );
        let numbers = lists.values().as_struct().column(0);
        let numbers = numbers.as_primitive::<Int32Type>().iter();
        assert_eq!(numbers.collect::<Vec<_>>(), [None, Some(6)]);
    }

    #[test]
    fn a_null_among_the_values_becomes_one_of_the_keys() {
        let keys = Int8Array::from(vec![Some(1), Some(0), Some(1), None, Some(2), Some(2)]);
        let values = StringArray::from(vec![Some("a"), None, Some("")]);
        let texts: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys, Arc::new(values)));
        let check = |texts: &ArrayRef, expected: &[Option<&str>]| {
            assert_eq!(texts.as_any_dictionary().values().logical_null_count(), 0);
            let plain = cast(texts, &DataType::Utf8).unwrap();
            assert_eq!(
                plain.as_string::<i32>().iter().collect::<Vec<_>>(),
                expected
            );
        };
        let expected = [None, Some("a"), None, None, Some(""), Some("")];
        check(&plain_values(&texts, "c").unwrap(), &expected);
        check(
            &plain_values(&texts.slice(1, 4), "c").unwrap(),
            &expected[1..5],
        );
        for list in lists(&struct_of(texts, None)) {
            let data = plain_values(&list, "c").unwrap().to_data();
            let mut items = make_array(data.child_data()[0].clone());
            if matches!(list.data_type(), DataType::Map(..)) {
                items = Arc::clone(items.as_struct().column(1));
            }
            let rows = match list.data_type() {
                DataType::FixedSizeList(..) => vec![0, 1, 2, 3, 4, 5],
                _ => vec![1, 4, 5],
            };
            let expected: Vec<_> = rows.into_iter().map(|row: usize| expected[row]).collect();
            check(items.as_struct().column(0), &expected);
        }
    }

    #[test]
    fn runs_are_cut_at_nulls() {
        let run_ends = Int32Array::from(vec![2, 4, 6]);
        let values = StringArray::from(vec![Some("a"), None, Some("b")]);
        let runs: ArrayRef = Arc::new(RunArray::<Int32Type>::try_new(&run_ends, &values).unwrap());
        let runs = runs.slice(1, 5);
        let valid = NullBuffer::from(vec![true, true, false, false, true]);
        let plain = plain_values(&struct_of(runs, Some(valid)), "c").unwrap();
        let runs = plain.as_struct().column(0).as_run::<Int32Type>();
        let values = runs.values().as_string::<i32>().iter();
        assert_eq!(
            values.collect::<Vec<_>>(),
            [Some("a"), None, None, Some("b")]
        );
        assert_eq!(runs.run_ends().values(), [1, 2, 4, 5]);
        let sliced: ArrayRef = Arc::new(runs.slice(1, 3));
        let plain = plain_values(&sliced, "c").unwrap();
        assert_eq!(plain.as_run::<Int32Type>().values().len(), 2);
        assert_eq!(plain.logical_null_count(), 3);
    }
}
