//! Lists in objects of their own, beside the manifest: segments, and older idempotency keys.
//!
//! A list is immutable, and written before the create of the manifest that names it. Its name has the version at which
//! its writer began, so that a vacuum removes those that no version references.

use std::collections::HashSet;
use std::ops::Range;

use bytes::Bytes;
use object_store::PutMode;

use super::folder::Folder;
use super::manifest::Versioned;
use crate::error::Result;

/// A manifest that has lists in objects of their own.
pub trait RollLists: Versioned {
    /// Moves what is too much for this manifest, made from `base`, to lists.
    fn roll_lists(
        &mut self,
        lists: &mut ListWriter,
        folder: &Folder<Self>,
        base: &Self,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// Writes the lists of the attempts of one commit. What one attempt wrote, the next one uses again.
#[derive(Debug, Default)]
pub struct ListWriter {
    written: Vec<WrittenList>,
}

#[derive(Debug)]
struct WrittenList {
    bytes: Bytes,
    base_version: u64,
    path: String,
}

impl ListWriter {
    /// Returns the path of a list with these bytes: of one that an earlier attempt wrote, or of a new one with a `name` of
    /// the base version and an id.
    pub(crate) async fn put<M: Versioned>(
        &mut self,
        folder: &Folder<M>,
        base: &M,
        bytes: Bytes,
        name: fn(u64, u128) -> String,
    ) -> Result<String> {
        // A vacuum may have removed a list that was written below the floor.
        let base = base.header();
        let is_same = |w: &&WrittenList| w.base_version >= base.gc_floor && w.bytes == bytes;
        if let Some(written) = self.written.iter().find(is_same) {
            return Ok(written.path.clone());
        }
        let store = folder.store();
        let path = name(base.version, store.clock().new_id());
        let location = folder.path(&path);
        let put = store.put(&location, bytes.clone(), PutMode::Overwrite);
        put.await?;
        self.written.push(WrittenList {
            bytes,
            base_version: base.version,
            path: path.clone(),
        });
        Ok(path)
    }

    /// The paths of written lists that `committed` does not reference; with None, of all of them.
    pub(super) fn unused_paths<M: Versioned>(&self, committed: Option<&M>) -> Vec<String> {
        let references = committed.into_iter().flat_map(M::references);
        let used: HashSet<&str> = references.collect();
        let paths = self.written.iter().map(|written| written.path.clone());
        paths.filter(|path| !used.contains(path.as_str())).collect()
    }
}

/// The first `count` neighboring lists that fit into one.
pub(crate) fn find_mergeable<T>(
    lists: &[T],
    count: usize,
    fits: impl Fn(&[T]) -> bool,
) -> Option<Range<usize>> {
    let start = lists.windows(count).position(fits)?;
    Some(start..start + count)
}
