//! Arrow schemas in manifests: exact to the last type and its metadata, and decoded once.
//!
//! An [`EncodedSchema`] is an IPC schema message, a long one compressed, and base64 in JSON. It is parsed without a look at
//! its bytes. To decode them takes limited memory, and damaged ones are an error, also where arrow-rs would panic.

use std::io::Read;
use std::sync::{Arc, OnceLock};

use arrow_ipc::convert::try_schema_from_ipc_buffer;
use arrow_ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Base64;
use crate::error::{Error, Result};
use crate::parquet::panic_text;
use crate::parquet::writer::check_schema;

const ZSTD_LEVEL: i32 = 3;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Schemas below this stay readable without a decompressor.
const MIN_COMPRESSED_BYTES: usize = 8 << 10;
/// The maximum size of a decompressed schema.
const MAX_SCHEMA_BYTES: u64 = 64 << 20;

/// An Arrow schema as a manifest stores it. Clones share the decoded schema.
#[derive(Debug, Clone)]
pub struct EncodedSchema {
    bytes: Bytes,
    decoded: Arc<OnceLock<SchemaRef>>,
}

impl EncodedSchema {
    /// Encodes a schema.
    pub(crate) fn new(schema: &Schema) -> Result<Self> {
        encode_schema(schema).map(Self::from)
    }

    /// As [`Self::new`], of a schema that Parquet supports. Refuses one that readers do not decode within their limits,
    /// such as that of the depth of types.
    pub(crate) fn checked(schema: &SchemaRef) -> Result<Self> {
        check_schema(schema)?;
        let encoded = Self::new(schema)?;
        encoded.decode().map_err(|e| {
            let message = format!("a table cannot have these columns: {}", e.message());
            Error::invalid(message).with_source(e)
        })?;
        Ok(encoded)
    }

    /// The schema. Fails if the bytes are damaged; the caller knows of which object they are.
    pub(crate) fn decode(&self) -> Result<SchemaRef> {
        if let Some(schema) = self.decoded.get() {
            return Ok(Arc::clone(schema));
        }
        let schema = Arc::new(decode_schema(&self.bytes)?);
        Ok(Arc::clone(self.decoded.get_or_init(|| schema)))
    }
}

impl From<Bytes> for EncodedSchema {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            decoded: Arc::default(),
        }
    }
}

impl PartialEq for EncodedSchema {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for EncodedSchema {}

impl Serialize for EncodedSchema {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Base64(self.bytes.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EncodedSchema {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Base64(bytes) = Base64::deserialize(deserializer)?;
        Ok(bytes.into())
    }
}

/// Encodes a schema as an IPC message, such as the one at the start of an IPC stream; a long one as a
/// Zstandard frame.
fn encode_schema(schema: &Schema) -> Result<Bytes> {
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
fn decode_schema(encoded: &[u8]) -> Result<Schema> {
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

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    fn sample() -> Schema {
        Schema::new(vec![
            Field::new("id", DataType::Int64, false),
            Field::new("at", DataType::Date32, true),
            Field::new("price", DataType::Decimal128(12, 2), true),
        ])
    }

    #[test]
    fn clones_share_the_decoded_schema() {
        let encoded = EncodedSchema::new(&sample()).unwrap();
        let clone = encoded.clone();
        let decoded = encoded.decode().unwrap();
        assert_eq!(*decoded, sample());
        assert!(Arc::ptr_eq(&decoded, &clone.decode().unwrap()));
        let json = serde_json::to_string(&encoded).unwrap();
        let stored: EncodedSchema = serde_json::from_str(&json).unwrap();
        assert_eq!(stored, encoded);
        assert_eq!(*stored.decode().unwrap(), sample());
    }

    /// Any bytes are a schema or an error.
    #[test]
    fn damaged_schemas_are_errors_and_never_a_panic() {
        let schema = sample();
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
