//! `round` and `trunc` of floats to a number of places, with the float itself where it has no more of them.
//!
//! They multiply by a power of ten: in DataFusion the product of a large float is infinite, and of many places NaN.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array};
use arrow_cast::cast;
use arrow_schema::DataType;
use datafusion_common::Result;

use super::calls::Call;

const ROUND: &str = "round";

pub(super) fn is_checked(name: &str) -> bool {
    matches!(name, ROUND | "trunc")
}

/// The rounded numbers. DataFusion rounds other types than floats.
pub(super) fn evaluate(call: &Call<'_>) -> Result<ArrayRef> {
    if !call.return_type().is_floating() {
        return call.invoke(call.args().to_vec());
    }
    let whole: fn(f64) -> f64 = if call.name() == ROUND {
        f64::round
    } else {
        f64::trunc
    };
    let floats = cast(&call.array(0)?, &DataType::Float64)?;
    let places: ArrayRef = match call.args().get(1) {
        Some(_) => cast(&call.array(1)?, &DataType::Int64)?,
        None => Arc::new(Int64Array::from_value(0, call.rows())),
    };
    let pairs = floats
        .as_primitive::<Float64Type>()
        .iter()
        .zip(places.as_primitive::<Int64Type>());
    let rounded = pairs.map(|(value, places)| Some(round_to(value?, places?, whole)));
    let rounded: Float64Array = rounded.collect();
    Ok(cast(&rounded, call.return_type())?)
}

/// A float with this number of decimal places.
fn round_to(value: f64, places: i64, whole: fn(f64) -> f64) -> f64 {
    if !value.is_finite() {
        return value;
    }
    let exponent = i32::try_from(places.unsigned_abs()).unwrap_or(i32::MAX);
    let factor = 10_f64.powi(exponent);
    let (rounded, otherwise) = if places < 0 {
        (whole(value / factor) * factor, 0.0)
    } else {
        (whole(value * factor) / factor, value)
    };
    if rounded.is_finite() {
        rounded
    } else {
        otherwise
    }
}
