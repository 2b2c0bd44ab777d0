//! `_publish.json`: which operation is carried out on a dataset's folder, by which process, in which phase.
//!
//! The [`Intent`] excludes a second publisher and is the redo log. It is created only where there is none
//! and replaced only where the version that was read is still there ([`super::lease`]). Every write of it
//! has a new `nonce`, so that equal bytes, and with them equal ETags, never recur: a request that names a
//! version of an intent cannot hit another one, however late it arrives.
//!
//! [`Intent::parse`] refuses other formats than [`FORMAT`] and paths outside the folder. `docs/publish.md` lists the
//! fields.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{INTENT, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::store::path;
use crate::store::process_id::ProcessId;
use crate::store::staged_write::StagedWrite;
use crate::store::temp_name::TEMP_PREFIX;

/// The format that is written and read. Format 1 had no phases; a publish that it left cannot be finished.
const FORMAT: u32 = 2;

/// The phase of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Other publishers are excluded. Where there is a marker, nothing has been changed; a new dataset is published in
    /// this phase.
    Claim,
    /// The dataset that `base` describes is being replaced or deleted; its marker is removed first.
    Active,
    /// One file replaces one file; the marker stays.
    Single,
}

/// The operation on the folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub(super) enum IntentOperation {
    /// Publishes parts, then the manifest, then the marker.
    Write {
        overwrite: bool,
        manifest: String,
        parts: Vec<IntendedPart>,
    },
    /// Deletes everything in the folder.
    Delete,
    /// Repairs or cleans the folder. Abandoned intents of this kind are dropped.
    Heal,
}

/// A staged part and the name that it is published under.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IntendedPart {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) task: u64,
    pub(super) sequence: u64,
    pub(super) staged: StagedWrite,
}

/// The versions of the files that a write or a delete replaces, from the phases active and single on: ETags, or on
/// local files what [`super::folder::FolderState::base_by_content`] gives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BaseVersions {
    /// The manifest that is replaced.
    pub(super) manifest: Option<String>,
    /// The marker.
    pub(super) marker: Option<String>,
    /// Parquet files, by name.
    pub(super) parts: BTreeMap<String, String>,
}

/// The content of `_publish.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Intent {
    format: u32,
    /// The id of the write, in hexadecimal.
    pub(super) id: String,
    /// New in every write of the intent.
    pub(super) nonce: String,
    pub(super) owner: ProcessId,
    pub(super) phase: Phase,
    #[serde(default)]
    pub(super) base: BaseVersions,
    #[serde(flatten)]
    pub(super) operation: IntentOperation,
}

impl Intent {
    /// A claim of this process for `operation`.
    pub(super) fn claim(id: u128, operation: IntentOperation) -> Self {
        Self {
            format: FORMAT,
            id: format!("{id:032x}"),
            nonce: String::new(),
            owner: ProcessId::current(),
            phase: Phase::Claim,
            base: BaseVersions::default(),
            operation,
        }
    }

    /// The intent's JSON with `nonce`, and the nonce as it is written there.
    pub(super) fn to_bytes(&self, nonce: u128) -> (String, Bytes) {
        let nonce = format!("{nonce:032x}");
        let intent = Self {
            nonce: nonce.clone(),
            ..self.clone()
        };
        // Serializing plain data into memory cannot fail.
        (
            nonce,
            serde_json::to_vec(&intent).unwrap_or_default().into(),
        )
    }

    /// Parses the intent of the folder `key`; it may name only files of that folder. [`ErrorKind::Locked`] where a
    /// newer version of pds wrote it, [`ErrorKind::DatasetIncomplete`] where it cannot be carried out.
    pub(super) fn parse(key: &str, bytes: &[u8]) -> Result<Self> {
        let unusable_error = |reason: &str| {
            incomplete_error(
                key,
                &format!(
                    "its {INTENT} {reason}; write the dataset again with overwrite=True, or delete it"
                ),
            )
        };
        let header: Header = serde_json::from_slice(bytes)
            .map_err(|e| unusable_error("cannot be parsed").with_source(e))?;
        if header.format > FORMAT {
            let message = format!(
                "{INTENT} has format {}, but this version of pds reads format {FORMAT}; upgrade pds",
                header.format
            );
            return Err(Error::new(ErrorKind::Locked, message).with_path(key));
        }
        if header.format < FORMAT {
            return Err(unusable_error("was left behind by an older version of pds"));
        }
        let intent: Self = serde_json::from_slice(bytes)
            .map_err(|e| unusable_error("cannot be parsed").with_source(e))?;
        if let IntentOperation::Write { parts, .. } = &intent.operation
            && parts.iter().any(|part| !part.is_inside(key))
        {
            return Err(unusable_error("references a path outside the dataset"));
        }
        Ok(intent)
    }
}

/// The field that every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl IntendedPart {
    /// Whether the part and its staged bytes are files of the folder `key`, and its name is not that of the marker, the
    /// manifest or the intent.
    fn is_inside(&self, key: &str) -> bool {
        let is_in_folder = |file: &str| {
            file.strip_prefix(key)
                .and_then(|f| f.strip_prefix('/'))
                .is_some_and(is_file_name)
        };
        let is_staged_inside = match &self.staged {
            StagedWrite::Inline { .. } => true,
            StagedWrite::Multipart { target, .. } => is_in_folder(target),
            StagedWrite::Object { path } => is_in_folder(path) && path.contains(TEMP_PREFIX),
        };
        is_staged_inside && is_file_name(&self.name) && !super::is_reserved(&self.name)
    }

    /// The object that its upload was begun for, where that is not the part itself.
    pub(super) fn moved_upload_target(&self, key: &str) -> Option<&str> {
        match &self.staged {
            StagedWrite::Multipart { target, .. } if *target != path::join(key, &self.name) => {
                Some(target)
            }
            _ => None,
        }
    }

    /// Whether its bytes are in the intent.
    pub(super) fn is_inline(&self) -> bool {
        matches!(self.staged, StagedWrite::Inline { .. })
    }
}

fn is_file_name(name: &str) -> bool {
    !name.contains('/') && path::parse(name).is_ok()
}
