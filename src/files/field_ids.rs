//! Field ids of the Parquet schema: of columns, and of the fields nested in them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use parquet::schema::types::Type;

/// The fields directly within a type, as Parquet has them: a map has keys and values, not entries.
fn nested_fields(data_type: &DataType) -> Vec<&FieldRef> {
    match data_type {
        DataType::Struct(fields) => fields.iter().collect(),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::ListView(field)
        | DataType::LargeListView(field) => vec![field],
        DataType::Map(entries, _) => nested_fields(entries.data_type()),
        // Stored as their values.
        DataType::RunEndEncoded(_, values) => nested_fields(values.data_type()),
        DataType::Dictionary(_, values) => nested_fields(values),
        _ => Vec::new(),
    }
}

/// The id of a field of a Parquet schema, if it has one.
pub(crate) fn field_id(field: &Type) -> Option<i32> {
    let info = field.get_basic_info();
    info.has_id().then(|| info.id())
}

/// Ids for all fields within a type, each before those within it; `last_id` is the last one given.
pub(crate) fn assign_nested_ids(data_type: &DataType, last_id: &mut u32) -> Vec<u32> {
    let mut ids = Vec::new();
    for field in nested_fields(data_type) {
        *last_id = last_id.saturating_add(1);
        ids.push(*last_id);
        ids.extend(assign_nested_ids(field.data_type(), last_id));
    }
    ids
}

/// The field with its id, and with ids on what is nested in it if there is one for each.
pub(super) fn with_field_ids(field: &FieldRef, id: u32, nested_ids: &[u32]) -> FieldRef {
    let mut remaining = nested_ids.iter().copied();
    let data_type = number_nested(field.data_type(), &mut remaining);
    let numbered = match (data_type, remaining.next()) {
        (Some(data_type), None) => field.as_ref().clone().with_data_type(data_type),
        _ => field.as_ref().clone(),
    };
    Arc::new(with_id(numbered, id))
}

fn with_id(field: Field, id: u32) -> Field {
    let mut metadata: HashMap<String, String> = field.metadata().clone();
    metadata.insert(PARQUET_FIELD_ID_META_KEY.to_owned(), id.to_string());
    field.with_metadata(metadata)
}

/// The type with ids on all fields within it; `None` if there are too few ids.
fn number_nested(data_type: &DataType, ids: &mut impl Iterator<Item = u32>) -> Option<DataType> {
    let mut number = |field: &FieldRef| {
        let id = ids.next()?;
        let inner = number_nested(field.data_type(), &mut *ids)?;
        let field = field.as_ref().clone().with_data_type(inner);
        Some(Arc::new(with_id(field, id)))
    };
    Some(match data_type {
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(number).collect::<Option<Fields>>()?)
        }
        DataType::List(field) => DataType::List(number(field)?),
        DataType::LargeList(field) => DataType::LargeList(number(field)?),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(number(field)?, *length),
        DataType::Map(entries, is_sorted) => {
            let inner = number_nested(entries.data_type(), ids)?;
            let entries = entries.as_ref().clone().with_data_type(inner);
            DataType::Map(Arc::new(entries), *is_sorted)
        }
        other => other.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str) -> Field {
        Field::new(name, DataType::Int64, true)
    }

    #[test]
    fn nested_fields_are_numbered_from_the_outside() {
        let item = || Arc::new(column("item"));
        let list = DataType::List(item());
        let entries = Fields::from(vec![
            Field::new("key", DataType::Utf8, false),
            Field::new("value", list.clone(), true),
        ]);
        let entries = Field::new("entries", DataType::Struct(entries), false);
        let map = DataType::Map(Arc::new(entries), false);
        let row = Fields::from(vec![column("x"), Field::new("m", map, true)]);
        let row = DataType::Struct(row);
        let mut last_id = 2;
        assert!(assign_nested_ids(&DataType::Int64, &mut last_id).is_empty());
        assert_eq!(assign_nested_ids(&row, &mut last_id), [3, 4, 5, 6, 7]);
        let view = DataType::ListView(item());
        assert_eq!(assign_nested_ids(&view, &mut last_id), [8]);

        let field: FieldRef = Arc::new(Field::new("row", row, true));
        let numbered = with_field_ids(&field, 2, &[3, 4, 5, 6, 7]);
        let mut seen = Vec::new();
        collect_ids(&numbered, &mut seen);
        assert_eq!(seen, ["2", "3", "4", "5", "6", "7"]);
        // Ids that do not fit the type are left out, but for the column's own.
        for wrong in [&[3][..], &[3, 4, 5, 6, 7, 8]] {
            let mut seen = Vec::new();
            collect_ids(&with_field_ids(&field, 2, wrong), &mut seen);
            assert_eq!(seen, ["2"]);
        }
    }

    fn collect_ids(field: &Field, seen: &mut Vec<String>) {
        seen.extend(field.metadata().get(PARQUET_FIELD_ID_META_KEY).cloned());
        for nested in nested_fields(field.data_type()) {
            collect_ids(nested, seen);
        }
    }
}
