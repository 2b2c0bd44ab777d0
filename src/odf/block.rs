//! Blocks, the elements of a chain. A [`Block`] keeps the bytes that it was read from; its hash is the hash of these
//! bytes.
//!
//! The bytes are a manifest (kind, version, content) whose content is a flatbuffer of its own. Versions 2 and 3 of
//! the manifest differ only in the alignment of timestamps. An event that this release does not know becomes
//! [`Event::Unknown`] and keeps its bytes.
//!
//! Errors: [`ErrorKind::BlockCorrupted`] for damaged bytes; [`ErrorKind::FormatNotSupported`] for other versions of
//! the manifest, for the layout of ODF 0.33, and for encoding a block with fields of a later release;
//! [`ErrorKind::InvalidInput`] for an event that has no encoding and for a block that is too long.
//!
//! Source: the Open Data Fabric specification.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::Value;

use super::decode::{FlatBufferReader, FlatBufferTable};
use super::encode::FlatBufferWriter;
use super::event::Event;
use super::event_kind::EventKind;
use super::fields::{get, get_text};
use super::layout::EVENT;
use super::multihash::Multihash;
use super::time::{self, UtcDateTime};
use super::yaml;
use crate::error::{Error, ErrorKind, Result};

/// The multicodec of an ODF metadata block.
const MANIFEST_KIND: i64 = 0x40_0000;
/// The version of the manifest that is written.
pub const MANIFEST_VERSION: i32 = 3;
const OLDEST_VERSION: i32 = 2;
/// The longest block that is written or read, in bytes.
pub(super) const MAX_BLOCK_BYTES: usize = 16 << 20;

/// One block of a chain.
#[derive(Debug, Clone)]
pub struct Block {
    bytes: Bytes,
    hash: Multihash,
    version: i32,
    /// The time at which the block was appended.
    pub system_time: UtcDateTime,
    /// The hash of the previous block; None in the first block.
    pub prev_block_hash: Option<Multihash>,
    /// The position in the chain, from 0.
    pub sequence_number: u64,
    event: Event,
    /// Whether `event` holds all fields of the event.
    is_fully_decoded: bool,
}

impl Block {
    /// Encodes a block. The event is a JSON object in the spelling of the specification, with its name as `kind`.
    pub fn new(
        system_time: UtcDateTime,
        prev_block_hash: Option<&Multihash>,
        sequence_number: u64,
        event: &Value,
    ) -> Result<Self> {
        let version = MANIFEST_VERSION;
        Self::with_version(
            version,
            system_time,
            prev_block_hash,
            sequence_number,
            event,
        )
    }

    fn with_version(
        version: i32,
        system_time: UtcDateTime,
        prev_block_hash: Option<&Multihash>,
        sequence_number: u64,
        event: &Value,
    ) -> Result<Self> {
        if !(OLDEST_VERSION..=MANIFEST_VERSION).contains(&version) {
            return Err(unsupported_version(version));
        }
        let bytes = encode(
            version,
            &system_time,
            prev_block_hash,
            sequence_number,
            event,
        )?;
        if bytes.len() > MAX_BLOCK_BYTES {
            let message = format!(
                "the block has {} bytes; at most {MAX_BLOCK_BYTES} are allowed",
                bytes.len()
            );
            return Err(Error::invalid(message));
        }
        Self::from_bytes(bytes.into()).map_err(|e| e.with_kind(ErrorKind::InvalidInput))
    }

    /// Decodes a block from the bytes that are stored.
    pub fn from_bytes(bytes: Bytes) -> Result<Self> {
        let hash = Multihash::sha3_256(&bytes);
        let with_context = |e: Error| e.context(format!("block {hash}"));
        Self::read(bytes, hash.clone()).map_err(with_context)
    }

    fn read(bytes: Bytes, hash: Multihash) -> Result<Self> {
        let buffer = FlatBufferReader::new(&bytes);
        let manifest = buffer.root()?;
        let kind = manifest.scalar_bytes(0)?.map_or(0, i64::from_le_bytes);
        if kind != MANIFEST_KIND {
            return Err(Error::block_corrupted(format!(
                "not a metadata block: expected the kind {MANIFEST_KIND:#x}, found {kind:#x}"
            )));
        }
        let version = manifest.scalar_bytes(1)?.map_or(0, i32::from_le_bytes);
        if !(OLDEST_VERSION..=MANIFEST_VERSION).contains(&version) {
            return Err(unsupported_version(version));
        }
        let content_bytes = manifest
            .byte_vector(2)?
            .ok_or_else(|| Error::block_corrupted("the content is missing"))?;
        let content = FlatBufferReader::new(content_bytes);
        let block = content.root()?;
        refuse_old_layout(&block)?;
        let system_time = block.timestamp(0)?;
        let previous = block
            .byte_vector(1)?
            .map(Multihash::from_bytes)
            .transpose()
            .map_err(|e| e.with_kind(ErrorKind::BlockCorrupted))?;
        let sequence_number = block.scalar_bytes(2)?.map_or(0, u64::from_le_bytes);
        let (event, is_known) = decode_event(&block)?;
        let is_fully_decoded = is_known && !content.has_unknown_slots();
        Ok(Self {
            hash,
            version,
            system_time: system_time
                .ok_or_else(|| Error::block_corrupted("the system time is missing"))?,
            prev_block_hash: previous,
            sequence_number,
            event,
            is_fully_decoded,
            bytes,
        })
    }

    /// Parses the YAML of a block and encodes the block.
    pub fn from_yaml(text: &str) -> Result<Self> {
        let parsed = yaml::parse(text)?;
        if get_text(&parsed.event, "kind") == Some(EventKind::Unknown.name()) {
            let manifest = parsed
                .event
                .get("manifest")
                .and_then(Value::as_str)
                .and_then(|text| STANDARD.decode(text).ok())
                .ok_or_else(|| {
                    Error::invalid("an event of the kind Unknown needs its manifest in base64")
                })?;
            return Self::from_bytes(manifest.into());
        }
        let previous = parsed
            .prev_block_hash
            .map(|text| text.parse::<Multihash>())
            .transpose()?;
        let time = time::from_text(&parsed.system_time)?;
        let (version, number) = (parsed.version, parsed.sequence_number);
        Self::with_version(version, time, previous.as_ref(), number, &parsed.event)
    }

    /// Formats the block as YAML, in the spelling of the specification.
    pub fn to_yaml(&self) -> String {
        let previous = self.prev_block_hash.as_ref().map(Multihash::to_string);
        let text = yaml::format_block(
            self.version,
            &time::to_text(&self.system_time),
            previous.as_deref(),
            self.sequence_number,
            &self.fields(),
        );
        if self.is_fully_decoded || self.kind() == EventKind::Unknown {
            text
        } else {
            format!("# Fields of a later release are not shown.\n{text}")
        }
    }

    /// The bytes that the block was read from.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The hash of the bytes.
    pub fn hash(&self) -> &Multihash {
        &self.hash
    }

    /// The version of the manifest.
    pub fn manifest_version(&self) -> i32 {
        self.version
    }

    /// The event.
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The name of the event.
    pub fn kind(&self) -> EventKind {
        self.event.kind()
    }

    /// Returns the event in the spelling of the specification; one of a later release with the bytes of the block.
    pub fn fields(&self) -> Value {
        let mut fields = self.event.to_fields();
        if let Event::Unknown { .. } = self.event {
            fields["manifest"] = STANDARD.encode(&self.bytes).into();
        }
        fields
    }

    /// Whether this release knows the event and all its fields.
    pub fn is_fully_decoded(&self) -> bool {
        self.is_fully_decoded
    }

    /// Encodes the fields in canonical form, without use of the bytes that were read.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if !self.is_fully_decoded {
            let message = format!(
                "block {} has fields of a later release, which would be lost by encoding it; use the \
                 bytes that were read",
                self.hash
            );
            return Err(Error::new(ErrorKind::FormatNotSupported, message));
        }
        let previous = self.prev_block_hash.as_ref();
        let number = self.sequence_number;
        encode(
            self.version,
            &self.system_time,
            previous,
            number,
            &self.fields(),
        )
    }
}

fn unsupported_version(version: i32) -> Error {
    let message = format!(
        "unsupported manifest version {version}: this release supports {OLDEST_VERSION} to {MANIFEST_VERSION}"
    );
    Error::new(ErrorKind::FormatNotSupported, message)
}

/// Refuses the layout of ODF 0.33: its sequence number has 4 bytes, so a value of 8 would overlap another slot.
fn refuse_old_layout(block: &FlatBufferTable<'_>) -> Result<()> {
    if block.overlaps(2, 8)? {
        let message = "the layout of ODF 0.33 (a sequence number of 4 bytes, SetDataSchema as event 11) is \
                       not supported";
        return Err(Error::new(ErrorKind::FormatNotSupported, message));
    }
    Ok(())
}

/// Returns the event, and whether this release knows it.
fn decode_event(block: &FlatBufferTable<'_>) -> Result<(Event, bool)> {
    match block.union(3, &EVENT) {
        Ok(Some(fields)) => Ok((Event::from_fields(fields)?, true)),
        Ok(None) => Err(Error::block_corrupted("the event is missing")),
        Err(e) if e.kind() == ErrorKind::FormatNotSupported => {
            let tag = block.scalar_bytes(3)?.map_or(0, |[tag]| tag);
            Ok((Event::Unknown { tag: tag.into() }, false))
        }
        Err(e) => Err(e),
    }
}

fn encode(
    version: i32,
    system_time: &UtcDateTime,
    prev_block_hash: Option<&Multihash>,
    sequence_number: u64,
    event: &Value,
) -> Result<Vec<u8>> {
    let mut block_writer = FlatBufferWriter::new(version >= MANIFEST_VERSION);
    let previous = prev_block_hash.map(|hash| block_writer.write_bytes(hash.as_bytes()));
    let (tag, offset) = block_writer.write_union(&EVENT, event)?;
    check_event(tag, event)?;
    let block = block_writer.write_slots(|writer| {
        writer.push_timestamp(0, system_time);
        if let Some(previous) = previous {
            writer.push_offset(1, previous);
        }
        writer.push_u64(2, sequence_number);
        writer.push_u8(3, tag);
        writer.push_offset(4, offset);
    });
    let block_bytes = block_writer.finish(block);

    let mut manifest_writer = FlatBufferWriter::new(true);
    let content = manifest_writer.write_bytes(&block_bytes);
    let manifest = manifest_writer.write_slots(|writer| {
        writer.push_i64(0, MANIFEST_KIND);
        writer.push_i32(1, version);
        writer.push_offset(2, content);
    });
    Ok(manifest_writer.finish(manifest))
}

/// Checks what the layout of the tables does not express.
fn check_event(tag: u8, event: &Value) -> Result<()> {
    let has = |name: &str| get(event, name).is_some();
    let kind = EVENT.variant_by_tag(tag).map(|(name, _)| name);
    if kind == Some(EventKind::SetDataSchema.name()) && has("rawArrowSchema") == has("schema") {
        let message = "SetDataSchema needs exactly one of schema and rawArrowSchema";
        return Err(Error::invalid(message));
    }
    Ok(())
}
