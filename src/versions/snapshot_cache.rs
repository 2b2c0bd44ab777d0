//! The manifests of the newest commits that this process has read or made, for who opens a folder again.
//!
//! A manifest never changes, and a pointer names one by its version and commit: if the manifest of that commit is cached
//! and still there, it is not read again. Whether it is there is asked while the pointer is read: a pointer that was put
//! back names a version that a vacuum may have removed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::folder::Folder;
use super::manifest::Versioned;
use super::names;

/// Folders whose newest manifest is remembered, in one store.
const MAX_FOLDERS: usize = 8;

/// The manifests by the root of their folder, the one used last at the end.
#[derive(Debug)]
struct SnapshotCache<M>(Mutex<VecDeque<(String, Arc<M>)>>);

impl<M> Default for SnapshotCache<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: Versioned> Folder<M> {
    /// The newest manifest that was read or written, if it is remembered and still there.
    pub(super) async fn cached_manifest(&self) -> Option<Arc<M>> {
        let manifest = self.with_cache(|cache| {
            let manifest = take(cache, self.root())?;
            cache.push_back((self.root().to_owned(), Arc::clone(&manifest)));
            Some(manifest)
        })?;
        let path = self.path(&names::manifest(manifest.header().version));
        // Whatever the error is, the read of the manifest meets it again.
        self.store.head(&path).await.is_ok().then_some(manifest)
    }

    /// Remembers the newest manifest in place of an older one.
    pub(super) fn cache_manifest(&self, manifest: &Arc<M>) {
        self.with_cache(|cache| {
            take(cache, self.root());
            if cache.len() == MAX_FOLDERS {
                cache.pop_front();
            }
            cache.push_back((self.root().to_owned(), Arc::clone(manifest)));
        });
    }

    fn with_cache<T>(&self, work: impl FnOnce(&mut VecDeque<(String, Arc<M>)>) -> T) -> T {
        let cache = self.store.shared_state::<SnapshotCache<M>>("");
        work(&mut cache.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn take<M>(cache: &mut VecDeque<(String, Arc<M>)>, root: &str) -> Option<Arc<M>> {
    let index = cache.iter().position(|(known, _)| known == root)?;
    cache.remove(index).map(|(_, manifest)| manifest)
}
