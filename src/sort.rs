//! Streams of batches sorted in bounded memory.
//!
//! What fits in memory is sorted there. Beyond that, sorted runs go to temporary files as Arrow IPC
//! streams and are merged. The sort is stable; nulls come last.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{ArrowError, DataType, SchemaRef, SortOptions};
use arrow_select::interleave::interleave_record_batch;

use crate::error::{Error, Result};

type Batches = Box<dyn RecordBatchReader + Send>;
type Merged = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Rows of a batch that comes out, at most.
const BATCH_ROWS: usize = 8192;
/// Bytes of one, about, at most.
const BATCH_BYTES: usize = 64 << 20;
const MIN_BATCH_BYTES: usize = 64 << 10;
/// Runs merged at once: each needs a batch in memory and a file.
const MAX_RUNS: usize = 64;

/// The rows of `input` by the columns at `by`, in ascending order. The input is read when the first
/// batch is asked for; of it about `memory_bytes` are held at a time.
pub(crate) fn sorted(input: Batches, by: &[usize], memory_bytes: usize) -> Result<Batches> {
    let schema = input.schema();
    let keys = Arc::new(Keys::new(&schema, by)?);
    let mut input = Some(input);
    let mut found: Option<Merged> = None;
    let of = Arc::clone(&schema);
    let batches = std::iter::from_fn(move || {
        if let Some(input) = input.take() {
            match sort(input, &of, &keys, memory_bytes) {
                Ok(merged) => found = Some(merged),
                Err(e) => return Some(Err(e)),
            }
        }
        found.as_mut()?.next()
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

/// What rows are compared by.
#[derive(Debug)]
struct Keys {
    converter: RowConverter,
    by: Vec<usize>,
}

impl Keys {
    fn new(schema: &SchemaRef, by: &[usize]) -> Result<Self> {
        let order = SortOptions {
            descending: false,
            nulls_first: false,
        };
        let kinds = by.iter().map(|at| schema.field(*at).data_type());
        let fields = kinds.map(|kind| SortField::new_with_options(kind.clone(), order));
        let converter = RowConverter::new(fields.collect()).map_err(|e| {
            let named: Vec<&String> = by.iter().map(|at| schema.field(*at).name()).collect();
            Error::invalid(format!("rows cannot be sorted by {named:?}: {e}")).with_source(e)
        })?;
        Ok(Self {
            converter,
            by: by.to_vec(),
        })
    }

    fn of(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        let columns = self.by.iter().map(|at| Arc::clone(batch.column(*at)));
        let columns: Vec<ArrayRef> = columns.collect();
        self.converter.convert_columns(&columns)
    }
}

fn sort(
    input: Batches,
    schema: &SchemaRef,
    keys: &Arc<Keys>,
    memory_bytes: usize,
) -> Result<Merged, ArrowError> {
    let mut runs = Runs {
        files: Vec::new(),
        schema,
        keys,
        batch_bytes: (memory_bytes / (MAX_RUNS + 1)).clamp(MIN_BATCH_BYTES, BATCH_BYTES),
        batch_rows: BATCH_ROWS,
    };
    let mut held = Held::default();
    for batch in input {
        let batch = batch?;
        if batch.num_rows() == 0 {
            continue;
        }
        held.add(batch, keys)?;
        if held.bytes > memory_bytes {
            runs.spill(std::mem::take(&mut held))?;
        }
    }
    if runs.files.is_empty() {
        let rows = held.batch_rows(BATCH_BYTES);
        return Ok(Box::new(held.sorted(rows)));
    }
    if !held.batches.is_empty() {
        runs.spill(held)?;
    }
    runs.merged()
}

/// Sorted runs in files, each with how often its rows were merged; never fewer times than the next.
struct Runs<'a> {
    files: Vec<(u32, File)>,
    schema: &'a SchemaRef,
    keys: &'a Arc<Keys>,
    batch_bytes: usize,
    /// As many rows as go into that, of the widest rows so far.
    batch_rows: usize,
}

impl Runs<'_> {
    fn spill(&mut self, held: Held) -> Result<(), ArrowError> {
        self.batch_rows = self.batch_rows.min(held.batch_rows(self.batch_bytes));
        let run = spill(held.sorted(self.batch_rows), self.schema)?;
        self.files.push((0, run));
        // Neighbours that were merged as often: the order of equal rows stays.
        while let Some(level) = self.last_level() {
            let from = self.files.len() - MAX_RUNS;
            self.merge_from(from, level + 1)?;
        }
        Ok(())
    }

    fn last_level(&self) -> Option<u32> {
        let last = self.files.last_chunk::<MAX_RUNS>()?;
        let level = last[0].0;
        last.iter()
            .all(|(other, _)| *other == level)
            .then_some(level)
    }

    fn merge_from(&mut self, from: usize, level: u32) -> Result<(), ArrowError> {
        let some = self.files.drain(from..).map(|(_, file)| file);
        let merged = Merge::new(some.collect(), self.keys, self.batch_rows)?;
        self.files.push((level, spill(merged, self.schema)?));
        Ok(())
    }

    fn merged(mut self) -> Result<Merged, ArrowError> {
        while self.files.len() > MAX_RUNS {
            let from = self.files.len() - MAX_RUNS;
            let level = self.files[from].0;
            self.merge_from(from, level + 1)?;
        }
        let files = self.files.into_iter().map(|(_, file)| file);
        let merge = Merge::new(files.collect(), self.keys, self.batch_rows)?;
        Ok(Box::new(merge))
    }
}

/// Batches in memory.
#[derive(Default)]
struct Held {
    batches: Vec<RecordBatch>,
    keys: Vec<Rows>,
    rows: usize,
    bytes: usize,
}

impl Held {
    fn add(&mut self, batch: RecordBatch, keys: &Keys) -> Result<(), ArrowError> {
        let batch = compact(batch)?;
        let rows = keys.of(&batch)?;
        let columns = batch.columns().iter().map(|column| {
            if is_view(column.data_type()) {
                return column.get_array_memory_size();
            }
            // Of a slice only what it shows, unless that cannot be told.
            let shown = column.to_data().get_slice_memory_size();
            shown.unwrap_or_else(|_| column.get_array_memory_size())
        });
        // Two numbers are kept for each row while it is sorted.
        self.bytes += columns.sum::<usize>() + rows.size() + 16 * batch.num_rows();
        self.rows += batch.num_rows();
        self.batches.push(batch);
        self.keys.push(rows);
        Ok(())
    }

    /// How many of its rows have about so many bytes.
    fn batch_rows(&self, bytes: usize) -> usize {
        let each = (self.bytes / self.rows.max(1)).max(1);
        (bytes / each).clamp(1, BATCH_ROWS)
    }

    /// The rows in order, so many at a time.
    fn sorted(self, step: usize) -> impl Iterator<Item = Result<RecordBatch, ArrowError>> + Send {
        let places = self.batches.iter().enumerate();
        let places = places.flat_map(|(n, batch)| (0..batch.num_rows()).map(move |row| (n, row)));
        let mut places: Vec<(usize, usize)> = places.collect();
        places.sort_by(|a, b| self.keys[a.0].row(a.1).cmp(&self.keys[b.0].row(b.1)));
        let mut at = 0;
        std::iter::from_fn(move || {
            let next = places.get(at..places.len().min(at + step))?;
            at += next.len();
            (!next.is_empty()).then(|| gathered(&self.batches, next))
        })
    }
}

fn is_view(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8View | DataType::BinaryView)
}

/// The batch without values that no view of it shows.
fn compact(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    if !batch.columns().iter().any(|c| is_view(c.data_type())) {
        return Ok(batch);
    }
    let columns = batch.columns().iter().map(|column| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => Arc::clone(column),
        }
    });
    RecordBatch::try_new(batch.schema(), columns.collect())
}

fn gathered(batches: &[RecordBatch], places: &[(usize, usize)]) -> Result<RecordBatch, ArrowError> {
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    compact(interleave_record_batch(&batches, places)?)
}

/// Writes a run to a temporary file that has no name.
fn spill(
    run: impl Iterator<Item = Result<RecordBatch, ArrowError>>,
    schema: &SchemaRef,
) -> Result<File, ArrowError> {
    let failed = |e: std::io::Error| {
        let folder = std::env::temp_dir();
        let message = format!(
            "rows that are sorted cannot be kept in {}: {e}; free space there, or name another \
             folder in TMPDIR",
            folder.display()
        );
        ArrowError::ExternalError(Box::new(Error::other(message).with_source(e)))
    };
    let file = tempfile::tempfile().map_err(failed)?;
    let of_file = |e| match e {
        ArrowError::IoError(_, e) => failed(e),
        other => other,
    };
    let mut writer = StreamWriter::try_new_buffered(file, schema).map_err(of_file)?;
    for batch in run {
        writer.write(&batch?).map_err(of_file)?;
    }
    writer.finish().map_err(of_file)?;
    let writer: BufWriter<File> = writer.into_inner()?;
    let mut file = writer.into_inner().map_err(|e| failed(e.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// A run that is read, and where.
struct Run {
    reader: StreamReader<BufReader<File>>,
    keys: Rows,
    /// The batch, by its place among those that are held.
    batch: usize,
    row: usize,
}

/// The next row of a run, greatest first where it comes first.
struct Head {
    key: Box<[u8]>,
    run: usize,
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .key
            .cmp(&self.key)
            .then_with(|| other.run.cmp(&self.run))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

/// Runs as one.
struct Merge {
    keys: Arc<Keys>,
    batch_rows: usize,
    runs: Vec<Run>,
    heads: BinaryHeap<Head>,
    /// Batches with rows that have not come out.
    held: Vec<RecordBatch>,
}

impl Merge {
    fn new(files: Vec<File>, keys: &Arc<Keys>, batch_rows: usize) -> Result<Self, ArrowError> {
        let mut merge = Self {
            keys: Arc::clone(keys),
            batch_rows,
            runs: Vec::new(),
            heads: BinaryHeap::new(),
            held: Vec::new(),
        };
        for file in files {
            let mut reader = StreamReader::try_new_buffered(file, None)?;
            if let Some(batch) = reader.next().transpose()? {
                merge.runs.push(Run {
                    reader,
                    keys: merge.keys.of(&batch)?,
                    batch: merge.held.len(),
                    row: 0,
                });
                merge.held.push(batch);
                merge.enter(merge.runs.len() - 1);
            }
        }
        Ok(merge)
    }

    fn enter(&mut self, run: usize) {
        let found = &self.runs[run];
        let key = found.keys.row(found.row).as_ref().into();
        self.heads.push(Head { key, run });
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut places = Vec::with_capacity(self.batch_rows);
        while places.len() < self.batch_rows {
            let Some(Head { run, .. }) = self.heads.pop() else {
                break;
            };
            let found = &mut self.runs[run];
            places.push((found.batch, found.row));
            found.row += 1;
            if found.row == found.keys.num_rows() {
                let Some(batch) = found.reader.next().transpose()? else {
                    continue;
                };
                found.keys = self.keys.of(&batch)?;
                (found.batch, found.row) = (self.held.len(), 0);
                self.held.push(batch);
            }
            self.enter(run);
        }
        if places.is_empty() {
            return Ok(None);
        }
        let merged = gathered(&self.held, &places)?;
        // Only the batches in which runs are.
        let mut used: Vec<RecordBatch> = Vec::with_capacity(self.runs.len());
        for run in &mut self.runs {
            used.push(self.held[run.batch].clone());
            run.batch = used.len() - 1;
        }
        self.held = used;
        Ok(Some(merged))
    }
}

impl Iterator for Merge {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batch().transpose()
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};
    use arrow_ord::sort::{SortColumn, lexsort_to_indices};
    use arrow_schema::{Field, Schema};
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
            let keys = (0..rows).map(|_| {
                let key = random.random_range(-50..50);
                (key % 9 != 0).then_some(key)
            });
            let keys: Int64Array = keys.collect();
            let texts = keys.iter().map(|k| {
                k.map(|k| ["", "x", "xx", "y"][usize::from(k % 4 == 0) + usize::from(k > 0)])
            });
            let texts: StringArray = texts.collect();
            let numbers = Int64Array::from_iter_values(number..number + rows);
            number += rows;
            let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(texts), Arc::new(numbers)];
            RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()
        };
        (0..count).map(|_| batch(&mut random)).collect()
    }

    fn check(by: &[usize], memory_bytes: usize, count: usize) {
        let given = batches(7, count);
        let schema = given[0].schema();
        let whole = concat_batches(&schema, &given).unwrap();
        // The number makes the expected order the stable one.
        let order = by.iter().chain(&[2]).map(|at| SortColumn {
            values: Arc::clone(whole.column(*at)),
            options: Some(SortOptions {
                descending: false,
                nulls_first: false,
            }),
        });
        let order = lexsort_to_indices(&order.collect::<Vec<_>>(), None).unwrap();
        let expected = take_record_batch(&whole, &order).unwrap();
        let input = RecordBatchIterator::new(given.into_iter().map(Ok), Arc::clone(&schema));
        let found = sorted(Box::new(input), by, memory_bytes).unwrap();
        let found: Vec<RecordBatch> = found.map(Result::unwrap).collect();
        assert!(found.iter().all(|batch| batch.num_rows() <= BATCH_ROWS));
        let found = concat_batches(&schema, &found).unwrap();
        assert_eq!(found, expected);
        let numbers = found.column(2).as_primitive::<Int64Type>();
        assert_eq!(numbers.len(), whole.num_rows());
    }

    #[test]
    fn in_memory() {
        check(&[0], usize::MAX, 40);
        check(&[1, 0], usize::MAX, 40);
    }

    #[test]
    fn merged_from_runs() {
        check(&[0], 60_000, 100);
        check(&[1, 0], 60_000, 100);
    }

    #[test]
    fn merged_in_several_passes() {
        // Runs of one batch, merged at two levels.
        check(&[0], 0, 64 * 65 + 7);
    }

    #[test]
    fn wide_rows_come_in_small_batches() {
        let field = Field::new("wide", DataType::Utf8View, false);
        let schema = Arc::new(Schema::new(vec![field]));
        let of = Arc::clone(&schema);
        let batch = move |n: i32| {
            let texts =
                (0..50).map(|row| format!("{:05}{}", (n * 37 + row) % 997, "x".repeat(5000)));
            let texts = arrow_array::StringViewArray::from_iter_values(texts);
            RecordBatch::try_new(Arc::clone(&of), vec![Arc::new(texts) as ArrayRef])
        };
        let input = RecordBatchIterator::new((0..40).map(batch), Arc::clone(&schema));
        let found = sorted(Box::new(input), &[0], 1 << 20).unwrap();
        let found: Vec<RecordBatch> = found.map(Result::unwrap).collect();
        assert_eq!(found.iter().map(RecordBatch::num_rows).sum::<usize>(), 2000);
        let texts = found
            .iter()
            .flat_map(|b| b.column(0).as_string_view().iter().flatten());
        assert!(texts.is_sorted());
        // Nothing is held but what is shown.
        assert!(found.iter().all(|b| b.get_array_memory_size() < 100_000));
    }

    #[test]
    fn nothing_is_nothing() {
        let schema = batches(1, 1)[0].schema();
        let input = RecordBatchIterator::new(Vec::new(), schema);
        assert_eq!(sorted(Box::new(input), &[0], 10).unwrap().count(), 0);
    }

    #[test]
    fn an_error_of_the_input_is_passed_on() {
        let schema = batches(1, 1)[0].schema();
        let failed = Err(ArrowError::ComputeError("torn".to_owned()));
        let input =
            RecordBatchIterator::new(batches(1, 3).into_iter().map(Ok).chain([failed]), schema);
        let found: Vec<_> = sorted(Box::new(input), &[0], 0).unwrap().collect();
        assert_eq!(found.len(), 1);
        assert!(found[0].as_ref().unwrap_err().to_string().contains("torn"));
    }
}
