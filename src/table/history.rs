//! The versions of a table: the history of commits, and the version that was the newest at a time.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::format::{TableManifest, TimestampMicros};
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};

/// The maximum number of manifests that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// Returns the manifests of the last `limit` versions up to `newest`, newest first, without those that have
/// been vacuumed.
pub async fn history(
    table: &Table,
    newest: &Arc<TableManifest>,
    limit: u64,
) -> Result<Vec<Arc<TableManifest>>> {
    let oldest = newest
        .version
        .saturating_sub(limit)
        .max(newest.oldest_version - 1);
    let versions = (oldest + 1..newest.version).rev();
    let manifests: Vec<Option<TableManifest>> = stream::iter(versions)
        .map(|version| table.read_manifest(version))
        .buffered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let first = (limit > 0).then(|| Arc::clone(newest));
    // A vacuum may remove manifests while they are read: the history ends at the first missing one.
    let older = manifests
        .into_iter()
        .map_while(|manifest| manifest.map(Arc::new));
    Ok(first.into_iter().chain(older).collect())
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
