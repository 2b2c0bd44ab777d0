//! `log` to a base, with the whole numbers that it has: DataFusion divides natural logarithms, so that log(1000) is
//! 2.9999999999999996.

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array};
use arrow_cast::cast;
use arrow_schema::DataType;
use datafusion_common::Result;

use super::calls::Call;

const LOG: &str = "log";
const DEFAULT_BASE: f64 = 10.0;

pub(super) fn is_checked(name: &str) -> bool {
    name == LOG
}

/// The logarithms of the last argument to the base that is before it, or to 10.
pub(super) fn evaluate(call: &Call<'_>) -> Result<ArrayRef> {
    let (base, at) = match call.args().len() {
        2 => (Some(call.array(0)?), 1),
        _ => (None, 0),
    };
    let numbers = call.array(at)?;
    let is_null = base.as_ref().is_some_and(|base| base.data_type().is_null());
    if is_null || numbers.data_type().is_null() {
        return call.invoke(call.args().to_vec());
    }
    let numbers = cast(&numbers, &DataType::Float64)?;
    let bases = match base {
        Some(base) => cast(&base, &DataType::Float64)?
            .as_primitive::<Float64Type>()
            .clone(),
        None => Float64Array::from_value(DEFAULT_BASE, call.rows()),
    };
    let pairs = numbers.as_primitive::<Float64Type>().iter().zip(&bases);
    let logarithms = pairs.map(|(number, base)| Some(logarithm(number?, base?)));
    let logarithms: Float64Array = logarithms.collect();
    Ok(cast(&logarithms, call.return_type())?)
}

#[allow(
    clippy::float_cmp,
    reason = "a power is the number itself, or its logarithm is not whole"
)]
fn logarithm(number: f64, base: f64) -> f64 {
    if base == DEFAULT_BASE {
        return number.log10();
    }
    if base == 2.0 {
        return number.log2();
    }
    let quotient = number.log(base);
    let whole = quotient.round();
    if base.powf(whole) == number {
        whole
    } else {
        quotient
    }
}
