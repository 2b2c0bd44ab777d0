//! Row groups into memory: columns are decoded by all processors, each as its bytes arrive.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::blocking;
use super::fetch::{CONCURRENT_FETCHES, Piece};
use super::open::{OpenPart, Source};
use crate::error::{Error, Result};
use crate::parquet::decode::align;
use crate::parquet::default_threads;
use crate::store::Store;

/// Pieces of row groups that are fetched, decoded or waited for at once.
const PIECES_AHEAD: usize = 16;

/// A row group and the fields wanted of it, in the order wanted.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) part: Arc<OpenPart>,
    pub(crate) index: usize,
    pub(crate) roots: Arc<[usize]>,
    /// Only these of its rows.
    pub(crate) rows: Option<Range<usize>>,
}

/// Rows and their columns; a row group is several of these only where a column is several arrays.
pub(crate) type Aligned = Vec<(usize, Vec<ArrayRef>)>;

type Decoded = Vec<(usize, Vec<ArrayRef>)>;

/// What all that is read at once shares: turns to fetch and to decode.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    store: Store,
    fetch: Arc<Semaphore>,
    decode: Arc<Semaphore>,
}

impl Reader {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            fetch: Arc::new(Semaphore::new(CONCURRENT_FETCHES)),
            decode: Arc::new(Semaphore::new(default_threads())),
        }
    }

    /// Reads a row group; the arrays of each field follow one another.
    pub(crate) async fn read(&self, group: Group) -> Result<HashMap<usize, Vec<ArrayRef>>> {
        let pieces = group.part.pieces(group.index, &group.roots);
        let columns = pieces.into_iter();
        let columns = columns.map(|piece| self.clone().read_piece(group.clone(), piece));
        let columns = futures::future::try_join_all(columns).await?;
        Ok(columns.into_iter().flatten().collect())
    }

    /// Fetches a piece and decodes its columns.
    async fn read_piece(self, group: Group, piece: Piece) -> Result<Decoded> {
        let Group {
            part, index, rows, ..
        } = group;
        let fetched = {
            let _turn = self.fetch.acquire().await;
            part.fetch_piece(&self.store, &piece).await?
        };
        let columns = piece.roots.iter().map(|&root| {
            let (part, fetched, rows) = (Arc::clone(&part), fetched.clone(), rows.clone());
            let decode = Arc::clone(&self.decode);
            async move {
                let _turn = decode.acquire_owned().await;
                let arrays =
                    blocking(move || part.decode(index, root, &fetched, rows.as_ref())).await?;
                Ok((root, arrays))
            }
        });
        futures::future::try_join_all(columns).await
    }
}

/// Reads row groups, all at once. Of open files the largest columns come first, so that the
/// processors end together; others in the order of the file, as they arrive.
pub(crate) async fn read_groups(store: Store, groups: &[Group]) -> Result<Vec<Aligned>> {
    let reader = Reader::new(store);
    let mut pieces = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for piece in group.part.pieces(group.index, &group.roots) {
            pieces.push((number, piece));
        }
    }
    let is_open = |number: usize| matches!(groups[number].part.source, Source::Local(_));
    pieces.sort_by_key(|(number, piece)| {
        let size = |root| {
            groups[*number]
                .part
                .file
                .decoded_bytes(groups[*number].index, root)
        };
        let size: u64 = piece.roots.iter().map(|root| size(*root)).sum();
        std::cmp::Reverse(if is_open(*number) { size } else { 0 })
    });
    let reads = pieces.into_iter().map(|(number, piece)| {
        let read = reader.clone().read_piece(groups[number].clone(), piece);
        async move { Ok::<_, Error>((number, read.await?)) }
    });
    let mut read = stream::iter(reads).buffer_unordered(PIECES_AHEAD);
    let mut found: Vec<HashMap<usize, Vec<ArrayRef>>> = vec![HashMap::new(); groups.len()];
    while let Some((number, columns)) = read.try_next().await? {
        found[number].extend(columns);
    }
    Ok(groups
        .iter()
        .zip(found)
        .map(|(g, f)| aligned(g, f))
        .collect())
}

fn aligned(group: &Group, mut found: HashMap<usize, Vec<ArrayRef>>) -> Aligned {
    let rows = group.part.file.metadata().row_group(group.index).num_rows();
    let rows = usize::try_from(rows).unwrap_or(usize::MAX);
    let columns = group.roots.iter().filter_map(|root| found.remove(root));
    let columns: Vec<_> = columns.collect();
    if columns.is_empty() {
        return vec![(rows, Vec::new())];
    }
    align(&columns, rows)
}
