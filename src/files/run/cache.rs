//! What a process keeps of the runs in a store: lookups come back to the same pages, and files never change.
//!
//! Kept are the footers of files with their key indexes, of object stores page indexes and small files as a whole, too;
//! and the decoded columns of pages that lookups have read: an update reads the same pages for the old rows, for the rows
//! of its next stage, and often in the update after it. What was used least recently goes. Local files are not kept open,
//! since each holds a descriptor: one whose version is still the same is not parsed again.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::ArrayRef;

use super::index::{Blocks, KeyIndex};
use super::keys::CutKeys;
use super::{KEY_INDEX, RunFile};
use crate::error::Result;
use crate::files::{OpenPart, RowGroupSelection, open_with_indexes};
use crate::parquet::arrays::slice_arrays;
use crate::parquet::narrow::copy_rows;
use crate::parquet::page_selection::RowSelection;
use crate::parquet::row_ranges::RowRanges;
use crate::store::{Store, path};

/// The most bytes that all open files take.
const FILE_BYTES: usize = 64 << 20;
/// The most bytes that all decoded columns take.
const COLUMN_BYTES: usize = 64 << 20;
/// Of a longer range of rows, columns are not kept: it is read in sequence.
const MAX_ROWS: usize = 1 << 16;

/// The path of a file, a row group and a field in it, and its first row and the number of rows.
type ColumnKey = (String, usize, usize, usize, usize);
type Column = Vec<ArrayRef>;

/// What is kept of the runs in a store.
#[derive(Debug)]
struct RunCache {
    files: Mutex<Cache<String, IndexedPart>>,
    columns: Mutex<Cache<ColumnKey, Column>>,
}

impl Default for RunCache {
    fn default() -> Self {
        Self {
            files: Mutex::new(Cache::new(FILE_BYTES)),
            columns: Mutex::new(Cache::new(COLUMN_BYTES)),
        }
    }
}

impl RunCache {
    fn of(store: &Store) -> Arc<Self> {
        store.shared_state("")
    }
}

/// Values by key, up to a number of bytes.
#[derive(Debug)]
struct Cache<K, V> {
    entries: HashMap<K, Entry<V>>,
    max_bytes: usize,
    bytes: usize,
    /// Counts the uses.
    now: u64,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Cache<K, V> {
    fn new(max_bytes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_bytes,
            bytes: 0,
            now: 0,
        }
    }

    fn get(&mut self, key: &K) -> Option<V> {
        self.now += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.now;
        Some(entry.value.clone())
    }

    fn insert(&mut self, key: K, value: V, bytes: usize) {
        self.now += 1;
        let used = self.now;
        self.bytes += bytes;
        let entry = Entry { value, bytes, used };
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes;
        }
        if self.bytes > self.max_bytes {
            self.shrink();
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(old) = self.entries.remove(key) {
            self.bytes -= old.bytes;
        }
    }

    /// Removes the quarter that was used least recently, and more if that is not enough.
    fn shrink(&mut self) {
        let mut uses: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
        uses.sort_unstable();
        let mut quarters = uses.chunks(uses.len().div_ceil(4).max(1));
        while self.bytes > self.max_bytes
            && let Some(last) = quarters.next().and_then(<[u64]>::last)
        {
            let bytes = &mut self.bytes;
            self.entries.retain(|_, entry| {
                let is_kept = entry.used > *last;
                *bytes -= if is_kept { 0 } else { entry.bytes };
                is_kept
            });
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file of a run, and what was parsed of its key index.
#[derive(Debug, Clone)]
pub(super) struct IndexedPart {
    pub(super) part: Arc<OpenPart>,
    /// By the number of columns of the key that are compared.
    blocks: Arc<Mutex<HashMap<usize, Arc<Blocks>>>>,
}

impl IndexedPart {
    fn new(part: OpenPart) -> Self {
        Self {
            part: Arc::new(part),
            blocks: Arc::default(),
        }
    }

    /// The blocks of the key index, by the first columns of the key.
    pub(super) fn blocks(&self, cut: &CutKeys) -> Result<Arc<Blocks>> {
        if let Some(blocks) = lock(&self.blocks).get(&cut.columns()) {
            return Ok(Arc::clone(blocks));
        }
        let file = &self.part.file;
        let blocks = KeyIndex::from_footer(file.metadata())?.blocks(cut, file.rows())?;
        let blocks = Arc::new(blocks);
        lock(&self.blocks).insert(cut.columns(), Arc::clone(&blocks));
        Ok(blocks)
    }

    /// About how many bytes it takes in memory, with the blocks of all columns: their keys are in the footer as text.
    fn memory_bytes(&self) -> usize {
        let metadata = self.part.file.metadata().file_metadata();
        let entries = metadata.key_value_metadata().into_iter().flatten();
        let index = entries.filter(|entry| entry.key == KEY_INDEX);
        let index: usize = index
            .filter_map(|entry| Some(entry.value.as_ref()?.len()))
            .sum();
        self.part.memory_bytes() + 2 * index
    }
}

/// Opens a file of a run in a folder.
pub(super) async fn open_cached(
    store: &Store,
    folder: &str,
    file: &RunFile,
) -> Result<IndexedPart> {
    let file_path = path::join(folder, &file.name);
    let cache = RunCache::of(store);
    let cached = lock(&cache.files).get(&file_path);
    let current = match cached {
        Some(cached) if store.local().is_some() => {
            cached.part.reopen(store).await?.map(|part| IndexedPart {
                part: Arc::new(part),
                ..cached
            })
        }
        cached => cached,
    };
    if let Some(current) = current {
        return Ok(current);
    }
    let opened = open_with_indexes(store, &file_path, file.footer_size, file.index_size).await?;
    let opened = IndexedPart::new(opened);
    let to_cache = IndexedPart {
        part: opened.part.without_descriptor(),
        ..opened.clone()
    };
    let bytes = to_cache.memory_bytes();
    lock(&cache.files).insert(file_path, to_cache, bytes);
    Ok(opened)
}

/// Opens the files anew the next time: one was replaced, is gone, or was damaged on its way.
pub(super) fn forget(store: &Store, folder: &str, files: &[RunFile]) {
    let cache = RunCache::of(store);
    let mut kept = lock(&cache.files);
    for file in files {
        kept.remove(&path::join(folder, &file.name));
    }
}

/// The columns of some rows of a row group, range by range: those that are kept, and the others by `read`.
pub(super) async fn read_through<F>(
    store: &Store,
    piece: RowGroupSelection,
    ranges: &[Range<usize>],
    read: impl FnOnce(RowGroupSelection) -> F,
) -> Result<Vec<HashMap<usize, Column>>>
where
    F: Future<Output = Result<HashMap<usize, Column>>>,
{
    let is_kept = ranges.iter().all(|range| range.len() <= MAX_ROWS);
    let cache = RunCache::of(store);
    let (file, group) = (piece.part.path.clone(), piece.index);
    let key =
        |root: usize, range: &Range<usize>| (file.clone(), group, root, range.start, range.len());
    let mut columns = vec![HashMap::new(); ranges.len()];
    if is_kept {
        let mut kept = lock(&cache.columns);
        for (columns, range) in columns.iter_mut().zip(ranges) {
            let of_range = piece.projection.iter();
            columns
                .extend(of_range.filter_map(|root| Some((*root, kept.get(&key(*root, range))?))));
        }
    }
    let is_missing = |root: &&usize| columns.iter().any(|kept| !kept.contains_key(root));
    let missing: Arc<[usize]> = piece
        .projection
        .iter()
        .filter(is_missing)
        .copied()
        .collect();
    let lacks_some = |at: &usize| missing.iter().any(|root| !columns[*at].contains_key(root));
    let incomplete: Vec<usize> = (0..ranges.len()).filter(lacks_some).collect();
    if incomplete.is_empty() {
        return Ok(columns);
    }
    let rows = piece.rows.as_ref().map(|selection| RowSelection {
        rows: RowRanges::covering(incomplete.iter().map(|at| ranges[*at].clone())),
        ..selection.clone()
    });
    let fresh = read(RowGroupSelection {
        projection: missing,
        rows,
        ..piece
    })
    .await?;
    for (root, arrays) in &fresh {
        for (at, mut column) in incomplete.iter().zip(cut(arrays, ranges, &incomplete)) {
            // So that a range that is kept keeps no rows of others in memory.
            if is_kept && incomplete.len() > 1 {
                let copies = column.iter().map(|a| copy_rows(a, 0, a.len()));
                column = copies.collect::<Result<_>>()?;
            }
            columns[*at].insert(*root, column);
        }
    }
    if is_kept {
        let mut kept = lock(&cache.columns);
        for at in incomplete {
            for (root, column) in columns[at]
                .iter()
                .filter(|(root, _)| fresh.contains_key(root))
            {
                let bytes = column.iter().map(|array| array.get_array_memory_size());
                kept.insert(key(*root, &ranges[at]), column.clone(), bytes.sum());
            }
        }
    }
    Ok(columns)
}

/// Cuts the arrays of some of the ranges, one after the other, into those of each.
fn cut(arrays: &[ArrayRef], ranges: &[Range<usize>], of: &[usize]) -> Vec<Column> {
    let mut begin = 0;
    let parts = of.iter().map(|at| {
        let rows = begin..begin + ranges[*at].len();
        begin = rows.end;
        slice_arrays(arrays.to_vec(), &rows)
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_recently_goes() {
        let mut cache = Cache::new(100);
        for n in 0..10 {
            cache.insert(n, n, 10);
        }
        assert_eq!(cache.get(&0), Some(0));
        cache.insert(10, 10, 10);
        assert_eq!((cache.get(&0), cache.get(&1)), (Some(0), None));
        assert!(cache.bytes <= 100);
        cache.insert(11, 11, 1000);
        assert_eq!((cache.entries.len(), cache.bytes), (0, 0));
        cache.insert(0, 0, 10);
        cache.insert(0, 1, 20);
        assert_eq!((cache.get(&0), cache.bytes), (Some(1), 20));
    }
}
