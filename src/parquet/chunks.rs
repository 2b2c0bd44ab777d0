//! The fetched bytes of column chunks, addressed by their offset in the file.

use std::io::{Cursor, Read};
use std::ops::Range;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

/// The fetched bytes of a row group's column chunks, in the order of their offsets in the file.
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    buffers: Vec<(u64, Bytes)>,
}

impl Chunks {
    /// Returns a value without bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that begin at the offset `start` of the file.
    pub fn push(&mut self, start: u64, bytes: Bytes) {
        let position = self.buffers.partition_point(|(s, _)| *s < start);
        self.buffers.insert(position, (start, bytes));
    }

    /// Adds all bytes of `other`.
    pub fn absorb(&mut self, other: Self) {
        for (start, bytes) in other.buffers {
            self.push(start, bytes);
        }
    }

    /// The bytes of a range of the file; None unless one buffer holds the whole range.
    pub fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        let after = self.buffers.partition_point(|(s, _)| *s <= range.start);
        let (start, bytes) = self.buffers.get(after.checked_sub(1)?)?;
        let from = usize::try_from(range.start - start).ok()?;
        let to = usize::try_from(range.end - start).ok()?;
        (to <= bytes.len()).then(|| bytes.slice(from..to))
    }
}

/// A file of which only some chunks were fetched; reading other bytes is an error.
#[derive(Debug, Clone)]
pub(super) struct SparseFile {
    pub(super) chunks: Chunks,
    pub(super) length: u64,
}

impl Length for SparseFile {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for SparseFile {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let after = self.chunks.buffers.partition_point(|(s, _)| *s <= start);
        let slice = after.checked_sub(1).and_then(|i| {
            let (begin, bytes) = &self.chunks.buffers[i];
            let from = usize::try_from(start - begin).ok()?;
            (from <= bytes.len()).then(|| bytes.slice(from..))
        });
        let bytes =
            slice.ok_or_else(|| ParquetError::EOF(format!("byte {start} was not fetched")))?;
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        start
            .checked_add(length as u64)
            .and_then(|end| self.chunks.slice(&(start..end)))
            .ok_or_else(|| ParquetError::EOF(format!("{length} bytes at {start} were not fetched")))
    }
}
