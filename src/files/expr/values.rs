//! Single values in manifests and tombstones: integers and booleans are JSON values, others the text that
//! Arrow casts them to.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_cast::display::FormatOptions;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use serde_json::Value;

use crate::error::Result;
use crate::error::corrupted_error;

/// Maximum length of a text: a longer bound is not worth its place in the manifest.
const MAX_TEXT_BYTES: usize = 128;
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
        || corrupted_error("a bound", &format!("{value} is not a valid {data_type}"));
    let text: ArrayRef = Arc::new(StringArray::from(vec![
        to_text(value).ok_or_else(invalid_value)?,
    ]));
    cast_with_options(&text, data_type, &STRICT).map_err(|e| invalid_value().with_source(e))
}
