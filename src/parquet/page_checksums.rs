//! The checksums of a file's pages, with which pages can be verified alone.
//!
//! [`PageHasher`] hashes a chunk as a whole and page by page while its bytes leave for the sink. [`PageChecksums`] is
//! what a finished file gets of it: the checksums of all chunks with more than one data page, and for each of these
//! chunks a [`PageSeal`], which also covers its part of the page indexes. A chunk of one data page has none: reading
//! its page is reading the chunk.

use std::collections::BTreeMap;
use std::hash::Hasher;

use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use twox_hash::XxHash3_64;

use super::seal::{PAGE_CHECKSUM_BYTES, PageSeal, hash};

/// The hashes of a chunk.
#[derive(Debug, Clone, Default)]
pub(super) struct ChunkDigest {
    pub(super) hash: u64,
    /// The length and the hash of each page with its header, in the order of the file.
    pages: Vec<(usize, u64)>,
}

/// Hashes a chunk and its pages. The parquet writer gives a page as two pieces, its header and its data.
#[derive(Default)]
pub(super) struct PageHasher {
    chunk: XxHash3_64,
    /// The length and the hasher of a page whose data is still to come.
    open_page: Option<(usize, XxHash3_64)>,
    pages: Vec<(usize, u64)>,
}

impl PageHasher {
    pub(super) fn write(&mut self, piece: &[u8]) {
        self.chunk.write(piece);
        match self.open_page.take() {
            None => {
                let mut hasher = XxHash3_64::new();
                hasher.write(piece);
                self.open_page = Some((piece.len(), hasher));
            }
            Some((header_bytes, mut hasher)) => {
                hasher.write(piece);
                let page_bytes = header_bytes + piece.len();
                self.pages.push((page_bytes, hasher.finish()));
            }
        }
    }

    pub(super) fn finish(self) -> ChunkDigest {
        ChunkDigest {
            hash: self.chunk.finish(),
            pages: self.pages,
        }
    }
}

/// The page indexes of a file, which begin at the offset `start`.
pub(super) struct IndexBytes<'a> {
    pub(super) start: u64,
    pub(super) bytes: &'a [u8],
}

impl IndexBytes<'_> {
    /// The index at an offset of the file; empty if there is none.
    fn slice(&self, offset: Option<i64>, length: Option<i32>) -> Result<&[u8], ParquetError> {
        let (Some(offset), Some(length)) = (offset, length) else {
            return Ok(&[]);
        };
        let range = || {
            let begin = usize::try_from(offset.unsigned_abs().checked_sub(self.start)?).ok()?;
            let end = begin.checked_add(usize::try_from(length).ok()?)?;
            self.bytes.get(begin..end)
        };
        range().ok_or_else(|| mismatch("an index lies elsewhere"))
    }
}

/// The checksums of a file's pages as they are written, and the chunks that have some.
pub(super) struct PageChecksums {
    pub(super) checksums: Vec<u8>,
    pub(super) chunks: BTreeMap<(u32, u32), PageSeal>,
}

impl PageChecksums {
    /// Fails if the hashes are not those of the pages that the offset index lists: nothing wrong is ever written.
    pub(super) fn new(
        digests: &[Vec<ChunkDigest>],
        metadata: &ParquetMetaData,
        indexes: &IndexBytes<'_>,
    ) -> Result<Self, ParquetError> {
        let mut all = Self {
            checksums: Vec::new(),
            chunks: BTreeMap::new(),
        };
        let Some(offset_indexes) = metadata.offset_index() else {
            return Ok(all);
        };
        for (group, digests) in digests.iter().enumerate() {
            for (leaf, digest) in digests.iter().enumerate() {
                let column = metadata.row_group(group).column(leaf);
                let locations = offset_indexes[group][leaf].page_locations();
                if locations.len() < 2 {
                    continue;
                }
                let sizes = locations.iter().map(|l| i64::from(l.compressed_page_size));
                check_lengths(digest, sizes.collect(), column)?;
                let key = (to_u32(group)?, to_u32(leaf)?);
                all.add(key, digest, column, indexes)?;
            }
        }
        Ok(all)
    }

    fn add(
        &mut self,
        key: (u32, u32),
        digest: &ChunkDigest,
        column: &ColumnChunkMetaData,
        indexes: &IndexBytes<'_>,
    ) -> Result<(), ParquetError> {
        let hashes = digest.pages.iter().flat_map(|(_, hash)| hash.to_le_bytes());
        let checksums: Vec<u8> = hashes.collect();
        let column_index =
            indexes.slice(column.column_index_offset(), column.column_index_length())?;
        let offset_index =
            indexes.slice(column.offset_index_offset(), column.offset_index_length())?;
        let page_seal = PageSeal {
            pages: to_u32(digest.pages.len())?,
            first: (self.checksums.len() / PAGE_CHECKSUM_BYTES) as u64,
            column_index_hash: hash(column_index),
            offset_index_hash: hash(&[offset_index, &checksums].concat()),
        };
        self.checksums.extend(checksums);
        self.chunks.insert(key, page_seal);
        Ok(())
    }
}

/// Checks that the hashed pages are a dictionary page, if the chunk has one, and the pages of these sizes.
fn check_lengths(
    digest: &ChunkDigest,
    data_page_sizes: Vec<i64>,
    column: &ColumnChunkMetaData,
) -> Result<(), ParquetError> {
    let first_data_page = column.data_page_offset();
    let dictionary_bytes = column
        .dictionary_page_offset()
        .map(|offset| first_data_page - offset);
    let expected = dictionary_bytes.into_iter().chain(data_page_sizes);
    let hashed = digest.pages.iter().map(|(bytes, _)| i64::try_from(*bytes));
    if hashed.eq(expected.map(Ok)) {
        return Ok(());
    }
    Err(mismatch("the pages have other lengths"))
}

fn to_u32(count: usize) -> Result<u32, ParquetError> {
    u32::try_from(count).map_err(|_large| mismatch("there are too many pages"))
}

fn mismatch(reason: &str) -> ParquetError {
    ParquetError::General(format!(
        "internal error: the checksums of pages do not fit the page indexes: {reason}"
    ))
}
