//! Which rows of a file are decoded at once, and how far ahead.
//!
//! A `RunPiece` is some rows of one row group: what is fetched, decoded and cached together. How large it is depends on
//! the reader (`Pace`): who takes all rows gets pieces as large as memory allows, several of them ahead; who may stop
//! early gets few rows first, then twice as many. The ranges of a piece are cut into cells where blocks of the key index
//! end, so that readers of other keys find the same cells in the cache. Few rows of several ranges are joined to one
//! batch.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch, UInt64Array};
use arrow_buffer::BooleanBufferBuilder;
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;
use arrow_select::take::take_record_batch;

use crate::error::{Error, Result};
use crate::files::{RowGroupSelection, interleave_rows};
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

/// A longer range of rows is kept as a whole: its rows are mostly those of one key, and few others read them.
const MAX_RANGE_BLOCKS: usize = 8;

/// Rows of a row group that are decoded at once.
#[derive(Debug)]
pub(super) struct RunPiece {
    /// The path of the file.
    pub(super) path: Arc<str>,
    pub(super) selection: RowGroupSelection,
    /// The rows as the ranges by which decoded columns are kept.
    pub(super) cells: Vec<Range<usize>>,
    /// Whether its columns go into the cache.
    pub(super) caches_columns: bool,
}

impl RunPiece {
    pub(super) fn num_rows(&self) -> usize {
        self.cells.iter().map(ExactSizeIterator::len).sum()
    }
}

/// Cuts ranges of a row group's rows where blocks of the key index end, so that readers of other ranges share blocks.
/// `first_row` is the row group's first row among those of the file.
pub(super) fn cut_into_blocks(
    ranges: &[Range<usize>],
    first_row: usize,
    block_rows: usize,
) -> Vec<Range<usize>> {
    let mut cells = Vec::with_capacity(ranges.len());
    for range in ranges {
        let mut begin = range.start;
        while begin < range.end {
            let end = if range.len() > block_rows.saturating_mul(MAX_RANGE_BLOCKS) {
                range.end
            } else {
                let left = block_rows - (first_row + begin) % block_rows;
                range.end.min(begin.saturating_add(left))
            };
            cells.push(begin..end);
            begin = end;
        }
    }
    cells
}

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

    /// Whether a piece is one of the first that a reader reads, which may stop there.
    pub(super) fn is_begin(self, piece_rows: usize) -> bool {
        self != Self::Full && piece_rows < MIN_PIECE_ROWS
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

/// The selected rows of batches, each with the ranges of them. If `joins`, few rows of several batches become one batch:
/// each costs more than its rows.
pub(super) fn gather(
    selected: Vec<(RecordBatch, Vec<Range<usize>>)>,
    joins: bool,
) -> Result<Vec<RecordBatch>> {
    let ranges = selected.iter().flat_map(|(_, ranges)| ranges);
    let rows: usize = ranges.map(ExactSizeIterator::len).sum();
    let has_columns = selected
        .first()
        .is_some_and(|(batch, _)| batch.num_columns() > 0);
    if joins && has_columns && selected.len() > 1 && rows <= MIN_PIECE_ROWS {
        let mut positions = Vec::with_capacity(rows);
        for (at, (_, ranges)) in selected.iter().enumerate() {
            positions.extend(ranges.iter().flat_map(Clone::clone).map(|row| (at, row)));
        }
        let batches = selected.into_iter().map(|(batch, _)| batch);
        let batches: Vec<RecordBatch> = batches.collect();
        return interleave_rows(&batches, &positions).map_err(Error::from_cause);
    }
    let batches = selected
        .into_iter()
        .map(|(batch, ranges)| filter_rows(batch, &ranges));
    batches.collect()
}

fn filter_rows(batch: RecordBatch, ranges: &[Range<usize>]) -> Result<RecordBatch> {
    let rows = batch.num_rows();
    if ranges.first().is_some_and(|range| range.len() == rows) {
        return Ok(batch);
    }
    let mut mask = BooleanBufferBuilder::new(rows);
    for range in ranges {
        mask.append_n(range.start - mask.len(), false);
        mask.append_n(range.len(), true);
    }
    mask.append_n(rows - mask.len(), false);
    let mask = BooleanArray::new(mask.finish(), None);
    filter_record_batch(&batch, &mask).map_err(Error::from_cause)
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

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatchOptions};
    use arrow_schema::{Field, Schema};

    use super::*;

    #[test]
    fn ranges_are_cut_where_blocks_of_the_file_end() {
        // The second row group of a file: its row 0 is row 250, so blocks end before rows 50, 150, 250 and so on.
        let ranges = [0..50, 70..150, 150..400, 1000..1900, 2000..2010];
        let cells = cut_into_blocks(&ranges, 250, 100);
        let expected = [
            0..50,
            70..150,
            150..250,
            250..350,
            350..400,
            1000..1900,
            2000..2010,
        ];
        assert_eq!(cells, expected);
        let ranges = [3..9, 9..12];
        assert_eq!(cut_into_blocks(&ranges, 7, usize::MAX), ranges);
    }

    fn whole(rows: usize) -> Vec<Range<usize>> {
        std::iter::once(0..rows).collect()
    }

    #[test]
    fn selected_rows_are_gathered_whether_batches_are_joined_or_not() {
        let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let batch = |numbers: Range<i64>| {
            let column: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers));
            RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap()
        };
        let many = i64::try_from(MIN_PIECE_ROWS).unwrap();
        let selected = [
            vec![
                (batch(0..10), vec![0..1, 4..7]),
                (batch(10..20), vec![3..4, 9..10]),
            ],
            vec![(batch(0..10), vec![2..3, 5..6])],
            vec![(batch(0..10), whole(10))],
            vec![
                (batch(0..3), whole(3)),
                (batch(3..many + 9), vec![1..5, 9..MIN_PIECE_ROWS + 4]),
            ],
            Vec::new(),
        ];
        for selected in selected {
            let rows = |joins: bool| -> (usize, Vec<i64>) {
                let batches = gather(selected.clone(), joins).unwrap();
                let columns = batches
                    .iter()
                    .map(|batch| batch.column(0).as_primitive::<Int64Type>());
                (
                    batches.len(),
                    columns
                        .flat_map(|column| column.values().to_vec())
                        .collect(),
                )
            };
            let expected: Vec<i64> = selected
                .iter()
                .flat_map(|(batch, ranges)| {
                    let numbers = batch.column(0).as_primitive::<Int64Type>().values();
                    ranges
                        .iter()
                        .flat_map(|range| numbers[range.clone()].to_vec())
                })
                .collect();
            let is_few = expected.len() <= MIN_PIECE_ROWS;
            let joined = if is_few {
                selected.len().min(1)
            } else {
                selected.len()
            };
            assert_eq!(rows(true), (joined, expected.clone()));
            assert_eq!(rows(false), (selected.len(), expected));
        }
    }

    #[test]
    fn rows_without_columns_are_counted() {
        let schema: SchemaRef = Arc::new(Schema::empty());
        let options = RecordBatchOptions::new().with_row_count(Some(5));
        let batch = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
        let selected = vec![(batch.clone(), vec![1..2, 3..4]), (batch, whole(5))];
        let batches = gather(selected, true).unwrap();
        assert_eq!(
            batches
                .iter()
                .map(RecordBatch::num_rows)
                .collect::<Vec<_>>(),
            [2, 5]
        );
    }
}
