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

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{
    Array, BooleanArray, RecordBatch, RecordBatchIterator, RecordBatchReader, new_null_array,
};
use arrow_schema::{ArrowError, Schema};
use serde::{Deserialize, Serialize};

use super::compact::{Compaction, find_sort_columns};
use super::format::{CommitId, DataFile, TableManifest};
use super::rewrite_group::{rewrite_files, rewrite_rows};
use super::rewrite_tasks::{RewrittenGroup, commit_named};
use super::scan_tasks::{TaskSizes, pack, split_scan, without_files};
use super::snapshot_reader::SnapshotReader;
use super::values::Base64;
use super::write::TableWriteOptions;
use super::{Table, messages};
use crate::error::{Error, Result};
use crate::files::expr::{Bounds, Filter, ForeignPredicate};
use crate::files::{SortColumn, SortKeys, TableColumns, sort_batches};
use crate::sync::in_place::in_place;
use crate::versions::remove;

type BoxedReader = Box<dyn RecordBatchReader + Send>;

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
pub struct SortedRun {
    /// The version that was read.
    version: u64,
    commit_id: CommitId,
    files: Vec<DataFile>,
    samples: Vec<Sample>,
}

impl SortedRun {
    /// The files that it consists of.
    pub fn files(&self) -> &[DataFile] {
        &self.files
    }
}

/// The key of a row, and how many rows from this one on the sample stands for.
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

/// The keys from `from` on, below `to`; the first range and the last one are open.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct KeyRange {
    from: Option<Base64>,
    to: Option<Base64>,
    /// About how many rows there are.
    rows: u64,
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
    let tasks = split_scan(table, manifest, None, None, sizes).await?;
    Ok(SortTasks { by, tasks })
}

/// Writes the rows of a task's files in sorted order.
pub async fn sort_task(
    table: &Table,
    task: Arc<TableManifest>,
    by: &[u32],
    options: &TableWriteOptions,
) -> Result<SortedRun> {
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
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(SortedRun {
        version,
        commit_id,
        files,
        samples,
    })
}

/// The same batches; the key of the first row of each is added to `samples`.
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
            let key = Base64(first.row(0).as_ref().to_vec().into());
            let rows = batch.num_rows() as u64;
            let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.push(Sample { key, rows });
        }
        Ok(batch)
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// Chooses the ranges of the second round, each with the rows of about `target_bytes` in the files of the runs.
pub fn plan_ranges(
    manifest: &TableManifest,
    runs: Vec<SortedRun>,
    target_bytes: u64,
) -> Result<RangeTasks> {
    check_runs(manifest, &runs)?;
    let total =
        |value: fn(&DataFile) -> u64| runs.iter().flat_map(|run| &run.files).map(value).sum();
    let (bytes, rows): (u64, u64) = (total(|file| file.size_bytes), total(|file| file.total_rows));
    let range_count = bytes.div_ceil(target_bytes.max(1)).max(1);
    let range_rows = rows.div_ceil(range_count).max(1);
    let (mut files, mut samples) = (Vec::new(), Vec::new());
    for run in runs {
        files.extend(run.files);
        samples.extend(run.samples);
    }
    samples.sort_unstable_by(|a, b| a.key.0.cmp(&b.key.0));
    let mut ranges = Vec::new();
    let mut range = KeyRange {
        from: None,
        to: None,
        rows: 0,
    };
    for sample in samples {
        let is_new_key = range.from.as_ref().is_none_or(|from| *from != sample.key);
        if range.rows >= range_rows && is_new_key {
            range.to = Some(sample.key.clone());
            let next = KeyRange {
                from: Some(sample.key),
                to: None,
                rows: 0,
            };
            ranges.push(std::mem::replace(&mut range, next));
        }
        range.rows += sample.rows;
    }
    ranges.push(range);
    let runs = TableManifest {
        data_files: files,
        ..without_files(manifest)
    };
    Ok(RangeTasks {
        runs: pack(&runs)?,
        ranges: ranges
            .iter()
            .map(messages::pack_message)
            .collect::<Result<_>>()?,
    })
}

/// Writes the rows of a range of all runs in sorted order. `runs` are those of [`RangeTasks`].
pub async fn range_task(
    table: &Table,
    runs: Arc<TableManifest>,
    range: &[u8],
    by: &[u32],
    options: &TableWriteOptions,
) -> Result<RewrittenGroup> {
    let range: KeyRange = messages::unpack_message(range)?;
    let columns = TableColumns::from_manifest(&runs)?;
    let mut options = options.clone();
    // A range may have more rows than its share, and should not leave a file of few rows for that.
    options.write_options.rows_per_file = Some(range.rows.saturating_mul(2).max(1));
    options.sort_by = Some(by.to_vec());
    let (version, commit_id) = (runs.version, runs.commit_id.clone());
    let predicate = RangePredicate::new(&columns, by, range)?;
    let filter = Filter::from_foreign(Arc::new(predicate), &columns)?;
    let reader = SnapshotReader::new(table, runs, Some(Arc::new(filter))).await?;
    let added = rewrite_files(table, &Arc::new(reader), &options).await?;
    Ok(RewrittenGroup::new(version, commit_id, added))
}

/// Commits the files of all ranges, in the order of the keys, in place of the files of the version `base`, and removes
/// the runs. The new files are removed if they are not committed for certain. None if the version has no files.
pub async fn commit_sort(
    table: &Table,
    base: Arc<TableManifest>,
    runs: Vec<SortedRun>,
    ranges: Vec<RewrittenGroup>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let run_files: Vec<DataFile> = runs.iter().flat_map(|run| run.files.clone()).collect();
    let added: Vec<DataFile> = ranges
        .into_iter()
        .flat_map(RewrittenGroup::into_added)
        .collect();
    let result = in_place(commit_ranges(table, base, &runs, added, options)).await;
    super::discard_staged(table, &run_files).await;
    result
}

async fn commit_ranges(
    table: &Table,
    base: Arc<TableManifest>,
    runs: &[SortedRun],
    added: Vec<DataFile>,
    options: &TableWriteOptions,
) -> Result<Option<Compaction>> {
    let paths: Vec<String> = added.iter().map(|file| file.path.clone()).collect();
    let count =
        |files: &mut dyn Iterator<Item = &DataFile>| files.map(|f| f.total_rows).sum::<u64>();
    let before = count(&mut runs.iter().flat_map(|run| &run.files));
    let after = count(&mut added.iter());
    let checked = check_runs(&base, runs).and_then(|()| {
        if before == after {
            return Ok(());
        }
        let message = format!(
            "internal error: sorting {before} rows of the table {:?} wrote {after} rows; nothing was committed",
            table.root()
        );
        Err(Error::other(message))
    });
    if let Err(e) = checked {
        remove(table, &paths).await;
        return Err(e);
    }
    let reader = SnapshotReader::new(table, Arc::clone(&base), None).await;
    let group = match reader {
        Ok(reader) => RewrittenGroup::of_all(&reader, added),
        Err(e) => {
            remove(table, &paths).await;
            return Err(e);
        }
    };
    commit_named(table, "sort", base, vec![group], options).await
}

/// Whether the runs are of a version.
fn check_runs(manifest: &TableManifest, runs: &[SortedRun]) -> Result<()> {
    let is_of_version =
        |run: &SortedRun| run.version == manifest.version && run.commit_id == manifest.commit_id;
    if runs.iter().all(is_of_version) {
        return Ok(());
    }
    Err(Error::invalid("the files were sorted from another version"))
}

fn sort_columns(columns: &TableColumns, by: &[u32]) -> Result<Vec<SortColumn>> {
    let find = |id: &u32| {
        let index = columns.ids.iter().position(|own| own == id);
        let missing = || Error::invalid(format!("there is no column with the id {id}"));
        index.map(SortColumn::ascending).ok_or_else(missing)
    };
    by.iter().map(find).collect()
}

/// The rows of a range of keys.
#[derive(Debug)]
struct RangePredicate {
    /// The columns to sort by.
    names: Vec<String>,
    by: Vec<SortColumn>,
    schema: Schema,
    range: KeyRange,
}

impl RangePredicate {
    fn new(columns: &TableColumns, by: &[u32], range: KeyRange) -> Result<Self> {
        let table_columns = sort_columns(columns, by)?;
        let indices: Vec<usize> = table_columns.iter().map(|column| column.index).collect();
        let schema = columns.schema.project(&indices);
        let schema = schema.map_err(|e| Error::other(e.to_string()).with_source(e))?;
        Ok(Self {
            names: schema.fields().iter().map(|f| f.name().clone()).collect(),
            by: (0..indices.len()).map(SortColumn::ascending).collect(),
            schema,
            range,
        })
    }

    fn contains(&self, key: &[u8]) -> bool {
        let is_below = |bound: &Option<Base64>| bound.as_ref().is_some_and(|bound| key < &*bound.0);
        !is_below(&self.range.from) && (self.range.to.is_none() || is_below(&self.range.to))
    }

    /// Whether keys that begin with something from `min` to `max` may be in the range.
    fn overlaps(&self, min: &[u8], max: &[u8]) -> bool {
        let begins = self.range.from.as_ref();
        let ends = self.range.to.as_ref();
        begins.is_none_or(|from| max >= &*from.0 || from.0.starts_with(max))
            && ends.is_none_or(|to| min < &*to.0)
    }
}

impl ForeignPredicate for RangePredicate {
    fn text(&self) -> &'static str {
        "a range of a sort"
    }

    fn columns(&self) -> &[String] {
        &self.names
    }

    fn holds(&self, rows: &RecordBatch) -> Result<BooleanArray> {
        let by_name: std::result::Result<Vec<_>, ArrowError> = self
            .names
            .iter()
            .map(|name| rows.schema().index_of(name))
            .collect();
        let batch = by_name.and_then(|indices| rows.project(&indices));
        let keys = SortKeys::new(&self.schema, &self.by)?;
        let keys = batch.and_then(|batch| keys.convert_batch(&batch));
        let keys = keys.map_err(|e| Error::other(e.to_string()).with_source(e))?;
        let inside: Vec<bool> = keys.iter().map(|key| self.contains(key.as_ref())).collect();
        Ok(inside.into())
    }

    fn may_hold(&self, bounds: &Bounds) -> Result<Vec<bool>> {
        let field = self.schema.field(0);
        let count = bounds.row_counts.num_rows();
        // Statistics know nothing of NaN.
        if field.data_type().is_floating() {
            return Ok(vec![true; count]);
        }
        let name = field.name();
        let (Some(min), Some(max)) = (
            bounds.min.column_by_name(name),
            bounds.max.column_by_name(name),
        ) else {
            return Ok(vec![true; count]);
        };
        let keys = SortKeys::new(&self.schema, &self.by[..1])?;
        let encode = |array| {
            let rows = keys.convert_columns(&[array]);
            rows.map_err(|e| Error::other(e.to_string()).with_source(e))
        };
        let null = encode(new_null_array(field.data_type(), 1))?;
        let (mins, maxes) = (encode(Arc::clone(min))?, encode(Arc::clone(max))?);
        let takes_nulls = self.overlaps(null.row(0).as_ref(), null.row(0).as_ref());
        let null_counts = bounds.null_counts.column_by_name(name);
        let null_counts = null_counts.map(|counts| counts.as_primitive::<UInt64Type>());
        let may_have_null =
            |at| null_counts.is_none_or(|counts| counts.is_null(at) || counts.value(at) > 0);
        let may_hold = (0..count).map(|at| {
            (takes_nulls && may_have_null(at))
                || min.is_null(at)
                || max.is_null(at)
                || self.overlaps(mins.row(at).as_ref(), maxes.row(at).as_ref())
        });
        Ok(may_hold.collect())
    }
}
