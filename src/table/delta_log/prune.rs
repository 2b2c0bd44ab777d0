//! Removes the part of a log that no retained version needs, and the deletion vectors that only that part names.
//!
//! A reader of a retained version begins at a checkpoint of that version or of one before it. So everything before the
//! newest checkpoint at or below the oldest retained version can go. A vector that a commit of that part takes away is
//! not of any later version, because its name never comes back (`docs/design/2026-11-27-export-delta.md`).
//!
//! Crash points: vectors go first, then the newest commits, so what is left is a log that ends earlier, of versions
//! whose files are gone anyway. Late requests: a commit of such a version that comes after its removal is created
//! again, below the first checkpoint; readers of retained versions do not look there. The names of commits and
//! checkpoints recur where the table is dropped and created again, so each is removed by the ETag with which it was
//! listed.

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::log_files::{self, Log};
use super::vectors;
use crate::error::{Error, Result};
use crate::table::Table;
use crate::table::format::TableManifest;

/// The number of commits that are read at once, and of objects that are removed in any order.
const CONCURRENT_READS: usize = 16;
const REMOVED_AT_ONCE: usize = 100;

/// Removes what was last written before `cutoff` and no retained version needs. Returns the number of objects.
pub(in crate::table) async fn prune(
    table: &Table,
    newest: &TableManifest,
    cutoff: DateTime<Utc>,
) -> Result<usize> {
    let log = Log::list(table).await?;
    let Some(floor) = floor(&log, newest, cutoff) else {
        return Ok(0);
    };
    let old = log.objects_below(floor);
    // Readers who cannot begin there need what is before it.
    if old.is_empty() || !log_files::is_sound(table, floor).await? {
        return Ok(0);
    }
    table.store().learn_conditions(table.root()).await;
    let commits: Vec<String> = log.commits_below(floor).map(log_files::commit).collect();
    let mut reads = stream::iter(&commits)
        .map(|commit| async move {
            let path = table.path(commit);
            let (bytes, _) = table.store().get(&path, GetOptions::new()).await?;
            Ok::<_, Error>(vectors::removed_objects(&bytes))
        })
        .buffered(CONCURRENT_READS)
        .boxed();
    let mut removed = old.len();
    while let Some(vectors) = reads.try_next().await? {
        let paths: Vec<String> = vectors.iter().map(|path| table.path(path)).collect();
        table.store().delete_all(&paths).await?;
        removed += paths.len();
    }
    drop(reads);
    for paths in old.rchunks(REMOVED_AT_ONCE) {
        let objects = paths.iter().map(|path| {
            let e_tag = log.e_tag(path).map(str::to_owned);
            (table.path(path), e_tag)
        });
        table.store().delete_listed(objects.collect()).await?;
    }
    Ok(removed)
}

/// The checkpoint at which the oldest retained version begins, if it and everything before it are old.
fn floor(log: &Log, newest: &TableManifest, cutoff: DateTime<Utc>) -> Option<u64> {
    // The log has no place for versions before its first checkpoint.
    let tagged = newest.tags.values().copied();
    let served = tagged.filter(|version| log.checkpoint_until(*version).is_some());
    let oldest = served.fold(newest.oldest_version, u64::min);
    let first_young = log.first_since(cutoff).unwrap_or(u64::MAX);
    log.checkpoint_until(oldest.min(first_young.saturating_sub(1)))
}
