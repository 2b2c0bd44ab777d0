//! The data files of a snapshot, and where they are listed: in the manifest, or at a position in a segment.

use std::sync::Arc;

use super::format::DataFile;

/// A data file's path, and the segment that lists it with its position there.
pub(super) type ListedAt<'a> = (&'a str, Option<(&'a str, u32)>);

/// A reference to a data file: its path and where it is listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileRef {
    /// The path relative to the table.
    pub path: String,
    /// The path of the segment that lists it and its position there; None if the manifest lists it.
    pub segment_position: Option<(Arc<str>, u32)>,
}

/// A data file of a snapshot, with the place where it is listed.
#[derive(Debug, Clone)]
pub struct SnapshotFile {
    /// The file's entry in the list.
    pub file: DataFile,
    pub(super) segment_position: Option<(Arc<str>, u32)>,
}

impl SnapshotFile {
    /// The reference to the file.
    pub fn to_file_ref(&self) -> FileRef {
        FileRef {
            path: self.file.path.clone(),
            segment_position: self.segment_position.clone(),
        }
    }

    pub(super) fn listed_at(&self) -> ListedAt<'_> {
        let position = self.segment_position.as_ref();
        (
            &self.file.path,
            position.map(|(segment, at)| (&**segment, *at)),
        )
    }
}

impl FileRef {
    /// The reference to a file that the manifest lists.
    pub fn inline(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            segment_position: None,
        }
    }

    pub(super) fn listed_at(&self) -> ListedAt<'_> {
        let position = self.segment_position.as_ref();
        (&self.path, position.map(|(segment, at)| (&**segment, *at)))
    }
}
