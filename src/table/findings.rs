//! What a plan found in data files, kept for the next plan of the same operation.
//!
//! A data file never changes, so what was found in it depends on three things only: the filter, the
//! table's columns, and which of its rows are deleted. The filter is the operation's and stays. A finding is
//! used again if
//!
//! - no version was restored, and no file added in place, since the last plan ([`Basis`]): either can bring
//!   deleted rows, or another file under the same path;
//! - the columns are the same: a filter is bound to them;
//! - every deletion that was known then is known now ([`Deletions::includes`]). More deleted rows are taken
//!   out of the finding. It compares content and not the paths of tombstones, which a merge of them changes.
//!
//! Otherwise the file is read again. Which files may match is decided by the bounds in every snapshot: a file that
//! is excluded is not read.

use std::collections::{BTreeMap, HashMap};

use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

use super::format::{ColumnSchema, EncodedSchema, PositionBitmap, TableManifest};
use super::row_group::RowGroupScan;
use super::snapshot_file::{FileRef, SnapshotFile};
use super::snapshot_reader::SnapshotReader;
use super::tombstone::{Deletions, TombstoneLine, TombstoneScope};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::progress;

/// The maximum number of files that are scanned concurrently.
pub(super) const CONCURRENT_FILES: usize = 4;
/// The maximum number of row groups of a file that are scanned concurrently.
pub(super) const CONCURRENT_GROUPS: usize = 2;

/// What of a snapshot findings depend on.
#[derive(Debug)]
pub(super) struct Basis {
    version: u64,
    arrow_schema: EncodedSchema,
    columns: Vec<ColumnSchema>,
    key: Vec<u32>,
}

impl Basis {
    pub(super) fn new(manifest: &TableManifest) -> Self {
        Self {
            version: manifest.version,
            arrow_schema: manifest.arrow_schema.clone(),
            columns: manifest.schema.columns.clone(),
            key: manifest.key.clone(),
        }
    }

    /// Whether what was found in the earlier snapshot may be used in a later one.
    pub(super) fn holds_in(&self, manifest: &TableManifest) -> bool {
        !manifest.was_restored_since(self.version) && self.has_columns_of(manifest)
    }

    /// Whether a later snapshot has the same columns.
    pub(super) fn has_columns_of(&self, manifest: &TableManifest) -> bool {
        self.arrow_schema == manifest.arrow_schema
            && self.columns == manifest.schema.columns
            && self.key == manifest.key
    }
}

/// The rows to delete from a snapshot.
#[derive(Debug, Default)]
pub(super) struct DeletePlan {
    pub(super) lines: Vec<TombstoneLine>,
    /// The files that the lines are about.
    pub(super) scanned_files: Vec<FileRef>,
    /// The files of which all remaining rows are deleted.
    pub(super) removed: Vec<FileRef>,
    /// The number of rows to delete; None if they are not counted.
    pub(super) rows: Option<u64>,
}

impl DeletePlan {
    /// Whether no row is to be deleted.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.removed.is_empty()
    }

    /// Adds the plan of other files.
    pub(super) fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.scanned_files.extend(other.scanned_files);
        self.removed.extend(other.removed);
        self.rows = self.rows.zip(other.rows).map(|(a, b)| a + b);
    }
}

/// What was made for a snapshot's columns, and is used as long as they are the same.
#[derive(Debug)]
pub(super) struct Bound<T>(Option<(Basis, T)>);

impl<T: Clone> Bound<T> {
    /// Nothing is made yet.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// What was made for the columns of a snapshot.
    pub(super) fn new(manifest: &TableManifest, value: T) -> Self {
        Self(Some((Basis::new(manifest), value)))
    }

    /// Returns what was made for these columns; else makes it. Fails with [`ErrorKind::CommitConflict`] if it cannot be
    /// made for these columns, and could for earlier ones.
    pub(super) fn get(
        &mut self,
        manifest: &TableManifest,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match &self.0 {
            Some((basis, value)) if basis.has_columns_of(manifest) => Ok(value.clone()),
            _ => {
                let value = make().map_err(|e| match &self.0 {
                    Some(_) if e.kind() == ErrorKind::InvalidInput => changed_columns_error(e),
                    _ => e,
                })?;
                *self = Self::new(manifest, value.clone());
                Ok(value)
            }
        }
    }
}

/// The error of an operation that fitted the columns of the table until a concurrent commit changed them.
fn changed_columns_error(error: Error) -> Error {
    let reason = error.message();
    let message = format!(
        "a concurrent commit changed a column that this write is about; write again ({reason})"
    );
    Error::new(ErrorKind::CommitConflict, message).with_source(error)
}

/// The rows of a row group that are to be deleted.
#[derive(Debug)]
pub(super) struct MatchedRows {
    pub(super) row_group: RowGroupScan,
    /// Row numbers within the row group, from 0.
    pub(super) rows: RoaringBitmap,
    /// The number of rows of the row group that are not deleted.
    pub(super) live_rows: u64,
}

impl MatchedRows {
    /// Whether the rows are all remaining rows of the row group.
    fn covers_group(&self) -> bool {
        self.rows.len() == self.live_rows
    }
}

/// The rows of a file that are to be deleted.
#[derive(Debug, Clone)]
pub(super) struct FileMatches {
    /// The deletions that were known.
    deletions: Deletions,
    /// By row group the rows, and whether they are all remaining ones.
    groups: Vec<(u32, RoaringBitmap, bool)>,
    /// The rows are all remaining rows of the file.
    covers_file: bool,
    /// The number of rows of the file that were not deleted, if all its row groups were scanned.
    live_rows: Option<u64>,
}

impl FileMatches {
    /// What was found in the scanned row groups of a file.
    pub(super) fn new(deletions: Option<&Deletions>, matches: Vec<MatchedRows>) -> Self {
        let is_whole = matches.first().is_some_and(|first| {
            let groups = matches.len() + first.row_group.num_deleted_row_groups();
            groups == first.row_group.num_file_row_groups()
        });
        let covers_file = is_whole && matches.iter().all(MatchedRows::covers_group);
        let live_rows = is_whole.then(|| matches.iter().map(|m| m.live_rows).sum());
        let group_number = |group_match: &MatchedRows| {
            u32::try_from(group_match.row_group.group).unwrap_or(u32::MAX)
        };
        let groups = matches
            .into_iter()
            .map(|m| (group_number(&m), m.covers_group(), m.rows))
            .filter(|(_, _, rows)| !rows.is_empty())
            .map(|(group, covers_group, rows)| (group, rows, covers_group));
        Self {
            deletions: deletions.cloned().unwrap_or_default(),
            groups: groups.collect(),
            covers_file,
            live_rows,
        }
    }

    /// Whether the file was read when exactly these rows were deleted.
    pub(super) fn is_of(&self, deletions: &Deletions) -> bool {
        self.deletions.includes(deletions) && deletions.includes(&self.deletions)
    }

    /// What was found, without rows that were deleted since; None if the file is to be read again.
    fn without(&self, deletions: &Deletions) -> Option<Self> {
        if !deletions.includes(&self.deletions) {
            return None;
        }
        let remaining = |(group, rows, covers_group): &(u32, RoaringBitmap, bool)| {
            if deletions.groups.contains(group) {
                return None;
            }
            let rows = match deletions.rows.get(group) {
                Some(deleted) => rows - deleted,
                None => rows.clone(),
            };
            (!rows.is_empty()).then_some((*group, rows, *covers_group))
        };
        Some(Self {
            deletions: deletions.clone(),
            groups: self.groups.iter().filter_map(remaining).collect(),
            covers_file: self.covers_file,
            live_rows: None,
        })
    }

    /// The rows, for another process.
    pub(super) fn into_rows(self, path: String) -> FileRows {
        let groups = self.groups.into_iter();
        FileRows {
            path,
            groups: groups
                .map(|(group, rows, covers_group)| (group, (PositionBitmap(rows), covers_group)))
                .collect(),
            covers_file: self.covers_file,
            live_rows: self.live_rows,
        }
    }

    /// Plans the delete of these rows.
    pub(super) fn to_plan(&self, file: &SnapshotFile) -> DeletePlan {
        let groups = self
            .groups
            .iter()
            .map(|(group, rows, covers_group)| (*group, rows, *covers_group));
        plan_file(file, groups, self.covers_file)
    }
}

/// Plans the delete of rows of a file: row groups with rows, and whether these are all remaining ones.
fn plan_file<'a>(
    file: &SnapshotFile,
    groups: impl Iterator<Item = (u32, &'a RoaringBitmap, bool)> + Clone,
    covers_file: bool,
) -> DeletePlan {
    let mut plan = DeletePlan {
        rows: Some(groups.clone().map(|(_, rows, _)| rows.len()).sum()),
        ..DeletePlan::default()
    };
    if covers_file {
        plan.removed.push(file.to_file_ref());
        return plan;
    }
    let to_line = |(group, rows, covers_group): (u32, &RoaringBitmap, bool)| TombstoneLine {
        file: file.file.path.clone(),
        deleted: if covers_group {
            TombstoneScope::RowGroup(group)
        } else {
            TombstoneScope::Rows(group, rows.clone())
        },
    };
    plan.lines = groups.map(to_line).collect();
    if !plan.lines.is_empty() {
        plan.scanned_files.push(file.to_file_ref());
    }
    plan
}

/// The rows of a file that are to be deleted, as a process found them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FileRows {
    pub(super) path: String,
    /// By row group the rows, and whether they are all remaining ones.
    groups: BTreeMap<u32, (PositionBitmap, bool)>,
    /// The rows are all remaining rows of the file.
    covers_file: bool,
    /// The number of rows of the file that were not deleted, if all its row groups were scanned.
    live_rows: Option<u64>,
}

impl FileRows {
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.covers_file
    }

    /// Adds rows of the same file and snapshot. False if a row is already there.
    pub(super) fn add(&mut self, other: Self) -> bool {
        let mut are_new = true;
        for (group, (rows, covers_group)) in other.groups {
            let (known, is_covered) = self.groups.entry(group).or_default();
            are_new &= known.0.is_disjoint(&rows.0);
            known.0 |= rows.0;
            *is_covered |= covers_group;
        }
        self.live_rows = self.live_rows.or(other.live_rows);
        let rows = self.groups.values().map(|(rows, _)| rows.0.len()).sum();
        self.covers_file |= other.covers_file || self.live_rows == Some(rows);
        are_new
    }

    /// Plans the delete of these rows.
    pub(super) fn to_plan(&self, file: &SnapshotFile) -> DeletePlan {
        let groups = self
            .groups
            .iter()
            .map(|(group, (rows, covers_group))| (*group, &rows.0, *covers_group));
        plan_file(file, groups, self.covers_file)
    }
}

/// Finds the rows that match the reader's filter, of files that have some.
pub(super) async fn find_rows(reader: &SnapshotReader) -> Result<Vec<FileRows>> {
    // A Vec, because the future of the iterator itself would not be Send.
    let scans: Vec<_> = (0..reader.files.len())
        .map(|file| match_file(reader, file))
        .collect();
    let matches: Vec<FileMatches> = stream::iter(scans)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    let paths = reader.files.iter().map(|listed| listed.file.path.clone());
    let rows = paths.zip(matches).map(|(path, m)| m.into_rows(path));
    Ok(rows.filter(|rows| !rows.is_empty()).collect())
}

/// Finds the rows of snapshots that match a filter.
#[derive(Debug, Default)]
pub(super) struct RowFinder {
    basis: Option<Basis>,
    files: HashMap<String, FileMatches>,
}

impl RowFinder {
    /// Plans the delete of all rows that match the reader's filter, which must be the same for all snapshots
    /// with the same columns. Reads only files that it does not know.
    pub(super) async fn plan(&mut self, reader: &SnapshotReader) -> Result<DeletePlan> {
        let manifest = &reader.manifest;
        if !self.basis.as_ref().is_some_and(|b| b.holds_in(manifest)) {
            self.files.clear();
        }
        // Now, so that what is found before an error is kept.
        self.basis = Some(Basis::new(manifest));
        let is_unknown = |file: &usize| self.find(reader, *file).is_none();
        let unknown: Vec<usize> = (0..reader.files.len()).filter(is_unknown).collect();
        // A Vec, because the future of the iterator itself would not be Send.
        let scans: Vec<_> = unknown
            .iter()
            .map(|file| match_file(reader, *file))
            .collect();
        let mut scanned = stream::iter(scans).buffered(CONCURRENT_FILES);
        let progress = progress::current();
        if let Some(progress) = &progress {
            progress.expect_files(unknown.len() as u64);
        }
        for file in &unknown {
            if let Some(matches) = scanned.try_next().await? {
                let path = reader.files[*file].file.path.clone();
                self.files.insert(path, matches);
                if let Some(progress) = &progress {
                    progress.add_files(1);
                }
            }
        }
        let mut plan = DeletePlan {
            rows: Some(0),
            ..DeletePlan::default()
        };
        for (file, listed) in reader.files.iter().enumerate() {
            if let Some(matches) = self.find(reader, file) {
                plan.add(matches.to_plan(listed));
            }
        }
        Ok(plan)
    }

    /// What is known of a file of the reader.
    fn find(&self, reader: &SnapshotReader, file: usize) -> Option<FileMatches> {
        let known = self.files.get(&reader.files[file].file.path)?;
        let none = Deletions::default();
        known.without(reader.deletions_of(file).unwrap_or(&none))
    }
}

async fn match_file(reader: &SnapshotReader, file: usize) -> Result<FileMatches> {
    let row_groups = reader.open_row_groups(file).await?;
    let scans = row_groups.iter().map(|row_group| async move {
        let selection = reader.select(row_group).await?;
        let rows = match &selection.mask {
            Some(mask) => mask.values().set_indices_u32().collect::<RoaringBitmap>(),
            None => (0..).take(row_group.num_rows()).collect(),
        };
        Ok::<_, Error>(MatchedRows {
            row_group: row_group.clone(),
            rows,
            live_rows: selection.live_rows as u64,
        })
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = scans.collect();
    let matches: Vec<MatchedRows> = stream::iter(tasks)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    Ok(FileMatches::new(reader.deletions_of(file), matches))
}
