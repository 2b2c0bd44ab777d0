//! The schema of `SetDataSchema` and Arrow's, each as the other.
//!
//! Logical types come from RFC-016 of the Open Data Fabric; what Arrow has several layouts for is kept
//! in attributes (`arrow.apache.org/…`) where it is not the usual one. `rawArrowSchema` (RFC-010) is
//! Arrow's own flatbuffer, without a message around it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_ipc::writer::DictionaryTracker;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::decode::damaged;
use crate::error::{Error, Result};
use crate::parquet::panic_text;

const BUFFER: &str = "arrow.apache.org/bufferEncoding";
const DATE: &str = "arrow.apache.org/dateEncoding";
const DECIMAL: &str = "arrow.apache.org/decimalEncoding";
/// Ours: a timestamp that is local time, where the specification's are UTC if they do not say.
const TIMESTAMP: &str = "arrow.apache.org/timestampEncoding";
/// Ours: the attributes of a list's items.
const ITEM: &str = "arrow.apache.org/itemEncoding";
const UTC: &str = "UTC";
const UNITS: [(&str, TimeUnit); 4] = [
    ("Second", TimeUnit::Second),
    ("Millisecond", TimeUnit::Millisecond),
    ("Microsecond", TimeUnit::Microsecond),
    ("Nanosecond", TimeUnit::Nanosecond),
];
const MAX_DECIMAL128_DIGITS: u8 = 38;

/// The `SetDataSchema` event of an Arrow schema: of logical types, or of Arrow's own bytes.
pub fn event_of(schema: &Schema, raw: bool) -> Result<Value> {
    if raw {
        let mut dictionaries = DictionaryTracker::new(false);
        let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(&mut dictionaries);
        let bytes = encoder.schema_to_fb(schema);
        let text = STANDARD.encode(bytes.finished_data());
        return Ok(json!({"kind": "SetDataSchema", "rawArrowSchema": text}));
    }
    let schema = from_arrow(schema)?;
    Ok(json!({"kind": "SetDataSchema", "schema": schema}))
}

/// The Arrow schema of a `SetDataSchema` event.
pub fn arrow_of(event: &Value) -> Result<Schema> {
    match event.get("rawArrowSchema").and_then(Value::as_str) {
        Some(text) => {
            let bytes = STANDARD.decode(text);
            raw_arrow(&bytes.map_err(|e| damaged("rawArrowSchema is not base64").with_source(e))?)
        }
        None => to_arrow(event.get("schema").unwrap_or(&Value::Null)),
    }
}

/// The logical schema of a `SetDataSchema` event, whichever form it has.
pub(super) fn logical_of(event: &Value) -> Result<Value> {
    match event.get("schema") {
        Some(schema) if !schema.is_null() => Ok(schema.clone()),
        _ => Ok(without_layouts(from_arrow(&arrow_of(event)?)?)),
    }
}

/// A schema without the attributes that tell layouts apart, which a raw one has whether meant or not.
fn without_layouts(mut schema: Value) -> Value {
    match &mut schema {
        Value::Object(fields) => {
            if let Some(Value::Object(extra)) = fields.get_mut("extra") {
                extra.retain(|key, _| {
                    ![BUFFER, DATE, DECIMAL, TIMESTAMP, ITEM].contains(&key.as_str())
                });
                if extra.is_empty() {
                    fields.remove("extra");
                }
            }
            let inner = std::mem::take(fields).into_iter();
            *fields = inner
                .map(|(key, value)| (key, without_layouts(value)))
                .collect();
        }
        Value::Array(items) => {
            *items = std::mem::take(items)
                .into_iter()
                .map(without_layouts)
                .collect();
        }
        _ => {}
    }
    schema
}

/// The schema in Arrow's own flatbuffer.
fn raw_arrow(bytes: &[u8]) -> Result<Schema> {
    let unreadable = |why: &str| damaged(format!("rawArrowSchema cannot be read: {why}"));
    let verified = root_as_schema(bytes).map_err(|e| unreadable(&e.to_string()).with_source(e))?;
    // Offsets are sound now; of types that it does not know the conversion panics.
    let converted = std::panic::catch_unwind(AssertUnwindSafe(|| fb_to_schema(verified)));
    converted.map_err(|panic| unreadable(panic_text(panic.as_ref())))
}

/// The logical schema of an Arrow schema.
pub fn from_arrow(schema: &Schema) -> Result<Value> {
    let fields = schema.fields().iter().map(|f| field_from(f));
    Ok(json!({"fields": fields.collect::<Result<Vec<_>>>()?}))
}

fn field_from(field: &Field) -> Result<Value> {
    let named = |e: Error| e.context(format!("column {:?}", field.name()));
    let (kind, attributes) = type_from(field.data_type(), field.is_nullable()).map_err(named)?;
    let mut made = json!({"name": field.name(), "type": kind});
    if !attributes.is_empty() {
        made["extra"] = Value::Object(attributes);
    }
    Ok(made)
}

/// A type, and the attributes of a field that has it.
fn type_from(kind: &DataType, nullable: bool) -> Result<(Value, Map<String, Value>)> {
    match kind {
        DataType::Dictionary(_, value) => return type_from(value, nullable),
        DataType::RunEndEncoded(_, values) => return type_from(values.data_type(), nullable),
        _ => {}
    }
    let found = logical_type(kind)?;
    let found = if nullable {
        json!({"kind": "Option", "inner": found})
    } else {
        found
    };
    let attributes = attribute_of(kind).into_iter().chain(item_attributes(kind)?);
    let attributes = attributes.map(|(key, value)| (key.to_owned(), value));
    Ok((found, attributes.collect()))
}

/// The attributes of a list's items, which are no fields that could have their own.
fn item_attributes(kind: &DataType) -> Result<Option<(&'static str, Value)>> {
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) =
        kind
    else {
        return Ok(None);
    };
    let (_, attributes) = type_from(item.data_type(), item.is_nullable())?;
    Ok((!attributes.is_empty()).then_some((ITEM, Value::Object(attributes))))
}

/// Which of several layouts it is, where it is not the usual one.
fn attribute_of(kind: &DataType) -> Option<(&'static str, Value)> {
    let bits = kind.primitive_width().unwrap_or_default() * 8;
    Some(match kind {
        DataType::LargeUtf8 | DataType::LargeBinary | DataType::LargeList(_) => {
            (BUFFER, json!({"kind": "Contiguous", "offsetBitWidth": 64}))
        }
        DataType::Utf8View | DataType::BinaryView => {
            (BUFFER, json!({"kind": "View", "offsetBitWidth": 32}))
        }
        DataType::Date64 => (DATE, json!({"unit": "Millisecond"})),
        DataType::Timestamp(_, None) => (TIMESTAMP, json!({"adjustedToUtc": false})),
        DataType::Decimal32(..) | DataType::Decimal64(..) => (DECIMAL, json!({"bitWidth": bits})),
        DataType::Decimal256(precision, _) if *precision <= MAX_DECIMAL128_DIGITS => {
            (DECIMAL, json!({"bitWidth": bits}))
        }
        _ => return None,
    })
}

fn logical_type(kind: &DataType) -> Result<Value> {
    Ok(match kind {
        DataType::Null => json!({"kind": "Null"}),
        DataType::Boolean => json!({"kind": "Bool"}),
        _ if kind.is_integer() || kind.is_floating() => json!({"kind": kind.to_string()}),
        DataType::Timestamp(unit, zone) => {
            let mut made = json!({"kind": "Timestamp", "unit": unit_name(*unit)});
            if let Some(zone) = zone {
                made["timezone"] = Value::from(&**zone);
            }
            made
        }
        DataType::Date32 | DataType::Date64 => json!({"kind": "Date"}),
        DataType::Time32(unit) | DataType::Time64(unit) => {
            json!({"kind": "Time", "unit": unit_name(*unit)})
        }
        DataType::Duration(unit) => json!({"kind": "Duration", "unit": unit_name(*unit)}),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => json!({"kind": "String"}),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            json!({"kind": "Binary"})
        }
        DataType::FixedSizeBinary(length) => json!({"kind": "Binary", "fixedLength": length}),
        DataType::List(item) | DataType::LargeList(item) => list_from(item)?,
        DataType::FixedSizeList(item, length) => {
            let mut made = list_from(item)?;
            made["fixedLength"] = (*length).into();
            made
        }
        DataType::Struct(fields) => {
            let fields = fields.iter().map(|f| field_from(f));
            json!({"kind": "Struct", "fields": fields.collect::<Result<Vec<_>>>()?})
        }
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => {
            json!({"kind": "Decimal", "precision": precision, "scale": scale})
        }
        DataType::Map(entries, sorted) => map_from(entries, *sorted)?,
        _ => {
            let message = format!("the schema of ODF has no type for {kind}; cast it first");
            return Err(Error::invalid(message));
        }
    })
}

fn list_from(item: &Field) -> Result<Value> {
    let (kind, _) = type_from(item.data_type(), item.is_nullable())?;
    Ok(json!({"kind": "List", "itemType": kind}))
}

fn map_from(entries: &Field, sorted: bool) -> Result<Value> {
    let DataType::Struct(pair) = entries.data_type() else {
        return Err(Error::invalid("a map without keys and values"));
    };
    let [key, value] = &**pair else {
        return Err(Error::invalid("a map has a key and a value"));
    };
    let (key, _) = type_from(key.data_type(), key.is_nullable())?;
    let (value, _) = type_from(value.data_type(), value.is_nullable())?;
    Ok(json!({"kind": "Map", "keyType": key, "valueType": value, "keysSorted": sorted}))
}

fn unit_name(unit: TimeUnit) -> &'static str {
    let found = UNITS.iter().find(|(_, known)| *known == unit);
    found.map_or("Millisecond", |(name, _)| name)
}

/// The Arrow schema of a logical schema.
pub fn to_arrow(schema: &Value) -> Result<Schema> {
    Ok(Schema::new(fields_to(schema)?))
}

fn fields_to(holder: &Value) -> Result<Fields> {
    let fields = holder.get("fields").and_then(Value::as_array);
    let fields = fields.ok_or_else(|| damaged("a schema without fields"))?;
    fields.iter().map(field_to).collect()
}

fn field_to(field: &Value) -> Result<Field> {
    let name = field
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let named = |e: Error| e.context(format!("column {name:?}"));
    let attributes = field.get("extra").unwrap_or(&Value::Null);
    let (kind, nullable) = type_to(&field["type"], attributes).map_err(named)?;
    Ok(Field::new(name, kind, nullable))
}

/// The Arrow type, and whether it may be null.
fn type_to(kind: &Value, attributes: &Value) -> Result<(DataType, bool)> {
    let name = kind.get("kind").and_then(Value::as_str).unwrap_or_default();
    if name == "Option" {
        let (inner, nested) = type_to(&kind["inner"], attributes)?;
        if nested {
            return Err(damaged("an Option in an Option"));
        }
        return Ok((inner, true));
    }
    let found = match name {
        "Null" => DataType::Null,
        "Bool" => DataType::Boolean,
        "Int8" => DataType::Int8,
        "Int16" => DataType::Int16,
        "Int32" => DataType::Int32,
        "Int64" => DataType::Int64,
        "UInt8" => DataType::UInt8,
        "UInt16" => DataType::UInt16,
        "UInt32" => DataType::UInt32,
        "UInt64" => DataType::UInt64,
        "Float16" => DataType::Float16,
        "Float32" => DataType::Float32,
        "Float64" => DataType::Float64,
        "Date" => match attributes.text_at(DATE, "unit") {
            Some("Millisecond" | "millisecond") => DataType::Date64,
            _ => DataType::Date32,
        },
        "Time" => match unit_of(kind) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
            unit => DataType::Time64(unit),
        },
        "Duration" => DataType::Duration(unit_of(kind)),
        "Timestamp" => DataType::Timestamp(unit_of(kind), zone_of(kind, attributes)),
        "Decimal" => decimal_to(kind, attributes)?,
        "String" | "Binary" | "List" => buffer_to(name, kind, attributes)?,
        "Struct" => DataType::Struct(fields_to(kind)?),
        "Map" => {
            let (key, _) = type_to(&kind["keyType"], &Value::Null)?;
            let (value, nullable) = type_to(&kind["valueType"], &Value::Null)?;
            let pair = vec![
                Field::new("key", key, false),
                Field::new("value", value, nullable),
            ];
            let entries = Field::new("entries", DataType::Struct(pair.into()), false);
            let sorted = kind.get("keysSorted").and_then(Value::as_bool);
            DataType::Map(Arc::new(entries), sorted.unwrap_or(false))
        }
        other => return Err(damaged(format!("there is no type {other:?}"))),
    };
    Ok((found, false))
}

fn unit_of(kind: &Value) -> TimeUnit {
    let name = kind.get("unit").and_then(Value::as_str);
    let found = UNITS.iter().find(|(known, _)| name == Some(known));
    found.map_or(TimeUnit::Millisecond, |(_, unit)| *unit)
}

fn zone_of(kind: &Value, attributes: &Value) -> Option<Arc<str>> {
    let is_local = attributes
        .get(TIMESTAMP)
        .and_then(|e| e.get("adjustedToUtc"));
    match kind.get("timezone").and_then(Value::as_str) {
        Some(zone) => Some(zone.into()),
        None if is_local == Some(&Value::Bool(false)) => None,
        None => Some(UTC.into()),
    }
}

fn decimal_to(kind: &Value, attributes: &Value) -> Result<DataType> {
    let number = |name: &str| kind.get(name).and_then(Value::as_i64).unwrap_or(0);
    let wrong = || damaged("a decimal of more digits than there are");
    let precision = u8::try_from(number("precision"))
        .ok()
        .filter(|p| (1..=76).contains(p));
    let precision = precision.ok_or_else(wrong)?;
    let scale = i8::try_from(number("scale")).map_err(|e| wrong().with_source(e))?;
    let bits = attributes.get(DECIMAL).and_then(|e| e.get("bitWidth"));
    let made = match bits.and_then(Value::as_u64) {
        Some(32) => DataType::Decimal32(precision, scale),
        Some(64) => DataType::Decimal64(precision, scale),
        Some(128) => DataType::Decimal128(precision, scale),
        Some(256) => DataType::Decimal256(precision, scale),
        Some(bits) => return Err(damaged(format!("a decimal of {bits} bits"))),
        None if precision <= MAX_DECIMAL128_DIGITS => DataType::Decimal128(precision, scale),
        None => DataType::Decimal256(precision, scale),
    };
    let limit = match made {
        DataType::Decimal32(..) => 9,
        DataType::Decimal64(..) => 18,
        DataType::Decimal128(..) => 38,
        _ => 76,
    };
    if precision > limit {
        return Err(wrong());
    }
    Ok(made)
}

fn buffer_to(name: &str, kind: &Value, attributes: &Value) -> Result<DataType> {
    let layout = attributes.text_at(BUFFER, "kind").unwrap_or("Contiguous");
    let is_view = layout.eq_ignore_ascii_case("view");
    let bits = attributes.get(BUFFER).and_then(|e| e.get("offsetBitWidth"));
    let is_wide = bits.and_then(Value::as_u64) == Some(64);
    let length = match kind.get("fixedLength").and_then(Value::as_u64) {
        None => None,
        Some(length) => Some(
            i32::try_from(length).map_err(|e| damaged(format!("{length} items")).with_source(e))?,
        ),
    };
    Ok(match (name, length) {
        ("Binary", Some(length)) => DataType::FixedSizeBinary(length),
        ("Binary", None) if is_view => DataType::BinaryView,
        ("Binary", None) if is_wide => DataType::LargeBinary,
        ("Binary", None) => DataType::Binary,
        ("String", _) if is_view => DataType::Utf8View,
        ("String", _) if is_wide => DataType::LargeUtf8,
        ("String", _) => DataType::Utf8,
        (_, length) => {
            let inner = attributes.get(ITEM).unwrap_or(&Value::Null);
            let (item, nullable) = type_to(&kind["itemType"], inner)?;
            let item = Arc::new(Field::new_list_field(item, nullable));
            match length {
                Some(length) => DataType::FixedSizeList(item, length),
                None if is_wide => DataType::LargeList(item),
                None => DataType::List(item),
            }
        }
    })
}

trait TextAt {
    fn text_at(&self, key: &str, name: &str) -> Option<&str>;
}

impl TextAt for Value {
    fn text_at(&self, key: &str, name: &str) -> Option<&str> {
        self.get(key)?.get(name)?.as_str()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types() -> Vec<DataType> {
        let item = |kind, nullable| Arc::new(Field::new_list_field(kind, nullable));
        let inner = vec![
            Field::new("a", DataType::LargeUtf8, true),
            Field::new("b", DataType::Decimal256(50, 3), false),
        ];
        vec![
            DataType::Boolean,
            DataType::UInt64,
            DataType::Float16,
            DataType::Date32,
            DataType::Date64,
            DataType::Time32(TimeUnit::Second),
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Duration(TimeUnit::Microsecond),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into())),
            DataType::Utf8,
            DataType::LargeUtf8,
            DataType::Utf8View,
            DataType::Binary,
            DataType::LargeBinary,
            DataType::BinaryView,
            DataType::FixedSizeBinary(7),
            DataType::Decimal32(9, 2),
            DataType::Decimal64(18, 0),
            DataType::Decimal128(38, -3),
            DataType::Decimal256(38, 3),
            DataType::List(item(DataType::Utf8, true)),
            DataType::LargeList(item(DataType::Int8, false)),
            DataType::List(item(DataType::Timestamp(TimeUnit::Microsecond, None), true)),
            DataType::List(item(
                DataType::LargeList(item(DataType::LargeUtf8, true)),
                true,
            )),
            DataType::FixedSizeList(item(DataType::Float32, true), 3),
            DataType::Struct(inner.into()),
        ]
    }

    #[test]
    fn every_type_comes_back_through_both_forms() {
        let fields = types().into_iter().enumerate();
        let fields = fields.map(|(i, kind)| Field::new(format!("c{i}"), kind, i % 2 == 0));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        for raw in [false, true] {
            let event = event_of(&schema, raw).unwrap();
            assert_eq!(arrow_of(&event).unwrap(), schema);
            let logical = from_arrow(&schema).unwrap();
            let expected = if raw {
                without_layouts(logical)
            } else {
                logical
            };
            assert_eq!(logical_of(&event).unwrap(), expected);
        }
    }
}
