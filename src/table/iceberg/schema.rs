//! A table's columns as Iceberg has them.

use std::collections::BTreeMap;

use arrow_schema::DataType;
use serde_json::{Value, json};

use super::types::{mapping, new_type, to_json};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::table::export::{ExportType, first_ambiguous};
use crate::table::format::TableManifest;

/// The columns of a version that are exported.
#[derive(Debug)]
pub(super) struct IcebergSchema {
    pub(super) columns: Vec<IcebergColumn>,
    /// The ids of the key, if its columns can identify rows in Iceberg.
    identifier: Vec<u32>,
    /// The name mapping of columns that files may have and the schema has not: left out ones, and dropped ones. Readers
    /// refuse a file without ids that has a column without an entry.
    unexported: Vec<Value>,
}

/// An exported column.
#[derive(Debug)]
pub(super) struct IcebergColumn {
    pub(super) id: u32,
    pub(super) name: String,
    /// The name in data files.
    pub(super) stored: String,
    /// The type in the table.
    pub(super) arrow_type: DataType,
    pub(super) data_type: ExportType,
    pub(super) nested_ids: Vec<u32>,
    required: bool,
}

/// Refuses a table of which not all columns can be exported.
pub(in crate::table) fn check_columns(
    manifest: &TableManifest,
    columns: &TableColumns,
) -> Result<()> {
    IcebergSchema::new(manifest, columns, &[]).map(drop)
}

impl IcebergSchema {
    /// Refuses columns of types that Iceberg lacks, and names that differ only in case.
    pub(super) fn new(
        manifest: &TableManifest,
        columns: &TableColumns,
        left_out: &[u32],
    ) -> Result<Self> {
        let fields = columns.fields_with_ids();
        let mut exported = Vec::new();
        let retired = manifest.schema.retired.iter();
        let mut unexported: Vec<Value> = retired
            .map(|(id, stored)| json!({"field-id": id, "names": [stored]}))
            .collect();
        for (field, entry) in fields.iter().zip(&manifest.schema.columns) {
            if left_out.contains(&entry.id) {
                unexported.push(match new_type(field) {
                    Ok(data_type) => {
                        mapping(Some(entry.id.into()), entry.stored_name(), &data_type)
                    }
                    Err(_) => json!({"field-id": entry.id, "names": [entry.stored_name()]}),
                });
                continue;
            }
            let data_type = match new_type(field) {
                Ok(data_type) if !data_type.has_ids() => {
                    Err("its nested fields have no ids yet: any commit gives it some".to_owned())
                }
                data_type => data_type,
            };
            let data_type = data_type.map_err(|reason| {
                let message = format!(
                    "column {:?} of type {} cannot be exported to Iceberg: {reason}; name it in leave_out to leave it out",
                    entry.name, entry.data_type,
                );
                Error::invalid(message)
            })?;
            exported.push(IcebergColumn {
                id: entry.id,
                name: entry.name.clone(),
                stored: entry.stored_name().to_owned(),
                arrow_type: field.data_type().clone(),
                data_type,
                nested_ids: entry.nested_ids.clone(),
                required: !field.is_nullable(),
            });
        }
        if let Some(name) = first_ambiguous(exported.iter().map(|column| column.name.as_str())) {
            return Err(Error::invalid(format!(
                "the names of two columns differ only in case from {name:?}, which readers of Iceberg do not tell apart; \
                 rename one, or name it in leave_out"
            )));
        }
        let can_identify = |id: &u32| {
            let column = exported.iter().find(|column| column.id == *id);
            column.is_some_and(IcebergColumn::can_identify)
        };
        let identifier = if manifest.key.iter().all(can_identify) {
            manifest.key.clone()
        } else {
            Vec::new()
        };
        Ok(Self {
            columns: exported,
            identifier,
            unexported,
        })
    }

    /// The JSON of the schema, without its id.
    pub(super) fn to_json(&self) -> Value {
        let fields = self.columns.iter().map(|column| {
            json!({
                "id": column.id,
                "name": column.name,
                "required": column.required,
                "type": to_json(&column.data_type),
            })
        });
        let fields: Vec<Value> = fields.collect();
        json!({"type": "struct", "identifier-field-ids": self.identifier, "fields": fields})
    }

    /// Adds the names of columns in files without ids to a default name mapping, by id.
    pub(super) fn extend_mapping(&self, entries: &mut BTreeMap<i64, Value>) {
        for entry in &self.unexported {
            if let Some(id) = entry["field-id"].as_i64() {
                // An earlier entry has the fields of a nested column that was dropped.
                entries.entry(id).or_insert_with(|| entry.clone());
            }
        }
        for column in &self.columns {
            let id = i64::from(column.id);
            entries.insert(id, mapping(Some(id), &column.stored, &column.data_type));
        }
    }
}

impl IcebergColumn {
    fn can_identify(&self) -> bool {
        let is_float = self.arrow_type.is_floating();
        self.required && self.data_type.is_primitive() && !is_float
    }
}
