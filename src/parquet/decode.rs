//! Decodes column chunks to Arrow arrays, one column of one row group at a time.
//!
//! `decode_rows` decodes a column of a row group, all of its rows or some; `RowGroupStream` decodes columns in batches
//! of bounded size. `decode_rows` first tries the fast decoder of `flat`; everything else is decoded by arrow-rs, and so
//! are rows of which only the pages were fetched. One array cannot always hold all rows (32-bit offsets, narrow
//! dictionary keys), so a column may become several arrays; `super::arrays` cuts the columns at common rows.
//!
//! Checksums and page headers are checked before pages are decompressed. A chunk that fails a check, or that a decoder
//! refuses or panics on, is an error of the kind [`ErrorKind::PartCorrupted`] that names the column and the row group.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;

use arrow_array::ArrayRef;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::arrays::{align, filter_arrays, slice_arrays};
pub use super::chunks::Chunks;
use super::chunks::SparseFile;
use super::dictionary::restore;
use super::file::ParquetFile;
use super::flat::{self, RowsToDecode};
use super::narrow::convert_all;
use super::nested::largest_list_size;
use super::page_index::ChunkPages;
use super::page_selection::{RowSelection, open_reader};
use super::row_ranges::RowRanges;
use super::text::check_decoded_text;
use super::{expansion, pages, panic_text};
use crate::error::{Error, ErrorKind, Result};

/// The most rows that are decoded into one array; a footer may claim any number.
const MAX_ARRAY_ROWS: usize = 1 << 24;
/// The most bytes of one array, far below what 32-bit offsets reach.
const MAX_ARRAY_BYTES: u64 = 1 << 30;
/// The most rows of a batch of a stream.
const STREAM_ROWS: usize = 1 << 16;
/// About the most bytes of one column in a batch of a stream.
const STREAM_BYTES: u64 = 32 << 20;

/// Checks what was fetched of the top-level field with the index `root` in a row group, and decodes all its rows or
/// those of `selection`. The arrays have the type of the file's schema; there are several only if one cannot hold the
/// values.
pub(crate) fn decode_rows(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    selection: Option<&RowSelection>,
) -> Result<Vec<ArrayRef>> {
    let Some(selection) = selection else {
        let all_rows = RowsToDecode {
            range: 0..group_rows(file, group),
            mask: None,
            locations: None,
        };
        return decode_chunks(file, group, root, chunks, &all_rows);
    };
    let mask = selection.mask_of_bounds();
    let mut rows = RowsToDecode {
        range: selection.rows.bounds(),
        mask: mask.as_ref(),
        locations: None,
    };
    if selection.page_ranges(file, root).is_none() {
        return decode_chunks(file, group, root, chunks, &rows);
    }
    selection.check(file, group, root, chunks)?;
    let pages = file
        .leaves(root)
        .find_map(|leaf| selection.pages.get(&leaf));
    rows.locations = pages.map(ChunkPages::locations);
    if let Some(arrays) = decode_flat(file, group, root, chunks, &rows)? {
        return Ok(arrays);
    }
    let arrays = ColumnStream::with_pages(file, group, root, chunks, selection).read_all()?;
    filter_arrays(arrays, selection.mask.as_ref())
}

/// Decodes the rows `rows` of a field with arrow-rs, which skips those before them.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn decode_with_skips(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: std::ops::Range<usize>,
) -> Result<Vec<ArrayRef>> {
    check_chunks(file, group, root, chunks)?;
    let mut stream = ColumnStream::new(file, group, root, chunks, rows.len());
    (stream.decoded, stream.rows) = (rows.start, rows.end);
    stream.read_all()
}

/// Checks the chunks of a column, and decodes rows of it.
fn decode_chunks(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: &RowsToDecode<'_>,
) -> Result<Vec<ArrayRef>> {
    check_chunks(file, group, root, chunks)?;
    if let Some(arrays) = decode_flat(file, group, root, chunks, rows)? {
        return Ok(arrays);
    }
    let batch_rows = estimate_rows(file, group, root, MAX_ARRAY_BYTES).min(MAX_ARRAY_ROWS);
    let arrays = ColumnStream::new(file, group, root, chunks, batch_rows).read_all()?;
    filter_arrays(slice_arrays(arrays, &rows.range), rows.mask)
}

/// Converts a decoded array to the type and the dictionary that were written.
fn convert_decoded(file: &ParquetFile, root: usize, array: &ArrayRef) -> Result<Vec<ArrayRef>> {
    let field = file.schema.field(root);
    let arrays = convert_all(array, field.data_type(), field.name())?;
    let dictionary = file.dictionary(root);
    Ok(arrays.into_iter().map(|a| restore(a, dictionary)).collect())
}

fn group_rows(file: &ParquetFile, group: usize) -> usize {
    let rows = file.metadata().row_group(group).num_rows();
    usize::try_from(rows).unwrap_or_default()
}

/// Estimates how many rows of a column take `bytes` bytes: at least 1, at most the rows of the row group.
fn estimate_rows(file: &ParquetFile, group: usize, root: usize, bytes: u64) -> usize {
    let rows = group_rows(file, group);
    let leaf_sizes = file.leaves(root).map(|leaf| {
        let column = file.metadata().row_group(group).column(leaf);
        largest_size(column, rows as u64)
    });
    let largest = leaf_sizes.max().unwrap_or_default();
    if largest <= bytes {
        return rows.max(1);
    }
    let share = u128::from(bytes) * rows as u128 / u128::from(largest);
    usize::try_from(share).unwrap_or(rows).max(1)
}

/// About the bytes of a column chunk of `rows` rows. A footer may claim any number of them.
fn largest_size(column: &ColumnChunkMetaData, rows: u64) -> u64 {
    let values = column.num_values().unsigned_abs().max(rows);
    let compressed = column.compressed_size().unsigned_abs();
    let most = match column.compression() {
        Compression::UNCOMPRESSED => compressed,
        codec => expansion::max_bytes(codec, compressed).unwrap_or(u64::MAX),
    };
    let uncompressed = column.uncompressed_size().unsigned_abs().min(most);
    let unencoded = column.unencoded_byte_array_data_bytes().unwrap_or_default();
    let unencoded = unencoded.unsigned_abs().min(most.saturating_mul(values));
    // Nulls of a fixed length take as much memory as values.
    let width = u64::try_from(column.column_descr().type_length()).unwrap_or_default();
    let fixed = values.saturating_mul(width);
    uncompressed.max(unencoded).max(fixed)
}

fn check_chunks(file: &ParquetFile, group: usize, root: usize, chunks: &Chunks) -> Result<()> {
    check_list_size(file, group, root)?;
    for leaf in file.leaves(root) {
        file.check_readable(leaf)?;
        let bytes = chunks
            .slice(&file.chunk_range(group, leaf))
            .ok_or_else(|| {
                let name = file.schema.field(root).name();
                Error::other(format!(
                    "internal error: a chunk of column {name:?} in row group {group} was not fetched"
                ))
            })?;
        file.check_chunk(group, leaf, &bytes)?;
        let column = file.metadata().row_group(group).column(leaf);
        pages::check(
            sparse_file(file, chunks),
            &bytes,
            column,
            group_rows(file, group),
        )
        .map_err(|reason| decode_error(file, root, group, &reason))?;
    }
    Ok(())
}

/// Refuses lists of a fixed size with more items than the column has, if nulls of that size would take much memory.
fn check_list_size(file: &ParquetFile, group: usize, root: usize) -> Result<()> {
    let schemas = [&file.schema, file.stored_schema()];
    let sizes = schemas.map(|schema| largest_list_size(schema.field(root).data_type()));
    let size = sizes[0].max(sizes[1]);
    let items = size.saturating_mul(group_rows(file, group) as u64);
    let columns = file.metadata().row_group(group).columns();
    let mut leaves = file.leaves(root);
    let fits = leaves.all(|leaf| size <= columns[leaf].num_values().unsigned_abs());
    if items > MAX_ARRAY_BYTES && (!fits || size > MAX_ARRAY_ROWS as u64) {
        let reason = format!("its lists of {size} items are longer than its values");
        return Err(decode_error(file, root, group, &reason));
    }
    Ok(())
}

/// Decodes a column with `flat`; None if `flat` does not support it, or if its rows may not fit in one array.
fn decode_flat(
    file: &ParquetFile,
    group: usize,
    root: usize,
    chunks: &Chunks,
    rows: &RowsToDecode<'_>,
) -> Result<Option<Vec<ArrayRef>>> {
    let group_rows = group_rows(file, group);
    let mut leaves = file.leaves(root);
    let (Some(leaf), None) = (leaves.next(), leaves.next()) else {
        return Ok(None);
    };
    if estimate_rows(file, group, root, MAX_ARRAY_BYTES) < group_rows {
        return Ok(None);
    }
    let column = file.metadata().row_group(group).column(leaf);
    let data_type = file.reader.schema().field(root).data_type();
    let guarded = AssertUnwindSafe(|| {
        let array = flat::decode(
            sparse_file(file, chunks),
            column,
            group_rows,
            rows,
            data_type,
        );
        array
            .map(|array| convert_decoded(file, root, &array))
            .transpose()
    });
    std::panic::catch_unwind(guarded)
        .unwrap_or_else(|panic| Err(Error::other(panic_text(panic.as_ref()).to_owned())))
        .map_err(|e| decode_error(file, root, group, e.message()).with_source(e))
}

fn sparse_file(file: &ParquetFile, chunks: &Chunks) -> SparseFile {
    SparseFile {
        chunks: chunks.clone(),
        length: file.length,
    }
}

/// Decodes one column of a row group with arrow-rs, as a sequence of arrays. The caller has checked its chunks.
struct ColumnStream {
    file: ParquetFile,
    group: usize,
    root: usize,
    chunks: Chunks,
    /// The rows to decode; None for all.
    selection: Option<RowSelection>,
    /// The number of rows to decode.
    rows: usize,
    /// Rows decoded so far.
    decoded: usize,
    /// Rows that are decoded at once; reduced when an array cannot hold them.
    batch_rows: usize,
    reader: Option<ParquetRecordBatchReader>,
    /// Arrays that are decoded and not yet returned.
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
            selection: None,
            rows,
            decoded: 0,
            batch_rows: batch_rows.clamp(1, rows.max(1)),
            reader: None,
            ready: VecDeque::new(),
        }
    }

    /// A stream of the rows of `selection`, read by their pages.
    fn with_pages(
        file: &ParquetFile,
        group: usize,
        root: usize,
        chunks: &Chunks,
        selection: &RowSelection,
    ) -> Self {
        let max_rows = estimate_rows(file, group, root, MAX_ARRAY_BYTES).min(MAX_ARRAY_ROWS);
        let rows = selection.rows.num_rows();
        Self {
            rows,
            batch_rows: max_rows.clamp(1, rows.max(1)),
            selection: Some(selection.clone()),
            ..Self::new(file, group, root, chunks, max_rows)
        }
    }

    /// All arrays; an empty one if there are no rows.
    fn read_all(mut self) -> Result<Vec<ArrayRef>> {
        let mut arrays = Vec::new();
        while let Some(array) = self.next_array()? {
            arrays.push(array);
        }
        if arrays.is_empty() {
            let data_type = self.file.schema.field(self.root).data_type();
            arrays.push(arrow_array::new_empty_array(data_type));
        }
        Ok(arrays)
    }

    /// The next array; None after the last row.
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
                    let error = decode_error(&self.file, self.root, self.group, e.message());
                    return Err(error.with_source(e));
                }
            }
        }
    }

    fn decode_next(&mut self) -> Result<()> {
        let mut reader = match self.reader.take() {
            Some(reader) => reader,
            None => self.open().map_err(Error::from_cause)?,
        };
        let batch = match reader.next() {
            Some(batch) => batch.map_err(Error::from_cause)?,
            None => return Err(self.row_count_error()),
        };
        let rows = batch.num_rows();
        if rows == 0 || rows > self.rows - self.decoded {
            return Err(self.row_count_error());
        }
        let array = check_decoded_text(batch.column(0))?;
        self.ready
            .extend(convert_decoded(&self.file, self.root, &array)?);
        self.decoded += rows;
        self.reader = Some(reader);
        Ok(())
    }

    fn row_count_error(&self) -> Error {
        Error::other(format!(
            "it does not have the {} rows that the footer claims",
            self.rows
        ))
    }

    fn open(&self) -> Result<ParquetRecordBatchReader, parquet::errors::ParquetError> {
        let chunk_reader = sparse_file(&self.file, &self.chunks);
        let remaining = self.decoded..self.rows;
        let (rows, pages) = match &self.selection {
            Some(selection) => {
                let rows = selection.rows.at_positions(std::iter::once(remaining));
                (rows, Some(&*selection.pages))
            }
            None => (RowRanges::single(remaining), None),
        };
        let (group, root) = (self.group, self.root);
        let fetched = (&chunk_reader, pages);
        open_reader(&self.file, group, root, fetched, (&rows, self.batch_rows))
    }

    /// Exactly the next `rows` rows, in one or more arrays.
    fn take_rows(&mut self, rows: usize) -> Result<Vec<ArrayRef>> {
        let (mut arrays, mut remaining) = (Vec::new(), rows);
        while remaining > 0 {
            let Some(array) = self.next_array()? else {
                return Err(decode_error(
                    &self.file,
                    self.root,
                    self.group,
                    "its chunk has too few rows",
                ));
            };
            if array.len() > remaining {
                self.ready
                    .push_front(array.slice(remaining, array.len() - remaining));
                arrays.push(array.slice(0, remaining));
                return Ok(arrays);
            }
            remaining -= array.len();
            arrays.push(array);
        }
        Ok(arrays)
    }
}

/// Whether an error says that an array cannot hold so many rows. The decoders have no kind for it, only a message.
fn is_overflow(error: &Error) -> bool {
    let message = error.message();
    message.contains("overflow") || message.contains("too large")
}

/// Decoded columns of the same number of rows.
#[derive(Debug)]
pub(crate) struct DecodedColumns {
    arrays: Vec<ArrayRef>,
    rows: usize,
}

impl DecodedColumns {
    pub(crate) fn columns(&self) -> &[ArrayRef] {
        &self.arrays
    }

    pub(crate) fn num_rows(&self) -> usize {
        self.rows
    }
}

/// Decodes the top-level fields `projection` of a row group in batches, in bounded memory.
pub(crate) struct RowGroupStream {
    columns: Vec<ColumnStream>,
    batch_rows: usize,
    remaining_rows: usize,
    ready: VecDeque<DecodedColumns>,
}

impl RowGroupStream {
    /// Checks the chunks of all columns before any row is decoded.
    pub(crate) fn open(
        file: &ParquetFile,
        group: usize,
        projection: &[usize],
        chunks: &Chunks,
    ) -> Result<Self> {
        let sizes = projection
            .iter()
            .map(|root| estimate_rows(file, group, *root, STREAM_BYTES));
        let batch_rows = sizes.min().unwrap_or(STREAM_ROWS).min(STREAM_ROWS);
        let mut columns = Vec::with_capacity(projection.len());
        for &root in projection {
            check_chunks(file, group, root, chunks)?;
            columns.push(ColumnStream::new(file, group, root, chunks, batch_rows));
        }
        Ok(Self {
            columns,
            batch_rows,
            remaining_rows: group_rows(file, group),
            ready: VecDeque::new(),
        })
    }

    /// The next batch; None after the last row.
    pub(crate) fn next_batch(&mut self) -> Result<Option<DecodedColumns>> {
        if let Some(batch) = self.ready.pop_front() {
            return Ok(Some(batch));
        }
        let rows = self.remaining_rows.min(self.batch_rows);
        if rows == 0 {
            return Ok(None);
        }
        self.remaining_rows -= rows;
        if self.columns.is_empty() {
            let arrays = Vec::new();
            return Ok(Some(DecodedColumns { arrays, rows }));
        }
        let streams = self.columns.iter_mut();
        let columns: Vec<_> = streams
            .map(|column| column.take_rows(rows))
            .collect::<Result<_>>()?;
        let batches = align(&columns, rows).into_iter();
        self.ready
            .extend(batches.map(|(rows, arrays)| DecodedColumns { arrays, rows }));
        Ok(self.ready.pop_front())
    }
}

fn decode_error(file: &ParquetFile, root: usize, group: usize, reason: &str) -> Error {
    let field = file.schema.field(root).name();
    Error::new(
        ErrorKind::PartCorrupted,
        format!("column {field:?} of row group {group} cannot be decoded: {reason}"),
    )
}
