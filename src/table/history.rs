//! The versions of a table: the history of commits, and the version that was the newest at a time.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::format::{CommitId, CommitOperation, TableManifest, TimestampMicros, to_json};
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};

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
    fn from_manifest(manifest: &TableManifest) -> Self {
        Self {
            version: manifest.version,
            created_at: manifest.created_at,
            commit_id: manifest.commit_id.clone(),
            operation: manifest.operation.clone(),
        }
    }

    /// Encodes the entry as JSON, with the names of the manifest.
    pub fn to_bytes(&self) -> Bytes {
        to_json(self)
    }
}

/// Returns the commits of the last `limit` versions up to `newest`, newest first, without those of versions
/// that have been vacuumed.
pub async fn history(
    table: &Table,
    newest: &TableManifest,
    limit: u64,
) -> Result<Vec<HistoryEntry>> {
    map_versions(table, newest, limit, HistoryEntry::from_manifest).await
}

/// Reads the manifests of the versions of [`history()`], and returns what `map` makes of each. A manifest is
/// dropped as soon as it is mapped: there may be many.
pub(crate) async fn map_versions<T: Send>(
    table: &Table,
    newest: &TableManifest,
    limit: u64,
    map: impl Fn(&TableManifest) -> T + Send + Sync,
) -> Result<Vec<T>> {
    let oldest = newest
        .version
        .saturating_sub(limit)
        .max(newest.oldest_version - 1);
    let mut versions: Vec<T> = (limit > 0).then(|| map(newest)).into_iter().collect();
    let map = &map;
    let mut reads = stream::iter((oldest + 1..newest.version).rev())
        .map(|version| async move {
            let manifest = table.read_manifest(version).await?;
            Ok::<_, Error>(manifest.as_ref().map(map))
        })
        .buffered(CONCURRENT_READS);
    // A vacuum may remove manifests while they are read: the history ends at the first missing one.
    while let Some(Some(version)) = reads.try_next().await? {
        versions.push(version);
    }
    drop(reads);
    Ok(versions)
}

/// Returns the manifest of the version that was the newest at `time`, of those up to `newest`. Fails with
/// [`ErrorKind::InvalidInput`] if the table did not exist at that time, and with
/// [`ErrorKind::VersionExpired`] if the versions of that time have been vacuumed.
pub async fn at_time(
    table: &Table,
    newest: &Arc<TableManifest>,
    time: TimestampMicros,
) -> Result<Arc<TableManifest>> {
    if newest.created_at <= time {
        return Ok(Arc::clone(newest));
    }
    // A binary search: the times of commits increase with their versions.
    let (mut low, mut high) = (newest.oldest_version, newest.version);
    let mut candidate = None;
    while low < high {
        let middle = low + (high - low) / 2;
        let manifest = table.read_manifest(middle).await?.ok_or_else(|| {
            let message = format!(
                "{} was vacuumed while it was searched for a version by time; try again",
                names::manifest(middle)
            );
            Error::new(ErrorKind::VersionExpired, message).with_path(table.root())
        })?;
        if manifest.created_at <= time {
            low = middle + 1;
            candidate = Some(Arc::new(manifest));
        } else {
            high = middle;
        }
    }
    candidate.ok_or_else(|| {
        let (kind, reason) = if newest.oldest_version == 1 {
            (
                ErrorKind::InvalidInput,
                "the table did not exist at that time",
            )
        } else {
            (
                ErrorKind::VersionExpired,
                "the versions of that time have been vacuumed",
            )
        };
        let message = format!(
            "{reason}; the oldest available version is {}",
            newest.oldest_version
        );
        Error::new(kind, message).with_path(table.root())
    })
}
