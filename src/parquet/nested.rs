//! What lies within columns: lists, structs and what is hidden under their nulls.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Date64Type;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch, make_array};
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
    wanted(kind)
        || fields_of(kind)
            .iter()
            .any(|field| holds(field.data_type(), wanted))
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

/// Refuses dates in milliseconds that are no whole days, at any depth: Parquet has days.
pub(super) fn check_whole_days(array: &ArrayRef, column: &str) -> Result<()> {
    if !holds(array.data_type(), |kind| matches!(kind, DataType::Date64)) {
        return Ok(());
    }
    match part_of_day(&array.to_data(), None) {
        Some(ms) => Err(Error::invalid(format!(
            "column {column:?}: date64 {ms} is not a whole day; make it a timestamp"
        ))),
        None => Ok(()),
    }
}

fn part_of_day(data: &ArrayData, outer: Option<&NullBuffer>) -> Option<i64> {
    const DAY: i64 = 86_400_000;
    let nulls = NullBuffer::union(outer, data.nulls());
    if *data.data_type() == DataType::Date64 {
        let array = make_array(data.clone());
        let dates = array
            .as_primitive::<Date64Type>()
            .values()
            .iter()
            .enumerate();
        let is_seen = |at: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(at));
        let mut dates = dates.filter(|(at, _)| is_seen(*at)).map(|(_, ms)| *ms);
        return dates.find(|ms| ms % DAY != 0);
    }
    let seen = seen_below(data, nulls.as_ref());
    let mut children = data.child_data().iter();
    children.find_map(|child| part_of_day(child, seen.as_ref()))
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

fn masked(data: ArrayData, outer: Option<&NullBuffer>) -> Result<ArrayData, ArrowError> {
    use DataType::{Dictionary, FixedSizeList, LargeList, List, Map, Struct};
    let is_dictionary = matches!(data.data_type(), Dictionary(..));
    if !is_dictionary && !data.data_type().is_nested() {
        return Ok(data);
    }
    let nulls = NullBuffer::union(outer, data.nulls());
    let seen = match data.data_type() {
        // Items that may not be null have to stay as they are.
        List(item) | LargeList(item) if !item.is_nullable() => None,
        Map(..) => None,
        _ => seen_below(&data, nulls.as_ref()),
    };
    let children = data.child_data().iter();
    let children = children.map(|child| masked(child.clone(), seen.as_ref()));
    let children = children.collect::<Result<_, _>>()?;
    let takes_nulls = is_dictionary || matches!(data.data_type(), Struct(_) | FixedSizeList(..));
    let builder = data.into_builder().child_data(children);
    if takes_nulls {
        builder.nulls(nulls).build()
    } else {
        builder.build()
    }
}
