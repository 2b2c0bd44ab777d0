//! Removing everything in a dataset's folder, under the lease of a delete that was just begun or is recovered.
//!
//! A [`Removal`] lists the folder and what is below it, round by round, until nothing new shows. [`ErrorKind::Locked`]
//! where other processes keep writing.

use std::collections::{BTreeSet, HashSet};

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use super::intent::{BaseVersions, Phase};
use super::lease::PublishLease;
use super::steps::{CONCURRENT_PARTS, StepError, Steps, remove_version};
use super::{INTENT, MANIFEST, SUCCESS, is_reserved};
use crate::error::{Error, ErrorKind, Result};
use crate::store::path;
use crate::versions::names::{CHAIN_HEAD, POINTER};

/// Listings with new files after which a delete gives up.
const MAX_ROUNDS: u32 = 20;

/// Finishes an abandoned delete, unless it changed nothing or a newer dataset is in the folder.
pub(super) async fn recover_delete(
    lease: &PublishLease<'_>,
    phase: Phase,
    base: &BaseVersions,
) -> Result<(), StepError> {
    let steps = Steps::begin(lease).await?;
    let manifest = steps.read_base().await?.manifest;
    let is_base = manifest.is_none() || manifest == base.manifest;
    if phase == Phase::Claim || !is_base {
        return Ok(());
    }
    // Datasets in folders below may be newer than the error of the interrupted delete.
    let mut removal = Removal::begin(&steps, NestedPolicy::Keep).await?;
    while removal.run_round().await?.is_some() {}
    Ok(())
}

/// Every file below the folder but the intent, listed while the lease held.
pub(super) async fn list_files_below(lease: &PublishLease<'_>) -> Result<Vec<ObjectMeta>> {
    let intent = path::join(lease.key, INTENT);
    let mut files = lease.store.list(lease.key).await?;
    let is_intent = |meta: &&ObjectMeta| meta.location.as_ref() == intent;
    let version = files
        .iter()
        .find(is_intent)
        .and_then(|meta| meta.e_tag.clone());
    if !lease.is_own_version(version.as_deref()).await {
        lease.rewrite(|_| ()).await?;
    }
    files.retain(|meta| meta.location.as_ref() != intent);
    Ok(files)
}

/// Whether datasets in folders below are deleted, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NestedPolicy {
    Delete,
    Keep,
}

/// The removal of everything in a folder: the marker first, then the manifest, so that a marker that lands late has
/// none; then the rest, until a listing shows nothing new.
pub(super) struct Removal<'a, 's, 'l> {
    steps: &'a Steps<'s, 'l>,
    nested_policy: NestedPolicy,
    attempted: HashSet<(String, Option<String>)>,
    rounds: u32,
}

impl<'a, 's, 'l> Removal<'a, 's, 'l> {
    /// Removes the marker.
    pub(super) async fn begin(
        steps: &'a Steps<'s, 'l>,
        nested_policy: NestedPolicy,
    ) -> Result<Self, StepError> {
        if steps.folder.is_marked() {
            steps.remove_marker(steps.folder.e_tag(SUCCESS)).await?;
        }
        Ok(Self {
            steps,
            nested_policy,
            attempted: HashSet::new(),
            rounds: 0,
        })
    }

    /// Lists the folder and removes what is in it; None once a listing shows nothing new. Returns the datasets in
    /// folders below that the caller has to delete, each under a lease of its own: another process may be writing them.
    pub(super) async fn run_round(&mut self) -> Result<Option<Vec<String>>, StepError> {
        let (steps, key) = (self.steps, self.steps.lease.key);
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            let message = format!(
                "gave up after {MAX_ROUNDS} listings: other processes keep writing below {key:?}"
            );
            return Err(Error::new(ErrorKind::Locked, message).with_path(key).into());
        }
        let mut files = list_files_below(steps.lease).await?;
        let marker = path::join(key, SUCCESS);
        if let Some(late_marker) = files.iter().find(|meta| meta.location.as_ref() == marker) {
            steps.remove_marker(late_marker.e_tag.as_deref()).await?;
            return Ok(Some(Vec::new()));
        }
        // One that was created since an interrupted deletion began stays as it is.
        let others = find_others(&files);
        files.retain(|meta| {
            let path = meta.location.as_ref();
            let is_others = |folder: &String| folder == key || is_below(folder, path);
            is_dataset_file(key, meta) || !others.iter().any(is_others)
        });
        let nested = find_nested_datasets(key, &files);
        let (nested_files, own_files): (Vec<_>, Vec<_>) = files.into_iter().partition(|meta| {
            let path = meta.location.as_ref();
            nested.iter().any(|nested| is_below(nested, path))
        });
        let (dataset_files, other_files): (Vec<_>, Vec<_>) = own_files
            .into_iter()
            .partition(|meta| is_dataset_file(key, meta));
        let deletes_nested = self.nested_policy == NestedPolicy::Delete;
        // A file that cannot be deleted by its listed name (a folder's own object) is tried once.
        let version_key = |meta: &ObjectMeta| (meta.location.to_string(), meta.e_tag.clone());
        let before = self.attempted.len();
        self.attempted
            .extend(dataset_files.iter().chain(&other_files).map(version_key));
        if deletes_nested {
            self.attempted.extend(nested_files.iter().map(version_key));
        }
        if self.attempted.len() == before {
            return Ok(None);
        }
        remove_files(steps, &dataset_files).await?;
        remove_files(steps, &other_files).await?;
        Ok(Some(if deletes_nested { nested } else { Vec::new() }))
    }
}

/// The folders with a table, a pipeline or a chain.
pub(super) fn find_others(files: &[ObjectMeta]) -> BTreeSet<String> {
    let folder_of = |meta: &ObjectMeta| {
        let path = meta.location.as_ref();
        let mut pointers = [POINTER, CHAIN_HEAD].into_iter();
        let folder = pointers.find_map(|name| path.strip_suffix(name))?;
        folder.strip_suffix('/').map(str::to_owned)
    };
    files.iter().filter_map(folder_of).collect()
}

/// The folders below `key` with a dataset or the begin of one; of folders within each other the outermost.
fn find_nested_datasets(key: &str, files: &[ObjectMeta]) -> Vec<String> {
    let mut folders: Vec<String> = Vec::new();
    let dataset_folders = files.iter().filter_map(|meta| {
        let (folder, name) = meta.location.as_ref().rsplit_once('/')?;
        (folder != key && is_reserved(name)).then_some(folder)
    });
    for folder in dataset_folders.collect::<BTreeSet<_>>() {
        // A folder sorts before those in it.
        if !folders.iter().any(|outer| is_below(outer, folder)) {
            folders.push(folder.to_owned());
        }
    }
    folders
}

fn is_below(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

async fn remove_files(steps: &Steps<'_, '_>, files: &[ObjectMeta]) -> Result<()> {
    let lease = steps.lease;
    if files.is_empty() {
        return Ok(());
    }
    if lease.is_lock() || !lease.conditions.delete {
        let paths: Vec<String> = files.iter().map(|meta| meta.location.to_string()).collect();
        return steps.remove_bounded(&paths).await;
    }
    for chunk in files.chunks(CONCURRENT_PARTS) {
        lease.check().await?;
        let removals = chunk.iter().map(|meta| async move {
            let condition =
                lease.unchanged_condition(Some(meta.e_tag.as_deref().unwrap_or_default()));
            remove_version(&steps.store, meta.location.as_ref(), &condition).await
        });
        stream::iter(removals)
            .buffer_unordered(CONCURRENT_PARTS)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

/// Whether a file is the dataset's marker or manifest.
pub(super) fn is_dataset_file(key: &str, meta: &ObjectMeta) -> bool {
    let path = meta.location.as_ref();
    path == path::join(key, SUCCESS) || path == path::join(key, MANIFEST)
}
