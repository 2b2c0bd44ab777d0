//! A type of another format as a tree. What is nested in what is the same in all of them; what its leaves are called, and
//! which types a format has at all, is the format's own.

use std::fmt;

use arrow_schema::{DataType, Field, Fields};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;

use super::leave_out::first_ambiguous;

/// The most digits of a decimal of Delta and of Iceberg.
const MAX_DIGITS: u8 = 38;

/// The type as which readers of a format see a field; or why they cannot.
type NewType = fn(&Field) -> Result<ExportType, String>;

/// A type. Its text names no ids and not whether there can be nulls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::table) enum ExportType {
    Primitive(String),
    Struct(Vec<ExportField>),
    List(Box<ExportField>),
    Map(Box<ExportField>, Box<ExportField>),
}

/// A field of a struct, the elements of a list, or the keys or values of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::table) struct ExportField {
    pub(in crate::table) name: String,
    /// The field id in data files, if it has one.
    pub(in crate::table) id: Option<i64>,
    pub(in crate::table) data_type: ExportType,
    pub(in crate::table) nullable: bool,
}

impl ExportType {
    pub(in crate::table) fn new_list(element: &Field, new_type: NewType) -> Result<Self, String> {
        let element = ExportField::new(element, "element", new_type)?;
        Ok(Self::List(Box::new(element)))
    }

    /// Refuses fields whose names differ only in case.
    pub(in crate::table) fn new_struct(fields: &Fields, new_type: NewType) -> Result<Self, String> {
        let fields: Vec<ExportField> = fields
            .iter()
            .map(|field| ExportField::new(field, field.name(), new_type))
            .collect::<Result<_, _>>()?;
        match first_ambiguous(fields.iter().map(|field| field.name.as_str())) {
            Some(name) => Err(format!(
                "the names of two fields differ only in case from {name:?}"
            )),
            None => Ok(Self::Struct(fields)),
        }
    }

    pub(in crate::table) fn new_map(entries: &Field, new_type: NewType) -> Result<Self, String> {
        let DataType::Struct(fields) = entries.data_type() else {
            return Err("its entries are not structs".to_owned());
        };
        let [key, value] = &fields[..] else {
            return Err("its entries are not pairs".to_owned());
        };
        let key = ExportField::new(key, "key", new_type)?;
        let value = ExportField::new(value, "value", new_type)?;
        Ok(Self::Map(Box::new(key), Box::new(value)))
    }

    pub(in crate::table) fn is_primitive(&self) -> bool {
        matches!(self, Self::Primitive(_))
    }

    /// Whether it is a type, or has one within it, that is written so.
    pub(in crate::table) fn has_primitive(&self, name: &str) -> bool {
        match self {
            Self::Primitive(own) => own == name,
            _ => self
                .fields()
                .any(|field| field.data_type.has_primitive(name)),
        }
    }

    /// Whether a field within it is never null.
    pub(in crate::table) fn has_required_field(&self) -> bool {
        let is_struct = matches!(self, Self::Struct(_));
        self.fields()
            .any(|field| (is_struct && !field.nullable) || field.data_type.has_required_field())
    }

    /// Whether each field within it has an id.
    pub(in crate::table) fn has_ids(&self) -> bool {
        self.fields()
            .all(|field| field.id.is_some() && field.data_type.has_ids())
    }

    /// The fields directly within it.
    pub(in crate::table) fn fields(&self) -> impl Iterator<Item = &ExportField> {
        let (many, one, two): (&[ExportField], _, _) = match self {
            Self::Primitive(_) => (&[], None, None),
            Self::Struct(fields) => (fields, None, None),
            Self::List(element) => (&[], Some(element), None),
            Self::Map(key, value) => (&[], Some(key), Some(value)),
        };
        let boxed = one.into_iter().chain(two).map(AsRef::as_ref);
        many.iter().chain(boxed)
    }
}

impl ExportField {
    fn new(field: &Field, name: &str, new_type: NewType) -> Result<Self, String> {
        let id = field.metadata().get(PARQUET_FIELD_ID_META_KEY);
        Ok(Self {
            name: name.to_owned(),
            id: id.and_then(|id| id.parse().ok()),
            data_type: new_type(field)?,
            nullable: field.is_nullable(),
        })
    }
}

impl fmt::Display for ExportType {
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

/// Refuses a decimal that the format lacks.
pub(in crate::table) fn check_decimal(format: &str, digits: u8, scale: i8) -> Result<(), String> {
    let is_valid = (1..=MAX_DIGITS).contains(&digits)
        && u8::try_from(scale).is_ok_and(|scale| scale <= digits);
    if is_valid {
        return Ok(());
    }
    Err(format!(
        "decimals of {format} have at most {MAX_DIGITS} digits, and no more of them after the point than in all"
    ))
}

/// Whether both are decimals, and the second one has all values of the first and more.
pub(in crate::table) fn is_wider_decimal(from: &str, to: &str) -> bool {
    let decimal = |name: &str| -> Option<(u8, u8)> {
        let digits = name.strip_prefix("decimal(")?.strip_suffix(')')?;
        let (digits, scale) = digits.split_once(',')?;
        Some((digits.parse().ok()?, scale.trim_start().parse().ok()?))
    };
    match (decimal(from), decimal(to)) {
        (Some((digits, scale)), Some((more, same))) => digits < more && scale == same,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn new_type(field: &Field) -> Result<ExportType, String> {
        match field.data_type() {
            DataType::List(element) => ExportType::new_list(element, new_type),
            DataType::Struct(fields) => ExportType::new_struct(fields, new_type),
            other => Ok(ExportType::Primitive(other.to_string())),
        }
    }

    #[test]
    fn a_type_of_files_is_compared_by_its_text() {
        let text = |name: &str, id: Option<&str>| {
            let field = Field::new(name, DataType::UInt16, id.is_none());
            let id = id.map(|id| (PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_owned()));
            let field = field.with_metadata(id.into_iter().collect());
            let element = Field::new("x", DataType::Struct(vec![field].into()), true);
            let list = Field::new("y", DataType::List(Arc::new(element)), true);
            new_type(&list).unwrap().to_string()
        };
        assert_eq!(text("a", Some("7")), text("a", None));
        assert_ne!(text("a", None), text("b", None));
        assert_eq!(text("a", None), "list<struct<\"a\":UInt16>>");
    }

    #[test]
    fn names_that_differ_only_in_case_are_refused() {
        let fields = ["a", "A"].map(|name| Field::new(name, DataType::Int8, true));
        let field = Field::new("x", DataType::Struct(fields.to_vec().into()), true);
        assert!(new_type(&field).unwrap_err().contains("\"A\""));
    }
}
