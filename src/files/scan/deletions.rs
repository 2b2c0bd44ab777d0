//! Deleted rows of a data file, however they are recorded.

use std::collections::{BTreeMap, BTreeSet};

use roaring::RoaringBitmap;
use serde_json::Value;

/// All deleted rows of one data file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Deletions {
    /// Row groups of which all rows are deleted.
    pub groups: BTreeSet<u32>,
    /// Deleted rows by row group, for the other row groups.
    pub rows: BTreeMap<u32, RoaringBitmap>,
    /// Deleted ranges of keys, both ends included.
    pub keys: Vec<(Value, Value)>,
}
