//! Lists in which a value is searched for (`value = ANY(list)`), in types in which elements are compared as other values.
//!
//! DataFusion has a common type for few pairs of types: it makes floats of 32 bits of integers beside these, and reads a
//! timestamp without a zone in the zone of the elements.

use std::sync::Arc;

use arrow_schema::{DataType, FieldRef, TimeUnit};
use datafusion_common::DFSchema;
use datafusion_expr::expr::Expr;
use datafusion_expr::{ExprSchemable, cast};

use super::decimal_literals::{decimal_to_float, normalize_scale};
use super::exact_decimals::{common_decimal, widen_quotient};
use super::time_literals::{UTC, refine_beside};
use crate::parquet::nested::element_of;

/// A list and a value that is searched for in it, in types in which they are compared; `None` if DataFusion's own are
/// those, or there are none.
pub(super) fn widen_search(args: &[Expr], schema: &DFSchema) -> Option<Vec<Expr>> {
    let [list, value] = args else {
        return None;
    };
    let list_type = list.get_type(schema).ok()?;
    let element = match element_of(&list_type)?.data_type() {
        DataType::Dictionary(_, values) => values.as_ref(),
        other => other,
    };
    let mut value = normalize_scale(value.clone());
    let unit = match element {
        DataType::Timestamp(unit, _) => Some(*unit),
        // As nanoseconds, elements after the year 2262 would fail.
        DataType::Date32 => Some(TimeUnit::Microsecond),
        _ => None,
    };
    if unit.is_some() {
        value = refine_beside(value, unit);
    }
    if !element.is_floating() {
        value = widen_quotient(value, 0, schema);
    }
    let Some(common) = common_type(element, &value.get_type(schema).ok()?) else {
        return (unit.is_some() && value != args[1]).then(|| vec![list.clone(), value]);
    };
    if common.is_floating() {
        // A cast would not always have the nearest float.
        value = decimal_to_float(value);
    }
    let wide_list = with_elements(&list_type, &common)?;
    Some(vec![cast(list.clone(), wide_list), cast(value, common)])
}

/// The type in which an element and a value are compared; `None` if it is DataFusion's own.
fn common_type(element: &DataType, value: &DataType) -> Option<DataType> {
    use DataType::{Date32, Float64, Time32, Time64, Timestamp, UInt64};
    // What is left to DataFusion becomes a float, which has no common type with a decimal.
    if element.is_decimal() && (element == value || value.is_null()) {
        return common_decimal(&[element.clone(), value.clone()]);
    }
    if element == value {
        return None;
    }
    if element.is_numeric() && value.is_numeric() {
        let both = [element, value];
        if both.iter().any(|own| own.is_floating()) {
            return Some(Float64);
        }
        let are_whole = both.iter().all(|own| own.is_integer());
        let are_apart = both.iter().any(|own| **own == UInt64)
            && both.iter().any(|own| own.is_signed_integer());
        if are_whole && !are_apart {
            return None;
        }
        return common_decimal(&[element.clone(), value.clone()]);
    }
    let timestamp = |unit: TimeUnit, is_zoned: bool| {
        let zone = is_zoned.then(|| Arc::from(UTC));
        Some(Timestamp(unit, zone))
    };
    match (element, value) {
        (Timestamp(unit, zone), Timestamp(other_unit, other_zone)) => {
            let is_zoned = zone.is_some() || other_zone.is_some();
            timestamp(*unit.max(other_unit), is_zoned)
        }
        (Date32, Timestamp(unit, zone)) | (Timestamp(unit, zone), Date32) => {
            timestamp(TimeUnit::Microsecond.max(*unit), zone.is_some())
        }
        (Time32(_) | Time64(_), Time32(_) | Time64(_)) => Some(Time64(TimeUnit::Nanosecond)),
        _ => None,
    }
}

/// The type of a list with elements of another type.
fn with_elements(list: &DataType, element: &DataType) -> Option<DataType> {
    let wide = |item: &FieldRef| Arc::new(item.as_ref().clone().with_data_type(element.clone()));
    match list {
        DataType::List(item) => Some(DataType::List(wide(item))),
        DataType::LargeList(item) => Some(DataType::LargeList(wide(item))),
        DataType::FixedSizeList(item, length) => Some(DataType::FixedSizeList(wide(item), *length)),
        _ => None,
    }
}
