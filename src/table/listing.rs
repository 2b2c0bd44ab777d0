//! Where a snapshot lists its files: the newest in the manifest, older ones in segments.
//!
//! When the manifest's list grows long its older half becomes a segment, and neighbouring segments
//! become one while together they are not too long. So the manifest stays short whatever the table
//! holds, and every file is written into few lists. Files that leave a segment are noted beside it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, PutMode};

use super::format::{DataFile, Segment, TableManifest};
use super::schema::TableColumns;
use super::{Table, names, segment};
use crate::error::Result;

/// Segments read at once.
const CONCURRENT_SEGMENTS: usize = 16;
/// More bytes than this are no segment.
const MAX_SEGMENT_BYTES: u64 = 256 << 20;

/// Segments that have more bytes together stay apart: a commit writes what becomes of them.
const MERGED_BYTES: u64 = 1 << 20;

/// How long lists become.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Files that a manifest lists at most.
    pub inline: usize,
    /// Files that a segment lists at most.
    pub segment: usize,
    /// Neighbouring segments that become one, if that is not too long.
    pub merged: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            inline: 256,
            segment: 4096,
            merged: 8,
        }
    }
}

/// A file by its path, and the segment and its place there if one lists it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileRef {
    /// Relative to the table.
    pub path: String,
    /// None where the manifest lists it.
    pub listed: Option<(Arc<str>, u32)>,
}

/// A file of a snapshot.
#[derive(Debug, Clone)]
pub struct ListedFile {
    /// What is said of it.
    pub file: DataFile,
    listed: Option<(Arc<str>, u32)>,
}

impl ListedFile {
    /// The file and where it is listed.
    pub fn reference(&self) -> FileRef {
        FileRef {
            path: self.file.path.clone(),
            listed: self.listed.clone(),
        }
    }
}

impl FileRef {
    /// A file that the manifest lists.
    pub fn inline(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            listed: None,
        }
    }
}

impl TableManifest {
    /// Whether all these files are still where they were.
    pub(super) fn lists<'a>(&self, files: impl IntoIterator<Item = &'a FileRef>) -> bool {
        let inline: HashSet<&str> = self.data_files.iter().map(|f| f.path.as_str()).collect();
        let segments = self.segments.iter().map(|s| (s.path.as_str(), s));
        let segments: HashMap<&str, &Segment> = segments.collect();
        files.into_iter().all(|file| match &file.listed {
            None => inline.contains(file.path.as_str()),
            Some((segment, place)) => segments
                .get(&**segment)
                .is_some_and(|s| *place < s.data_files && !s.removed.0.contains(*place)),
        })
    }

    /// Takes files out, which must be listed, and their tombstones.
    pub(super) fn take_out(&mut self, files: &[FileRef]) {
        let gone: HashSet<&str> = files.iter().map(|f| f.path.as_str()).collect();
        let mut places: HashMap<&str, Vec<u32>> = HashMap::new();
        for (segment, place) in files.iter().filter_map(|f| f.listed.as_ref()) {
            places.entry(segment).or_default().push(*place);
        }
        self.data_files.retain(|f| !gone.contains(f.path.as_str()));
        for segment in &mut self.segments {
            segment
                .removed
                .0
                .extend(places.remove(segment.path.as_str()).unwrap_or_default());
        }
        self.segments.retain(|s| alive(s) > 0);
        for tombstones in &mut self.tombstones {
            tombstones.files.retain(|f| !gone.contains(f.as_str()));
        }
        self.tombstones.retain(|t| !t.files.is_empty());
    }

    /// How many files the snapshot has.
    pub fn file_count(&self) -> u64 {
        self.segments.iter().map(alive).sum::<u64>() + self.data_files.len() as u64
    }
}

/// Files of a segment that are still there.
fn alive(segment: &Segment) -> u64 {
    u64::from(segment.data_files) - segment.removed.0.len()
}

/// The files that a segment lists and that have not left, with their places.
pub(super) async fn load(table: &Table, segment: &Segment) -> Result<Vec<(u32, DataFile)>> {
    let path = table.path(&segment.path);
    let store = table.store();
    let read = store.get_at_most(&path, GetOptions::default(), MAX_SEGMENT_BYTES);
    let (bytes, _) = read.await?;
    let all = segment::decode(&bytes, segment).map_err(|e| e.with_path(&path))?;
    let there = (0..).zip(all);
    Ok(there
        .filter(|(place, _)| !segment.removed.0.contains(*place))
        .collect())
}

/// The files of the segments that are wanted and those of the manifest, in their order.
pub(super) async fn files(
    table: &Table,
    manifest: &TableManifest,
    wanted: &[bool],
) -> Result<Vec<ListedFile>> {
    let read = manifest.segments.iter().zip(wanted).filter(|(_, w)| **w);
    let read: Vec<&Segment> = read.map(|(segment, _)| segment).collect();
    let loads = read.iter().map(|segment| async move {
        match load(table, segment).await {
            Err(e) => Err(table.gone(manifest.version, &segment.path, e).await),
            loaded => loaded,
        }
    });
    let loads: Vec<_> = loads.collect();
    let loaded: Vec<_> = stream::iter(loads)
        .buffered(CONCURRENT_SEGMENTS)
        .try_collect()
        .await?;
    let mut files = Vec::new();
    for (segment, loaded) in read.iter().zip(loaded) {
        let path: Arc<str> = segment.path.as_str().into();
        files.extend(loaded.into_iter().map(|(place, file)| ListedFile {
            file,
            listed: Some((Arc::clone(&path), place)),
        }));
    }
    let inline = manifest.data_files.iter().cloned();
    files.extend(inline.map(|file| ListedFile { file, listed: None }));
    Ok(files)
}

/// All files of a snapshot.
pub async fn all_files(table: &Table, manifest: &TableManifest) -> Result<Vec<ListedFile>> {
    files(table, manifest, &vec![true; manifest.segments.len()]).await
}

/// Shortens the lists of manifests; keeps what one attempt of a commit wrote for the next.
#[derive(Debug, Default)]
pub(super) struct Shortener {
    written: Vec<Written>,
}

#[derive(Debug)]
struct Written {
    /// What it was made of.
    sources: Vec<FileRef>,
    base: u64,
    segment: Segment,
}

impl Shortener {
    /// The manifest with shorter lists, where they are too long.
    pub(super) async fn shorten(
        &mut self,
        table: &Table,
        base: &TableManifest,
        mut next: TableManifest,
    ) -> Result<TableManifest> {
        let limits = table.limits;
        if next.data_files.len() > limits.inline {
            let older = next.data_files.len() - limits.inline / 2;
            let older: Vec<DataFile> = next.data_files.drain(..older).collect();
            for files in older.chunks(limits.segment) {
                let sources = files.iter().map(|f| FileRef::inline(&f.path)).collect();
                let segment = self.segment(table, base, sources, files).await?;
                next.segments.push(segment);
            }
        }
        while let Some(begin) = mergeable(&next.segments, limits) {
            let places = begin..begin + limits.merged;
            let parts = next.segments[places.clone()].to_vec();
            let loaded = try_join_all(parts.iter().map(|part| load(table, part))).await?;
            let (mut sources, mut files) = (Vec::new(), Vec::new());
            for (part, loaded) in parts.iter().zip(loaded) {
                let path: Arc<str> = part.path.as_str().into();
                for (place, file) in loaded {
                    sources.push(FileRef {
                        path: file.path.clone(),
                        listed: Some((Arc::clone(&path), place)),
                    });
                    files.push(file);
                }
            }
            let merged = self.segment(table, base, sources, &files).await?;
            next.segments.splice(places, [merged]);
        }
        Ok(next)
    }

    /// The segment that lists `files`: one that an earlier attempt wrote, or a new one.
    async fn segment(
        &mut self,
        table: &Table,
        base: &TableManifest,
        sources: Vec<FileRef>,
        files: &[DataFile],
    ) -> Result<Segment> {
        // What began below the floor a vacuum may have removed.
        let same = |w: &&Written| w.base >= base.gc_floor && w.sources == sources;
        if let Some(known) = self.written.iter().find(same) {
            return Ok(known.segment.clone());
        }
        let bytes = segment::encode(files)?;
        let name = names::segment(base.version, table.store().clock().new_id());
        let columns = TableColumns::from_manifest(base).ok();
        let segment = segment::describe(name, bytes.len() as u64, files, columns.as_ref());
        let path = table.path(&segment.path);
        table.store().put(&path, bytes, PutMode::Overwrite).await?;
        self.written.push(Written {
            sources,
            base: base.version,
            segment: segment.clone(),
        });
        Ok(segment)
    }

    /// What was written and `committed` does not name; with None, all of it.
    pub(super) fn unused(&self, committed: Option<&TableManifest>) -> Vec<String> {
        let named = committed.into_iter().flat_map(|m| &m.segments);
        let named: HashSet<&str> = named.map(|s| s.path.as_str()).collect();
        let paths = self.written.iter().map(|w| w.segment.path.clone());
        paths
            .filter(|path| !named.contains(path.as_str()))
            .collect()
    }
}

/// Where neighbouring segments begin that are better one.
fn mergeable(segments: &[Segment], limits: Limits) -> Option<usize> {
    let fits = |some: &[Segment]| {
        some.iter().map(alive).sum::<u64>() <= limits.segment as u64
            && some.iter().map(|s| s.size_bytes).sum::<u64>() <= MERGED_BYTES
    };
    segments.windows(limits.merged).position(fits)
}
