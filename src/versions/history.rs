//! The versions of a folder: the history of commits, and the version that was the newest at a time.
//!
//! Manifests name the commit before them, so a history is read backwards and checked link by link: a late manifest in
//! the slot of a vacuumed one is no part of it. It ends where a vacuum has removed the manifests, also while they are
//! read; one that is missing for no such reason is [`ErrorKind::ManifestCorrupted`].

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::commit_id::{CommitId, TimestampMicros};
use super::folder::Folder;
use super::manifest::{CommitOperation, Versioned, to_json};
use super::names;
use crate::error::{Error, ErrorKind, Result, corrupted_error};

/// The maximum number of manifests that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// A version in the history: what its manifest says of its commit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryEntry {
    /// The number of the version.
    pub version: u64,
    /// The time of the commit.
    pub created_at: TimestampMicros,
    /// The id of the commit.
    pub commit_id: CommitId,
    /// What the commit did.
    pub operation: CommitOperation,
}

impl HistoryEntry {
    fn from_manifest<M: Versioned>(manifest: &M) -> Self {
        let header = manifest.header();
        Self {
            version: header.version,
            created_at: header.created_at,
            commit_id: header.commit_id.clone(),
            operation: header.operation.clone(),
        }
    }

    /// Encodes the entry as JSON, with the names of the manifest.
    pub fn to_bytes(&self) -> Bytes {
        to_json(self)
    }
}

/// Returns the commits of the last `limit` versions up to `newest`, newest first, without those of versions
/// that have been vacuumed. Fails with [`ErrorKind::ManifestCorrupted`] if a manifest is missing that no vacuum removed.
pub async fn history<M: Versioned>(
    folder: &Folder<M>,
    newest: &M,
    limit: u64,
) -> Result<Vec<HistoryEntry>> {
    map_versions(folder, newest, limit, HistoryEntry::from_manifest).await
}

/// Reads the manifests of the versions of [`history()`], and returns what `map` makes of each. A manifest is
/// dropped as soon as it is mapped: there may be many.
pub(crate) async fn map_versions<M: Versioned, T: Send>(
    folder: &Folder<M>,
    newest: &M,
    limit: u64,
    map: impl Fn(&M) -> T + Send + Sync,
) -> Result<Vec<T>> {
    let header = newest.header();
    let oldest = header
        .version
        .saturating_sub(limit)
        .max(header.oldest_version - 1);
    let mut versions: Vec<T> = (limit > 0).then(|| map(newest)).into_iter().collect();
    let map = &map;
    let mut reads = stream::iter((oldest + 1..header.version).rev())
        .map(|version| async move {
            let manifest = folder.read_manifest(version).await?;
            Ok::<_, Error>(manifest.map(|m| (Link::of(&m), map(&m))))
        })
        .buffered(CONCURRENT_READS);
    let mut next_version = header.version;
    let mut next = Link::of(newest);
    while let Some(read) = reads.try_next().await? {
        next_version -= 1;
        match read {
            Some((link, version)) if next.previous.is_none_or(|id| id == link.commit_id) => {
                versions.push(version);
                next = link;
            }
            // The history ends where a vacuum has removed manifests while they were read. A late manifest may have taken
            // the slot of one.
            _ => {
                check_vacuumed(folder, next_version).await?;
                break;
            }
        }
    }
    drop(reads);
    Ok(versions)
}

/// The commit of a version and that of the version before it, if the manifest names it.
struct Link {
    commit_id: CommitId,
    previous: Option<CommitId>,
}

impl Link {
    fn of<M: Versioned>(manifest: &M) -> Self {
        let header = manifest.header();
        Self {
            commit_id: header.commit_id.clone(),
            previous: header.recent_commits.first().cloned(),
        }
    }
}

/// Fails with [`ErrorKind::ManifestCorrupted`] if the manifest of a version, which is missing or no commit, was removed by
/// no vacuum.
async fn check_vacuumed<M: Versioned>(folder: &Folder<M>, version: u64) -> Result<()> {
    let newest = folder.newest().await?.manifest;
    if version < newest.header().oldest_version {
        return Ok(());
    }
    let name = names::manifest(version);
    let error = corrupted_error(
        &name,
        "it is missing or of another commit, and no vacuum has removed it",
    );
    Err(error.with_path(folder.path(&name)))
}

/// Returns the manifest of the version that was the newest at `time`, of those up to `newest`. Fails with
/// [`ErrorKind::InvalidInput`] if there was no version yet, and with
/// [`ErrorKind::VersionExpired`] if the versions of that time have been vacuumed.
pub async fn at_time<M: Versioned>(
    folder: &Folder<M>,
    newest: &Arc<M>,
    time: TimestampMicros,
) -> Result<Arc<M>> {
    let header = newest.header();
    if header.created_at <= time {
        return Ok(Arc::clone(newest));
    }
    // A binary search: the times of commits increase with their versions.
    let (mut low, mut high) = (header.oldest_version, header.version);
    let mut candidate = None;
    while low < high {
        let middle = low + (high - low) / 2;
        let Some(manifest) = folder.read_manifest(middle).await? else {
            check_vacuumed(folder, middle).await?;
            return Err(vacuumed_meanwhile_error(folder, middle));
        };
        if manifest.header().created_at <= time {
            low = middle + 1;
            candidate = Some(Arc::new(manifest));
        } else {
            high = middle;
        }
    }
    if let Some(manifest) = candidate {
        let version = manifest.header().version;
        // It may have been vacuumed meanwhile, and a late manifest may have taken its slot.
        let is_retained = folder.newest().await?.manifest.header().retains(version);
        return is_retained
            .then_some(manifest)
            .ok_or_else(|| vacuumed_meanwhile_error(folder, version));
    }
    Err({
        let (kind, reason) = if header.oldest_version == 1 {
            (
                ErrorKind::InvalidInput,
                format!("the {} did not exist at that time", M::NOUN),
            )
        } else {
            (
                ErrorKind::VersionExpired,
                "the versions of that time have been vacuumed".to_owned(),
            )
        };
        let message = format!(
            "{reason}; the oldest available version is {}",
            header.oldest_version
        );
        Error::new(kind, message).with_path(folder.root())
    })
}

fn vacuumed_meanwhile_error<M: Versioned>(folder: &Folder<M>, version: u64) -> Error {
    let message = format!(
        "{} was vacuumed while it was searched for a version by time; try again",
        names::manifest(version)
    );
    Error::new(ErrorKind::VersionExpired, message).with_path(folder.root())
}
