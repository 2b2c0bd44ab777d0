//! A scan as tasks, each for a process of its own.
//!
//! A task is a manifest of the same version that lists some of its files ([`split_scan`]): who has it reads no other
//! list. The rows of all tasks, one task after the other, are those of the scan in their order.
//!
//! A file that is much larger than a task is read by several, each its share ([`FileShare`]). A list of files says how
//! long a file is and how many row groups it has, not where they are: a task finds those of its share by the footer,
//! which it reads anyway. Changes, sorts and verifications are about whole files, and so are their tasks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::DataType;

use super::format::{DataFile, FileShare, TableManifest, Tombstones};
use super::listing::keep_statistics;
use super::packed_task::pack;
use super::snapshot_file::SnapshotFile;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use super::{Predicate, Table};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::expr::Filter;
use crate::versions::CommitOperation;

/// About how many bytes a row group has at least, in a file that is listed without their number.
const MIN_UNLISTED_BYTES: u64 = 1 << 20;

/// How large tasks are. Of a file only the columns count that are read, by a share that is estimated from their types.
#[derive(Debug, Clone, Copy)]
pub struct TaskSizes {
    /// How many tasks there should be, unless their sizes would be beyond the limits.
    pub count: u64,
    /// The least bytes that a task reads. All tasks but the last have as many, unless the next file is too large.
    pub min_bytes: u64,
    /// The most bytes that a task of more than one file, or share of one, reads. A share is up to half of that larger,
    /// and has one row group at least.
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

/// Splits a scan of columns of the rows that match a predicate into tasks. Files without such rows, as far as
/// statistics tell, are left out. A table without such files has no tasks. Refuses a predicate that is not
/// deterministic, because each task evaluates it again.
pub async fn split_scan(
    table: &Table,
    manifest: Arc<TableManifest>,
    predicate: Option<&Predicate>,
    names: Option<&[String]>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let (files, share) = find_read_files(table, &manifest, predicate, names).await?;
    let groups = group_shares(&files, &share, sizes.limit(&files, &share));
    pack_file_groups(&manifest, &files, groups).await
}

/// As [`split_scan`], with tasks of whole files, for those who change files.
pub(super) async fn split_scan_by_file(
    table: &Table,
    manifest: Arc<TableManifest>,
    predicate: Option<&Predicate>,
    names: Option<&[String]>,
    sizes: TaskSizes,
) -> Result<Vec<Vec<u8>>> {
    let (files, share) = find_read_files(table, &manifest, predicate, names).await?;
    let ranges = group_by_size(&files, &share, sizes.limit(&files, &share));
    let groups = ranges.into_iter().map(|files| FileGroup {
        files,
        ..FileGroup::default()
    });
    pack_file_groups(&manifest, &files, groups.collect()).await
}

/// The files of a scan, and what is read of them.
async fn find_read_files(
    table: &Table,
    manifest: &Arc<TableManifest>,
    predicate: Option<&Predicate>,
    names: Option<&[String]>,
) -> Result<(Vec<SnapshotFile>, ReadShare)> {
    let columns = TableColumns::from_manifest(manifest)?;
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
    let files = SnapshotReader::find_files(table, Arc::clone(manifest), filter).await?;
    Ok((files, share))
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
    let groups = group_shares(files, &share, sizes.limit(files, &share));
    pack_file_groups(&manifest, files, groups).await
}

async fn pack_file_groups(
    manifest: &TableManifest,
    files: &[SnapshotFile],
    groups: Vec<FileGroup>,
) -> Result<Vec<Vec<u8>>> {
    let common = without_files(manifest);
    let targets = Targets::of(&manifest.tombstones, files);
    let mut packed = Vec::new();
    for group in groups {
        packed.push(pack(&TableManifest {
            shares: group.shares,
            ..targets.restrict(&common, &files[group.files])
        })?);
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
        .map(|group| pack(&targets.restrict(&common, &files[group])))
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
    Ok(group_by_size(files, &share, sizes.limit(files, &share)))
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
        shares: BTreeMap::new(),
        ..manifest.clone()
    }
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

/// The files of a task.
#[derive(Debug, Default)]
struct FileGroup {
    /// Their positions.
    files: Range<usize>,
    /// The shares of those that it does not read as a whole, by path. Of a file it has one share at most.
    shares: BTreeMap<String, FileShare>,
}

/// Groups neighbors of whose files, or shares of files, together not more than a limit is read.
fn group_shares(files: &[SnapshotFile], read: &ReadShare, limit: u64) -> Vec<FileGroup> {
    let (mut groups, mut group, mut group_bytes) = (Vec::new(), FileGroup::default(), 0_u64);
    for (position, listed) in files.iter().enumerate() {
        let file_bytes = read.of(listed.file.size_bytes);
        let count = count_shares(&listed.file, file_bytes, limit);
        let share_bytes = file_bytes.div_ceil(u64::from(count));
        for index in 0..count {
            // Two shares of a file are more than the limit, or a task could as well have had both as one.
            let is_full = index > 0 || group_bytes.saturating_add(share_bytes) > limit;
            if is_full && !group.files.is_empty() {
                groups.push(std::mem::take(&mut group));
                group_bytes = 0;
            }
            if group.files.is_empty() {
                group.files.start = position;
            }
            group.files.end = position + 1;
            group_bytes = group_bytes.saturating_add(share_bytes);
            if count > 1 {
                let share = FileShare { index, count };
                group.shares.insert(listed.file.path.clone(), share);
            }
        }
    }
    if !group.files.is_empty() {
        groups.push(group);
    }
    groups
}

/// How many shares a file has of which about `limit` bytes are read, of all that is read of it. A share has one row
/// group at least, as far as their number is known.
fn count_shares(file: &DataFile, read_bytes: u64, limit: u64) -> u32 {
    let count = read_bytes.saturating_add(limit / 2) / limit.max(1);
    let row_groups = match file.row_group_count {
        0 => file.size_bytes / MIN_UNLISTED_BYTES,
        listed => listed,
    };
    u32::try_from(count.min(row_groups).max(1)).unwrap_or(u32::MAX)
}

/// Groups neighbors of whose files together not more than a limit is read. Returns ranges of their positions.
fn group_by_size(files: &[SnapshotFile], share: &ReadShare, limit: u64) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut first, mut bytes) = (0, 0_u64);
    for (position, file) in files.iter().enumerate() {
        let size = share.of(file.file.size_bytes);
        if position > first && bytes.saturating_add(size) > limit {
            groups.push(first..position);
            (first, bytes) = (position, 0);
        }
        bytes = bytes.saturating_add(size);
    }
    if first < files.len() {
        groups.push(first..files.len());
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
