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
//! Without a pointer and manifests there are leftovers. A writer that creates versions with rows uploads these first, so
//! what is for a first version and younger than a day is spared.
//!
//! Late requests: a commit that was under way finds no pointer and fails. Its objects are removed if they land before the
//! last listing; a manifest that lands later blocks new versions in the folder until it is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use object_store::{GetOptions, ObjectMeta};

use super::folder::{Folder, list_objects};
use super::manifest::ManifestHeader;
use super::names;
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use super::vacuum::{Vacuumable, before, refuse_links, store_time};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::begun::run_to_end;

/// How often what is left is listed again: writers that were under way may add to it.
const MAX_ROUNDS: u32 = 5;
/// How old an object is that a writer of a first version left behind.
const MIN_LEFTOVER_AGE: Duration = Duration::from_hours(24);
/// The maximum number of manifests that are removed concurrently.
const CONCURRENT_DELETIONS: usize = 16;

/// Removes the versions of a folder and all of its objects. Fails with [`ErrorKind::NotFound`] if there are none, with
/// [`ErrorKind::InvalidPath`] if the folder or one of objects in it is a symbolic link, and with [`ErrorKind::Unavailable`] if writers add
/// objects all the time.
pub async fn remove_versions<M: Vacuumable>(folder: &Folder<M>) -> Result<()> {
    folder.store().refuse_link(folder.root()).await?;
    refuse_links(folder).await?;
    let target = match folder.find_newest().await {
        Ok(Some(newest)) => Target::Versions(newest.manifest),
        Ok(None) => Target::Leftovers,
        // What an earlier removal has left, or versions that cannot be read any more.
        Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Target::Corrupted,
        Err(e) => return Err(e),
    };
    let mut known = BTreeMap::new();
    for round in 0..MAX_ROUNDS {
        let mut objects = Objects::list(folder).await?;
        if matches!(target, Target::Leftovers) {
            objects.spare_new(folder).await?;
        }
        if objects.is_empty() {
            if round == 0 {
                return Err(not_found_error(folder));
            }
            return folder.store().remove_empty_folder(folder.root()).await;
        }
        let ownership = target.check(folder, &objects, &known).await?;
        let Ownership::Ours(oldest_version) = ownership else {
            if round == 0 && matches!(target, Target::Leftovers) {
                return Err(not_found_error(folder));
            }
            log::info!(
                "the {noun} {:?} was removed, and there is another {noun} in its place",
                folder.root(),
                noun = M::NOUN
            );
            return Ok(());
        };
        match &target {
            Target::Versions(_) => objects.remove_versions(folder, oldest_version).await?,
            Target::Corrupted | Target::Leftovers => objects.remove_corrupted(folder).await?,
        }
        known.extend(objects.manifests);
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
    /// A pointer and manifests from which no version can be opened.
    Corrupted,
    /// Objects of versions whose manifests were removed.
    Leftovers,
}

/// Whose objects were listed.
enum Ownership {
    /// They are the target's, of which this is the oldest retained version.
    Ours(u64),
    /// There is another one in its place.
    Others,
}

impl<M: Vacuumable> Target<M> {
    /// Whose the objects are; of the manifests, those that are `known` to be the target's are not read again.
    async fn check(
        &self,
        folder: &Folder<M>,
        objects: &Objects,
        known: &BTreeMap<u64, ObjectMeta>,
    ) -> Result<Ownership> {
        let has_versions = !objects.manifests.is_empty() || objects.pointer.is_some();
        let newest = match self {
            Self::Leftovers if has_versions => return Ok(Ownership::Others),
            Self::Leftovers => return Ok(Ownership::Ours(0)),
            // Whatever was listed belongs to what still cannot be opened.
            Self::Corrupted => {
                return match folder.find_newest().await {
                    Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Ok(Ownership::Ours(0)),
                    Err(e) => Err(e),
                    Ok(None) if !has_versions => Ok(Ownership::Ours(0)),
                    Ok(_) => Ok(Ownership::Others),
                };
            }
            Self::Versions(newest) => newest.header(),
        };
        let manifests = &objects.manifests;
        let mut versions: Vec<u64> = if known.is_empty() {
            // Where a manifest exists, no table is created. So the last manifest up to the version that was found shows
            // whether all of them are of the same table.
            let up_to = manifests.range(..=newest.version).next_back();
            up_to.map(|(version, _)| *version).into_iter().collect()
        } else {
            let unknown = manifests.iter().filter(|(version, meta)| {
                let known = known.get(version);
                known.is_none_or(|known| known.e_tag != meta.e_tag)
            });
            unknown.map(|(version, _)| *version).collect()
        };
        if known.is_empty() && versions.is_empty() && !manifests.is_empty() {
            return Ok(Ownership::Others);
        }
        let pointer = objects.pointer.as_ref().and_then(|p| p.0.as_ref());
        versions.extend(pointer.map(|pointer| pointer.version));
        let mut oldest_version = newest.oldest_version;
        let mut compared = BTreeSet::new();
        for version in versions {
            let Some(manifest) = read_manifest(folder, version).await? else {
                continue;
            };
            let header = manifest.header();
            if !descends(header, newest) {
                return Ok(Ownership::Others);
            }
            oldest_version = oldest_version.max(header.oldest_version);
            compared.insert(version);
        }
        // A vacuum may have been committed since. What lies above and does not descend is a stray.
        if let Some((last, _)) = manifests.range(newest.version + 1..).next_back()
            && let Some(manifest) = read_manifest(folder, *last).await?
            && descends(manifest.header(), newest)
        {
            oldest_version = oldest_version.max(manifest.header().oldest_version);
        }
        let is_ours = pointer.is_none_or(|pointer| match newest.commit_id_of(pointer.version) {
            Some(commit_id) => *commit_id == pointer.commit_id,
            None => compared.contains(&pointer.version),
        });
        Ok(if is_ours {
            Ownership::Ours(oldest_version)
        } else {
            Ownership::Others
        })
    }
}

/// Whether a manifest is of the commit `newest`, or of one before or after it.
fn descends(header: ManifestHeader<'_>, newest: ManifestHeader<'_>) -> bool {
    if header.version < newest.version {
        newest.commit_id_of(header.version) == Some(header.commit_id)
    } else {
        header.commit_id_of(newest.version) == Some(newest.commit_id)
    }
}

/// Reads the manifest of a version; None if it is missing or cannot be parsed.
async fn read_manifest<M: Vacuumable>(folder: &Folder<M>, version: u64) -> Result<Option<M>> {
    match folder.read_manifest(version).await {
        Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Ok(None),
        read => read,
    }
}

/// The objects of a folder.
struct Objects {
    /// Those other than the pointer and manifests, by their paths relative to the folder.
    others: BTreeMap<String, ObjectMeta>,
    /// The manifests by version.
    manifests: BTreeMap<u64, ObjectMeta>,
    /// The pointer, if it can be parsed, and its metadata.
    pointer: Option<(Option<Pointer>, ObjectMeta)>,
}

impl Objects {
    /// Lists data before manifests: if none of these is of a new table, nor is any of the data.
    async fn list<M: Vacuumable>(folder: &Folder<M>) -> Result<Self> {
        let mut others = BTreeMap::new();
        for below in M::FOLDERS.iter().chain(&[names::MANIFESTS]) {
            let mut listed = list_objects(folder, below).await?;
            listed.retain(|path, _| M::base_version(path).is_some());
            others.append(&mut listed);
        }
        let listed = list_objects(folder, names::MANIFESTS).await?;
        let manifests = listed
            .into_iter()
            .filter_map(|(path, meta)| Some((names::manifest_version(&path)?, meta)));
        let pointer = read_pointer(folder).await?;
        Ok(Self {
            others,
            manifests: manifests.collect(),
            pointer,
        })
    }

    fn is_empty(&self) -> bool {
        self.others.is_empty() && self.manifests.is_empty() && self.pointer.is_none()
    }

    /// Leaves out what a first version may be about to list: one is created after its objects. Those of a writer that failed
    /// are a vacuum's.
    async fn spare_new<M: Vacuumable>(&mut self, folder: &Folder<M>) -> Result<()> {
        let is_of_first = |path: &str| M::base_version(path) == Some(0);
        if self.others.keys().any(|path| is_of_first(path)) {
            let cutoff = before(
                store_time(folder.store(), folder.root()).await?,
                MIN_LEFTOVER_AGE,
            );
            self.others
                .retain(|path, meta| !is_of_first(path) || meta.last_modified <= cutoff);
        }
        Ok(())
    }

    /// Removes the objects of versions of which `oldest_version` is the oldest that is retained. Returns early where another
    /// process has put the pointer back or moved it: no data is removed while there is one.
    async fn remove_versions<M: Vacuumable>(
        &self,
        folder: &Folder<M>,
        oldest_version: u64,
    ) -> Result<()> {
        if !self.remove_pointer(folder).await? {
            return Ok(());
        }
        for (version, meta) in self.manifests.range(..=oldest_version) {
            if !remove_version(folder, &names::manifest(*version), meta).await? {
                return Ok(());
            }
        }
        // One who put the pointer back before that does not notice that a manifest is missing; one who does so now does.
        if read_pointer(folder).await?.is_some() {
            return Ok(());
        }
        // The other manifests come last: as long as there is one, a removal that was interrupted can go on.
        self.remove_others(folder).await?;
        self.remove_manifests(folder, oldest_version + 1).await
    }

    /// Removes the objects of a folder that cannot be opened. The pointer goes last: without it an older version might be
    /// taken for the newest.
    async fn remove_corrupted<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<()> {
        self.remove_others(folder).await?;
        for (version, meta) in &self.manifests {
            remove_version(folder, &names::manifest(*version), meta).await?;
        }
        self.remove_pointer(folder).await?;
        Ok(())
    }

    /// Removes the pointer; false if another one is in its place.
    async fn remove_pointer<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<bool> {
        match &self.pointer {
            Some((_, meta)) => remove_version(folder, names::POINTER, meta).await,
            None => Ok(true),
        }
    }

    async fn remove_others<M: Vacuumable>(&self, folder: &Folder<M>) -> Result<()> {
        let paths: Vec<String> = self.others.keys().map(|path| folder.path(path)).collect();
        folder.store().delete_all(&paths).await
    }

    async fn remove_manifests<M: Vacuumable>(&self, folder: &Folder<M>, from: u64) -> Result<()> {
        let manifests = self.manifests.range(from..).map(|(version, meta)| {
            let name = names::manifest(*version);
            async move { remove_version(folder, &name, meta).await.map(drop) }
        });
        // A Vec, because the future of the iterator itself would not be Send.
        run_to_end(manifests.collect(), CONCURRENT_DELETIONS).await
    }
}

/// Reads the pointer, which may be one that cannot be parsed.
async fn read_pointer<M: Vacuumable>(
    folder: &Folder<M>,
) -> Result<Option<(Option<Pointer>, ObjectMeta)>> {
    let path = folder.path(names::POINTER);
    let store = folder.store();
    let read = store.get_at_most(&path, GetOptions::default(), MAX_POINTER_BYTES);
    match read.await {
        Ok((bytes, meta)) => Ok(Some((Pointer::parse(&bytes, M::FORMAT).ok(), meta))),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind() == ErrorKind::TooLarge => Ok(Some((None, store.head(&path).await?))),
        Err(e) => Err(e),
    }
}

/// Removes the version of an object that was read or listed. Another version in its place stays: false.
async fn remove_version<M: Vacuumable>(
    folder: &Folder<M>,
    relative: &str,
    meta: &ObjectMeta,
) -> Result<bool> {
    let path = folder.path(relative);
    folder
        .store()
        .delete_unchanged(&path, meta.e_tag.as_deref())
        .await
}
