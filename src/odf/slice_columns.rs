//! Whether a slice has the columns that the chain says.
//!
//! Names and order are compared, and types as far as they say what values are: not whether there may be nulls,
//! nor how texts, lists and dictionaries are laid out, which writers choose as they like.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, TimeUnit};

/// How the columns of a slice differ from those that the chain says; None where they do not.
pub(super) fn difference(in_force: &Schema, slice: &Schema) -> Option<String> {
    let names = |schema: &Schema| -> Vec<String> {
        schema.fields().iter().map(|f| f.name().clone()).collect()
    };
    let (wanted, found) = (names(in_force), names(slice));
    if wanted != found {
        return Some(format!(
            "it has the columns {found:?}, and the schema before it says {wanted:?}"
        ));
    }
    let mut pairs = in_force.fields().iter().zip(slice.fields());
    let (wanted, found) = pairs.find(|(a, b)| plain(a.data_type()) != plain(b.data_type()))?;
    Some(format!(
        "its column {:?} is {}, and the schema before it says {}",
        wanted.name(),
        found.data_type(),
        wanted.data_type()
    ))
}

/// The type of the same values in one layout.
fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => plain(values),
        DataType::RunEndEncoded(_, values) => plain(values.data_type()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Date64 => DataType::Date32,
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Timestamp(unit, zone) => {
            // Parquet knows milliseconds, and whether it is UTC.
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
        | DataType::FixedSizeList(item, _) => DataType::List(named("item", item)),
        DataType::Map(entries, _) => {
            let inner = match entries.data_type() {
                DataType::Struct(fields) => fields.iter().map(|f| named("", f)).collect(),
                _ => Vec::new(),
            };
            DataType::List(Arc::new(Field::new(
                "entries",
                DataType::Struct(inner.into()),
                true,
            )))
        }
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|f| named(f.name(), f)).collect())
        }
        other => other.clone(),
    }
}

fn named(name: &str, field: &FieldRef) -> FieldRef {
    Arc::new(Field::new(name, plain(field.data_type()), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(fields: &[(&str, DataType)]) -> Schema {
        let fields = fields.iter().map(|(n, t)| Field::new(*n, t.clone(), false));
        Schema::new(fields.collect::<Vec<_>>())
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
            let found = difference(&schema(&[("x", a.clone())]), &schema(&[("x", b)]));
            assert_eq!(found, None, "{a}");
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
            let found = difference(&schema(&[("x", a.clone())]), &schema(&[("x", b)]));
            assert!(found.is_some_and(|why| why.contains("\"x\"")), "{a}");
        }
        let (a, b) = (("a", DataType::Int8), ("b", DataType::Int8));
        let swapped = difference(&schema(&[a.clone(), b.clone()]), &schema(&[b, a]));
        assert!(swapped.is_some());
    }
}
