//! A snapshot of Parquet files that are listed outside a table, to be scanned like a table's version.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;
use serde_json::Value;

use super::actions::NewTable;
use super::format::{DataFile, TableManifest};
use crate::error::Result;

/// A Parquet file of an external snapshot.
#[derive(Debug, Clone)]
pub struct ExternalFile {
    /// Path, relative to the table's folder.
    pub path: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// An integer column with its smallest and its largest value, for pruning.
    pub bounds: Option<(String, u64, u64)>,
}

/// Builds a snapshot of files whose columns are matched to those of `schema` by name; a column that a
/// file lacks reads as null. Fails if a table cannot have this schema.
pub fn external_snapshot(schema: &SchemaRef, files: Vec<ExternalFile>) -> Result<TableManifest> {
    let new_table = NewTable::new(schema, &[], &[])?;
    let names: BTreeMap<u32, String> = {
        let columns = new_table.schema.columns.iter();
        columns
            .map(|column| (column.id, column.name.clone()))
            .collect()
    };
    let id_of = |name: &str| {
        names
            .iter()
            .find(|(_, column_name)| *column_name == name)
            .map(|(id, _)| *id)
    };
    let data_files = files.into_iter().map(|file| {
        let named_bounds = file.bounds.as_ref();
        let bounds = named_bounds.and_then(|(name, low, high)| Some((id_of(name)?, *low, *high)));
        let to_map = |value: fn((u32, u64, u64)) -> (u32, u64)| {
            let bound = bounds.map(value);
            bound
                .into_iter()
                .map(|(id, value)| (id, Value::from(value)))
                .collect()
        };
        DataFile {
            path: file.path,
            size_bytes: file.size_bytes,
            footer_size: 0,
            row_group_count: 0,
            total_rows: file.rows,
            min: to_map(|(id, low, _)| (id, low)),
            max: to_map(|(id, _, high)| (id, high)),
            null_counts: BTreeMap::new(),
            columns: Some(names.clone()),
            constants: BTreeMap::new(),
        }
    });
    let mut manifest = new_table.into_manifest(0, chrono::DateTime::UNIX_EPOCH);
    manifest.data_files = data_files.collect();
    Ok(manifest)
}
