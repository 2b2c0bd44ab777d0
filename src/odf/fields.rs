//! Access to the fields of events, and the errors of events that break a rule.

use std::str::FromStr;

use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};

/// An error of the kind [`ErrorKind::InvalidAppend`] with the name of the violated rule as its detail.
pub(super) fn invalid_append(rule: &str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidAppend, message).with_detail(rule)
}

pub(super) fn invalid_event(message: impl Into<String>) -> Error {
    invalid_append("InvalidEvent", message)
}

pub(super) fn no_op_event(message: &str) -> Error {
    invalid_append("NoOpEvent", message)
}

/// Returns a field; None if it is absent or null.
pub(super) fn get<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).filter(|field| !field.is_null())
}

pub(super) fn get_text<'v>(value: &'v Value, name: &str) -> Option<&'v str> {
    get(value, name).and_then(Value::as_str)
}

pub(super) fn get_list(event: &Value, name: &str) -> Vec<Value> {
    let items = get(event, name).and_then(Value::as_array);
    items.cloned().unwrap_or_default()
}

/// Returns a field; [`ErrorKind::BlockCorrupted`] if it is absent or null.
pub(super) fn require<'v>(value: &'v Value, name: &str) -> Result<&'v Value> {
    get(value, name).ok_or_else(|| invalid_field(name))
}

pub(super) fn require_text<'v>(value: &'v Value, name: &str) -> Result<&'v str> {
    require(value, name)?
        .as_str()
        .ok_or_else(|| invalid_field(name))
}

pub(super) fn require_number(value: &Value, name: &str) -> Result<u64> {
    require(value, name)?
        .as_u64()
        .ok_or_else(|| invalid_field(name))
}

/// Returns a number; None if it is absent or null.
pub(super) fn optional_number(value: &Value, name: &str) -> Result<Option<u64>> {
    get(value, name)
        .map(|_| require_number(value, name))
        .transpose()
}

/// Parses the text of a field.
pub(super) fn parse_field<T: FromStr<Err = Error>>(value: &Value, name: &str) -> Result<T> {
    let parsed = require_text(value, name)?.parse::<T>();
    parsed.map_err(|e| e.with_kind(ErrorKind::BlockCorrupted).context(name))
}

fn invalid_field(name: &str) -> Error {
    Error::block_corrupted(format!("the event has no valid field {name:?}"))
}
