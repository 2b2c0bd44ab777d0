//! A table's columns: the exact Arrow schema, and ids that outlive names.
//!
//! A manifest holds the schema as an IPC message and an id for each column ([`TableColumns`]); a data file
//! has the ids as field ids of Parquet, so its columns are found after a rename. [`NewTable::new`] refuses
//! a schema without columns, one that Parquet does not support, and unknown or duplicate columns in a
//! key (`InvalidInput`); a table is created of columns with names only. A manifest whose schema cannot be decoded is
//! `ManifestCorrupted`.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;

use super::actions::NewTable;
use super::format::{TableManifest, TableSchema, corrupted_error};
use super::names;
use super::schema_extensions::without_widened_extensions;
use crate::error::{Error, Result};
use crate::files::{StoredField, TableColumns};
use crate::parquet::panic_text;
use crate::parquet::types::index_of;
use crate::parquet::writer::check_schema;

const ZSTD_LEVEL: i32 = 3;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Schemas below this stay readable without a decompressor.
const MIN_COMPRESSED_BYTES: usize = 8 << 10;
/// The maximum size of a decompressed schema.
const MAX_SCHEMA_BYTES: u64 = 64 << 20;

impl NewTable {
    /// Describes a table of `schema`; `key` and `sort_by` are names of its columns.
    pub fn new(schema: &SchemaRef, key: &[String], sort_by: &[String]) -> Result<Self> {
        check_schema(schema)?;
        if schema.fields().is_empty() {
            return Err(Error::invalid("a table needs at least one column"));
        }
        let mut columns = TableSchema::default();
        for field in schema.fields() {
            columns.push(field);
        }
        let resolve_ids = |argument: &str, names: &[String]| {
            let mut ids = Vec::new();
            for name in names {
                let field = index_of(schema, name).map_err(|e| e.context(argument))?;
                let id = columns.columns[field].id;
                if ids.contains(&id) {
                    let message = format!("duplicate column {name:?} in {argument}");
                    return Err(Error::invalid(message));
                }
                ids.push(id);
            }
            Ok(ids)
        };
        let arrow_schema = encode_schema(schema)?;
        // Readers decode it within limits, of the depth of types for one.
        decode_schema(&arrow_schema).map_err(|e| {
            let message = format!("a table cannot have these columns: {}", e.message());
            Error::invalid(message).with_source(e)
        })?;
        let key_ids = resolve_ids("key", key)?;
        check_key_types(schema, key)?;
        Ok(Self {
            key: key_ids,
            sort_by: resolve_ids("sort_by", sort_by)?,
            arrow_schema,
            schema: columns,
            exports: BTreeSet::new(),
        })
    }
}

impl NewTable {
    /// Refuses a column without a name.
    pub(super) fn check_names(&self) -> Result<()> {
        let mut columns = self.schema.columns.iter();
        columns.try_for_each(|column| check_not_empty(&column.name))
    }
}

/// Refuses an empty name: filters cannot name such a column, and neither can most engines.
pub(super) fn check_not_empty(name: &str) -> Result<()> {
    if name.is_empty() {
        let message = "a column of a table must have a name, for filters and other engines; rename the column \
             whose name is empty";
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Refuses a key whose values cannot be compared: every upsert would fail.
fn check_key_types(schema: &SchemaRef, key: &[String]) -> Result<()> {
    let mut fields = Vec::new();
    for name in key {
        let field = schema.field(index_of(schema, name)?);
        fields.push(SortField::new(field.data_type().clone()));
    }
    if RowConverter::supports_fields(&fields) {
        return Ok(());
    }
    let columns = key.join(", ");
    Err(Error::invalid(format!(
        "a key cannot have columns of types that cannot be compared: {columns}"
    )))
}

/// Encodes a schema as an IPC message, such as the one at the start of an IPC stream; a long one as a
/// Zstandard frame.
pub(crate) fn encode_schema(schema: &Schema) -> Result<Bytes> {
    let options = IpcWriteOptions::default();
    let mut dictionaries = DictionaryTracker::new(false);
    let message = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
        schema,
        &mut dictionaries,
        &options,
    );
    let mut bytes = Vec::new();
    write_message(&mut bytes, message, &options)
        .map_err(|e| Error::invalid(format!("schema cannot be serialized: {e}")).with_source(e))?;
    if bytes.len() < MIN_COMPRESSED_BYTES {
        return Ok(bytes.into());
    }
    let compressed = zstd::bulk::compress(&bytes, ZSTD_LEVEL);
    Ok(compressed.unwrap_or(bytes).into())
}

/// Decodes what [`encode_schema`] made; damaged bytes are an error.
pub(crate) fn decode_schema(encoded: &[u8]) -> Result<Schema> {
    if !encoded.starts_with(&ZSTD_MAGIC) {
        return decode_message(encoded);
    }
    let mut message = Vec::new();
    zstd::Decoder::new(encoded)
        .map_err(Error::from_cause)?
        .take(MAX_SCHEMA_BYTES + 1)
        .read_to_end(&mut message)
        .map_err(Error::from_cause)?;
    if message.len() as u64 > MAX_SCHEMA_BYTES {
        let reason = format!("it decompresses to more than {MAX_SCHEMA_BYTES} bytes");
        return Err(Error::other(reason));
    }
    decode_message(&message)
}

fn decode_message(message: &[u8]) -> Result<Schema> {
    // Offsets are verified, but the conversion panics on types that it does not know.
    let unwound = std::panic::catch_unwind(|| try_schema_from_ipc_buffer(message));
    let decoded = unwound.map_err(|panic| Error::other(panic_text(panic.as_ref())))?;
    decoded.map_err(Error::from_cause)
}

impl TableColumns {
    /// The columns of a snapshot. Fails with `ManifestCorrupted` if its schema cannot be decoded.
    pub fn from_manifest(manifest: &TableManifest) -> Result<Self> {
        let name = names::manifest(manifest.version);
        let schema = decode_schema(&manifest.arrow_schema.0).map_err(|e| {
            corrupted_error(&name, "its arrow_schema cannot be decoded").with_source(e)
        })?;
        let column_names = manifest.schema.columns.iter().map(|c| c.name.as_str());
        if !column_names.eq(schema.fields().iter().map(|f| f.name().as_str())) {
            return Err(corrupted_error(
                &name,
                "its schema and its arrow_schema have different columns",
            ));
        }
        let schema = without_widened_extensions(schema, &manifest.schema.columns);
        Ok(Self::from_entries(Arc::new(schema), &manifest.schema))
    }

    /// Gives ids to nested fields that have none: tables of format 1 have ids on columns only.
    pub(super) fn complete_nested_ids(manifest: &mut TableManifest) {
        if let Ok(columns) = Self::from_manifest(manifest) {
            manifest.schema.complete_nested_ids(columns.schema.fields());
        }
    }

    /// The columns of an Arrow schema, described by `entries` in the same order.
    pub(super) fn from_entries(schema: SchemaRef, entries: &TableSchema) -> Self {
        let ids = entries.columns.iter().map(|c| c.id).collect();
        let stored = entries.columns.iter().map(|c| StoredField {
            name: c.stored_name().to_owned(),
            nested_ids: c.nested_ids.clone(),
        });
        Self::new(schema, ids, stored.collect())
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    /// Any bytes are a schema or an error.
    #[test]
    fn damaged_schemas_are_errors_and_never_a_panic() {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("at", DataType::Date32, true),
            Field::new("price", DataType::Decimal128(12, 2), true),
        ]);
        let encoded = encode_schema(&schema).unwrap();
        assert_eq!(decode_schema(&encoded).unwrap(), schema);
        // Unknown types are among these, such as an integer of 7 bits.
        let mut error_count = 0;
        for offset in 0..encoded.len() {
            for value in [0, 7, 65, 255] {
                let mut bytes = encoded.to_vec();
                bytes[offset] = value;
                error_count += usize::from(decode_schema(&bytes).is_err());
            }
        }
        assert!(error_count > 0);
    }
}
