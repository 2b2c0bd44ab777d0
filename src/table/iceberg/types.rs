//! The types of Iceberg, and which of them a column or a column of a file has.
//!
//! A type is refused where Iceberg has no such type, or a common reader fails or gives wrong values.

use std::fmt;

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use serde_json::{Value, json};

use crate::table::export::first_ambiguous;

/// The most digits of a decimal of Iceberg.
const MAX_DIGITS: u8 = 38;

/// A type of Iceberg. Its text names no ids and not whether there can be nulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IcebergType {
    Primitive(String),
    Struct(Vec<IcebergField>),
    List(Box<IcebergField>),
    Map(Box<IcebergField>, Box<IcebergField>),
}

/// A field of a struct, the elements of a list, or the keys or values of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IcebergField {
    name: String,
    /// The field id, if it has one: types of files are looked at without.
    id: Option<i64>,
    data_type: IcebergType,
    required: bool,
}

impl IcebergType {
    /// The type as which readers of Iceberg see a column; or why they cannot.
    pub(super) fn new(field: &Field) -> Result<Self, String> {
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
                return Ok(Self::Primitive(format!("fixed[{length}]")));
            }
            D::Timestamp(TimeUnit::Microsecond, Some(_)) => "timestamptz",
            D::Timestamp(TimeUnit::Microsecond, None) => "timestamp",
            D::Timestamp(..) => {
                return Err("timestamps of Iceberg have microseconds".to_owned());
            }
            D::Decimal32(digits, scale)
            | D::Decimal64(digits, scale)
            | D::Decimal128(digits, scale) => return decimal(*digits, *scale),
            D::Dictionary(_, values) => {
                return Self::new(&Field::new("", values.as_ref().clone(), true));
            }
            D::RunEndEncoded(_, values) => return Self::new(values),
            D::List(field) | D::LargeList(field) => {
                return Ok(Self::List(Box::new(IcebergField::new(field, "element")?)));
            }
            D::Struct(fields) => return Ok(Self::Struct(new_fields(fields)?)),
            D::Map(entries, _) => return map(entries),
            other => return Err(format!("readers of Iceberg cannot read the type {other}")),
        };
        Ok(Self::Primitive(name.to_owned()))
    }

    /// The JSON of the schema.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Primitive(name) => Value::from(name.as_str()),
            Self::Struct(fields) => {
                let fields = fields.iter().map(|field| {
                    json!({
                        "id": field.id,
                        "name": field.name,
                        "required": field.required,
                        "type": field.data_type.to_json(),
                    })
                });
                json!({"type": "struct", "fields": fields.collect::<Vec<_>>()})
            }
            Self::List(element) => json!({
                "type": "list",
                "element-id": element.id,
                "element": element.data_type.to_json(),
                "element-required": element.required,
            }),
            Self::Map(key, value) => json!({
                "type": "map",
                "key-id": key.id,
                "key": key.data_type.to_json(),
                "value-id": value.id,
                "value": value.data_type.to_json(),
                "value-required": value.required,
            }),
        }
    }

    /// The names of nested fields in files without ids, as the default name mapping has them.
    pub(super) fn to_mapping(&self) -> Vec<Value> {
        let fields = self.fields();
        fields
            .map(|field| mapping(field.id, &field.name, &field.data_type))
            .collect()
    }

    /// Whether each field within it has an id.
    pub(super) fn has_ids(&self) -> bool {
        self.fields()
            .all(|field| field.id.is_some() && field.data_type.has_ids())
    }

    pub(super) fn is_primitive(&self) -> bool {
        matches!(self, Self::Primitive(_))
    }

    fn fields(&self) -> impl Iterator<Item = &IcebergField> {
        let (many, one, two): (&[IcebergField], _, _) = match self {
            Self::Primitive(_) => (&[], None, None),
            Self::Struct(fields) => (fields, None, None),
            Self::List(element) => (&[], Some(element), None),
            Self::Map(key, value) => (&[], Some(key), Some(value)),
        };
        let boxed = one.into_iter().chain(two).map(AsRef::as_ref);
        many.iter().chain(boxed)
    }
}

impl IcebergField {
    fn new(field: &Field, name: &str) -> Result<Self, String> {
        let id = field.metadata().get(PARQUET_FIELD_ID_META_KEY);
        Ok(Self {
            name: name.to_owned(),
            id: id.and_then(|id| id.parse().ok()),
            data_type: IcebergType::new(field)?,
            required: !field.is_nullable(),
        })
    }
}

/// The entry of a field in the default name mapping.
pub(super) fn mapping(id: Option<i64>, name: &str, data_type: &IcebergType) -> Value {
    let mut entry = json!({"field-id": id, "names": [name]});
    let nested = data_type.to_mapping();
    if !nested.is_empty() {
        entry["fields"] = nested.into();
    }
    entry
}

fn is_uuid(field: &Field) -> bool {
    let extension = field.metadata().get("ARROW:extension:name");
    extension.is_some_and(|name| name == "arrow.uuid")
}

fn new_fields(fields: &Fields) -> Result<Vec<IcebergField>, String> {
    let fields: Vec<IcebergField> = fields
        .iter()
        .map(|field| IcebergField::new(field, field.name()))
        .collect::<Result<_, _>>()?;
    match first_ambiguous(fields.iter().map(|field| field.name.as_str())) {
        Some(name) => Err(format!(
            "the names of two fields differ only in case from {name:?}"
        )),
        None => Ok(fields),
    }
}

fn map(entries: &Field) -> Result<IcebergType, String> {
    let DataType::Struct(fields) = entries.data_type() else {
        return Err("its entries are not structs".to_owned());
    };
    let [key, value] = &fields[..] else {
        return Err("its entries are not pairs".to_owned());
    };
    let field = |field: &Field, name| IcebergField::new(field, name).map(Box::new);
    Ok(IcebergType::Map(field(key, "key")?, field(value, "value")?))
}

fn decimal(digits: u8, scale: i8) -> Result<IcebergType, String> {
    let is_valid = (1..=MAX_DIGITS).contains(&digits)
        && u8::try_from(scale).is_ok_and(|scale| scale <= digits);
    if is_valid {
        return Ok(IcebergType::Primitive(format!(
            "decimal({digits}, {scale})"
        )));
    }
    Err(format!(
        "decimals of Iceberg have at most {MAX_DIGITS} digits, and no more of them after the point than in all"
    ))
}

impl fmt::Display for IcebergType {
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
            Self::List(element) => write!(f, "list<{}>", element.data_type),
            Self::Map(key, value) => write!(f, "map<{},{}>", key.data_type, value.data_type),
        }
    }
}

/// Whether a reader of files with the type `from` gives their values as the type `to`. Source: the specification of
/// Iceberg, "Schema Evolution"; only of columns that are not nested.
pub(super) fn can_promote(from: &IcebergType, to: &IcebergType) -> bool {
    let (IcebergType::Primitive(from), IcebergType::Primitive(to)) = (from, to) else {
        return false;
    };
    let decimal = |name: &str| -> Option<(u8, u8)> {
        let digits = name.strip_prefix("decimal(")?.strip_suffix(')')?;
        let (digits, scale) = digits.split_once(", ")?;
        Some((digits.parse().ok()?, scale.parse().ok()?))
    };
    match (decimal(from), decimal(to)) {
        (Some((digits, scale)), Some((more, same))) => digits < more && scale == same,
        _ => matches!((&**from, &**to), ("int", "long") | ("float", "double")),
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
            assert!(IcebergType::new(&field).is_err(), "{field}");
        }
    }

    #[test]
    fn types_are_promoted_as_the_specification_says() {
        let is_allowed = |from: &str, to: &str| {
            let [from, to] = [from, to].map(|name| IcebergType::Primitive(name.to_owned()));
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
