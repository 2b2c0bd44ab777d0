//! Writing a run from a sorted stream.
//!
//! On their way to the Parquet writer the rows pass an `Indexer`. It refuses rows that are out of order, notes the key
//! of the first row of each page for the key index in the footer of the file, and samples keys, by which pipelines
//! split work among tasks. Files end after a number of rows that is known before the first one is encoded, a multiple
//! of that of a page: so the indexer knows to which file a row goes. After an error none of the files stays.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_row::OwnedRow;
use arrow_schema::{ArrowError, SchemaRef};
use parquet::file::metadata::{KeyValue, ParquetMetaData};

use super::cache::keep_written;
use super::index::KeyIndex;
use super::keys::{CutKeys, encode_keys};
use super::{KEY_INDEX, KeyColumn, RunFile, SortedRun, sort_columns};
use crate::error::{Error, Result};
use crate::files::merge::{SortKeys, row_bytes};
use crate::files::write::{FileName, WrittenFile, write_files_with_footers};
use crate::files::{BoxedReader, run_blocking};
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::PartIdentity;
use crate::parquet::writer::WritePlan;
use crate::store::Store;
use crate::store::stage::Staging;
use crate::sync::heap::count_bytes;
use crate::sync::mutex::lock;

/// The most bytes of a dictionary, which is read with every page: about those of a page of 4,096 numbers.
const MAX_DICTIONARY_BYTES: usize = 32 << 10;

/// A sample with so many keys is thinned to half of them.
const SAMPLE_KEYS: usize = 128;

/// The rows of a page by default: each key that is looked up costs a page of each column.
pub const DEFAULT_PAGE_ROWS: usize = 1024;

/// A run that was written.
#[derive(Debug)]
pub struct WrittenRun {
    /// The run.
    pub run: SortedRun,
    /// Some keys of its rows, at about equal distances, as its files name them; one of the first row.
    pub sample: Vec<Vec<serde_json::Value>>,
}

/// How a run is written.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The options of the Parquet files. The rows of a file are chosen by `file_bytes`.
    pub write_options: WriteOptions,
    /// The rows of a page, and the distance of keys in the key index.
    pub page_rows: usize,
    /// The most rows of a file.
    pub file_rows: u64,
    /// About the most bytes that the rows of a file have in memory.
    pub file_bytes: u64,
    /// The number of threads that encode; None for one per processor.
    pub threads: Option<usize>,
    /// Whether this process keeps the bytes of small files that it writes to an object store, because it reads them next.
    pub caches_small_files: bool,
}

impl RunOptions {
    /// Pages of [`DEFAULT_PAGE_ROWS`], files of a million rows or 64 MiB in memory, which are less in the file.
    pub fn new(write_options: WriteOptions) -> Self {
        Self {
            write_options,
            page_rows: DEFAULT_PAGE_ROWS,
            file_rows: 1_000_000,
            file_bytes: 64 << 20,
            threads: None,
            caches_small_files: false,
        }
    }
}

/// Writes the rows of `input`, which are in the order of `key`, as files of a run. `new_name` gives the name of a file,
/// relative to the folder of the run, and its path in the store. After an error none of the files stays.
pub async fn write_run(
    store: &Store,
    input: BoxedReader,
    key: &[KeyColumn],
    options: &RunOptions,
    mut new_name: impl FnMut() -> (String, String) + Send + 'static,
) -> Result<WrittenRun> {
    let schema = input.schema();
    // Refuses what cannot be a key before anything is written.
    CutKeys::new(&schema, key, key.len())?;
    let by = sort_columns(&schema, key)?;
    let keys = SortKeys::new(&schema, &by)?;
    let (input, row_bytes) = run_blocking(move || Ok(peek(input))).await?;
    let page_rows = options.page_rows.max(1) as u64;
    let file_pages = (options.file_bytes / row_bytes.max(1)).min(options.file_rows) / page_rows;
    let file_rows = file_pages.max(1) * page_rows;
    let indexes: SharedIndexes = Arc::default();
    let sample: Arc<Mutex<Sample>> = Arc::default();
    let tap = Indexer {
        keys,
        columns: by.iter().map(|column| column.index).collect(),
        page_rows,
        file_rows,
        next_row: 0,
        last_key: None,
        indexes: Arc::clone(&indexes),
        sample: Arc::clone(&sample),
    };
    let staging = Staging::new(store, None, options.write_options.memory_limit_bytes);
    let write_plan = plan_files(store, &schema, options, file_rows, &staging)?;
    let footers = {
        let indexes = Arc::clone(&indexes);
        let mut file = 0;
        Box::new(move || {
            let text = lock(&indexes).get_mut(file).map(|index| {
                let text = serde_json::to_string(&*index);
                // The others are in the file now; the run needs the first one.
                index.keys.truncate(1);
                index.keys.shrink_to_fit();
                text
            });
            file += 1;
            let value = text.transpose().map_err(Error::from_cause)?;
            Ok(vec![KeyValue::new(KEY_INDEX.to_owned(), value)])
        })
    };
    let name = move || {
        let (name, path) = new_name();
        FileName { name, path }
    };
    let input = tap.wrap(input);
    let files = write_files_with_footers(store, staging, write_plan, input, name, footers).await?;
    let mut indexes = std::mem::take(&mut *lock(&indexes)).into_iter();
    let mut run = SortedRun::default();
    for mut file in files {
        let index = indexes.next();
        let mut index = index.ok_or_else(|| Error::other("internal error: a file has no index"))?;
        let first = index.keys.swap_remove(0);
        if let (true, Some(bytes)) = (options.caches_small_files, file.bytes.take()) {
            keep_written(store, &file.name.path, bytes);
        }
        run.files.push(run_file(file, first, index.last));
    }
    let sample = std::mem::take(&mut lock(&sample).keys);
    Ok(WrittenRun { run, sample })
}

fn plan_files(
    store: &Store,
    schema: &SchemaRef,
    options: &RunOptions,
    file_rows: u64,
    staging: &Staging,
) -> Result<WritePlan> {
    let identity = PartIdentity::new(&**store.clock());
    let write_options = WriteOptions {
        rows_per_file: Some(file_rows),
        page_rows: options.page_rows,
        dictionary_bytes: Some(MAX_DICTIONARY_BYTES),
        packs_integers: true,
        ..options.write_options.clone()
    };
    let mut plan = WritePlan::new(Arc::clone(schema), write_options, identity)?;
    plan.keep_empty = false;
    plan.threads = options.threads.unwrap_or(plan.threads);
    plan.upload_buffer_bytes = staging.memory_bytes();
    Ok(plan)
}

fn run_file(
    file: WrittenFile,
    first: Vec<serde_json::Value>,
    last: Vec<serde_json::Value>,
) -> RunFile {
    let stats = file.stats;
    let chunks_end = chunks_end(&stats.footer);
    RunFile {
        name: file.name.name,
        size_bytes: stats.bytes,
        footer_size: stats.tail_bytes,
        index_size: (stats.bytes - stats.tail_bytes).saturating_sub(chunks_end),
        rows: stats.rows,
        first,
        last,
    }
}

/// Where the last column chunk ends.
fn chunks_end(footer: &ParquetMetaData) -> u64 {
    let columns = footer.row_groups().iter().flat_map(|group| group.columns());
    let ends = columns.map(|column| {
        let (start, length) = column.byte_range();
        start + length
    });
    ends.max().unwrap_or_default()
}

/// The input with its first batch that has rows, and about how many bytes a row of it has.
fn peek(mut input: BoxedReader) -> (BoxedReader, u64) {
    let schema = input.schema();
    let first = input.find(|batch| !matches!(batch, Ok(batch) if batch.num_rows() == 0));
    let row_bytes = match &first {
        Some(Ok(batch)) => row_bytes(batch) as u64,
        _ => 0,
    };
    let input = RecordBatchIterator::new(first.into_iter().chain(input), schema);
    (Box::new(input), row_bytes)
}

/// The indexes of the files, the last of which may still grow.
type SharedIndexes = Arc<Mutex<VecDeque<KeyIndex>>>;

/// The keys of rows at equal distances, which grow with the rows.
#[derive(Debug, Default)]
struct Sample {
    /// The binary logarithm of the distance.
    distance_log2: u32,
    keys: Vec<Vec<serde_json::Value>>,
}

impl Sample {
    /// Whether a row is in the sample.
    fn has(&self, row: u64) -> bool {
        row.is_multiple_of(1 << self.distance_log2)
    }

    fn push(&mut self, key: Vec<serde_json::Value>) {
        self.keys.push(key);
        if self.keys.len() == SAMPLE_KEYS {
            let mut is_even = false;
            self.keys.retain(|_| {
                is_even = !is_even;
                is_even
            });
            self.distance_log2 += 1;
        }
    }
}

/// Checks the order of the rows that pass, and notes the keys of some.
struct Indexer {
    keys: SortKeys,
    columns: Vec<usize>,
    page_rows: u64,
    file_rows: u64,
    next_row: u64,
    last_key: Option<OwnedRow>,
    indexes: SharedIndexes,
    sample: Arc<Mutex<Sample>>,
}

impl Indexer {
    fn wrap(mut self, input: BoxedReader) -> BoxedReader {
        let schema = input.schema();
        let batches = input.map(move |batch| {
            let batch = batch?;
            self.pass(&batch)
                .map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
            Ok(batch)
        });
        Box::new(RecordBatchIterator::new(batches, schema))
    }

    fn pass(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows();
        if rows == 0 {
            return Ok(());
        }
        count_bytes(batch.get_array_memory_size());
        let keys = self.keys.convert_batch(batch).map_err(Error::from_cause)?;
        let begins_in_order = self
            .last_key
            .as_ref()
            .is_none_or(|last| last.row() <= keys.row(0));
        let is_sorted = (1..rows).all(|row| keys.row(row - 1) <= keys.row(row));
        if !begins_in_order || !is_sorted {
            return Err(Error::invalid(
                "the rows of a run must be in the order of its key",
            ));
        }
        self.last_key = Some(keys.row(rows - 1).owned());
        let mut sample = lock(&self.sample);
        for row in 0..rows {
            if sample.has(self.next_row + row as u64) {
                self.keys_of(batch, row)?
                    .into_iter()
                    .for_each(|key| sample.push(key));
            }
        }
        drop(sample);
        let mut row = 0;
        while row < rows {
            let in_file = self.next_row % self.file_rows;
            let mut indexes = lock(&self.indexes);
            if in_file == 0 {
                indexes.push_back(KeyIndex {
                    every: self.page_rows,
                    ..KeyIndex::default()
                });
            }
            let Some(index) = indexes.back_mut() else {
                return Err(Error::other("internal error: a row has no file"));
            };
            let in_page = in_file % self.page_rows;
            if in_page == 0 {
                index.keys.extend(self.keys_of(batch, row)?);
            }
            let step = usize::try_from(self.page_rows - in_page)
                .unwrap_or(usize::MAX)
                .min(rows - row);
            row += step;
            self.next_row += step as u64;
            if row == rows || self.next_row.is_multiple_of(self.file_rows) {
                index.last = self.keys_of(batch, row - 1)?.pop().unwrap_or_default();
            }
        }
        Ok(())
    }

    fn keys_of(&self, batch: &RecordBatch, row: usize) -> Result<Vec<Vec<serde_json::Value>>> {
        let columns = self
            .columns
            .iter()
            .map(|column| batch.column(*column).slice(row, 1));
        encode_keys(&columns.collect::<Vec<ArrayRef>>())
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field, Schema};

    use super::*;
    use crate::parquet::default_threads;
    use crate::testing::{faulty_memory, test_store};

    #[test]
    fn a_run_is_encoded_by_the_threads_of_its_options() {
        let store = test_store(&faulty_memory(), true);
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, false)]));
        let write_options = WriteOptions::new("zstd", None, None, None, None).unwrap();
        let staging = Staging::new(&store, None, write_options.memory_limit_bytes);
        let options = RunOptions::new(write_options);
        for (threads, expected) in [(None, default_threads()), (Some(1), 1), (Some(3), 3)] {
            let options = RunOptions {
                threads,
                ..options.clone()
            };
            let plan = plan_files(&store, &schema, &options, 1000, &staging).unwrap();
            assert_eq!(plan.threads, expected);
        }
    }
}
