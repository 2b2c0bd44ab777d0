//! Access to the fields of events, and the errors of events that break a rule.

use serde_json::Value;

use super::multihash::Multihash;
use super::time::{self, UtcDateTime};
use crate::error::{Error, ErrorKind, Result};

/// The attribute of a merged block with the head that it was made from.
pub(super) const COMPACTED_FROM: &str = "pds/compactedFrom";

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

pub(super) fn get_number(value: &Value, name: &str) -> Option<u64> {
    get(value, name).and_then(Value::as_u64)
}

pub(super) fn get_time(value: &Value, name: &str) -> Result<Option<UtcDateTime>> {
    get_text(value, name).map(time::from_text).transpose()
}

pub(super) fn get_list(event: &Value, name: &str) -> Vec<Value> {
    let items = get(event, name).and_then(Value::as_array);
    items.cloned().unwrap_or_default()
}

/// Returns the head that a merged block was made from; None for other blocks.
pub(super) fn compacted_from(event: &Value) -> Option<Multihash> {
    event
        .get("extra")?
        .get(COMPACTED_FROM)?
        .as_str()?
        .parse()
        .ok()
}
