//! A table's columns as Iceberg has them.

use std::collections::BTreeMap;

use arrow_schema::Field;
use serde_json::{Value, json};

use super::types::{mapping, new_type, to_json};
use crate::error::Result;
use crate::files::TableColumns;
use crate::table::export::{ExportColumn, export_columns};
use crate::table::format::TableManifest;

/// The columns of a version that are exported.
#[derive(Debug)]
pub(super) struct IcebergSchema {
    pub(super) columns: Vec<ExportColumn>,
    /// The ids of the key, if its columns can identify rows in Iceberg.
    identifier: Vec<u32>,
    /// The name mapping of columns that files may have and the schema has not: left out ones, and dropped ones. Readers
    /// refuse a file without ids that has a column without an entry.
    unexported: Vec<Value>,
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
        let with_ids = |field: &Field| match new_type(field) {
            Ok(data_type) if !data_type.has_ids() => {
                Err("its nested fields have no ids yet: any commit gives it some".to_owned())
            }
            data_type => data_type,
        };
        let entries = export_columns("Iceberg", manifest, columns, left_out, with_ids)?;
        let exported: Vec<ExportColumn> = entries.into_iter().map(|(column, _)| column).collect();
        let can_identify = |id: &u32| {
            let column = exported.iter().find(|column| column.id == *id);
            column.is_some_and(can_identify_rows)
        };
        let identifier = if manifest.key.iter().all(can_identify) {
            manifest.key.clone()
        } else {
            Vec::new()
        };
        Ok(Self {
            columns: exported,
            identifier,
            unexported: unexported_names(manifest, columns, left_out),
        })
    }

    /// The JSON of the schema, without its id.
    pub(super) fn to_json(&self) -> Value {
        let fields = self.columns.iter().map(|column| {
            json!({
                "id": column.id,
                "name": column.name,
                "required": !column.nullable,
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

fn can_identify_rows(column: &ExportColumn) -> bool {
    !column.nullable && column.data_type.is_primitive() && !column.arrow_type.is_floating()
}

/// The name mapping of columns that were dropped, and of those that are left out.
fn unexported_names(
    manifest: &TableManifest,
    columns: &TableColumns,
    left_out: &[u32],
) -> Vec<Value> {
    let retired = manifest.schema.retired.iter();
    let mut names: Vec<Value> = retired
        .map(|(id, stored)| json!({"field-id": id, "names": [stored]}))
        .collect();
    let fields = columns.fields_with_ids();
    for (field, entry) in fields.iter().zip(&manifest.schema.columns) {
        if left_out.contains(&entry.id) {
            names.push(match new_type(field) {
                Ok(data_type) => mapping(Some(entry.id.into()), entry.stored_name(), &data_type),
                Err(_) => json!({"field-id": entry.id, "names": [entry.stored_name()]}),
            });
        }
    }
    names
}
