//! Deletion vectors: the deleted rows of a data file by their position in it.
//!
//! Source: `PROTOCOL.md` of delta-io/delta, "Deletion Vector Format".

use bytes::Bytes;
use object_store::ObjectMeta;
use roaring::RoaringTreemap;
use serde_json::Value;

use super::actions::DeletionVector;
use crate::error::{Error, Result};
use crate::table::Table;
use crate::table::export::{DeletionKey, deleted_positions, to_uuid};
use crate::table::snapshot_reader::SnapshotReader;

/// The folder of deletion vectors, relative to the table: no engine's VACUUM lists it.
pub(super) const FOLDER: &str = "_dv";
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

/// Computes the deleted rows of a file of a snapshot, and the object that holds them, if one does. Opens the file if row
/// groups or keys are deleted.
pub(super) async fn deleted_rows(
    reader: &SnapshotReader,
    file: usize,
    key: &DeletionKey,
) -> Result<(DeletedRows, Option<VectorObject>)> {
    let positions = deleted_positions(reader, file).await?;
    if positions.is_empty() {
        return Ok((DeletedRows::None, None));
    }
    if positions.len() == reader.files[file].file.total_rows {
        return Ok((DeletedRows::All, None));
    }
    let (vector, object) = encode(&positions, key)?;
    Ok((DeletedRows::Some(vector), object))
}

fn encode(
    positions: &RoaringTreemap,
    key: &DeletionKey,
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
fn object_path(DeletionKey(uuid): &DeletionKey) -> String {
    let uuid = to_uuid(&format!("{:032x}", u128::from_be_bytes(*uuid)));
    format!("{FOLDER}/deletion_vector_{uuid}.bin")
}

/// The paths of a table's vectors, in the store.
pub(in crate::table) async fn list_objects(table: &Table) -> Result<Vec<String>> {
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

/// The objects, by their paths relative to the table, of the vectors that a file of the log takes away.
pub(super) fn removed_objects(commit: &[u8]) -> Vec<String> {
    let actions = serde_json::Deserializer::from_slice(commit).into_iter::<Value>();
    let vectors = actions.filter_map(|action| {
        let vector = &action.ok()?["remove"]["deletionVector"];
        let text = vector["pathOrInlineDv"].as_str()?.strip_prefix(FOLDER)?;
        let uuid = <[u8; 16]>::try_from(from_z85(text)?).ok()?;
        (vector["storageType"] == "u").then(|| object_path(&DeletionKey(uuid)))
    });
    vectors.collect()
}

fn from_z85(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for letters in text.as_bytes().chunks(5) {
        let mut value = 0_u64;
        for letter in letters {
            value = value * 85 + Z85.iter().position(|known| known == letter)? as u64;
        }
        bytes.extend(u32::try_from(value).ok()?.to_be_bytes());
    }
    Some(bytes)
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
        let key = DeletionKey([7; 16]);
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
    fn the_objects_that_a_commit_takes_away_are_known() {
        let key = DeletionKey([0xab; 16]);
        let rows: RoaringTreemap = (0..1000).map(|row| row * row).collect();
        let (vector, object) = encode(&rows, &key).unwrap();
        let (inline, _) = encode(&[1].into_iter().collect(), &key).unwrap();
        let removed =
            |vector| serde_json::json!({"remove": {"deletionVector": vector}}).to_string();
        let commit = [
            serde_json::json!({"add": {"deletionVector": vector}}).to_string(),
            removed(&vector),
            removed(&inline),
            serde_json::json!({"remove": {"path": "x"}}).to_string(),
        ];
        let (path, _) = object.unwrap();
        assert_eq!(removed_objects(commit.join("\n").as_bytes()), [path]);
    }

    #[test]
    fn a_long_vector_is_an_object_with_a_checksum() {
        let key = DeletionKey([0xab; 16]);
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
}
