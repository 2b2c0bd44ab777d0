//! Vacuum: removes the objects that no retained version references.
//!
//! A vacuum commits first. Its manifest says which versions are retained (`oldest_version`), and that
//! writers which started before `gc_floor` must start again. After that commit no commit can add a
//! reference to an object that was written below the floor, other than by keeping one of a retained
//! version. So an object below the floor that no retained version references stays unreferenced for ever,
//! whatever any clock says.
//!
//! Times are those of the store: a probe object gives its current time. Objects that are younger than the
//! retention are never removed, nor are those whose names are not of pds ([`Vacuumable::base_version`]).
//! Hidden files, which writers that were killed leave on local disks, are removed once their process has
//! ended, whatever their age, or, if that is not known, a week after the last write.
//!
//! The names of manifests recur where all versions are removed and others created, so they are removed by their ETags: a
//! request that is late hits nothing that came later. Other names do not recur.
//!
//! A folder of manifests or of other objects that is a symbolic link is [`ErrorKind::InvalidPath`], before anything is
//! written: what this folder does not reference may be what others do.
//!
//! Nothing is removed, and the error is [`ErrorKind::ManifestCorrupted`], if the manifest of a retained
//! version is missing, because its references are not known. If another vacuum has raised the floor
//! further, this one stops without an error.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectMeta, PutMode};
use serde_json::json;

use super::ancestor::Ancestor;
use super::change::Change;
use super::commit::commit;
pub(crate) use super::expired::remove_hidden;
pub use super::expired::{Expired, VacuumReport};
use super::expired::{count_removed, remove_expired};
use super::folder::{Folder, list_objects, list_root};
use super::lists::RollLists;
use super::manifest::{CommitOperation, Versioned};
use super::names;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::temp_name::{is_stale, probe_path};
use crate::sync::progress;

/// Idempotency keys are kept for at least this number of versions, whatever is vacuumed.
const MIN_KEY_RETENTION_VERSIONS: u64 = 10_000;
/// The maximum number of manifests or segments that are read concurrently.
const CONCURRENT_READS: usize = 16;
/// The maximum number of missing manifests that are reported.
const MAX_REPORTED_MANIFESTS: usize = 100;
/// How old hidden files are, of processes of which nothing is known, when they are removed.
const MIN_HIDDEN_AGE: Duration = Duration::from_hours(7 * 24);

/// A manifest that tells what it references, so that a vacuum knows what no version does.
pub trait Vacuumable: RollLists {
    /// What several manifests reference, without reading their lists.
    type References: Send;

    /// The folders, beside that of the manifests, in which there are objects of pds.
    const FOLDERS: &'static [&'static str];

    /// The version at which the writer of an object began; None for paths that no version of pds gives.
    fn base_version(path: &str) -> Option<u64>;

    /// What this manifest references.
    fn references_of(&self) -> Self::References;

    /// Adds what another manifest references.
    fn add_references(references: &mut Self::References, others: Self::References);

    /// Reads the lists; returns the paths of all objects that are referenced.
    fn load_references(
        references: Self::References,
        folder: &Folder<Self>,
    ) -> impl Future<Output = Result<HashSet<String>>> + Send;
}

/// Removes versions that were replaced more than `retention` ago, and the objects that only they
/// reference. A dry run removes and commits nothing, but it also writes and removes a probe object to
/// read the store's time.
pub async fn vacuum<M: Vacuumable>(
    folder: &Folder<M>,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
) -> Result<VacuumReport> {
    vacuum_after(folder, retention, dry_run, timeout, async || Ok(())).await
}

/// As [`vacuum`]; `prepare` is called before its commit, so that what it refuses expires no version, and once more before
/// anything is removed, unless it is a dry run.
pub(crate) async fn vacuum_after<M: Vacuumable>(
    folder: &Folder<M>,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
    prepare: impl AsyncFn() -> Result<()>,
) -> Result<VacuumReport> {
    let Expired { report, e_tags, .. } =
        find_expired(folder, retention, dry_run, timeout, prepare).await?;
    let objects = (report.files.len() + report.manifests.len()) as u64;
    if let Some(progress) = progress::current() {
        progress.expect_files(objects);
    }
    if dry_run {
        count_removed(objects);
    } else {
        let manifests = report.manifests.iter().cloned().zip(e_tags);
        remove_expired(folder, &report.files, manifests.collect()).await?;
    }
    if let Some(progress) = progress::current() {
        progress.add_bytes(report.bytes);
    }
    Ok(report)
}

/// Commits as [`vacuum_after`] does, and returns what is to be removed by [`remove_expired_of`] then: by any process, at
/// any time, as often as it likes.
pub(crate) async fn find_expired<M: Vacuumable>(
    folder: &Folder<M>,
    retention: Duration,
    dry_run: bool,
    timeout: Duration,
    prepare: impl AsyncFn() -> Result<()>,
) -> Result<Expired> {
    refuse_links(folder).await?;
    progress::begin_phase("list");
    let now = store_time(folder.store(), folder.root()).await?;
    let cutoffs = Cutoffs {
        objects: before(now, retention),
        hidden: before(now, retention.max(MIN_HIDDEN_AGE)),
    };
    let newest = folder.newest().await?.manifest;
    let change = RaiseGcFloor {
        oldest_version: oldest_retained(
            &list_objects(folder, names::MANIFESTS).await?,
            &*newest,
            cutoffs.objects,
        ),
        ancestor: Ancestor::of(&*newest),
    };
    let manifest = if dry_run {
        Arc::new(change.apply(&*newest)?.0)
    } else {
        prepare().await?;
        let committed = commit(folder, &change, timeout).await?.snapshot.manifest;
        prepare().await?;
        committed
    };
    let expired = find_unreferenced(folder, &*manifest, cutoffs).await?;
    check_same(folder, &*manifest).await?;
    Ok(expired)
}

/// Removes objects of [`Expired`], all or some, by a process that may be late, or see another store: first the newest
/// version is compared with that of the vacuum. Then the files go, and after them the manifests, these with their ETags.
/// Fails with [`crate::ErrorKind::TransactionExpired`] if the newest version does not descend from that of the vacuum, and
/// with [`crate::ErrorKind::InvalidPath`] if a folder has become a symbolic link since, or is one on this machine.
pub async fn remove_expired_of<M: Vacuumable>(
    folder: &Folder<M>,
    version: &Ancestor,
    files: &[String],
    manifests: Vec<(String, Option<String>)>,
) -> Result<()> {
    refuse_links(folder).await?;
    let newest = folder.newest().await?.manifest;
    version.check_descends(folder, &*newest).await?;
    remove_expired(folder, files, manifests).await
}

/// Refuses a folder in which one that objects are removed from is a symbolic link.
pub(crate) async fn refuse_links<M: Vacuumable>(folder: &Folder<M>) -> Result<()> {
    let below = M::FOLDERS.iter().chain(&[names::MANIFESTS]);
    let paths: Vec<String> = below.map(|relative| folder.path(relative)).collect();
    folder.store.refuse_links(&paths).await
}

/// Refuses a folder whose versions were removed and created again since `manifest`: what was listed may be the new ones'.
async fn check_same<M: Versioned>(folder: &Folder<M>, manifest: &M) -> Result<()> {
    let newest = folder.newest().await?.manifest;
    let checked = Ancestor::of(manifest)
        .check_descends(folder, &*newest)
        .await;
    checked.map_err(|e| {
        let message = format!(
            "the {} was removed and created again during the vacuum, which removed nothing; start it again",
            M::NOUN
        );
        match e.kind() {
            ErrorKind::TransactionExpired => Error::new(e.kind(), message).with_path(folder.root()),
            _ => e,
        }
    })
}

/// The commit of a vacuum: raises `oldest_version` and `gc_floor`, and drops old idempotency keys.
struct RaiseGcFloor {
    oldest_version: u64,
    /// The version by which that was decided.
    ancestor: Ancestor,
}

impl<M: Versioned> Change<M> for RaiseGcFloor {
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)> {
        let mut next = base.clone();
        let header = next.header_mut();
        *header.oldest_version = self.oldest_version.max(*header.oldest_version);
        *header.gc_floor = self.oldest_version.max(*header.gc_floor);
        let retained_versions = header.version.saturating_sub(MIN_KEY_RETENTION_VERSIONS);
        let keys_since = retained_versions.min(*header.oldest_version);
        header.transactions.retain(|_, t| t.version >= keys_since);
        header
            .older_transactions
            .retain(|list| list.last_version >= keys_since);
        let details = [("oldest_version", json!(header.oldest_version))];
        let operation = CommitOperation::new("vacuum", details);
        Ok((next, operation))
    }

    fn base_version(&self) -> Option<u64> {
        None
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        Some(&self.ancestor)
    }
}

/// The times before which objects are old, by the store's clock.
#[derive(Clone, Copy)]
struct Cutoffs {
    objects: DateTime<Utc>,
    /// Of hidden files, which may be of a writer on another host.
    hidden: DateTime<Utc>,
}

/// The store's time, which is read from a probe object.
pub(crate) async fn store_time(store: &Store, root: &str) -> Result<DateTime<Utc>> {
    let path = probe_path(store, root);
    store.put(&path, Bytes::new(), PutMode::Overwrite).await?;
    let now = store.head(&path).await.map(|meta| meta.last_modified);
    if let Err(e) = store.delete(&path).await {
        log::warn!("the probe object {path} could not be removed: {e}");
    }
    now
}

/// The time `age` before `now`.
pub(crate) fn before(now: DateTime<Utc>, age: Duration) -> DateTime<Utc> {
    let age = TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX);
    now.checked_sub_signed(age)
        .unwrap_or(DateTime::<Utc>::MIN_UTC)
}

/// The version that was the newest at `cutoff`, by the store's clock.
fn oldest_retained<M: Versioned>(
    manifests: &BTreeMap<String, ObjectMeta>,
    newest: &M,
    cutoff: DateTime<Utc>,
) -> u64 {
    let newest = newest.header();
    let old_manifests = manifests.iter().filter(|(_, m)| m.last_modified <= cutoff);
    let versions = old_manifests.filter_map(|(path, _)| names::manifest_version(path));
    let valid_versions = newest.oldest_version..=newest.version;
    let newest_at_cutoff = versions.filter(|v| valid_versions.contains(v)).max();
    newest_at_cutoff.unwrap_or(newest.oldest_version)
}

/// Finds the objects below `gc_floor` that no retained version references, the manifests of versions
/// that are not retained, and hidden files that nobody will finish.
async fn find_unreferenced<M: Vacuumable>(
    folder: &Folder<M>,
    manifest: &M,
    cutoffs: Cutoffs,
) -> Result<Expired> {
    let header = manifest.header();
    let mut expired = Expired {
        version: Ancestor::of(manifest),
        e_tags: Vec::new(),
        report: VacuumReport {
            oldest_version: header.oldest_version,
            files: Vec::new(),
            manifests: Vec::new(),
            bytes: 0,
        },
    };
    let report = &mut expired.report;
    let manifests = list_objects(folder, names::MANIFESTS).await?;
    let needed = match collect_references(folder, manifest, &manifests).await? {
        References::All(needed) => needed,
        References::Overtaken => {
            log::info!(
                "a concurrent vacuum of the {} {:?} removes further versions; this one removes nothing",
                M::NOUN,
                folder.root()
            );
            return Ok(expired);
        }
        // The references of a missing manifest are not known, so nothing may be removed.
        References::Missing(manifests) => {
            return Err(missing_manifests_error(folder, manifest, &manifests));
        }
    };
    let mut objects = manifests;
    for below in M::FOLDERS {
        objects.extend(list_objects(folder, below).await?);
    }
    objects.extend(list_root(folder.store(), folder.root()).await?);
    for (relative, meta) in objects {
        let is_old = meta.last_modified <= cutoffs.objects;
        if let Some(base_version) = M::base_version(&relative) {
            if base_version < header.gc_floor && is_old && !needed.contains(&relative) {
                report.files.push(relative);
                report.bytes = report.bytes.saturating_add(meta.size);
            }
        } else if let Some(version) = names::manifest_version(&relative)
            && version < header.version
            && !header.retains(version)
        {
            report.manifests.push(relative);
            expired.e_tags.push(meta.e_tag);
            report.bytes = report.bytes.saturating_add(meta.size);
        } else if is_stale(&meta, cutoffs.hidden) {
            report.files.push(relative);
            report.bytes = report.bytes.saturating_add(meta.size);
        }
    }
    Ok(expired)
}

/// The objects that retained versions reference.
pub(crate) enum References {
    /// The path of every object that one of them references.
    All(HashSet<String>),
    /// The names of missing manifests of retained versions; what these reference is not known.
    Missing(Vec<String>),
    /// A concurrent vacuum has removed some of the versions.
    Overtaken,
}

/// The error of missing manifests, and what the user can do about them.
fn missing_manifests_error<M: Versioned>(
    folder: &Folder<M>,
    manifest: &M,
    missing: &[String],
) -> Error {
    let header = manifest.header();
    let names: Vec<&str> = missing.iter().map(String::as_str).take(3).collect();
    let is_missing = |version: u64| missing.contains(&names::manifest(version));
    let tags: Vec<&String> = header
        .tags
        .iter()
        .filter(|(_, tagged)| **tagged < header.oldest_version && is_missing(**tagged))
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
        header.version - header.oldest_version + 1,
        names.join(", "),
    );
    let error = Error::new(ErrorKind::ManifestCorrupted, message);
    error
        .with_detail("a manifest is missing")
        .with_path(folder.root())
}

/// Collects the objects that the versions retained by `manifest` reference; `manifests` is a listing.
pub(crate) async fn collect_references<M: Vacuumable>(
    folder: &Folder<M>,
    manifest: &M,
    manifests: &BTreeMap<String, ObjectMeta>,
) -> Result<References> {
    let header = manifest.header();
    let listed_versions = manifests.keys().filter_map(|p| names::manifest_version(p));
    // Versions after this one reference only what this one references, or what was written above the floor.
    let mut retained: Vec<u64> = listed_versions
        .filter(|v| *v < header.version && header.retains(*v))
        .collect();
    retained.sort_unstable();
    let tags = header.tags.values();
    let tagged: HashSet<u64> = tags
        .copied()
        .filter(|v| *v < header.oldest_version)
        .collect();
    if retained.len() as u64 != header.version - header.oldest_version + tagged.len() as u64 {
        let expected = (header.oldest_version..header.version).chain(tagged);
        let absent = expected.filter(|version| retained.binary_search(version).is_err());
        return resolve_missing(folder, absent.take(MAX_REPORTED_MANIFESTS).collect()).await;
    }
    // A manifest is dropped as soon as it is parsed: there may be many.
    let mut reads = stream::iter(retained)
        .map(|version| async move {
            let manifest = folder.read_manifest(version).await?;
            Ok::<_, Error>((version, manifest.as_ref().map(M::references_of)))
        })
        .buffer_unordered(CONCURRENT_READS);
    let mut referenced = manifest.references_of();
    let mut missing = Vec::new();
    while let Some((version, objects)) = reads.try_next().await? {
        match objects {
            Some(objects) => M::add_references(&mut referenced, objects),
            None => missing.push(version),
        }
    }
    if !missing.is_empty() {
        return resolve_missing(folder, missing).await;
    }
    let paths = M::load_references(referenced, folder).await;
    // A vacuum may have removed a version, and a late manifest may have taken its slot.
    let newest = folder.newest().await?.manifest;
    if newest.header().oldest_version > header.oldest_version {
        return Ok(References::Overtaken);
    }
    Ok(References::All(paths?))
}

/// Checks versions whose manifests were not found: they are missing, or a concurrent vacuum removed them.
async fn resolve_missing<M: Versioned>(
    folder: &Folder<M>,
    versions: Vec<u64>,
) -> Result<References> {
    let newest = folder.newest().await?.manifest;
    let mut retained: Vec<u64> = versions
        .into_iter()
        .filter(|v| newest.header().retains(*v))
        .collect();
    retained.sort_unstable();
    let mut missing = Vec::new();
    for version in retained {
        // The listing may be older than the manifest.
        if folder.read_manifest(version).await?.is_none() {
            missing.push(names::manifest(version));
        }
    }
    Ok(if missing.is_empty() {
        References::Overtaken
    } else {
        References::Missing(missing)
    })
}
