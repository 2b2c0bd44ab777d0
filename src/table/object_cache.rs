//! The immutable objects of a table that an operation has read, kept for its next plans.
//!
//! Segments and tombstone files are never changed, and no other object gets the name of one: a snapshot that names it
//! names the same bytes. A plan after a lost race reads the lists that are new.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;
use object_store::GetOptions;

use super::Table;
use crate::error::Result;
use crate::sync::mutex::lock;

/// How many bytes are kept; further objects are read again.
const MAX_CACHED_BYTES: usize = 32 << 20;

/// Objects by their paths relative to the table.
#[derive(Debug, Default)]
pub(super) struct ObjectCache(Mutex<HashMap<String, Bytes>>);

impl ObjectCache {
    fn get(&self, path: &str) -> Option<Bytes> {
        lock(&self.0).get(path).cloned()
    }

    fn insert(&self, path: &str, bytes: &Bytes) {
        let mut objects = lock(&self.0);
        let cached_bytes: usize = objects.values().map(Bytes::len).sum();
        if cached_bytes + bytes.len() <= MAX_CACHED_BYTES {
            objects.insert(path.to_owned(), bytes.clone());
        }
    }
}

/// Reads an immutable object of at most `max_bytes`, unless the operation has read it before.
pub(super) async fn read_object(
    table: &Table,
    path: &str,
    max_bytes: u64,
    cache: Option<&ObjectCache>,
) -> Result<Bytes> {
    if let Some(bytes) = cache.and_then(|cache| cache.get(path)) {
        return Ok(bytes);
    }
    let location = table.path(path);
    let options = GetOptions::default();
    let read = table.store().get_at_most(&location, options, max_bytes);
    let (bytes, _) = read.await?;
    if let Some(cache) = cache {
        cache.insert(path, &bytes);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_fits() {
        let cache = ObjectCache::default();
        let large = Bytes::from(vec![0; MAX_CACHED_BYTES - 1]);
        cache.insert("large", &large);
        cache.insert("small", &Bytes::from_static(b"a"));
        cache.insert("last", &Bytes::from_static(b"b"));
        assert_eq!(cache.get("large"), Some(large));
        assert_eq!(cache.get("small"), Some(Bytes::from_static(b"a")));
        assert_eq!(cache.get("last"), None);
    }
}
