//! What a version of the log has beside files: the protocol and the metadata.
//!
//! Source: `PROTOCOL.md` of delta-io/delta, "Protocol Evolution" and "Change Metadata".

use std::collections::{BTreeMap, BTreeSet};

use super::actions::{DeltaMetadata, Format, Protocol};
use super::schema::{COLUMN_MAPPING, DELETION_VECTORS, DeltaSchema, TIMESTAMP_NTZ, TYPE_WIDENING};
use crate::sync::hash::Sha3;
use crate::versions::TimestampMicros;

/// What readers, too, must know; the other features are about writers.
const READER_FEATURES: [&str; 4] = [
    COLUMN_MAPPING,
    DELETION_VECTORS,
    TIMESTAMP_NTZ,
    TYPE_WIDENING,
];

/// The protocol with these features.
pub(super) fn protocol(features: &BTreeSet<String>) -> Protocol {
    let is_for_readers = |feature: &&String| READER_FEATURES.contains(&feature.as_str());
    let reader_features: Vec<String> = features.iter().filter(is_for_readers).cloned().collect();
    Protocol {
        min_reader_version: if reader_features.is_empty() { 1 } else { 3 },
        min_writer_version: 7,
        reader_features: (!reader_features.is_empty()).then_some(reader_features),
        writer_features: features.iter().cloned().collect(),
    }
}

/// The metadata of a table with these columns.
pub(super) fn metadata(
    schema: &DeltaSchema,
    features: &BTreeSet<String>,
    table_id: &str,
    created_at: TimestampMicros,
) -> DeltaMetadata {
    let mut configuration = BTreeMap::from([(
        "delta.enableInCommitTimestamps".to_owned(),
        "true".to_owned(),
    )]);
    let mut set = |name: &str, value: String| configuration.insert(name.to_owned(), value);
    if features.contains(COLUMN_MAPPING) {
        set("delta.columnMapping.mode", "name".to_owned());
        let last_id = schema.last_id().to_string();
        set("delta.columnMapping.maxColumnId", last_id);
    }
    if features.contains(TYPE_WIDENING) {
        set("delta.enableTypeWidening", "true".to_owned());
    }
    DeltaMetadata {
        id: table_id.to_owned(),
        format: Format {
            provider: "parquet".to_owned(),
            options: BTreeMap::new(),
        },
        schema_string: schema.to_json(features),
        partition_columns: Vec::new(),
        configuration,
        created_time: created_at.as_micros().div_euclid(1000),
    }
}

/// The first 32 hexadecimal digits of the hash of the metadata.
pub(super) fn hash(metadata: &DeltaMetadata) -> String {
    let digest = Sha3::digest(&serde_json::to_vec(metadata).unwrap_or_default());
    let (first, _) = digest.split_at(16);
    let number = first
        .iter()
        .fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
    format!("{number:032x}")
}
