//! The checks of the fuzzers: arbitrary bytes are given to each decoder. What it accepts must have the properties that
//! its encoder guarantees; everything else must be an error.

use arrow_array::ArrayRef;
use bytes::Bytes;

use crate::dataset;
use crate::error::Result;
use crate::odf::rules::ChainState;
use crate::odf::{Block, Event, schema};
use crate::parquet::decode::{Chunks, decode_rows, decode_with_skips};
use crate::parquet::file::{FileOpenResult, ParquetFile};
use crate::parquet::seal::Seal;
use crate::table::Versioned;
use crate::table::format::{FORMAT, Pointer, TableManifest};
use crate::table::tombstone;

/// Decodes bytes and checks the result; panics if a property does not hold.
pub type FuzzCheck = fn(&[u8]);

/// The checks, by the name of what the bytes may be.
pub const FUZZ_CHECKS: [(&str, FuzzCheck); 10] = [
    ("block", check_block_bytes),
    ("yaml", check_block_yaml),
    ("part", check_part),
    ("seal", check_seal),
    ("manifest", check_dataset_manifest),
    ("intent", check_intent),
    ("table", check_table_manifest),
    ("pointer", check_pointer),
    ("segment", check_segment),
    ("tombstones", check_tombstones),
];

fn check_block_bytes(bytes: &[u8]) {
    if let Ok(block) = Block::from_bytes(bytes.to_vec().into()) {
        check_block(&block);
    }
}

fn check_block_yaml(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(block) = Block::from_yaml(text)
    {
        check_block(&block);
    }
}

/// Checks the properties of any block that was decoded.
fn check_block(block: &Block) {
    let yaml = block.to_yaml();
    if block.is_fully_decoded()
        && let Ok(encoded) = block.encode()
    {
        let decoded = Block::from_bytes(encoded.into()).expect("an encoded block can be decoded");
        assert_eq!(decoded.event(), block.event());
        match Block::from_yaml(&yaml) {
            Ok(printed) => assert_eq!(printed.event(), block.event(), "{yaml}"),
            // The YAML parser allows less nesting than blocks do.
            Err(e) => assert!(yaml.contains("            "), "{yaml}: {e}"),
        }
    }
    let mut state = ChainState::default();
    let _ = state.check_new(block);
    state.apply(block);
    if let Event::SetDataSchema(fields) = block.event()
        && fields.get("schema").is_some()
    {
        let _ = schema::arrow_from_event(fields);
    }
}

/// Opens a Parquet file and decodes all of it, and some rows by skipping others.
fn check_part(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let length = bytes.len() as u64;
    let Ok(FileOpenResult::Ready(file)) = ParquetFile::open(&bytes, length) else {
        return;
    };
    let mut chunks = Chunks::new();
    chunks.push(0, bytes);
    for group in 0..file.metadata().num_row_groups() {
        for field_index in 0..file.stored_schema().fields().len() {
            let rows = file.metadata().row_group(group).num_rows();
            let rows = usize::try_from(rows).unwrap_or_default();
            check_arrays(decode_rows(&file, group, field_index, &chunks, None), rows);
            for start in [1, rows / 3, rows.saturating_sub(1)] {
                let end = rows.min(start + 40);
                if start < end {
                    let range = start..end;
                    let some = decode_with_skips(&file, group, field_index, &chunks, range);
                    check_arrays(some, end - start);
                }
            }
        }
    }
}

/// Arrays that were decoded have so many rows, and are valid.
fn check_arrays(decoded: Result<Vec<ArrayRef>>, rows: usize) {
    if let Ok(arrays) = decoded {
        assert_eq!(arrays.iter().map(|array| array.len()).sum::<usize>(), rows);
        for array in arrays {
            array.to_data().validate_full().expect("valid values");
        }
    }
}

fn check_seal(bytes: &[u8]) {
    if let Ok(seal) = Seal::decode(bytes) {
        assert_eq!(
            Seal::decode(&seal.encode()).expect("an encoded seal can be decoded"),
            seal
        );
    }
}

fn check_dataset_manifest(bytes: &[u8]) {
    if let Ok(manifest) = dataset::DatasetManifest::from_json(bytes) {
        let reparsed = dataset::DatasetManifest::from_json(manifest.to_json().as_bytes());
        assert_eq!(
            reparsed.expect("an encoded manifest can be decoded"),
            manifest
        );
        let _ = manifest.check_parts();
    }
}

fn check_intent(bytes: &[u8]) {
    dataset::parse_intent("a/b", bytes);
}

fn check_table_manifest(bytes: &[u8]) {
    let document: Option<serde_json::Value> = serde_json::from_slice(bytes).ok();
    let version = document.and_then(|json| json.get("version")?.as_u64());
    if let Ok(manifest) = TableManifest::parse(bytes, version.unwrap_or(1)) {
        let reparsed = TableManifest::parse(&manifest.to_bytes(), manifest.version);
        assert_eq!(
            reparsed.expect("an encoded manifest can be decoded"),
            manifest
        );
        let _ = crate::table::TableColumns::from_manifest(&manifest);
    }
}

fn check_pointer(bytes: &[u8]) {
    if let Ok(pointer) = Pointer::parse(bytes, FORMAT) {
        let reparsed = Pointer::parse(&pointer.to_bytes(), FORMAT);
        assert_eq!(
            reparsed.expect("an encoded pointer can be decoded"),
            pointer
        );
    }
}

/// Decodes a list of files. The first byte is the number of its files, the others are the list.
fn check_segment(bytes: &[u8]) {
    if let Some((file_count, list)) = bytes.split_first() {
        crate::table::decode_segment(&Bytes::copy_from_slice(list), u32::from(*file_count));
    }
}

fn check_tombstones(bytes: &[u8]) {
    if let Ok(lines) = tombstone::parse(bytes, "fuzzed") {
        let encoded = tombstone::encode(&lines).expect("what is fuzzed is short");
        let reparsed = tombstone::parse(&encoded, "fuzzed");
        assert_eq!(reparsed.expect("encoded tombstones can be decoded"), lines);
        for deletions in tombstone::Deletions::by_file(&lines).values() {
            deletions.to_lines("fuzzed");
        }
    }
}
