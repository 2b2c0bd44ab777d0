//! Fields of an event, and what is wrong with one.

use serde_json::Value;

use super::time::{self, Moment};
use crate::error::{Error, ErrorKind, Result};

/// An event that a rule does not allow.
pub(super) fn refused(rule: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidAppend, message).with_detail(rule)
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    refused("InvalidEvent", message)
}

pub(super) fn no_op(message: &str) -> Error {
    refused("NoOpEvent", message)
}

/// A field that is there.
pub(super) fn get<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).filter(|found| !found.is_null())
}

pub(super) fn text<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    get(value, name).and_then(Value::as_str)
}

pub(super) fn number(value: &Value, name: &str) -> Option<u64> {
    get(value, name).and_then(Value::as_u64)
}

pub(super) fn moment(value: &Value, name: &str) -> Result<Option<Moment>> {
    text(value, name).map(time::from_text).transpose()
}

pub(super) fn inputs_of(event: &Value, name: &str) -> Vec<Value> {
    let inputs = get(event, name).and_then(Value::as_array);
    inputs.cloned().unwrap_or_default()
}
