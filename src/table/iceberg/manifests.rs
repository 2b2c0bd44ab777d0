//! Manifests and lists of manifests: Avro files.
//!
//! Source: the specification of Iceberg, "Manifests" and "Manifest Lists". All entries have the status "existing" and
//! sequence numbers of their own, so a manifest says nothing of the snapshot that lists it, and later ones list it too.

use bytes::Bytes;
use serde_json::{Value, json};

use super::avro::{self, AvroDecoder, AvroEncoder};

/// The kinds of a manifest, and of the files in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Data,
    Deletes,
}

/// A file that a manifest lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The absolute path.
    pub(super) path: String,
    pub(super) rows: u64,
    pub(super) size_bytes: u64,
    pub(super) sequence: u64,
    /// The numbers of values and of nulls by field id.
    pub(super) value_counts: Vec<(u32, u64)>,
    pub(super) null_counts: Vec<(u32, u64)>,
    /// The bounds by field id.
    pub(super) lower: Vec<(u32, Vec<u8>)>,
    pub(super) upper: Vec<(u32, Vec<u8>)>,
    /// The data file of which a delete file has the deleted rows.
    pub(super) data_file: Option<String>,
}

/// A manifest as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedManifest {
    /// The absolute path.
    pub(super) path: String,
    pub(super) size_bytes: u64,
    pub(super) content: Content,
    pub(super) min_sequence: u64,
    pub(super) files: u64,
    pub(super) rows: u64,
}

impl Content {
    fn number(self) -> i64 {
        match self {
            Self::Data => 0,
            Self::Deletes => 1,
        }
    }

    fn new(number: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Data),
            1 => Some(Self::Deletes),
            _ => None,
        }
    }
}

/// Encodes a manifest. `schema` is the JSON of the schema, with its id.
pub(super) fn encode_manifest(
    content: Content,
    schema: &str,
    schema_id: i32,
    entries: &[Entry],
) -> Bytes {
    let kind = match content {
        Content::Data => "data",
        Content::Deletes => "deletes",
    };
    let metadata = [
        ("avro.schema", entry_schema().to_string()),
        ("schema", schema.to_owned()),
        ("schema-id", schema_id.to_string()),
        ("partition-spec", "[]".to_owned()),
        ("partition-spec-id", "0".to_owned()),
        ("format-version", "2".to_owned()),
        ("content", kind.to_owned()),
    ];
    avro::write(&metadata, entries, |file, entry| {
        encode_entry(file, content, entry);
    })
}

fn encode_entry(file: &mut AvroEncoder, content: Content, entry: &Entry) {
    // The status "existing", and the snapshot that added the file, which must be there. It may not be exported, and manifests
    // are not of one snapshot: so it is the version, which is the id of no snapshot. Then both sequence numbers.
    file.long(0);
    for _ in 0..3 {
        file.some();
        file.count(entry.sequence);
    }
    file.long(content.number());
    file.bytes(entry.path.as_bytes());
    file.bytes(b"PARQUET");
    file.count(entry.rows);
    file.count(entry.size_bytes);
    // The sizes of columns.
    file.null();
    for counts in [&entry.value_counts, &entry.null_counts] {
        encode_map(file, counts, |file, count| file.count(*count));
    }
    // The numbers of values that are not numbers.
    file.null();
    for bounds in [&entry.lower, &entry.upper] {
        encode_map(file, bounds, |file, bound| file.bytes(bound));
    }
    // The key metadata, split offsets, equality ids and the sort order.
    for _ in 0..4 {
        file.null();
    }
    match &entry.data_file {
        None => file.null(),
        Some(data_file) => {
            file.some();
            file.bytes(data_file.as_bytes());
        }
    }
}

fn encode_map<T>(file: &mut AvroEncoder, map: &[(u32, T)], encode: impl Fn(&mut AvroEncoder, &T)) {
    if map.is_empty() {
        return file.null();
    }
    file.some();
    file.array(map, |file, (id, value)| {
        file.long(i64::from(*id));
        encode(file, value);
    });
}

/// The JSON of the schema of a manifest, and its entries; `None` for one that this library did not write.
pub(super) fn decode_manifest(bytes: &[u8]) -> Option<(String, Vec<Entry>)> {
    let (mut metadata, entries) = avro::read(bytes, decode_entry)?;
    let is_ours = metadata.get("avro.schema")? == &entry_schema().to_string();
    let schema = metadata.remove("schema")?;
    is_ours.then_some((schema, entries))
}

fn decode_entry(file: &mut AvroDecoder<'_>) -> Option<Entry> {
    let has_null = |file: &mut AvroDecoder<'_>| (!file.is_some()?).then_some(());
    let sequence = |file: &mut AvroDecoder<'_>| if file.is_some()? { file.count() } else { None };
    (file.long()? == 0).then_some(())?;
    // Earlier exports left the snapshot out.
    if file.is_some()? {
        file.count()?;
    }
    let (sequence, _) = (sequence(file)?, sequence(file)?);
    Content::new(file.long()?)?;
    let path = file.text()?;
    (file.bytes()? == b"PARQUET").then_some(())?;
    let (rows, size_bytes) = (file.count()?, file.count()?);
    has_null(file)?;
    let value_counts = decode_map(file, |file| file.count())?;
    let null_counts = decode_map(file, |file| file.count())?;
    has_null(file)?;
    let bound = |file: &mut AvroDecoder<'_>| Some(file.bytes()?.to_vec());
    let (lower, upper) = (decode_map(file, bound)?, decode_map(file, bound)?);
    for _ in 0..4 {
        has_null(file)?;
    }
    let data_file = if file.is_some()? {
        Some(file.text()?)
    } else {
        None
    };
    Some(Entry {
        path,
        rows,
        size_bytes,
        sequence,
        value_counts,
        null_counts,
        lower,
        upper,
        data_file,
    })
}

fn decode_map<T>(
    file: &mut AvroDecoder<'_>,
    decode: impl Fn(&mut AvroDecoder<'_>) -> Option<T>,
) -> Option<Vec<(u32, T)>> {
    if !file.is_some()? {
        return Some(Vec::new());
    }
    file.array(|file| Some((u32::try_from(file.long()?).ok()?, decode(file)?)))
}

/// Encodes the list of the manifests of a snapshot.
pub(super) fn encode_list(
    snapshot: i64,
    parent: Option<i64>,
    sequence: u64,
    manifests: &[ListedManifest],
) -> Bytes {
    let parent = parent.map_or_else(|| "null".to_owned(), |parent| parent.to_string());
    let metadata = [
        ("avro.schema", list_schema().to_string()),
        ("snapshot-id", snapshot.to_string()),
        ("parent-snapshot-id", parent),
        ("sequence-number", sequence.to_string()),
        ("format-version", "2".to_owned()),
    ];
    avro::write(&metadata, manifests, |file, manifest| {
        file.bytes(manifest.path.as_bytes());
        file.count(manifest.size_bytes);
        file.long(0);
        file.long(manifest.content.number());
        file.count(sequence);
        file.count(manifest.min_sequence);
        file.long(snapshot);
        // Of files and of rows those that were added, those that are there, and those that were removed.
        for count in [manifest.files, manifest.rows] {
            file.long(0);
            file.count(count);
            file.long(0);
        }
        file.null();
    })
}

/// The manifests of a list; `None` for one that this library did not write.
pub(super) fn decode_list(bytes: &[u8]) -> Option<Vec<ListedManifest>> {
    let (metadata, manifests) = avro::read(bytes, |file| {
        let (path, size_bytes) = (file.text()?, file.count()?);
        let (_, content) = (file.long()?, Content::new(file.long()?)?);
        let (_, min_sequence, _) = (file.long()?, file.count()?, file.long()?);
        let mut count = || {
            let (_, count, _) = (file.long()?, file.count()?, file.long()?);
            Some(count)
        };
        let (files, rows) = (count()?, count()?);
        (!file.is_some()?).then_some(())?;
        Some(ListedManifest {
            path,
            size_bytes,
            content,
            min_sequence,
            files,
            rows,
        })
    })?;
    let is_ours = metadata.get("avro.schema")? == &list_schema().to_string();
    is_ours.then_some(manifests)
}

fn field(id: u32, name: &str, data_type: &Value) -> Value {
    json!({"name": name, "type": data_type, "field-id": id})
}

fn optional(id: u32, name: &str, data_type: &Value) -> Value {
    json!({"name": name, "type": ["null", data_type], "default": null, "field-id": id})
}

/// A map with numbers as keys.
fn map(key_id: u32, value_id: u32, value: &str) -> Value {
    let fields = [
        field(key_id, "key", &"int".into()),
        field(value_id, "value", &value.into()),
    ];
    let name = format!("k{key_id}_v{value_id}");
    json!({
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": name, "fields": fields},
    })
}

fn array(id: u32, items: &str) -> Value {
    json!({"type": "array", "items": items, "element-id": id})
}

/// The schema of an entry of a manifest.
fn entry_schema() -> Value {
    let partition = json!({"type": "record", "name": "r102", "fields": []});
    let data_file = json!({"type": "record", "name": "r2", "fields": [
        field(134, "content", &"int".into()),
        field(100, "file_path", &"string".into()),
        field(101, "file_format", &"string".into()),
        field(102, "partition", &partition),
        field(103, "record_count", &"long".into()),
        field(104, "file_size_in_bytes", &"long".into()),
        optional(108, "column_sizes", &map(117, 118, "long")),
        optional(109, "value_counts", &map(119, 120, "long")),
        optional(110, "null_value_counts", &map(121, 122, "long")),
        optional(137, "nan_value_counts", &map(138, 139, "long")),
        optional(125, "lower_bounds", &map(126, 127, "bytes")),
        optional(128, "upper_bounds", &map(129, 130, "bytes")),
        optional(131, "key_metadata", &"bytes".into()),
        optional(132, "split_offsets", &array(133, "long")),
        optional(135, "equality_ids", &array(136, "int")),
        optional(140, "sort_order_id", &"int".into()),
        optional(143, "referenced_data_file", &"string".into()),
    ]});
    json!({"type": "record", "name": "manifest_entry", "fields": [
        field(0, "status", &"int".into()),
        optional(1, "snapshot_id", &"long".into()),
        optional(3, "sequence_number", &"long".into()),
        optional(4, "file_sequence_number", &"long".into()),
        field(2, "data_file", &data_file),
    ]})
}

/// The schema of a manifest in a list.
fn list_schema() -> Value {
    let summary = json!({"type": "record", "name": "r508", "fields": [
        field(509, "contains_null", &"boolean".into()),
        optional(518, "contains_nan", &"boolean".into()),
        optional(510, "lower_bound", &"bytes".into()),
        optional(511, "upper_bound", &"bytes".into()),
    ]});
    let partitions = json!({"type": "array", "items": summary, "element-id": 508});
    json!({"type": "record", "name": "manifest_file", "fields": [
        field(500, "manifest_path", &"string".into()),
        field(501, "manifest_length", &"long".into()),
        field(502, "partition_spec_id", &"int".into()),
        field(517, "content", &"int".into()),
        field(515, "sequence_number", &"long".into()),
        field(516, "min_sequence_number", &"long".into()),
        field(503, "added_snapshot_id", &"long".into()),
        field(504, "added_files_count", &"int".into()),
        field(505, "existing_files_count", &"int".into()),
        field(506, "deleted_files_count", &"int".into()),
        field(512, "added_rows_count", &"long".into()),
        field(513, "existing_rows_count", &"long".into()),
        field(514, "deleted_rows_count", &"long".into()),
        optional(507, "partitions", &partitions),
    ]})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let entry = |number: u32| Entry {
            path: format!("s3://bucket/t/data/{number}.parquet"),
            rows: u64::from(number),
            size_bytes: 1 << 40,
            sequence: 7,
            value_counts: vec![(1, 5), (2, 5)],
            null_counts: Vec::new(),
            lower: vec![(number, vec![1, 2, 3])],
            upper: vec![(number, Vec::new())],
            data_file: number
                .is_multiple_of(2)
                .then(|| "s3://bucket/t/a.parquet".to_owned()),
        };
        let entries: Vec<Entry> = (0..3000).map(entry).collect();
        let manifest = encode_manifest(Content::Deletes, "{}", 0, &entries);
        assert_eq!(decode_manifest(&manifest), Some(("{}".to_owned(), entries)));
        let listed = |content| ListedManifest {
            path: "s3://bucket/t/metadata/m.avro".to_owned(),
            size_bytes: 123,
            content,
            min_sequence: 3,
            files: 4,
            rows: 5,
        };
        let manifests = [listed(Content::Data), listed(Content::Deletes)];
        let list = encode_list(1 << 62, None, 9, &manifests);
        assert_eq!(decode_list(&list).as_deref(), Some(&manifests[..]));
        assert_eq!(decode_list(&manifest), None);
        assert_eq!(decode_manifest(&list), None);
    }
}
