//! Extension types of widened columns.
//!
//! An extension type prescribes how its values are stored, so a column that has one, or a field with one in it, does
//! not become wider ([`super::actions::Alter::Widen`]). In tables of earlier versions of pds it did. Readers of Arrow
//! that know the extension type refuse its name beside another storage type, and with it the whole schema; so such a
//! field is one of its storage type.

use std::sync::Arc;

use arrow_schema::extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY};
use arrow_schema::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use super::format::{ColumnSchema, Widened};

/// The schema without the extension types whose storage type a widening has changed, except canonical ones that allow
/// the new one. `entries` describe its columns in the same order.
pub(super) fn without_widened_extensions(schema: SchemaRef, entries: &[ColumnSchema]) -> SchemaRef {
    if entries.iter().all(|column| column.widened.is_empty()) {
        return schema;
    }
    let columns = schema.fields().iter().zip(entries);
    let fields: Vec<FieldRef> = columns
        .map(|(field, column)| match column.widened.as_slice() {
            [] => Arc::clone(field),
            widened => fit_extension(field, None, widened),
        })
        .collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata.clone()))
}

/// The field without an extension type that does not fit its type. It is the column itself, or a child of `parent`.
fn fit_extension(field: &FieldRef, parent: Option<&DataType>, widened: &[Widened]) -> FieldRef {
    let data_type = fit_children(field.data_type(), widened);
    let fitted = Field::clone(field).with_data_type(data_type);
    let has_old_type = || {
        let text = parent.map(|parent| display_child(parent, field));
        text.is_some_and(|text| widened.iter().all(|older| has_child(&older.from, &text)))
    };
    if fitted.extension_type_name().is_none()
        || fitted.try_canonical_extension_type().is_ok()
        || has_old_type()
    {
        return Arc::new(fitted);
    }
    let mut metadata = fitted.metadata().clone();
    metadata.remove(EXTENSION_TYPE_NAME_KEY);
    metadata.remove(EXTENSION_TYPE_METADATA_KEY);
    Arc::new(fitted.with_metadata(metadata))
}

fn fit_children(data_type: &DataType, widened: &[Widened]) -> DataType {
    use DataType as D;
    let fit = |child: &FieldRef| fit_extension(child, Some(data_type), widened);
    match data_type {
        D::List(item) => D::List(fit(item)),
        D::LargeList(item) => D::LargeList(fit(item)),
        D::ListView(item) => D::ListView(fit(item)),
        D::LargeListView(item) => D::LargeListView(fit(item)),
        D::FixedSizeList(item, length) => D::FixedSizeList(fit(item), *length),
        D::Map(entries, is_sorted) => D::Map(fit(entries), *is_sorted),
        D::Struct(fields) => D::Struct(fields.iter().map(fit).collect()),
        D::Dictionary(keys, values) => {
            let values = fit_children(values, widened);
            D::Dictionary(keys.clone(), Box::new(values))
        }
        other => other.clone(),
    }
}

/// A field as the text of its parent's type displays it, metadata included.
fn display_child(parent: &DataType, field: &FieldRef) -> String {
    let only = match parent {
        DataType::Struct(_) | DataType::Map(..) => {
            DataType::Struct(Fields::from(vec![Arc::clone(field)]))
        }
        _ => DataType::List(Arc::clone(field)),
    };
    let text = only.to_string();
    let (_, child) = text.split_once('(').unwrap_or_default();
    child.strip_suffix(')').unwrap_or(child).to_owned()
}

/// Whether the text of a type has a child that is displayed so.
fn has_child(data_type: &str, child: &str) -> bool {
    let mut matches = data_type.match_indices(child);
    matches.any(|(at, _)| data_type[..at].ends_with(['(', ' ']))
}

#[cfg(test)]
mod tests {
    use arrow_schema::extension::{Bool8, Opaque};

    use super::*;

    fn boolean(name: &str, data_type: DataType) -> Field {
        let metadata = [
            (EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.bool8".to_owned()),
            (EXTENSION_TYPE_METADATA_KEY.to_owned(), String::new()),
        ];
        Field::new(name, data_type, true).with_metadata(metadata.into())
    }

    /// The column after it was widened from these types.
    fn fit(field: Field, from: &[DataType]) -> Field {
        let widened = from.iter().map(|older| Widened {
            version: 2,
            from: older.to_string(),
        });
        let entry = ColumnSchema {
            widened: widened.collect(),
            ..ColumnSchema::default()
        };
        let schema = Arc::new(Schema::new(vec![field]));
        let schema = without_widened_extensions(schema, &[entry]);
        schema.field(0).clone()
    }

    #[test]
    fn a_wider_column_has_its_storage_type() {
        let wide = boolean("c", DataType::Int32);
        let plain = Field::new("c", DataType::Int32, true);
        assert_eq!(fit(wide.clone(), &[DataType::Int8]), plain);
        // Without a history it is as it was created.
        assert_eq!(fit(wide.clone(), &[]), wide);
        let opaque = Field::new("c", DataType::Int64, true)
            .with_extension_type(Opaque::new("count", "acme"));
        assert_eq!(fit(opaque.clone(), &[DataType::Int32]), opaque);
    }

    #[test]
    fn only_children_that_became_wider_lose_their_extension_type() {
        let narrow = Arc::new(boolean("x", DataType::Int8));
        assert!(narrow.try_extension_type::<Bool8>().is_ok());
        let unknown = |data_type| {
            let metadata = [(EXTENSION_TYPE_NAME_KEY.to_owned(), "acme.n".to_owned())];
            Field::new("u", data_type, true).with_metadata(metadata.into())
        };
        let row = |x: Field, u: Field, n: DataType| {
            let fields = vec![x, u, Field::new("n", n, true)];
            DataType::List(Arc::new(Field::new_list_field(
                DataType::Struct(fields.into()),
                true,
            )))
        };
        let column = |data_type| Field::new("c", data_type, true);
        let (old, kept) = (unknown(DataType::Int8), unknown(DataType::Int8));
        let before = row(Field::clone(&narrow), old, DataType::Int8);
        let after = column(row(Field::clone(&narrow), kept, DataType::Int64));
        assert_eq!(fit(after.clone(), std::slice::from_ref(&before)), after);
        let wide = row(
            boolean("x", DataType::Int16),
            unknown(DataType::Int16),
            DataType::Int8,
        );
        let plain = row(
            Field::new("x", DataType::Int16, true),
            Field::new("u", DataType::Int16, true),
            DataType::Int8,
        );
        assert_eq!(fit(column(wide), &[before]), column(plain));
    }
}
