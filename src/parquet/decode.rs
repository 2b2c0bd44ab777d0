//! Column chunks into Arrow arrays, one column of one row group at a time.

use std::io::{Cursor, Read};
use std::ops::Range;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::SchemaRef;
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::dictionary::restore;
use super::file::PartFile;
use super::flat;
use super::panic_text;
use super::types::{batch_of, convert};
use crate::error::{Error, ErrorKind, Result};

/// Rows that are decoded at once where a whole row group does not fit into one array.
const FALLBACK_ROWS: usize = 8192;
/// Rows of a batch of a stream.
const STREAM_ROWS: usize = 1 << 16;

/// The chunks of a row group's columns, at their place in the file.
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    pieces: Vec<(u64, Bytes)>,
}

impl Chunks {
    /// No bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes that begin at `start` of the file.
    pub fn push(&mut self, start: u64, bytes: Bytes) {
        let at = self.pieces.partition_point(|(s, _)| *s < start);
        self.pieces.insert(at, (start, bytes));
    }

    /// Adds another's bytes.
    pub fn absorb(&mut self, other: Self) {
        for (start, bytes) in other.pieces {
            self.push(start, bytes);
        }
    }

    /// The bytes of a range, if one piece holds them all.
    pub fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        let after = self.pieces.partition_point(|(s, _)| *s <= range.start);
        let (start, bytes) = self.pieces.get(after.checked_sub(1)?)?;
        let from = usize::try_from(range.start - start).ok()?;
        let to = usize::try_from(range.end - start).ok()?;
        (to <= bytes.len()).then(|| bytes.slice(from..to))
    }
}

/// A file of which only some chunks are there.
#[derive(Debug, Clone)]
struct Window {
    chunks: Chunks,
    length: u64,
}

impl Length for Window {
    fn len(&self) -> u64 {
        self.length
    }
}

impl ChunkReader for Window {
    type T = Box<dyn Read>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let after = self.chunks.pieces.partition_point(|(s, _)| *s <= start);
        let found = after.checked_sub(1).and_then(|i| {
            let (begin, bytes) = &self.chunks.pieces[i];
            let from = usize::try_from(start - begin).ok()?;
            (from <= bytes.len()).then(|| bytes.slice(from..))
        });
        let bytes =
            found.ok_or_else(|| ParquetError::EOF(format!("offset {start} was not fetched")))?;
        Ok(Box::new(Cursor::new(bytes)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        start
            .checked_add(length as u64)
            .and_then(|end| self.chunks.slice(&(start..end)))
            .ok_or_else(|| ParquetError::EOF(format!("{length} bytes at {start} were not fetched")))
    }
}

/// Decodes the field `root` of a row group after checking its chunks; the arrays have the type the
/// file's schema gives. Several arrays only where one cannot hold the values.
pub fn decode_column(
    file: &PartFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
) -> Result<Vec<ArrayRef>> {
    decode_rows(file, group, root, chunks, None)
}

/// As [`decode_column`], of some rows.
pub fn decode_rows(
    file: &PartFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    wanted: Option<&Range<usize>>,
) -> Result<Vec<ArrayRef>> {
    let rows = usize::try_from(file.metadata().row_group(group).num_rows()).unwrap_or(usize::MAX);
    let all = 0..rows;
    let wanted = wanted.unwrap_or(&all);
    check_chunks(file, group, root, chunks)?;
    let field = file.schema.field(root);
    let finish = |array: &ArrayRef| {
        let array = convert(array, field.data_type(), field.name())?;
        Ok(restore(array, file.dictionary(root)))
    };
    let decode = |batch_rows| {
        let batches = column_reader(file, group, root, chunks, batch_rows)?;
        let arrays = batches.map(|batch| {
            let batch = batch.map_err(|e| Error::other(e.to_string()).caused_by(e))?;
            finish(batch.column(0))
        });
        arrays.collect::<Result<Vec<_>>>()
    };
    let guarded = std::panic::AssertUnwindSafe(|| {
        if let Some(array) = decode_flat(file, group, root, chunks, rows, wanted) {
            return Ok(vec![finish(&array)?]);
        }
        // One array for the row group, unless its values overflow it (32-bit offsets, small keys).
        let arrays = decode(rows.max(1)).or_else(|e| {
            if rows > FALLBACK_ROWS {
                decode(FALLBACK_ROWS)
            } else {
                Err(e)
            }
        })?;
        let found: usize = arrays.iter().map(|a| a.len()).sum();
        if found != rows {
            return Err(Error::other(format!(
                "{found} rows where the footer says {rows}"
            )));
        }
        Ok(sliced(arrays, wanted))
    });
    std::panic::catch_unwind(guarded)
        .unwrap_or_else(|panic| Err(Error::other(panic_text(panic.as_ref()).to_owned())))
        .map_err(|e| undecodable(field.name(), group, e.message()).caused_by(e))
}

fn check_chunks(file: &PartFile, group: usize, root: usize, chunks: &Chunks) -> Result<()> {
    for leaf in file.leaves(root) {
        let bytes = chunks
            .slice(&file.chunk_range(group, leaf))
            .ok_or_else(|| Error::other("a column chunk was not fetched"))?;
        file.check_chunk(group, leaf, &bytes)?;
    }
    Ok(())
}

/// A column without nesting, where its kind is one that is decoded at once.
fn decode_flat(
    file: &PartFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: usize,
    wanted: &Range<usize>,
) -> Option<ArrayRef> {
    let mut leaves = file.leaves(root);
    let leaf = leaves.next()?;
    if leaves.next().is_some() {
        return None;
    }
    let column = file.metadata().row_group(group).column(leaf);
    let data_type = file.reader.schema().field(root).data_type();
    flat::decode(window(file, chunks), column, rows, wanted, data_type)
}

fn window(file: &PartFile, chunks: &Chunks) -> Window {
    Window {
        chunks: chunks.clone(),
        length: file.length,
    }
}

fn column_reader(
    file: &PartFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: usize,
) -> Result<ParquetRecordBatchReader> {
    let window = window(file, chunks);
    ParquetRecordBatchReaderBuilder::new_with_metadata(window, file.reader.clone())
        .with_projection(file.mask(root))
        .with_row_groups(vec![group])
        .with_batch_size(rows)
        .build()
        .map_err(|e| {
            undecodable(file.schema.field(root).name(), group, &e.to_string()).caused_by(e)
        })
}

/// Some of the rows that arrays hold one after the other.
pub fn sliced(arrays: Vec<ArrayRef>, wanted: &Range<usize>) -> Vec<ArrayRef> {
    let mut begin = 0;
    let parts = arrays.into_iter().map(|array| {
        let end = begin + array.len();
        let from = wanted.start.clamp(begin, end);
        let to = wanted.end.clamp(from, end);
        let part = array.slice(from - begin, to - from);
        begin = end;
        part
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Cuts columns of differently many arrays at common places.
pub fn align(columns: &[Vec<ArrayRef>], rows: usize) -> Vec<(usize, Vec<ArrayRef>)> {
    if columns.iter().all(|arrays| arrays.len() == 1) {
        return vec![(
            rows,
            columns
                .iter()
                .map(|arrays| ArrayRef::clone(&arrays[0]))
                .collect(),
        )];
    }
    let mut cuts: Vec<usize> = columns
        .iter()
        .flat_map(|arrays| {
            arrays.iter().scan(0, |at, array| {
                *at += array.len();
                Some(*at)
            })
        })
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut start = 0;
    let mut batches = Vec::new();
    for end in cuts {
        if end > start {
            let slices = columns
                .iter()
                .map(|arrays| slice_of(arrays, start, end - start))
                .collect();
            batches.push((end - start, slices));
            start = end;
        }
    }
    batches
}

/// Rows that lie within one array, by construction of the cuts.
fn slice_of(arrays: &[ArrayRef], mut start: usize, length: usize) -> ArrayRef {
    for array in arrays {
        if start < array.len() {
            return array.slice(start, length);
        }
        start -= array.len();
    }
    arrow_array::new_empty_array(arrays[0].data_type())
}

/// Decodes the fields `roots` of a row group in slices and hands them on one by one.
pub fn stream_group(
    file: &PartFile,
    group: usize,
    roots: &[usize],
    chunks: &Chunks,
    schema: &SchemaRef,
    take: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let mut left =
        usize::try_from(file.metadata().row_group(group).num_rows()).unwrap_or(usize::MAX);
    let mut columns = Vec::new();
    for &root in roots {
        check_chunks(file, group, root, chunks)?;
        columns.push(column_reader(file, group, root, chunks, STREAM_ROWS)?);
    }
    while left > 0 {
        let rows = left.min(STREAM_ROWS);
        let mut arrays = Vec::with_capacity(roots.len());
        for (column, &root) in columns.iter_mut().zip(roots) {
            let field = file.schema.field(root);
            let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| column.next()))
                .unwrap_or_else(|panic| {
                    Some(Err(arrow_schema::ArrowError::ParquetError(
                        panic_text(panic.as_ref()).to_owned(),
                    )))
                });
            let batch = match next {
                Some(Ok(batch)) if batch.num_rows() == rows => batch,
                Some(Ok(batch)) => {
                    return Err(undecodable(
                        field.name(),
                        group,
                        &format!("{} rows of {rows}", batch.num_rows()),
                    ));
                }
                Some(Err(e)) => return Err(undecodable(field.name(), group, &e.to_string())),
                None => return Err(undecodable(field.name(), group, "rows are missing")),
            };
            let array = convert(batch.column(0), field.data_type(), field.name())?;
            arrays.push(restore(array, file.dictionary(root)));
        }
        take(batch_of(schema, arrays, rows)?)?;
        left -= rows;
    }
    Ok(())
}

fn undecodable(field: &str, group: usize, why: &str) -> Error {
    Error::new(
        ErrorKind::PartCorrupted,
        format!("column {field:?} of row group {group} cannot be decoded: {why}"),
    )
}
