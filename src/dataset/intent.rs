//! `_publish.json`: what is being done to a dataset's folder, by whom, and how far it has come.
//!
//! The intent excludes a second publisher and is the redo log. It is created only where there is none
//! and replaced only where the version that was read is still there ([`super::lease`]). Every writing
//! of it has a new `nonce`, so that equal bytes, and with them equal ETags, never recur: a request that
//! names a version of an intent cannot hit another one, however late it arrives.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{INTENT, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::TEMP_PREFIX;
use crate::store::path;
use crate::store::process_id::ProcessId;
use crate::store::stage::StagedWrite;

/// The format that is written. Format 1 had no phases; what is left in it cannot be finished.
const FORMAT: u32 = 2;

/// How far a publish has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// Others are excluded; where there is a marker, nothing has been changed.
    Claim,
    /// The dataset that `base` describes is being replaced or deleted: its marker goes.
    Active,
    /// One file replaces one file; the marker stays.
    Single,
}

/// What is being done to the folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub(super) enum IntentOperation {
    /// Parts, then manifest, then marker.
    Write {
        overwrite: bool,
        manifest: String,
        parts: Vec<IntendedPart>,
    },
    /// Everything goes.
    Delete,
    /// The folder is looked after; an intent of this kind is dropped by whoever finds it.
    Heal,
}

/// A part by its final name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct IntendedPart {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) task: u64,
    pub(super) sequence: u64,
    pub(super) staged: StagedWrite,
}

/// What was in the folder when a publish became active: versions by ETag.
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
    /// The write's identity, in hexadecimal.
    pub(super) id: String,
    /// New in every writing of the intent.
    pub(super) nonce: String,
    pub(super) owner: ProcessId,
    pub(super) phase: Phase,
    #[serde(default)]
    pub(super) base: BaseVersions,
    #[serde(flatten)]
    pub(super) operation: IntentOperation,
}

impl Intent {
    /// A claim of this process.
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

    /// The bytes of a new writing.
    pub(super) fn to_bytes(&self, nonce: u128) -> (String, Bytes) {
        let nonce = format!("{nonce:032x}");
        let intent = Self {
            nonce: nonce.clone(),
            ..self.clone()
        };
        // Plain data into memory cannot fail.
        (
            nonce,
            serde_json::to_vec(&intent).unwrap_or_default().into(),
        )
    }

    /// Reads an intent; it may name only files of its own folder. [`ErrorKind::Locked`] where a newer
    /// version of pds wrote it, [`ErrorKind::DatasetIncomplete`] where nobody can finish it.
    pub(super) fn parse(key: &str, bytes: &[u8]) -> Result<Self> {
        let unusable_error = |reason: &str| {
            incomplete_error(
                key,
                &format!("its {INTENT} {reason}; write it again with overwrite=True, or delete it"),
            )
        };
        let header: Header = serde_json::from_slice(bytes)
            .map_err(|e| unusable_error("cannot be read").with_source(e))?;
        if header.format > FORMAT {
            let message = format!(
                "{INTENT} has format {}, this version of pds knows {FORMAT}; upgrade pds",
                header.format
            );
            return Err(Error::new(ErrorKind::Locked, message).with_path(key));
        }
        if header.format < FORMAT {
            return Err(unusable_error("was left behind by an older version of pds"));
        }
        let intent: Self = serde_json::from_slice(bytes)
            .map_err(|e| unusable_error("cannot be read").with_source(e))?;
        if let IntentOperation::Write { parts, .. } = &intent.operation
            && parts.iter().any(|part| !part.is_inside(key))
        {
            return Err(unusable_error("names files outside the dataset"));
        }
        Ok(intent)
    }
}

/// What every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl IntendedPart {
    /// Whether it names files of the folder `key` only, none of which is the dataset's own.
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

    /// The name its upload was begun for, where that is not its own.
    pub(super) fn moved_upload_target(&self, key: &str) -> Option<&str> {
        match &self.staged {
            StagedWrite::Multipart { target, .. } if *target != path::join(key, &self.name) => {
                Some(target)
            }
            _ => None,
        }
    }

    /// Whether its bytes are in the intent itself.
    pub(super) fn is_inline(&self) -> bool {
        matches!(self.staged, StagedWrite::Inline { .. })
    }
}

fn is_file_name(name: &str) -> bool {
    !name.contains('/') && path::parse(name).is_ok()
}
