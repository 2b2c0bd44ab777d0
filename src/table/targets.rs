//! The data files that a tombstone file is about: its targets.
//!
//! An entry of a tombstone file names files that the manifest lists by path, and those of a segment by their positions
//! there, so that it stays short however many files lose rows. An entry that an older pds wrote names all by path. When
//! files move to a segment, so do the targets ([`move_targets`]).

use std::collections::{BTreeMap, HashMap, HashSet};

use roaring::RoaringBitmap;

use super::format::{PositionBitmap, Tombstones};
use super::snapshot_file::{FileRef, ListedAt, SnapshotFile};

/// The positions of files by the path of their segment.
pub(super) type PositionsBySegment<'a> = HashMap<&'a str, RoaringBitmap>;

impl Tombstones {
    /// Adds a data file.
    pub(super) fn add_target(&mut self, (path, segment_position): ListedAt<'_>) {
        match segment_position {
            Some((segment, position)) => {
                let positions = self.positions.entry(segment.to_owned()).or_default();
                positions.0.insert(position);
            }
            None => self.files.push(path.to_owned()),
        }
    }

    /// Removes data files that leave the table.
    pub(super) fn remove_targets(
        &mut self,
        paths: &HashSet<&str>,
        positions: &PositionsBySegment<'_>,
    ) {
        self.files.retain(|path| !paths.contains(path.as_str()));
        self.positions.retain(|segment, targets| {
            if let Some(removed) = positions.get(segment.as_str()) {
                targets.0 -= removed;
            }
            !targets.0.is_empty()
        });
    }

    /// Whether all of its data files have left the table.
    pub(super) fn is_unused(&self) -> bool {
        self.files.is_empty() && self.positions.is_empty()
    }
}

/// The targets of several tombstone files.
#[derive(Debug, Default)]
pub(super) struct TargetSet<'a> {
    paths: HashSet<&'a str>,
    positions: PositionsBySegment<'a>,
}

impl<'a> TargetSet<'a> {
    pub(super) fn new(tombstones: impl IntoIterator<Item = &'a Tombstones>) -> Self {
        let mut targets = Self::default();
        for entry in tombstones {
            targets.paths.extend(entry.files.iter().map(String::as_str));
            for (segment, positions) in &entry.positions {
                *targets.positions.entry(segment).or_default() |= &positions.0;
            }
        }
        targets
    }

    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.positions.is_empty()
    }

    /// Whether it has all targets of `other`, named in the same way.
    pub(super) fn includes(&self, other: &Self) -> bool {
        let includes_positions = |(segment, positions): (&&str, &RoaringBitmap)| {
            let own = self.positions.get(segment);
            own.is_some_and(|own| positions.is_subset(own))
        };
        self.paths.is_superset(&other.paths) && other.positions.iter().all(includes_positions)
    }

    /// Adds a data file to an entry as these tombstone files name it.
    pub(super) fn copy_target(&self, (path, segment_position): ListedAt<'_>, to: &mut Tombstones) {
        if self.paths.contains(path) {
            to.add_target((path, None));
        }
        if let Some((segment, position)) = segment_position
            && self
                .positions
                .get(segment)
                .is_some_and(|p| p.contains(position))
        {
            to.add_target((path, segment_position));
        }
    }

    /// Removes the targets from an entry that are not among these.
    pub(super) fn restrict(&self, entry: &mut Tombstones) {
        entry
            .files
            .retain(|path| self.paths.contains(path.as_str()));
        entry.positions.retain(|segment, positions| {
            match self.positions.get(segment.as_str()) {
                Some(own) => positions.0 &= own,
                None => positions.0.clear(),
            }
            !positions.0.is_empty()
        });
    }
}

/// Some data files of a snapshot, which are found by the names that tombstone files have for them.
#[derive(Debug)]
pub(super) struct FileIndex<'a> {
    paths: HashSet<&'a str>,
    positions: HashMap<&'a str, HashMap<u32, &'a str>>,
}

impl<'a> FileIndex<'a> {
    pub(super) fn of_refs(files: impl IntoIterator<Item = &'a FileRef>) -> Self {
        Self::new(files.into_iter().map(FileRef::listed_at))
    }

    pub(super) fn of_files(files: impl IntoIterator<Item = &'a SnapshotFile>) -> Self {
        Self::new(files.into_iter().map(SnapshotFile::listed_at))
    }

    fn new(files: impl Iterator<Item = ListedAt<'a>>) -> Self {
        let mut index = Self {
            paths: HashSet::new(),
            positions: HashMap::new(),
        };
        for (path, segment_position) in files {
            index.paths.insert(path);
            if let Some((segment, position)) = segment_position {
                let positions = index.positions.entry(segment).or_default();
                positions.insert(position, path);
            }
        }
        index
    }

    /// The paths of those of the files that a tombstone file is about.
    pub(super) fn targets_of<'t>(
        &'t self,
        entry: &'t Tombstones,
    ) -> impl Iterator<Item = &'a str> + use<'t, 'a> {
        let by_path = entry
            .files
            .iter()
            .filter_map(|path| self.paths.get(path.as_str()));
        let by_position = entry.positions.iter().flat_map(|(segment, positions)| {
            let listed = self.positions.get(segment.as_str());
            // The shorter of both is looked up in the other.
            let (few_files, few_positions) = match listed {
                Some(listed) if (listed.len() as u64) < positions.0.len() => (Some(listed), None),
                Some(listed) => (None, Some((listed, positions))),
                None => (None, None),
            };
            let targets = few_files
                .into_iter()
                .flatten()
                .filter(|(at, _)| positions.0.contains(**at));
            let few_targets = few_positions.into_iter().flat_map(|(listed, positions)| {
                let positions = positions.0.iter();
                positions.filter_map(|at| listed.get(&at))
            });
            targets.map(|(_, path)| path).chain(few_targets)
        });
        by_path.chain(by_position).copied()
    }

    /// Whether a tombstone file is about one of the files.
    pub(super) fn has_targets_of(&self, entry: &Tombstones) -> bool {
        self.targets_of(entry).next().is_some()
    }
}

/// Names targets by their positions in a segment that lists `files` from now on.
pub(super) fn move_targets<'a>(
    tombstones: &mut [Tombstones],
    segment: &str,
    files: impl Iterator<Item = ListedAt<'a>>,
) {
    let mut by_path: HashMap<&str, u32> = HashMap::new();
    let mut by_position: BTreeMap<&str, HashMap<u32, u32>> = BTreeMap::new();
    for (position, (path, former)) in (0..).zip(files) {
        by_path.insert(path, position);
        if let Some((segment, former)) = former {
            by_position
                .entry(segment)
                .or_default()
                .insert(former, position);
        }
    }
    for entry in tombstones {
        let mut moved = RoaringBitmap::new();
        entry.files.retain(|path| {
            let position = by_path.get(path.as_str());
            moved.extend(position);
            position.is_none()
        });
        for (former_segment, positions) in &by_position {
            if let Some(former) = entry.positions.remove(*former_segment) {
                moved.extend(former.0.iter().filter_map(|at| positions.get(&at)));
            }
        }
        if !moved.is_empty() {
            entry
                .positions
                .insert(segment.to_owned(), PositionBitmap(moved));
        }
    }
}
