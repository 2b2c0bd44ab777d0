//! The types of Delta, and which of them a column or a column of a file has.
//!
//! A type is refused where a common reader of Delta has no such type or gives wrong values.

use arrow_schema::{DataType, Field, TimeUnit};
use serde_json::{Value, json};

use crate::table::export::{ExportField, ExportType, check_decimal, is_wider_decimal};

/// The type as which readers of Delta see a field; or why they cannot.
pub(super) fn new_type(field: &Field) -> Result<ExportType, String> {
    use DataType as D;
    let name = match field.data_type() {
        D::Boolean => "boolean",
        D::Int8 => "byte",
        D::Int16 | D::UInt8 => "short",
        D::Int32 | D::UInt16 => "integer",
        D::Int64 | D::UInt32 | D::Duration(_) => "long",
        D::UInt64 => "decimal(20,0)",
        D::Float32 => "float",
        D::Float64 => "double",
        D::Date32 | D::Date64 => "date",
        D::Utf8 | D::LargeUtf8 | D::Utf8View => "string",
        D::Binary | D::LargeBinary | D::BinaryView | D::FixedSizeBinary(_) => "binary",
        D::Timestamp(TimeUnit::Nanosecond, _) => {
            return Err("Delta has no nanoseconds".to_owned());
        }
        D::Timestamp(_, Some(_)) => "timestamp",
        D::Timestamp(_, None) => "timestamp_ntz",
        D::Decimal32(digits, scale)
        | D::Decimal64(digits, scale)
        | D::Decimal128(digits, scale)
        | D::Decimal256(digits, scale) => {
            check_decimal("Delta", *digits, *scale)?;
            return Ok(ExportType::Primitive(format!("decimal({digits},{scale})")));
        }
        D::Dictionary(_, values) => {
            return new_type(&Field::new("", values.as_ref().clone(), true));
        }
        D::RunEndEncoded(_, values) => return new_type(values),
        D::List(field) | D::LargeList(field) | D::FixedSizeList(field, _) => {
            return ExportType::new_list(field, new_type);
        }
        D::Struct(fields) => return ExportType::new_struct(fields, new_type),
        D::Map(entries, _) => return ExportType::new_map(entries, new_type),
        other => return Err(format!("readers of Delta cannot read the type {other}")),
    };
    Ok(ExportType::Primitive(name.to_owned()))
}

/// The JSON of a type in the schema; `by_name` with the ids and names in files of nested fields.
pub(super) fn to_json(data_type: &ExportType, by_name: bool) -> Value {
    match data_type {
        ExportType::Primitive(name) => Value::from(name.as_str()),
        ExportType::Struct(fields) => {
            let fields: Vec<Value> = fields.iter().map(|f| field_to_json(f, by_name)).collect();
            json!({"type": "struct", "fields": fields})
        }
        ExportType::List(element) => json!({
            "type": "array",
            "elementType": to_json(&element.data_type, by_name),
            "containsNull": element.nullable,
        }),
        ExportType::Map(key, value) => json!({
            "type": "map",
            "keyType": to_json(&key.data_type, by_name),
            "valueType": to_json(&value.data_type, by_name),
            "valueContainsNull": value.nullable,
        }),
    }
}

fn field_to_json(field: &ExportField, by_name: bool) -> Value {
    let metadata = match field.id {
        Some(id) if by_name => mapping(id, &field.name),
        _ => json!({}),
    };
    json!({
        "name": field.name,
        "type": to_json(&field.data_type, by_name),
        "nullable": field.nullable,
        "metadata": metadata,
    })
}

/// The metadata of a field that is looked up in files by this name.
pub(super) fn mapping(id: i64, stored_name: &str) -> Value {
    json!({"delta.columnMapping.id": id, "delta.columnMapping.physicalName": stored_name})
}

/// Whether a reader of files with the type `from` gives their values as the type `to`. Source: `PROTOCOL.md`, "Type
/// Widening"; of its rules those that a column can be widened by. (Integers as decimals are not among them: a column of
/// unsigned integers of 64 bits is a decimal in Delta only, and Spark does not read narrower ones as such.)
pub(super) fn can_widen(from: &ExportType, to: &ExportType) -> bool {
    let (ExportType::Primitive(from), ExportType::Primitive(to)) = (from, to) else {
        return false;
    };
    let integers = ["byte", "short", "integer", "long"];
    let position = |name: &str| integers.iter().position(|integer| *integer == name);
    match (position(from), position(to)) {
        (Some(from), Some(to)) => from < to,
        _ => is_wider_decimal(from, to) || (from == "float" && to == "double"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn types_that_readers_read_wrongly_are_refused() {
        let item = |data_type| Arc::new(Field::new("item", data_type, true));
        for data_type in [
            DataType::Float16,
            DataType::Null,
            DataType::Time32(TimeUnit::Second),
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            DataType::Decimal256(39, 0),
            DataType::Decimal128(5, -2),
            DataType::ListView(item(DataType::Int64)),
            DataType::List(item(DataType::Float16)),
        ] {
            let field = Field::new("a", data_type, true);
            assert!(new_type(&field).is_err(), "{field}");
        }
    }

    #[test]
    fn types_widen_as_the_protocol_says() {
        let is_allowed = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|name| ExportType::Primitive(name.to_owned()));
            can_widen(&from, &to)
        };
        for (from, to) in [
            ("byte", "long"),
            ("float", "double"),
            ("decimal(5,2)", "decimal(9,2)"),
        ] {
            assert!(is_allowed(from, to) && !is_allowed(to, from), "{from} {to}");
        }
        for (from, to) in [
            ("long", "double"),
            ("long", "decimal(20,0)"),
            ("decimal(5,2)", "decimal(9,3)"),
            ("date", "timestamp"),
        ] {
            assert!(!is_allowed(from, to), "{from} {to}");
        }
    }
}
