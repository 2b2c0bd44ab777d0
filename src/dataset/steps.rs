//! The steps of a publish and of a delete: remove the marker, publish the parts, remove strays, put the manifest, put
//! the marker.
//!
//! [`Steps`] holds a lease and the folder as it was listed under it. Each step can be repeated, and each is refused
//! where it would hit what another publish left. Every request names the version that was listed, or that nothing is
//! there. Where the store cannot check that, or a version can recur, the request is bounded in time instead (see
//! [`super::lease`]).
//!
//! A step that meets another publish fails as [`ErrorKind::Fenced`]; [`StepError`] names the failures that its caller
//! has to act on.

use std::collections::HashSet;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::folder::{
    FolderState, is_part_name, is_sealed, part_matches, read_listed_parts, read_manifest_bytes,
};
use super::intent::{BaseVersions, IntendedPart};
use super::lease::{PublishLease, RequestOutcome};
use super::{MANIFEST, SUCCESS};
use crate::error::{Error, ErrorKind, Result};
use crate::store::temp_name::{TEMP_PREFIX, is_abandoned};
use crate::store::{Condition, Store, is_transient, path};

/// Parts that are published, looked for or removed at once.
pub(super) const CONCURRENT_PARTS: usize = 16;
/// Keys that one bulk DELETE takes at most. A bounded call may send one request only.
const BULK_DELETE_KEYS: usize = 1000;
/// Attempts of a step, each adapted to the folder as it is listed then.
pub(super) const MAX_STEP_ATTEMPTS: u32 = 20;
/// Sends of a request that gets no answer, or is refused although its condition holds (409 of a busy store).
pub(super) const MAX_STEP_FAILURES: u32 = 5;

/// Why a step failed.
#[derive(Debug)]
pub(super) enum StepError {
    /// A part is neither staged nor published.
    PartMissing(Error),
    /// The lease was lost while the deletion of the marker was under way: it may have hit the marker of a later
    /// dataset.
    MarkerInDoubt(Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// The dataset that a write publishes.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) overwrite: bool,
    pub(super) manifest: Bytes,
    pub(super) parts: Vec<IntendedPart>,
}

impl Publication {
    /// Whether one part at most has to be written yet, and few to be looked at. Of more, several threads do some at once.
    pub(super) fn has_few_writes(&self) -> bool {
        self.parts.len() <= CONCURRENT_PARTS
            && self.parts.iter().filter(|part| part.is_inline()).count() <= 1
    }

    /// Whether the folder's manifest is this write's. Two writes that began in the same microsecond can have
    /// equal manifests, so the first part is compared, too.
    pub(super) async fn has_manifest(&self, lease: &PublishLease<'_>) -> Result<bool> {
        let bytes = read_manifest_bytes(lease.store, lease.key).await?;
        if bytes.as_ref() != Some(&self.manifest) {
            return Ok(false);
        }
        match self.parts.first() {
            Some(part) => {
                let target = path::join(lease.key, &part.name);
                part_matches(lease.store, &target, &lease.id, part).await
            }
            None => Ok(true),
        }
    }
}

/// A lease, and the folder as it was listed under it.
#[derive(Debug)]
pub(super) struct Steps<'l, 'a> {
    pub(super) lease: &'l PublishLease<'a>,
    /// The store, whose work on local files keeps the lock.
    pub(super) store: Store,
    pub(super) folder: FolderState,
}

impl<'l, 'a> Steps<'l, 'a> {
    /// Lists the folder, which must have the version of the intent that the lease is for.
    pub(super) async fn begin(lease: &'l PublishLease<'a>) -> Result<Self> {
        let store = lease.locked_store().await;
        let folder = list_dataset_folder(lease, &store).await?;
        Ok(Self {
            lease,
            store,
            folder,
        })
    }

    /// Lists the folder again after it was changed.
    pub(super) async fn refresh_folder(&mut self) -> Result<()> {
        self.folder = list_dataset_folder(self.lease, &self.store).await?;
        Ok(())
    }

    /// The versions of the files in the folder, by which a later call recognizes them.
    pub(super) async fn read_base(&self) -> Result<BaseVersions> {
        if !self.lease.is_lock() {
            return Ok(self.folder.base());
        }
        let manifest = read_manifest_bytes(&self.store, self.lease.key).await?;
        Ok(self.folder.base_by_content(manifest.as_deref()))
    }

    pub(super) fn path(&self, name: &str) -> String {
        path::join(self.lease.key, name)
    }

    /// Removes the marker that was listed with `e_tag`.
    pub(super) async fn remove_marker(&self, e_tag: Option<&str>) -> Result<(), StepError> {
        let path = self.path(SUCCESS);
        let condition = if self.lease.conditions.marker_versions {
            self.lease.unchanged_condition(e_tag)
        } else {
            Condition::Always
        };
        let mut failures = 0;
        loop {
            let request = self.lease.send_bounded(|store| {
                let (path, condition) = (path.clone(), condition.clone());
                async move { store.delete_if(&path, &condition).await }
            });
            match request.await {
                Ok(RequestOutcome::Done(_)) => return Ok(()),
                Ok(RequestOutcome::Unknown(error)) => {
                    log::debug!("{path}: {error}; waiting until the deletion can no longer land");
                    if let Err(e) = self.lease.drain().await {
                        if e.kind() != ErrorKind::Fenced {
                            return Err(e.into());
                        }
                        // A check of the folder before that would miss what the deletion does later.
                        self.lease.wait_until_quiet().await;
                        return Err(StepError::MarkerInDoubt(e));
                    }
                    if !self.store.is_file(&path).await? {
                        return Ok(());
                    }
                    failures += 1;
                    if failures == MAX_STEP_FAILURES {
                        return Err(error.into());
                    }
                }
                // The marker is another publish's, or the store was busy with this one.
                Err(e) if is_refused(&e) => {
                    let folder = list_dataset_folder(self.lease, &self.store).await?;
                    match folder.e_tag(SUCCESS) {
                        None => return Ok(()),
                        current if current == e_tag => {}
                        Some(_) => return Err(self.concurrent_publish_error().into()),
                    }
                    failures += 1;
                    if failures == MAX_STEP_FAILURES {
                        return Err(e.into());
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Puts the marker where there is none.
    pub(super) async fn put_marker(&self) -> Result<()> {
        let path = self.path(SUCCESS);
        let condition = self.lease.unchanged_condition(None);
        let mut failures = 0;
        loop {
            let request = self.lease.send_bounded(|store| {
                let (path, condition) = (path.clone(), condition.clone());
                async move { store.put_if(&path, Bytes::new(), &condition).await }
            });
            match request.await {
                Ok(RequestOutcome::Done(_)) => return Ok(()),
                Ok(RequestOutcome::Unknown(error)) => {
                    log::debug!("{path}: {error}; waiting until the marker can no longer land");
                    self.lease.drain().await?;
                    if self.store.is_file(&path).await? {
                        return Ok(());
                    }
                    failures += 1;
                    if failures == MAX_STEP_FAILURES {
                        return Err(error);
                    }
                }
                // The marker exists, or the store was busy with this name.
                Err(e) if is_refused(&e) => {
                    if self.store.is_file(&path).await? {
                        return Ok(());
                    }
                    failures += 1;
                    if failures == MAX_STEP_FAILURES {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Replaces the marker that was listed by a new version of it.
    pub(super) async fn renew_marker(&self) -> Result<()> {
        let path = self.path(SUCCESS);
        let condition = self.lease.unchanged_condition(self.folder.e_tag(SUCCESS));
        let request = self.lease.send_bounded(|store| {
            let (path, condition) = (path.clone(), condition.clone());
            async move { store.put_if(&path, Bytes::new(), &condition).await }
        });
        match request.await {
            Ok(RequestOutcome::Done(_)) => Ok(()),
            Ok(RequestOutcome::Unknown(error)) => Err(error),
            Err(e) if is_refused(&e) => Err(self.concurrent_publish_error()),
            Err(e) => Err(e),
        }
    }

    /// Removes the files that the new dataset does not have, each only as it was listed: parts of the old one, files
    /// that interrupted writes left, other attempts of the write's tasks.
    pub(super) async fn remove_strays(
        &self,
        parts: &[IntendedPart],
        base_was_marked: bool,
        overwrite: bool,
    ) -> Result<()> {
        let strays = self.find_strays(parts, base_was_marked, overwrite).await?;
        self.remove_listed(&strays).await
    }

    async fn find_strays(
        &self,
        parts: &[IntendedPart],
        base_was_marked: bool,
        overwrite: bool,
    ) -> Result<Vec<String>> {
        let key = self.lease.key;
        let new_parts: HashSet<&str> = parts.iter().map(|p| p.name.as_str()).collect();
        let staged_paths: HashSet<&str> = parts.iter().filter_map(|p| p.staged.path()).collect();
        let attempt_prefix = format!("{TEMP_PREFIX}w{}-", self.lease.id);
        let is_attempt = |name: &str| {
            name.starts_with(&attempt_prefix)
                && !staged_paths.contains(path::join(key, name).as_str())
        };
        let other_names = || {
            self.folder
                .files
                .keys()
                .filter(|name| !new_parts.contains(name.as_str()))
        };
        let mut strays: Vec<String> = other_names()
            .filter(|name| is_attempt(name) || is_abandoned(name))
            .cloned()
            .collect();
        let has_parts = other_names().any(|name| is_part_name(name));
        let may_replace = base_was_marked || overwrite;
        let listed_names = if self.folder.has_foreign_parts() || (has_parts && !may_replace) {
            read_listed_parts(&self.store, key).await?
        } else {
            Vec::new()
        };
        for name in other_names() {
            let is_listed = listed_names.contains(name);
            let is_stray = match is_part_name(name) {
                _ if is_listed => true,
                true => may_replace || is_sealed(&self.store, &self.path(name)).await?,
                false => false,
            };
            if is_stray && !super::is_reserved(name) {
                strays.push(name.clone());
            }
        }
        Ok(strays)
    }

    /// Waits until the names that [`crate::store::defer_name_syncs`] left are on a local disk.
    pub(super) async fn sync_names(&self) -> Result<()> {
        self.store.sync_names(&[self.path(MANIFEST)]).await
    }

    /// Removes files of the folder, each only as it was listed.
    pub(super) async fn remove_listed(&self, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        if self.lease.is_lock() {
            let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
            return self.store.delete_all(&paths).await;
        }
        if !self.lease.conditions.delete {
            let paths: Vec<String> = names.iter().map(|name| self.path(name)).collect();
            return self.remove_bounded(&paths).await;
        }
        for chunk in names.chunks(CONCURRENT_PARTS) {
            self.lease.check().await?;
            let removals = chunk.iter().map(|name| async move {
                let path = self.path(name);
                let condition = self.lease.unchanged_condition(self.folder.e_tag(name));
                remove_version(&self.store, &path, &condition).await
            });
            stream::iter(removals)
                .buffer_unordered(CONCURRENT_PARTS)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    /// Removes files where a DELETE has no condition. After an unknown answer it waits until the request can no longer
    /// land, and removes the files that are left.
    pub(super) async fn remove_bounded(&self, paths: &[String]) -> Result<()> {
        for chunk in paths.chunks(BULK_DELETE_KEYS) {
            let mut remaining = chunk.to_vec();
            let mut failures = 0;
            while !remaining.is_empty() {
                let request = self.lease.send_bounded(|store| {
                    let paths = remaining.clone();
                    async move { store.delete_all(&paths).await }
                });
                let error = match request.await? {
                    RequestOutcome::Done(()) => break,
                    RequestOutcome::Unknown(error) => error,
                };
                failures += 1;
                if failures == MAX_STEP_FAILURES {
                    return Err(error);
                }
                log::debug!(
                    "{}: {error}; waiting until the deletions can no longer land",
                    self.lease.key
                );
                self.lease.drain().await?;
                remaining = self.filter_existing(remaining).await?;
            }
        }
        Ok(())
    }

    async fn filter_existing(&self, paths: Vec<String>) -> Result<Vec<String>> {
        let lookups = paths.into_iter().map(|path| async move {
            let exists = self.store.is_file(&path).await?;
            Ok::<_, Error>(exists.then_some(path))
        });
        let existing: Vec<_> = stream::iter(lookups)
            .buffered(CONCURRENT_PARTS)
            .try_collect()
            .await?;
        Ok(existing.into_iter().flatten().collect())
    }

    /// Replaces the manifest that was listed. Without `keeps_marker` the marker was removed before, so one that is
    /// listed now is another publish's.
    pub(super) async fn put_manifest(&self, manifest: &Bytes, keeps_marker: bool) -> Result<()> {
        let path = self.path(MANIFEST);
        let mut e_tag = self.folder.e_tag(MANIFEST).map(str::to_owned);
        let (mut failures, begun_at) = (0, self.store.clock().monotonic());
        for _ in 0..MAX_STEP_ATTEMPTS {
            self.lease.check().await?;
            let condition = self.lease.unchanged_condition(e_tag.as_deref());
            let error = match self.store.put_if(&path, manifest.clone(), &condition).await {
                Ok(_) => return Ok(()),
                Err(e) if is_transient(&e) || is_refused(&e) || e.kind() == ErrorKind::NotFound => {
                    e
                }
                Err(e) => return Err(e),
            };
            if read_manifest_bytes(&self.store, self.lease.key)
                .await?
                .as_ref()
                == Some(manifest)
            {
                // What failed may have been the sync of its name.
                return self.sync_names().await;
            }
            let folder = list_dataset_folder(self.lease, &self.store).await?;
            if folder.is_marked() && !keeps_marker {
                return Err(self.concurrent_publish_error());
            }
            if is_transient(&error) {
                failures += 1;
                if !self.store.wait_before_resend(failures, begun_at).await {
                    return Err(error);
                }
            }
            e_tag = folder.e_tag(MANIFEST).map(str::to_owned);
        }
        Err(self.concurrent_publish_error())
    }

    pub(super) fn concurrent_publish_error(&self) -> Error {
        let message = "another publish changed the dataset during this one";
        Error::new(ErrorKind::Fenced, message).with_path(self.lease.key)
    }
}

/// Removes the version of a file that `condition` names; another version stays, without an error.
pub(super) async fn remove_version(store: &Store, path: &str, condition: &Condition) -> Result<()> {
    let mut sends = 0;
    loop {
        let Err(error) = store.delete_if(path, condition).await else {
            return Ok(());
        };
        sends += 1;
        match error.kind() {
            _ if sends == MAX_STEP_FAILURES => return Err(error),
            ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::AlreadyExists => {
                // NotFound may be the answer to a request that never reached the object; a conflict, that of a store
                // that was busy with this name.
                let current_e_tag = match store.head(path).await {
                    Ok(meta) => meta.e_tag,
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                    Err(e) => return Err(e),
                };
                let is_same_version = matches!(condition, Condition::Matches(e_tag) if current_e_tag.as_deref() == Some(e_tag));
                if !is_same_version && *condition != Condition::Always {
                    return Ok(());
                }
            }
            _ if is_transient(&error) => {}
            _ => return Err(error),
        }
    }
}

/// Lists the folder under the lease: a listing without the lease's version of the intent is repeated once the lease is
/// confirmed.
pub(super) async fn list_dataset_folder(
    lease: &PublishLease<'_>,
    store: &Store,
) -> Result<FolderState> {
    let folder = FolderState::list(store, lease.key).await?;
    if !lease.is_lock() && !lease.is_own_version(folder.intent_e_tag()).await {
        // The heartbeat may have rewritten the intent since it was listed.
        lease.rewrite(|_| ()).await?;
        let folder = FolderState::list(store, lease.key).await?;
        lease.check().await?;
        return Ok(folder);
    }
    Ok(folder)
}

/// Whether the store says that a condition did not hold.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}
