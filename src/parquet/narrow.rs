//! Columns whose type may be too narrow for the rows of a row group.
//!
//! The dictionaries of a table's chunks or of a stream's batches may together have more values than their key type has
//! numbers, and a run may end beyond the largest number of its type. Parquet stores the values, so [`decoded_field`]
//! names a wider type to decode such columns as, and [`convert_all`] converts the result to the type that was written,
//! in as many arrays as are needed.

use std::sync::Arc;

use arrow_array::types::{
    ArrowDictionaryKeyType, Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type,
};
use arrow_array::{Array, ArrayRef, DictionaryArray, PrimitiveArray, UInt32Array, make_array};
use arrow_buffer::ArrowNativeType;
use arrow_data::transform::MutableArrayData;
use arrow_schema::{DataType, Field, FieldRef};
use arrow_select::take::take;

use super::nested::contains_type;
use super::types::convert;
use crate::error::{Error, Result};

/// The field as which a stored field is decoded: without narrow dictionary keys.
pub(super) fn decoded_field(stored: &FieldRef) -> FieldRef {
    let data_type = decoded_type(stored.data_type(), false);
    if data_type == *stored.data_type() {
        return Arc::clone(stored);
    }
    Arc::new(stored.as_ref().clone().with_data_type(data_type))
}

fn decoded_type(stored: &DataType, is_nested: bool) -> DataType {
    let item = |field: &FieldRef| -> FieldRef {
        let data_type = decoded_type(field.data_type(), true);
        Arc::new(Field::clone(field).with_data_type(data_type))
    };
    match stored {
        DataType::Dictionary(key, value) if is_narrow(key) && is_nested => value.as_ref().clone(),
        DataType::Dictionary(key, value) if is_narrow(key) => {
            DataType::Dictionary(Box::new(DataType::Int32), value.clone())
        }
        DataType::List(field) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(item(field), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(item).collect()),
        DataType::Map(entries, sorted) => DataType::Map(item(entries), *sorted),
        other => other.clone(),
    }
}

fn is_narrow(key: &DataType) -> bool {
    use DataType::{Int8, Int16, UInt8, UInt16};
    matches!(key, Int8 | UInt8 | Int16 | UInt16)
}

/// Whether an array of the type may be unable to hold all rows of an array of another type.
fn can_overflow(data_type: &DataType) -> bool {
    contains_type(data_type, |data_type| {
        matches!(
            data_type,
            DataType::Dictionary(..) | DataType::RunEndEncoded(..)
        )
    })
}

/// Converts `array` to the type `target`: to one array or, if one cannot hold all rows, to several.
pub(super) fn convert_all(
    array: &ArrayRef,
    target: &DataType,
    column: &str,
) -> Result<Vec<ArrayRef>> {
    if let (DataType::Dictionary(_, value), DataType::Dictionary(key, target_value)) =
        (array.data_type(), target)
        && value == target_value
        && let Some(wide) = array.as_any().downcast_ref::<DictionaryArray<Int32Type>>()
    {
        match key.as_ref() {
            DataType::Int8 => return narrow_keys::<Int8Type>(wide),
            DataType::UInt8 => return narrow_keys::<UInt8Type>(wide),
            DataType::Int16 => return narrow_keys::<Int16Type>(wide),
            DataType::UInt16 => return narrow_keys::<UInt16Type>(wide),
            _ => {}
        }
    }
    let error = match convert(array, target, column) {
        Ok(whole) => return Ok(vec![whole]),
        Err(error) => error,
    };
    if array.len() < 2 || !can_overflow(target) {
        return Err(error);
    }
    let middle = array.len() / 2;
    let mut arrays = convert_all(&copy_rows(array, 0, middle)?, target, column)?;
    let second_half = copy_rows(array, middle, array.len())?;
    arrays.extend(convert_all(&second_half, target, column)?);
    Ok(arrays)
}

/// Copies some rows without the values of others, because a cast converts all values behind a list.
pub(crate) fn copy_rows(array: &ArrayRef, start: usize, end: usize) -> Result<ArrayRef> {
    let data = array.to_data();
    let mut rows = MutableArrayData::new(vec![&data], false, end - start);
    rows.try_extend(0, start, end)
        .map_err(|e| Error::other(format!("cannot copy rows: {e}")).with_source(e))?;
    Ok(make_array(rows.freeze()))
}

/// The number of values that keys of a type can distinguish.
fn capacity<K: ArrowDictionaryKeyType>() -> usize {
    (1 << (8 * K::Native::get_byte_width())) >> usize::from(K::DATA_TYPE.is_signed_integer())
}

/// Splits the rows into arrays whose dictionaries have at most as many values as `K` has keys.
fn narrow_keys<K: ArrowDictionaryKeyType>(
    array: &DictionaryArray<Int32Type>,
) -> Result<Vec<ArrayRef>> {
    let failed = |e| Error::other(format!("cannot build a dictionary: {e}")).with_source(e);
    let make = |keys: PrimitiveArray<K>, values: ArrayRef| -> Result<ArrayRef> {
        let array = DictionaryArray::try_new(keys, values).map_err(failed)?;
        Ok(Arc::new(array))
    };
    let to_key = |at: usize| {
        K::Native::from_usize(at).ok_or_else(|| Error::other("dictionary key out of range"))
    };
    let keys = array.keys();
    if array.values().len() <= capacity::<K>() {
        let mut narrow = Vec::with_capacity(keys.len());
        for key in keys.values() {
            // The key under a null may be anything.
            narrow.push(K::Native::from_usize(key.as_usize()).unwrap_or_default());
        }
        let key_array = PrimitiveArray::new(narrow.into(), keys.nulls().cloned());
        return Ok(vec![make(key_array, Arc::clone(array.values()))?]);
    }
    let mut arrays = Vec::new();
    // For each value its key, and the number of the dictionary in which it has this key.
    let mut slots = vec![(0_u32, usize::MAX); array.values().len()];
    let mut chosen: Vec<u32> = Vec::new();
    let mut narrow: Vec<Option<K::Native>> = Vec::new();
    let mut flush = |chosen: &mut Vec<u32>, narrow: &mut Vec<Option<K::Native>>| {
        let indices = UInt32Array::from(std::mem::take(chosen));
        let values = take(array.values(), &indices, None).map_err(failed)?;
        let keys: PrimitiveArray<K> = std::mem::take(narrow).into_iter().collect();
        arrays.push(make(keys, values)?);
        Ok::<_, Error>(arrays.len())
    };
    let mut dictionary_index = 0;
    for key in keys {
        let Some(key) = key else {
            narrow.push(None);
            continue;
        };
        let value = u32::try_from(key)
            .map_err(|e| Error::other("negative dictionary key").with_source(e))?;
        let slot = slots
            .get(value as usize)
            .copied()
            .ok_or_else(|| Error::other("dictionary key without a value"))?;
        let at = if slot.1 == dictionary_index {
            slot.0 as usize
        } else {
            if chosen.len() == capacity::<K>() {
                dictionary_index = flush(&mut chosen, &mut narrow)?;
            }
            let at = chosen.len();
            slots[value as usize] = (u32::try_from(at).unwrap_or(u32::MAX), dictionary_index);
            chosen.push(value);
            at
        };
        narrow.push(Some(to_key(at)?));
    }
    flush(&mut chosen, &mut narrow)?;
    Ok(arrays)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::{Int64Array, StringArray};
    use arrow_cast::cast;

    use super::*;

    fn texts(array: &ArrayRef) -> Vec<Option<String>> {
        let array = cast(array, &DataType::Utf8).unwrap();
        let strings = array.as_string::<i32>().iter();
        strings.map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn keys_that_do_not_suffice_give_several_arrays() {
        let values: StringArray = (0..1000).map(|i| Some(format!("v{i}"))).collect();
        let keys = (0..5000).map(|i| (i % 7 != 0).then_some((i * 31) % 1000));
        let dictionary: DictionaryArray<Int32Type> =
            DictionaryArray::try_new(keys.collect(), Arc::new(values)).unwrap();
        let wide: ArrayRef = Arc::new(dictionary);
        for (key, max_values) in [(DataType::Int8, 128), (DataType::UInt8, 256)] {
            let target = DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
            let arrays = convert_all(&wide, &target, "c").unwrap();
            let strings: Vec<_> = arrays.iter().flat_map(texts).collect();
            assert_eq!(strings, texts(&wide));
            assert!(arrays.len() > 5000 / 1000);
            for array in &arrays {
                assert_eq!(array.data_type(), &target);
                assert!(array.as_any_dictionary().values().len() <= max_values);
            }
        }
    }

    #[test]
    fn all_keys_of_a_type_are_used() {
        for (key, all) in [(DataType::Int8, 128), (DataType::UInt8, 256)] {
            let values: StringArray = (0..all).map(|i| Some(format!("v{i}"))).collect();
            let dictionary: DictionaryArray<Int32Type> =
                DictionaryArray::try_new((0..all).collect(), Arc::new(values)).unwrap();
            let wide: ArrayRef = Arc::new(dictionary);
            let target = DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8));
            let arrays = convert_all(&wide, &target, "c").unwrap();
            assert_eq!(arrays.len(), 1);
            assert_eq!(texts(&arrays[0]), texts(&wide));
        }
    }

    #[test]
    fn numbers_and_runs_are_cut_until_they_fit() {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let field = |name, data_type| Arc::new(Field::new(name, data_type, true));
        let run_ends = Arc::new(Field::new("run_ends", DataType::Int16, false));
        for target in [
            DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64)),
            DataType::RunEndEncoded(run_ends, field("values", DataType::Int64)),
        ] {
            let arrays = convert_all(&numbers, &target, "c").unwrap();
            let rows: usize = arrays.iter().map(|array| array.len()).sum();
            assert_eq!(rows, 100_000);
            assert!(arrays.iter().all(|array| array.data_type() == &target));
        }
    }
}
