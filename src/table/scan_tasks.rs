//! A scan as tasks, each for a process of its own.
//!
//! A task is a manifest of the same version that lists some of its files ([`split_scan`]): who has it reads no other
//! list. The rows of all tasks, one task after the other, are those of the scan in their order.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::DataType;
use serde::Deserialize;

use super::format::{TableManifest, Tombstones};
use super::listing::keep_statistics;
use super::snapshot_file::SnapshotFile;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use super::{Predicate, Table, Versioned};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::expr::Filter;
use crate::versions::CommitOperation;

/// The most bytes of the manifest of a task.
const MAX_TASK_BYTES: u64 = 256 << 20;
const ZSTD_LEVEL: i32 = 3;

/// How large tasks are. Of a file only the columns count that are read, by a share that is estimated from their types.
#[derive(Debug, Clone, Copy)]
pub struct TaskSizes {
    /// How many tasks there should be, unless their sizes would be beyond the limits.
    pub count: u64,
    /// The least bytes that a task reads. All tasks but the last have as many, unless the next file is too large.
    pub min_bytes: u64,
    /// The most bytes that a task of more than one file reads.
    pub max_bytes: u64,
}

impl TaskSizes {
    /// The most bytes that a task of more than one of `files` reads.
    fn limit(self, files: &[SnapshotFile], share: &ReadShare) -> u64 {
        let read = files.iter().map(|f| share.of(f.file.size_bytes));
        let limit = read.fold(0, u64::saturating_add) / self.count.max(1);
        limit.max(self.min_bytes).min(self.max_bytes)
    }
}

/// Splits a scan of columns of the rows that match a predicate into tasks. Files without such rows, as far as statistics
/// tell, are left out. A table without such files has no tasks. Refuses a predicate that is not deterministic, because each task
/// evaluates it again. A task is a manifest as JSON, compressed with zstd.
pub async fn split_scan(
    table: &Table,
    manifest: Arc<TableManifest>,
    predicate: Option<&Predicate>,
    names: Option<&[String]>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let columns = TableColumns::from_manifest(&manifest)?;
    let filter = match predicate {
        None => None,
        Some(predicate) => {
            predicate.check_deterministic(&columns)?;
            Some(Arc::new(
                predicate.bind(&columns, &**table.store().clock())?,
            ))
        }
    };
    let share = ReadShare::new(&columns, names, filter.as_deref())?;
    let files = SnapshotReader::find_files(table, Arc::clone(&manifest), filter).await?;
    pack_scan(&manifest, &files, &share, sizes).await
}

/// As [`split_scan`] of all rows, but only of the files at some positions in the order of the scan: of a version these
/// are always the same. Positions beyond the last file are left out.
pub async fn split_scan_of_files(
    table: &Table,
    manifest: Arc<TableManifest>,
    names: Option<&[String]>,
    positions: Range<usize>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let columns = TableColumns::from_manifest(&manifest)?;
    let share = ReadShare::new(&columns, names, None)?;
    let files = SnapshotReader::find_files(table, Arc::clone(&manifest), None).await?;
    let end = positions.end.min(files.len());
    let files = &files[positions.start.min(end)..end];
    pack_scan(&manifest, files, &share, sizes).await
}

async fn pack_scan(
    manifest: &TableManifest,
    files: &[SnapshotFile],
    share: &ReadShare,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let limit = sizes.limit(files, share);
    let common = without_files(manifest);
    let targets = Targets::of(&manifest.tombstones, files);
    let mut packed = Vec::new();
    for files in group_by_size(files, share, limit) {
        packed.push(pack(&targets.restrict(&common, files))?);
        // So that a call that is cancelled ends between two of many.
        tokio::task::yield_now().await;
    }
    Ok(packed)
}

/// As [`split_scan`] of all rows, with tasks that keep the statistics of files.
pub(super) async fn split_files(
    table: &Table,
    manifest: Arc<TableManifest>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let columns = TableColumns::from_manifest(&manifest)?;
    let share = ReadShare::new(&columns, None, None)?;
    let files = SnapshotReader::find_files(table, Arc::clone(&manifest), None).await?;
    let common = without_files(&manifest);
    let targets = Targets {
        statistics_of: None,
        ..Targets::of(&manifest.tombstones, &files)
    };
    let groups = group_by_size(&files, &share, sizes.limit(&files, &share)).into_iter();
    groups
        .map(|files| pack(&targets.restrict(&common, files)))
        .collect()
}

/// Tasks of groups of files, given as positions in `files`, which are all of the version.
pub(super) fn pack_groups(
    manifest: &TableManifest,
    files: &[SnapshotFile],
    groups: &[Vec<usize>],
) -> Result<Vec<Vec<u8>>> {
    let common = without_files(manifest);
    let targets = Targets::of(&manifest.tombstones, files);
    let task = |group: &Vec<usize>| {
        let files: Vec<SnapshotFile> = group.iter().map(|file| files[*file].clone()).collect();
        pack(&targets.restrict(&common, &files))
    };
    groups.iter().map(task).collect()
}

/// Ranges of files, each for a task that reads columns of them.
pub(super) fn group_files(
    columns: &TableColumns,
    files: &[SnapshotFile],
    names: Option<&[String]>,
    sizes: TaskSizes,
) -> Result<Vec<Range<usize>>> {
    let share = ReadShare::new(columns, names, None)?;
    let limit = sizes.limit(files, &share);
    let mut end = 0;
    let groups = group_by_size(files, &share, limit)
        .into_iter()
        .map(|group| {
            let start = end;
            end += group.len();
            start..end
        });
    Ok(groups.collect())
}

/// Tasks of ranges of files, with the statistics that these have of some columns.
pub(super) fn pack_ranges(
    manifest: &TableManifest,
    files: &[SnapshotFile],
    ranges: &[Range<usize>],
    statistics_of: HashSet<u32>,
) -> Result<Vec<Vec<u8>>> {
    let common = without_files(manifest);
    let targets = Targets {
        statistics_of: Some(statistics_of),
        ..Targets::of(&manifest.tombstones, files)
    };
    let ranges = ranges.iter().cloned();
    ranges
        .map(|range| pack(&targets.restrict(&common, &files[range])))
        .collect()
}

/// The manifest of a version with the columns of another one, as which its rows are then read. Refused if a column was
/// widened after the other version.
pub fn with_columns_of(manifest: &TableManifest, other: &TableManifest) -> Result<TableManifest> {
    let own_columns = || manifest.schema.columns.iter();
    for column in &other.schema.columns {
        let own = own_columns().find(|own| own.id == column.id);
        let is_wider = own.is_some_and(|own| own.data_type != column.data_type);
        if is_wider && manifest.version > other.version {
            let message = format!(
                "the type of column {:?} is another one since version {}: open the table again",
                column.name, other.version
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(TableManifest {
        schema: other.schema.clone(),
        arrow_schema: other.arrow_schema.clone(),
        ..manifest.clone()
    })
}

/// A manifest of the same version and commit with its columns and nothing else.
pub(super) fn without_files(manifest: &TableManifest) -> TableManifest {
    TableManifest {
        // Its details are long, and may be nobody's business: the filter of a delete.
        operation: CommitOperation::new(&manifest.operation.name, []),
        segments: Vec::new(),
        data_files: Vec::new(),
        tombstones: Vec::new(),
        recent_commits: manifest.recent_commits.iter().take(1).cloned().collect(),
        transactions: BTreeMap::new(),
        older_transactions: Vec::new(),
        tags: BTreeMap::new(),
        exports: BTreeSet::new(),
        ..manifest.clone()
    }
}

pub(super) fn pack(task: &TableManifest) -> Result<Vec<u8>> {
    let json = task.to_bytes();
    if json.len() as u64 > MAX_TASK_BYTES {
        let message = format!(
            "a task lists {} files, more than a task can; split the scan into more",
            task.data_files.len()
        );
        return Err(Error::invalid(message));
    }
    let packed = zstd::bulk::compress(&json, ZSTD_LEVEL);
    let mut packed = packed.map_err(|e| Error::other("a task cannot be packed").with_source(e))?;
    packed.shrink_to_fit();
    Ok(packed)
}

/// The manifest of a task. [`crate::ErrorKind::InvalidInput`] for bytes that are none.
pub fn parse_task(task: &[u8]) -> Result<TableManifest> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Error::invalid(format!("these bytes are not a scan task: {reason}"))
    };
    let mut json = Vec::new();
    let decoder = zstd::Decoder::new(task).map_err(|e| invalid(&e))?;
    let mut decoder = decoder.take(MAX_TASK_BYTES);
    decoder.read_to_end(&mut json).map_err(|e| invalid(&e))?;
    let version: TaskVersion = serde_json::from_slice(&json).map_err(|e| invalid(&e))?;
    TableManifest::parse(&json, version.version).map_err(|e| invalid(&e.message()))
}

#[derive(Deserialize)]
struct TaskVersion {
    version: u64,
}

/// The width of the columns that a scan reads, and that of all.
struct ReadShare {
    read: u64,
    all: u64,
}

impl ReadShare {
    fn new(
        columns: &TableColumns,
        names: Option<&[String]>,
        filter: Option<&Filter>,
    ) -> Result<Self> {
        let fields = columns.schema.fields();
        let width = |index: usize| estimate_width(fields[index].data_type());
        let mut read: BTreeSet<usize> = columns.project(names)?.into_iter().collect();
        read.extend(filter.iter().flat_map(|filter| filter.columns()));
        Ok(Self {
            read: read.into_iter().map(width).sum(),
            all: (0..fields.len()).map(width).sum(),
        })
    }

    /// How many bytes of a file are read.
    fn of(&self, size_bytes: u64) -> u64 {
        let read = u128::from(size_bytes) * u128::from(self.read) / u128::from(self.all.max(1));
        u64::try_from(read).unwrap_or(size_bytes)
    }
}

/// The bytes of a value in a file, about.
fn estimate_width(data_type: &DataType) -> u64 {
    const OF_TEXT: u64 = 12;
    match data_type {
        DataType::Struct(fields) => fields.iter().map(|f| estimate_width(f.data_type())).sum(),
        DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
            estimate_width(item.data_type()) * 4
        }
        DataType::FixedSizeList(item, length) => {
            estimate_width(item.data_type()) * u64::try_from(*length).unwrap_or(1)
        }
        DataType::FixedSizeBinary(width) => u64::try_from(*width).unwrap_or(OF_TEXT),
        _ => data_type
            .primitive_width()
            .map_or(OF_TEXT, |width| width as u64),
    }
}

/// Groups neighbors of whose files together not more than a limit is read.
fn group_by_size<'a>(
    files: &'a [SnapshotFile],
    share: &ReadShare,
    limit: u64,
) -> Vec<&'a [SnapshotFile]> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0_u64);
    for (position, file) in files.iter().enumerate() {
        let size = share.of(file.file.size_bytes);
        if position > first && bytes.saturating_add(size) > limit {
            groups.push(&files[first..position]);
            (first, bytes) = (position, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    if first < files.len() {
        groups.push(&files[first..]);
    }
    groups
}

/// The tombstone files that are about each of some files.
struct Targets<'a> {
    tombstones: &'a [Tombstones],
    /// Positions among the tombstone files, by the path of the file.
    by_path: HashMap<&'a str, Vec<usize>>,
    /// The columns of which tasks have the statistics of their files; None for all. A scan needs none in its tasks: it
    /// has left out by them what it can.
    statistics_of: Option<HashSet<u32>>,
}

impl<'a> Targets<'a> {
    fn of(tombstones: &'a [Tombstones], files: &'a [SnapshotFile]) -> Self {
        let index = FileIndex::of_files(files);
        let mut by_path: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, entry) in tombstones.iter().enumerate() {
            for path in index.targets_of(entry) {
                by_path.entry(path).or_default().push(position);
            }
        }
        Self {
            tombstones,
            by_path,
            statistics_of: Some(HashSet::new()),
        }
    }

    /// The manifest of a task: its files, and the tombstones that are about them.
    fn restrict(&self, common: &TableManifest, files: &[SnapshotFile]) -> TableManifest {
        let mut paths: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for path in files.iter().map(|listed| listed.file.path.as_str()) {
            for position in self.by_path.get(path).into_iter().flatten() {
                paths.entry(*position).or_default().push(path.to_owned());
            }
        }
        let tombstones = paths.into_iter().map(|(position, files)| Tombstones {
            files,
            positions: BTreeMap::new(),
            ..self.tombstones[position].clone()
        });
        let data_files = files.iter().map(|listed| {
            let mut file = listed.file.clone();
            if let Some(columns) = &self.statistics_of {
                keep_statistics(&mut file, columns);
            }
            file
        });
        TableManifest {
            data_files: data_files.collect(),
            tombstones: tombstones.collect(),
            ..common.clone()
        }
    }
}
