//! The manifests of the newest commits that this process has read or made, for who opens a folder again.
//!
//! A manifest never changes, and a pointer names one by its version and commit: if the manifest of that commit is cached
//! and still there, it is not read again. Whether it is there is asked while the pointer is read: a pointer that was put
//! back names a version that a vacuum may have removed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::folder::Folder;
use super::manifest::Versioned;
use super::names;
use crate::error::Result;
use crate::sync::mutex::lock;

/// Folders whose newest manifest is remembered, in one store.
const MAX_FOLDERS: usize = 8;

/// The manifests, the one used last at the end.
#[derive(Debug)]
struct SnapshotCache<M>(Mutex<VecDeque<CachedManifest<M>>>);

#[derive(Debug)]
struct CachedManifest<M> {
    /// The root of its folder.
    root: String,
    manifest: Arc<M>,
    /// The length of its object.
    bytes: u64,
}

impl<M> Default for SnapshotCache<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M: Versioned> Folder<M> {
    /// The newest manifest that was read or written, if it is remembered and still there.
    pub(super) async fn cached_manifest(&self) -> Option<Arc<M>> {
        let (manifest, bytes) = self.with_cache(|cache| {
            let entry = take(cache, self.root())?;
            let known = (Arc::clone(&entry.manifest), entry.bytes);
            cache.push_back(entry);
            Some(known)
        })?;
        let path = self.path(&names::manifest(manifest.header().version));
        // Whatever the error is, the read of the manifest meets it again.
        let meta = self.store.head(&path).await.ok()?;
        (meta.size == bytes).then_some(manifest)
    }

    /// Reads the manifest of the version that the pointer names, and remembers it.
    pub(super) async fn read_for_cache(&self, version: u64) -> Result<Option<Arc<M>>> {
        let Some((manifest, bytes)) = self.read_sized_manifest(version).await? else {
            return Ok(None);
        };
        let manifest = Arc::new(manifest);
        self.cache_manifest(&manifest, bytes);
        Ok(Some(manifest))
    }

    /// Remembers the newest manifest, whose object has this length, in place of an older one.
    pub(super) fn cache_manifest(&self, manifest: &Arc<M>, bytes: u64) {
        self.with_cache(|cache| {
            take(cache, self.root());
            if cache.len() == MAX_FOLDERS {
                cache.pop_front();
            }
            cache.push_back(CachedManifest {
                root: self.root().to_owned(),
                manifest: Arc::clone(manifest),
                bytes,
            });
        });
    }

    /// Forgets the manifest of a version before this one, which others have created: the pointer will not name it.
    pub(super) fn forget_before(&self, version: u64) {
        self.with_cache(|cache| {
            cache.retain(|entry| {
                entry.root != self.root() || entry.manifest.header().version >= version
            });
        });
    }

    fn with_cache<T>(&self, work: impl FnOnce(&mut VecDeque<CachedManifest<M>>) -> T) -> T {
        let cache = self.store.shared_state::<SnapshotCache<M>>("");
        work(&mut lock(&cache.0))
    }
}

fn take<M>(cache: &mut VecDeque<CachedManifest<M>>, root: &str) -> Option<CachedManifest<M>> {
    let index = cache.iter().position(|entry| entry.root == root)?;
    cache.remove(index)
}
