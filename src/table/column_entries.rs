//! The entries of columns in a manifest: a name in data files that never changes, and ids.
//!
//! Readers of other makers find columns in a Parquet file by name, or by field id at every level. A column
//! keeps the name that it got when it was made ([`ColumnSchema::stored_name`]), whatever it is renamed to,
//! and no other column gets that name again. A nested field (of a struct, the elements of a list, the keys
//! and values of a map) gets an id when its column is made, each before those within it.

use arrow_schema::{Field, Fields};

use super::format::{ColumnSchema, TableSchema};
use crate::files::assign_nested_ids;

impl ColumnSchema {
    /// The column's name in data files.
    pub fn stored_name(&self) -> &str {
        self.stored.as_deref().unwrap_or(&self.name)
    }

    /// Gives the column another name; in data files it keeps its own.
    pub(super) fn rename(&mut self, name: String) {
        let stored_name = self.stored_name().to_owned();
        self.stored = (stored_name != name).then_some(stored_name);
        self.name = name;
    }
}

impl TableSchema {
    /// Adds a column with new ids, for itself and for what is nested in it.
    pub(super) fn push(&mut self, field: &Field) {
        self.last_id = self.last_id.saturating_add(1);
        let id = self.last_id;
        let stored_name = self.unused_stored_name(field.name(), id);
        let nested_ids = assign_nested_ids(field.data_type(), &mut self.last_id);
        self.columns.push(ColumnSchema {
            id,
            name: field.name().clone(),
            data_type: field.data_type().to_string(),
            stored: (stored_name != *field.name()).then_some(stored_name),
            nested_ids,
            widened: Vec::new(),
        });
    }

    /// Gives ids to the nested fields of columns that were made before these had any.
    pub(super) fn complete_nested_ids(&mut self, fields: &Fields) {
        for (column, field) in self.columns.iter_mut().zip(fields) {
            if column.nested_ids.is_empty() {
                column.nested_ids = assign_nested_ids(field.data_type(), &mut self.last_id);
            }
        }
    }

    /// Keeps the stored name of a column that goes.
    pub(super) fn retire(&mut self, column: &ColumnSchema) {
        self.retired
            .insert(column.id, column.stored_name().to_owned());
    }

    /// `name`, or `name-ID` if another column has or had it in data files. Names that differ only in case are
    /// the same to many readers.
    fn unused_stored_name(&self, name: &str, id: u32) -> String {
        let live_names = self.columns.iter().map(|c| (c.id, c.stored_name()));
        let retired_names = self.retired.iter().map(|(id, name)| (*id, name.as_str()));
        let taken: Vec<String> = live_names
            .chain(retired_names)
            .filter(|(other, _)| *other != id)
            .map(|(_, name)| name.to_lowercase())
            .collect();
        let mut unused = name.to_owned();
        while taken.contains(&unused.to_lowercase()) {
            unused = format!("{unused}-{id}");
        }
        unused
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    fn column(name: &str) -> Field {
        Field::new(name, DataType::Int64, true)
    }

    #[test]
    fn a_stored_name_is_given_once() {
        let mut schema = TableSchema::default();
        for name in ["a", "b"] {
            schema.push(&column(name));
        }
        // `b` is renamed, and `a` is dropped: neither name is given again, in any case.
        let renamed = &mut schema.columns[1];
        (renamed.stored, renamed.name) = (Some("b".to_owned()), "c".to_owned());
        let dropped = schema.columns.remove(0);
        schema.retire(&dropped);
        for name in ["a", "B", "a-3", "d"] {
            schema.push(&column(name));
        }
        let stored: Vec<&str> = schema
            .columns
            .iter()
            .map(ColumnSchema::stored_name)
            .collect();
        assert_eq!(stored, ["b", "a-3", "B-4", "a-3-5", "d"]);
        assert_eq!(schema.columns[4].stored, None);
    }
}
