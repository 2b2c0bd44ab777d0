//! Finding the folders with versions in a store.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, stream};

use super::names;
use super::vacuum::Vacuumable;
use crate::error::{Error, Result};
use crate::store::{Store, path};

/// The maximum number of folders that are listed concurrently.
const CONCURRENT_LISTINGS: usize = 16;

/// Returns the paths of the folders below `prefix` that have a pointer or, where it was lost, a manifest, sorted. Folders
/// of data are not listed: what this costs follows the number of folders, not of objects.
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
            let mut is_versioned = listing
                .files
                .iter()
                .any(|file| file.location.as_ref() == pointer);
            let manifests = path::join(&folder, names::MANIFESTS);
            if !is_versioned && listing.folders.contains(&manifests) {
                is_versioned = has_manifest(store, &folder, &manifests).await?;
            }
            let own: BTreeSet<String> = [names::MANIFESTS]
                .iter()
                .chain(M::FOLDERS)
                .map(|own| path::join(&folder, own))
                .filter(|_| is_versioned)
                .collect();
            level.extend(listing.folders.into_iter().filter(|f| !own.contains(f)));
            if is_versioned {
                versioned.insert(folder);
            }
        }
    }
    Ok(versioned.into_iter().collect())
}

/// Whether the folder of manifests of `folder` has one.
async fn has_manifest(store: &Store, folder: &str, manifests: &str) -> Result<bool> {
    let listing = store.list_folder(manifests).await?;
    let prefix = path::join(folder, "");
    let mut names = listing.files.iter().filter_map(|file| {
        let relative = file.location.as_ref().strip_prefix(&prefix)?;
        names::manifest_version(relative.trim_start_matches('/'))
    });
    Ok(names.next().is_some())
}
