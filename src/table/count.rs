//! Counts the rows of a snapshot without reading those that its lists of files and its tombstones count.
//!
//! The lists of files have the number of rows of each file, and tombstones the numbers of the rows that they delete. A
//! file is opened only if its tombstones delete row groups as a whole, whose sizes are in its footer, or
//! ranges of keys, which are then read, or if a share of it is counted. With a filter, the rows are read as in a scan.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::format::{DataFile, TableManifest};
use super::listing::list_files;
use super::scan::scan;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::Deletions;
use crate::error::{Error, Result};
use crate::files::ScanOptions;
use crate::files::expr::Filter;

/// Number of files opened at once.
const CONCURRENT_FILES: usize = 16;

/// Counts the rows of a snapshot that match the filter, at most `limit`. Without a filter, errors of data files that
/// are not opened do not show.
pub async fn count(
    table: &Table,
    manifest: Arc<TableManifest>,
    filter: Option<Arc<Filter>>,
    limit: Option<u64>,
) -> Result<u64> {
    let limit_rows = limit.unwrap_or(u64::MAX);
    if filter.is_none() {
        let rows = if manifest.tombstones.is_empty() && manifest.shares.is_empty() {
            count_listed_rows(table, &manifest).await?
        } else {
            count_live_rows(&SnapshotReader::new(table, manifest, None).await?).await?
        };
        return Ok(rows.min(limit_rows));
    }
    let options = ScanOptions {
        columns: Some(Vec::new()),
        filter,
        limit,
        ..ScanOptions::default()
    };
    let mut batches = scan(table, manifest, options).await?;
    let mut rows = 0;
    while let Some(batch) = batches.next().await {
        rows += batch?.num_rows() as u64;
    }
    Ok(rows)
}

/// The rows of all files of a snapshot. Of the segments, those are read that files have left.
async fn count_listed_rows(table: &Table, manifest: &TableManifest) -> Result<u64> {
    let segments = manifest.segments.iter();
    let is_partial: Vec<bool> = segments.map(|s| !s.removed.0.is_empty()).collect();
    let whole_segments = manifest.segments.iter().zip(&is_partial);
    let rows_of_whole_segments = whole_segments
        .filter(|(_, is_partial)| !**is_partial)
        .map(|(segment, _)| segment.total_rows);
    // The files of the manifest are among these.
    let files = list_files(table, manifest, &is_partial, None).await?;
    let rows_of_files = files.iter().map(|listed| listed.file.total_rows);
    Ok(rows_of_whole_segments
        .chain(rows_of_files)
        .fold(0, u64::saturating_add))
}

async fn count_live_rows(reader: &SnapshotReader) -> Result<u64> {
    let mut rows: u64 = 0;
    let mut uncounted = Vec::new();
    for (index, listed) in reader.files.iter().enumerate() {
        let live_rows = match (reader.share_of(index), reader.deletions_of(index)) {
            // The footer has the sizes of its row groups.
            (Some(_), _) => None,
            (None, None) => Some(listed.file.total_rows),
            (None, Some(deletions)) => count_without_reading(&listed.file, deletions),
        };
        match live_rows {
            Some(live_rows) => rows = rows.saturating_add(live_rows),
            None => uncounted.push(count_by_reading(reader, index)),
        }
    }
    let counts: Vec<u64> = stream::iter(uncounted)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    Ok(counts.into_iter().fold(rows, u64::saturating_add))
}

/// The rows of a file that are not deleted; None if the file has to be read for it.
fn count_without_reading(file: &DataFile, deletions: &Deletions) -> Option<u64> {
    let group_count = u32::try_from(file.row_group_count).ok()?;
    let mut groups = deletions.groups.iter().chain(deletions.rows.keys());
    if !deletions.keys.is_empty() || groups.any(|group| *group >= group_count) {
        return None;
    }
    if deletions.groups.len() as u64 == file.row_group_count {
        return Some(0);
    }
    // The positions have to be those of rows: a damaged bitmap may have others.
    let is_row = |position: u32| u64::from(position) < file.total_rows;
    let mut positions = deletions.rows.values().filter_map(|rows| rows.max());
    if !deletions.groups.is_empty() || !positions.all(is_row) {
        return None;
    }
    let deleted_rows: u64 = deletions.rows.values().map(|rows| rows.len()).sum();
    file.total_rows.checked_sub(deleted_rows)
}

async fn count_by_reading(reader: &SnapshotReader, file: usize) -> Result<u64> {
    let row_groups = reader.open_row_groups(file).await?;
    let counts = stream::iter(row_groups).then(|row_group| async move {
        let selection = reader.select(&row_group).await?;
        Ok::<_, Error>(selection.live_rows as u64)
    });
    counts
        .try_fold(0, |sum: u64, rows| async move { Ok(sum + rows) })
        .await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::super::tombstone::TombstoneScope;
    use super::*;

    fn count(scopes: &[TombstoneScope]) -> Option<u64> {
        let file = DataFile {
            path: "data/a.parquet".to_owned(),
            size_bytes: 1,
            footer_size: 1,
            row_group_count: 2,
            total_rows: 150,
            min: BTreeMap::new(),
            max: BTreeMap::new(),
            null_counts: BTreeMap::new(),
            columns: None,
            constants: BTreeMap::new(),
            checksum: None,
        };
        let mut deletions = Deletions::default();
        for scope in scopes {
            deletions.add(scope);
        }
        count_without_reading(&file, &deletions)
    }

    #[test]
    fn a_row_that_is_deleted_twice_is_counted_once() {
        let rows =
            |group, rows: &[u32]| TombstoneScope::Rows(group, rows.iter().copied().collect());
        assert_eq!(
            count(&[rows(0, &[1, 2]), rows(0, &[2, 3]), rows(1, &[2])]),
            Some(146)
        );
        assert_eq!(
            count(&[TombstoneScope::RowGroup(0), TombstoneScope::RowGroup(1)]),
            Some(0)
        );
    }

    #[test]
    fn what_the_tombstones_do_not_count_is_read() {
        let rows =
            |group, rows: &[u32]| TombstoneScope::Rows(group, rows.iter().copied().collect());
        assert_eq!(count(&[TombstoneScope::RowGroup(0)]), None);
        assert_eq!(count(&[TombstoneScope::Keys(json!(1), json!(2))]), None);
        // No rows of the file.
        assert_eq!(count(&[rows(2, &[1])]), None);
        assert_eq!(count(&[rows(0, &[150])]), None);
    }
}
