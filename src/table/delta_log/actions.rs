//! The actions of a Delta log, as JSON has them: one a line, the object's only member names the action.
//!
//! Source: the transaction log protocol of Delta Lake (`PROTOCOL.md` of delta-io/delta), "Actions".

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::versions::{CommitId, TimestampMicros};

/// A line of the log.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Action {
    CommitInfo(Box<CommitInfo>),
    Protocol(Protocol),
    MetaData(DeltaMetadata),
    Remove(Remove),
    Add(Add),
}

/// What a commit did.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommitInfo {
    /// In milliseconds, as the next.
    pub(super) timestamp: i64,
    pub(super) in_commit_timestamp: i64,
    pub(super) operation: String,
    pub(super) operation_parameters: BTreeMap<String, String>,
    pub(super) engine_info: String,
    /// What the next export needs to know; no other writer has it.
    #[serde(default)]
    pub(super) pds: Option<DeltaExportState>,
}

/// What an export tells the next one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct DeltaExportState {
    pub(super) version: u64,
    pub(super) commit_id: CommitId,
    /// The features of the protocol, which only grow.
    pub(super) features: Vec<String>,
    /// The ids of columns that are left out.
    pub(super) left_out: Vec<u32>,
    /// The last id that a column or a field had.
    pub(super) last_id: u32,
    pub(super) table_id: String,
    pub(super) created_at: TimestampMicros,
    /// The first hexadecimal digits of the hash of the metadata.
    pub(super) metadata_hash: String,
    /// A random id of the log: files of one that is written anew differ from those it replaces, also in their ETags.
    #[serde(default)]
    pub(super) epoch: String,
}

/// What a reader and a writer have to know.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Protocol {
    pub(super) min_reader_version: i32,
    pub(super) min_writer_version: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reader_features: Option<Vec<String>>,
    pub(super) writer_features: Vec<String>,
}

/// The columns and the properties of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeltaMetadata {
    pub(super) id: String,
    pub(super) format: Format,
    pub(super) schema_string: String,
    pub(super) partition_columns: Vec<String>,
    pub(super) configuration: BTreeMap<String, String>,
    /// In milliseconds.
    pub(super) created_time: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Format {
    pub(super) provider: String,
    pub(super) options: BTreeMap<String, String>,
}

/// A data file that is in the table from this version on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Add {
    pub(super) path: String,
    pub(super) partition_values: BTreeMap<String, String>,
    pub(super) size: u64,
    /// In milliseconds.
    pub(super) modification_time: i64,
    pub(super) data_change: bool,
    pub(super) stats: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deletion_vector: Option<DeletionVector>,
}

/// A data file, with these deleted rows, that is in the table no more.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remove {
    pub(super) path: String,
    /// In milliseconds.
    pub(super) deletion_timestamp: i64,
    pub(super) data_change: bool,
    pub(super) extended_file_metadata: bool,
    pub(super) partition_values: BTreeMap<String, String>,
    pub(super) size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) deletion_vector: Option<DeletionVector>,
}

/// Where the deleted rows of a file are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DeletionVector {
    /// `u` for a file with a UUID as its name, `i` for rows that are in the log itself.
    pub(super) storage_type: &'static str,
    pub(super) path_or_inline_dv: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) offset: Option<i32>,
    pub(super) size_in_bytes: i32,
    /// The number of deleted rows.
    pub(super) cardinality: u64,
}

/// Encodes a file of the log.
pub(super) fn to_lines(actions: &[Action]) -> Bytes {
    let mut bytes = Vec::new();
    for action in actions {
        // Serializing plain data into memory cannot fail.
        let _ = serde_json::to_writer(&mut bytes, action);
        bytes.push(b'\n');
    }
    bytes.into()
}

/// The state that an export wrote into a file of the log; `None` if the file is of another writer.
pub(super) fn read_commit_state(bytes: &[u8]) -> Option<DeltaExportState> {
    let first = bytes.split(|byte| *byte == b'\n').next()?;
    let mut line: BTreeMap<String, Value> = serde_json::from_slice(first).ok()?;
    let info: CommitInfo = serde_json::from_value(line.remove("commitInfo")?).ok()?;
    info.pds
}
