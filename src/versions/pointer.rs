//! The pointer: the one object that is replaced, and names the newest version.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::commit_id::CommitId;
use super::manifest::{MAX_VERSION, Versioned, from_json, to_json};
use super::names;
use crate::error::{Result, corrupted_error};

/// The maximum size of a pointer.
pub(super) const MAX_POINTER_BYTES: u64 = 64 << 10;

/// `_latest_manifest`: which version is the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The format of this object.
    pub format: u32,
    /// The newest version.
    pub version: u64,
    /// The commit that created that version.
    pub commit_id: CommitId,
    /// The path of that version's manifest, relative to the folder.
    pub manifest: String,
    /// Versions before this one have been vacuumed.
    pub oldest_version: u64,
}

impl Pointer {
    /// The pointer to a manifest. Every writer creates the same bytes.
    pub fn for_manifest<M: Versioned>(manifest: &M) -> Self {
        let header = manifest.header();
        Self {
            format: header.format,
            version: header.version,
            commit_id: header.commit_id.clone(),
            manifest: names::manifest(header.version),
            oldest_version: header.oldest_version,
        }
    }

    /// Encodes the pointer as JSON.
    pub fn to_bytes(&self) -> Bytes {
        to_json(self)
    }

    /// Parses a pointer of a format up to `newest_format`, and checks that its fields fit together.
    pub fn parse(bytes: &[u8], newest_format: u32) -> Result<Self> {
        let pointer: Self = from_json(bytes, names::POINTER, newest_format, None)?;
        let is_consistent = (1..=MAX_VERSION).contains(&pointer.version)
            && (1..=pointer.version).contains(&pointer.oldest_version)
            && pointer.manifest == names::manifest(pointer.version);
        if !is_consistent {
            let reason = "its version, manifest and oldest_version do not fit together";
            return Err(corrupted_error(names::POINTER, reason));
        }
        Ok(pointer)
    }
}
