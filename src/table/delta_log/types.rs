//! The types of Delta, and which of them a column or a column of a file has.
//!
//! A type is refused where a common reader of Delta has no such type or gives wrong values.

use std::fmt;

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use serde_json::{Value, json};

use crate::table::export::first_ambiguous;

/// The most digits of a decimal of Delta.
const MAX_DIGITS: u8 = 38;

/// A type of Delta. Its text names no ids and not whether there can be nulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeltaType {
    Primitive(String),
    Struct(Vec<DeltaField>),
    Array(Box<DeltaField>),
    Map(Box<DeltaField>, Box<DeltaField>),
}

/// A field of a struct, the elements of a list, or the keys or values of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeltaField {
    name: String,
    /// The field id in data files, if it has one.
    id: Option<i64>,
    data_type: DeltaType,
    nullable: bool,
}

impl DeltaType {
    /// The type as which readers of Delta see a type of Arrow; or why they cannot.
    pub(super) fn new(data_type: &DataType) -> Result<Self, String> {
        use DataType as D;
        let name = match data_type {
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
            | D::Decimal256(digits, scale) => return decimal(*digits, *scale),
            D::Dictionary(_, values) => return Self::new(values),
            D::RunEndEncoded(_, values) => return Self::new(values.data_type()),
            D::List(field) | D::LargeList(field) | D::FixedSizeList(field, _) => {
                return Ok(Self::Array(Box::new(DeltaField::new(field)?)));
            }
            D::Struct(fields) => return Ok(Self::Struct(new_fields(fields)?)),
            D::Map(entries, _) => return map(entries),
            other => return Err(format!("readers of Delta cannot read the type {other}")),
        };
        Ok(Self::Primitive(name.to_owned()))
    }

    /// The JSON of the schema; `by_name` with the ids and names in files of nested fields.
    pub(super) fn to_json(&self, by_name: bool) -> Value {
        match self {
            Self::Primitive(name) => Value::from(name.as_str()),
            Self::Struct(fields) => {
                let fields: Vec<Value> = fields.iter().map(|f| f.to_json(by_name)).collect();
                json!({"type": "struct", "fields": fields})
            }
            Self::Array(element) => json!({
                "type": "array",
                "elementType": element.data_type.to_json(by_name),
                "containsNull": element.nullable,
            }),
            Self::Map(key, value) => json!({
                "type": "map",
                "keyType": key.data_type.to_json(by_name),
                "valueType": value.data_type.to_json(by_name),
                "valueContainsNull": value.nullable,
            }),
        }
    }

    /// Whether it is a type, or has one within it, that is written so.
    pub(super) fn has_primitive(&self, name: &str) -> bool {
        match self {
            Self::Primitive(own) => own == name,
            _ => self
                .fields()
                .any(|field| field.data_type.has_primitive(name)),
        }
    }

    /// Whether a field within it is never null.
    pub(super) fn has_required_field(&self) -> bool {
        let is_struct = matches!(self, Self::Struct(_));
        self.fields()
            .any(|field| (is_struct && !field.nullable) || field.data_type.has_required_field())
    }

    fn fields(&self) -> impl Iterator<Item = &DeltaField> {
        let (many, one, two): (&[DeltaField], _, _) = match self {
            Self::Primitive(_) => (&[], None, None),
            Self::Struct(fields) => (fields, None, None),
            Self::Array(element) => (&[], Some(element), None),
            Self::Map(key, value) => (&[], Some(key), Some(value)),
        };
        let boxed = one.into_iter().chain(two).map(AsRef::as_ref);
        many.iter().chain(boxed)
    }
}

impl DeltaField {
    fn new(field: &Field) -> Result<Self, String> {
        let id = field.metadata().get(PARQUET_FIELD_ID_META_KEY);
        Ok(Self {
            name: field.name().clone(),
            id: id.and_then(|id| id.parse().ok()),
            data_type: DeltaType::new(field.data_type())?,
            nullable: field.is_nullable(),
        })
    }

    fn to_json(&self, by_name: bool) -> Value {
        let metadata = match self.id {
            Some(id) if by_name => mapping(id, &self.name),
            _ => json!({}),
        };
        json!({
            "name": self.name,
            "type": self.data_type.to_json(by_name),
            "nullable": self.nullable,
            "metadata": metadata,
        })
    }
}

/// The metadata of a field that is looked up in files by this name.
pub(super) fn mapping(id: i64, stored_name: &str) -> Value {
    json!({"delta.columnMapping.id": id, "delta.columnMapping.physicalName": stored_name})
}

fn new_fields(fields: &Fields) -> Result<Vec<DeltaField>, String> {
    let fields: Vec<DeltaField> = fields
        .iter()
        .map(|field| DeltaField::new(field))
        .collect::<Result<_, _>>()?;
    match first_ambiguous(fields.iter().map(|field| field.name.as_str())) {
        Some(name) => Err(format!(
            "the names of two fields differ only in case from {name:?}"
        )),
        None => Ok(fields),
    }
}

fn map(entries: &Field) -> Result<DeltaType, String> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err("its entries are not structs".to_owned());
    };
    let [key, value] = &fields[..] else {
        return Err("its entries are not pairs".to_owned());
    };
    let field = |field: &Field| DeltaField::new(field).map(Box::new);
    Ok(DeltaType::Map(field(key)?, field(value)?))
}

fn decimal(digits: u8, scale: i8) -> Result<DeltaType, String> {
    let is_valid = (1..=MAX_DIGITS).contains(&digits)
        && u8::try_from(scale).is_ok_and(|scale| scale <= digits);
    if is_valid {
        return Ok(DeltaType::Primitive(format!("decimal({digits},{scale})")));
    }
    Err(format!(
        "decimals of Delta have at most {MAX_DIGITS} digits, and no more of them after the point than in all"
    ))
}

impl fmt::Display for DeltaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primitive(name) => f.write_str(name),
            Self::Struct(fields) => {
                f.write_str("struct<")?;
                for (at, field) in fields.iter().enumerate() {
                    let comma = if at > 0 { "," } else { "" };
                    write!(f, "{comma}{:?}:{}", field.name, field.data_type)?;
                }
                f.write_str(">")
            }
            Self::Array(element) => write!(f, "array<{}>", element.data_type),
            Self::Map(key, value) => write!(f, "map<{},{}>", key.data_type, value.data_type),
        }
    }
}

/// Whether a reader of files with the type `from` gives their values as the type `to`. Source: `PROTOCOL.md`, "Type
/// Widening"; of its rules those that a column can be widened by. (Integers as decimals are not among them: a column of
/// unsigned integers of 64 bits is a decimal in Delta only, and Spark does not read narrower ones as such.)
pub(super) fn can_widen(from: &DeltaType, to: &DeltaType) -> bool {
    let (DeltaType::Primitive(from), DeltaType::Primitive(to)) = (from, to) else {
        return false;
    };
    let integers = ["byte", "short", "integer", "long"];
    let position = |name: &str| integers.iter().position(|integer| *integer == name);
    let decimal = |name: &str| -> Option<(u8, u8)> {
        let digits = name.strip_prefix("decimal(")?.strip_suffix(')')?;
        let (digits, scale) = digits.split_once(',')?;
        Some((digits.parse().ok()?, scale.parse().ok()?))
    };
    match (position(from), position(to), decimal(from), decimal(to)) {
        (Some(from), Some(to), ..) => from < to,
        (_, _, Some((digits, scale)), Some((more, same))) => digits < more && scale == same,
        _ => from == "float" && to == "double",
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
            assert!(DeltaType::new(&data_type).is_err(), "{data_type}");
        }
    }

    #[test]
    fn a_type_of_files_is_compared_by_its_text() {
        let field = |name: &str, id: Option<&str>| {
            let field = Field::new(name, DataType::UInt16, id.is_none());
            let id = id.map(|id| (PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_owned()));
            field.with_metadata(id.into_iter().collect())
        };
        let text = |field: Field| {
            let list = DataType::List(Arc::new(Field::new(
                "x",
                DataType::Struct(vec![field].into()),
                true,
            )));
            DeltaType::new(&list).unwrap().to_string()
        };
        assert_eq!(text(field("a", Some("7"))), text(field("a", None)));
        assert_ne!(text(field("a", None)), text(field("b", None)));
        assert_eq!(text(field("a", None)), "array<struct<\"a\":integer>>");
    }

    #[test]
    fn types_widen_as_the_protocol_says() {
        let is_allowed = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|name| DeltaType::Primitive(name.to_owned()));
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
