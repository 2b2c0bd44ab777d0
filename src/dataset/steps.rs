//! The steps of a publish and of a delete, each of which can be repeated and each of which is refused
//! where it would hit what another publish left: the marker goes, parts come, strays go, the manifest
//! comes, the marker comes.
//!
//! Every request names the version that was listed under the lease, or that nothing is there. Where the
//! store cannot check that, or a version can recur, the request is bounded in time instead (see
//! [`super::lease`]).

use std::collections::HashSet;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::folder::{
    FolderState, is_part_name, is_sealed, listed_parts, manifest_bytes, part_matches,
};
use super::intent::{Base, IntendedPart};
use super::lease::{Lease, Sent};
use super::register::is_open;
use super::{MANIFEST, SUCCESS, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::store::local::{TEMP_PREFIX, is_abandoned};
use crate::store::{Condition, Store, path};

/// Parts published, looked at or removed at once.
pub(super) const CONCURRENT_PARTS: usize = 16;
/// How often a step is adapted to what came meanwhile.
const MAX_ADAPTIONS: u32 = 20;
/// How often a request is sent that is refused although its condition holds (409 of a busy store).
const MAX_REFUSALS: u32 = 5;

/// Why a step could not be done.
#[derive(Debug)]
pub(super) enum StepError {
    /// A staged part is gone, and not published either.
    PartGone(Error),
    /// The lease was lost while the removal of the marker was under way: it may have hit a later dataset.
    MarkerInDoubt(Error),
    /// Anything else.
    Other(Error),
}

impl From<Error> for StepError {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

/// What a write wants to be there.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) overwrite: bool,
    pub(super) manifest: Bytes,
    pub(super) parts: Vec<IntendedPart>,
}

impl Publication {
    /// Whether the manifest that is there is this write's. Two writes that were begun in the same
    /// microsecond have the same manifest; their parts differ.
    pub(super) async fn has_manifest(&self, lease: &Lease<'_>) -> Result<bool> {
        let bytes = manifest_bytes(lease.store, lease.key).await?;
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

/// What is carried out under a lease, and on what folder.
#[derive(Debug)]
pub(super) struct Steps<'l, 'a> {
    pub(super) lease: &'l Lease<'a>,
    /// The store; local work on it keeps the lock.
    pub(super) store: Store,
    pub(super) folder: FolderState,
}

impl<'l, 'a> Steps<'l, 'a> {
    /// Lists the folder, in which our version of the intent must be.
    pub(super) async fn begin(lease: &'l Lease<'a>) -> Result<Self> {
        let store = lease.held_store().await;
        let folder = list(lease, &store).await?;
        Ok(Self {
            lease,
            store,
            folder,
        })
    }

    /// Lists the folder again, after something was met that the last listing does not show.
    pub(super) async fn list_again(&mut self) -> Result<()> {
        self.folder = list(self.lease, &self.store).await?;
        Ok(())
    }

    /// What is in the folder, to be told from what comes later.
    pub(super) async fn base(&self) -> Result<Base> {
        if !self.lease.is_lock() {
            return Ok(self.folder.base());
        }
        let manifest = manifest_bytes(&self.store, self.lease.key).await?;
        Ok(self.folder.base_by_content(manifest.as_deref()))
    }

    fn path(&self, name: &str) -> String {
        path::join(self.lease.key, name)
    }

    /// Removes the marker.
    pub(super) async fn remove_marker(&self) -> Result<(), StepError> {
        let path = self.path(SUCCESS);
        let condition = if self.lease.conditions.marker_versions {
            self.lease.unchanged(self.folder.e_tag(SUCCESS))
        } else {
            Condition::Always
        };
        let mut refusals = 0;
        loop {
            let sent = self.lease.bounded(|store| {
                let (path, condition) = (path.clone(), condition.clone());
                async move { store.delete_if(&path, &condition).await }
            });
            match sent.await {
                Ok(Sent::Done(_)) => return Ok(()),
                Ok(Sent::Unknown(error)) => {
                    log::debug!("{path}: {error}; waiting until it can no longer be removed late");
                    self.lease.drain().await.map_err(|e| match e.kind() {
                        ErrorKind::Superseded => StepError::MarkerInDoubt(e),
                        _ => StepError::Other(e),
                    })?;
                    if !self.store.is_file(&path).await? {
                        return Ok(());
                    }
                }
                // Another marker is there, so another publish is; or the store was busy with this one.
                Err(e) if is_refused(&e) => {
                    let folder = list(self.lease, &self.store).await?;
                    match folder.e_tag(SUCCESS) {
                        None => return Ok(()),
                        same if same == self.folder.e_tag(SUCCESS) => {}
                        Some(_) => return Err(self.overtaken().into()),
                    }
                    refusals += 1;
                    if refusals == MAX_REFUSALS {
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
        let condition = self.lease.unchanged(None);
        let mut refusals = 0;
        loop {
            let sent = self.lease.bounded(|store| {
                let (path, condition) = (path.clone(), condition.clone());
                async move { store.put_if(&path, Bytes::new(), &condition).await }
            });
            match sent.await {
                Ok(Sent::Done(_)) => return Ok(()),
                Ok(Sent::Unknown(error)) => {
                    log::debug!("{path}: {error}; waiting until it can no longer come late");
                    self.lease.drain().await?;
                    if self.store.is_file(&path).await? {
                        return Ok(());
                    }
                }
                // It is there, or the store was busy with this name.
                Err(e) if is_refused(&e) => {
                    if self.store.is_file(&path).await? {
                        return Ok(());
                    }
                    refusals += 1;
                    if refusals == MAX_REFUSALS {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Publishes the parts under their names. Uploads that were begun for another name come last and one
    /// by one, in order: each takes its name after the part that was begun for that name has left it.
    pub(super) async fn publish_parts(&mut self, parts: &[IntendedPart]) -> Result<(), StepError> {
        let key = self.lease.key;
        let (moved, direct): (Vec<_>, Vec<_>) = parts
            .iter()
            .partition(|part| part.moved_from(key).is_some());
        for chunk in direct.chunks(CONCURRENT_PARTS) {
            let this = &*self;
            let published = chunk.iter().map(|part| this.publish_part(part));
            stream::iter(published)
                .buffer_unordered(CONCURRENT_PARTS)
                .try_collect::<()>()
                .await?;
        }
        for part in moved {
            self.publish_part(part).await?;
        }
        Ok(())
    }

    /// Publishes one part, or finds that it is.
    async fn publish_part(&self, part: &IntendedPart) -> Result<(), StepError> {
        let target = self.path(&part.name);
        let mut e_tag = self.folder.e_tag(&part.name).map(str::to_owned);
        let mut failures = 0;
        for _ in 0..MAX_ADAPTIONS {
            self.lease.check().await?;
            let error = match self.send_part(part, &target, e_tag.as_deref()).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let repeatable = is_open(&error) || is_refused(&error);
            if !repeatable && error.kind() != ErrorKind::NotFound {
                return Err(error.into());
            }
            if part_matches(&self.store, &target, &self.lease.id, part).await? {
                return Ok(());
            }
            if let Some(begun_for) = part.moved_from(self.lease.key)
                && part_matches(&self.store, begun_for, &self.lease.id, part).await?
            {
                self.store.rename(begun_for, &target).await?;
                return Ok(());
            }
            let intact = part.staged.is_intact(&self.store, part.bytes).await?;
            if error.kind() == ErrorKind::NotFound && !intact {
                let why = format!("part {:?} of the write is gone", part.name);
                return Err(StepError::PartGone(
                    incomplete(self.lease.key, &why).caused_by(error),
                ));
            }
            if is_open(&error) && !intact {
                continue;
            }
            // Something came late: under our intent it is replaced like what was listed.
            let folder = list(self.lease, &self.store).await?;
            let there = folder.e_tag(&part.name).map(str::to_owned);
            failures += u32::from(is_open(&error) && there == e_tag);
            if failures == MAX_REFUSALS {
                return Err(error.into());
            }
            e_tag = there;
        }
        Err(self.overtaken().into())
    }

    async fn send_part(
        &self,
        part: &IntendedPart,
        target: &str,
        e_tag: Option<&str>,
    ) -> Result<()> {
        let condition = if part.is_inline() || self.lease.conditions.complete {
            self.lease.unchanged(e_tag)
        } else {
            // An upload's identity works once.
            Condition::Always
        };
        // A PUT of a name that was not there would hold again after a delete.
        if part.is_inline() && condition == Condition::Absent {
            let sent = self.lease.bounded(|store| {
                let condition = condition.clone();
                async move { part.staged.publish_if(&store, target, &condition).await }
            });
            return match sent.await? {
                Sent::Done(_) => Ok(()),
                Sent::Unknown(error) => {
                    self.lease.drain().await?;
                    Err(error.with_kind(ErrorKind::Unavailable))
                }
            };
        }
        let published = part.staged.publish_if(&self.store, target, &condition);
        published.await.map(drop)
    }

    /// Removes what the new dataset does not have, as it was listed: parts of the old one, parts that
    /// interrupted writes left, other attempts of the write's tasks.
    pub(super) async fn remove_strays(
        &self,
        parts: &[IntendedPart],
        base_was_marked: bool,
        overwrite: bool,
    ) -> Result<()> {
        let strays = self.strays(parts, base_was_marked, overwrite).await?;
        self.remove_listed(&strays).await
    }

    async fn strays(
        &self,
        parts: &[IntendedPart],
        base_was_marked: bool,
        overwrite: bool,
    ) -> Result<Vec<String>> {
        let key = self.lease.key;
        let kept: HashSet<&str> = parts.iter().map(|p| p.name.as_str()).collect();
        let staged: HashSet<&str> = parts.iter().filter_map(|p| p.staged.path()).collect();
        let attempts = format!("{TEMP_PREFIX}w{}-", self.lease.id);
        let is_attempt = |name: &str| {
            name.starts_with(&attempts) && !staged.contains(path::join(key, name).as_str())
        };
        let names = || {
            self.folder
                .files
                .keys()
                .filter(|name| !kept.contains(name.as_str()))
        };
        let mut strays: Vec<String> = names()
            .filter(|name| is_attempt(name) || is_abandoned(name))
            .cloned()
            .collect();
        let has_parts = names().any(|name| is_part_name(name));
        let ours_to_replace = base_was_marked || overwrite;
        let listed = if self.folder.has_foreign_parts() || (has_parts && !ours_to_replace) {
            listed_parts(&self.store, key).await?
        } else {
            Vec::new()
        };
        for name in names() {
            let is_listed = listed.contains(name);
            let goes = match is_part_name(name) {
                _ if is_listed => true,
                true => ours_to_replace || is_sealed(&self.store, &self.path(name)).await?,
                false => false,
            };
            if goes && !super::is_reserved(name) {
                strays.push(name.clone());
            }
        }
        Ok(strays)
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
            return self.remove_bounded(names).await;
        }
        for chunk in names.chunks(CONCURRENT_PARTS) {
            self.lease.check().await?;
            let removals = chunk.iter().map(|name| async move {
                let path = self.path(name);
                let condition = self.lease.unchanged(self.folder.e_tag(name));
                remove_version(&self.store, &path, &condition).await
            });
            stream::iter(removals)
                .buffer_unordered(CONCURRENT_PARTS)
                .try_collect::<()>()
                .await?;
        }
        Ok(())
    }

    /// Where a DELETE has no condition: what is asked once is waited for.
    async fn remove_bounded(&self, names: &[String]) -> Result<()> {
        let mut left: Vec<String> = names.iter().map(|name| self.path(name)).collect();
        for _ in 0..MAX_ADAPTIONS {
            let sent = self.lease.bounded(|store| {
                let paths = left.clone();
                async move { store.delete_all(&paths).await }
            });
            match sent.await? {
                Sent::Done(()) => return Ok(()),
                Sent::Unknown(error) => log::debug!("{}: {error}", self.lease.key),
            }
            self.lease.drain().await?;
            let folder = list(self.lease, &self.store).await?;
            let is_there = |path: &String| {
                let name = path.rsplit('/').next().unwrap_or_default();
                folder.files.contains_key(name)
            };
            left.retain(is_there);
            if left.is_empty() {
                return Ok(());
            }
        }
        Err(self.overtaken())
    }

    /// Puts the manifest in the place of the one that was listed. `keeps_marker`: ours stays all the time.
    pub(super) async fn put_manifest(&self, manifest: &Bytes, keeps_marker: bool) -> Result<()> {
        let path = self.path(MANIFEST);
        let mut e_tag = self.folder.e_tag(MANIFEST).map(str::to_owned);
        let mut failures = 0;
        for _ in 0..MAX_ADAPTIONS {
            self.lease.check().await?;
            let condition = self.lease.unchanged(e_tag.as_deref());
            let error = match self.store.put_if(&path, manifest.clone(), &condition).await {
                Ok(_) => return Ok(()),
                Err(e) if is_open(&e) || is_refused(&e) || e.kind() == ErrorKind::NotFound => e,
                Err(e) => return Err(e),
            };
            if manifest_bytes(&self.store, self.lease.key).await?.as_ref() == Some(manifest) {
                return Ok(());
            }
            let folder = list(self.lease, &self.store).await?;
            if folder.is_marked() && !keeps_marker {
                return Err(self.overtaken());
            }
            failures += u32::from(is_open(&error));
            if failures == 4 {
                return Err(error);
            }
            e_tag = folder.e_tag(MANIFEST).map(str::to_owned);
        }
        Err(self.overtaken())
    }

    fn overtaken(&self) -> Error {
        let message = "another publish changed the dataset meanwhile";
        Error::new(ErrorKind::Superseded, message).at(self.lease.key)
    }
}

/// Removes a version of a file; another version is not what was to go.
pub(super) async fn remove_version(store: &Store, path: &str, condition: &Condition) -> Result<()> {
    let mut sends = 0;
    loop {
        let Err(error) = store.delete_if(path, condition).await else {
            return Ok(());
        };
        sends += 1;
        match error.kind() {
            _ if sends == MAX_REFUSALS => return Err(error),
            ErrorKind::NotFound | ErrorKind::Conflict | ErrorKind::AlreadyExists => {
                // The request may be what was not found, or the store was busy with this name.
                let there = match store.head(path).await {
                    Ok(meta) => meta.e_tag,
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
                    Err(e) => return Err(e),
                };
                let same = matches!(condition, Condition::Matches(e_tag) if there.as_deref() == Some(e_tag));
                if !same && *condition != Condition::Always {
                    return Ok(());
                }
            }
            _ if is_open(&error) => {}
            _ => return Err(error),
        }
    }
}

async fn list(lease: &Lease<'_>, store: &Store) -> Result<FolderState> {
    let folder = FolderState::list(store, lease.key).await?;
    if !lease.is_lock() && !lease.is_version(folder.intent()).await {
        // The heartbeat may have written it anew since it was listed.
        lease.rewrite(|_| ()).await?;
        let folder = FolderState::list(store, lease.key).await?;
        lease.check().await?;
        return Ok(folder);
    }
    Ok(folder)
}

/// Whether a condition did not hold.
fn is_refused(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}
