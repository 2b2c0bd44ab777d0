//! Recovers the pointer of a table from its manifests, if the pointer is missing or names an older version
//! than one that was read before.
//!
//! The newest manifest whose retained versions all exist is the newest version, and the pointer is put at
//! it by a create or a conditional replace. A folder with manifests that form no table is an
//! [`ErrorKind::ManifestCorrupted`]. Without write permission a reader of an old pointer gets the newest
//! snapshot all the same, but a missing pointer is an error.
//!
//! Cases that it handles:
//!
//! - The creator crashed after `v1` and before the pointer: version 1 is the table.
//! - The pointer was removed, or overwritten by an older copy, or a cache serves an older one: the newest
//!   manifest is the table. So a reader never takes version 1, or a version older than one that it has read,
//!   for the newest.
//! - A writer read the pointer before it was lost: its create of v(N+1) is a commit as usual. When it finds no
//!   pointer to advance, it searches the newest manifest like every other process and finds its own.
//! - Two processes put the pointer at once: one create succeeds, the other process reads again.
//! - A create of the pointer arrives late, after the pointer was put, advanced and lost once more: it names an
//!   older version than the newest. Writers go on from it as from any pointer that is behind, and a process
//!   that has read a newer version puts the pointer at that. A replace cannot arrive late: its condition does
//!   not hold any more.
//! - The newest manifest is missing, as after a late repeated DELETE of a table that was here before: a pointer never
//!   goes back, so it dangles, which is an [`ErrorKind::ManifestCorrupted`].
//! - The table is being removed: a pointer that was put beside it is taken back once its manifest is gone. One that a
//!   crash leaves dangles, until the removal is repeated.
//! - The table was removed, and then a manifest of a late writer landed in its folder: the versions that this
//!   manifest retains do not exist. It is no table, and no new table can be created either: the new table's
//!   versions would reach the occupied slot.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use object_store::GetOptions;

use super::commit_id::CommitId;
use super::folder::{Folder, Snapshot, list_objects};
use super::manifest::Versioned;
use super::names;
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::store::cas::{CasResult, Register, VersionedValue};
use crate::sync::mutex;

/// How many of the newest manifests are tried: a manifest that was not created from the version before it
/// is no version of the table.
const MAX_STRAY_MANIFESTS: usize = 8;

/// The newest commit of a folder that this process has read through a store.
#[derive(Debug, Default)]
struct NewestCommit(Mutex<Option<(u64, CommitId)>>);

impl NewestCommit {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, CommitId)>> {
        mutex::lock(&self.0)
    }
}

/// How a pointer compares with the newest commit that this process has read.
pub(super) enum PointerState<M> {
    /// No newer version is known.
    Newest,
    /// A newer version was read before and still exists: this manifest.
    Behind(Box<M>),
    /// Another version or commit was read before, and does not exist any more.
    Unknown,
}

/// The result of a recovery.
pub(super) enum Recovery<M> {
    /// The newest snapshot, at which the pointer is now.
    Snapshot(Snapshot<M>),
    /// No manifest can be the newest: all are missing, or older than the version of the pointer.
    Nothing,
    /// Another process changed the pointer or the manifests: read again.
    Changed,
}

impl<M: Versioned> Folder<M> {
    /// Remembers a commit, so that this process never takes an older version for the newest.
    pub(crate) fn observe(&self, version: u64, commit_id: &CommitId) {
        let newest = self.store.shared_state::<NewestCommit>(self.root());
        let mut newest_commit = newest.lock();
        if newest_commit
            .as_ref()
            .is_none_or(|(newest_version, _)| *newest_version < version)
        {
            *newest_commit = Some((version, commit_id.clone()));
        }
    }

    /// Whether this process has read no other commit that is as new as that of a pointer, or newer.
    pub(super) fn is_newest_known(&self, pointer: &Pointer) -> bool {
        let newest = self.store.shared_state::<NewestCommit>(self.root());
        let newest_commit = newest.lock();
        newest_commit.as_ref().is_none_or(|(version, commit_id)| {
            let is_same = *version == pointer.version && *commit_id == pointer.commit_id;
            *version < pointer.version || is_same
        })
    }

    /// Compares a pointer with the newest commit that this process has read.
    pub(super) async fn pointer_state(&self, pointer: &Pointer) -> Result<PointerState<M>> {
        let newest = self.store.shared_state::<NewestCommit>(self.root());
        let newest_commit = newest.lock().clone();
        let Some((version, commit_id)) = newest_commit else {
            return Ok(PointerState::Newest);
        };
        let is_same = version == pointer.version && commit_id == pointer.commit_id;
        if version < pointer.version || is_same {
            return Ok(PointerState::Newest);
        }
        if version > pointer.version
            && let Some(manifest) = self.read_manifest(version).await?
            && *manifest.header().commit_id == commit_id
        {
            return Ok(PointerState::Behind(Box::new(manifest)));
        }
        // The commit was vacuumed, or its table was removed and another one created in its folder.
        let mut guard = newest.lock();
        if guard
            .as_ref()
            .is_some_and(|(_, newest_id)| *newest_id == commit_id)
        {
            *guard = None;
        }
        Ok(PointerState::Unknown)
    }

    /// Finds the newest version by listing the manifests, and puts the pointer at it. A version before that of the
    /// `current` pointer is not taken.
    pub(super) async fn recover(
        &self,
        current: Option<&(VersionedValue, Pointer)>,
    ) -> Result<Recovery<M>> {
        let min_version = current.map_or(0, |(_, pointer)| pointer.version);
        let objects = list_objects(self, names::MANIFESTS).await?;
        let versions: BTreeSet<u64> = objects
            .keys()
            .filter_map(|p| names::manifest_version(p))
            .collect();
        for version in versions
            .range(min_version..)
            .rev()
            .take(MAX_STRAY_MANIFESTS)
        {
            let manifest = match self.read_manifest(*version).await {
                // The pointer says which manifests count.
                Err(e) if current.is_some() && e.kind() == ErrorKind::ManifestCorrupted => continue,
                read => read?,
            };
            let Some(manifest) = manifest else {
                return Ok(Recovery::Changed);
            };
            if has_all_versions(&manifest, &versions) && self.extends_previous(&manifest).await? {
                return self.put_pointer(current.map(|c| &c.0), manifest).await;
            }
        }
        if current.is_some() {
            return Ok(Recovery::Nothing);
        }
        let Some(newest) = versions.last() else {
            return Ok(Recovery::Nothing);
        };
        if self.read_pointer().await?.is_some() {
            return Ok(Recovery::Changed);
        }
        let reason = format!(
            "it is missing, and {} is not the newest version of a {}, because versions that it retains \
             are missing; restore the missing objects, or remove the folder",
            names::manifest(*newest),
            M::NOUN
        );
        Err(corrupted_error(names::POINTER, &reason).with_path(self.root()))
    }

    /// Whether a manifest was created from the version before it; true if that does not exist any more.
    async fn extends_previous(&self, manifest: &M) -> Result<bool> {
        let header = manifest.header();
        let Some(previous) = header.previous else {
            return Ok(true);
        };
        let parent = self.read_manifest(previous).await?;
        Ok(parent.is_none_or(|p| header.recent_commits.first() == Some(p.header().commit_id)))
    }

    /// Puts the pointer at a version: creates it, or replaces `current`, which is behind.
    pub(super) async fn put_pointer(
        &self,
        current: Option<&VersionedValue>,
        manifest: M,
    ) -> Result<Recovery<M>> {
        let path = self.path(names::POINTER);
        let register = Register::new(&self.store, &path);
        let pointer_bytes = Pointer::for_manifest(&manifest).to_bytes();
        let version = manifest.header().version;
        let snapshot = |pointer| {
            self.observe(version, manifest.header().commit_id);
            Recovery::Snapshot(Snapshot {
                manifest: Arc::new(manifest),
                pointer,
            })
        };
        let put_result = match current {
            Some(current) if current.bytes == pointer_bytes => {
                return Ok(snapshot(current.clone()));
            }
            Some(current) => register.replace(current, pointer_bytes).await,
            None => register.create(pointer_bytes).await,
        };
        match (put_result, current) {
            (Ok(CasResult::Won(pointer)), None) if !self.is_pointed_at(&pointer.bytes).await? => {
                // All versions are being removed.
                self.take_back(&pointer.bytes).await?;
                Ok(Recovery::Changed)
            }
            (Ok(CasResult::Won(pointer)), _) => {
                log::warn!(
                    "the pointer of the {} {:?} was missing or behind; it is at version {version} now",
                    M::NOUN,
                    self.root()
                );
                Ok(snapshot(pointer))
            }
            (Ok(CasResult::Conflict(_) | CasResult::Missing), _) => Ok(Recovery::Changed),
            // Without write permission, or through a cache that is behind, the snapshot can still be read.
            (Err(e), Some(current))
                if matches!(
                    e.kind(),
                    ErrorKind::PermissionDenied
                        | ErrorKind::Unavailable
                        | ErrorKind::Locked
                        | ErrorKind::Other
                ) =>
            {
                log::warn!(
                    "the pointer of the {} {:?} is behind and could not be replaced: {e}",
                    M::NOUN,
                    self.root()
                );
                Ok(snapshot(current.clone()))
            }
            (Err(e), _) => {
                let context = format!(
                    "the pointer of the {noun} is missing or behind and could not be written; open the {noun} once \
                     with write permission",
                    noun = M::NOUN
                );
                Err(e.context(context))
            }
        }
    }

    /// Whether the manifest that a pointer names is there, and that of the oldest version, which a removal removes first.
    pub(super) async fn is_pointed_at(&self, pointer_bytes: &[u8]) -> Result<bool> {
        let pointer = Pointer::parse(pointer_bytes, M::FORMAT)?;
        let manifest = self.read_manifest(pointer.version).await?;
        let is_named = manifest.is_some_and(|manifest| Pointer::for_manifest(&manifest) == pointer);
        if pointer.oldest_version == pointer.version {
            return Ok(is_named);
        }
        Ok(is_named && self.read_manifest(pointer.oldest_version).await?.is_some())
    }

    /// Removes a pointer, unless others have replaced it.
    pub(super) async fn take_back(&self, pointer_bytes: &[u8]) -> Result<()> {
        let path = self.path(names::POINTER);
        let read = self
            .store
            .get_at_most(&path, GetOptions::default(), MAX_POINTER_BYTES);
        match read.await {
            Ok((bytes, meta)) if bytes == pointer_bytes => {
                let e_tag = meta.e_tag.as_deref();
                self.store.delete_unchanged(&path, e_tag).await.map(drop)
            }
            Ok(_) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::TooLarge) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The error of a pointer whose manifest does not exist or is another commit's.
    pub(super) fn dangling_pointer_error(&self, pointer: &Pointer) -> Error {
        let reason = "the pointer names it, but it is missing or of another commit";
        corrupted_error(&pointer.manifest, reason).with_path(self.root())
    }
}

/// Whether all versions exist from the oldest that a manifest retains to its own.
fn has_all_versions<M: Versioned>(manifest: &M, versions: &BTreeSet<u64>) -> bool {
    let header = manifest.header();
    let retained = header.oldest_version..=header.version;
    let count = header.version - header.oldest_version + 1;
    versions.range(retained).count() as u64 == count
}
