//! What lies within columns: lists, structs and what is hidden under their nulls.

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

/// The fields of the values within a type.
fn fields_of(kind: &DataType) -> &[FieldRef] {
    match kind {
        DataType::Struct(fields) => fields,
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => std::slice::from_ref(field),
        _ => &[],
    }
}

fn holds(kind: &DataType, wanted: fn(&DataType) -> bool) -> bool {
    let inner = match kind {
        DataType::Dictionary(_, values) => return wanted(kind) || holds(values, wanted),
        DataType::RunEndEncoded(_, field)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => std::slice::from_ref(field),
        _ => fields_of(kind),
    };
    wanted(kind) || inner.iter().any(|field| holds(field.data_type(), wanted))
}

/// Where the children of an array can be seen, which is not under its nulls; None is everywhere.
fn seen_below(data: &ArrayData, nulls: Option<&NullBuffer>) -> Option<NullBuffer> {
    match data.data_type() {
        DataType::Struct(_) => nulls.cloned(),
        DataType::FixedSizeList(_, length) => Some(nulls?.expand(usize::try_from(*length).ok()?)),
        DataType::List(_) | DataType::Map(..) => Some(items_seen::<i32>(data, nulls)),
        DataType::LargeList(_) => Some(items_seen::<i64>(data, nulls)),
        _ => None,
    }
}

/// Valid where a list that is valid has its item.
fn items_seen<Offset: OffsetSizeTrait>(data: &ArrayData, nulls: Option<&NullBuffer>) -> NullBuffer {
    let offsets = data.buffer::<Offset>(0);
    let items = data.child_data()[0].len();
    let mut seen = BooleanBufferBuilder::new(items);
    seen.append_n(items, false);
    for row in 0..data.len() {
        if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            for item in offsets[row].as_usize()..offsets[row + 1].as_usize() {
                seen.set_bit(item, true);
            }
        }
    }
    NullBuffer::new(seen.finish())
}

/// Refuses columns with a null within them where their type has none.
pub(super) fn check_required(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let required = |kind: &DataType| fields_of(kind).iter().any(|field| !field.is_nullable());
        if holds(column.data_type(), required) && has_hole(&column.to_data(), None) {
            let message = format!(
                "column {:?} holds a null where its type {} has none",
                field.name(),
                column.data_type()
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Whether a null can be seen below where there must be none.
fn has_hole(data: &ArrayData, outer: Option<&NullBuffer>) -> bool {
    let nulls = NullBuffer::union(outer, data.nulls());
    let fields = fields_of(data.data_type());
    if fields.is_empty() {
        return false;
    }
    let seen = seen_below(data, nulls.as_ref());
    fields.iter().zip(data.child_data()).any(|(field, child)| {
        let is_hole = |at: usize| child.is_null(at);
        let found = !field.is_nullable()
            && child.null_count() > 0
            && match &seen {
                Some(seen) => seen.valid_indices().any(is_hole),
                None => true,
            };
        found || has_hole(child, seen.as_ref())
    })
}

/// Refuses dates in milliseconds that are no whole days where `target` has days, at any depth.
pub(super) fn check_whole_days(array: &ArrayRef, target: &DataType, column: &str) -> Result<()> {
    let has = |kind, wanted| holds(kind, wanted);
    if !has(array.data_type(), |kind| matches!(kind, DataType::Date64))
        || !has(target, |kind| matches!(kind, DataType::Date32))
    {
        return Ok(());
    }
    match part_of_day(&array.to_data(), target, None) {
        Some(ms) => Err(Error::invalid(format!(
            "column {column:?}: date64 {ms} is not a whole day; make it a timestamp"
        ))),
        None => Ok(()),
    }
}

fn part_of_day(data: &ArrayData, target: &DataType, outer: Option<&NullBuffer>) -> Option<i64> {
    const DAY: i64 = 86_400_000;
    let nulls = NullBuffer::union(outer, data.nulls());
    if *data.data_type() == DataType::Date64 {
        if *target != DataType::Date32 {
            return None;
        }
        let array = make_array(data.clone());
        let dates = array.as_primitive::<Date64Type>().values().iter();
        let is_seen = |at: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at));
        let mut dates = dates.enumerate().filter(|(at, _)| is_seen(*at));
        return dates.find(|(_, ms)| **ms % DAY != 0).map(|(_, ms)| *ms);
    }
    let seen = seen_below(data, nulls.as_ref());
    let children = data.child_data().iter().enumerate();
    let mut inner = children.map(|(at, child)| (child, type_below(data.data_type(), target, at)));
    inner.find_map(|(child, target)| part_of_day(child, target, seen.as_ref()))
}

/// What becomes of a child of an array of one type that becomes another.
fn type_below<'t>(kind: &DataType, target: &'t DataType, child: usize) -> &'t DataType {
    match (kind, target) {
        (DataType::Dictionary(..), DataType::Dictionary(_, values)) => values,
        (DataType::RunEndEncoded(..), DataType::RunEndEncoded(ends, values)) => {
            [ends, values][child.min(1)].data_type()
        }
        // Unfolded: their values are what the target has.
        (DataType::Dictionary(..) | DataType::RunEndEncoded(..), target) => target,
        (_, DataType::ListView(field) | DataType::LargeListView(field)) => field.data_type(),
        (_, target) => fields_of(target)
            .get(child)
            .map_or(target, |field| field.data_type()),
    }
}

/// Refuses decimals with more digits than their type has, at any depth: makers of Arrow data do not all look,
/// and a file may keep fewer bytes than such a number has.
pub(super) fn check_digits(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        if holds(column.data_type(), DataType::is_decimal)
            && let Some(value) = too_long(&column.to_data(), None)
        {
            let message = format!(
                "column {:?} holds {value}, which has more digits than its type {} has",
                field.name(),
                column.data_type()
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

fn too_long(data: &ArrayData, outer: Option<&NullBuffer>) -> Option<String> {
    let nulls = NullBuffer::union(outer, data.nulls());
    match data.data_type() {
        DataType::Decimal32(digits, scale) => {
            let limit = 10_i32.checked_pow(u32::from(*digits))?;
            let fits = |value: i32| value.unsigned_abs() < limit.unsigned_abs();
            beyond::<Decimal32Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal64(digits, scale) => {
            let limit = 10_i64.checked_pow(u32::from(*digits))?;
            let fits = |value: i64| value.unsigned_abs() < limit.unsigned_abs();
            beyond::<Decimal64Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal128(digits, scale) => {
            let limit = 10_i128.checked_pow(u32::from(*digits))?;
            let fits = |value: i128| value.unsigned_abs() < limit.unsigned_abs();
            beyond::<Decimal128Type>(data, nulls.as_ref(), *scale, fits)
        }
        DataType::Decimal256(digits, scale) => {
            let digits = *digits;
            let fits = |value| Decimal256Type::is_valid_decimal_precision(value, digits);
            beyond::<Decimal256Type>(data, nulls.as_ref(), *scale, fits)
        }
        _ => {
            let seen = seen_below(data, nulls.as_ref());
            let mut children = data.child_data().iter();
            children.find_map(|child| too_long(child, seen.as_ref()))
        }
    }
}

/// A decimal that does not fit and can be seen.
fn beyond<T: DecimalType>(
    data: &ArrayData,
    nulls: Option<&NullBuffer>,
    scale: i8,
    fits: impl Fn(T::Native) -> bool,
) -> Option<String> {
    let array = PrimitiveArray::<T>::from(data.clone());
    let values = array.values();
    // As a rule all fit: without a branch for each of them.
    if values.iter().fold(true, |all, value| all & fits(*value)) {
        return None;
    }
    let is_seen = |at: usize| nulls.is_none_or(|nulls| nulls.is_valid(at));
    let mut found = values.iter().enumerate();
    let (_, value) = found.find(|(at, value)| !fits(**value) && is_seen(*at))?;
    // All digits there are, which are more than the type's.
    Some(T::format_decimal(*value, T::MAX_PRECISION, scale))
}

/// The column with the nulls of what they are in also in the dictionaries within it: what cannot be seen
/// may be anything, also a key that its dictionary does not have.
pub(super) fn with_hidden_keys_null(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let is_dictionary = |kind: &DataType| matches!(kind, DataType::Dictionary(..));
    let within = fields_of(array.data_type());
    if !within
        .iter()
        .any(|field| holds(field.data_type(), is_dictionary))
    {
        return Ok(Arc::clone(array));
    }
    Ok(make_array(masked(array.to_data(), None)?))
}

/// A dictionary with its first key where nothing can be seen.
fn with_first_keys(data: &ArrayData, seen: &NullBuffer) -> Result<ArrayData, ArrowError> {
    let DataType::Dictionary(key, _) = data.data_type() else {
        return Ok(data.clone());
    };
    let width = key.primitive_width().unwrap_or(1);
    let from = data.offset() * width;
    let mut keys = data.buffers()[0].as_slice()[from..from + data.len() * width].to_vec();
    for (at, key) in keys.chunks_exact_mut(width).enumerate() {
        if seen.is_null(at) {
            key.fill(0);
        }
    }
    let builder = ArrayData::builder(data.data_type().clone()).len(data.len());
    builder
        .add_buffer(keys.into())
        .child_data(data.child_data().to_vec())
        .nulls(data.nulls().cloned())
        .build()
}

fn masked(data: ArrayData, outer: Option<&NullBuffer>) -> Result<ArrayData, ArrowError> {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Map, Struct};
    let is_dictionary = matches!(data.data_type(), Dictionary(..));
    if !is_dictionary && !data.data_type().is_nested() {
        return Ok(data);
    }
    let nulls = NullBuffer::union(outer, data.nulls());
    let seen = seen_below(&data, nulls.as_ref());
    let required = fields_of(data.data_type()).iter().map(|f| !f.is_nullable());
    let required: Vec<bool> = required.collect();
    let children = data.child_data().iter().enumerate().map(|(at, child)| {
        // Items that may not be null stay so, with the first key in the place of one that is not seen.
        let is_required = required.get(at).is_some_and(|required| *required);
        let keeps_validity =
            is_required && matches!(data.data_type(), List(_) | LargeList(_) | Map(..));
        match (&seen, child.data_type()) {
            (Some(seen), Dictionary(..)) if keeps_validity => with_first_keys(child, seen),
            _ if keeps_validity => masked(child.clone(), None),
            _ => masked(child.clone(), seen.as_ref()),
        }
    });
    let children = children.collect::<Result<_, _>>()?;
    let takes_nulls = is_dictionary || matches!(data.data_type(), Struct(_) | FixedSizeList(..));
    let builder = data.into_builder().child_data(children);
    if takes_nulls {
        builder.nulls(nulls).build()
    } else {
        builder.build()
    }
}
