//! The types of Iceberg, and which of them a column or a column of a file has.
//!
//! A type is refused where Iceberg has no such type, or a common reader fails or gives wrong values.

use arrow_schema::{DataType, Field, TimeUnit};
use serde_json::{Value, json};

use crate::table::export::{ExportType, check_decimal, is_wider_decimal};

/// The type as which readers of Iceberg see a field; or why they cannot.
pub(super) fn new_type(field: &Field) -> Result<ExportType, String> {
    use DataType as D;
    let name = match field.data_type() {
        D::Boolean => "boolean",
        D::Int8 | D::Int16 | D::Int32 => "int",
        D::Int64 => "long",
        D::UInt8 | D::UInt16 | D::UInt32 | D::UInt64 => {
            return Err("Iceberg has no unsigned integers".to_owned());
        }
        D::Float32 => "float",
        D::Float64 => "double",
        D::Date32 | D::Date64 => "date",
        D::Utf8 | D::LargeUtf8 | D::Utf8View => "string",
        D::Binary | D::LargeBinary | D::BinaryView => "binary",
        D::FixedSizeBinary(16) if is_uuid(field) => "uuid",
        D::FixedSizeBinary(length) => {
            return Ok(ExportType::Primitive(format!("fixed[{length}]")));
        }
        D::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamptz",
        D::Timestamp(TimeUnit::Microsecond, None) => "timestamp",
        D::Timestamp(..) => {
            return Err("timestamps of Iceberg have microseconds".to_owned());
        }
        D::Decimal32(digits, scale)
        | D::Decimal64(digits, scale)
        | D::Decimal128(digits, scale) => {
            check_decimal("Iceberg", *digits, *scale)?;
            return Ok(ExportType::Primitive(format!("decimal({digits}, {scale})")));
        }
        D::Dictionary(_, values) => {
            return new_type(&Field::new("", values.as_ref().clone(), true));
        }
        D::RunEndEncoded(_, values) => return new_type(values),
        D::List(field) | D::LargeList(field) => {
            return ExportType::new_list(field, new_type);
        }
        D::Struct(fields) => return ExportType::new_struct(fields, new_type),
        D::Map(entries, _) => return ExportType::new_map(entries, new_type),
        other => return Err(format!("readers of Iceberg cannot read the type {other}")),
    };
    Ok(ExportType::Primitive(name.to_owned()))
}

/// The JSON of a type in the schema.
pub(super) fn to_json(data_type: &ExportType) -> Value {
    match data_type {
        ExportType::Primitive(name) => Value::from(name.as_str()),
        ExportType::Struct(fields) => {
            let fields = fields.iter().map(|field| {
                json!({
                    "id": field.id,
                    "name": field.name,
                    "required": !field.nullable,
                    "type": to_json(&field.data_type),
                })
            });
            json!({"type": "struct", "fields": fields.collect::<Vec<_>>()})
        }
        ExportType::List(element) => json!({
            "type": "list",
            "element-id": element.id,
            "element": to_json(&element.data_type),
            "element-required": !element.nullable,
        }),
        ExportType::Map(key, value) => json!({
            "type": "map",
            "key-id": key.id,
            "key": to_json(&key.data_type),
            "value-id": value.id,
            "value": to_json(&value.data_type),
            "value-required": !value.nullable,
        }),
    }
}

/// The entry of a field in the default name mapping, which has the names of nested fields in files without ids.
pub(super) fn mapping(id: Option<i64>, name: &str, data_type: &ExportType) -> Value {
    let mut entry = json!({"field-id": id, "names": [name]});
    let fields = data_type.fields();
    let nested: Vec<Value> = fields
        .map(|field| mapping(field.id, &field.name, &field.data_type))
        .collect();
    if !nested.is_empty() {
        entry["fields"] = nested.into();
    }
    entry
}

fn is_uuid(field: &Field) -> bool {
    let extension = field.metadata().get("ARROW:extension:name");
    extension.is_some_and(|name| name == "arrow.uuid")
}

/// Whether a reader of files with the type `from` gives their values as the type `to`. Source: the specification of
/// Iceberg, "Schema Evolution"; only of columns that are not nested.
pub(super) fn can_promote(from: &ExportType, to: &ExportType) -> bool {
    let (ExportType::Primitive(from), ExportType::Primitive(to)) = (from, to) else {
        return false;
    };
    is_wider_decimal(from, to) || matches!((&**from, &**to), ("int", "long") | ("float", "double"))
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
            DataType::UInt32,
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            DataType::Duration(TimeUnit::Second),
            DataType::Decimal256(20, 0),
            DataType::Decimal128(5, -2),
            DataType::FixedSizeList(item(DataType::Int64), 2),
            DataType::ListView(item(DataType::Int64)),
            DataType::List(item(DataType::UInt8)),
        ] {
            let field = Field::new("a", data_type, true);
            assert!(new_type(&field).is_err(), "{field}");
        }
    }

    #[test]
    fn types_are_promoted_as_the_specification_says() {
        let is_allowed = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|name| ExportType::Primitive(name.to_owned()));
            can_promote(&from, &to)
        };
        for (from, to) in [
            ("int", "long"),
            ("float", "double"),
            ("decimal(5, 2)", "decimal(9, 2)"),
        ] {
            assert!(is_allowed(from, to) && !is_allowed(to, from), "{from} {to}");
        }
        for (from, to) in [("int", "double"), ("decimal(5, 2)", "decimal(9, 3)")] {
            assert!(!is_allowed(from, to), "{from} {to}");
        }
    }
}
