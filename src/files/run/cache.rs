//! Open files of runs, kept by the process: a run is looked up again and again, and its files never change.
//!
//! Kept are footers, page indexes and small files as a whole, up to [`CACHED_BYTES`]; what was used least recently goes.
//! Local files are not kept, since each holds a descriptor.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use super::RunFile;
use crate::error::Result;
use crate::files::{OpenPart, open_with_indexes};
use crate::store::{Store, path};

/// The most bytes that all open files take.
const CACHED_BYTES: usize = 128 << 20;

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

/// A store, and the path of a file in it.
type Key = ((u32, usize), String);

#[derive(Default)]
struct Cache {
    parts: HashMap<Key, (Arc<OpenPart>, u64)>,
    bytes: usize,
    /// Counts the uses.
    now: u64,
}

/// Opens a file of a run in a folder.
pub(super) async fn open_cached(
    store: &Store,
    folder: &str,
    file: &RunFile,
) -> Result<Arc<OpenPart>> {
    let file_path = path::join(folder, &file.name);
    if store.local().is_some() {
        return open_file(store, &file_path, file).await;
    }
    let key = (store.identity(), file_path);
    if let Some(part) = with_cache(|cache| cache.get(&key)) {
        return Ok(part);
    }
    let part = open_file(store, &key.1, file).await?;
    with_cache(|cache| cache.insert(key, &part));
    Ok(part)
}

async fn open_file(store: &Store, file_path: &str, file: &RunFile) -> Result<Arc<OpenPart>> {
    let opened = open_with_indexes(store, file_path, file.footer_size, file.index_size).await;
    Ok(Arc::new(opened?))
}

fn with_cache<T>(work: impl FnOnce(&mut Cache) -> T) -> T {
    work(&mut CACHE.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Cache {
    fn get(&mut self, key: &Key) -> Option<Arc<OpenPart>> {
        self.now += 1;
        let (part, used) = self.parts.get_mut(key)?;
        *used = self.now;
        Some(Arc::clone(part))
    }

    fn insert(&mut self, key: Key, part: &Arc<OpenPart>) {
        self.now += 1;
        self.bytes += part.memory_bytes();
        if let Some((old, _)) = self.parts.insert(key, (Arc::clone(part), self.now)) {
            self.bytes -= old.memory_bytes();
        }
        while self.bytes > CACHED_BYTES {
            let oldest = self.parts.iter().min_by_key(|(_, (_, used))| *used);
            let Some(key) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            if let Some((part, _)) = self.parts.remove(&key) {
                self.bytes -= part.memory_bytes();
            }
        }
    }
}
