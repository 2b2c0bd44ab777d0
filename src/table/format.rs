//! The format of a table's manifests ([`TableManifest`]): JSON with stable names.
//!
//! A reader refuses a newer `format` ([`ErrorKind::FormatNotSupported`](crate::ErrorKind::FormatNotSupported)) and ignores
//! unknown fields. Values that do not fit together are refused
//! ([`ErrorKind::ManifestCorrupted`](crate::ErrorKind::ManifestCorrupted)). Paths are relative to the table's folder,
//! columns are named by id.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::limits::ListingLimits;
pub use super::position_bitmap::PositionBitmap;
pub(super) use crate::error::corrupted_error;
use crate::files::TableColumns;
pub use crate::files::{Base64, DataFile, EncodedSchema, FileChecksum, FileShare};
pub use crate::versions::{
    CommitId, CommitOperation, Pointer, TimestampMicros, Transaction, TransactionList,
};
use crate::versions::{TransactionLimits, Versioned, header_by_fields};

/// The format version that is written; older ones are read. The first commit on a table of an older format
/// writes this one.
pub const FORMAT: u32 = 2;

/// One snapshot of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableManifest {
    /// The format of this object.
    pub format: u32,
    /// The number of the version, from 1.
    pub version: u64,
    /// The version that it was created from; None for version 1.
    pub previous: Option<u64>,
    /// The commit that created it.
    pub commit_id: CommitId,
    /// The time of the commit, later than that of any version before.
    pub created_at: TimestampMicros,
    /// What the commit did.
    pub operation: CommitOperation,
    /// The columns by name and type, for people and other readers.
    pub schema: TableSchema,
    /// The exact Arrow schema: an IPC schema message.
    pub arrow_schema: EncodedSchema,
    /// The ids of the columns that identify a row.
    #[serde(default)]
    pub key: Vec<u32>,
    /// The ids of the columns that files are sorted by.
    #[serde(default)]
    pub sort_by: Vec<u32>,
    /// The lists of the older files, oldest first.
    #[serde(default)]
    pub segments: Vec<Segment>,
    /// The newest files, which no segment lists.
    pub data_files: Vec<DataFile>,
    /// The tombstone files with the deleted rows of data files.
    pub tombstones: Vec<Tombstones>,
    /// Versions before this one have been vacuumed, except tagged ones.
    pub oldest_version: u64,
    /// Writers that started before this version must start again: their files may have been removed.
    pub gc_floor: u64,
    /// The last version that restored an older one: a change planned before it was planned on other rows.
    #[serde(default)]
    pub restored_at: Option<u64>,
    /// The last version that restored older columns: files written before it may not fit them.
    #[serde(default)]
    pub columns_restored_at: Option<u64>,
    /// The last version that added rows.
    #[serde(default)]
    pub added_at: Option<u64>,
    /// The commits of the versions before this one, newest first, at most 64.
    #[serde(default)]
    pub recent_commits: Vec<CommitId>,
    /// The newest commits with an idempotency key, by key.
    #[serde(default)]
    pub transactions: BTreeMap<String, Transaction>,
    /// The lists of the older ones, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older_transactions: Vec<TransactionList>,
    /// The versions that vacuum keeps, by tag.
    #[serde(default)]
    pub tags: BTreeMap<String, u64>,
    /// The formats to which every commit is exported: "delta", "iceberg", or others that a newer writer knows.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub exports: BTreeSet<String>,
    /// The files of which a task of a scan reads a share only, by path. No stored manifest has any.
    #[serde(skip)]
    pub shares: BTreeMap<String, FileShare>,
}

/// The columns of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSchema {
    /// The columns in the order of the schema.
    pub columns: Vec<ColumnSchema>,
    /// The highest column id that was ever assigned.
    pub last_id: u32,
    /// The stored names of columns that were dropped, by id: no other column gets one of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retired: BTreeMap<u32, String>,
}

/// One column of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSchema {
    /// The id, which stays the same when the column is renamed and is never reused.
    pub id: u32,
    /// The current name.
    pub name: String,
    /// The Arrow type, as text.
    #[serde(rename = "type")]
    pub data_type: String,
    /// The name in data files, if it is another: it stays the same when the column is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
    /// The ids of nested fields (of structs, of elements, of keys and values), each before those within it.
    #[serde(default, rename = "ids", skip_serializing_if = "Vec::is_empty")]
    pub nested_ids: Vec<u32>,
    /// The types that it had before it was widened, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub widened: Vec<Widened>,
}

/// A type that a column had before it was widened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Widened {
    /// The version that widened it: data files whose writers began before have the narrower type.
    pub version: u64,
    /// The narrower Arrow type, as text.
    pub from: String,
}

/// A segment: a list of data files in an object of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// The path relative to the table.
    pub path: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The number of files that it lists, removed ones included.
    pub data_files: u32,
    /// The number of rows in these files, deleted ones included.
    pub total_rows: u64,
    /// The smallest values of all files by column id; columns without exact bounds are missing.
    #[serde(default)]
    pub min: BTreeMap<u32, Value>,
    /// The largest values of all files by column id.
    #[serde(default)]
    pub max: BTreeMap<u32, Value>,
    /// The numbers of nulls by column id.
    #[serde(default)]
    pub null_counts: BTreeMap<u32, u64>,
    /// The positions in the list of files that have left the table since.
    #[serde(default, skip_serializing_if = "PositionBitmap::is_empty")]
    pub removed: PositionBitmap,
}

/// A tombstone file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tombstones {
    /// The path relative to the table.
    pub path: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The paths of the data files of which it deletes rows, of those that the manifest lists.
    pub files: Vec<String>,
    /// The positions of those that segments list, by the path of the segment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub positions: BTreeMap<String, PositionBitmap>,
    /// The number of rows that it deletes; None if they were not counted.
    #[serde(default)]
    pub deleted_rows: Option<u64>,
}

impl Versioned for TableManifest {
    type Limits = ListingLimits;

    const NOUN: &'static str = "table";
    const FORMAT: u32 = FORMAT;

    fn find_inconsistency(&self) -> Option<String> {
        let changed_at = [self.restored_at, self.columns_restored_at, self.added_at];
        let mut changes = changed_at.iter().flatten();
        let are_valid = changes.all(|at| (1..=self.version).contains(at));
        if !are_valid || !self.header().has_valid_versions() {
            return Some("its version numbers do not fit together".to_owned());
        }
        let removes_too_many =
            |s: &&Segment| s.removed.0.max().is_some_and(|last| last >= s.data_files);
        if let Some(segment) = self.segments.iter().find(removes_too_many) {
            return Some(format!(
                "it removes files of the segment {:?} beyond the end of its list",
                segment.path
            ));
        }
        let segments = self.segments.iter();
        let lengths: HashMap<&str, u32> = segments.map(|s| (&*s.path, s.data_files)).collect();
        for (segment, positions) in self.tombstones.iter().flat_map(|t| &t.positions) {
            let length = lengths.get(segment.as_str()).copied().unwrap_or_default();
            if positions.0.max().is_some_and(|last| last >= length) {
                return Some(format!(
                    "its tombstones are about files that the segment {segment:?} does not list"
                ));
            }
        }
        self.find_bad_reference()
    }

    header_by_fields!();

    fn transaction_limits(limits: &ListingLimits) -> TransactionLimits {
        limits.transactions()
    }

    fn upgrade(&mut self) {
        TableColumns::complete_nested_ids(self);
    }

    /// The files of its segments are not among them.
    fn references(&self) -> impl Iterator<Item = &str> {
        self.sized_references().map(|(path, _)| path)
    }
}

impl TableManifest {
    /// The number of rows in all data files: deleted rows count, and so do files that have left their segments.
    pub fn stored_rows(&self) -> u64 {
        let segments = self.segments.iter().map(|segment| segment.total_rows);
        let files = self.data_files.iter().map(|file| file.total_rows);
        segments.chain(files).fold(0, u64::saturating_add)
    }

    /// The commit that created a version, if the retained commit history reaches back to it.
    pub fn commit_id_of(&self, version: u64) -> Option<&CommitId> {
        self.header().commit_id_of(version)
    }

    /// Whether a version can still be read: it has not been vacuumed, or it is tagged.
    pub fn retains(&self, version: u64) -> bool {
        self.header().retains(version)
    }

    /// The paths and sizes in bytes of all objects that the manifest itself names.
    pub(super) fn sized_references(&self) -> impl Iterator<Item = (&str, u64)> {
        let data = self.data_files.iter().map(|f| (&*f.path, f.size_bytes));
        let segments = self.segments.iter().map(|s| (&*s.path, s.size_bytes));
        let tombstones = self.tombstones.iter().map(|t| (&*t.path, t.size_bytes));
        let transactions = self.older_transactions.iter();
        data.chain(segments)
            .chain(tombstones)
            .chain(transactions.map(|list| (&*list.path, list.size_bytes)))
    }
}
