//! A table's columns: the exact Arrow schema, and ids that outlive names.
//!
//! A manifest holds the schema as an IPC message and an id for each column ([`TableColumns`]); a data file
//! has the ids as field ids of Parquet, so its columns are found after a rename. [`NewTable::new`] refuses
//! a schema without columns, one that Parquet does not support, and unknown or duplicate columns in a
//! key (`InvalidInput`); a table is created of columns with names only. A manifest whose schema cannot be decoded is
//! `ManifestCorrupted`.

use std::collections::BTreeSet;

use arrow_row::{RowConverter, SortField};
use arrow_schema::SchemaRef;

use super::actions::NewTable;
use super::format::{TableManifest, TableSchema, corrupted_error};
use super::names;
use super::schema_extensions::without_widened_extensions;
use crate::error::{Error, Result};
use crate::files::{EncodedSchema, StoredField, TableColumns};
use crate::parquet::types::index_of;

impl NewTable {
    /// Describes a table of `schema`; `key` and `sort_by` are names of its columns.
    pub fn new(schema: &SchemaRef, key: &[String], sort_by: &[String]) -> Result<Self> {
        let arrow_schema = EncodedSchema::checked(schema)?;
        if schema.fields().is_empty() {
            return Err(Error::invalid("a table needs at least one column"));
        }
        let mut columns = TableSchema::default();
        for field in schema.fields() {
            columns.push(field);
        }
        let resolve_ids = |argument: &str, names: &[String]| {
            let mut ids = Vec::new();
            for name in names {
                let field = index_of(schema, name).map_err(|e| e.context(argument))?;
                let id = columns.columns[field].id;
                if ids.contains(&id) {
                    let message = format!("duplicate column {name:?} in {argument}");
                    return Err(Error::invalid(message));
                }
                ids.push(id);
            }
            Ok(ids)
        };
        let key_ids = resolve_ids("key", key)?;
        check_key_types(schema, key)?;
        Ok(Self {
            key: key_ids,
            sort_by: resolve_ids("sort_by", sort_by)?,
            arrow_schema,
            schema: columns,
            exports: BTreeSet::new(),
        })
    }
}

impl NewTable {
    /// Refuses a column without a name.
    pub(super) fn check_names(&self) -> Result<()> {
        let mut columns = self.schema.columns.iter();
        columns.try_for_each(|column| check_not_empty(&column.name))
    }
}

/// Refuses an empty name: filters cannot name such a column, and neither can most engines.
pub(super) fn check_not_empty(name: &str) -> Result<()> {
    if name.is_empty() {
        let message = "a column of a table must have a name, for filters and other engines; rename the column \
             whose name is empty";
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Refuses a key whose values cannot be compared: every upsert would fail.
fn check_key_types(schema: &SchemaRef, key: &[String]) -> Result<()> {
    let mut fields = Vec::new();
    for name in key {
        let field = schema.field(index_of(schema, name)?);
        fields.push(SortField::new(field.data_type().clone()));
    }
    if RowConverter::supports_fields(&fields) {
        return Ok(());
    }
    let columns = key.join(", ");
    Err(Error::invalid(format!(
        "a key cannot have columns of types that cannot be compared: {columns}"
    )))
}

impl TableColumns {
    /// The columns of a snapshot. Fails with `ManifestCorrupted` if its schema cannot be decoded.
    pub fn from_manifest(manifest: &TableManifest) -> Result<Self> {
        let name = names::manifest(manifest.version);
        let schema = manifest.arrow_schema.decode().map_err(|e| {
            corrupted_error(&name, "its arrow_schema cannot be decoded").with_source(e)
        })?;
        let column_names = manifest.schema.columns.iter().map(|c| c.name.as_str());
        if !column_names.eq(schema.fields().iter().map(|f| f.name().as_str())) {
            return Err(corrupted_error(
                &name,
                "its schema and its arrow_schema have different columns",
            ));
        }
        let schema = without_widened_extensions(schema, &manifest.schema.columns);
        Ok(Self::from_entries(schema, &manifest.schema))
    }

    /// Gives ids to nested fields that have none: tables of format 1 have ids on columns only.
    pub(super) fn complete_nested_ids(manifest: &mut TableManifest) {
        if let Ok(columns) = Self::from_manifest(manifest) {
            manifest.schema.complete_nested_ids(columns.schema.fields());
        }
    }

    /// The columns of an Arrow schema, described by `entries` in the same order.
    pub(super) fn from_entries(schema: SchemaRef, entries: &TableSchema) -> Self {
        let ids = entries.columns.iter().map(|c| c.id).collect();
        let stored = entries.columns.iter().map(|c| StoredField {
            name: c.stored_name().to_owned(),
            nested_ids: c.nested_ids.clone(),
        });
        Self::new(schema, ids, stored.collect())
    }
}
