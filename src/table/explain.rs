//! The plan of a scan: how many files, row groups and rows it would read.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::format::TableManifest;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use crate::error::{Error, Result};
use crate::files::ScanOptions;

/// Number of files opened at once.
const CONCURRENT_FILES: usize = 16;

/// What a scan of a snapshot would read, after pruning by statistics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanPlan {
    /// Files of the snapshot.
    pub files: u64,
    /// Files that may hold matching rows.
    pub files_read: u64,
    /// Row groups of the files that are read.
    pub row_groups: u64,
    /// Row groups that may hold matching rows.
    pub row_groups_read: u64,
    /// Rows of the row groups that are read, deleted ones included.
    pub rows_read: u64,
    /// Tombstone files of the files that are read.
    pub tombstones_read: u64,
}

/// Plans a scan: reads the footers that the scan would read, and no rows.
pub async fn explain(
    table: &Table,
    manifest: Arc<TableManifest>,
    options: ScanOptions,
) -> Result<ScanPlan> {
    let reader = &SnapshotReader::new(table, manifest, options.filter).await?;
    let plans = (0..reader.files.len()).map(|file| async move {
        let row_groups = reader.open_row_groups(file).await?;
        let row_count = row_groups
            .iter()
            .map(|row_group| row_group.num_rows() as u64)
            .sum::<u64>();
        Ok::<_, Error>((row_groups.len() as u64, row_count))
    });
    let pending: Vec<_> = plans.collect();
    let counts: Vec<(u64, u64)> = stream::iter(pending)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    let files = FileIndex::of_files(&reader.files);
    let tombstones = reader.manifest().tombstones.iter();
    Ok(ScanPlan {
        files: reader.manifest().file_count(),
        files_read: reader.files.len() as u64,
        row_groups: reader.files.iter().map(|f| f.file.row_group_count).sum(),
        row_groups_read: counts.iter().map(|(groups, _)| groups).sum(),
        rows_read: counts.iter().map(|(_, rows)| rows).sum(),
        tombstones_read: tombstones.filter(|t| files.has_targets_of(t)).count() as u64,
    })
}
