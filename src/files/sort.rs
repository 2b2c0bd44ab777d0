//! Sorts streams of batches in bounded memory, by an external merge sort.
//!
//! Rows that fit in memory are sorted there. If they do not, sorted runs are spilled to temporary files as Arrow IPC
//! streams and merged, at most [`MAX_RUNS`] at once. The sort is stable.
//!
//! [`sort_batches`] refuses columns that Arrow's row format cannot compare
//! ([`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput)). Its stream returns the errors of the input as they
//! are; a spill that fails names the folder of temporary files.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_row::Rows;
use arrow_schema::{ArrowError, SchemaRef};

use super::BoxedReader;
use super::merge::{
    BATCH_ROWS, Merge, SortColumn, SortKeys, SortedBatches, gc_views, interleave_rows, is_view,
};
use super::spill::Spill;
use crate::error::Result;

/// The most bytes of a batch, about.
const BATCH_BYTES: usize = 64 << 20;
/// The least bytes of a batch of a run, about, however little memory there is.
const MIN_BATCH_BYTES: usize = 64 << 10;
/// The most runs that are merged at once: each needs an open file and a batch in memory.
const MAX_RUNS: usize = 64;

/// Sorts the rows of `input` by some columns. The input is read when the first batch is requested; about `memory_bytes`
/// of it are held in memory at a time.
pub(crate) fn sort_batches(
    input: BoxedReader,
    by: &[SortColumn],
    memory_bytes: usize,
) -> Result<BoxedReader> {
    let schema = input.schema();
    let keys = Arc::new(SortKeys::new(&schema, by)?);
    let mut pending_input = Some(input);
    let mut sorted: Option<SortedBatches> = None;
    let input_schema = Arc::clone(&schema);
    let batches = std::iter::from_fn(move || {
        if let Some(input) = pending_input.take() {
            match read_and_sort(input, &input_schema, &keys, memory_bytes) {
                Ok(merged) => sorted = Some(merged),
                Err(e) => return Some(Err(e)),
            }
        }
        sorted.as_mut()?.next()
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

fn read_and_sort(
    input: BoxedReader,
    schema: &SchemaRef,
    keys: &Arc<SortKeys>,
    memory_bytes: usize,
) -> Result<SortedBatches, ArrowError> {
    let mut runs = SpilledRuns {
        files: Vec::new(),
        schema,
        keys,
        batch_bytes: (memory_bytes / (MAX_RUNS + 1)).clamp(MIN_BATCH_BYTES, BATCH_BYTES),
        batch_rows: BATCH_ROWS,
    };
    let mut buffer = SortBuffer::default();
    for batch_result in input {
        let batch = batch_result?;
        if batch.num_rows() == 0 {
            continue;
        }
        buffer.add(batch, keys)?;
        if buffer.bytes > memory_bytes {
            runs.spill_buffer(std::mem::take(&mut buffer))?;
        }
    }
    if runs.files.is_empty() {
        let rows = buffer.batch_rows(BATCH_BYTES);
        return Ok(Box::new(buffer.into_sorted(rows)));
    }
    if !buffer.batches.is_empty() {
        runs.spill_buffer(buffer)?;
    }
    runs.into_sorted()
}

/// Sorted runs in files, each with its level: how often its rows were merged. Levels never rise from a run to the next.
struct SpilledRuns<'a> {
    files: Vec<(u32, Spill)>,
    schema: &'a SchemaRef,
    keys: &'a Arc<SortKeys>,
    batch_bytes: usize,
    /// The rows of a batch of a run: as many as fit into `batch_bytes` of the widest rows so far.
    batch_rows: usize,
}

impl SpilledRuns<'_> {
    fn spill_buffer(&mut self, buffer: SortBuffer) -> Result<(), ArrowError> {
        self.batch_rows = self.batch_rows.min(buffer.batch_rows(self.batch_bytes));
        let run = Spill::collect(self.schema, buffer.into_sorted(self.batch_rows), 0)?;
        self.files.push((0, run));
        // Only neighbours of one level are merged, so the order of equal rows stays.
        while let Some(level) = self.last_level() {
            let from = self.files.len() - MAX_RUNS;
            self.merge_from(from, level + 1)?;
        }
        Ok(())
    }

    /// The level of the last [`MAX_RUNS`] runs, if they all have the same.
    fn last_level(&self) -> Option<u32> {
        let last = self.files.last_chunk::<MAX_RUNS>()?;
        let level = last[0].0;
        last.iter()
            .all(|(other, _)| *other == level)
            .then_some(level)
    }

    fn merge_from(&mut self, from: usize, level: u32) -> Result<(), ArrowError> {
        let files = self.files.drain(from..).map(|(_, file)| file);
        let merged = merge_files(files, self.keys, self.batch_rows)?;
        self.files
            .push((level, Spill::collect(self.schema, merged, 0)?));
        Ok(())
    }

    fn into_sorted(mut self) -> Result<SortedBatches, ArrowError> {
        while self.files.len() > MAX_RUNS {
            let from = self.files.len() - MAX_RUNS;
            let level = self.files[from].0;
            self.merge_from(from, level + 1)?;
        }
        let files = self.files.into_iter().map(|(_, file)| file);
        let merge = merge_files(files, self.keys, self.batch_rows)?;
        Ok(Box::new(merge))
    }
}

fn merge_files(
    runs: impl Iterator<Item = Spill>,
    keys: &Arc<SortKeys>,
    batch_rows: usize,
) -> Result<Merge, ArrowError> {
    let streams = runs.map(|run| run.read());
    Merge::new(streams.collect::<Result<Vec<_>, _>>()?, keys, batch_rows)
}

/// Batches in memory that are to be sorted, with the keys of their rows.
#[derive(Default)]
struct SortBuffer {
    batches: Vec<RecordBatch>,
    keys: Vec<Rows>,
    rows: usize,
    bytes: usize,
}

impl SortBuffer {
    fn add(&mut self, batch: RecordBatch, keys: &SortKeys) -> Result<(), ArrowError> {
        let batch = gc_views(batch)?;
        let rows = keys.convert_batch(&batch)?;
        let column_bytes = batch.columns().iter().map(|column| {
            if is_view(column.data_type()) {
                return column.get_array_memory_size();
            }
            // A slice counts with its own rows only, unless their size cannot be computed.
            let slice_bytes = column.to_data().get_slice_memory_size();
            slice_bytes.unwrap_or_else(|_| column.get_array_memory_size())
        });
        // The sort keeps two numbers for each row.
        self.bytes += column_bytes.sum::<usize>() + rows.size() + 16 * batch.num_rows();
        self.rows += batch.num_rows();
        self.batches.push(batch);
        self.keys.push(rows);
        Ok(())
    }

    /// How many of the rows have about `bytes` bytes; at most [`BATCH_ROWS`].
    fn batch_rows(&self, bytes: usize) -> usize {
        let row_bytes = (self.bytes / self.rows.max(1)).max(1);
        (bytes / row_bytes).clamp(1, BATCH_ROWS)
    }

    /// The rows in order, in batches of `step` rows.
    fn into_sorted(
        self,
        step: usize,
    ) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send {
        let numbered_batches = self.batches.iter().enumerate();
        let unsorted =
            numbered_batches.flat_map(|(n, batch)| (0..batch.num_rows()).map(move |row| (n, row)));
        let mut positions: Vec<(usize, usize)> = unsorted.collect();
        positions.sort_by(|a, b| self.keys[a.0].row(a.1).cmp(&self.keys[b.0].row(b.1)));
        let (mut offset, mut sorted) = (0, VecDeque::new());
        std::iter::from_fn(move || {
            if sorted.is_empty() {
                let next = positions.get(offset..positions.len().min(offset + step))?;
                offset += next.len();
                match interleave_rows(&self.batches, next) {
                    Ok(batches) => sorted = batches.into(),
                    Err(e) => return Some(Err(e)),
                }
            }
            sorted.pop_front().map(Ok)
        })
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, StringArray};
    use arrow_ord::sort::{SortColumn as ArrowSortColumn, lexsort_to_indices};
    use arrow_schema::{DataType, Field, Schema, SortOptions};
    use arrow_select::concat::concat_batches;
    use arrow_select::take::take_record_batch;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn batches(seed: u64, count: usize) -> Vec<RecordBatch> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut number = 0;
        let fields = vec![
            Field::new("key", DataType::Int64, true),
            Field::new("text", DataType::Utf8, true),
            Field::new("number", DataType::Int64, false),
        ];
        let schema = Arc::new(Schema::new(fields));
        let mut batch = |random: &mut StdRng| {
            let rows = random.random_range(0..700);
            let key_values = (0..rows).map(|_| {
                let key = random.random_range(-50..50);
                (key % 9 != 0).then_some(key)
            });
            let keys: Int64Array = key_values.collect();
            let text_values = keys.iter().map(|k| {
                k.map(|k| ["", "x", "xx", "y"][usize::from(k % 4 == 0) + usize::from(k > 0)])
            });
            let texts: StringArray = text_values.collect();
            let numbers = Int64Array::from_iter_values(number..number + rows);
            number += rows;
            let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(texts), Arc::new(numbers)];
            RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()
        };
        (0..count).map(|_| batch(&mut random)).collect()
    }

    fn check(by: &[usize], memory_bytes: usize, count: usize) {
        for (descending, nulls_first) in
            [(false, false), (false, true), (true, false), (true, true)]
        {
            let options = SortOptions {
                descending,
                nulls_first,
            };
            let columns = by.iter().map(|index| SortColumn::new(*index, options));
            check_by(&columns.collect::<Vec<_>>(), memory_bytes, count);
        }
    }

    fn check_by(by: &[SortColumn], memory_bytes: usize, count: usize) {
        let unsorted = batches(7, count);
        let schema = unsorted[0].schema();
        let whole = concat_batches(&schema, &unsorted).unwrap();
        // Sorting by the number too makes the expected order stable.
        let number = SortColumn::ascending(2);
        let sort_columns = by.iter().chain([&number]).map(|column| ArrowSortColumn {
            values: Arc::clone(whole.column(column.index)),
            options: Some(column.options),
        });
        let order = lexsort_to_indices(&sort_columns.collect::<Vec<_>>(), None).unwrap();
        let expected = take_record_batch(&whole, &order).unwrap();
        let input = RecordBatchIterator::new(unsorted.into_iter().map(Ok), Arc::clone(&schema));
        let sorted = sort_batches(Box::new(input), by, memory_bytes).unwrap();
        let output: Vec<RecordBatch> = sorted.map(Result::unwrap).collect();
        assert!(output.iter().all(|batch| batch.num_rows() <= BATCH_ROWS));
        let actual = concat_batches(&schema, &output).unwrap();
        assert_eq!(actual, expected);
        let numbers = actual.column(2).as_primitive::<Int64Type>();
        assert_eq!(numbers.len(), whole.num_rows());
    }

    #[test]
    fn sorts_in_memory() {
        check(&[0], usize::MAX, 40);
        check(&[1, 0], usize::MAX, 40);
    }

    #[test]
    fn merges_spilled_runs() {
        check(&[0], 60_000, 100);
        check(&[1, 0], 60_000, 100);
    }

    #[test]
    fn merges_in_several_passes() {
        // Runs of one batch, merged at two levels.
        check_by(&[SortColumn::ascending(0)], 0, 64 * 65 + 7);
    }

    #[test]
    fn columns_have_orders_of_their_own() {
        let descending = SortOptions {
            descending: true,
            nulls_first: true,
        };
        let text = SortColumn::new(1, descending);
        check_by(&[text, SortColumn::ascending(0)], 60_000, 100);
    }

    #[test]
    fn wide_rows_give_small_batches() {
        let field = Field::new("wide", DataType::Utf8View, false);
        let schema = Arc::new(Schema::new(vec![field]));
        let batch_schema = Arc::clone(&schema);
        let batch = move |n: i32| {
            let values =
                (0..50).map(|row| format!("{:05}{}", (n * 37 + row) % 997, "x".repeat(5000)));
            let texts = arrow_array::StringViewArray::from_iter_values(values);
            RecordBatch::try_new(Arc::clone(&batch_schema), vec![Arc::new(texts) as ArrayRef])
        };
        let input = RecordBatchIterator::new((0..40).map(batch), Arc::clone(&schema));
        let sorted = sort_batches(Box::new(input), &[SortColumn::ascending(0)], 1 << 20).unwrap();
        let output: Vec<RecordBatch> = sorted.map(Result::unwrap).collect();
        assert_eq!(
            output.iter().map(RecordBatch::num_rows).sum::<usize>(),
            2000
        );
        let texts = output
            .iter()
            .flat_map(|b| b.column(0).as_string_view().iter().flatten());
        assert!(texts.is_sorted());
        // A batch holds no values but its own.
        assert!(output.iter().all(|b| b.get_array_memory_size() < 100_000));
    }

    #[test]
    fn empty_input_gives_no_batches() {
        let schema = batches(1, 1)[0].schema();
        let input = RecordBatchIterator::new(Vec::new(), schema);
        assert_eq!(
            sort_batches(Box::new(input), &[SortColumn::ascending(0)], 10)
                .unwrap()
                .count(),
            0
        );
    }

    #[test]
    fn input_errors_are_returned() {
        let schema = batches(1, 1)[0].schema();
        let failed = Err(ArrowError::ComputeError("torn".to_owned()));
        let input =
            RecordBatchIterator::new(batches(1, 3).into_iter().map(Ok).chain([failed]), schema);
        let results: Vec<_> = sort_batches(Box::new(input), &[SortColumn::ascending(0)], 0)
            .unwrap()
            .collect();
        assert_eq!(results.len(), 1);
        assert!(
            results[0]
                .as_ref()
                .unwrap_err()
                .to_string()
                .contains("torn")
        );
    }
}
