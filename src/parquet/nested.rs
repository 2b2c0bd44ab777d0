//! What is nested in columns: in lists, structs, maps and dictionaries.
//!
//! [`check_digits`] and [`check_whole_days`] refuse values that a file could not store as their type says; the errors
//! are of the kind `InvalidInput` and name the column. A value is visible unless it or something around it is null, or
//! no list has it. What is not visible may be anything and is not checked.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, PrimitiveArray, RecordBatch, make_array};
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{DataType, FieldRef};

use crate::error::{Error, Result};

/// The fields within a struct, list or map; none for other types.
pub(crate) fn child_fields(data_type: &DataType) -> &[FieldRef] {
    match data_type {
        DataType::Struct(fields) => fields,
        other => element_of(other).map_or(&[], std::slice::from_ref),
    }
}

/// The elements of a list, or the entries of a map.
pub(crate) fn element_of(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => Some(field),
        _ => None,
    }
}

/// The largest size of a list of a fixed size in a type; 0 without such lists.
pub(super) fn largest_list_size(data_type: &DataType) -> u64 {
    let own = match data_type {
        DataType::FixedSizeList(_, size) => u64::from(size.unsigned_abs()),
        _ => 0,
    };
    let children = child_fields(data_type).iter();
    let sizes = children.map(|field| largest_list_size(field.data_type()));
    sizes.max().unwrap_or_default().max(own)
}

/// Whether the predicate holds for a type, or for one within it.
pub(crate) fn contains_type(data_type: &DataType, predicate: fn(&DataType) -> bool) -> bool {
    let inner = match data_type {
        DataType::Dictionary(_, values) => {
            return predicate(data_type) || contains_type(values, predicate);
        }
        DataType::RunEndEncoded(_, field) => std::slice::from_ref(field),
        _ => child_fields(data_type),
    };
    predicate(data_type)
        || inner
            .iter()
            .any(|field| contains_type(field.data_type(), predicate))
}

/// Which children of an array are visible, that is, not under its nulls and in one of its lists; None if all are.
pub(super) fn visible_children(data: &ArrayData, nulls: Option<&NullBuffer>) -> Option<NullBuffer> {
    match data.data_type() {
        DataType::Struct(_) => nulls.cloned(),
        DataType::FixedSizeList(_, length) => Some(nulls?.expand(usize::try_from(*length).ok()?)),
        DataType::List(_) | DataType::Map(..) => Some(visible_items::<i32>(data, nulls)),
        DataType::LargeList(_) => Some(visible_items::<i64>(data, nulls)),
        DataType::ListView(_) => Some(visible_views::<i32>(data, nulls)),
        DataType::LargeListView(_) => Some(visible_views::<i64>(data, nulls)),
        _ => None,
    }
}

/// Valid for the items that belong to a valid list.
fn visible_items<Offset: OffsetSizeTrait>(
    data: &ArrayData,
    nulls: Option<&NullBuffer>,
) -> NullBuffer {
    let offsets = data.buffer::<Offset>(0);
    let items = data.child_data()[0].len();
    let mut visible = BooleanBufferBuilder::new(items);
    // Lists without items may begin behind the last one.
    let before = offsets.first().map_or(0, |first| first.as_usize());
    visible.append_n(before.min(items), false);
    for row in 0..data.len() {
        let length = offsets[row + 1].as_usize() - offsets[row].as_usize();
        visible.append_n(length, nulls.is_none_or(|nulls| nulls.is_valid(row)));
    }
    visible.append_n(items - visible.len(), false);
    NullBuffer::new(visible.finish())
}

/// As [`visible_items`], of lists that may overlap and lie in any order.
fn visible_views<Offset: OffsetSizeTrait>(
    data: &ArrayData,
    nulls: Option<&NullBuffer>,
) -> NullBuffer {
    let (offsets, sizes) = (data.buffer::<Offset>(0), data.buffer::<Offset>(1));
    let mut begins_and_ends = vec![0_i64; data.child_data()[0].len() + 1];
    for row in 0..data.len() {
        let size = sizes[row].as_usize();
        if size > 0 && nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            let begin = offsets[row].as_usize();
            begins_and_ends[begin] += 1;
            begins_and_ends[begin + size] -= 1;
        }
    }
    begins_and_ends.pop();
    let mut lists = 0;
    let visible = begins_and_ends.into_iter().map(|change| {
        lists += change;
        lists > 0
    });
    NullBuffer::new(visible.collect::<BooleanBuffer>())
}

/// Refuses `date64` values that are not whole days where `target` has `date32`, at any depth.
pub(super) fn check_whole_days(array: &ArrayRef, target: &DataType, column: &str) -> Result<()> {
    let contains = |data_type, predicate| contains_type(data_type, predicate);
    if !contains(array.data_type(), |data_type| {
        matches!(data_type, DataType::Date64)
    }) || !contains(target, |data_type| matches!(data_type, DataType::Date32))
    {
        return Ok(());
    }
    match find_partial_day(&array.to_data(), target, None) {
        Some(ms) => Err(Error::invalid(format!(
            "column {column:?}: date64 {ms} is not a whole day; cast it to a timestamp"
        ))),
        None => Ok(()),
    }
}

fn find_partial_day(
    data: &ArrayData,
    target: &DataType,
    outer: Option<&NullBuffer>,
) -> Option<i64> {
    const DAY: i64 = 86_400_000;
    let nulls = NullBuffer::union(outer, data.nulls());
    if *data.data_type() == DataType::Date64 {
        if *target != DataType::Date32 {
            return None;
        }
        let array = make_array(data.clone());
        let values = array.as_primitive::<Date64Type>().values().iter();
        let is_visible = |at: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at));
        let mut visible_dates = values.enumerate().filter(|(at, _)| is_visible(*at));
        return visible_dates
            .find(|(_, ms)| **ms % DAY != 0)
            .map(|(_, ms)| *ms);
    }
    let visible = visible_children(data, nulls.as_ref());
    let children = data.child_data().iter().enumerate();
    let mut inner =
        children.map(|(at, child)| (child, child_target_type(data.data_type(), target, at)));
    inner.find_map(|(child, target)| find_partial_day(child, target, visible.as_ref()))
}

/// The target type of a child of an array that is converted from `data_type` to `target`.
fn child_target_type<'t>(data_type: &DataType, target: &'t DataType, child: usize) -> &'t DataType {
    match (data_type, target) {
        (DataType::Dictionary(..), DataType::Dictionary(_, values)) => values,
        (DataType::RunEndEncoded(..), DataType::RunEndEncoded(ends, values)) => {
            [ends, values][child.min(1)].data_type()
        }
        // Unpacked: the values get the target type itself.
        (DataType::Dictionary(..) | DataType::RunEndEncoded(..), target) => target,
        (_, target) => child_fields(target)
            .get(child)
            .map_or(target, |field| field.data_type()),
    }
}

/// Refuses decimals with more digits than their type has, at any depth. Not all makers of Arrow data check this, and
/// a file may store fewer bytes than such a number needs.
pub(super) fn check_digits(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        if contains_type(column.data_type(), DataType::is_decimal)
            && let Some(value) = find_oversized_decimal(&column.to_data(), None)
        {
            let message = format!(
                "column {:?}: {value} has more digits than its type {} allows",
                field.name(),
                column.data_type()
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

fn find_oversized_decimal(data: &ArrayData, outer: Option<&NullBuffer>) -> Option<String> {
    let nulls = NullBuffer::union(outer, data.nulls());
    match data.data_type() {
        DataType::Decimal32(digits, scale) => {
            let limit = 10_i32.checked_pow(u32::from(*digits))?;
            let fits = |value: i32| value.unsigned_abs() < limit.unsigned_abs();
            find_overflow::<Decimal32Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal64(digits, scale) => {
            let limit = 10_i64.checked_pow(u32::from(*digits))?;
            let fits = |value: i64| value.unsigned_abs() < limit.unsigned_abs();
            find_overflow::<Decimal64Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal128(digits, scale) => {
            let limit = 10_i128.checked_pow(u32::from(*digits))?;
            let fits = |value: i128| value.unsigned_abs() < limit.unsigned_abs();
            find_overflow::<Decimal128Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal256(digits, scale) => {
            let digits = *digits;
            let fits = |value| Decimal256Type::is_valid_decimal_precision(value, digits);
            find_overflow::<Decimal256Type>(data, nulls.as_ref(), *scale, fits)
        }
        _ => {
            let visible = visible_children(data, nulls.as_ref());
            let mut children = data.child_data().iter();
            children.find_map(|child| find_oversized_decimal(child, visible.as_ref()))
        }
    }
}

/// The first visible decimal that does not fit, as text.
fn find_overflow<T: DecimalType>(
    data: &ArrayData,
    nulls: Option<&NullBuffer>,
    scale: i8,
    fits: impl Fn(T::Native) -> bool,
) -> Option<String> {
    let array = PrimitiveArray::<T>::from(data.clone());
    let values = array.values();
    // Usually all fit, so the first pass has no branch for each value.
    if values.iter().fold(true, |all, value| all & fits(*value)) {
        return None;
    }
    let is_visible = |at: usize| nulls.is_none_or(|nulls| nulls.is_valid(at));
    let mut candidates = values.iter().enumerate();
    let (_, value) = candidates.find(|(at, value)| !fits(**value) && is_visible(*at))?;
    // With the largest precision, because the value has more digits than its type.
    Some(T::format_decimal(*value, T::MAX_PRECISION, scale))
}
