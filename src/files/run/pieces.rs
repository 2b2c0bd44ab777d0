//! Which rows of a file are decoded at once, and how far ahead.

use std::ops::Range;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use arrow_select::concat::concat_batches;

use crate::parquet::nested::contains_type;

/// The most files that are opened ahead, and pieces of row groups that are read ahead.
const READS_AHEAD: usize = 8;
/// The least rows that are decoded at once.
const MIN_PIECE_ROWS: usize = 8192;
/// The most ranges of rows that are decoded at once: as many as are worth starting a task, and their pages are fetched
/// by few requests where they are not far apart.
const MAX_RANGES: usize = 32;
/// The rows that are read first where a reader may stop early. Then twice as many, up to [`MIN_PIECE_ROWS`].
const FIRST_ROWS: usize = 1024;

/// How far is read ahead of the rows that are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// The reader takes all rows.
    Full,
    /// The reader may stop after a few.
    OnDemand,
}

impl Pace {
    /// How many files are opened, and pieces are read, at a time.
    pub(super) fn ahead(self) -> usize {
        match self {
            Self::Full => READS_AHEAD,
            Self::OnDemand => 1,
        }
    }

    /// The rows of the first piece and the most of a later one, where so many are worth reading at once.
    pub(super) fn piece_rows(self, rows: usize) -> (usize, usize) {
        match self {
            Self::Full => (rows.max(MIN_PIECE_ROWS), rows.max(MIN_PIECE_ROWS)),
            Self::OnDemand => (FIRST_ROWS, MIN_PIECE_ROWS),
        }
    }

    pub(super) fn max_ranges(self) -> usize {
        match self {
            Self::Full => MAX_RANGES,
            Self::OnDemand => 1,
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
pub(super) fn split(range: &Range<usize>, first: usize, most: usize) -> Vec<Range<usize>> {
    let (mut pieces, mut begin, mut rows) = (Vec::new(), range.start, first);
    while begin < range.end {
        let end = range.end.min(begin + rows);
        pieces.push(begin..end);
        begin = end;
        rows = most.min(rows * 2);
    }
    pieces
}
