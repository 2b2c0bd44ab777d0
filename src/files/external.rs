//! Parquet files that are listed outside a table, such as the slices of a chain, to be scanned as columns of one schema.

use std::collections::BTreeMap;

use arrow_schema::SchemaRef;
use serde_json::Value;

use super::columns::TableColumns;
use super::encoded_schema::EncodedSchema;
use super::entry::DataFile;
use crate::error::Result;

/// Files whose columns are matched to those of a schema by name; a column that a file lacks reads as null.
#[derive(Debug, Clone)]
pub struct ExternalFiles {
    /// The columns.
    pub schema: SchemaRef,
    /// The files, in the order of their rows.
    pub files: Vec<ExternalFile>,
}

/// A Parquet file that is listed outside a table.
#[derive(Debug, Clone)]
pub struct ExternalFile {
    /// Path, relative to the folder of the list.
    pub path: String,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Number of rows.
    pub rows: u64,
    /// An integer column with its smallest and its largest value, for pruning.
    pub bounds: Option<(String, u64, u64)>,
}

impl ExternalFiles {
    /// The columns of the schema, each with an id. Fails if a table cannot have this schema.
    pub(crate) fn columns(&self) -> Result<TableColumns> {
        let schema = EncodedSchema::checked(&self.schema)?.decode()?;
        Ok(TableColumns::numbered(schema))
    }

    /// The entries of the files, by the ids of the columns with these names.
    pub(crate) fn entries(&self, names: &BTreeMap<u32, String>) -> Vec<DataFile> {
        self.files.iter().map(|file| file.entry(names)).collect()
    }
}

impl ExternalFile {
    fn entry(&self, names: &BTreeMap<u32, String>) -> DataFile {
        let id_of = |name: &str| {
            let mut columns = names.iter();
            let column = columns.find(|(_, column_name)| *column_name == name);
            column.map(|(id, _)| *id)
        };
        let named_bounds = self.bounds.as_ref();
        let bounds = named_bounds.and_then(|(name, low, high)| Some((id_of(name)?, *low, *high)));
        let to_map = |value: fn((u32, u64, u64)) -> (u32, u64)| {
            let bound = bounds.map(value);
            bound
                .into_iter()
                .map(|(id, value)| (id, Value::from(value)))
                .collect()
        };
        DataFile {
            path: self.path.clone(),
            size_bytes: self.size_bytes,
            footer_size: 0,
            row_group_count: 0,
            total_rows: self.rows,
            min: to_map(|(id, low, _)| (id, low)),
            max: to_map(|(id, _, high)| (id, high)),
            null_counts: BTreeMap::new(),
            columns: Some(names.clone()),
            constants: BTreeMap::new(),
            checksum: None,
        }
    }
}
