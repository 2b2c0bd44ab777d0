//! Folders with versions as a whole: finding them in a store, and removing one.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};

use super::folder::{Folder, list_objects};
use super::names;
use super::vacuum::Vacuumable;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Store, path};

/// The maximum number of folders that are listed concurrently.
const CONCURRENT_LISTINGS: usize = 16;
/// How often what is left is listed again: writers that were under way may add to it.
const MAX_ROUNDS: u32 = 5;

/// Returns the paths of the folders below `prefix` that have a pointer, sorted. Folders of data are not listed: what
/// this costs follows the number of folders, not of objects.
pub async fn list_versioned<M: Vacuumable>(store: &Store, prefix: &str) -> Result<Vec<String>> {
    let mut versioned = BTreeSet::new();
    let mut level = vec![prefix.to_owned()];
    while !level.is_empty() {
        let reads = level.into_iter().map(|folder| async move {
            let listing = store.list_folder(&folder).await?;
            Ok::<_, Error>((folder, listing))
        });
        // A Vec, because the future of the iterator itself would not be Send.
        let reads: Vec<_> = reads.collect();
        let listings: Vec<_> = stream::iter(reads)
            .buffer_unordered(CONCURRENT_LISTINGS)
            .try_collect()
            .await?;
        level = Vec::new();
        for (folder, listing) in listings {
            let pointer = path::join(&folder, names::POINTER);
            let has_pointer = listing
                .files
                .iter()
                .any(|file| file.location.as_ref() == pointer);
            let own: BTreeSet<String> = [names::MANIFESTS]
                .iter()
                .chain(M::FOLDERS)
                .map(|own| path::join(&folder, own))
                .filter(|_| has_pointer)
                .collect();
            level.extend(listing.folders.into_iter().filter(|f| !own.contains(f)));
            if has_pointer {
                versioned.insert(folder);
            }
        }
    }
    Ok(versioned.into_iter().collect())
}

/// Removes the pointer, all manifests and every object whose name is of pds ([`Vacuumable::base_version`]); others stay.
/// Fails with [`ErrorKind::NotFound`] if there are no versions.
///
/// Crash points: after the pointer is removed, the next process that opens the folder puts it back, and the newest
/// version is there. After the oldest retained manifest is removed, no process takes the rest for versions (it is an
/// [`ErrorKind::ManifestCorrupted`]); removing them again goes on. Manifests go in the order of their versions up to that
/// one, so an older version is never taken for the newest.
/// Late requests: a commit that was under way finds no pointer and fails. Its objects are removed if they land before
/// the last listing; a manifest that lands later blocks new versions in the folder until it is removed.
pub async fn remove_versions<M: Vacuumable>(folder: &Folder<M>) -> Result<()> {
    let store = folder.store();
    let oldest_version = match folder.find_newest().await {
        Ok(Some(newest)) => newest.manifest.header().oldest_version,
        Ok(None) => {
            let message = format!("there is no {} at {:?}", M::NOUN, folder.root());
            return Err(Error::new(ErrorKind::NotFound, message).with_path(folder.root()));
        }
        // What an earlier removal has left.
        Err(e) if e.kind() == ErrorKind::ManifestCorrupted => 0,
        Err(e) => return Err(e),
    };
    for _ in 0..MAX_ROUNDS {
        // A process that opened the folder meanwhile may have put the pointer back.
        store.delete(&folder.path(names::POINTER)).await?;
        let mut objects = list_objects(folder, names::MANIFESTS).await?;
        let listed = objects.keys().filter_map(|p| names::manifest_version(p));
        let mut versions: Vec<u64> = listed.collect();
        versions.sort_unstable();
        for below in M::FOLDERS {
            objects.extend(list_objects(folder, below).await?);
        }
        let own = objects.keys().filter(|p| M::base_version(p).is_some());
        let own: Vec<String> = own.map(|p| folder.path(p)).collect();
        if versions.is_empty() && own.is_empty() {
            break;
        }
        let paths = versions.iter().map(|v| folder.path(&names::manifest(*v)));
        let paths: Vec<String> = paths.collect();
        let (first, others) = paths.split_at(versions.partition_point(|v| *v <= oldest_version));
        for path in first {
            store.delete(path).await?;
        }
        // The other manifests come last: as long as there is one, a removal that was interrupted can go on.
        store.delete_all(&own).await?;
        store.delete_all(others).await?;
    }
    store.remove_empty_folder(folder.root()).await
}
