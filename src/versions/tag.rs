//! The change that sets or removes a tag: a name of a version, which vacuum then keeps.

use serde_json::json;

use super::change::Change;
use super::commit_id::CommitId;
use super::manifest::{CommitOperation, Versioned};
use crate::error::{Error, ErrorKind, Result};

const MAX_NAME_BYTES: usize = 255;

/// Tags a version, or removes a tag.
#[derive(Debug, Clone)]
pub struct Tag {
    /// The name of the tag: 1 to 255 bytes without control characters.
    pub name: String,
    /// The version to tag; None removes the tag.
    pub version: Option<u64>,
    /// The commit of the version, if the caller has read it: where all was removed and created again, another one has
    /// its number.
    pub commit_id: Option<CommitId>,
}

impl<M: Versioned> Change<M> for Tag {
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)> {
        let name = &self.name;
        let mut next = base.clone();
        let Some(version) = self.version else {
            if next.header_mut().tags.remove(name).is_none() {
                let message = format!("there is no tag {name:?}");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            return Ok((next, CommitOperation::new("untag", [("tag", json!(name))])));
        };
        if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
            let message = format!(
                "a tag must have 1 to {MAX_NAME_BYTES} bytes and no control characters, not {name:?}"
            );
            return Err(Error::invalid(message));
        }
        let base = base.header();
        if let Some(tagged) = base.tags.get(name).filter(|tagged| **tagged != version) {
            let message =
                format!("tag {name:?} already exists for version {tagged}; delete it first");
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        if !base.retains(version) {
            let message = format!(
                "version {version} is not available; versions {} to {} are",
                base.oldest_version, base.version
            );
            return Err(Error::new(ErrorKind::VersionExpired, message));
        }
        let listed = base.commit_id_of(version);
        if listed.is_some_and(|id| self.commit_id.as_ref().is_some_and(|read| read != id)) {
            let message = format!("version {version} was removed; another one has its number now");
            return Err(Error::new(ErrorKind::VersionExpired, message));
        }
        next.header_mut().tags.insert(name.clone(), version);
        let details = [("tag", json!(name)), ("tagged_version", json!(version))];
        Ok((next, CommitOperation::new("tag", details)))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}
