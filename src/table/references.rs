//! What a table's versions reference: what a vacuum has to keep.

use std::collections::{BTreeMap, HashMap, HashSet};

use futures::{StreamExt, TryStreamExt, stream};

use super::format::{Segment, TableManifest};
use super::listing::load_file_sizes;
use super::{Table, names};
use crate::error::Result;
use crate::versions::{Vacuumable, Versioned};

/// The maximum number of segments that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// The objects that manifests reference, without the entries of their files.
#[derive(Debug)]
pub struct ReferencedObjects {
    paths: HashSet<String>,
    /// The segments by path, without their bounds. A file has left one if it has in all of the versions.
    segments: HashMap<String, Segment>,
}

impl Vacuumable for TableManifest {
    type References = ReferencedObjects;

    const FOLDERS: &'static [&'static str] = &names::FOLDERS;

    fn base_version(path: &str) -> Option<u64> {
        names::base_version(path)
    }

    fn references_of(&self) -> ReferencedObjects {
        let without_bounds = |segment: &Segment| Segment {
            path: segment.path.clone(),
            removed: segment.removed.clone(),
            min: BTreeMap::new(),
            max: BTreeMap::new(),
            null_counts: BTreeMap::new(),
            ..*segment
        };
        let segments = self.segments.iter();
        ReferencedObjects {
            paths: self.references().map(str::to_owned).collect(),
            segments: segments
                .map(|s| (s.path.clone(), without_bounds(s)))
                .collect(),
        }
    }

    fn add_references(references: &mut ReferencedObjects, others: ReferencedObjects) {
        references.paths.extend(others.paths);
        for (path, segment) in others.segments {
            match references.segments.get_mut(&path) {
                Some(entry) => entry.removed.0 &= segment.removed.0,
                None => drop(references.segments.insert(path, segment)),
            }
        }
    }

    /// Reads each segment once.
    async fn load_references(
        references: ReferencedObjects,
        table: &Table,
    ) -> Result<HashSet<String>> {
        let mut paths = references.paths;
        // A Vec, because the future of the iterator itself would not be Send.
        let segments = references.segments.values();
        let loads: Vec<_> = segments.map(|s| load_file_sizes(table, s)).collect();
        let mut loads = stream::iter(loads).buffer_unordered(CONCURRENT_READS);
        while let Some(files) = loads.try_next().await? {
            paths.extend(files.into_iter().map(|(path, _)| path));
        }
        drop(loads);
        Ok(paths)
    }
}
