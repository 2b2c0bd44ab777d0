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
use super::format::{CommitOperation, Segment, TableManifest};
use super::listing::load;
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::probe_path;

/// Idempotency keys are kept for so many versions at least, whatever is vacuumed.
const KEYS_KEPT_VERSIONS: u64 = 10_000;
/// Manifests read at once.
const CONCURRENT_READS: usize = 16;
/// Manifests that are not there are named up to so many.
const MAX_NAMED: usize = 100;

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
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let mut next = base.clone();
        next.oldest_version = base.oldest_version.max(self.oldest);
        next.gc_floor = base.gc_floor.max(self.oldest);
        let keys_since = base.version.saturating_sub(KEYS_KEPT_VERSIONS);
        next.transactions
            .retain(|_, t| t.version >= next.oldest_version.min(keys_since));
        let details = [("oldest_version", json!(next.oldest_version))];
        Ok((next, CommitOperation::new("vacuum", details)))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

/// The store's time, `retention` ago.
pub(crate) async fn horizon(table: &Table, retention: Duration) -> Result<DateTime<Utc>> {
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
pub(crate) async fn list(table: &Table, folder: &str) -> Result<BTreeMap<String, ObjectMeta>> {
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
    newest: &TableManifest,
    horizon: DateTime<Utc>,
) -> u64 {
    let there = manifests.iter().filter(|(_, m)| m.last_modified <= horizon);
    let versions = there.filter_map(|(path, _)| names::manifest_version(path));
    let known = newest.oldest_version..=newest.version;
    let kept = versions.filter(|v| known.contains(v)).max();
    kept.unwrap_or(newest.oldest_version)
}

/// What began before the floor and no retained version references.
async fn garbage(
    table: &Table,
    manifest: &TableManifest,
    horizon: DateTime<Utc>,
) -> Result<Vacuumed> {
    let mut found = Vacuumed {
        oldest_version: manifest.oldest_version,
        files: Vec::new(),
        manifests: Vec::new(),
        bytes: 0,
    };
    let manifests = list(table, names::MANIFESTS).await?;
    let needed = match referenced(table, manifest, &manifests).await? {
        References::All(needed) => needed,
        References::Overtaken => {
            log::info!("another vacuum of {:?} has gone further", table.root());
            return Ok(found);
        }
        // What it needs is not known, so nothing may go.
        References::Missing(manifests) => return Err(missing(table, manifest, &manifests)),
    };
    let mut objects = manifests;
    for folder in names::FOLDERS {
        objects.extend(list(table, folder).await?);
    }
    for (relative, meta) in objects {
        let is_old = meta.last_modified <= horizon;
        if let Some(base) = names::base_version(&relative) {
            if base < manifest.gc_floor && is_old && !needed.contains(&relative) {
                found.files.push(relative);
                found.bytes = found.bytes.saturating_add(meta.size);
            }
        } else if let Some(version) = names::manifest_version(&relative)
            && version < manifest.version
            && !manifest.retains(version)
        {
            found.manifests.push(relative);
            found.bytes = found.bytes.saturating_add(meta.size);
        }
    }
    Ok(found)
}

/// What retained versions need.
pub(super) enum References {
    /// Every object that one of them names.
    All(HashSet<String>),
    /// Manifests that are retained and not there, so that what they need is not known.
    Missing(Vec<String>),
    /// A vacuum has removed some of them meanwhile: the rest is for that one.
    Overtaken,
}

/// Why nothing can be removed.
fn missing(table: &Table, manifest: &TableManifest, missing: &[String]) -> Error {
    let names: Vec<&str> = missing.iter().map(String::as_str).take(3).collect();
    let is_missing = |version: u64| missing.contains(&names::manifest(version));
    let tags = manifest.tags.iter();
    let tags =
        tags.filter(|(_, tagged)| **tagged < manifest.oldest_version && is_missing(**tagged));
    let tags: Vec<&String> = tags.map(|(name, _)| name).collect();
    let advice = if tags.is_empty() {
        "put it back, or vacuum with a shorter retention, which gives up versions that old"
            .to_owned()
    } else {
        format!("put it back, or delete the tags {tags:?}, which keep that version")
    };
    let message = format!(
        "{} of {} versions that are kept are not there ({}): what they need is not known, and nothing is \
         removed; {advice}",
        missing.len(),
        manifest.version - manifest.oldest_version + 1,
        names.join(", "),
    );
    let error = Error::new(ErrorKind::ManifestCorrupted, message);
    error
        .with_detail("a manifest is not there")
        .with_path(table.root())
}

/// Every object that a retained version needs.
pub(super) async fn referenced(
    table: &Table,
    manifest: &TableManifest,
    manifests: &BTreeMap<String, ObjectMeta>,
) -> Result<References> {
    let there = manifests.keys().filter_map(|p| names::manifest_version(p));
    // Later ones than ours keep what ours has, or what began above the floor.
    let mut kept: Vec<u64> = there
        .filter(|v| *v < manifest.version && manifest.retains(*v))
        .collect();
    kept.sort_unstable();
    let tagged = manifest.tags.values();
    let tagged: HashSet<u64> = tagged
        .copied()
        .filter(|v| *v < manifest.oldest_version)
        .collect();
    if kept.len() as u64 != manifest.version - manifest.oldest_version + tagged.len() as u64 {
        let wanted = (manifest.oldest_version..manifest.version).chain(tagged);
        let gone = wanted.filter(|version| kept.binary_search(version).is_err());
        return lacking(table, gone.take(MAX_NAMED).collect()).await;
    }
    let older: Vec<(u64, Option<TableManifest>)> = stream::iter(kept)
        .map(|version| async move { Ok((version, table.manifest(version).await?)) })
        .buffered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let gone = older.iter().filter(|(_, manifest)| manifest.is_none());
    let gone: Vec<u64> = gone.map(|(version, _)| *version).collect();
    if !gone.is_empty() {
        return lacking(table, gone).await;
    }
    let older: Vec<TableManifest> = older.into_iter().filter_map(|(_, m)| m).collect();
    let all = || older.iter().chain([manifest]);
    let mut needed: HashSet<String> = all()
        .flat_map(TableManifest::references)
        .map(str::to_owned)
        .collect();
    let listed = listed(table, all()).await;
    // A version may have gone and a late manifest taken its place.
    let now = table.newest().await?.manifest;
    if now.oldest_version > manifest.oldest_version {
        return Ok(References::Overtaken);
    }
    needed.extend(listed?);
    Ok(References::All(needed))
}

/// Of versions whose manifests are not there: whether they should be.
async fn lacking(table: &Table, versions: Vec<u64>) -> Result<References> {
    let newest = table.newest().await?.manifest;
    let mut kept: Vec<u64> = versions
        .into_iter()
        .filter(|v| newest.retains(*v))
        .collect();
    kept.sort_unstable();
    let mut missing = Vec::new();
    for version in kept {
        // The list may be older than the manifest.
        if table.manifest(version).await?.is_none() {
            missing.push(names::manifest(version));
        }
    }
    Ok(if missing.is_empty() {
        References::Overtaken
    } else {
        References::Missing(missing)
    })
}

/// The files that segments of some snapshots list.
async fn listed(
    table: &Table,
    manifests: impl Iterator<Item = &TableManifest>,
) -> Result<Vec<String>> {
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
