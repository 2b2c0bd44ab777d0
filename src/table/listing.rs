//! The file lists of a snapshot: the newest files in the manifest, older ones in segments.
//!
//! When the manifest's list exceeds a limit, its older half becomes a segment; neighboring segments are
//! merged as long as the result is within its limits ([`ListingLimits`]). Statistics are kept of the key, the
//! sort columns and the first columns of the schema, however many columns a table has. So the manifest stays short however
//! many files the table has, and every file is written into few lists. A segment is immutable: the positions of
//! files that have left the table are in the manifest ([`Segment::removed`]).
//!
//! [`roll_segments`] does this during a commit. Errors are those of reading and writing segments; a segment that a
//! snapshot references and that does not exist is reported as in [`Table::missing_reference_error`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};

use super::format::{DataFile, Segment, TableManifest};
use super::limits::ListingLimits;
use super::object_cache::{ObjectCache, read_object};
use super::snapshot_file::{FileRef, SnapshotFile};
use super::targets::{PositionsBySegment, move_targets};
use super::{Table, names, segment};
use crate::error::Result;
use crate::files::TableColumns;
use crate::versions::{ListWriter, RollLists, find_mergeable, roll_transactions};

/// The maximum number of segments that are read concurrently.
const CONCURRENT_SEGMENTS: usize = 16;
/// About the size of a segment without its entries.
const EMPTY_SEGMENT_BYTES: u64 = 4 << 10;
/// The maximum size of a segment.
pub(super) const MAX_SEGMENT_BYTES: u64 = 256 << 20;

impl TableManifest {
    /// Whether all these files are still listed where they were.
    pub(super) fn contains_all<'a>(&self, files: impl IntoIterator<Item = &'a FileRef>) -> bool {
        let inline: HashSet<&str> = self.data_files.iter().map(|f| f.path.as_str()).collect();
        let segments: HashMap<&str, &Segment> =
            self.segments.iter().map(|s| (s.path.as_str(), s)).collect();
        files.into_iter().all(|file| match &file.segment_position {
            None => inline.contains(file.path.as_str()),
            Some((segment, position)) => segments
                .get(&**segment)
                .is_some_and(|s| *position < s.data_files && !s.removed.0.contains(*position)),
        })
    }

    /// Removes files, which must be listed, and their tombstones.
    pub(super) fn remove_files(&mut self, files: &[FileRef]) {
        let removed_paths: HashSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
        let mut positions = PositionsBySegment::new();
        for (segment, position) in files.iter().filter_map(|f| f.segment_position.as_ref()) {
            positions.entry(segment).or_default().insert(*position);
        }
        self.data_files
            .retain(|f| !removed_paths.contains(f.path.as_str()));
        for segment in &mut self.segments {
            if let Some(removed) = positions.get(segment.path.as_str()) {
                segment.removed.0 |= removed;
            }
        }
        self.segments.retain(|s| live_file_count(s) > 0);
        for tombstones in &mut self.tombstones {
            tombstones.remove_targets(&removed_paths, &positions);
        }
        self.tombstones.retain(|t| !t.is_unused());
    }

    /// The columns of the key and of the sort order, and the first `count` of the others.
    fn leading_columns(&self, count: usize) -> HashSet<u32> {
        let first = self.schema.columns.iter().take(count).map(|c| c.id);
        first
            .chain(self.key.iter().chain(&self.sort_by).copied())
            .collect()
    }

    /// How many of the newest files the manifest goes on listing: all, or those of half of the limits.
    fn inline_count(&self, limits: ListingLimits) -> usize {
        let sizes: Vec<usize> = self.data_files.iter().map(json_bytes).collect();
        let fits = |max_files: usize, max_bytes: usize| {
            let mut bytes = 0_usize;
            let newest = sizes.iter().rev().take(max_files);
            let fitting = newest.take_while(|size| {
                bytes += **size;
                bytes <= max_bytes
            });
            fitting.count()
        };
        if fits(limits.max_inline_files, limits.max_inline_bytes) == sizes.len() {
            return sizes.len();
        }
        fits(limits.max_inline_files / 2, limits.max_inline_bytes / 2)
    }

    /// The number of data files of the snapshot; reads no segment.
    pub fn file_count(&self) -> u64 {
        self.segments.iter().map(live_file_count).sum::<u64>() + self.data_files.len() as u64
    }
}

/// The size of a file's entry in the manifest.
fn json_bytes(file: &DataFile) -> usize {
    serde_json::to_vec(file).map_or(0, |json| json.len())
}

/// Forgets the statistics of all but some columns.
pub(super) fn keep_statistics(file: &mut DataFile, columns: &HashSet<u32>) {
    file.min.retain(|id, _| columns.contains(id));
    file.max.retain(|id, _| columns.contains(id));
    file.null_counts.retain(|id, _| columns.contains(id));
}

/// The number of files of a segment that have not left the table.
fn live_file_count(segment: &Segment) -> u64 {
    u64::from(segment.data_files) - segment.removed.0.len()
}

/// About the bytes of its entries of files that have not left the table.
fn live_bytes(segment: &Segment) -> u64 {
    let entries = segment.size_bytes.saturating_sub(EMPTY_SEGMENT_BYTES);
    entries.saturating_mul(live_file_count(segment)) / u64::from(segment.data_files.max(1))
}

/// Reads the files of a segment that have not left the table, with their positions.
pub(super) async fn load_segment(
    table: &Table,
    segment: &Segment,
    cache: Option<&ObjectCache>,
) -> Result<Vec<(u32, DataFile)>> {
    let bytes = read_object(table, &segment.path, MAX_SEGMENT_BYTES, cache).await?;
    let decoded = segment::decode(&bytes, segment);
    let files = decoded.map_err(|e| e.with_path(table.path(&segment.path)))?;
    let numbered_files = (0..).zip(files);
    Ok(numbered_files
        .filter(|(position, _)| !segment.removed.0.contains(*position))
        .collect())
}

/// Reads the paths and sizes of the files of a segment that have not left the table. The entries, which are some
/// hundred times as large as the segment, are dropped before the next segment is decoded.
pub(super) async fn load_file_sizes(
    table: &Table,
    segment: &Segment,
) -> Result<Vec<(String, u64)>> {
    let files = load_segment(table, segment, None).await?;
    let sizes = files.into_iter().map(|(_, f)| (f.path, f.size_bytes));
    Ok(sizes.collect())
}

/// Reads the files of the selected segments, and appends those of the manifest, in the order of the table.
pub(super) async fn list_files(
    table: &Table,
    manifest: &TableManifest,
    selected: &[bool],
    cache: Option<&ObjectCache>,
) -> Result<Vec<SnapshotFile>> {
    let segments: Vec<&Segment> = manifest
        .segments
        .iter()
        .zip(selected)
        .filter(|(_, is_selected)| **is_selected)
        .map(|(segment, _)| segment)
        .collect();
    let reads = segments.iter().map(|segment| async move {
        match load_segment(table, segment, cache).await {
            Err(e) => Err(table
                .missing_reference_error(manifest, &segment.path, e)
                .await),
            loaded => loaded,
        }
    });
    let loads: Vec<_> = reads.collect();
    let loaded: Vec<_> = stream::iter(loads)
        .buffered(CONCURRENT_SEGMENTS)
        .try_collect()
        .await?;
    let mut files = Vec::new();
    for (segment, loaded) in segments.iter().zip(loaded) {
        let path: Arc<str> = segment.path.as_str().into();
        files.extend(loaded.into_iter().map(|(position, file)| SnapshotFile {
            file,
            segment_position: Some((Arc::clone(&path), position)),
        }));
    }
    let inline = manifest.data_files.iter().cloned();
    files.extend(inline.map(|file| SnapshotFile {
        file,
        segment_position: None,
    }));
    Ok(files)
}

/// Reads the entries of all data files of a snapshot.
pub async fn all_files(table: &Table, manifest: &TableManifest) -> Result<Vec<SnapshotFile>> {
    let selected = vec![true; manifest.segments.len()];
    list_files(table, manifest, &selected, None).await
}

/// The columns of which segments have bounds.
#[derive(Debug)]
struct SegmentColumns {
    /// All columns, whose types bounds have; None if they are not known.
    table: Option<TableColumns>,
    /// The ids of those with bounds.
    leading: HashSet<u32>,
}

impl RollLists for TableManifest {
    async fn roll_lists(
        &mut self,
        lists: &mut ListWriter,
        table: &Table,
        base: &Self,
    ) -> Result<()> {
        roll_segments(lists, table, base, self).await?;
        roll_transactions(lists, table, base, self).await
    }
}

/// Moves the older files of a manifest that lists too many to segments, and merges segments.
async fn roll_segments(
    writer: &mut ListWriter,
    table: &Table,
    base: &TableManifest,
    next: &mut TableManifest,
) -> Result<()> {
    let limits = table.limits;
    let columns = next.leading_columns(limits.file_statistics);
    for file in &mut next.data_files {
        keep_statistics(file, &columns);
    }
    // Those of the new version: a restore may have brought wider types.
    let columns = SegmentColumns {
        table: TableColumns::from_manifest(next).ok(),
        leading: next.leading_columns(limits.segment_statistics),
    };
    let older_count = next.data_files.len() - next.inline_count(limits);
    if older_count > 0 {
        let older: Vec<DataFile> = next.data_files.drain(..older_count).collect();
        for files in older.chunks(limits.max_segment_files) {
            let segment = write_segment(writer, table, base, &columns, files).await?;
            let moved = files.iter().map(|file| (&*file.path, None));
            move_targets(&mut next.tombstones, &segment.path, moved);
            next.segments.push(segment);
        }
    }
    let mut merges_few = true;
    while let Some(range) = find_mergeable_segments(&next.segments, limits, merges_few) {
        // Once in a commit: of many segments that are small since the table has grown, not all at once.
        merges_few &= range.len() == limits.merge_factor;
        let merging = &next.segments[range.clone()];
        let loads = merging
            .iter()
            .map(|segment| load_segment(table, segment, None));
        let mut former = Vec::new();
        let mut files = Vec::new();
        for (segment, loaded) in merging.iter().zip(try_join_all(loads).await?) {
            for (position, file) in loaded {
                former.push((&*segment.path, position));
                files.push(file);
            }
        }
        let merged = write_segment(writer, table, base, &columns, &files).await?;
        let moved = files
            .iter()
            .zip(&former)
            .map(|(f, at)| (&*f.path, Some(*at)));
        move_targets(&mut next.tombstones, &merged.path, moved);
        next.segments.splice(range, [merged]);
    }
    Ok(())
}

/// The first neighbors that are merged: so many as the limits say, or fewer that make one of about the maximum size.
fn find_mergeable_segments(
    segments: &[Segment],
    limits: ListingLimits,
    merges_few: bool,
) -> Option<Range<usize>> {
    let add_bytes = |sum: u64, segment: &Segment| sum.saturating_add(live_bytes(segment));
    let listed_bytes = segments.iter().fold(0, add_bytes);
    let max_bytes = limits
        .max_merged_segment_bytes
        .max(listed_bytes / limits.max_merged_segment_part);
    let max_files = limits.max_segment_files as u64;
    let fits = |neighbors: &[Segment]| {
        let bytes = neighbors.iter().fold(0, add_bytes);
        let files: u64 = neighbors.iter().map(live_file_count).sum();
        let is_large = |bytes, files| bytes >= max_bytes / 2 || files >= max_files / 2;
        let is_small = |segment| !is_large(live_bytes(segment), live_file_count(segment));
        let suffices = neighbors.len() == limits.merge_factor
            || (is_large(bytes, files) && neighbors.iter().all(is_small));
        suffices && bytes <= max_bytes && files <= max_files
    };
    let least = if merges_few { 2 } else { limits.merge_factor };
    let mut counts = (least..=limits.merge_factor).rev();
    counts.find_map(|count| find_mergeable(segments, count, fits))
}

async fn write_segment(
    writer: &mut ListWriter,
    table: &Table,
    base: &TableManifest,
    columns: &SegmentColumns,
    files: &[DataFile],
) -> Result<Segment> {
    let bytes = segment::encode(files)?;
    let length = bytes.len() as u64;
    let path = writer.put(table, base, bytes, names::segment).await?;
    let mut segment = segment::build_segment(path, length, files, columns.table.as_ref());
    let leading = &columns.leading;
    segment.min.retain(|id, _| leading.contains(id));
    segment.max.retain(|id, _| leading.contains(id));
    segment.null_counts.retain(|id, _| leading.contains(id));
    Ok(segment)
}
