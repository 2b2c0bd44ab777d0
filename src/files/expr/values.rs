//! Single values in manifests and tombstones: integers and booleans are JSON values, others the text that
//! Arrow casts them to.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, StringArray, UInt32Array, new_null_array};
use arrow_cast::display::FormatOptions;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use arrow_select::take::take;
use serde_json::Value;

use crate::error::{Error, Result, corrupted_error};

/// Maximum length of a text: a longer bound is not worth its place in the manifest.
const MAX_TEXT_BYTES: usize = 128;
/// The number of rows of one array of a constant column.
const CONSTANT_ROWS: usize = 65_536;
const STRICT: CastOptions<'_> = CastOptions {
    safe: false,
    format_options: FormatOptions::new(),
};

/// Converts an array of one value to JSON; `None` if a manifest cannot hold the value.
pub(crate) fn to_json(value: &ArrayRef) -> Option<Value> {
    if value.len() != 1 || value.is_null(0) {
        return None;
    }
    let cast = |to| cast_with_options(value, to, &STRICT).ok();
    let data_type = value.data_type();
    if *data_type == DataType::Boolean {
        return Some(Value::from(value.as_boolean().value(0)));
    }
    if data_type.is_unsigned_integer() {
        let widened = cast(&DataType::UInt64)?;
        let wide = widened.as_primitive::<arrow_array::types::UInt64Type>();
        return Some(Value::from(wide.value(0)));
    }
    if data_type.is_integer() {
        let widened = cast(&DataType::Int64)?;
        let wide = widened.as_primitive::<arrow_array::types::Int64Type>();
        return Some(Value::from(wide.value(0)));
    }
    let texts = cast(&DataType::Utf8)?;
    let text = texts.as_string::<i32>().value(0);
    let json = (text.len() <= MAX_TEXT_BYTES).then(|| Value::from(text))?;
    // A reader has to get the same value.
    let round_trips =
        from_json(&json, data_type).is_ok_and(|array| array.as_ref() == value.as_ref());
    round_trips.then_some(json)
}

/// The text of a string, number or boolean; `None` for other JSON.
pub(crate) fn to_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// Parses a value of a manifest or a tombstone. Fails with `ManifestCorrupted`.
pub(crate) fn from_json(value: &Value, data_type: &DataType) -> Result<ArrayRef> {
    let invalid_value =
        || corrupted_error("a value", &format!("{value} is not a valid {data_type}"));
    let text: ArrayRef = Arc::new(StringArray::from(vec![
        to_text(value).ok_or_else(invalid_value)?,
    ]));
    cast_with_options(&text, data_type, &STRICT).map_err(|e| invalid_value().with_source(e))
}

/// A column with one value in every row, in arrays that share it; null if there is none. Fails with
/// `ManifestCorrupted`.
pub(crate) fn constant_column(
    value: Option<&Value>,
    data_type: &DataType,
    rows: usize,
) -> Result<Vec<ArrayRef>> {
    let Some(value) = value else {
        return Ok(vec![new_null_array(data_type, rows)]);
    };
    let single = from_json(value, data_type)?;
    let first = UInt32Array::from_value(0, rows.min(CONSTANT_ROWS));
    let repeated = take(&single, &first, None);
    let repeated = repeated.map_err(Error::from_cause)?;
    let starts = (0..rows.max(1)).step_by(CONSTANT_ROWS);
    let lengths = starts.map(|start| (rows - start).min(CONSTANT_ROWS));
    Ok(lengths.map(|length| repeated.slice(0, length)).collect())
}

/// Whether a text is exactly a value of a type: Arrow's casts round decimals and cut times.
pub(crate) fn is_exact(text: &str, data_type: &DataType) -> bool {
    let cast = |value: &ArrayRef, to: &DataType| cast_with_options(value, to, &STRICT).ok();
    let parse = |to: &DataType| from_json(&Value::from(text), to).ok();
    let exact_as = |finer: &DataType| {
        let finer_value = parse(finer)?;
        let widened = cast(&parse(data_type)?, finer)?;
        Some(widened.as_ref() == finer_value.as_ref())
    };
    match data_type {
        DataType::Dictionary(_, values) => is_exact(text, values),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => {
            let number = text.trim().trim_start_matches(['+', '-']);
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            let digits = fraction.trim_end_matches('0');
            // No exponents: readers of this format do not know them.
            (whole.len() + fraction.len() > 0)
                && whole
                    .bytes()
                    .chain(fraction.bytes())
                    .all(|b| b.is_ascii_digit())
                && i8::try_from(digits.len()).is_ok_and(|digits| digits <= (*scale).max(0))
                && parse(data_type).is_some()
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            exact_as(&DataType::Time64(TimeUnit::Nanosecond)).unwrap_or(false)
        }
        // Years before 1678 and after 2261 have no nanoseconds.
        DataType::Timestamp(_, zone) => [TimeUnit::Nanosecond, TimeUnit::Microsecond]
            .into_iter()
            .find_map(|unit| exact_as(&DataType::Timestamp(unit, zone.clone())))
            .unwrap_or(false),
        DataType::Date32 | DataType::Date64 => {
            exact_as(&DataType::Timestamp(TimeUnit::Microsecond, None)).unwrap_or(false)
        }
        float if float.is_floating() => {
            parse(float).is_some_and(|value| is_that_float(text, &value))
        }
        other => !other.is_nested() && parse(other).is_some(),
    }
}

/// Whether a float is finite where the text is, and the whole number that the text is.
fn is_that_float(text: &str, value: &ArrayRef) -> bool {
    let Ok(wide) = cast_with_options(value, &DataType::Float64, &STRICT) else {
        return false;
    };
    let float = wide.as_primitive::<Float64Type>().value(0);
    let names_infinity = text
        .trim()
        .trim_start_matches(['+', '-'])
        .starts_with(['i', 'I']);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole numbers that do not fit differ"
    )]
    let is_whole = text
        .trim()
        .parse::<i128>()
        .map_or(true, |number| float as i128 == number);
    (float.is_finite() || float.is_nan() || names_infinity) && is_whole
}

/// The JSON of a constant of a column: as [`to_json`], but floats have the digits of 64 bits, so that a wider type
/// reads the same value.
pub(crate) fn constant_to_json(text: &str, data_type: &DataType) -> Option<Value> {
    let value = from_json(&Value::from(text), data_type).ok()?;
    let value_type = match data_type {
        DataType::Dictionary(_, values) => values,
        other => other,
    };
    if value_type.is_floating() {
        let wide = cast_with_options(&value, &DataType::Float64, &STRICT).ok()?;
        return to_json(&wide);
    }
    to_json(&value)
}
