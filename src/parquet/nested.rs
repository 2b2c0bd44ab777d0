//! Checks of the values within columns (in lists, structs, maps and dictionaries), and of dictionary keys under nulls.
//!
//! [`check_required`], [`check_digits`] and [`check_whole_days`] refuse values that a file could not store as their
//! type says; the errors are of the kind `InvalidInput` and name the column. A value is visible unless it or something
//! around it is null. What is not visible may be anything and is not checked. [`with_hidden_keys_null`] hides such
//! dictionary keys from casts, sorts and comparisons, [`with_null_keys`] nulls among a dictionary's values from casts:
//! Arrow makes empty views of them.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType,
};
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, PrimitiveArray, RecordBatch, make_array};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, FieldRef};

use crate::error::{Error, Result};

/// The fields within a struct, list or map; none for other types.
pub(crate) fn child_fields(data_type: &DataType) -> &[FieldRef] {
    match data_type {
        DataType::Struct(fields) => fields,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => std::slice::from_ref(field),
        _ => &[],
    }
}

/// As [`child_fields`], but none for a list view, of which [`visible_children`] knows nothing.
fn fields_to_check(data_type: &DataType) -> &[FieldRef] {
    match data_type {
        DataType::ListView(_) | DataType::LargeListView(_) => &[],
        _ => child_fields(data_type),
    }
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

/// Which children of an array are visible, that is, not under its nulls; None if all are.
pub(super) fn visible_children(data: &ArrayData, nulls: Option<&NullBuffer>) -> Option<NullBuffer> {
    match data.data_type() {
        DataType::Struct(_) => nulls.cloned(),
        DataType::FixedSizeList(_, length) => Some(nulls?.expand(usize::try_from(*length).ok()?)),
        DataType::List(_) | DataType::Map(..) => Some(visible_items::<i32>(data, nulls)),
        DataType::LargeList(_) => Some(visible_items::<i64>(data, nulls)),
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
    visible.append_n(items, false);
    for row in 0..data.len() {
        if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            for item in offsets[row].as_usize()..offsets[row + 1].as_usize() {
                visible.set_bit(item, true);
            }
        }
    }
    NullBuffer::new(visible.finish())
}

/// Refuses columns with a null in a nested field that is not nullable.
pub(super) fn check_required(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let required = |data_type: &DataType| {
            fields_to_check(data_type)
                .iter()
                .any(|field| !field.is_nullable())
        };
        if contains_type(column.data_type(), required)
            && has_forbidden_null(&column.to_data(), None)
        {
            let message = format!(
                "column {:?}: null in a non-nullable field of its type {}",
                field.name(),
                column.data_type()
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Whether a nested field that is not nullable has a visible null.
fn has_forbidden_null(data: &ArrayData, outer: Option<&NullBuffer>) -> bool {
    let nulls = NullBuffer::union(outer, data.nulls());
    let fields = fields_to_check(data.data_type());
    if fields.is_empty() {
        return false;
    }
    let visible = visible_children(data, nulls.as_ref());
    fields.iter().zip(data.child_data()).any(|(field, child)| {
        let is_null = |at: usize| child.is_null(at);
        let has_null = !field.is_nullable()
            && child.null_count() > 0
            && match &visible {
                Some(visible) => visible.valid_indices().any(is_null),
                None => true,
            };
        has_null || has_forbidden_null(child, visible.as_ref())
    })
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

/// Adds the nulls of nested arrays to the dictionaries within them: a key that is not visible may be anything, also one
/// that its dictionary does not have.
pub(super) fn with_hidden_keys_null(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let data_type = array.data_type();
    if !data_type.is_nested() || !contains_type(data_type, is_dictionary) {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(mask_hidden_keys(array.to_data(), None)?))
}

/// The array with nulls for the keys of dictionaries whose value is null, at any depth.
pub(crate) fn with_null_keys(array: &ArrayRef) -> ArrayRef {
    if !contains_type(array.data_type(), is_dictionary) {
        return Arc::clone(array);
    }
    let data = array.to_data();
    if has_null_values(&data) {
        make_array(to_null_keys(data))
    } else {
        Arc::clone(array)
    }
}

fn has_null_values(data: &ArrayData) -> bool {
    let mut children = data.child_data().iter();
    if is_dictionary(data.data_type()) {
        children.any(|values| values.null_count() > 0)
    } else {
        children.any(has_null_values)
    }
}

fn to_null_keys(data: ArrayData) -> ArrayData {
    let builder = data.clone().into_builder();
    let builder = if is_dictionary(data.data_type()) {
        builder.nulls(make_array(data.clone()).logical_nulls())
    } else {
        let children = data.child_data().iter().cloned().map(to_null_keys);
        builder.child_data(children.collect())
    };
    // Items that may not be null stay as they are.
    builder.build().unwrap_or(data)
}

fn is_dictionary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Dictionary(..))
}

/// Whether a dictionary is within an array that has nulls, which may hide keys; `is_hidden` if one around `data` has.
pub(super) fn may_hide_keys(data: &ArrayData, is_hidden: bool) -> bool {
    match data.data_type() {
        DataType::Dictionary(..) if is_hidden => true,
        data_type if data_type.is_nested() => {
            let is_hidden = is_hidden || data.null_count() > 0;
            let mut children = data.child_data().iter();
            children.any(|child| may_hide_keys(child, is_hidden))
        }
        _ => false,
    }
}

/// Sets the keys of a dictionary array that are not visible to its first key.
fn with_first_keys(data: &ArrayData, visible: &NullBuffer) -> Result<ArrayData, ArrowError> {
    let DataType::Dictionary(key, _) = data.data_type() else {
        return Ok(data.clone());
    };
    let width = key.primitive_width().unwrap_or(1);
    let from = data.offset() * width;
    let mut keys = data.buffers()[0].as_slice()[from..from + data.len() * width].to_vec();
    for (at, key_bytes) in keys.chunks_exact_mut(width).enumerate() {
        if visible.is_null(at) {
            key_bytes.fill(0);
        }
    }
    let builder = ArrayData::builder(data.data_type().clone()).len(data.len());
    builder
        .add_buffer(keys.into())
        .child_data(data.child_data().to_vec())
        .nulls(data.nulls().cloned())
        .build()
}

fn mask_hidden_keys(data: ArrayData, outer: Option<&NullBuffer>) -> Result<ArrayData, ArrowError> {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Map, Struct};
    let is_dictionary = is_dictionary(data.data_type());
    if !is_dictionary && !data.data_type().is_nested() {
        return Ok(data);
    }
    let nulls = NullBuffer::union(outer, data.nulls());
    let visible = visible_children(&data, nulls.as_ref());
    let flags = child_fields(data.data_type())
        .iter()
        .map(|f| !f.is_nullable());
    let required: Vec<bool> = flags.collect();
    let masked_children = data.child_data().iter().enumerate().map(|(at, child)| {
        // Items that may not be null stay valid: a key that is not visible is replaced by the first one.
        let is_required = required.get(at).is_some_and(|flag| *flag);
        let keeps_validity =
            is_required && matches!(data.data_type(), List(_) | LargeList(_) | Map(..));
        match (&visible, child.data_type()) {
            (Some(visible), Dictionary(..)) if keeps_validity => with_first_keys(child, visible),
            _ if keeps_validity => mask_hidden_keys(child.clone(), None),
            _ => mask_hidden_keys(child.clone(), visible.as_ref()),
        }
    });
    let children = masked_children.collect::<Result<_, _>>()?;
    let takes_nulls = is_dictionary || matches!(data.data_type(), Struct(_) | FixedSizeList(..));
    let builder = data.into_builder().child_data(children);
    if takes_nulls {
        builder.nulls(nulls).build()
    } else {
        builder.build()
    }
}
