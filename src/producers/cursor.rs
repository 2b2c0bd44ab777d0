//! Walking along sorted streams row by row, and collecting some of the rows.
//!
//! Whatever merges, compares or joins sorted streams is written with these. A `Cursor` stands at a row of one stream
//! and has its key in the comparable form of arrow-row. A `Picker` collects rows of any batches and returns them as new
//! batches. `RowsEqual` compares rows of two streams bit by bit. Memory is bounded: a cursor holds one batch, and a
//! picker says when it is full, so that its caller takes what it has.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray, RecordBatch};
use arrow_row::Rows;
use arrow_schema::{ArrowError, DataType, Schema};

use crate::files::{BATCH_ROWS, SortColumn, SortKeys, SortedBatches, interleave_rows, row_bytes};
use crate::parquet::size::slice_bytes;

/// About the most bytes of a batch that is collected.
const BATCH_BYTES: usize = 16 << 20;
/// The most batches that rows are collected of.
const MAX_BATCHES: usize = 64;

/// A position in a stream that is in the order of some keys.
pub(super) struct Cursor {
    stream: SortedBatches,
    keys: Arc<SortKeys>,
    at: Option<Position>,
}

struct Position {
    batch: Arc<RecordBatch>,
    keys: Rows,
    row: usize,
}

impl Cursor {
    /// At the first row of the stream.
    pub(super) fn new(stream: SortedBatches, keys: &Arc<SortKeys>) -> Result<Self, ArrowError> {
        let mut cursor = Self {
            stream,
            keys: Arc::clone(keys),
            at: None,
        };
        cursor.load()?;
        Ok(cursor)
    }

    fn load(&mut self) -> Result<(), ArrowError> {
        self.at = None;
        for batch in self.stream.by_ref() {
            let batch = batch?;
            if batch.num_rows() > 0 {
                self.at = Some(Position {
                    keys: self.keys.convert_batch(&batch)?,
                    batch: Arc::new(batch),
                    row: 0,
                });
                break;
            }
        }
        Ok(())
    }

    /// The key of the row; `None` at the end.
    pub(super) fn key(&self) -> Option<&[u8]> {
        let at = self.at.as_ref()?;
        Some(at.keys.row(at.row).data())
    }

    /// Whether the row has this key.
    pub(super) fn is_at(&self, key: &[u8]) -> bool {
        self.key() == Some(key)
    }

    /// The key of the row if it begins with this one, which is that of the first columns.
    pub(super) fn key_from(&self, first: &[u8]) -> Option<&[u8]> {
        self.key().filter(|key| key.starts_with(first))
    }

    /// The batch and the index of the row in it; `None` at the end.
    pub(super) fn row(&self) -> Option<(&Arc<RecordBatch>, usize)> {
        self.at.as_ref().map(|at| (&at.batch, at.row))
    }

    /// The batch, and the rows from this one on that have the same key; `None` at the end. More may follow in the next
    /// batch.
    pub(super) fn group(&self) -> Option<(&Arc<RecordBatch>, Range<usize>)> {
        let at = self.at.as_ref()?;
        let key = at.keys.row(at.row);
        let mut rows = at.row + 1..at.keys.num_rows();
        let end = rows.find(|row| at.keys.row(*row) != key);
        Some((&at.batch, at.row..end.unwrap_or(rows.end)))
    }

    /// Goes to a later row of the batch, or past its end.
    pub(super) fn advance_to(&mut self, row: usize) -> Result<(), ArrowError> {
        if let Some(at) = &mut self.at {
            at.row = row;
            if at.row == at.keys.num_rows() {
                self.load()?;
            }
        }
        Ok(())
    }

    /// Goes to the next row.
    pub(super) fn advance(&mut self) -> Result<(), ArrowError> {
        let next = self.at.as_ref().map_or(0, |at| at.row + 1);
        self.advance_to(next)
    }

    /// Goes to the first row with this key or one after it.
    pub(super) fn seek(&mut self, key: &[u8]) -> Result<(), ArrowError> {
        while self.key().is_some_and(|own| own < key) {
            self.advance()?;
        }
        Ok(())
    }
}

/// Collects rows of batches.
#[derive(Debug, Default)]
pub(super) struct Picker {
    batches: Vec<Arc<RecordBatch>>,
    row_bytes: Vec<usize>,
    positions: Vec<(usize, usize)>,
    bytes: usize,
    /// The size of the last row, where it was picked more than once.
    repeated_bytes: Option<usize>,
}

impl Picker {
    /// Adds a row of a batch.
    pub(super) fn pick(&mut self, batch: &Arc<RecordBatch>, row: usize) {
        let known = self.batches.iter().rposition(|b| Arc::ptr_eq(b, batch));
        let at = known.unwrap_or_else(|| {
            self.batches.push(Arc::clone(batch));
            self.row_bytes.push(row_bytes(batch));
            self.batches.len() - 1
        });
        // A row that is picked over and over may be far from the average of its batch.
        let bytes = if self.positions.last() == Some(&(at, row)) {
            let bytes = self
                .repeated_bytes
                .unwrap_or_else(|| bytes_of_row(batch, row));
            self.repeated_bytes = Some(bytes);
            bytes
        } else {
            self.repeated_bytes = None;
            self.row_bytes[at]
        };
        self.positions.push((at, row));
        self.bytes += bytes;
    }

    /// Whether the rows are enough for a batch.
    pub(super) fn is_full(&self) -> bool {
        self.positions.len() >= BATCH_ROWS
            || self.bytes >= BATCH_BYTES
            || self.batches.len() >= MAX_BATCHES
    }

    /// The rows, and none are left. There is more than one batch where one cannot hold the values of all.
    pub(super) fn take(&mut self) -> Result<Vec<RecordBatch>, ArrowError> {
        let picked = std::mem::take(self);
        let batches: Vec<RecordBatch> = picked.batches.iter().map(|b| (**b).clone()).collect();
        interleave_rows(&batches, &picked.positions)
    }

    /// As [`Self::take`], each batch with its part of `flags`, of which there is one for each row.
    pub(super) fn take_with<T: ArrowPrimitiveType>(
        &mut self,
        flags: &mut Vec<T::Native>,
    ) -> Result<Vec<(RecordBatch, ArrayRef)>, ArrowError> {
        let flags = PrimitiveArray::<T>::from_iter_values(std::mem::take(flags));
        let mut offset = 0;
        let batches = self.take()?.into_iter().map(|batch| {
            let part = flags.slice(offset, batch.num_rows());
            offset += batch.num_rows();
            (batch, Arc::new(part) as ArrayRef)
        });
        Ok(batches.collect())
    }
}

/// The size of one row, but what dictionaries hold, which rows share.
fn bytes_of_row(batch: &RecordBatch, row: usize) -> usize {
    let columns = batch.columns().iter();
    let plain = columns.filter(|column| !matches!(column.data_type(), DataType::Dictionary(..)));
    plain.map(|column| slice_bytes(&column.slice(row, 1))).sum()
}

/// Two lists of batches that have as many rows together, cut where either is.
pub(super) fn aligned(
    left: Vec<RecordBatch>,
    right: Vec<RecordBatch>,
) -> Vec<(RecordBatch, RecordBatch)> {
    let (mut left, mut right) = (left.into_iter(), right.into_iter());
    let (mut a, mut b) = (left.next(), right.next());
    let mut pairs = Vec::new();
    while let (Some(first), Some(second)) = (a, b) {
        let rows = first.num_rows().min(second.num_rows());
        let rest = |batch: &RecordBatch| {
            let rest = batch.num_rows() - rows;
            (rest > 0).then(|| batch.slice(rows, rest))
        };
        a = rest(&first).or_else(|| left.next());
        b = rest(&second).or_else(|| right.next());
        pairs.push((first.slice(0, rows), second.slice(0, rows)));
    }
    pairs
}

/// Compares rows of two streams bit by bit in the columns from `first` on.
pub(super) struct RowsEqual {
    columns: Range<usize>,
    /// `None` where the types cannot be compared by Arrow's rows.
    converter: Option<SortKeys>,
    /// The batches that were compared last, of each stream, with their rows.
    last: [Option<(Arc<RecordBatch>, Rows)>; 2],
}

impl RowsEqual {
    pub(super) fn new(schema: &Schema, columns: Range<usize>) -> Self {
        let by: Vec<SortColumn> = columns.clone().map(SortColumn::ascending).collect();
        Self {
            columns,
            converter: SortKeys::new(schema, &by).ok(),
            last: [None, None],
        }
    }

    /// Whether a row of the first stream and one of the second are equal.
    pub(super) fn equal(
        &mut self,
        rows: [(&Arc<RecordBatch>, usize); 2],
    ) -> Result<bool, ArrowError> {
        let [(a, a_row), (b, b_row)] = rows;
        let Some(converter) = &self.converter else {
            let (a, b) = (a.columns(), b.columns());
            let (a, b) = (&a[self.columns.clone()], &b[self.columns.clone()]);
            let mut columns = a.iter().zip(b);
            let equal = |(a, b): (&ArrayRef, &ArrayRef)| {
                a.slice(a_row, 1).to_data() == b.slice(b_row, 1).to_data()
            };
            return Ok(columns.all(equal));
        };
        for ((batch, _), last) in rows.into_iter().zip(&mut self.last) {
            if last.as_ref().is_none_or(|(b, _)| !Arc::ptr_eq(b, batch)) {
                *last = Some((Arc::clone(batch), converter.convert_batch(batch)?));
            }
        }
        let [Some((_, a)), Some((_, b))] = &self.last else {
            return Ok(false);
        };
        Ok(a.row(a_row) == b.row(b_row))
    }
}
