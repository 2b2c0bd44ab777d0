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
use super::vacuum::list;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, VersionedValue};

/// So many of the newest manifests are looked at: those that were not made from the one before belong to
/// no version.
const MAX_STRAYS: usize = 8;

/// The newest commit that the users of a store have seen of a table.
#[derive(Debug, Default)]
struct Newest(Mutex<Option<(u64, CommitId)>>);

impl Newest {
    fn locked(&self) -> MutexGuard<'_, Option<(u64, CommitId)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a pointer relates to what has been seen.
pub(super) enum Standing {
    /// Nothing newer is known.
    Newest,
    /// This version has been seen and is there.
    Behind(Box<TableManifest>),
    /// A newer version has been seen, and is not there any more.
    Unknown,
}

/// What the manifests say.
pub(super) enum Recovered {
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
        let newest = self.store.shared_state::<Newest>(self.root());
        let mut known = newest.locked();
        if known.as_ref().is_none_or(|(seen, _)| *seen < version) {
            *known = Some((version, commit_id.clone()));
        }
    }

    /// Whether a pointer names an older version than has been seen.
    pub(super) async fn standing(&self, pointer: &Pointer) -> Result<Standing> {
        let newest = self.store.shared_state::<Newest>(self.root());
        let seen = newest.locked().clone();
        let Some((version, commit_id)) = seen else {
            return Ok(Standing::Newest);
        };
        let is_same = version == pointer.version && commit_id == pointer.commit_id;
        if version < pointer.version || is_same {
            return Ok(Standing::Newest);
        }
        if version > pointer.version
            && let Some(manifest) = self.manifest(version).await?
            && manifest.commit_id == commit_id
        {
            return Ok(Standing::Behind(Box::new(manifest)));
        }
        // Vacuumed since, or of a table that was removed and another created in its place.
        let mut known = newest.locked();
        if known.as_ref().is_some_and(|(_, known)| *known == commit_id) {
            *known = None;
        }
        Ok(Standing::Unknown)
    }

    /// Finds the newest version by the manifests there are, and places the pointer at it.
    pub(super) async fn recover(&self, current: Option<&VersionedValue>) -> Result<Recovered> {
        let listed = list(self, names::MANIFESTS).await?;
        let versions = listed.keys().filter_map(|p| names::manifest_version(p));
        let versions: BTreeSet<u64> = versions.collect();
        for version in versions.iter().rev().take(MAX_STRAYS) {
            let Some(manifest) = self.manifest(*version).await? else {
                return Ok(Recovered::Changed);
            };
            if is_whole(&manifest, &versions) && self.follows(&manifest).await? {
                return self.place(current, manifest).await;
            }
        }
        let Some(newest) = versions.last() else {
            return Ok(Recovered::Nothing);
        };
        if current.is_none() && self.pointer().await?.is_some() {
            return Ok(Recovered::Changed);
        }
        let why = format!(
            "it is not there, and {} cannot be taken for the newest version: not all versions that it keeps \
             are there; put back what is missing, or remove the folder",
            names::manifest(*newest)
        );
        Err(corrupted_error(names::POINTER, &why).with_path(self.root()))
    }

    /// Whether a manifest was made from the version before it, where that is still there.
    async fn follows(&self, manifest: &TableManifest) -> Result<bool> {
        let Some(previous) = manifest.previous else {
            return Ok(true);
        };
        let before = self.manifest(previous).await?;
        Ok(before.is_none_or(|before| manifest.recent_commits.first() == Some(&before.commit_id)))
    }

    /// Places the pointer at a version, where there is none or one that is behind.
    pub(super) async fn place(
        &self,
        current: Option<&VersionedValue>,
        manifest: TableManifest,
    ) -> Result<Recovered> {
        let path = self.path(names::POINTER);
        let register = Register::new(&self.store, &path);
        let value = Pointer::for_manifest(&manifest).to_bytes();
        let version = manifest.version;
        let snapshot = |pointer| {
            self.observe(version, &manifest.commit_id);
            Recovered::Snapshot(Snapshot {
                manifest: Arc::new(manifest),
                pointer,
            })
        };
        let placed = match current {
            Some(current) if current.bytes == value => return Ok(snapshot(current.clone())),
            Some(current) => register.replace(current, value).await,
            None => register.create(value).await,
        };
        match (placed, current) {
            (Ok(CasResult::Won(pointer)), _) => {
                log::warn!(
                    "the pointer of the table {:?} was missing or old; it is at version {version} now",
                    self.root()
                );
                Ok(snapshot(pointer))
            }
            (Ok(CasResult::Conflict(_) | CasResult::Missing), _) => Ok(Recovered::Changed),
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
    pub(super) fn dangling(&self, pointer: &Pointer) -> Error {
        let why = "what the pointer names is not there";
        corrupted_error(&pointer.manifest, why).with_path(self.root())
    }
}

/// Whether all versions are there that a manifest says are kept.
fn is_whole(manifest: &TableManifest, versions: &BTreeSet<u64>) -> bool {
    let kept = manifest.oldest_version..=manifest.version;
    versions.range(kept).count() as u64 == manifest.version - manifest.oldest_version + 1
}
