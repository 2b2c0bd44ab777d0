//! Single values in manifests and tombstones: integers and booleans as JSON has them, all else as the
//! text that Arrow casts it to.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, StringArray};
use arrow_cast::display::FormatOptions;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use serde_json::Value;

use super::format::corrupted;
use crate::error::Result;

/// A text of more bytes is no bound worth its place in the manifest.
const MAX_TEXT_BYTES: usize = 128;
const STRICT: CastOptions<'_> = CastOptions {
    safe: false,
    format_options: FormatOptions::new(),
};

/// One value; None where a manifest cannot hold it.
pub(super) fn to_json(value: &ArrayRef) -> Option<Value> {
    if value.len() != 1 || value.is_null(0) {
        return None;
    }
    let cast = |to| cast_with_options(value, to, &STRICT).ok();
    let data_type = value.data_type();
    if *data_type == DataType::Boolean {
        return Some(Value::from(value.as_boolean().value(0)));
    }
    if data_type.is_unsigned_integer() {
        let wide = cast(&DataType::UInt64)?;
        let wide = wide.as_primitive::<arrow_array::types::UInt64Type>();
        return Some(Value::from(wide.value(0)));
    }
    if data_type.is_integer() {
        let wide = cast(&DataType::Int64)?;
        let wide = wide.as_primitive::<arrow_array::types::Int64Type>();
        return Some(Value::from(wide.value(0)));
    }
    let text = cast(&DataType::Utf8)?;
    let text = text.as_string::<i32>().value(0);
    let found = (text.len() <= MAX_TEXT_BYTES).then(|| Value::from(text))?;
    // Whoever reads it has to get the same.
    let same = from_json(&found, data_type).is_ok_and(|read| read.as_ref() == value.as_ref());
    same.then_some(found)
}

/// What a value is as text.
pub(super) fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

/// A value of a manifest or a tombstone.
pub(super) fn from_json(value: &Value, data_type: &DataType) -> Result<ArrayRef> {
    let why = || corrupted("a bound", &format!("{value} is no value of {data_type}"));
    let text: ArrayRef = Arc::new(StringArray::from(vec![text_of(value).ok_or_else(why)?]));
    cast_with_options(&text, data_type, &STRICT).map_err(|e| why().with_source(e))
}
