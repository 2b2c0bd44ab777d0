//! Column chunks into Arrow arrays, one column of one row group at a time.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::AssertUnwindSafe;

use arrow_array::ArrayRef;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

pub use super::chunks::Chunks;
use super::chunks::SparseFile;
use super::dictionary::restore;
use super::file::ParquetFile;
use super::flat;
use super::narrow::convert_all;
use super::{pages, panic_text};
use crate::error::{Error, ErrorKind, Result};

/// Rows that are decoded into one array at most; a footer may claim any number.
const MAX_ARRAY_ROWS: usize = 1 << 24;
/// Bytes of one array at most, far below what 32-bit offsets reach.
const MAX_ARRAY_BYTES: u64 = 1 << 30;
/// Rows of a batch of a stream.
const STREAM_ROWS: usize = 1 << 16;
/// About how many bytes a column of a stream's batch may have.
const STREAM_BYTES: u64 = 32 << 20;

/// Decodes the field `root` of a row group, all of it or some rows, after checking its chunks; the arrays
/// have the type the file's schema gives. Several arrays only where one cannot hold the values.
pub fn decode_rows(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    wanted: Option<&Range<usize>>,
) -> Result<Vec<ArrayRef>> {
    let rows = group_rows(file, group);
    let all = 0..rows;
    let wanted = wanted.unwrap_or(&all);
    check_chunks(file, group, root, chunks)?;
    let guarded = AssertUnwindSafe(|| {
        let array = decode_flat(file, group, root, chunks, rows, wanted);
        array.map(|array| finish(file, root, &array)).transpose()
    });
    let flat = std::panic::catch_unwind(guarded)
        .unwrap_or_else(|panic| Err(Error::other(panic_text(panic.as_ref()).to_owned())))
        .map_err(|e| undecodable(file, root, group, e.message()).with_source(e))?;
    if let Some(arrays) = flat {
        return Ok(arrays);
    }
    let batch_rows = rows_within(file, group, root, MAX_ARRAY_BYTES).min(MAX_ARRAY_ROWS);
    let mut column = ColumnStream::new(file, group, root, chunks, batch_rows);
    let mut arrays = Vec::new();
    while let Some(array) = column.next_array()? {
        arrays.push(array);
    }
    if arrays.is_empty() {
        arrays.push(arrow_array::new_empty_array(
            file.schema.field(root).data_type(),
        ));
    }
    Ok(slice_arrays(arrays, wanted))
}

/// A decoded array as what was written.
fn finish(file: &ParquetFile, root: usize, array: &ArrayRef) -> Result<Vec<ArrayRef>> {
    let field = file.schema.field(root);
    let arrays = convert_all(array, field.data_type(), field.name())?;
    let kept = file.dictionary(root);
    Ok(arrays.into_iter().map(|a| restore(a, kept)).collect())
}

fn group_rows(file: &ParquetFile, group: usize) -> usize {
    let rows = file.metadata().row_group(group).num_rows();
    usize::try_from(rows).unwrap_or_default()
}

/// About how many rows of a column have so many bytes.
fn rows_within(file: &ParquetFile, group: usize, root: usize, bytes: u64) -> usize {
    let rows = group_rows(file, group);
    let largest = file.leaves(root).map(|leaf| {
        let column = file.metadata().row_group(group).column(leaf);
        let unencoded = column.unencoded_byte_array_data_bytes().unwrap_or_default();
        let size = column.uncompressed_size().max(unencoded);
        size.unsigned_abs()
    });
    let largest = largest.max().unwrap_or_default();
    if largest <= bytes {
        return rows.max(1);
    }
    let share = u128::from(bytes) * rows as u128 / u128::from(largest);
    usize::try_from(share).unwrap_or(rows).max(1)
}

fn check_chunks(file: &ParquetFile, group: usize, root: usize, chunks: &Chunks) -> Result<()> {
    for leaf in file.leaves(root) {
        let bytes = chunks
            .slice(&file.chunk_range(group, leaf))
            .ok_or_else(|| Error::other("a column chunk was not fetched"))?;
        file.check_chunk(group, leaf, &bytes)?;
        let column = file.metadata().row_group(group).column(leaf);
        pages::check(
            window(file, chunks),
            &bytes,
            column,
            group_rows(file, group),
        )
        .map_err(|why| undecodable(file, root, group, &why))?;
    }
    Ok(())
}

/// A column without nesting, where its kind is one that is decoded at once.
fn decode_flat(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: usize,
    wanted: &Range<usize>,
) -> Option<ArrayRef> {
    let mut leaves = file.leaves(root);
    let leaf = leaves.next()?;
    if leaves.next().is_some() || rows_within(file, group, root, MAX_ARRAY_BYTES) < rows {
        return None;
    }
    let column = file.metadata().row_group(group).column(leaf);
    let data_type = file.reader.schema().field(root).data_type();
    flat::decode(window(file, chunks), column, rows, wanted, data_type)
}

fn window(file: &ParquetFile, chunks: &Chunks) -> SparseFile {
    SparseFile {
        chunks: chunks.clone(),
        length: file.length,
    }
}

/// The rows of one column of a row group, in arrays that can hold them. Its chunks have been checked.
struct ColumnStream {
    file: ParquetFile,
    group: usize,
    root: usize,
    chunks: Chunks,
    rows: usize,
    /// Rows decoded so far.
    decoded: usize,
    /// Rows that are decoded at once; fewer once an array could not hold them.
    batch_rows: usize,
    reader: Option<ParquetRecordBatchReader>,
    /// Arrays that wait to be taken.
    ready: VecDeque<ArrayRef>,
}

impl ColumnStream {
    fn new(
        file: &ParquetFile,
        group: usize,
        root: usize,
        chunks: &Chunks,
        batch_rows: usize,
    ) -> Self {
        let rows = group_rows(file, group);
        Self {
            file: file.clone(),
            group,
            root,
            chunks: chunks.clone(),
            rows,
            decoded: 0,
            batch_rows: batch_rows.clamp(1, rows.max(1)),
            reader: None,
            ready: VecDeque::new(),
        }
    }

    /// The next array; None once all rows have come.
    fn next_array(&mut self) -> Result<Option<ArrayRef>> {
        loop {
            if let Some(array) = self.ready.pop_front() {
                return Ok(Some(array));
            }
            if self.decoded == self.rows {
                return Ok(None);
            }
            let guarded = AssertUnwindSafe(|| self.decode_next());
            let decoded = std::panic::catch_unwind(guarded)
                .unwrap_or_else(|panic| Err(Error::other(panic_text(panic.as_ref()).to_owned())));
            match decoded {
                Ok(()) => {}
                Err(e) if self.batch_rows > 1 && is_overflow(&e) => {
                    self.reader = None;
                    self.batch_rows = (self.batch_rows / 8).max(1);
                }
                Err(e) => {
                    let error = undecodable(&self.file, self.root, self.group, e.message());
                    return Err(error.with_source(e));
                }
            }
        }
    }

    fn decode_next(&mut self) -> Result<()> {
        let failed = |e: &dyn std::fmt::Display| Error::other(e.to_string());
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.open().map_err(|e| failed(&e).with_source(e))?,
        };
        let batch = match reader.next() {
            Some(batch) => batch.map_err(|e| failed(&e).with_source(e))?,
            None => return Err(self.missing()),
        };
        let rows = batch.num_rows();
        if rows == 0 || rows > self.rows - self.decoded {
            return Err(self.missing());
        }
        self.ready
            .extend(finish(&self.file, self.root, batch.column(0))?);
        self.decoded += rows;
        self.reader = Some(reader);
        Ok(())
    }

    fn missing(&self) -> Error {
        Error::other(format!(
            "its rows are not the {} that the footer says",
            self.rows
        ))
    }

    fn open(&self) -> Result<ParquetRecordBatchReader, parquet::errors::ParquetError> {
        let window = window(&self.file, &self.chunks);
        let reader = self.file.reader.clone();
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(window, reader)
            .with_projection(self.file.mask(self.root))
            .with_row_groups(vec![self.group])
            .with_batch_size(self.batch_rows);
        if self.decoded > 0 {
            builder = builder.with_offset(self.decoded);
        }
        builder.build()
    }

    /// Exactly so many of the next rows.
    fn take_rows(&mut self, rows: usize) -> Result<Vec<ArrayRef>> {
        let (mut arrays, mut left) = (Vec::new(), rows);
        while left > 0 {
            let Some(array) = self.next_array()? else {
                return Err(undecodable(
                    &self.file,
                    self.root,
                    self.group,
                    "rows are missing",
                ));
            };
            if array.len() > left {
                self.ready.push_front(array.slice(left, array.len() - left));
                arrays.push(array.slice(0, left));
                return Ok(arrays);
            }
            left -= array.len();
            arrays.push(array);
        }
        Ok(arrays)
    }
}

/// Whether an error says that an array cannot hold so many rows. The decoders have no kind for it.
fn is_overflow(error: &Error) -> bool {
    let message = error.message();
    message.contains("overflow") || message.contains("too large")
}

/// Some of the rows that arrays hold one after the other.
pub fn slice_arrays(arrays: Vec<ArrayRef>, wanted: &Range<usize>) -> Vec<ArrayRef> {
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

/// Columns of some rows.
#[derive(Debug)]
pub(crate) struct Columns {
    arrays: Vec<ArrayRef>,
    rows: usize,
}

impl Columns {
    pub(crate) fn columns(&self) -> &[ArrayRef] {
        &self.arrays
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows
    }
}

/// The fields `roots` of a row group, some rows at a time, each in bounded memory.
pub(crate) struct GroupStream {
    columns: Vec<ColumnStream>,
    batch_rows: usize,
    left: usize,
    ready: VecDeque<Columns>,
}

impl GroupStream {
    /// Checks the chunks of all columns.
    pub(crate) fn open(
        file: &ParquetFile,
        group: usize,
        roots: &[usize],
        chunks: &Chunks,
    ) -> Result<Self> {
        let sizes = roots
            .iter()
            .map(|root| rows_within(file, group, *root, STREAM_BYTES));
        let batch_rows = sizes.min().unwrap_or(STREAM_ROWS).min(STREAM_ROWS);
        let mut columns = Vec::with_capacity(roots.len());
        for &root in roots {
            check_chunks(file, group, root, chunks)?;
            columns.push(ColumnStream::new(file, group, root, chunks, batch_rows));
        }
        Ok(Self {
            columns,
            batch_rows,
            left: group_rows(file, group),
            ready: VecDeque::new(),
        })
    }

    /// The next rows; None at the end.
    pub(crate) fn next_batch(&mut self) -> Result<Option<Columns>> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(Some(batch));
        }
        let rows = self.left.min(self.batch_rows);
        if rows == 0 {
            return Ok(None);
        }
        self.left -= rows;
        if self.columns.is_empty() {
            let arrays = Vec::new();
            return Ok(Some(Columns { arrays, rows }));
        }
        let columns = self.columns.iter_mut();
        let columns: Vec<_> = columns
            .map(|column| column.take_rows(rows))
            .collect::<Result<_>>()?;
        let aligned = align(&columns, rows).into_iter();
        self.ready
            .extend(aligned.map(|(rows, arrays)| Columns { arrays, rows }));
        Ok(self.ready.pop_front())
    }
}

fn undecodable(file: &ParquetFile, root: usize, group: usize, why: &str) -> Error {
    let field = file.schema.field(root).name();
    Error::new(
        ErrorKind::PartCorrupted,
        format!("column {field:?} of row group {group} cannot be decoded: {why}"),
    )
}
