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
use super::listing::load_segment;
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::probe_path;

/// Idempotency keys are kept for so many versions at least, whatever is vacuumed.
const MIN_KEY_RETENTION_VERSIONS: u64 = 10_000;
/// Manifests read at once.
const CONCURRENT_READS: usize = 16;
/// Manifests that are not there are named up to so many.
const MAX_REPORTED_MANIFESTS: usize = 100;

/// What a vacuum removed, or would remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumReport {
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
) -> Result<VacuumReport> {
    let cutoff = retention_cutoff(table, retention).await?;
    let newest = table.newest().await?.manifest;
    let change = RaiseGcFloor {
        oldest_version: oldest_retained(
            &list_objects(table, names::MANIFESTS).await?,
            &newest,
            cutoff,
        ),
    };
    let manifest = if dry_run {
        Arc::new(change.apply(&newest)?.0)
    } else {
        commit(table, &change, timeout).await?.snapshot.manifest
    };
    let report = find_unreferenced(table, &manifest, cutoff).await?;
    if !dry_run {
        let unreferenced = report.files.iter().chain(&report.manifests);
        let paths: Vec<String> = unreferenced.map(|relative| table.path(relative)).collect();
        table.store.delete_all(&paths).await?;
    }
    Ok(report)
}

/// The commit of a vacuum.
struct RaiseGcFloor {
    oldest_version: u64,
}

impl Change for RaiseGcFloor {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let mut next = base.clone();
        next.oldest_version = base.oldest_version.max(self.oldest_version);
        next.gc_floor = base.gc_floor.max(self.oldest_version);
        let keys_since = base.version.saturating_sub(MIN_KEY_RETENTION_VERSIONS);
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
pub(crate) async fn retention_cutoff(table: &Table, retention: Duration) -> Result<DateTime<Utc>> {
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
pub(crate) async fn list_objects(
    table: &Table,
    folder: &str,
) -> Result<BTreeMap<String, ObjectMeta>> {
    let prefix = table.path("");
    let objects = table.store.list(&table.path(folder)).await?;
    let entries = objects.into_iter().filter_map(|meta| {
        let relative = meta.location.as_ref().strip_prefix(&prefix)?;
        Some((relative.trim_start_matches('/').to_owned(), meta))
    });
    Ok(entries.collect())
}

/// The version that was the newest at `horizon`, by the store's clock.
fn oldest_retained(
    manifests: &BTreeMap<String, ObjectMeta>,
    newest: &TableManifest,
    cutoff: DateTime<Utc>,
) -> u64 {
    let old_manifests = manifests.iter().filter(|(_, m)| m.last_modified <= cutoff);
    let versions = old_manifests.filter_map(|(path, _)| names::manifest_version(path));
    let valid_versions = newest.oldest_version..=newest.version;
    let newest_at_cutoff = versions.filter(|v| valid_versions.contains(v)).max();
    newest_at_cutoff.unwrap_or(newest.oldest_version)
}

/// What began before the floor and no retained version references.
async fn find_unreferenced(
    table: &Table,
    manifest: &TableManifest,
    cutoff: DateTime<Utc>,
) -> Result<VacuumReport> {
    let mut report = VacuumReport {
        oldest_version: manifest.oldest_version,
        files: Vec::new(),
        manifests: Vec::new(),
        bytes: 0,
    };
    let manifests = list_objects(table, names::MANIFESTS).await?;
    let needed = match collect_references(table, manifest, &manifests).await? {
        References::All(needed) => needed,
        References::Overtaken => {
            log::info!("another vacuum of {:?} has gone further", table.root());
            return Ok(report);
        }
        // What it needs is not known, so nothing may go.
        References::Missing(manifests) => {
            return Err(missing_manifests_error(table, manifest, &manifests));
        }
    };
    let mut objects = manifests;
    for folder in names::FOLDERS {
        objects.extend(list_objects(table, folder).await?);
    }
    for (relative, meta) in objects {
        let is_old = meta.last_modified <= cutoff;
        if let Some(base_version) = names::base_version(&relative) {
            if base_version < manifest.gc_floor && is_old && !needed.contains(&relative) {
                report.files.push(relative);
                report.bytes = report.bytes.saturating_add(meta.size);
            }
        } else if let Some(version) = names::manifest_version(&relative)
            && version < manifest.version
            && !manifest.retains(version)
        {
            report.manifests.push(relative);
            report.bytes = report.bytes.saturating_add(meta.size);
        }
    }
    Ok(report)
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
fn missing_manifests_error(table: &Table, manifest: &TableManifest, missing: &[String]) -> Error {
    let names: Vec<&str> = missing.iter().map(String::as_str).take(3).collect();
    let is_missing = |version: u64| missing.contains(&names::manifest(version));
    let all_tags = manifest.tags.iter();
    let missing_tags =
        all_tags.filter(|(_, tagged)| **tagged < manifest.oldest_version && is_missing(**tagged));
    let tags: Vec<&String> = missing_tags.map(|(name, _)| name).collect();
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
pub(super) async fn collect_references(
    table: &Table,
    manifest: &TableManifest,
    manifests: &BTreeMap<String, ObjectMeta>,
) -> Result<References> {
    let listed_versions = manifests.keys().filter_map(|p| names::manifest_version(p));
    // Later ones than ours keep what ours has, or what began above the floor.
    let mut retained: Vec<u64> = listed_versions
        .filter(|v| *v < manifest.version && manifest.retains(*v))
        .collect();
    retained.sort_unstable();
    let tags = manifest.tags.values();
    let tagged: HashSet<u64> = tags
        .copied()
        .filter(|v| *v < manifest.oldest_version)
        .collect();
    if retained.len() as u64 != manifest.version - manifest.oldest_version + tagged.len() as u64 {
        let expected = (manifest.oldest_version..manifest.version).chain(tagged);
        let absent = expected.filter(|version| retained.binary_search(version).is_err());
        return resolve_missing(table, absent.take(MAX_REPORTED_MANIFESTS).collect()).await;
    }
    let loaded: Vec<(u64, Option<TableManifest>)> = stream::iter(retained)
        .map(|version| async move { Ok((version, table.read_manifest(version).await?)) })
        .buffered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let unreadable = loaded.iter().filter(|(_, manifest)| manifest.is_none());
    let missing: Vec<u64> = unreadable.map(|(version, _)| *version).collect();
    if !missing.is_empty() {
        return resolve_missing(table, missing).await;
    }
    let older: Vec<TableManifest> = loaded.into_iter().filter_map(|(_, m)| m).collect();
    let retained_manifests = || older.iter().chain([manifest]);
    let mut needed: HashSet<String> = retained_manifests()
        .flat_map(TableManifest::references)
        .map(str::to_owned)
        .collect();
    let segment_files = list_segment_files(table, retained_manifests()).await;
    // A version may have gone and a late manifest taken its place.
    let newest = table.newest().await?.manifest;
    if newest.oldest_version > manifest.oldest_version {
        return Ok(References::Overtaken);
    }
    needed.extend(segment_files?);
    Ok(References::All(needed))
}

/// Of versions whose manifests are not there: whether they should be.
async fn resolve_missing(table: &Table, versions: Vec<u64>) -> Result<References> {
    let newest = table.newest().await?.manifest;
    let mut retained: Vec<u64> = versions
        .into_iter()
        .filter(|v| newest.retains(*v))
        .collect();
    retained.sort_unstable();
    let mut missing = Vec::new();
    for version in retained {
        // The list may be older than the manifest.
        if table.read_manifest(version).await?.is_none() {
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
async fn list_segment_files(
    table: &Table,
    manifests: impl Iterator<Item = &TableManifest>,
) -> Result<Vec<String>> {
    let mut segments: HashMap<&str, Segment> = HashMap::new();
    for segment in manifests.flat_map(|m| &m.segments) {
        match segments.get_mut(segment.path.as_str()) {
            // What one of them has is needed.
            Some(entry) => entry.removed.0 &= &segment.removed.0,
            None => {
                segments.insert(&segment.path, segment.clone());
            }
        }
    }
    let loads = segments
        .values()
        .map(|segment| load_segment(table, segment));
    let loaded: Vec<_> = stream::iter(loads)
        .buffer_unordered(CONCURRENT_READS)
        .try_collect()
        .await?;
    let files = loaded.into_iter().flatten();
    Ok(files.map(|(_, file)| file.path).collect())
}
