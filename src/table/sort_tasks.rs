//! Sorting by many processes, in two rounds of tasks.
//!
//! In the first round a task reads some of the files, and writes their rows in sorted order to files that no version
//! names: a run. It says which key every few thousandth row has. From these the ranges of the second round are chosen,
//! so that each has about the rows of a new file. In the second round a task reads the rows of a range from all runs,
//! by their page indexes, and writes them in sorted order. Then the files of all ranges replace those of the version.
//!
//! Keys are compared as arrow-row encodes them, which is what rows are sorted by ([`SortKeys`]); they are
//! sent between processes of one version of pds and stored nowhere. Rows with equal keys are in one range, in the order
//! of the runs, so the sort is stable.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use serde::{Deserialize, Serialize};

use super::compact::{Compaction, find_sort_columns};
use super::format::{Base64, CommitId, DataFile, TableManifest};
use super::packed_task::pack;
use super::rewrite_group::{rewrite_files, rewrite_rows};
use super::rewrite_tasks::{RewrittenGroup, commit_alone};
use super::scan_tasks::{TaskSizes, split_scan_by_file, without_files};
use super::snapshot_reader::SnapshotReader;
use super::sort_ranges::{RangePlace, RangePredicate, SortRange, sort_columns};
use super::write::TableWriteOptions;
use super::{Table, pack_message, unpack_message};
use crate::error::{Error, ErrorKind, Result};
use crate::files::expr::Filter;
use crate::files::{BoxedReader, SortKeys, TableColumns, sort_batches};
use crate::sync::in_place::in_place;
use crate::sync::mutex::lock;

/// The most keys that a task of the first round reports, and the most bytes of one: any bytes part the keys.
const MAX_SAMPLES: usize = 4096;
const MAX_SAMPLE_BYTES: usize = 128;
const NOT_ALL_RUNS: &str = "a sort needs one message of each task of its first round";

/// The tasks of the first round.
#[derive(Debug, Clone)]
pub struct SortTasks {
    /// The ids of the columns to sort by.
    pub by: Vec<u32>,
    /// For [`sort_task`]; none if the version has no files.
    pub tasks: Vec<Vec<u8>>,
}

/// What a task of the first round has written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SortTaskResult {
    /// The version that was read.
    version: u64,
    commit_id: CommitId,
    /// The paths of the files that were read.
    sources: Vec<String>,
    files: Vec<DataFile>,
    samples: Vec<Sample>,
}

impl SortTaskResult {
    /// The files that it consists of.
    pub fn files(&self) -> &[DataFile] {
        &self.files
    }
}

/// The key of a row, or how it begins, and how many rows from this one on the sample stands for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Sample {
    key: Base64,
    rows: u64,
}

/// The tasks of the second round.
#[derive(Debug, Clone)]
pub struct RangeTasks {
    /// The files of all runs, as a task of a scan.
    pub runs: Vec<u8>,
    /// For [`range_task`], in the order of the keys.
    pub ranges: Vec<Vec<u8>>,
}

/// What a task of the second round has written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WrittenRange {
    place: RangePlace,
    files: Vec<DataFile>,
}

/// Splits the files of a version into tasks of the first round. The columns default to the table's sort order, or to its
/// key if it has none.
pub async fn plan_sort(
    table: &Table,
    manifest: Arc<TableManifest>,
    by: Option<&[String]>,
    sizes: TaskSizes,
) -> Result<SortTasks> {
    let columns = TableColumns::from_manifest(&manifest)?;
    let by = find_sort_columns(&columns, &manifest, by)?;
    SortKeys::new(&columns.schema, &sort_columns(&columns, &by)?)?;
    let tasks = split_scan_by_file(table, manifest, None, None, sizes).await?;
    Ok(SortTasks { by, tasks })
}

/// Writes the rows of a task's files in sorted order.
pub async fn sort_task(
    table: &Table,
    task: Arc<TableManifest>,
    by: &[u32],
    options: &TableWriteOptions,
) -> Result<SortTaskResult> {
    let (version, commit_id) = (task.version, task.commit_id.clone());
    let reader = Arc::new(SnapshotReader::new(table, task, None).await?);
    let columns = sort_columns(&reader.columns, by)?;
    let keys = SortKeys::new(&reader.columns.schema, &columns)?;
    let samples = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&samples);
    let memory_bytes = options.write_options.memory_limit_bytes / 2;
    let sort = move |input| {
        let sorted = sort_batches(input, &columns, memory_bytes)?;
        Ok(sample_batches(sorted, keys, collected))
    };
    let unsorted = TableWriteOptions {
        sort_by: Some(Vec::new()),
        ..options.clone()
    };
    let files = rewrite_rows(table, &reader, &unsorted, sort).await?;
    let sources = reader.files.iter().map(|listed| listed.file.path.clone());
    let samples = std::mem::take(&mut *lock(&samples));
    Ok(SortTaskResult {
        version,
        commit_id,
        sources: sources.collect(),
        files,
        samples,
    })
}

/// The same batches; the keys of their first rows, or of some, are added to `samples`.
fn sample_batches(
    input: BoxedReader,
    keys: SortKeys,
    samples: Arc<Mutex<Vec<Sample>>>,
) -> BoxedReader {
    let schema = input.schema();
    let batches = input.map(move |batch| {
        let batch = batch?;
        if batch.num_rows() > 0 {
            let first = keys.convert_batch(&batch.slice(0, 1))?;
            let key = first.row(0).as_ref().to_vec();
            let begin = key[..key.len().min(MAX_SAMPLE_BYTES)].to_vec();
            let mut samples = lock(&samples);
            samples.push(Sample {
                key: Base64(begin.into()),
                rows: batch.num_rows() as u64,
            });
            if samples.len() > MAX_SAMPLES {
                thin(&mut samples);
            }
        }
        Ok(batch)
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// Merges every second sample into the one before it.
fn thin(samples: &mut Vec<Sample>) {
    let pairs = samples.chunks(2).map(|pair| Sample {
        key: pair[0].key.clone(),
        rows: pair.iter().map(|sample| sample.rows).sum(),
    });
    *samples = pairs.collect();
}

/// Chooses the ranges of the second round, each with the rows of about `target_bytes` in the files of the runs.
pub fn plan_ranges(
    manifest: &TableManifest,
    by: &[u32],
    runs: Vec<SortTaskResult>,
    target_bytes: u64,
) -> Result<RangeTasks> {
    check_runs(manifest, &runs)?;
    let total =
        |value: fn(&DataFile) -> u64| runs.iter().flat_map(|run| &run.files).map(value).sum();
    let (bytes, rows): (u64, u64) = (total(|file| file.size_bytes), total(|file| file.total_rows));
    let range_count = bytes.div_ceil(target_bytes.max(1)).max(1);
    let range_rows = rows.div_ceil(range_count).max(1);
    let plan = plan_name(&runs);
    let (mut files, mut samples) = (Vec::new(), Vec::new());
    for run in runs {
        files.extend(run.files);
        samples.extend(run.samples);
    }
    for file in &mut files {
        // Rows are found by the first column alone.
        file.min.retain(|id, _| by.first() == Some(id));
        file.max.retain(|id, _| by.first() == Some(id));
        file.null_counts.retain(|id, _| by.first() == Some(id));
    }
    let bounds = choose_bounds(samples, range_rows);
    let count = bounds.len() + 1;
    let range = |number: usize| SortRange {
        place: RangePlace {
            plan: plan.clone(),
            number,
            count,
        },
        from: number.checked_sub(1).map(|before| bounds[before].clone()),
        to: bounds.get(number).cloned(),
        // More rows than its share should not leave a file of few.
        file_rows: range_rows.saturating_mul(2),
    };
    let ranges: Vec<SortRange> = (0..count).map(range).collect();
    let runs = TableManifest {
        data_files: files,
        ..without_files(manifest)
    };
    Ok(RangeTasks {
        runs: pack(&runs)?,
        ranges: ranges.iter().map(pack_message).collect::<Result<_>>()?,
    })
}

/// A path of the runs, which names their plan.
fn plan_name(runs: &[SortTaskResult]) -> String {
    let paths = runs.iter().flat_map(|run| &run.files).map(|f| &f.path);
    paths.min().cloned().unwrap_or_default()
}

/// The keys at which ranges of about `range_rows` rows end.
fn choose_bounds(mut samples: Vec<Sample>, range_rows: u64) -> Vec<Base64> {
    samples.sort_unstable_by(|a, b| a.key.0.cmp(&b.key.0));
    let mut bounds: Vec<Base64> = Vec::new();
    let mut rows = 0;
    for sample in samples {
        let is_new = bounds.last().is_none_or(|last| *last != sample.key);
        if rows >= range_rows && is_new {
            bounds.push(sample.key);
            rows = 0;
        }
        rows += sample.rows;
    }
    bounds
}

/// Writes the rows of a range of all runs in sorted order. `runs` are those of [`RangeTasks`].
pub async fn range_task(
    table: &Table,
    runs: Arc<TableManifest>,
    range: &[u8],
    by: &[u32],
    options: &TableWriteOptions,
) -> Result<WrittenRange> {
    let range: SortRange = unpack_message(range)?;
    let columns = TableColumns::from_manifest(&runs)?;
    let mut options = options.clone();
    options.write_options.rows_per_file = Some(range.file_rows.max(1));
    options.sort_by = Some(by.to_vec());
    let place = range.place.clone();
    let predicate = RangePredicate::new(&columns, by, range)?;
    let filter = Filter::from_foreign(Arc::new(predicate), &columns)?;
    let reader = SnapshotReader::new(table, runs, Some(Arc::new(filter))).await?;
    let files = rewrite_files(table, &Arc::new(reader), &options).await?;
    Ok(WrittenRange { place, files })
}

/// Commits the files of all ranges in place of the files of the version `base`, and removes the runs. The new files are
/// removed if they are not committed for certain. None if the version has no files;
/// [`ErrorKind::CommitConflict`] if others have changed its files. Messages that are not one of each task are refused, and
/// nothing is removed.
pub async fn commit_sort(
    table: &Table,
    base: Arc<TableManifest>,
    runs: Vec<SortTaskResult>,
    ranges: Vec<WrittenRange>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let reader = SnapshotReader::new(table, Arc::clone(&base), None).await;
    if let Ok(reader) = &reader {
        check_sources(reader, &runs)?;
    }
    check_runs(&base, &runs)?;
    let added = collect_ranges(&runs, ranges)?;
    let result = match reader {
        Ok(reader) if reader.files.is_empty() => Ok(None),
        Ok(reader) => {
            let commit = commit_ranges(table, base, &reader, &runs, added, options);
            in_place(commit).await
        }
        Err(e) => {
            super::discard_staged(table, &added).await;
            Err(e)
        }
    };
    for run in &runs {
        super::discard_staged(table, &run.files).await;
    }
    result
}

async fn commit_ranges(
    table: &Table,
    base: Arc<TableManifest>,
    reader: &SnapshotReader,
    runs: &[SortTaskResult],
    added: Vec<DataFile>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let count =
        |files: &mut dyn Iterator<Item = &DataFile>| files.map(|f| f.total_rows).sum::<u64>();
    let before = count(&mut runs.iter().flat_map(|run| &run.files));
    let after = count(&mut added.iter());
    if before != after {
        super::discard_staged(table, &added).await;
        let message = format!(
            "internal error: sorting {before} rows of the table {:?} wrote {after} rows; nothing was committed",
            table.root()
        );
        return Err(Error::other(message));
    }
    let group = RewrittenGroup::of_all(reader, added);
    let committed = Box::pin(commit_alone(table, "sort", base, group, options)).await?;
    if committed.is_none() {
        let message = "others have replaced all files while they were sorted";
        return Err(Error::new(ErrorKind::CommitConflict, message));
    }
    Ok(committed)
}

/// Whether the runs are of a version, and have read no file twice.
fn check_runs(manifest: &TableManifest, runs: &[SortTaskResult]) -> Result<()> {
    let is_of_version = |run: &SortTaskResult| {
        run.version == manifest.version && run.commit_id == manifest.commit_id
    };
    if !runs.iter().all(is_of_version) {
        return Err(Error::invalid("the files were sorted from another version"));
    }
    let mut seen = HashSet::new();
    let mut sources = runs.iter().flat_map(|run| &run.sources);
    if sources.all(|path| seen.insert(path)) {
        return Ok(());
    }
    Err(Error::invalid(NOT_ALL_RUNS))
}

/// Whether the runs have read each file of a version once.
fn check_sources(reader: &SnapshotReader, runs: &[SortTaskResult]) -> Result<()> {
    let mut sources: Vec<&String> = runs.iter().flat_map(|run| &run.sources).collect();
    let mut paths: Vec<&String> = reader
        .files
        .iter()
        .map(|listed| &listed.file.path)
        .collect();
    sources.sort_unstable();
    paths.sort_unstable();
    if sources == paths {
        return Ok(());
    }
    Err(Error::invalid(NOT_ALL_RUNS))
}

/// The files of all ranges of the runs' plan, in the order of the keys.
fn collect_ranges(runs: &[SortTaskResult], mut ranges: Vec<WrittenRange>) -> Result<Vec<DataFile>> {
    let plan = plan_name(runs);
    ranges.sort_by_key(|range| range.place.number);
    let count = ranges.len();
    let is_in_place = |(number, range): (usize, &WrittenRange)| {
        let place = &range.place;
        place.plan == plan && place.number == number && place.count == count
    };
    if count > 0 && ranges.iter().enumerate().all(is_in_place) {
        return Ok(ranges.into_iter().flat_map(|range| range.files).collect());
    }
    let message = "a sort needs one message of each task of its second round";
    Err(Error::invalid(message))
}
