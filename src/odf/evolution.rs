//! Schema evolution: which changes of a logical schema are allowed.
//!
//! [`compare_schemas`] finds the changes that the rules of a chain forbid, [`check_older_rows`] refuses those that the
//! rules allow and with which older rows could not be read, and [`check_values_stay`] types that would change them. A unit or a time zone that a type leaves out is the default
//! of the specification, so that to leave it out or to write it is no change.

use arrow_schema::Schema;
use serde_json::{Map, Value};

use super::fields::invalid_event;
use super::schema::{DEFAULT_UNIT, UTC};
use super::vocabulary::Vocabulary;
use crate::error::Result;
use crate::files::types::keeps_values;

/// How a schema differs from the one before it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DataSchemaDifference {
    /// Whether anything differs, attributes and the order of fields included.
    pub has_changes: bool,
    /// Descriptions of the changes that are not allowed.
    pub forbidden_changes: Vec<String>,
    /// Optional fields that are added within other fields. The rules allow them, but older rows cannot be read with
    /// them.
    pub nested_additions: Vec<String>,
    /// Fields that were optional and are required, also if that is ignored.
    pub newly_required: Vec<String>,
}

/// Compares two logical schemas. With `ignore_optional`, a field may change between optional and required.
pub(super) fn compare_schemas(
    before: &Value,
    after: &Value,
    ignore_optional: bool,
) -> DataSchemaDifference {
    let (before, after) = (&with_defaults(before), &with_defaults(after));
    let mut difference = DataSchemaDifference {
        has_changes: before != after,
        ..DataSchemaDifference::default()
    };
    compare_fields("", before, after, ignore_optional, &mut difference);
    difference
}

/// Returns a schema, or a part of one, whose types have the units and time zones that they leave out. Attributes stay.
fn with_defaults(part: &Value) -> Value {
    let fields = match part {
        Value::Array(items) => return items.iter().map(with_defaults).collect(),
        Value::Object(fields) => fields,
        other => return other.clone(),
    };
    let completed = fields.iter().map(|(name, value)| match name.as_str() {
        "extra" => (name.clone(), value.clone()),
        _ => (name.clone(), with_defaults(value)),
    });
    let mut completed: Map<String, Value> = completed.collect();
    let kind = part.get("kind").and_then(Value::as_str);
    if matches!(kind, Some("Time" | "Duration" | "Timestamp")) {
        completed.entry("unit").or_insert(DEFAULT_UNIT.into());
    }
    if kind == Some("Timestamp") {
        completed.entry("timezone").or_insert(UTC.into());
    }
    Value::Object(completed)
}

/// Refuses a schema with which the rows of the one before cannot be read. `vocabulary` has the names of the system
/// columns, which have no nulls.
pub(super) fn check_older_rows(
    before: &Value,
    after: &Value,
    has_rows: bool,
    vocabulary: &Vocabulary,
) -> Result<()> {
    let difference = compare_schemas(before, after, true);
    let nested = difference.nested_additions;
    if !nested.is_empty() {
        let message = format!(
            "the fields {} are added within another field, and older rows cannot be read with them; add a column \
             instead",
            nested.join(", ")
        );
        return Err(invalid_event(message));
    }
    // The rules allow it after a rawArrowSchema.
    let mut required = difference.newly_required;
    required.retain(|name| !vocabulary.names().contains(&name.as_str()));
    if has_rows && !required.is_empty() {
        let message = format!(
            "the fields {} become required, and older rows may have nulls in them; leave them optional",
            required.join(", ")
        );
        return Err(invalid_event(message));
    }
    Ok(())
}

/// Refuses types in which older rows would have other values. Of a rawArrowSchema the specification says nothing.
pub(super) fn check_values_stay(before: &Schema, after: &Schema) -> Result<()> {
    for column in before.fields() {
        let (name, from) = (column.name(), column.data_type());
        let Ok(field) = after.field_with_name(name) else {
            continue;
        };
        let to = field.data_type();
        if !keeps_values(from, to) {
            let message = format!(
                "column {name:?} changes from {from} to {to}, in which older rows would have other values; add a column \
                 instead"
            );
            return Err(invalid_event(message));
        }
    }
    Ok(())
}

fn compare_fields(
    within: &str,
    before: &Value,
    after: &Value,
    ignore_optional: bool,
    difference: &mut DataSchemaDifference,
) {
    let none = Vec::new();
    let fields = |holder: &Value| holder.get("fields").and_then(Value::as_array).cloned();
    let (old, new) = (
        fields(before).unwrap_or(none.clone()),
        fields(after).unwrap_or(none),
    );
    let find = |among: &[Value], name: &Value| among.iter().find(|f| f["name"] == *name).cloned();
    for field in &old {
        let name = format!("{within}{}", field["name"].as_str().unwrap_or_default());
        match find(&new, &field["name"]) {
            None => difference
                .forbidden_changes
                .push(format!("field {name:?} is removed")),
            Some(now) => {
                compare_types(
                    &name,
                    &field["type"],
                    &now["type"],
                    ignore_optional,
                    difference,
                );
            }
        }
    }
    for field in &new {
        let is_optional = field["type"]["kind"] == "Option";
        if find(&old, &field["name"]).is_none() && is_optional && !within.is_empty() {
            let name = field["name"].as_str().unwrap_or_default();
            difference.nested_additions.push(format!("{within}{name}"));
        }
        if find(&old, &field["name"]).is_none() && !is_optional {
            let name = field["name"].as_str().unwrap_or_default();
            difference.forbidden_changes.push(format!(
                "field \"{within}{name}\" is added and not optional"
            ));
        }
    }
}

fn compare_types(
    name: &str,
    before: &Value,
    after: &Value,
    ignore_optional: bool,
    difference: &mut DataSchemaDifference,
) {
    let is_option = |odf_type: &Value| odf_type["kind"] == "Option";
    match (is_option(before), is_option(after)) {
        (true, true) => {
            let (before, after) = (&before["inner"], &after["inner"]);
            compare_types(name, before, after, ignore_optional, difference);
        }
        (false, true) => {
            if !ignore_optional {
                difference
                    .forbidden_changes
                    .push(format!("field {name:?} becomes optional"));
            }
            compare_types(name, before, &after["inner"], ignore_optional, difference);
        }
        (true, false) => {
            difference.newly_required.push(name.to_owned());
            if !ignore_optional {
                difference
                    .forbidden_changes
                    .push(format!("field {name:?} becomes required"));
            }
            compare_types(name, &before["inner"], after, ignore_optional, difference);
        }
        (false, false) if before["kind"] != after["kind"] => {
            let kinds = (before["kind"].as_str(), after["kind"].as_str());
            let (before, after) = (kinds.0.unwrap_or_default(), kinds.1.unwrap_or_default());
            difference
                .forbidden_changes
                .push(format!("field {name:?} changes from {before} to {after}"));
        }
        (false, false) if before["kind"] == "Struct" => {
            let within = format!("{name}.");
            compare_fields(&within, before, after, ignore_optional, difference);
        }
        (false, false) if before["kind"] == "List" => {
            let item = format!("{name}[]");
            if before.get("fixedLength") != after.get("fixedLength") {
                difference
                    .forbidden_changes
                    .push(format!("the lists of {name:?} change their length"));
            }
            let (before, after) = (&before["itemType"], &after["itemType"]);
            compare_types(&item, before, after, ignore_optional, difference);
        }
        (false, false) if before != after => {
            difference
                .forbidden_changes
                .push(format!("field {name:?} changes its type"));
        }
        (false, false) => {}
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field, Schema};
    use serde_json::json;

    use super::*;
    use crate::odf::schema::from_arrow;

    #[test]
    fn what_a_schema_may_become() {
        let schema_of = |fields: Vec<Field>| from_arrow(&Schema::new(fields)).unwrap();
        let int = |name: &str, nullable| Field::new(name, DataType::Int32, nullable);
        let before = schema_of(vec![int("a", false), int("b", true)]);
        let allowed = [
            schema_of(vec![int("b", true), int("a", false)]),
            schema_of(vec![int("a", false), int("b", true), int("c", true)]),
        ];
        for after in &allowed {
            let difference = compare_schemas(&before, after, false);
            assert!(
                difference.has_changes && difference.forbidden_changes.is_empty(),
                "{difference:?}"
            );
        }
        let forbidden = [
            schema_of(vec![int("a", false)]),
            schema_of(vec![int("a", true), int("b", true)]),
            schema_of(vec![int("a", false), int("b", false)]),
            schema_of(vec![int("a", false), int("b", true), int("c", false)]),
            schema_of(vec![Field::new("a", DataType::Utf8, false), int("b", true)]),
        ];
        for after in &forbidden {
            assert_eq!(
                compare_schemas(&before, after, false)
                    .forbidden_changes
                    .len(),
                1,
                "{after}"
            );
        }
        let becomes_optional = compare_schemas(&before, &forbidden[1], true);
        assert!(becomes_optional.forbidden_changes.is_empty());
        assert!(becomes_optional.newly_required.is_empty());
        let becomes_required = compare_schemas(&before, &forbidden[2], true);
        assert!(becomes_required.forbidden_changes.is_empty());
        assert_eq!(becomes_required.newly_required, ["b"]);
        assert_eq!(
            compare_schemas(&before, &before, false),
            DataSchemaDifference::default()
        );
    }

    #[test]
    fn a_default_that_is_left_out_is_no_change() {
        let schema_of = |types: &[Value]| {
            let fields = types.iter().enumerate();
            let fields = fields.map(|(at, t)| json!({"name": format!("c{at}"), "type": t}));
            json!({"fields": fields.collect::<Vec<_>>()})
        };
        let (unit, zone) = ("Millisecond", "UTC");
        let short = [
            json!({"kind": "Time"}),
            json!({"kind": "Duration"}),
            json!({"kind": "Option", "inner": {"kind": "Timestamp"}}),
            json!({"kind": "List", "itemType": {"kind": "Timestamp"}}),
            json!({"kind": "Map", "keyType": {"kind": "Time"}, "valueType": {"kind": "Time"}}),
        ];
        let time = json!({"kind": "Time", "unit": unit});
        let timestamp = json!({"kind": "Timestamp", "unit": unit, "timezone": zone});
        let long = [
            time.clone(),
            json!({"kind": "Duration", "unit": unit}),
            json!({"kind": "Option", "inner": timestamp}),
            json!({"kind": "List", "itemType": timestamp}),
            json!({"kind": "Map", "keyType": time, "valueType": time}),
        ];
        let (short, long) = (schema_of(&short), schema_of(&long));
        for (before, after) in [(&short, &long), (&long, &short)] {
            let difference = compare_schemas(before, after, false);
            assert_eq!(difference, DataSchemaDifference::default());
        }
        let finer = schema_of(&[json!({"kind": "Time", "unit": "Nanosecond"})]);
        let difference = compare_schemas(&schema_of(&[json!({"kind": "Time"})]), &finer, false);
        assert_eq!(difference.forbidden_changes.len(), 1);
        let annotated = |kind: &str| {
            let extra = json!({"example.com/a": {"kind": kind}});
            json!({"fields": [{"name": "c", "type": {"kind": "Int8"}, "extra": extra}]})
        };
        assert!(compare_schemas(&annotated("Time"), &annotated("Date"), false).has_changes);
        assert_eq!(with_defaults(&annotated("Time")), annotated("Time"));
    }
}
