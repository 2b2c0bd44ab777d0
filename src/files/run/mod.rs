//! Sorted runs: lists of Parquet files whose rows are in the order of a key, from the first file to the last.
//!
//! [`write_run`] writes a run from a sorted stream, [`RunReader`] reads the rows of some keys or of a range of keys: of a
//! file only the pages that can hold them. A file is plain Parquet. In the footer's metadata, [`KEY_INDEX`] has the key
//! of every so many rows, as JSON (`keys`), which works for every type and order of a key: bounds of pages say nothing
//! of floats, nor of the fields of a struct together.
//!
//! ```json
//! {"every": 1024, "keys": [["a", 1], ["b", null]], "last": ["c", 7]}
//! ```
//!
//! Errors: [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for keys of a type that has no order here and for
//! input that is not sorted; [`ErrorKind::PartCorrupted`](crate::ErrorKind::PartCorrupted) for a file that is not one of
//! a run, or is damaged; those of the store.

mod blocks;
mod cache;
mod index;
mod keys;
mod pieces;
mod plan;
mod read;
mod search;
mod selection;
mod write;

use arrow_schema::{SchemaRef, SortOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use self::blocks::read_block_keys;
pub(crate) use self::cache::{concerns_file, forget, open_ahead};
pub(crate) use self::keys::decode_keys;
pub(crate) use self::pieces::RunEnd;
pub use self::read::RunReader;
pub use self::selection::{KeyRange, KeySelection};
pub use self::write::{DEFAULT_PAGE_ROWS, RunOptions, WrittenRun, write_run};
use super::merge::SortColumn;
use crate::error::{Error, Result};

/// The name of the key index in the metadata of a file's footer.
pub const KEY_INDEX: &str = "pds.key_index";

/// A column of the key of a run, and its order. Nulls are first in ascending order and last in descending order, which
/// is the exact reverse; floats are in IEEE 754's total order, texts and bytes by their bytes, structs field by field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyColumn {
    /// The name of the column.
    pub name: String,
    /// Whether the greatest value comes first.
    pub descending: bool,
}

/// A file of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    /// The name, relative to the folder of the run.
    pub name: String,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The size of the footer in bytes.
    pub footer_size: u64,
    /// The size of the page indexes before the footer in bytes.
    pub index_size: u64,
    /// The number of rows.
    pub rows: u64,
    /// The key of the first row, a value for each key column; long values are cut.
    pub first: Vec<Value>,
    /// The key of the last row.
    pub last: Vec<Value>,
}

/// The files of a run, in the order of their rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SortedRun {
    /// The files; none of them is empty.
    pub files: Vec<RunFile>,
}

impl SortedRun {
    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }

    /// The size of the files in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size_bytes).sum()
    }
}

impl KeyColumn {
    pub(crate) fn options(&self) -> SortOptions {
        SortOptions {
            descending: self.descending,
            nulls_first: !self.descending,
        }
    }
}

/// The positions and orders of key columns in a schema. Fails if one is missing.
fn sort_columns(schema: &SchemaRef, key: &[KeyColumn]) -> Result<Vec<SortColumn>> {
    if key.is_empty() {
        return Err(Error::invalid("a run needs a key of at least one column"));
    }
    let columns = key.iter().map(|column| {
        let index = schema.index_of(&column.name).map_err(|e| {
            let name = &column.name;
            Error::invalid(format!("the key column {name:?} is not among the columns"))
                .with_source(e)
        })?;
        Ok(SortColumn::new(index, column.options()))
    });
    columns.collect()
}
