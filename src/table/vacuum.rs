//! Vacuum: removes the objects that no retained version references.
//!
//! A vacuum commits first. Its manifest says which versions are retained (`oldest_version`), and that
//! writers which started before `gc_floor` must start again. After that commit no commit can add a
//! reference to an object that was written below the floor, other than by keeping one of a retained
//! version. So an object below the floor that no retained version references stays unreferenced for ever,
//! whatever any clock says.
//!
//! Times are those of the store: a probe object gives its current time. Data files, tombstone files and
//! lists that are younger than the retention are never removed, nor are files that were added in place
//! ([`super::add_files()`]).
//!
//! Nothing is removed, and the error is [`ErrorKind::ManifestCorrupted`], if the manifest of a retained
//! version is missing, because its references are not known. If another vacuum has raised the floor
//! further, this one stops without an error.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, PutMode};
use serde_json::json;

use super::format::{CommitOperation, Segment, TableManifest};
use super::listing::load_file_sizes;
use super::{Table, Versioned, names};
use crate::error::{Error, ErrorKind, Result};
use crate::store::temp_name::probe_path;
use crate::versions::Change;
use crate::versions::commit::commit;
use crate::versions::list_objects;

/// Idempotency keys are kept for at least this number of versions, whatever is vacuumed.
const MIN_KEY_RETENTION_VERSIONS: u64 = 10_000;
/// The maximum number of manifests or segments that are read concurrently.
const CONCURRENT_READS: usize = 16;
/// The maximum number of missing manifests that are reported.
const MAX_REPORTED_MANIFESTS: usize = 100;

/// What a vacuum removed, or would remove in a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumReport {
    /// The oldest retained version.
    pub oldest_version: u64,
    /// The paths of data files, tombstone files and lists, relative to the table.
    pub files: Vec<String>,
    /// The paths of manifests, relative to the table.
    pub manifests: Vec<String>,
    /// The total size of all of them in bytes.
    pub bytes: u64,
}

/// Removes versions that were replaced more than `retention` ago, and the objects that only they
/// reference. A dry run removes and commits nothing, but it also writes and removes a probe object to
/// read the store's time.
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

/// The commit of a vacuum: raises `oldest_version` and `gc_floor`, and drops old idempotency keys.
struct RaiseGcFloor {
    oldest_version: u64,
}

impl Change<TableManifest> for RaiseGcFloor {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let mut next = base.clone();
        next.oldest_version = base.oldest_version.max(self.oldest_version);
        next.gc_floor = base.gc_floor.max(self.oldest_version);
        let retained_versions = base.version.saturating_sub(MIN_KEY_RETENTION_VERSIONS);
        let keys_since = retained_versions.min(next.oldest_version);
        next.transactions.retain(|_, t| t.version >= keys_since);
        next.older_transactions
            .retain(|list| list.last_version >= keys_since);
        let details = [("oldest_version", json!(next.oldest_version))];
        Ok((next, CommitOperation::new("vacuum", details)))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }
}

/// The time `retention` ago by the store's clock, which is read from a probe object.
pub(crate) async fn retention_cutoff(table: &Table, retention: Duration) -> Result<DateTime<Utc>> {
    let store = &table.store;
    let path = probe_path(store, table.root());
    store.put(&path, Bytes::new(), PutMode::Overwrite).await?;
    let now = store.head(&path).await.map(|meta| meta.last_modified);
    if let Err(e) = store.delete(&path).await {
        log::warn!("the probe object {path} could not be removed: {e}");
    }
    let retention = TimeDelta::from_std(retention).unwrap_or(TimeDelta::MAX);
    Ok(now?
        .checked_sub_signed(retention)
        .unwrap_or(DateTime::<Utc>::MIN_UTC))
}

/// The version that was the newest at `cutoff`, by the store's clock.
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

/// Finds the objects below `gc_floor` that no retained version references, and the manifests of versions
/// that are not retained.
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
            log::info!(
                "a concurrent vacuum of the table {:?} removes further versions; this one removes nothing",
                table.root()
            );
            return Ok(report);
        }
        // The references of a missing manifest are not known, so nothing may be removed.
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

/// The objects that retained versions reference.
pub(super) enum References {
    /// The path of every object that one of them references.
    All(HashSet<String>),
    /// The names of missing manifests of retained versions; what these reference is not known.
    Missing(Vec<String>),
    /// A concurrent vacuum has removed some of the versions.
    Overtaken,
}

/// The error of missing manifests, and what the user can do about them.
fn missing_manifests_error(table: &Table, manifest: &TableManifest, missing: &[String]) -> Error {
    let names: Vec<&str> = missing.iter().map(String::as_str).take(3).collect();
    let is_missing = |version: u64| missing.contains(&names::manifest(version));
    let tags: Vec<&String> = manifest
        .tags
        .iter()
        .filter(|(_, tagged)| **tagged < manifest.oldest_version && is_missing(**tagged))
        .map(|(name, _)| name)
        .collect();
    let advice = if tags.is_empty() {
        "restore them, or vacuum with a shorter retention that gives up these versions".to_owned()
    } else {
        format!("restore them, or delete the tags {tags:?}, which keep these versions")
    };
    let message = format!(
        "the manifests of {} of {} retained versions are missing ({}), so the objects that they reference are \
         not known; nothing was removed; {advice}",
        missing.len(),
        manifest.version - manifest.oldest_version + 1,
        names.join(", "),
    );
    let error = Error::new(ErrorKind::ManifestCorrupted, message);
    error
        .with_detail("a manifest is missing")
        .with_path(table.root())
}

/// Collects the objects that the versions retained by `manifest` reference; `manifests` is a listing.
pub(super) async fn collect_references(
    table: &Table,
    manifest: &TableManifest,
    manifests: &BTreeMap<String, ObjectMeta>,
) -> Result<References> {
    let listed_versions = manifests.keys().filter_map(|p| names::manifest_version(p));
    // Versions after this one reference only what this one references, or what was written above the floor.
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
    // A manifest is dropped as soon as it is parsed: there may be many.
    let mut reads = stream::iter(retained)
        .map(|version| async move {
            let manifest = table.read_manifest(version).await?;
            Ok::<_, Error>((version, manifest.as_ref().map(ReferencedObjects::of)))
        })
        .buffer_unordered(CONCURRENT_READS);
    let mut referenced = ReferencedObjects::of(manifest);
    let mut missing = Vec::new();
    while let Some((version, objects)) = reads.try_next().await? {
        match objects {
            Some(objects) => referenced.extend(objects),
            None => missing.push(version),
        }
    }
    if !missing.is_empty() {
        return resolve_missing(table, missing).await;
    }
    let paths = referenced.load_all(table).await;
    // A vacuum may have removed a version, and a late manifest may have taken its slot.
    let newest = table.newest().await?.manifest;
    if newest.oldest_version > manifest.oldest_version {
        return Ok(References::Overtaken);
    }
    Ok(References::All(paths?))
}

/// The objects that manifests reference, without the entries of their files.
struct ReferencedObjects {
    paths: HashSet<String>,
    /// The segments by path, without their bounds. A file has left one if it has in all of the versions.
    segments: HashMap<String, Segment>,
}

impl ReferencedObjects {
    fn of(manifest: &TableManifest) -> Self {
        let without_bounds = |segment: &Segment| Segment {
            path: segment.path.clone(),
            removed: segment.removed.clone(),
            min: BTreeMap::new(),
            max: BTreeMap::new(),
            null_counts: BTreeMap::new(),
            ..*segment
        };
        let segments = manifest.segments.iter();
        Self {
            paths: manifest.references().map(str::to_owned).collect(),
            segments: segments
                .map(|s| (s.path.clone(), without_bounds(s)))
                .collect(),
        }
    }

    fn extend(&mut self, other: Self) {
        self.paths.extend(other.paths);
        for (path, segment) in other.segments {
            match self.segments.get_mut(&path) {
                Some(entry) => entry.removed.0 &= segment.removed.0,
                None => drop(self.segments.insert(path, segment)),
            }
        }
    }

    /// The paths of all objects, those of the files of the segments included; reads each segment once.
    async fn load_all(self, table: &Table) -> Result<HashSet<String>> {
        let mut paths = self.paths;
        let mut loads = stream::iter(self.segments.values())
            .map(|segment| load_file_sizes(table, segment))
            .buffer_unordered(CONCURRENT_READS);
        while let Some(files) = loads.try_next().await? {
            paths.extend(files.into_iter().map(|(path, _)| path));
        }
        drop(loads);
        Ok(paths)
    }
}

/// Checks versions whose manifests were not found: they are missing, or a concurrent vacuum removed them.
async fn resolve_missing(table: &Table, versions: Vec<u64>) -> Result<References> {
    let newest = table.newest().await?.manifest;
    let mut retained: Vec<u64> = versions
        .into_iter()
        .filter(|v| newest.retains(*v))
        .collect();
    retained.sort_unstable();
    let mut missing = Vec::new();
    for version in retained {
        // The listing may be older than the manifest.
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
