//! A table whose pointer is not there, or names an older version than is known: its manifests are the table.
//!
//! What it has to stand:
//!
//! - The creator ended after `v1` and before the pointer: version 1 is the table.
//! - The pointer was removed, or an older copy of it put back, or a cache serves one: the newest manifest is
//!   the table, and the pointer is placed at it, by a create or by a replace of the old one. So a reader never
//!   shows version 1, or one before that it has seen, as if it were all.
//! - A writer had read the pointer before it was lost and goes on: its create of v(N+1) is a commit as ever.
//!   Where it then finds no pointer to move, it finds the newest manifest as everybody does, which is its own.
//! - Two place the pointer at once: one create lands, the other reads again.
//! - A create of the pointer arrives late, when the pointer was placed, moved on and lost once more: it names
//!   an older version than there is. Writers go forward from it as from any pointer that is behind, and who
//!   has seen a newer version places that. A replace never arrives late: its condition does not hold any more.
//! - The table was removed, and a manifest of a late writer landed in its place: the versions before it, which
//!   it says are kept, are not there. That is no table, and no place for a new one either: its versions would
//!   come to the slot that is taken.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::format::{CommitId, Pointer, TableManifest, corrupted_error};
use super::names;
use super::snapshot::{Snapshot, Table};
use super::vacuum::list_objects;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, VersionedValue};

/// So many of the newest manifests are looked at: those that were not made from the one before belong to
/// no version.
const MAX_STRAY_MANIFESTS: usize = 8;

/// The newest commit that the users of a store have seen of a table.
#[derive(Debug, Default)]
struct NewestCommit(Mutex<Option<(u64, CommitId)>>);

impl NewestCommit {
    fn lock(&self) -> MutexGuard<'_, Option<(u64, CommitId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pointer relates to what has been seen.
pub(super) enum PointerState {
    /// Nothing newer is known.
    Newest,
    /// This version has been seen and is there.
    Behind(Box<TableManifest>),
    /// A newer version has been seen, and is not there any more.
    Unknown,
}

/// What the manifests say.
pub(super) enum Recovery {
    /// A table.
    Snapshot(Snapshot),
    /// There is none.
    Nothing,
    /// Somebody else placed a pointer meanwhile.
    Changed,
}

impl Table {
    /// Remembers a commit that has been seen, so that nobody here goes back behind it.
    pub(super) fn observe(&self, version: u64, commit_id: &CommitId) {
        let newest = self.store.shared_state::<NewestCommit>(self.root());
        let mut newest_commit = newest.lock();
        if newest_commit
            .as_ref()
            .is_none_or(|(newest_version, _)| *newest_version < version)
        {
            *newest_commit = Some((version, commit_id.clone()));
        }
    }

    /// Whether a pointer names an older version than has been seen.
    pub(super) async fn pointer_state(&self, pointer: &Pointer) -> Result<PointerState> {
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
            && manifest.commit_id == commit_id
        {
            return Ok(PointerState::Behind(Box::new(manifest)));
        }
        // Vacuumed since, or of a table that was removed and another created in its place.
        let mut guard = newest.lock();
        if guard
            .as_ref()
            .is_some_and(|(_, newest_id)| *newest_id == commit_id)
        {
            *guard = None;
        }
        Ok(PointerState::Unknown)
    }

    /// Finds the newest version by the manifests there are, and places the pointer at it.
    pub(super) async fn recover(&self, current: Option<&VersionedValue>) -> Result<Recovery> {
        let objects = list_objects(self, names::MANIFESTS).await?;
        let parsed = objects.keys().filter_map(|p| names::manifest_version(p));
        let versions: BTreeSet<u64> = parsed.collect();
        for version in versions.iter().rev().take(MAX_STRAY_MANIFESTS) {
            let Some(manifest) = self.read_manifest(*version).await? else {
                return Ok(Recovery::Changed);
            };
            if has_all_versions(&manifest, &versions) && self.extends_previous(&manifest).await? {
                return self.put_pointer(current, manifest).await;
            }
        }
        let Some(newest) = versions.last() else {
            return Ok(Recovery::Nothing);
        };
        if current.is_none() && self.read_pointer().await?.is_some() {
            return Ok(Recovery::Changed);
        }
        let reason = format!(
            "it is not there, and {} cannot be taken for the newest version: not all versions that it keeps \
             are there; put back what is missing, or remove the folder",
            names::manifest(*newest)
        );
        Err(corrupted_error(names::POINTER, &reason).with_path(self.root()))
    }

    /// Whether a manifest was made from the version before it, where that is still there.
    async fn extends_previous(&self, manifest: &TableManifest) -> Result<bool> {
        let Some(previous) = manifest.previous else {
            return Ok(true);
        };
        let parent = self.read_manifest(previous).await?;
        Ok(parent.is_none_or(|parent| manifest.recent_commits.first() == Some(&parent.commit_id)))
    }

    /// Places the pointer at a version, where there is none or one that is behind.
    pub(super) async fn put_pointer(
        &self,
        current: Option<&VersionedValue>,
        manifest: TableManifest,
    ) -> Result<Recovery> {
        let path = self.path(names::POINTER);
        let register = Register::new(&self.store, &path);
        let pointer_bytes = Pointer::for_manifest(&manifest).to_bytes();
        let version = manifest.version;
        let snapshot = |pointer| {
            self.observe(version, &manifest.commit_id);
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
            (Ok(CasResult::Won(pointer)), _) => {
                log::warn!(
                    "the pointer of the table {:?} was missing or old; it is at version {version} now",
                    self.root()
                );
                Ok(snapshot(pointer))
            }
            (Ok(CasResult::Conflict(_) | CasResult::Missing), _) => Ok(Recovery::Changed),
            // Who may only read, or through a cache that is behind, sees what there is.
            (Err(e), Some(current))
                if matches!(
                    e.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::Unavailable
                ) =>
            {
                log::warn!("the pointer of {:?} is old and stays so: {e}", self.root());
                Ok(snapshot(current.clone()))
            }
            (Err(e), _) => {
                let context = "the pointer of the table is missing or old and could not be placed; \
                               open the table once with the right to write";
                Err(e.context(context))
            }
        }
    }

    /// The error of a pointer to nothing.
    pub(super) fn dangling_pointer_error(&self, pointer: &Pointer) -> Error {
        let reason = "what the pointer names is not there";
        corrupted_error(&pointer.manifest, reason).with_path(self.root())
    }
}

/// Whether all versions are there that a manifest says are kept.
fn has_all_versions(manifest: &TableManifest, versions: &BTreeSet<u64>) -> bool {
    let retained = manifest.oldest_version..=manifest.version;
    versions.range(retained).count() as u64 == manifest.version - manifest.oldest_version + 1
}
