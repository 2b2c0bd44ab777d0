//! The metadata of the table, a JSON file for each version that is exported.
//!
//! Source: the specification of Iceberg, "Table Metadata and Snapshots".

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::table::format::TableManifest;
use crate::versions::CommitId;

/// The property with the [`IcebergExportState`].
const STATE: &str = "pds.export";
const NAME_MAPPING: &str = "schema.name-mapping.default";
/// The members of a snapshot's summary with its version, and the id of its commit.
const VERSION: &str = "pds.version";
const COMMIT_ID: &str = "pds.commit-id";

/// The number of earlier snapshots that metadata name, beside those with a tag: each export writes them.
pub(super) const MAX_SNAPSHOTS: usize = 128;

/// What an export tells the next one. A commit of another system takes it over, with another version as its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IcebergExportState {
    pub(super) version: u64,
    pub(super) commit_id: CommitId,
    /// The ids of columns that are left out.
    pub(super) left_out: Vec<u32>,
    /// The last id that a column or a field had.
    pub(super) last_id: u32,
    /// Whether the location is that of the store, and not one that was given.
    pub(super) is_default_location: bool,
    /// A random id of the first of these exports: names of another one's objects are others, which a vacuum may remove.
    #[serde(default)]
    pub(super) epoch: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct IcebergMetadata {
    pub(super) format_version: u32,
    pub(super) table_uuid: String,
    pub(super) location: String,
    pub(super) last_sequence_number: u64,
    pub(super) last_updated_ms: i64,
    pub(super) last_column_id: u32,
    pub(super) current_schema_id: i32,
    pub(super) schemas: Vec<Value>,
    pub(super) default_spec_id: i32,
    pub(super) partition_specs: Vec<Value>,
    pub(super) last_partition_id: i32,
    pub(super) default_sort_order_id: i32,
    pub(super) sort_orders: Vec<Value>,
    pub(super) properties: BTreeMap<String, String>,
    pub(super) current_snapshot_id: i64,
    /// Oldest first; the last one is the current one.
    pub(super) snapshots: Vec<IcebergSnapshot>,
    pub(super) snapshot_log: Vec<Value>,
    #[serde(rename = "metadata-log")]
    pub(super) earlier: Vec<Value>,
    pub(super) refs: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct IcebergSnapshot {
    #[serde(rename = "snapshot-id")]
    pub(super) id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) parent_snapshot_id: Option<i64>,
    pub(super) sequence_number: u64,
    pub(super) timestamp_ms: i64,
    /// The absolute path of the list.
    pub(super) manifest_list: String,
    pub(super) summary: BTreeMap<String, String>,
    pub(super) schema_id: i32,
}

impl IcebergSnapshot {
    /// The version of the table; 0 of a snapshot of another writer.
    pub(super) fn version(&self) -> u64 {
        let version = self.summary.get(VERSION);
        version.and_then(|v| v.parse().ok()).unwrap_or_default()
    }
}

impl IcebergMetadata {
    /// Parses metadata; `None` if they are not of an export, or another system has taken them over.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, IcebergExportState)> {
        let metadata: Self = serde_json::from_slice(bytes).ok()?;
        let state: IcebergExportState =
            serde_json::from_str(metadata.properties.get(STATE)?).ok()?;
        let newest = metadata.snapshots.last()?;
        let is_ours = newest.id == metadata.current_snapshot_id
            && newest.id == snapshot_id(&state.commit_id)
            && newest.version() == state.version;
        is_ours.then_some((metadata, state))
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        // Serializing plain data into memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// The default name mapping, by field id.
    pub(super) fn name_mapping(&self) -> BTreeMap<i64, Value> {
        let mapping = self.properties.get(NAME_MAPPING);
        let entries: Vec<Value> = mapping
            .and_then(|mapping| serde_json::from_str(mapping).ok())
            .unwrap_or_default();
        let entries = entries.into_iter();
        entries
            .filter_map(|entry| Some((entry["field-id"].as_i64()?, entry)))
            .collect()
    }
}

/// The id of the snapshot of a commit.
pub(super) fn snapshot_id(commit_id: &CommitId) -> i64 {
    let bits = u128::from_str_radix(commit_id.as_str(), 16).unwrap_or_default();
    i64::try_from(bits >> 65).unwrap_or_default()
}

/// The summary of a snapshot. All are called overwrites: readers of increments, which follow appends, would see none
/// of the rows of ours.
pub(super) fn summary(
    manifest: &TableManifest,
    counts: [(&str, u64); 4],
) -> BTreeMap<String, String> {
    let counts = counts.map(|(name, count)| (name, count.to_string()));
    let texts = [
        ("operation", "overwrite".to_owned()),
        (VERSION, manifest.version.to_string()),
        (COMMIT_ID, manifest.commit_id.as_str().to_owned()),
        ("pds.operation", manifest.operation.name.clone()),
    ];
    let members = counts.into_iter().chain(texts);
    members
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// The properties of the table. Three of them keep Spark from writing and from removing files.
pub(super) fn properties(
    state: &IcebergExportState,
    location: &str,
    mapping: &BTreeMap<i64, Value>,
) -> BTreeMap<String, String> {
    let mut properties = BTreeMap::new();
    let mut set = |name: &str, value: String| properties.insert(name.to_owned(), value);
    set("gc.enabled", "false".to_owned());
    set("write.metadata.path", format!("{location}/metadata"));
    set("write.format.default", "pds-read-only".to_owned());
    // Serializing plain data into memory cannot fail.
    set(STATE, serde_json::to_string(state).unwrap_or_default());
    if !mapping.is_empty() {
        let entries: Vec<&Value> = mapping.values().collect();
        set(NAME_MAPPING, json!(entries).to_string());
    }
    properties
}

/// The references to snapshots: the newest one, and those of tags.
pub(super) fn refs(
    manifest: &TableManifest,
    snapshots: &[IcebergSnapshot],
) -> BTreeMap<String, Value> {
    let reference =
        |snapshot: &IcebergSnapshot, kind: &str| json!({"snapshot-id": snapshot.id, "type": kind});
    let tags = manifest.tags.iter().filter_map(|(tag, version)| {
        let snapshot = snapshots.iter().find(|s| s.version() == *version)?;
        Some((tag.clone(), reference(snapshot, "tag")))
    });
    // A tag of this name has no place.
    let main = snapshots
        .last()
        .map(|newest| ("main".to_owned(), reference(newest, "branch")));
    tags.chain(main).collect()
}
