//! Verifying every byte of a part, with few of them in memory at a time.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use twox_hash::XxHash3_64;

use super::fetch::ColumnFetch;
use super::open::OpenPart;
use super::run_blocking;
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::{Chunks, RowGroupStream};
use crate::parquet::file::MAGIC;
use crate::parquet::page_index::IndexRanges;
use crate::store::Store;

/// Number of column fetches that are fetched or decoded at once.
const FETCHES_AHEAD: usize = 2;
/// Bytes of the page indexes that are hashed at once.
const HASH_CHUNK_BYTES: u64 = 8 << 20;

impl OpenPart {
    /// Compares all bytes with their checksums and decodes all columns; [`ErrorKind::PartCorrupted`] where that fails.
    pub(crate) async fn verify(self: &Arc<Self>, store: &Store) -> Result<()> {
        self.verify_magic(store).await?;
        if let Some((indexes, expected)) = self.file.page_index_checksum() {
            self.verify_indexes(store, indexes, expected).await?;
        }
        let projection: Vec<usize> = (0..self.file.schema.fields().len()).collect();
        let groups = 0..self.file.metadata().num_row_groups();
        let fetches = groups.flat_map(|group| {
            let fetches = self.plan_fetches(group, &projection, None).into_iter();
            fetches.map(move |column_fetch| (group, column_fetch))
        });
        let checks =
            fetches.map(|(group, column_fetch)| self.verify_columns(store, group, column_fetch));
        stream::iter(checks)
            .buffer_unordered(FETCHES_AHEAD)
            .try_collect()
            .await
    }

    async fn verify_magic(&self, store: &Store) -> Result<()> {
        let begin = self.read_range(store, 0..MAGIC.len() as u64).await?;
        if begin == MAGIC {
            return Ok(());
        }
        let message = "not a Parquet file: the magic bytes at its begin are missing";
        Err(Error::new(ErrorKind::PartCorrupted, message))
    }

    async fn verify_indexes(
        &self,
        store: &Store,
        indexes: Range<u64>,
        expected: u64,
    ) -> Result<()> {
        let mut hasher = XxHash3_64::new();
        let mut offset = indexes.start;
        while offset < indexes.end {
            let end = (offset + HASH_CHUNK_BYTES).min(indexes.end);
            hasher.write(&self.read_range(store, offset..end).await?);
            offset = end;
        }
        if hasher.finish() == expected && indexes.start <= indexes.end {
            return Ok(());
        }
        let message = "checksum of the page indexes does not match: the bytes were changed";
        Err(Error::new(ErrorKind::PartCorrupted, message))
    }

    async fn verify_columns(
        self: &Arc<Self>,
        store: &Store,
        group: usize,
        column_fetch: ColumnFetch,
    ) -> Result<()> {
        let fetched = self.fetch_columns(store, &column_fetch).await?;
        let leaves = column_fetch
            .projection
            .iter()
            .flat_map(|root| self.file.leaves(*root));
        let index_ranges = leaves.filter_map(|leaf| self.sealed_indexes(group, leaf));
        let to_fetch = index_ranges.flat_map(|ranges| ranges.to_fetch(true).collect::<Vec<_>>());
        let indexes = self.read_ranges(store, to_fetch.collect()).await?;
        let part = Arc::clone(self);
        run_blocking(move || {
            column_fetch
                .projection
                .iter()
                .try_for_each(|root| part.decode_all(group, *root, &fetched, &indexes))
        })
        .await
    }

    /// Where the indexes of a chunk with checksums of pages are.
    fn sealed_indexes(&self, group: usize, leaf: usize) -> Option<IndexRanges> {
        self.file.seal.as_ref()?;
        self.file.index_ranges(group, leaf)
    }

    fn decode_all(
        &self,
        group: usize,
        root: usize,
        fetched: &Chunks,
        indexes: &Chunks,
    ) -> Result<()> {
        let local = self.read_local(group, root, None).transpose()?;
        let chunks = local.as_ref().unwrap_or(fetched);
        for leaf in self.file.leaves(root) {
            if let Some(ranges) = self.sealed_indexes(group, leaf) {
                self.file
                    .check_pages((group, leaf), &ranges, indexes, chunks)?;
            }
        }
        let mut rows = RowGroupStream::open(&self.file, group, &[root], chunks)?;
        while rows.next_batch()?.is_some() {}
        Ok(())
    }
}
