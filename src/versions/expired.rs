//! What a vacuum has found to be removed, and its removal, which other processes may do.
//!
//! A manifest goes by its ETag, and other names do not recur: whoever removes these objects late, or twice, hits nothing
//! that came later. What was removed and created anew, or brought back from a copy, does not descend from the version of
//! the vacuum, and neither does what a process sees that sees another store: it is refused.

use super::ancestor::Ancestor;
use super::folder::Folder;
use super::manifest::Versioned;
use crate::error::Result;
use crate::store::Store;
use crate::store::temp_name::is_hidden;
use crate::sync::begun::run_to_end;
use crate::sync::progress;

/// The number of objects after whose removal the progress is counted. Bulk deletions have fewer.
const REMOVED_AT_ONCE: usize = 10_000;
/// The number of manifests that are removed concurrently.
const CONCURRENT_DELETIONS: usize = 32;

/// What a vacuum removed, or would remove in a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VacuumReport {
    /// The oldest retained version.
    pub oldest_version: u64,
    /// The paths of objects other than manifests, relative to the folder.
    pub files: Vec<String>,
    /// The paths of manifests, relative to the folder.
    pub manifests: Vec<String>,
    /// The total size of all of them in bytes.
    pub bytes: u64,
}

/// What a vacuum is to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The objects.
    pub report: VacuumReport,
    /// The ETag of each manifest.
    pub e_tags: Vec<Option<String>>,
    /// The version of the vacuum.
    pub version: Ancestor,
}

/// Removes objects of [`Expired`], all or some: first the files, then the manifests, these with their ETags.
pub(super) async fn remove_expired<M: Versioned>(
    folder: &Folder<M>,
    files: &[String],
    manifests: Vec<(String, Option<String>)>,
) -> Result<()> {
    progress::begin_phase("remove");
    let mut uncounted = (files.len() + manifests.len()) as u64;
    let paths = files.iter().map(|relative| folder.path(relative));
    let (hidden, paths): (Vec<String>, Vec<String>) = paths.partition(|path| is_hidden(path));
    for chunk in paths.chunks(REMOVED_AT_ONCE) {
        folder.store.delete_all(chunk).await?;
        uncounted -= chunk.len() as u64;
        count_removed(chunk.len() as u64);
    }
    remove_hidden(&folder.store, &hidden).await;
    remove_manifests(folder, manifests).await?;
    count_removed(uncounted);
    Ok(())
}

/// Counts removed objects in the progress.
pub(super) fn count_removed(objects: u64) {
    if let Some(progress) = progress::current() {
        progress.add_files(objects);
    }
}

/// Removes manifests unless they have changed since they had these ETags.
async fn remove_manifests<M: Versioned>(
    folder: &Folder<M>,
    manifests: Vec<(String, Option<String>)>,
) -> Result<()> {
    let removals = manifests.into_iter().map(|(relative, e_tag)| {
        let path = folder.path(&relative);
        async move {
            let store = &folder.store;
            store
                .delete_unchanged(&path, e_tag.as_deref())
                .await
                .map(drop)
        }
    });
    // A Vec, because the future of the iterator itself would not be Send.
    run_to_end(removals.collect(), CONCURRENT_DELETIONS).await
}

/// Removes hidden files, which nothing needs: those of another user may not be removable.
pub(crate) async fn remove_hidden(store: &Store, paths: &[String]) {
    if let Err(e) = store.delete_all(paths).await {
        log::warn!("hidden files could not be removed: {e}");
    }
}
