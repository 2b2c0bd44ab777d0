//! Conversion between the schema of a `SetDataSchema` event and an Arrow schema.
//!
//! [`event_from_arrow`] and [`arrow_from_event`] convert events, [`from_arrow`] and [`to_arrow`] logical schemas.
//! Where Arrow has several layouts for a logical type, attributes (`arrow.apache.org/…`) record a layout that is not
//! the usual one, so that an Arrow schema survives the round trip. Dictionaries and run-end encoding become the types
//! of their values.
//!
//! Errors: [`crate::ErrorKind::InvalidInput`] for an Arrow type that ODF does not have;
//! [`crate::ErrorKind::BlockCorrupted`] for a schema of an event that has no Arrow schema.
//!
//! Source: RFC-016 (logical types) and RFC-010 (`rawArrowSchema`, Arrow's own flatbuffer without an IPC message
//! around it) of the Open Data Fabric.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_ipc::writer::DictionaryTracker;
use arrow_schema::{DataType, Field, Fields, Schema, TimeUnit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::parquet::panic_text;

const BUFFER: &str = "arrow.apache.org/bufferEncoding";
const DATE: &str = "arrow.apache.org/dateEncoding";
const DECIMAL: &str = "arrow.apache.org/decimalEncoding";
/// Not in the specification: marks a timestamp without a time zone, which would otherwise be UTC.
const TIMESTAMP: &str = "arrow.apache.org/timestampEncoding";
/// Not in the specification: the attributes of a list's items.
const ITEM: &str = "arrow.apache.org/itemEncoding";
/// The time zone of a timestamp that has none.
pub(super) const UTC: &str = "UTC";
/// The unit of a type of times that has none.
pub(super) const DEFAULT_UNIT: &str = "Millisecond";
const UNITS: [(&str, TimeUnit); 4] = [
    ("Second", TimeUnit::Second),
    ("Millisecond", TimeUnit::Millisecond),
    ("Microsecond", TimeUnit::Microsecond),
    ("Nanosecond", TimeUnit::Nanosecond),
];
const MAX_DECIMAL128_DIGITS: u8 = 38;

/// Converts an Arrow schema to a `SetDataSchema` event: with `rawArrowSchema` if `raw`, else with a logical schema.
pub fn event_from_arrow(schema: &Schema, raw: bool) -> Result<Value> {
    if raw {
        let mut dictionaries = DictionaryTracker::new(false);
        let mut encoder = IpcSchemaEncoder::new().with_dictionary_tracker(&mut dictionaries);
        let bytes = encoder.schema_to_fb(schema);
        let text = STANDARD.encode(bytes.finished_data());
        return Ok(json!({"kind": "SetDataSchema", "rawArrowSchema": text}));
    }
    let logical_schema = from_arrow(schema)?;
    Ok(json!({"kind": "SetDataSchema", "schema": logical_schema}))
}

/// Converts a `SetDataSchema` event to its Arrow schema.
pub fn arrow_from_event(event: &Value) -> Result<Schema> {
    let logical_schema = event.get("schema").filter(|schema| !schema.is_null());
    match event.get("rawArrowSchema").and_then(Value::as_str) {
        Some(_) if logical_schema.is_some() => Err(Error::block_corrupted(
            "SetDataSchema has both a schema and a rawArrowSchema",
        )),
        Some(text) => {
            let bytes = STANDARD.decode(text).map_err(|e| {
                Error::block_corrupted("rawArrowSchema is not base64").with_source(e)
            })?;
            decode_raw_arrow(&bytes)
        }
        None => to_arrow(logical_schema.unwrap_or(&Value::Null)),
    }
}

/// Returns the logical schema of a `SetDataSchema` event of either form.
pub(super) fn logical_from_event(event: &Value) -> Result<Value> {
    match event.get("schema") {
        Some(schema) if !schema.is_null() => Ok(schema.clone()),
        _ => Ok(strip_layouts(from_arrow(&arrow_from_event(event)?)?)),
    }
}

/// Removes the attributes of layouts from a logical schema. A raw schema always has layouts, whether they matter or
/// not.
fn strip_layouts(mut schema: Value) -> Value {
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
                .map(|(key, value)| (key, strip_layouts(value)))
                .collect();
        }
        Value::Array(items) => {
            *items = std::mem::take(items)
                .into_iter()
                .map(strip_layouts)
                .collect();
        }
        _ => {}
    }
    schema
}

/// Decodes a schema from Arrow's own flatbuffer.
fn decode_raw_arrow(bytes: &[u8]) -> Result<Schema> {
    let unreadable =
        |reason: &str| Error::block_corrupted(format!("rawArrowSchema cannot be read: {reason}"));
    let root = root_as_schema(bytes).map_err(|e| unreadable(&e.to_string()).with_source(e))?;
    // The offsets are verified now, but the conversion panics on types that it does not know.
    let converted = std::panic::catch_unwind(AssertUnwindSafe(|| fb_to_schema(root)));
    converted.map_err(|panic| unreadable(panic_text(panic.as_ref())))
}

/// Converts an Arrow schema to a logical schema.
pub fn from_arrow(schema: &Schema) -> Result<Value> {
    let fields = schema.fields().iter().map(|f| field_from_arrow(f));
    Ok(json!({"fields": fields.collect::<Result<Vec<_>>>()?}))
}

fn field_from_arrow(field: &Field) -> Result<Value> {
    let with_context = |e: Error| e.context(format!("column {:?}", field.name()));
    let (odf_type, attributes) =
        type_from_arrow(field.data_type(), field.is_nullable()).map_err(with_context)?;
    let mut odf_field = json!({"name": field.name(), "type": odf_type});
    if !attributes.is_empty() {
        odf_field["extra"] = Value::Object(attributes);
    }
    Ok(odf_field)
}

/// Returns the ODF type of an Arrow type, and the attributes that a field of this type has.
fn type_from_arrow(data_type: &DataType, nullable: bool) -> Result<(Value, Map<String, Value>)> {
    match data_type {
        DataType::Dictionary(_, value) => return type_from_arrow(value, nullable),
        DataType::RunEndEncoded(_, values) => return type_from_arrow(values.data_type(), nullable),
        _ => {}
    }
    let required_type = logical_type(data_type)?;
    let odf_type = if nullable {
        json!({"kind": "Option", "inner": required_type})
    } else {
        required_type
    };
    let attributes = layout_attribute(data_type)
        .into_iter()
        .chain(item_attributes(data_type)?)
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    Ok((odf_type, attributes))
}

/// Returns the attributes of a list's items as an attribute of the list: in ODF the items are not a field.
fn item_attributes(data_type: &DataType) -> Result<Option<(&'static str, Value)>> {
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) =
        data_type
    else {
        return Ok(None);
    };
    let (_, attributes) = type_from_arrow(item.data_type(), item.is_nullable())?;
    Ok((!attributes.is_empty()).then_some((ITEM, Value::Object(attributes))))
}

/// Returns the attribute that records the layout of a type; None for the usual layout.
fn layout_attribute(data_type: &DataType) -> Option<(&'static str, Value)> {
    let bits = data_type.primitive_width().unwrap_or_default() * 8;
    Some(match data_type {
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

fn logical_type(data_type: &DataType) -> Result<Value> {
    Ok(match data_type {
        DataType::Null => json!({"kind": "Null"}),
        DataType::Boolean => json!({"kind": "Bool"}),
        _ if data_type.is_integer() || data_type.is_floating() => {
            json!({"kind": data_type.to_string()})
        }
        DataType::Timestamp(unit, zone) => {
            let mut odf_type = json!({"kind": "Timestamp", "unit": unit_name(*unit)});
            if let Some(zone) = zone {
                odf_type["timezone"] = Value::from(&**zone);
            }
            odf_type
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
        DataType::List(item) | DataType::LargeList(item) => list_type_from_arrow(item)?,
        DataType::FixedSizeList(item, length) => {
            let mut odf_type = list_type_from_arrow(item)?;
            odf_type["fixedLength"] = (*length).into();
            odf_type
        }
        DataType::Struct(fields) => {
            let odf_fields = fields.iter().map(|f| field_from_arrow(f));
            json!({"kind": "Struct", "fields": odf_fields.collect::<Result<Vec<_>>>()?})
        }
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => {
            json!({"kind": "Decimal", "precision": precision, "scale": scale})
        }
        DataType::Map(entries, sorted) => map_type_from_arrow(entries, *sorted)?,
        _ => {
            let message = format!("ODF has no type for {data_type}; cast the column first");
            return Err(Error::invalid(message));
        }
    })
}

fn list_type_from_arrow(item: &Field) -> Result<Value> {
    let (item_type, _) = type_from_arrow(item.data_type(), item.is_nullable())?;
    Ok(json!({"kind": "List", "itemType": item_type}))
}

fn map_type_from_arrow(entries: &Field, sorted: bool) -> Result<Value> {
    let DataType::Struct(pair) = entries.data_type() else {
        return Err(Error::invalid("a map must have entries of the type Struct"));
    };
    let [key, value] = &**pair else {
        return Err(Error::invalid("a map must have entries of two fields"));
    };
    let (key, _) = type_from_arrow(key.data_type(), key.is_nullable())?;
    let (value, _) = type_from_arrow(value.data_type(), value.is_nullable())?;
    Ok(json!({"kind": "Map", "keyType": key, "valueType": value, "keysSorted": sorted}))
}

fn unit_name(unit: TimeUnit) -> &'static str {
    let entry = UNITS.iter().find(|(_, known)| *known == unit);
    entry.map_or(DEFAULT_UNIT, |(name, _)| name)
}

/// Converts a logical schema to an Arrow schema.
pub fn to_arrow(schema: &Value) -> Result<Schema> {
    Ok(Schema::new(fields_to_arrow(schema)?))
}

fn fields_to_arrow(holder: &Value) -> Result<Fields> {
    let fields = holder
        .get("fields")
        .and_then(Value::as_array)
        .ok_or_else(|| Error::block_corrupted("the schema has no list of fields"))?;
    fields.iter().map(field_to_arrow).collect()
}

fn field_to_arrow(field: &Value) -> Result<Field> {
    let name = field
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let with_context = |e: Error| e.context(format!("column {name:?}"));
    let attributes = field.get("extra").unwrap_or(&Value::Null);
    let (data_type, nullable) = type_to_arrow(&field["type"], attributes).map_err(with_context)?;
    Ok(Field::new(name, data_type, nullable))
}

/// Returns the Arrow type, and whether its values may be null.
fn type_to_arrow(odf_type: &Value, attributes: &Value) -> Result<(DataType, bool)> {
    let name = odf_type
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if name == "Option" {
        let (inner, nested) = type_to_arrow(&odf_type["inner"], attributes)?;
        if nested {
            return Err(Error::block_corrupted(
                "the type Option is nested in an Option",
            ));
        }
        return Ok((inner, true));
    }
    let data_type = match name {
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
        "Time" => match time_unit(odf_type) {
            unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
            unit => DataType::Time64(unit),
        },
        "Duration" => DataType::Duration(time_unit(odf_type)),
        "Timestamp" => DataType::Timestamp(time_unit(odf_type), time_zone(odf_type, attributes)),
        "Decimal" => decimal_to_arrow(odf_type, attributes)?,
        "String" | "Binary" | "List" => buffer_type_to_arrow(name, odf_type, attributes)?,
        "Struct" => DataType::Struct(fields_to_arrow(odf_type)?),
        "Map" => {
            let (key, _) = type_to_arrow(&odf_type["keyType"], &Value::Null)?;
            let (value, nullable) = type_to_arrow(&odf_type["valueType"], &Value::Null)?;
            let pair = vec![
                Field::new("key", key, false),
                Field::new("value", value, nullable),
            ];
            let entries = Field::new("entries", DataType::Struct(pair.into()), false);
            let keys_sorted = odf_type.get("keysSorted").and_then(Value::as_bool);
            DataType::Map(Arc::new(entries), keys_sorted.unwrap_or(false))
        }
        other => return Err(Error::block_corrupted(format!("unknown type {other:?}"))),
    };
    Ok((data_type, false))
}

fn time_unit(odf_type: &Value) -> TimeUnit {
    let name = odf_type.get("unit").and_then(Value::as_str);
    let entry = UNITS.iter().find(|(known, _)| name == Some(known));
    entry.map_or(TimeUnit::Millisecond, |(_, unit)| *unit)
}

fn time_zone(odf_type: &Value, attributes: &Value) -> Option<Arc<str>> {
    let adjusted_to_utc = attributes
        .get(TIMESTAMP)
        .and_then(|e| e.get("adjustedToUtc"));
    match odf_type.get("timezone").and_then(Value::as_str) {
        Some(zone) => Some(zone.into()),
        None if adjusted_to_utc == Some(&Value::Bool(false)) => None,
        None => Some(UTC.into()),
    }
}

fn decimal_to_arrow(odf_type: &Value, attributes: &Value) -> Result<DataType> {
    let number = |name: &str| odf_type.get(name).and_then(Value::as_i64).unwrap_or(0);
    let out_of_range =
        || Error::block_corrupted("the precision or the scale of a decimal is out of range");
    let precision = u8::try_from(number("precision"))
        .ok()
        .filter(|precision| (1..=76).contains(precision))
        .ok_or_else(out_of_range)?;
    let scale = i8::try_from(number("scale")).map_err(|e| out_of_range().with_source(e))?;
    let bits = attributes.get(DECIMAL).and_then(|e| e.get("bitWidth"));
    let data_type = match bits.and_then(Value::as_u64) {
        Some(32) => DataType::Decimal32(precision, scale),
        Some(64) => DataType::Decimal64(precision, scale),
        Some(128) => DataType::Decimal128(precision, scale),
        Some(256) => DataType::Decimal256(precision, scale),
        Some(bits) => {
            let message = format!("unsupported decimal of {bits} bits");
            return Err(Error::block_corrupted(message));
        }
        None if precision <= MAX_DECIMAL128_DIGITS => DataType::Decimal128(precision, scale),
        None => DataType::Decimal256(precision, scale),
    };
    let limit = match data_type {
        DataType::Decimal32(..) => 9,
        DataType::Decimal64(..) => 18,
        DataType::Decimal128(..) => 38,
        _ => 76,
    };
    if precision > limit {
        return Err(out_of_range());
    }
    Ok(data_type)
}

fn buffer_type_to_arrow(name: &str, odf_type: &Value, attributes: &Value) -> Result<DataType> {
    let layout = attributes.text_at(BUFFER, "kind").unwrap_or("Contiguous");
    let is_view = layout.eq_ignore_ascii_case("view");
    let bits = attributes.get(BUFFER).and_then(|e| e.get("offsetBitWidth"));
    let is_large = bits.and_then(Value::as_u64) == Some(64);
    let length = match odf_type.get("fixedLength").and_then(Value::as_u64) {
        None => None,
        Some(length) => Some(i32::try_from(length).map_err(|e| {
            Error::block_corrupted(format!("fixedLength {length} is out of range")).with_source(e)
        })?),
    };
    Ok(match (name, length) {
        ("Binary", Some(length)) => DataType::FixedSizeBinary(length),
        ("Binary", None) if is_view => DataType::BinaryView,
        ("Binary", None) if is_large => DataType::LargeBinary,
        ("Binary", None) => DataType::Binary,
        ("String", _) if is_view => DataType::Utf8View,
        ("String", _) if is_large => DataType::LargeUtf8,
        ("String", _) => DataType::Utf8,
        (_, length) => {
            let inner = attributes.get(ITEM).unwrap_or(&Value::Null);
            let (item, nullable) = type_to_arrow(&odf_type["itemType"], inner)?;
            let item = Arc::new(Field::new_list_field(item, nullable));
            match length {
                Some(length) => DataType::FixedSizeList(item, length),
                None if is_large => DataType::LargeList(item),
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
        let item = |data_type, nullable| Arc::new(Field::new_list_field(data_type, nullable));
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
        let numbered_types = types().into_iter().enumerate();
        let fields =
            numbered_types.map(|(i, data_type)| Field::new(format!("c{i}"), data_type, i % 2 == 0));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        for raw in [false, true] {
            let event = event_from_arrow(&schema, raw).unwrap();
            assert_eq!(arrow_from_event(&event).unwrap(), schema);
            let logical = from_arrow(&schema).unwrap();
            let expected = if raw { strip_layouts(logical) } else { logical };
            assert_eq!(logical_from_event(&event).unwrap(), expected);
        }
    }
}
