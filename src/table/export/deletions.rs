//! The deleted rows of a data file by their position in it, and a name for them.

use std::collections::BTreeSet;
use std::ops::Range;

use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringTreemap;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::hash::Sha3;
use crate::table::format::TableManifest;
use crate::table::snapshot_reader::SnapshotReader;
use crate::table::tombstone::Deletions;

/// What a name for a file's deleted rows follows from: the file, the tombstone files that are about it, and the last version
/// that restored older ones or added files in place. Tombstone files never change, so no name ever stands for other rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::table) struct DeletionKey(pub(in crate::table) [u8; 16]);

impl DeletionKey {
    pub(in crate::table) fn new(
        manifest: &TableManifest,
        file: &str,
        tombstones: &BTreeSet<&str>,
    ) -> Self {
        let mut hash = Sha3::new();
        // Each text with its length, so that no two lists give the same bytes.
        for text in std::iter::once(&file).chain(tombstones) {
            hash.update(&(text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        }
        hash.update(&manifest.restored_at.unwrap_or_default().to_le_bytes());
        let digest = hash.finish();
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&digest[..16]);
        // The bits of a UUID of version 8, which is free for uses like this.
        uuid[6] = (uuid[6] & 0x0f) | 0x80;
        uuid[8] = (uuid[8] & 0x3f) | 0x80;
        Self(uuid)
    }
}

/// The positions of the deleted rows of a file of a snapshot. Opens the file if row groups or keys are deleted.
pub(in crate::table) async fn deleted_positions(
    reader: &SnapshotReader,
    file: usize,
) -> Result<RoaringTreemap> {
    let Some(deletions) = reader.deletions_of(file) else {
        return Ok(RoaringTreemap::new());
    };
    let listed = &reader.files[file].file;
    let positions = match positions_in_only_group(deletions) {
        Some(positions) if listed.row_group_count == 1 => positions,
        _ => positions_by_reading(reader, file).await?,
    };
    if positions
        .max()
        .is_some_and(|last| last >= listed.total_rows)
    {
        let message = format!(
            "a tombstone deletes rows that {:?} does not have",
            listed.path
        );
        return Err(Error::new(ErrorKind::ManifestCorrupted, message));
    }
    Ok(positions)
}

/// The positions of rows that are deleted by number in the first row group, if nothing else is deleted.
fn positions_in_only_group(deletions: &Deletions) -> Option<RoaringTreemap> {
    let others = deletions.rows.keys().any(|group| *group > 0);
    if others || !deletions.groups.is_empty() || !deletions.keys.is_empty() {
        return None;
    }
    let rows = deletions.rows.get(&0)?;
    Some(rows.iter().map(u64::from).collect())
}

async fn positions_by_reading(reader: &SnapshotReader, file: usize) -> Result<RoaringTreemap> {
    let part = reader.open_file(file).await?;
    let row_groups = reader.all_row_groups(file, &part)?;
    let masks = row_groups.iter().map(|row_group| async move {
        let live = reader.live_row_mask(row_group).await?;
        Ok::<_, Error>(!live.values())
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let masks: Vec<_> = masks.collect();
    let mut masks = stream::iter(masks).buffered(2).boxed();
    let (mut positions, mut begin) = (RoaringTreemap::new(), 0_u64);
    while let Some(deleted) = masks.try_next().await? {
        for (from, to) in deleted.set_slices() {
            positions.insert_range(begin + from as u64..begin + to as u64);
        }
        begin += deleted.len() as u64;
    }
    Ok(positions)
}

/// 32 hexadecimal digits as a UUID.
pub(in crate::table) fn to_uuid(digits: &str) -> String {
    let part = |range: Range<usize>| digits.get(range).unwrap_or_default();
    [
        part(0..8),
        part(8..12),
        part(12..16),
        part(16..20),
        part(20..32),
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_deletions_differ() {
        let manifest = |restored_at| {
            let json = serde_json::json!({
                "format": 2, "version": 9, "previous": 8, "commit_id": "0".repeat(32),
                "created_at": "2026-11-27T00:00:00.000000Z", "operation": {"name": "append"},
                "schema": {"columns": [], "last_id": 0}, "arrow_schema": "", "data_files": [],
                "tombstones": [], "oldest_version": 1, "gc_floor": 0, "restored_at": restored_at,
            });
            serde_json::from_value::<TableManifest>(json).unwrap()
        };
        let key = |restored_at: Option<u64>, file: &str, tombstones: &[&str]| {
            DeletionKey::new(
                &manifest(restored_at),
                file,
                &tombstones.iter().copied().collect(),
            )
        };
        let keys = [
            key(None, "a", &["t"]),
            key(None, "b", &["t"]),
            key(None, "a", &["t", "u"]),
            key(None, "a", &["tu"]),
            key(None, "at", &[]),
            key(Some(4), "a", &["t"]),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert!(keys[at + 1..].iter().all(|other| other != one));
        }
        assert_eq!(keys[0], key(None, "a", &["t"]));
    }
}
