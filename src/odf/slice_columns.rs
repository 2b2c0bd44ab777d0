//! The columns of a slice and the schema of the chain.
//!
//! [`describe_difference`] compares names, order and types. Of a type only the values count: whether they may be null,
//! and the layout of strings, lists and dictionaries, are up to the writer.
//!
//! [`schema_to_read`] has the columns with which the rows of a slice are read: not every schema says which of them may
//! be null.
//!
//! Parquet has no seconds, and other tools hash the columns that they read from the file. [`schema_to_write`] has the
//! columns of a new slice, [`schema_as_read`] those that other tools read from a slice of an older release.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use serde_json::Value;

use super::fields::get;
use super::schema;
use super::vocabulary::Vocabulary;
use crate::error::Result;

/// Returns the columns with which rows are read that were written after a `SetDataSchema`. What a rawArrowSchema says
/// of nulls was inferred by an engine, and other tools do not check it (RFC-016): any column but the system columns may
/// have some.
pub(super) fn schema_to_read(event: &Value, vocabulary: &Vocabulary) -> Result<Schema> {
    let schema = schema::arrow_from_event(event)?;
    if get(event, "rawArrowSchema").is_none() {
        return Ok(schema);
    }
    let fields = schema.fields().iter().map(|field| {
        let is_system = vocabulary.names().contains(&field.name().as_str());
        let nullable = field.is_nullable() || !is_system;
        field.as_ref().clone().with_nullable(nullable)
    });
    let fields: Vec<Field> = fields.collect();
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Describes the first difference between the columns of a slice and the schema of the chain, if they differ.
pub(super) fn describe_difference(chain_schema: &Schema, slice_schema: &Schema) -> Option<String> {
    let names = |schema: &Schema| -> Vec<String> {
        schema.fields().iter().map(|f| f.name().clone()).collect()
    };
    let (expected_names, actual_names) = (names(chain_schema), names(slice_schema));
    if expected_names != actual_names {
        return Some(format!(
            "the slice has the columns {actual_names:?}; the schema before it has {expected_names:?}"
        ));
    }
    let mut pairs = chain_schema.fields().iter().zip(slice_schema.fields());
    let (expected, actual) =
        pairs.find(|(a, b)| normalize_type(a.data_type()) != normalize_type(b.data_type()))?;
    Some(format!(
        "column {:?} of the slice is {}; in the schema before it the column is {}",
        expected.name(),
        actual.data_type(),
        expected.data_type()
    ))
}

/// Returns the columns with which a slice is written and hashed: those of the chain, seconds as milliseconds.
pub(super) fn schema_to_write(chain_schema: &Schema) -> Schema {
    replace_seconds(chain_schema, &|zone| zone.cloned())
}

/// Returns the columns that other tools read from a file whose Arrow schema has seconds: the milliseconds that are
/// stored, of which only UTC is known. None if the schema has no seconds.
pub(super) fn schema_as_read(slice_schema: &Schema) -> Option<Schema> {
    let as_read = replace_seconds(slice_schema, &|zone| zone.map(|_| "UTC".into()));
    (as_read != *slice_schema).then_some(as_read)
}

/// The time zone that times in seconds get as milliseconds.
type ZoneOf<'a> = &'a dyn Fn(Option<&Arc<str>>) -> Option<Arc<str>>;

fn replace_seconds(schema: &Schema, zone_of: ZoneOf<'_>) -> Schema {
    let fields = schema.fields().iter();
    Schema::new_with_metadata(
        fields
            .map(|field| replace_in_field(field, zone_of))
            .collect::<Fields>(),
        schema.metadata().clone(),
    )
}

fn replace_in_field(field: &FieldRef, zone_of: ZoneOf<'_>) -> FieldRef {
    let data_type = replace_in_type(field.data_type(), zone_of);
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

fn replace_in_type(data_type: &DataType, zone_of: ZoneOf<'_>) -> DataType {
    let child = |field: &FieldRef| replace_in_field(field, zone_of);
    match data_type {
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Timestamp(TimeUnit::Second, zone) => {
            DataType::Timestamp(TimeUnit::Millisecond, zone_of(zone.as_ref()))
        }
        DataType::Dictionary(key, value) => {
            DataType::Dictionary(key.clone(), Box::new(replace_in_type(value, zone_of)))
        }
        DataType::RunEndEncoded(ends, values) => {
            DataType::RunEndEncoded(Arc::clone(ends), child(values))
        }
        DataType::List(item) => DataType::List(child(item)),
        DataType::LargeList(item) => DataType::LargeList(child(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(child(item), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(child).collect()),
        DataType::Map(entries, sorted) => DataType::Map(child(entries), *sorted),
        other => other.clone(),
    }
}

/// Returns one type for all layouts of the same values.
fn normalize_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => normalize_type(values),
        DataType::RunEndEncoded(_, values) => normalize_type(values.data_type()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Timestamp(unit, zone) => {
            // Parquet has no seconds, and keeps of a time zone only that the time is UTC.
            let unit = match unit {
                TimeUnit::Second => TimeUnit::Millisecond,
                finer => *finer,
            };
            DataType::Timestamp(unit, zone.as_ref().map(|_| "UTC".into()))
        }
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale) => DataType::Decimal256(*digits, *scale),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => DataType::List(normalize_field("item", item)),
        DataType::Map(entries, _) => {
            let inner = match entries.data_type() {
                DataType::Struct(fields) => fields.iter().map(|f| normalize_field("", f)).collect(),
                _ => Vec::new(),
            };
            DataType::List(Arc::new(Field::new(
                "entries",
                DataType::Struct(inner.into()),
                true,
            )))
        }
        DataType::Struct(fields) => DataType::Struct(
            fields
                .iter()
                .map(|f| normalize_field(f.name(), f))
                .collect(),
        ),
        other => other.clone(),
    }
}

fn normalize_field(name: &str, field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(name, normalize_type(field.data_type()), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: &[(&str, DataType)]) -> Schema {
        let fields = fields.iter().map(|(n, t)| Field::new(*n, t.clone(), false));
        Schema::new(fields.collect::<Vec<_>>())
    }

    #[test]
    fn seconds_become_milliseconds_at_every_depth() {
        let item = |t| Arc::new(Field::new("element", t, true));
        let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        let types = |unit, zone: Option<&str>| {
            let inner = vec![Field::new("t", time(unit, zone), true)];
            vec![
                ("h", DataType::Time32(unit)),
                ("l", DataType::List(item(time(unit, zone)))),
                ("s", DataType::Struct(inner.into())),
            ]
        };
        let seconds = schema(&types(TimeUnit::Second, Some("+02:00")));
        let kept = schema(&types(TimeUnit::Millisecond, Some("+02:00")));
        let read = schema(&types(TimeUnit::Millisecond, Some("UTC")));
        assert_eq!(schema_to_write(&seconds), kept);
        assert_eq!(schema_to_write(&kept), kept);
        assert_eq!(schema_as_read(&seconds), Some(read));
        assert_eq!(schema_as_read(&kept), None);
    }

    #[test]
    fn layouts_are_no_difference_and_other_types_are() {
        let item = |t| Arc::new(Field::new("element", t, true));
        let dictionary = DataType::Dictionary(DataType::Int8.into(), DataType::LargeUtf8.into());
        let same = [
            (DataType::Utf8, DataType::Utf8View),
            (DataType::Utf8, dictionary),
            (
                DataType::Timestamp(TimeUnit::Second, Some("+01:00".into())),
                DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            ),
            (DataType::Decimal64(5, 2), DataType::Decimal128(5, 2)),
            (
                DataType::FixedSizeList(item(DataType::Int8), 3),
                DataType::List(item(DataType::Int8)),
            ),
        ];
        for (a, b) in same {
            let difference =
                describe_difference(&schema(&[("x", a.clone())]), &schema(&[("x", b)]));
            assert_eq!(difference, None, "{a}");
        }
        let other = [
            (DataType::Int64, DataType::Int32),
            (
                DataType::Timestamp(TimeUnit::Millisecond, None),
                DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into())),
            ),
            (
                DataType::List(item(DataType::Int8)),
                DataType::List(item(DataType::Int16)),
            ),
            (DataType::Decimal128(5, 2), DataType::Decimal128(6, 2)),
        ];
        for (a, b) in other {
            let difference =
                describe_difference(&schema(&[("x", a.clone())]), &schema(&[("x", b)]));
            assert!(difference.is_some_and(|why| why.contains("\"x\"")), "{a}");
        }
        let (a, b) = (("a", DataType::Int8), ("b", DataType::Int8));
        let swapped = describe_difference(&schema(&[a.clone(), b.clone()]), &schema(&[b, a]));
        assert!(swapped.is_some());
    }
}
