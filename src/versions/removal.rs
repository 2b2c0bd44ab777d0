//! Removing a folder's versions: the pointer, all manifests and every object whose name is of pds
//! ([`Vacuumable::base_version`]); others stay.
//!
//! Only what was found is removed: another process may remove the same table, and create a new one in its place, at any
//! moment. Objects other than the pointer and manifests have names that never recur. The pointer and the manifests are
//! removed by their ETags, so that a request that is late or repeated hits nothing that came later (on a store without
//! conditional deletions a HEAD comes before each). What is listed again belongs to the same table unless there is a
//! manifest that does not descend from the commit that was found; then the removal ends.
//!
//! Crash points: after the pointer is removed, the next process that opens the folder puts it back, and the newest
//! version is there. After the oldest retained manifest is removed, no process takes the rest for versions (it is an
//! [`ErrorKind::ManifestCorrupted`]); removing them again goes on. Manifests go in the order of their versions up to that
//! one, so an older version is never taken for the newest. Where the pointer names no version, it goes last: it is what
//! makes opening an error.
//!
//! A process that has the folder open may put the pointer back between two manifests; it takes the pointer back once it
//! does not find the manifest ([`super::recover`]).
//!
//! Late requests: a commit that was under way finds no pointer and fails. Its objects are removed if they land before the
//! last listing; a manifest that lands later blocks new versions in the folder until it is removed.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, ObjectMeta};

use super::folder::{Folder, list_objects};
use super::names;
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use super::vacuum::Vacuumable;
use crate::error::{Error, ErrorKind, Result};

/// How often what is left is listed again: writers that were under way may add to it.
const MAX_ROUNDS: u32 = 5;
/// The maximum number of manifests that are removed concurrently.
const CONCURRENT_DELETIONS: usize = 16;

/// Removes the versions of a folder and all of its objects. Fails with [`ErrorKind::NotFound`] if there are none, and with
/// [`ErrorKind::Unavailable`] if writers add objects all the time.
pub async fn remove_versions<M: Vacuumable>(folder: &Folder<M>) -> Result<()> {
    let mut target = match folder.find_newest().await {
        Ok(Some(newest)) => Target::Versions(newest.manifest),
        Ok(None) => Target::Leftovers,
        // What an earlier removal has left, or versions that cannot be read any more.
        Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Target::Corrupted,
        Err(e) => return Err(e),
    };
    let mut known = BTreeMap::new();
    for round in 0..MAX_ROUNDS {
        let objects = Objects::list(folder).await?;
        if objects.is_empty() {
            if round == 0 {
                return Err(not_found_error(folder));
            }
            return folder.store().remove_empty_folder(folder.root()).await;
        }
        if !target.has(folder, &objects, &known).await? {
            if round == 0 && matches!(target, Target::Leftovers) {
                return Err(not_found_error(folder));
            }
            log::info!(
                "the {noun} {:?} was removed, and there is another {noun} in its place",
                folder.root(),
                noun = M::NOUN
            );
            return Ok(());
        }
        match &target {
            Target::Versions(newest) => {
                let oldest_version = newest.header().oldest_version;
                objects.remove_versions(folder, oldest_version).await?;
            }
            Target::Corrupted | Target::Leftovers => objects.remove_corrupted(folder).await?,
        }
        known.extend(objects.manifests);
        if matches!(target, Target::Corrupted) {
            target = Target::Leftovers;
        }
    }
    let message = format!(
        "writers still add objects to the {} at {:?}, which is being removed; stop them and remove it again",
        M::NOUN,
        folder.root()
    );
    Err(Error::new(ErrorKind::Unavailable, message).with_path(folder.root()))
}

fn not_found_error<M: Vacuumable>(folder: &Folder<M>) -> Error {
    let message = format!("there is no {} at {:?}", M::NOUN, folder.root());
    Error::new(ErrorKind::NotFound, message).with_path(folder.root())
}

/// What is removed.
enum Target<M> {
    /// The versions up to this one, the newest that was found, and those that descend from it.
    Versions(Arc<M>),
    /// A pointer or manifests that are no versions.
    Corrupted,
    /// Objects of versions whose manifests were removed.
    Leftovers,
}

impl<M: Vacuumable> Target<M> {
    /// Whether the objects are of the target, the manifests besides those that are `known` to be.
    async fn has(
        &self,
        folder: &Folder<M>,
        objects: &Objects,
        known: &BTreeMap<u64, ObjectMeta>,
    ) -> Result<bool> {
        let newest = match self {
            // Whatever was listed belongs to what still cannot be opened.
            Self::Corrupted => {
                return match folder.find_newest().await {
                    Ok(_) => Ok(false),
                    Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Ok(true),
                    Err(e) => Err(e),
                };
            }
            Self::Leftovers => {
                return Ok(objects.manifests.is_empty() && objects.pointer.is_none());
            }
            Self::Versions(newest) => newest.header(),
        };
        let unknown = objects.manifests.iter().filter(|(version, meta)| {
            let known = known.get(version);
            known.is_none_or(|known| known.e_tag != meta.e_tag)
        });
        // At first the newest one tells: a new table is created only where there is no manifest.
        let is_first = known.is_empty();
        let unknown = unknown.rev().take(if is_first { 1 } else { usize::MAX });
        for (version, _) in unknown {
            let Some(manifest) = folder.read_manifest(*version).await? else {
                continue;
            };
            let header = manifest.header();
            let is_ours = if *version < newest.version {
                newest.commit_id_of(*version) == Some(header.commit_id)
            } else {
                header.commit_id_of(newest.version) == Some(newest.commit_id)
            };
            if !is_ours {
                return Ok(false);
            }
        }
        let pointer = objects
            .pointer
            .as_ref()
            .and_then(|(parsed, _)| parsed.as_ref());
        Ok(pointer.is_none_or(|pointer| {
            let commit_id = newest.commit_id_of(pointer.version);
            commit_id.is_none_or(|id| *id == pointer.commit_id)
        }))
    }
}

/// The objects of a folder.
struct Objects {
    /// The paths of those other than the pointer and manifests, relative to the folder.
    others: Vec<String>,
    /// The manifests by version.
    manifests: BTreeMap<u64, ObjectMeta>,
    /// The pointer, if it can be parsed, and its metadata.
    pointer: Option<(Option<Pointer>, ObjectMeta)>,
}

impl Objects {
    /// Lists data before manifests: if none of these is of a new table, nor is any of the data.
    async fn list<M: Vacuumable>(folder: &Folder<M>) -> Result<Self> {
        let mut others = Vec::new();
        for below in M::FOLDERS.iter().chain(&[names::MANIFESTS]) {
            let listed = list_objects(folder, below).await?;
            others.extend(listed.into_keys().filter(|p| M::base_version(p).is_some()));
        }
        let listed = list_objects(folder, names::MANIFESTS).await?;
        let manifests = listed
            .into_iter()
            .filter_map(|(path, meta)| Some((names::manifest_version(&path)?, meta)));
        let path = folder.path(names::POINTER);
        let store = folder.store();
        let read = store.get_at_most(&path, GetOptions::default(), MAX_POINTER_BYTES);
        let pointer = match read.await {
            Ok((bytes, meta)) => Some((Pointer::parse(&bytes, M::FORMAT).ok(), meta)),
            Err(e) if e.kind() == ErrorKind::NotFound => None,
            Err(e) if e.kind() == ErrorKind::TooLarge => Some((None, store.head(&path).await?)),
            Err(e) => return Err(e),
        };
        Ok(Self {
            others,
            manifests: manifests.collect(),
            pointer,
        })
    }

    fn is_empty(&self) -> bool {
        self.others.is_empty() && self.manifests.is_empty() && self.pointer.is_none()
    }

    /// Removes the objects of versions of which `oldest_version` is the oldest that is retained.
    async fn remove_versions<M: Vacuumable>(
        &self,
        folder: &Folder<M>,
        oldest_version: u64,
    ) -> Result<()> {
        self.remove_pointer(folder).await?;
        for (version, meta) in self.manifests.range(..=oldest_version) {
            remove_version(folder, &names::manifest(*version), meta).await?;
        }
        // The other manifests come last: as long as there is one, a removal that was interrupted can go on.
        self.remove_others(folder).await?;
        self.remove_manifests(folder, oldest_version + 1).await
    }

    /// Removes objects that are no versions. The pointer goes last, since without it an older version might look like the
    /// newest.
    async fn remove_corrupted<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<()> {
        self.remove_others(folder).await?;
        for (version, meta) in &self.manifests {
            remove_version(folder, &names::manifest(*version), meta).await?;
        }
        self.remove_pointer(folder).await
    }

    async fn remove_pointer<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<()> {
        match &self.pointer {
            Some((_, meta)) => remove_version(folder, names::POINTER, meta).await,
            None => Ok(()),
        }
    }

    async fn remove_others<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<()> {
        let paths: Vec<String> = self.others.iter().map(|path| folder.path(path)).collect();
        folder.store().delete_all(&paths).await
    }

    async fn remove_manifests<M: Vacuumable>(&self, folder: &Folder<M>, from: u64) -> Result<()> {
        let manifests = self.manifests.range(from..).map(|(version, meta)| {
            let name = names::manifest(*version);
            async move { remove_version(folder, &name, meta).await }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let removals: Vec<_> = manifests.collect();
        let mut removals = stream::iter(removals).buffer_unordered(CONCURRENT_DELETIONS);
        while removals.try_next().await?.is_some() {}
        Ok(())
    }
}

/// Removes the version of an object that was read or listed. Another version in its place stays.
async fn remove_version<M: Vacuumable>(
    folder: &Folder<M>,
    relative: &str,
    meta: &ObjectMeta,
) -> Result<()> {
    let path = folder.path(relative);
    folder
        .store()
        .delete_unchanged(&path, meta.e_tag.as_deref())
        .await
}
