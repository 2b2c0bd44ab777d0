//! The rows of a data file that are to be deleted: as they were found, as another process reports them, as a plan.
//!
//! What is found ([`FileMatches`]) is right as long as the deletions of the file that were known then are known.
//! [`FileRows`] is the same without these, in the message of a task, and adds up what several tasks have found. A file
//! of which all remaining rows are deleted leaves the table, so it counts what was scanned.

use std::collections::BTreeMap;

use roaring::RoaringBitmap;
use serde::{Deserialize, Serialize};

use super::format::PositionBitmap;
use super::snapshot_file::{FileRef, SnapshotFile};
use super::tombstone::{Deletions, TombstoneLine, TombstoneScope};
use crate::files::RowGroupScan;

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
    scanned: ScannedGroups,
}

/// What was scanned of a file.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct ScannedGroups {
    /// The number of row groups that were scanned.
    groups: usize,
    /// The number of row groups of the file of which some rows are not deleted; 0 where it is not known.
    all_groups: usize,
    /// The number of rows of the scanned row groups that were not deleted.
    live_rows: u64,
}

impl ScannedGroups {
    fn new(matches: &[MatchedRows]) -> Self {
        let all_groups = matches.first().map_or(0, |first| {
            first.row_group.num_file_row_groups() - first.row_group.num_deleted_row_groups()
        });
        Self {
            groups: matches.len(),
            all_groups,
            live_rows: matches.iter().map(|m| m.live_rows).sum(),
        }
    }

    /// Whether these are all row groups of the file.
    fn is_whole(self) -> bool {
        self.all_groups > 0 && self.groups == self.all_groups
    }

    /// The number of rows of the file that were not deleted, if all its row groups were scanned.
    fn file_rows(self) -> Option<u64> {
        self.is_whole().then_some(self.live_rows)
    }

    /// Adds other row groups of the file.
    fn add(&mut self, other: Self) {
        self.groups += other.groups;
        self.all_groups = self.all_groups.max(other.all_groups);
        self.live_rows += other.live_rows;
    }
}

impl FileMatches {
    /// What was found in the scanned row groups of a file.
    pub(super) fn new(deletions: Option<&Deletions>, matches: Vec<MatchedRows>) -> Self {
        let scanned = ScannedGroups::new(&matches);
        let covers_file = scanned.is_whole() && matches.iter().all(MatchedRows::covers_group);
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
            scanned,
        }
    }

    /// What another process found in a file, beside the deletions that it knew.
    pub(super) fn from_rows(deletions: Option<&Deletions>, rows: FileRows) -> Self {
        let groups = rows.groups.into_iter();
        Self {
            deletions: deletions.cloned().unwrap_or_default(),
            groups: groups
                .map(|(group, (rows, covers_group))| (group, rows.0, covers_group))
                .collect(),
            covers_file: rows.covers_file,
            scanned: rows.scanned,
        }
    }

    /// Whether the file was read when exactly these rows were deleted.
    pub(super) fn is_of(&self, deletions: &Deletions) -> bool {
        self.deletions.includes(deletions) && deletions.includes(&self.deletions)
    }

    /// What was found, without rows that were deleted since; None if the file is to be read again.
    pub(super) fn without(&self, deletions: &Deletions) -> Option<Self> {
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
            scanned: ScannedGroups::default(),
        })
    }

    /// The rows, for another process.
    pub(super) fn into_rows(self, path: String, is_share: bool) -> FileRows {
        let groups = self.groups.into_iter();
        FileRows {
            path,
            groups: groups
                .map(|(group, rows, covers_group)| (group, (PositionBitmap(rows), covers_group)))
                .collect(),
            covers_file: self.covers_file,
            scanned: self.scanned,
            is_share,
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
    scanned: ScannedGroups,
    /// The process had a share of the file, which no other one has.
    is_share: bool,
}

impl FileRows {
    /// A file without such rows.
    pub(super) fn none(path: String) -> Self {
        Self {
            path,
            groups: BTreeMap::new(),
            covers_file: false,
            scanned: ScannedGroups::default(),
            is_share: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.covers_file
    }

    /// Whether all rows of a share had been deleted before. If the other shares are deleted, so is the file.
    pub(super) fn is_deleted_share(&self) -> bool {
        self.is_share && self.scanned.groups > 0 && self.scanned.live_rows == 0
    }

    /// Rows that need not be deleted.
    pub(super) fn of_groups(path: String, groups: BTreeMap<u32, RoaringBitmap>) -> Self {
        let groups = groups.into_iter();
        Self {
            groups: groups
                .map(|(group, rows)| (group, (PositionBitmap(rows), false)))
                .collect(),
            ..Self::none(path)
        }
    }

    /// The rows of a row group.
    pub(super) fn of_group(&self, group: usize) -> Option<&RoaringBitmap> {
        let (rows, _) = self.groups.get(&u32::try_from(group).ok()?)?;
        Some(&rows.0)
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
        if self.is_share && other.is_share {
            self.scanned.add(other.scanned);
        } else if !self.scanned.is_whole() {
            self.scanned = other.scanned;
        }
        let rows = self.groups.values().map(|(rows, _)| rows.0.len()).sum();
        self.covers_file |= other.covers_file || self.scanned.file_rows() == Some(rows);
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
