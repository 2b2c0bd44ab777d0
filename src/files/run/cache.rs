//! What a process keeps of the runs in a store: lookups come back to the same pages, and files never change.
//!
//! Kept are the footers of files with their key indexes, of object stores page indexes and small files as a whole, too;
//! and the decoded columns of pages that lookups have read: an update reads the same pages for the old rows, for the
//! rows of its next stage, and often in the update after it. They are kept by blocks of the key index, so that lookups
//! of other keys share them. What was used least recently goes. So a lookup that reads more than there is room for puts
//! nothing there: all would go that others come back to, and its own first pages before it reads them once more.
//!
//! Of small files that an update wrote to an object store the bytes are kept, too: the next update looks up its keys in
//! them, or merges them with what it adds. Rebuilds and checks read the store ([`forget`]).
//!
//! Local files are not kept open, since each holds a descriptor: one whose version is still the same is not parsed again.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex};

use arrow_array::ArrayRef;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use super::index::{Blocks, KeyIndex};
use super::keys::CutKeys;
use super::pieces::RunPiece;
use super::{KEY_INDEX, RunFile};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{OpenPart, RowGroupSelection, open_bytes, open_with_indexes};
use crate::parquet::arrays::slice_arrays;
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::narrow::copy_rows;
use crate::parquet::page_selection::RowSelection;
use crate::parquet::row_ranges::RowRanges;
use crate::store::{Store, path};
use crate::sync::mutex::lock;

/// The most bytes that all open files take.
const FILE_BYTES: usize = 64 << 20;
/// The most bytes that all files take that were written and not opened since.
const WRITTEN_BYTES: usize = 16 << 20;
/// How many files are opened ahead at once.
const OPENED_AHEAD: usize = 32;
/// The most bytes that all decoded columns take.
pub(super) const COLUMN_BYTES: usize = 64 << 20;
/// Of a longer range of rows, columns are not kept: it is read in sequence.
const MAX_ROWS: usize = 1 << 16;

/// The path of a file, a row group and a field in it, and its first row and the number of rows.
type ColumnKey = (Arc<str>, usize, usize, usize, usize);
/// A column of some rows; several arrays where one cannot hold the values.
pub(super) type Column = Vec<ArrayRef>;

/// What is kept of the runs in a store.
#[derive(Debug)]
struct RunCache {
    files: Mutex<Cache<String, IndexedPart>>,
    /// The bytes of files that were written, until they are opened.
    written: Mutex<Cache<String, Bytes>>,
    columns: Mutex<Cache<ColumnKey, Column>>,
}

impl Default for RunCache {
    fn default() -> Self {
        Self {
            files: Mutex::new(Cache::new(FILE_BYTES)),
            written: Mutex::new(Cache::new(WRITTEN_BYTES)),
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

    /// Removes the values of which the key is not to be kept.
    fn retain(&mut self, is_kept: impl Fn(&K) -> bool) {
        let bytes = &mut self.bytes;
        self.entries.retain(|key, entry| {
            let is_kept = is_kept(key);
            *bytes -= if is_kept { 0 } else { entry.bytes };
            is_kept
        });
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

/// A file of a run, and what was parsed of its key index.
#[derive(Debug, Clone)]
pub(super) struct IndexedPart {
    pub(super) part: Arc<OpenPart>,
    /// The path of the file.
    pub(super) path: Arc<str>,
    /// By the number of columns of the key that are compared.
    blocks: Arc<Mutex<HashMap<usize, Arc<Blocks>>>>,
}

impl IndexedPart {
    fn new(part: OpenPart) -> Self {
        Self {
            path: part.path.as_str().into(),
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
    let written = lock(&cache.written).get(&file_path);
    let opened = match written {
        Some(bytes) => open_bytes(&file_path, bytes).await?,
        // One request for all of it is sooner done than one for its end and another one for pages.
        None if file.size_bytes <= TAIL_BYTES => {
            open_with_indexes(store, &file_path, file.size_bytes, 0).await?
        }
        None => open_with_indexes(store, &file_path, file.footer_size, file.index_size).await?,
    };
    let opened = IndexedPart::new(opened);
    let to_cache = IndexedPart {
        part: opened.part.without_descriptor(),
        ..opened.clone()
    };
    let bytes = to_cache.memory_bytes();
    lock(&cache.written).remove(&file_path);
    lock(&cache.files).insert(file_path, to_cache, bytes);
    Ok(opened)
}

/// Opens files at once that lookups would open one after the other. A file that cannot be read is left to the lookup that
/// needs it, if there is one.
pub(crate) async fn open_ahead(folder: &str, files: Vec<(Store, RunFile)>) -> Result<()> {
    let opens = files.into_iter().map(|(store, file)| async move {
        match open_cached(&store, folder, &file).await {
            Err(e) if !concerns_file(&e) => Err(e),
            _ => Ok(()),
        }
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let opens: Vec<_> = opens.collect();
    let opens = stream::iter(opens).buffer_unordered(OPENED_AHEAD);
    opens.try_collect::<()>().await
}

/// Whether an error of a read says nothing of other files: one is missing, for which stores may answer that access is
/// denied, or damaged, or was replaced since it was opened.
pub(crate) fn concerns_file(e: &Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::Conflict
            | ErrorKind::PartCorrupted
    )
}

/// Keeps the bytes of a file that was written, if it is small and in an object store: its name is not used again.
pub(super) fn keep_written(store: &Store, file_path: &str, bytes: Bytes) {
    if store.local().is_some() || bytes.len() as u64 > TAIL_BYTES {
        return;
    }
    let (cache, size) = (RunCache::of(store), bytes.len());
    lock(&cache.written).insert(file_path.to_owned(), bytes, size);
}

/// Reads the files anew the next time: one was replaced, is gone, or was damaged on its way; or they are checked.
pub(crate) fn forget(store: &Store, folder: &str, files: &[RunFile]) {
    let cache = RunCache::of(store);
    let paths = files.iter().map(|file| path::join(folder, &file.name));
    let paths: HashSet<String> = paths.collect();
    for file_path in &paths {
        lock(&cache.files).remove(file_path);
        lock(&cache.written).remove(file_path);
    }
    lock(&cache.columns).retain(|(file_path, ..)| !paths.contains(&**file_path));
}

/// The columns of a piece: those that are kept, and those that are left to read.
pub(super) struct PieceColumns {
    cache: Arc<RunCache>,
    piece: RunPiece,
    /// For each cell the columns of the projection, where they are kept.
    hits: Vec<Vec<Option<Column>>>,
    /// The cells that lack a column.
    incomplete: Vec<usize>,
    /// What is left to read: the columns that a cell lacks, of all cells that lack one.
    missing: Option<RowGroupSelection>,
}

impl PieceColumns {
    /// Looks up what is kept of a piece.
    pub(super) fn new(store: &Store, mut piece: RunPiece) -> Self {
        piece.caches_columns &= piece.cells.iter().all(|cell| cell.len() <= MAX_ROWS);
        let cache = RunCache::of(store);
        let projection = Arc::clone(&piece.selection.projection);
        let hits: Vec<Vec<Option<Column>>> = {
            let mut columns = lock(&cache.columns);
            let cells = 0..piece.cells.len();
            let of_cell = |cell: usize| {
                let keys = projection.iter().map(|root| key(&piece, cell, *root));
                keys.map(|key| columns.get(&key)).collect()
            };
            cells.map(of_cell).collect()
        };
        let incomplete: Vec<usize> = (0..hits.len())
            .filter(|cell| hits[*cell].iter().any(Option::is_none))
            .collect();
        let is_lacking = |column: usize| {
            let mut cells = incomplete.iter();
            cells.any(|cell| hits[*cell][column].is_none())
        };
        let lacking: Arc<[usize]> = projection
            .iter()
            .enumerate()
            .filter(|(column, _)| is_lacking(*column))
            .map(|(_, root)| *root)
            .collect();
        let missing = (!incomplete.is_empty()).then(|| RowGroupSelection {
            projection: lacking,
            rows: piece.selection.rows.as_ref().map(|selection| RowSelection {
                rows: RowRanges::covering(incomplete.iter().map(|at| piece.cells[*at].clone())),
                ..selection.clone()
            }),
            ..piece.selection.clone()
        });
        Self {
            cache,
            piece,
            hits,
            incomplete,
            missing,
        }
    }

    /// What is left to read; `None` if all columns are kept.
    pub(super) fn missing(&self) -> Option<&RowGroupSelection> {
        self.missing.as_ref()
    }

    /// The columns of the projection, with those that were left to read: of each cell with the number of its rows, or of
    /// all rows at once.
    pub(super) fn complete(
        mut self,
        mut fresh: HashMap<usize, Column>,
    ) -> Result<Vec<(usize, Vec<Column>)>> {
        let projection = Arc::clone(&self.piece.selection.projection);
        if let Some(missing) = self.missing.take() {
            let is_whole = self.incomplete.len() == self.piece.cells.len()
                && missing.projection.len() == projection.len();
            if self.piece.caches_columns || !is_whole {
                self.cut(&missing, &fresh)?;
            }
            if is_whole {
                let columns = projection
                    .iter()
                    .map(|root| fresh.remove(root).unwrap_or_default())
                    .collect();
                return Ok(vec![(self.piece.num_rows(), columns)]);
            }
        }
        let cells = self.piece.cells.iter().zip(self.hits);
        Ok(cells
            .map(|(cell, columns)| {
                let columns = columns.into_iter().map(Option::unwrap_or_default);
                (cell.len(), columns.collect())
            })
            .collect())
    }

    /// Cuts what was read into the columns that cells lack, and keeps copies of these.
    fn cut(&mut self, read: &RowGroupSelection, fresh: &HashMap<usize, Column>) -> Result<()> {
        let piece = &self.piece;
        let rows = match &read.rows {
            Some(selection) => selection.rows.clone(),
            None => RowRanges::covering(piece.cells.iter().cloned()),
        };
        let mut to_keep = Vec::new();
        for at in &self.incomplete {
            let cell = &piece.cells[*at];
            let positions = rows.positions_of(&RowRanges::single(cell.clone()));
            let position = positions.first().cloned().unwrap_or_default();
            for (root, column) in piece.selection.projection.iter().zip(&mut self.hits[*at]) {
                let (Some(arrays), None) = (fresh.get(root), &column) else {
                    continue;
                };
                let mut own = slice_arrays(arrays.clone(), &position);
                // So that a cell that is kept keeps no rows of others in memory.
                if piece.caches_columns && rows.num_rows() > cell.len() {
                    let copies = own.iter().map(|array| copy_rows(array, 0, array.len()));
                    own = copies.collect::<Result<_>>()?;
                }
                if piece.caches_columns {
                    to_keep.push((key(piece, *at, *root), own.clone()));
                }
                *column = Some(own);
            }
        }
        let mut columns = lock(&self.cache.columns);
        for (key, column) in to_keep {
            let sizes = column.iter().map(|array| array.get_array_memory_size());
            let bytes = sizes.sum();
            columns.insert(key, column, bytes);
        }
        Ok(())
    }
}

/// What a column of a cell is kept by.
fn key(piece: &RunPiece, cell: usize, root: usize) -> ColumnKey {
    let cell = &piece.cells[cell];
    let path = Arc::clone(&piece.path);
    (path, piece.selection.index, root, cell.start, cell.len())
}

#[cfg(test)]
mod tests {
    use object_store::PutMode;

    use super::*;
    use crate::testing::{Fault, FaultKind, FaultTiming, faulty_memory, test_store};

    #[tokio::test]
    async fn files_that_cannot_be_read_are_left_to_lookups() {
        let memory = faulty_memory();
        let store = test_store(&memory, true);
        let damaged = Bytes::from_static(b"not a Parquet file");
        let path = "runs/damaged";
        store.put(path, damaged, PutMode::Overwrite).await.unwrap();
        let file = |name: &str| RunFile {
            name: name.to_owned(),
            size_bytes: 18,
            footer_size: 10,
            index_size: 0,
            rows: 1,
            first: Vec::new(),
            last: Vec::new(),
        };
        for denied in [false, true] {
            memory.set_fault(denied.then_some(Fault {
                request: 0,
                timing: FaultTiming::Before,
                kind: FaultKind::Denied,
                is_persistent: true,
            }));
            for name in ["damaged", "missing"] {
                let opened = open_cached(&store, "runs", &file(name)).await;
                let expected = match (denied, name) {
                    (true, _) => ErrorKind::PermissionDenied,
                    (false, "damaged") => ErrorKind::PartCorrupted,
                    (false, _) => ErrorKind::NotFound,
                };
                assert_eq!(opened.unwrap_err().kind(), expected);
                let files = vec![(store.clone(), file(name))];
                open_ahead("runs", files).await.unwrap();
            }
        }
    }

    #[test]
    fn an_error_of_the_store_is_not_left_to_lookups() {
        let concerns = |kind| concerns_file(&Error::new(kind, "a read failed"));
        assert!(concerns(ErrorKind::Conflict));
        let others = [ErrorKind::Unavailable, ErrorKind::Cancelled];
        assert!(!others.into_iter().any(concerns));
    }

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
        cache.insert(1, 1, 30);
        cache.retain(|key| *key == 0);
        assert_eq!((cache.get(&0), cache.get(&1)), (Some(1), None));
        assert_eq!(cache.bytes, 20);
    }
}
