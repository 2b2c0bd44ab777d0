//! The newest snapshot of a folder, and that of any retained version.
//!
//! The newest snapshot is never older than one that this process has read before ([`super::recover`]).
//!
//! Errors: [`ErrorKind::NotFound`] if it has no versions, [`ErrorKind::VersionExpired`] for a version that
//! has been vacuumed, [`ErrorKind::ManifestCorrupted`] for a pointer or manifest that is missing or
//! cannot be parsed, [`ErrorKind::PartCorrupted`] for any other object that a retained version or a chain of blocks
//! references and that is missing, and [`ErrorKind::Unavailable`] if it changes in every attempt to open it.

use std::sync::Arc;

use futures::join;

use super::ancestor::Ancestor;
use super::folder::{Folder, Snapshot};
use super::manifest::{ManifestHeader, Versioned};
use super::names;
use super::pointer::Pointer;
use super::recover::{PointerState, Recovery};
use crate::error::{Error, ErrorKind, Result, corrupted_error};

/// How often the newest snapshot is read again because it changed while it was read.
const MAX_RESTARTS: u32 = 20;

/// The error of a slice of a chain of blocks that was not found; `relative` is its path in the folder of the chain.
pub(crate) fn missing_slice_error(relative: &str, path: &str, error: Error) -> Error {
    let message = format!(
        "the slice {relative:?} is missing; a vacuum removes slices some time after they were merged: scan the newest \
         rows, or verify the dataset"
    );
    let missing = Error::new(ErrorKind::PartCorrupted, message);
    missing.with_path(path).with_source(error)
}

impl<M: Versioned> Folder<M> {
    /// Reads the newest snapshot; [`ErrorKind::NotFound`] if there is none.
    pub async fn newest(&self) -> Result<Snapshot<M>> {
        self.find_newest().await?.ok_or_else(|| {
            let message = format!("there is no {} at {:?}", M::NOUN, self.root());
            Error::new(ErrorKind::NotFound, message).with_path(self.root())
        })
    }

    /// Reads the newest snapshot; None if there is none. It is never older than one that this process
    /// has read before.
    pub(crate) async fn find_newest(&self) -> Result<Option<Snapshot<M>>> {
        let mut last_version = None;
        for _ in 0..MAX_RESTARTS {
            let (pointer, cached) = join!(self.read_pointer(), self.cached_manifest());
            let pointer = pointer?;
            let recovery = match &pointer {
                None => self.recover(None).await?,
                Some(current @ (pointer, parsed)) => match self.pointer_state(parsed).await? {
                    PointerState::Newest => Recovery::Nothing,
                    PointerState::Behind(manifest) => {
                        self.put_pointer(Some(pointer), *manifest).await?
                    }
                    PointerState::Unknown => self.recover(Some(current)).await?,
                },
            };
            match recovery {
                Recovery::Snapshot(snapshot) => return Ok(Some(snapshot)),
                Recovery::Changed => continue,
                Recovery::Nothing => {}
            }
            let Some(current) = pointer else {
                return Ok(None);
            };
            let parsed = &current.1;
            let is_named = |manifest: &M| Pointer::for_manifest(manifest) == *parsed;
            let candidate = match cached.filter(|manifest| is_named(manifest)) {
                Some(manifest) => Some(manifest),
                None => self.read_for_cache(parsed.version).await?,
            };
            if let Some(manifest) = candidate.filter(|manifest| is_named(manifest)) {
                let header = manifest.header();
                self.observe(header.version, header.commit_id);
                let pointer = current.0;
                return Ok(Some(Snapshot { manifest, pointer }));
            }
            // The version was vacuumed after the pointer was read, unless the pointer has not changed.
            if last_version.replace(parsed.version) == Some(parsed.version) {
                return match self.recover(Some(&current)).await? {
                    Recovery::Snapshot(snapshot) => Ok(Some(snapshot)),
                    Recovery::Nothing | Recovery::Changed => {
                        Err(self.dangling_pointer_error(parsed))
                    }
                };
            }
        }
        let message = format!(
            "gave up after {MAX_RESTARTS} attempts: the {} changed while it was opened; try again",
            M::NOUN
        );
        Err(Error::new(ErrorKind::Unavailable, message).with_path(self.root()))
    }

    /// Reads the manifest of a version. Fails with [`ErrorKind::InvalidInput`] if there is no such version
    /// yet, and with [`ErrorKind::VersionExpired`] if it has been vacuumed.
    pub async fn manifest_at(&self, version: u64) -> Result<Arc<M>> {
        let newest = self.newest().await?.manifest;
        self.manifest_before(newest, version).await
    }

    /// As [`Self::manifest_at`], for a caller who has read a manifest. Fails with [`ErrorKind::VersionExpired`], too, if the
    /// folder was removed and created again since: another version has the number.
    pub async fn manifest_at_since(&self, seen: &M, version: u64) -> Result<Arc<M>> {
        let newest = self.newest_since(seen).await?.manifest;
        let manifest = self.manifest_before(newest, version).await?;
        let known = seen.header().commit_id_of(version);
        if known.is_some_and(|commit_id| commit_id != manifest.header().commit_id) {
            return Err(self.replaced_error(seen));
        }
        Ok(manifest)
    }

    /// The newest version, for a caller who has read a manifest. Fails with [`ErrorKind::VersionExpired`] if the folder was
    /// removed and created again since, as far as can be told.
    pub async fn newest_since(&self, seen: &M) -> Result<Snapshot<M>> {
        let newest = self.newest().await?;
        if Box::pin(Ancestor::of(seen).is_replaced(self, &*newest.manifest)).await {
            return Err(self.replaced_error(seen));
        }
        Ok(newest)
    }

    /// The manifest of the newest version or of one before it.
    async fn manifest_before(&self, newest: Arc<M>, version: u64) -> Result<Arc<M>> {
        if newest.header().version == version {
            return Ok(newest);
        }
        let candidate = if newest.header().retains(version) {
            self.read_manifest(version).await?
        } else {
            None
        };
        // It may have been vacuumed between the two requests, and a late manifest may have taken its slot.
        let newest = self.newest().await?.manifest;
        let newest = newest.header();
        if let Some(manifest) = candidate.filter(|_| newest.retains(version)) {
            return Ok(Arc::new(manifest));
        }
        if version > newest.version || version == 0 {
            let message = format!(
                "there is no version {version}; the newest is {}",
                newest.version
            );
            return Err(Error::invalid(message).with_path(self.root()));
        }
        if newest.retains(version) {
            return Err(
                corrupted_error(&names::manifest(version), "it is missing").with_path(self.root())
            );
        }
        Err(self.version_expired_error(version, newest))
    }

    /// The error of an object that a version references and that was not found: the version has been
    /// vacuumed, or the object is missing. Returns any other error unchanged.
    pub(crate) async fn missing_object_error(
        &self,
        version: u64,
        path: &str,
        error: Error,
    ) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        match self.newest().await {
            Ok(newest) if !newest.manifest.header().retains(version) => {
                self.version_expired_error(version, newest.manifest.header())
            }
            Ok(_) => {
                let message = format!("version {version} references {path:?}, which is missing");
                let not_found = Error::new(ErrorKind::PartCorrupted, message);
                not_found.with_path(self.path(path)).with_source(error)
            }
            Err(unread) => {
                // A chain of blocks has no pointer, and names its files itself.
                if unread.kind() == ErrorKind::NotFound && self.has_chain().await {
                    return missing_slice_error(path, &self.path(path), error);
                }
                // Without the pointer nobody knows whether it has been vacuumed or is lost.
                unread.context(format!("version {version} lacks {path:?}"))
            }
        }
    }

    /// As [`Self::missing_object_error`], of what a manifest references that was read before: the folder may have been
    /// removed, and created again.
    pub(crate) async fn missing_reference_error(
        &self,
        manifest: &M,
        path: &str,
        error: Error,
    ) -> Error {
        let version = manifest.header().version;
        if error.kind() == ErrorKind::NotFound
            && let Ok(newest) = self.newest().await
            && Box::pin(Ancestor::of(manifest).is_replaced(self, &*newest.manifest)).await
        {
            return self.replaced_error(manifest).with_source(error);
        }
        self.missing_object_error(version, path, error).await
    }

    /// The error of a manifest whose folder was removed and created again.
    fn replaced_error(&self, seen: &M) -> Error {
        let message = format!(
            "version {version} is of a {noun} that was removed, and another {noun} was created in its place",
            version = seen.header().version,
            noun = M::NOUN
        );
        Error::new(ErrorKind::VersionExpired, message).with_path(self.root())
    }

    /// Whether the folder holds a chain of blocks. An error of the store counts as none.
    async fn has_chain(&self) -> bool {
        let head = self.path(names::CHAIN_HEAD);
        self.store().is_file(&head).await.unwrap_or(false)
    }

    pub(crate) fn version_expired_error(&self, version: u64, newest: ManifestHeader<'_>) -> Error {
        let message = format!(
            "version {version} has been vacuumed; the oldest available version is {}",
            newest.oldest_version
        );
        Error::new(ErrorKind::VersionExpired, message).with_path(self.root())
    }
}
