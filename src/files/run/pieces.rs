//! Which rows of a file are decoded at once, and how far ahead.

use std::ops::Range;

use arrow_array::{RecordBatch, UInt64Array};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;

use crate::error::{Error, Result};
use crate::parquet::nested::contains_type;

/// The most files that are opened ahead, and pieces of row groups that are read ahead.
const READS_AHEAD: usize = 8;
/// The least rows that are decoded at once.
const MIN_PIECE_ROWS: usize = 8192;
/// The most ranges of rows that are decoded at once: as many as are worth starting a task, and their pages are fetched
/// by few requests where they are not far apart.
const MAX_RANGES: usize = 32;
/// The rows that are read first where a reader may stop early. Then twice as many, up to what memory allows.
const FIRST_ROWS: usize = 1024;

/// How far is read ahead of the rows that are asked for, and where that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// The reader takes all rows.
    Full,
    /// The reader may stop after a few rows: the first ones, or from the last one back.
    OnDemand(RunEnd),
}

/// An end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunEnd {
    First,
    Last,
}

impl Pace {
    /// How many files are opened, and pieces are read, at a time.
    pub(super) fn ahead(self) -> usize {
        match self {
            Self::Full => READS_AHEAD,
            Self::OnDemand(_) => 1,
        }
    }

    pub(super) fn is_backward(self) -> bool {
        self == Self::OnDemand(RunEnd::Last)
    }

    /// Cuts ranges of rows into pieces, where `rows` rows are worth reading at once.
    pub(super) fn split(self, ranges: &[Range<usize>], rows: usize) -> Vec<Range<usize>> {
        let most = rows.max(MIN_PIECE_ROWS);
        let ranges = ranges.iter();
        match self {
            Self::Full => ranges.flat_map(|r| split(r, most, most)).collect(),
            Self::OnDemand(RunEnd::First) => {
                ranges.flat_map(|r| split(r, FIRST_ROWS, most)).collect()
            }
            Self::OnDemand(RunEnd::Last) => ranges
                .flat_map(|r| split_back(r, FIRST_ROWS, most))
                .collect(),
        }
    }

    /// Whether a whole row group is one piece.
    pub(super) fn is_piece(self, group_rows: usize, rows: usize) -> bool {
        let most = match self {
            Self::Full => rows.max(MIN_PIECE_ROWS),
            Self::OnDemand(_) => FIRST_ROWS,
        };
        group_rows <= most
    }

    pub(super) fn max_ranges(self) -> usize {
        match self {
            Self::Full => MAX_RANGES,
            Self::OnDemand(_) => 1,
        }
    }
}

/// Whether rows of such columns can be copied and joined for the cost of these rows alone.
pub(super) fn joins(schema: &SchemaRef) -> bool {
    let is_shared = |data_type: &DataType| {
        matches!(
            data_type,
            DataType::Dictionary(..)
                | DataType::RunEndEncoded(..)
                | DataType::Utf8View
                | DataType::BinaryView
                | DataType::ListView(_)
                | DataType::LargeListView(_)
        )
    };
    let mut fields = schema.fields().iter();
    fields.all(|field| !contains_type(field.data_type(), is_shared))
}

/// Joins batches of few rows, because each costs more than its rows.
pub(super) fn join_small(batches: Vec<RecordBatch>) -> Vec<RecordBatch> {
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    match batches.first() {
        Some(first) if batches.len() > 1 && rows <= MIN_PIECE_ROWS => {
            // Values that are too long for one array stay in batches.
            concat_batches(&first.schema(), &batches).map_or(batches, |joined| vec![joined])
        }
        _ => batches,
    }
}

/// Packs ranges into pieces of at most so many rows and ranges, but one range at least.
pub(super) fn pack(
    ranges: impl Iterator<Item = Range<usize>>,
    max_rows: usize,
    max_ranges: usize,
) -> Vec<Vec<Range<usize>>> {
    let mut packed: Vec<Vec<Range<usize>>> = Vec::new();
    let mut rows = 0;
    for range in ranges {
        rows += range.len();
        match packed.last_mut() {
            Some(last) if last.len() < max_ranges && rows <= max_rows => last.push(range),
            _ => {
                rows = range.len();
                packed.push(vec![range]);
            }
        }
    }
    packed
}

/// Cuts a range into pieces of `first` rows, then twice as many, up to `most`.
fn split(range: &Range<usize>, first: usize, most: usize) -> Vec<Range<usize>> {
    let (mut pieces, mut begin, mut rows) = (Vec::new(), range.start, first);
    while begin < range.end {
        let end = range.end.min(begin + rows);
        pieces.push(begin..end);
        begin = end;
        rows = most.min(rows * 2);
    }
    pieces
}

/// As [`split`], from the end back; the pieces are in the order of their rows.
fn split_back(range: &Range<usize>, first: usize, most: usize) -> Vec<Range<usize>> {
    let forward = split(&(0..range.len()), first, most).into_iter().rev();
    let pieces = forward.map(|piece| range.end - piece.end..range.end - piece.start);
    pieces.collect()
}

/// The rows of batches from the last one to the first.
pub(super) fn reverse(batches: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    let reversed = batches.into_iter().rev().map(|batch| {
        let rows = u64::try_from(batch.num_rows()).unwrap_or_default();
        let last_first = UInt64Array::from_iter_values((0..rows).rev());
        take_record_batch(&batch, &last_first).map_err(Error::from_cause)
    });
    reversed.collect()
}
