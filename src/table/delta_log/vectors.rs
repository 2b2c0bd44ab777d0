//! Deletion vectors: the deleted rows of a data file by their position in it.
//!
//! Source: `PROTOCOL.md` of delta-io/delta, "Deletion Vector Format".

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use roaring::RoaringTreemap;

use super::actions::DeletionVector;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::hash::Sha3;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::table::snapshot_reader::SnapshotReader;
use crate::table::tombstone::Deletions;

/// The folder of deletion vectors, relative to the table: no engine's VACUUM lists it.
const FOLDER: &str = "_dv";
/// A longer vector is an object of its own.
const MAX_INLINE_BYTES: usize = 512;
/// What begins the rows of a vector.
const MAGIC: u32 = 1_681_511_377;
const Z85: &[u8; 85] =
    b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// The deleted rows of a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DeletedRows {
    All,
    None,
    Some(DeletionVector),
}

impl DeletedRows {
    pub(super) fn is_all(&self) -> bool {
        *self == Self::All
    }

    pub(super) fn into_vector(self) -> Option<DeletionVector> {
        match self {
            Self::All | Self::None => None,
            Self::Some(vector) => Some(vector),
        }
    }
}

/// An object with a vector: its path relative to the table, and its bytes.
pub(super) type VectorObject = (String, Bytes);

/// What the name of a file's vector follows from: the file, the tombstone files that are about it, and the last version
/// that restored older ones or added files in place. Tombstone files never change, so no name ever stands for other rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct VectorKey([u8; 16]);

impl VectorKey {
    pub(super) fn new(manifest: &TableManifest, file: &str, tombstones: &BTreeSet<&str>) -> Self {
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

/// Computes the deleted rows of a file of a snapshot, and the object that holds them, if one does. Opens the file if row
/// groups or keys are deleted.
pub(super) async fn deleted_rows(
    reader: &SnapshotReader,
    file: usize,
    key: &VectorKey,
) -> Result<(DeletedRows, Option<VectorObject>)> {
    let Some(deletions) = reader.deletions_of(file) else {
        return Ok((DeletedRows::None, None));
    };
    let listed = &reader.files[file].file;
    let positions = match positions_in_only_group(deletions) {
        Some(positions) if listed.row_group_count == 1 => positions,
        _ => positions_by_reading(reader, file).await?,
    };
    let rows = positions.len();
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
    if rows == 0 {
        return Ok((DeletedRows::None, None));
    }
    if rows == listed.total_rows {
        return Ok((DeletedRows::All, None));
    }
    let (vector, object) = encode(&positions, key)?;
    Ok((DeletedRows::Some(vector), object))
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

fn encode(
    positions: &RoaringTreemap,
    key: &VectorKey,
) -> Result<(DeletionVector, Option<VectorObject>)> {
    let mut data = MAGIC.to_le_bytes().to_vec();
    data.extend((positions.bitmaps().count() as u64).to_le_bytes());
    for (high, rows) in positions.bitmaps() {
        let mut runs = rows.clone();
        runs.optimize();
        data.extend(high.to_le_bytes());
        // Serializing plain data into memory cannot fail.
        let _ = runs.serialize_into(&mut data);
    }
    let too_long = |_| Error::invalid("the deleted rows of a file take more than 2 GiB");
    let size_in_bytes = i32::try_from(data.len()).map_err(too_long)?;
    let vector = DeletionVector {
        storage_type: "i",
        path_or_inline_dv: String::new(),
        offset: None,
        size_in_bytes,
        cardinality: positions.len(),
    };
    if data.len() <= MAX_INLINE_BYTES {
        data.resize(data.len().next_multiple_of(4), 0);
        let inline = DeletionVector {
            path_or_inline_dv: z85(&data),
            ..vector
        };
        return Ok((inline, None));
    }
    let mut object = vec![1];
    object.extend(size_in_bytes.to_be_bytes());
    object.extend(&data);
    object.extend(crc32fast::hash(&data).to_be_bytes());
    let stored = DeletionVector {
        storage_type: "u",
        path_or_inline_dv: format!("{FOLDER}{}", z85(&key.0)),
        offset: Some(1),
        ..vector
    };
    Ok((stored, Some((object_path(key), object.into()))))
}

/// The path of a vector, relative to the table.
fn object_path(VectorKey(uuid): &VectorKey) -> String {
    let uuid = to_uuid(&format!("{:032x}", u128::from_be_bytes(*uuid)));
    format!("{FOLDER}/deletion_vector_{uuid}.bin")
}

/// The paths of a table's vectors, in the store.
pub(super) async fn list_objects(table: &Table) -> Result<Vec<String>> {
    let listing = table.store().list_folder(&table.path(FOLDER)).await?;
    let is_vector = |object: &ObjectMeta| {
        let name = object.location.filename().unwrap_or_default();
        let name = name.strip_prefix("deletion_vector_");
        let uuid = name.and_then(|name| name.strip_suffix(".bin"));
        uuid.is_some_and(|uuid| uuid.len() == 36)
    };
    let vectors = listing.files.into_iter().filter(is_vector);
    Ok(vectors.map(|object| object.location.to_string()).collect())
}

/// 32 hexadecimal digits as a UUID.
pub(super) fn to_uuid(digits: &str) -> String {
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

/// Bytes, whose number is a multiple of 4, as Z85: 5 letters for every 4 bytes. Source: RFC 32 of `ZeroMQ`.
fn z85(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() / 4 * 5);
    for word in bytes.as_chunks::<4>().0 {
        let value = u32::from_be_bytes(*word);
        for place in [85_u32.pow(4), 85_u32.pow(3), 85_u32.pow(2), 85, 1] {
            text.push(char::from(Z85[(value / place % 85) as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bitmap of the rows 3, 4, 7, 11, 18 and 29, as in the examples of `PROTOCOL.md`.
    const BITMAP: [u8; 28] = [
        0x3a, 0x30, 0, 0, 1, 0, 0, 0, 0, 0, 5, 0, 0x10, 0, 0, 0, 3, 0, 4, 0, 7, 0, 11, 0, 18, 0,
        29, 0,
    ];

    #[test]
    fn a_vector_has_the_bytes_of_the_protocol() {
        // An example of the protocol, in a layout that nobody writes any more.
        let native = [
            &0x6439_d3d0_0000_0001_u64.to_be_bytes()[..],
            &[0, 0, 0, 28],
            &BITMAP,
        ]
        .concat();
        assert_eq!(
            z85(&native),
            "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
        );
        let key = VectorKey([7; 16]);
        let rows: RoaringTreemap = [3, 4, 7, 11, 18, 29].into_iter().collect();
        let (vector, object) = encode(&rows, &key).unwrap();
        let data = [
            &MAGIC.to_le_bytes()[..],
            &1_u64.to_le_bytes(),
            &0_u32.to_le_bytes(),
            &BITMAP,
        ]
        .concat();
        assert_eq!(
            (vector.storage_type, vector.path_or_inline_dv),
            ("i", z85(&data))
        );
        assert_eq!((vector.size_in_bytes, vector.cardinality), (44, 6));
        assert!(object.is_none());
    }

    #[test]
    fn a_long_vector_is_an_object_with_a_checksum() {
        let key = VectorKey([0xab; 16]);
        let rows: RoaringTreemap = (0..1000).map(|row| row * row + (1 << 33)).collect();
        let (vector, object) = encode(&rows, &key).unwrap();
        let (path, bytes) = object.unwrap();
        assert_eq!(
            path,
            "_dv/deletion_vector_abababab-abab-abab-abab-abababababab.bin"
        );
        let (head, rest) = bytes.split_at(5);
        let (data, checksum) = rest.split_at(rest.len() - 4);
        assert_eq!(head[0], 1);
        assert_eq!(head[1..], vector.size_in_bytes.to_be_bytes());
        assert_eq!(data.len(), usize::try_from(vector.size_in_bytes).unwrap());
        assert_eq!(checksum, crc32fast::hash(data).to_be_bytes());
        assert_eq!(RoaringTreemap::deserialize_from(&data[4..]).unwrap(), rows);
        assert_eq!((vector.storage_type, vector.offset), ("u", Some(1)));
        assert!(vector.path_or_inline_dv.starts_with("_dv"));
        assert_eq!(vector.path_or_inline_dv.len(), 23);
    }

    #[test]
    fn names_of_vectors_differ() {
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
            VectorKey::new(
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
