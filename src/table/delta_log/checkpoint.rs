//! A checkpoint: the whole state of a version as a Parquet file, a row for each action.
//!
//! Source: `PROTOCOL.md` of delta-io/delta, "Checkpoint Schema".

use std::sync::Arc;

use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::WriterProperties;

use super::actions::{Action, DeltaExportState};
use crate::error::{Error, Result};

/// The number of actions that are encoded at once.
const BATCH_ROWS: usize = 8192;

/// The name of the export's state in the metadata of the file.
const STATE: &str = "pds.export";

/// The state of the export that wrote a checkpoint; `None` for one of another writer.
pub(super) fn read_state(metadata: &ParquetMetaData) -> Option<DeltaExportState> {
    let mut entries = metadata.file_metadata().key_value_metadata()?.iter();
    let entry = entries.find(|entry| entry.key == STATE)?;
    serde_json::from_str(entry.value.as_ref()?).ok()
}

/// Writes a checkpoint into memory.
pub(super) struct CheckpointWriter {
    decoder: Decoder,
    writer: ArrowWriter<Vec<u8>>,
    pub(super) actions: usize,
}

impl CheckpointWriter {
    /// A checkpoint of an export, which is kept with it.
    pub(super) fn new(state: &DeltaExportState) -> Result<Self> {
        let schema = schema();
        let decoder = ReaderBuilder::new(Arc::clone(&schema)).with_batch_size(BATCH_ROWS);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_key_value_metadata(Some(vec![KeyValue::new(
                STATE.to_owned(),
                serde_json::to_string(state).unwrap_or_default(),
            )]))
            .build();
        Ok(Self {
            decoder: decoder.build_decoder().map_err(|e| encode_error(&e))?,
            writer: ArrowWriter::try_new(Vec::new(), schema, Some(properties))
                .map_err(|e| encode_error(&e))?,
            actions: 0,
        })
    }

    pub(super) fn write(&mut self, actions: &[Action]) -> Result<()> {
        for some in actions.chunks(BATCH_ROWS) {
            self.decoder.serialize(some).map_err(|e| encode_error(&e))?;
            if let Some(batch) = self.decoder.flush().map_err(|e| encode_error(&e))? {
                self.writer.write(&batch).map_err(|e| encode_error(&e))?;
            }
        }
        self.actions += actions.len();
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Bytes> {
        let bytes = self.writer.into_inner().map_err(|e| encode_error(&e))?;
        Ok(bytes.into())
    }
}

fn encode_error(e: &dyn std::fmt::Display) -> Error {
    Error::other(format!("a checkpoint cannot be encoded: {e}"))
}

/// With the actions that an export does not have: readers may ask for their columns.
fn schema() -> SchemaRef {
    let txn = vec![text("appId"), long("version"), long("lastUpdated")];
    let metadata = vec![
        text("id"),
        structure("format", vec![text("provider"), map("options")]),
        text("schemaString"),
        texts("partitionColumns"),
        map("configuration"),
        long("createdTime"),
    ];
    let protocol = vec![
        integer("minReaderVersion"),
        integer("minWriterVersion"),
        texts("readerFeatures"),
        texts("writerFeatures"),
    ];
    Arc::new(Schema::new(vec![
        structure("txn", txn),
        structure("add", add_fields()),
        structure("remove", remove_fields()),
        structure("metaData", metadata),
        structure("protocol", protocol),
    ]))
}

fn add_fields() -> Vec<Field> {
    vec![
        text("path"),
        map("partitionValues"),
        long("size"),
        long("modificationTime"),
        boolean("dataChange"),
        text("stats"),
        deletion_vector(),
    ]
}

fn remove_fields() -> Vec<Field> {
    vec![
        text("path"),
        long("deletionTimestamp"),
        boolean("dataChange"),
        boolean("extendedFileMetadata"),
        map("partitionValues"),
        long("size"),
        deletion_vector(),
    ]
}

fn deletion_vector() -> Field {
    let fields = vec![
        text("storageType"),
        text("pathOrInlineDv"),
        integer("offset"),
        integer("sizeInBytes"),
        long("cardinality"),
    ];
    structure("deletionVector", fields)
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, true)
}

fn long(name: &str) -> Field {
    Field::new(name, DataType::Int64, true)
}

fn integer(name: &str) -> Field {
    Field::new(name, DataType::Int32, true)
}

fn boolean(name: &str) -> Field {
    Field::new(name, DataType::Boolean, true)
}

fn structure(name: &str, fields: Vec<Field>) -> Field {
    Field::new(name, DataType::Struct(Fields::from(fields)), true)
}

fn texts(name: &str) -> Field {
    Field::new(name, DataType::List(Arc::new(text("element"))), true)
}

fn map(name: &str) -> Field {
    let key = Field::new("key", DataType::Utf8, false);
    let entries = DataType::Struct(Fields::from(vec![key, text("value")]));
    let entries = Arc::new(Field::new("key_value", entries, false));
    Field::new(name, DataType::Map(entries, false), true)
}
