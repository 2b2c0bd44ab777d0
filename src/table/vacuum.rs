//! Removes what no retained version references.
//!
//! A vacuum commits first: a manifest that says which versions are kept (`oldest_version`) and that
//! writers which began before `gc_floor` have to begin again. After that commit nobody can add a
//! reference to an object that began before the floor, other than by keeping one that a retained
//! version has. So what began before the floor and is referenced by no retained version is garbage
//! for ever, whatever any clock says.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, PutMode};
use serde_json::json;

use super::commit::{Change, commit};
use super::format::{Manifest, Operation, Segment};
use super::listing::load;
use super::{Table, names};
use crate::error::Result;
use crate::store::cas::probe_path;

/// Idempotency keys are kept for so many versions at least, whatever is vacuumed.
const KEYS_KEPT_VERSIONS: u64 = 10_000;
/// Manifests read at once.
const CONCURRENT_READS: usize = 16;

/// What a vacuum removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vacuumed {
    /// The oldest version there is now.
    pub oldest_version: u64,
    /// Data and tombstone files, relative to the table.
    pub files: Vec<String>,
    /// Manifests, relative to the table.
    pub manifests: Vec<String>,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// Removes versions that were replaced more than `retention` ago, and what only they need. A dry
/// run removes nothing and commits nothing; it too asks the store for its time, with an object that
/// is there for a moment.
pub async fn vacuum(
    table: &Table,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
) -> Result<Vacuumed> {
    let horizon = horizon(table, retention).await?;
    let newest = table.newest().await?.manifest;
    let change = Floor {
        oldest: oldest_kept(&list(table, names::MANIFESTS).await?, &newest, horizon),
    };
    let manifest = if dry_run {
        Arc::new(change.apply(&newest)?.0)
    } else {
        commit(table, &change, timeout).await?.snapshot.manifest
    };
    let found = garbage(table, &manifest, horizon).await?;
    if !dry_run {
        let all = found.files.iter().chain(&found.manifests);
        let paths: Vec<String> = all.map(|relative| table.path(relative)).collect();
        table.store.delete_all(&paths).await?;
    }
    Ok(found)
}

/// The commit of a vacuum.
struct Floor {
    oldest: u64,
}

impl Change for Floor {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        let mut next = base.clone();
        next.oldest_version = base.oldest_version.max(self.oldest);
        next.gc_floor = base.gc_floor.max(self.oldest);
        let keys_since = base.version.saturating_sub(KEYS_KEPT_VERSIONS);
        next.transactions
            .retain(|_, t| t.version >= next.oldest_version.min(keys_since));
        let details = [("oldest_version", json!(next.oldest_version))];
        Ok((next, Operation::new("vacuum", details)))
    }

    fn began_at(&self) -> Option<u64> {
        None
    }
}

/// The store's time, `retention` ago.
async fn horizon(table: &Table, retention: Duration) -> Result<DateTime<Utc>> {
    let store = &table.store;
    let path = probe_path(store, table.root());
    store.put(&path, Bytes::new(), PutMode::Overwrite).await?;
    let now = store.head(&path).await.map(|meta| meta.last_modified);
    if let Err(e) = store.delete(&path).await {
        log::warn!("{path} could not be removed: {e}");
    }
    let retention = TimeDelta::from_std(retention).unwrap_or(TimeDelta::MAX);
    Ok(now?
        .checked_sub_signed(retention)
        .unwrap_or(DateTime::<Utc>::MIN_UTC))
}

/// The objects of a folder of the table, by their paths relative to it.
pub(super) async fn list(table: &Table, folder: &str) -> Result<BTreeMap<String, ObjectMeta>> {
    let prefix = table.path("");
    let all = table.store.list(&table.path(folder)).await?;
    let named = all.into_iter().filter_map(|meta| {
        let relative = meta.location.as_ref().strip_prefix(&prefix)?;
        Some((relative.trim_start_matches('/').to_owned(), meta))
    });
    Ok(named.collect())
}

/// The version that was the newest at `horizon`, by the store's clock.
fn oldest_kept(
    manifests: &BTreeMap<String, ObjectMeta>,
    newest: &Manifest,
    horizon: DateTime<Utc>,
) -> u64 {
    let there = manifests.iter().filter(|(_, m)| m.last_modified <= horizon);
    let versions = there.filter_map(|(path, _)| names::manifest_version(path));
    let known = newest.oldest_version..=newest.version;
    let kept = versions.filter(|v| known.contains(v)).max();
    kept.unwrap_or(newest.oldest_version)
}

/// What began before the floor and no retained version references.
async fn garbage(table: &Table, manifest: &Manifest, horizon: DateTime<Utc>) -> Result<Vacuumed> {
    let mut found = Vacuumed {
        oldest_version: manifest.oldest_version,
        files: Vec::new(),
        manifests: Vec::new(),
        bytes: 0,
    };
    let manifests = list(table, names::MANIFESTS).await?;
    let Some(needed) = referenced(table, manifest, &manifests).await? else {
        log::info!("another vacuum of {:?} has gone further", table.root());
        return Ok(found);
    };
    let mut objects = manifests;
    for folder in names::FOLDERS {
        objects.extend(list(table, folder).await?);
    }
    for (relative, meta) in objects {
        let is_old = meta.last_modified <= horizon;
        if let Some(base) = names::base_of(&relative) {
            if base < manifest.gc_floor && is_old && !needed.contains(&relative) {
                found.files.push(relative);
                found.bytes = found.bytes.saturating_add(meta.size);
            }
        } else if let Some(version) = names::manifest_version(&relative)
            && version < manifest.version
            && !manifest.keeps(version)
        {
            found.manifests.push(relative);
            found.bytes = found.bytes.saturating_add(meta.size);
        }
    }
    Ok(found)
}

/// Every object that a retained version needs; None where one of these has gone meanwhile, so that
/// what it needed is not known: that is for the vacuum that removed it.
pub(super) async fn referenced(
    table: &Table,
    manifest: &Manifest,
    manifests: &BTreeMap<String, ObjectMeta>,
) -> Result<Option<HashSet<String>>> {
    let there = manifests.keys().filter_map(|p| names::manifest_version(p));
    // Later ones than ours keep what ours has, or what began above the floor.
    let mut kept: Vec<u64> = there
        .filter(|v| *v < manifest.version && manifest.keeps(*v))
        .collect();
    kept.sort_unstable();
    let tagged = manifest.tags.values();
    let tagged: HashSet<u64> = tagged
        .copied()
        .filter(|v| *v < manifest.oldest_version)
        .collect();
    if kept.len() as u64 != manifest.version - manifest.oldest_version + tagged.len() as u64 {
        return Ok(None);
    }
    let older: Vec<Option<Manifest>> = stream::iter(kept)
        .map(|version| table.manifest(version))
        .buffered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let Some(older) = older.into_iter().collect::<Option<Vec<Manifest>>>() else {
        return Ok(None);
    };
    let all = || older.iter().chain([manifest]);
    let mut needed: HashSet<String> = all()
        .flat_map(Manifest::references)
        .map(str::to_owned)
        .collect();
    let listed = listed(table, all()).await;
    // A version may have gone and a late manifest taken its place.
    let now = table.newest().await?.manifest;
    if now.oldest_version > manifest.oldest_version {
        return Ok(None);
    }
    needed.extend(listed?);
    Ok(Some(needed))
}

/// The files that segments of some snapshots list.
async fn listed(table: &Table, manifests: impl Iterator<Item = &Manifest>) -> Result<Vec<String>> {
    let mut segments: HashMap<&str, Segment> = HashMap::new();
    for segment in manifests.flat_map(|m| &m.segments) {
        match segments.get_mut(segment.path.as_str()) {
            // What one of them has is needed.
            Some(known) => known.removed.0 &= &segment.removed.0,
            None => {
                segments.insert(&segment.path, segment.clone());
            }
        }
    }
    let loads = segments.values().map(|segment| load(table, segment));
    let loaded: Vec<_> = stream::iter(loads)
        .buffer_unordered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let files = loaded.into_iter().flatten();
    Ok(files.map(|(_, file)| file.path).collect())
}
