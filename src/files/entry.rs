//! The entry of a data file in a list of files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A data file of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// The path relative to the table.
    pub path: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The size of the Parquet footer in bytes, so that one request reads it; 0 if it is not known.
    pub footer_size: u64,
    /// The number of row groups.
    pub row_group_count: u64,
    /// The number of rows, deleted ones included.
    pub total_rows: u64,
    /// The smallest values by column id; columns without exact bounds are missing.
    #[serde(default)]
    pub min: BTreeMap<u32, Value>,
    /// The largest values by column id.
    #[serde(default)]
    pub max: BTreeMap<u32, Value>,
    /// The numbers of nulls by column id.
    #[serde(default)]
    pub null_counts: BTreeMap<u32, u64>,
    /// The file's column names by column id, for a file that does not hold the ids itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<BTreeMap<u32, String>>,
}
