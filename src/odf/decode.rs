//! Reads flatbuffers by their layout. Every offset is checked before it is followed, so damaged and hostile bytes
//! give an error.
//!
//! A [`FlatBufferReader`] wraps a buffer, a [`FlatBufferTable`] is one of its tables. Tables become JSON objects in
//! the spelling of the specification.
//!
//! Errors: [`ErrorKind::BlockCorrupted`] for damaged bytes; [`ErrorKind::FormatNotSupported`] for the tag of a union
//! or the number of an enum that this release does not know. Slots that the layout does not have are no error, see
//! [`FlatBufferReader::has_unknown_slots`].
//!
//! Refused: tables that are nested too deeply, and buffers that read the same bytes too often. Offsets may share
//! tables, and sharing could make a small buffer expand without end.
//!
//! Source: the binary format of flatbuffers.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::layout::{EnumLayout, EnumWidth, FieldLayout, FieldType, TableLayout, UnionLayout};
use super::multihash::{DatasetId, Multihash};
use super::time;
use crate::error::{Error, ErrorKind, Result};

/// The most levels of nested tables; the limit of the verifiers of the flatbuffers libraries.
pub(super) const MAX_DEPTH: usize = 64;
/// How often every byte may be read, on average.
const MAX_READS_PER_BYTE: usize = 8;
/// The bytes of an offset, and of the length in front of a vector or a string.
const OFFSET_BYTES: usize = 4;
/// What a table costs of the budget besides its own bytes.
const TABLE_COST: usize = 32;
const TIMESTAMP_BYTES: usize = 16;

/// An error of the kind [`ErrorKind::FormatNotSupported`]: a later release may have written the bytes.
fn format_not_supported(message: String) -> Error {
    Error::new(ErrorKind::FormatNotSupported, message)
}

/// A buffer with one root table.
#[derive(Debug)]
pub(super) struct FlatBufferReader<'a> {
    bytes: &'a [u8],
    /// The number of bytes that may still be read.
    budget: Cell<usize>,
    /// Whether a table had slots that its layout does not have.
    unknown_slots: Cell<bool>,
}

/// A table of a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlatBufferTable<'a> {
    buffer: &'a FlatBufferReader<'a>,
    at: usize,
    vtable: usize,
    vtable_bytes: usize,
    table_bytes: usize,
    depth: usize,
}

impl<'a> FlatBufferReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let budget = bytes.len().saturating_mul(MAX_READS_PER_BYTE);
        Self {
            bytes,
            budget: Cell::new(budget),
            unknown_slots: Cell::new(false),
        }
    }

    /// Whether a table that was read has slots that its layout does not have: a later release wrote it.
    pub(super) fn has_unknown_slots(&self) -> bool {
        self.unknown_slots.get()
    }

    /// Returns the root table.
    pub(super) fn root(&'a self) -> Result<FlatBufferTable<'a>> {
        self.table_at(self.follow_offset(0)?, 0)
    }

    fn read_array<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        at.checked_add(N)
            .and_then(|end| self.bytes.get(at..end))
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| {
                let message = format!("flatbuffer: {N} bytes at byte {at} are out of bounds");
                Error::block_corrupted(message)
            })
    }

    fn spend(&self, bytes: usize) -> Result<()> {
        let remaining = self.budget.get().checked_sub(bytes).ok_or_else(|| {
            Error::block_corrupted("flatbuffer: too many offsets lead to the same bytes")
        })?;
        self.budget.set(remaining);
        Ok(())
    }

    /// Returns the position that the offset at byte `at` leads to.
    fn follow_offset(&self, at: usize) -> Result<usize> {
        let offset = u32::from_le_bytes(self.read_array(at)?) as usize;
        at.checked_add(offset)
            .filter(|target| offset != 0 && *target < self.bytes.len())
            .ok_or_else(|| {
                Error::block_corrupted(format!("flatbuffer: offset out of bounds at byte {at}"))
            })
    }

    fn table_at(&'a self, at: usize, depth: usize) -> Result<FlatBufferTable<'a>> {
        if depth >= MAX_DEPTH {
            return Err(Error::block_corrupted(format!(
                "flatbuffer: tables are nested in more than {MAX_DEPTH} levels"
            )));
        }
        let vtable_distance = i64::from(i32::from_le_bytes(self.read_array(at)?));
        let signed_start = i64::try_from(at)
            .ok()
            .and_then(|at| at.checked_sub(vtable_distance));
        let vtable_start = signed_start.and_then(|v| usize::try_from(v).ok());
        let missing_vtable = || {
            Error::block_corrupted(format!(
                "flatbuffer: missing vtable of the table at byte {at}"
            ))
        };
        let vtable = vtable_start.ok_or_else(missing_vtable)?;
        let vtable_bytes = usize::from(u16::from_le_bytes(self.read_array(vtable)?));
        let table_bytes = usize::from(u16::from_le_bytes(
            self.read_array(vtable.saturating_add(2))?,
        ));
        let is_valid = vtable_bytes >= 4
            && vtable_bytes.is_multiple_of(2)
            && vtable + vtable_bytes <= self.bytes.len()
            && table_bytes >= 4
            && at + table_bytes <= self.bytes.len();
        if !is_valid {
            return Err(missing_vtable());
        }
        self.spend(table_bytes + vtable_bytes + TABLE_COST)?;
        Ok(FlatBufferTable {
            buffer: self,
            at,
            vtable,
            vtable_bytes,
            table_bytes,
            depth,
        })
    }

    /// Returns the position of the first element and the number of elements of the vector that the offset at byte
    /// `at` leads to; each element has `width` bytes.
    fn vector(&self, at: usize, width: usize) -> Result<(usize, usize)> {
        let start = self.follow_offset(at)?;
        let count = u32::from_le_bytes(self.read_array(start)?) as usize;
        let checked_bytes = count.checked_mul(width).filter(|bytes| {
            let end = bytes.checked_add(start + OFFSET_BYTES);
            end.is_some_and(|end| end <= self.bytes.len())
        });
        let bytes = checked_bytes.ok_or_else(|| {
            Error::block_corrupted(format!(
                "flatbuffer: the vector at byte {start} is longer than the buffer"
            ))
        })?;
        self.spend(bytes + OFFSET_BYTES)?;
        Ok((start + OFFSET_BYTES, count))
    }

    fn bytes_at(&self, at: usize) -> Result<&'a [u8]> {
        let (start, count) = self.vector(at, 1)?;
        Ok(&self.bytes[start..start + count])
    }

    fn text_at(&self, at: usize) -> Result<&'a str> {
        let bytes = self.bytes_at(at)?;
        std::str::from_utf8(bytes)
            .map_err(|e| Error::block_corrupted("flatbuffer: a string is not UTF-8").with_source(e))
    }

    /// Returns the positions of the elements of a vector of offsets.
    fn element_positions(&self, at: usize) -> Result<impl Iterator<Item = usize> + use<>> {
        let (start, count) = self.vector(at, OFFSET_BYTES)?;
        Ok((0..count).map(move |index| start + index * OFFSET_BYTES))
    }
}

impl<'a> FlatBufferTable<'a> {
    /// Returns the position of a slot's value, which has `width` bytes; None if the slot is absent.
    fn slot_position(&self, slot: u16, width: usize) -> Result<Option<usize>> {
        let Some(offset) = self.slot_offset(slot)? else {
            return Ok(None);
        };
        if offset < 4 || offset + width > self.table_bytes {
            let message = format!("flatbuffer: slot {slot} is outside of its table");
            return Err(Error::block_corrupted(message));
        }
        Ok(Some(self.at + offset))
    }

    fn slot_offset(&self, slot: u16) -> Result<Option<usize>> {
        let entry = 4 + 2 * usize::from(slot);
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(self.buffer.read_array(self.vtable + entry)?);
        Ok((offset != 0).then_some(usize::from(offset)))
    }

    /// Whether a value of `width` bytes in a slot would overlap the value of another slot or the end of the table.
    pub(super) fn overlaps(&self, slot: u16, width: usize) -> Result<bool> {
        let Some(start) = self.slot_offset(slot)? else {
            return Ok(false);
        };
        let mut overlaps = start + width > self.table_bytes;
        for other in 0..u16::try_from((self.vtable_bytes - 4) / 2).unwrap_or(0) {
            let offset = self.slot_offset(other)?.unwrap_or(0);
            overlaps |= other != slot && (start..start + width).contains(&offset);
        }
        Ok(overlaps)
    }

    pub(super) fn scalar_bytes<const N: usize>(&self, slot: u16) -> Result<Option<[u8; N]>> {
        self.slot_position(slot, N)?
            .map(|at| self.buffer.read_array(at))
            .transpose()
    }

    pub(super) fn byte_vector(&self, slot: u16) -> Result<Option<&'a [u8]>> {
        let at = self.slot_position(slot, OFFSET_BYTES)?;
        at.map(|at| self.buffer.bytes_at(at)).transpose()
    }

    pub(super) fn timestamp(&self, slot: u16) -> Result<Option<time::UtcDateTime>> {
        let bytes = self.scalar_bytes::<TIMESTAMP_BYTES>(slot)?;
        bytes.map(|bytes| time::from_bytes(&bytes)).transpose()
    }

    /// Returns the table of a slot; None if the slot is absent.
    fn table(&self, slot: u16) -> Result<Option<Self>> {
        let at = self.slot_position(slot, OFFSET_BYTES)?;
        at.map(|at| {
            self.buffer
                .table_at(self.buffer.follow_offset(at)?, self.depth + 1)
        })
        .transpose()
    }

    /// Returns the value of a union, with the name of the variant as `kind`; None if the union is absent. The tag is
    /// in `slot`, the table in the next one.
    pub(super) fn union(&self, slot: u16, union: &UnionLayout) -> Result<Option<Value>> {
        let tag = self.scalar_bytes::<1>(slot)?.map_or(0, |[tag]| tag);
        let Some(table) = self.table(slot + 1)?.filter(|_| tag != 0) else {
            return Ok(None);
        };
        let (name, layout) = union.variant_by_tag(tag).ok_or_else(|| {
            format_not_supported(format!(
                "unknown tag {tag} of the union {}; a later release may know it",
                union.name
            ))
        })?;
        let mut fields = table.read_fields(layout)?;
        fields.insert("kind".to_owned(), name.into());
        Ok(Some(Value::Object(fields)))
    }

    /// Returns all fields, in the spelling of the specification.
    pub(super) fn read_fields(&self, layout: &'static TableLayout) -> Result<Map<String, Value>> {
        let mut fields = Map::new();
        for (slot, field) in layout.slots() {
            let with_context = |e: Error| e.context(field.name);
            match self.read_field(slot, field).map_err(with_context)? {
                Some(value) => {
                    fields.insert(field.name.to_owned(), value);
                }
                None if field.optional => {}
                None => {
                    let message = format!("{}: missing field {:?}", layout.name, field.name);
                    return Err(Error::block_corrupted(message));
                }
            }
        }
        for slot in layout.slot_count()..u16::try_from((self.vtable_bytes - 4) / 2).unwrap_or(0) {
            if self.slot_offset(slot)?.is_some() {
                self.buffer.unknown_slots.set(true);
            }
        }
        Ok(fields)
    }

    fn read_field(&self, slot: u16, field: &'static FieldLayout) -> Result<Option<Value>> {
        let zero = (!field.optional).then_some(0);
        match &field.field_type {
            FieldType::U64 => {
                let number = self.scalar_bytes(slot)?.map(u64::from_le_bytes);
                Ok(number.or(zero).map(Value::from))
            }
            FieldType::U32 => {
                let number = self.scalar_bytes(slot)?.map(u32::from_le_bytes);
                Ok(number.map(u64::from).or(zero).map(Value::from))
            }
            FieldType::I32 => {
                let number = self.scalar_bytes(slot)?.map(i32::from_le_bytes);
                let value = number.map(Value::from);
                Ok(value.or(zero.map(Value::from)))
            }
            FieldType::Bool => {
                let boolean = self.scalar_bytes(slot)?.map(|[byte]| byte != 0);
                Ok(boolean.or(zero.map(|_| false)).map(Value::from))
            }
            FieldType::Time => Ok(self.timestamp(slot)?.map(|t| time::to_text(&t).into())),
            FieldType::Enum(enum_layout) => self.read_enum_name(slot, enum_layout, field.optional),
            FieldType::Union(union) => self.union(slot, union),
            _ => {
                let at = self.slot_position(slot, OFFSET_BYTES)?;
                at.map(|at| self.value_at(at, &field.field_type))
                    .transpose()
            }
        }
    }

    fn read_enum_name(
        &self,
        slot: u16,
        enum_layout: &EnumLayout,
        optional: bool,
    ) -> Result<Option<Value>> {
        let number = match enum_layout.width {
            EnumWidth::I16 => self
                .scalar_bytes(slot)?
                .map(|b| i32::from(i16::from_le_bytes(b))),
            EnumWidth::I32 => self.scalar_bytes(slot)?.map(i32::from_le_bytes),
        };
        let Some(number) = number.or((!optional).then_some(0)) else {
            return Ok(None);
        };
        let known_name = usize::try_from(number)
            .ok()
            .and_then(|index| enum_layout.names.get(index));
        let name = known_name.ok_or_else(|| {
            format_not_supported(format!(
                "unknown number {number} of an enum; this release knows {}",
                enum_layout.names.join(", ")
            ))
        })?;
        Ok(Some(Value::from(*name)))
    }

    /// Returns the value that the offset at byte `at` leads to.
    fn value_at(&self, at: usize, field_type: &FieldType) -> Result<Value> {
        let buffer = self.buffer;
        let as_corrupted = |e: Error| e.with_kind(ErrorKind::BlockCorrupted);
        Ok(match field_type {
            FieldType::Hash => {
                let hash = Multihash::from_bytes(buffer.bytes_at(at)?).map_err(as_corrupted)?;
                hash.to_string().into()
            }
            FieldType::DatasetId => {
                let id = DatasetId::from_bytes(buffer.bytes_at(at)?).map_err(as_corrupted)?;
                id.to_string().into()
            }
            FieldType::Bytes => STANDARD.encode(buffer.bytes_at(at)?).into(),
            FieldType::Text | FieldType::DatasetRef => buffer.text_at(at)?.into(),
            FieldType::Texts => {
                let positions = buffer.element_positions(at)?;
                let texts = positions.map(|at| Ok(Value::from(buffer.text_at(at)?)));
                Value::Array(texts.collect::<Result<_>>()?)
            }
            FieldType::Table(layout) => Value::Object(self.child(at)?.read_fields(layout)?),
            FieldType::Tables(layout) => {
                let positions = buffer.element_positions(at)?;
                let tables =
                    positions.map(|at| Ok(Value::Object(self.child(at)?.read_fields(layout)?)));
                Value::Array(tables.collect::<Result<_>>()?)
            }
            FieldType::Unions(union) => {
                let positions = buffer.element_positions(at)?;
                let values = positions.map(|at| {
                    let value = self.child(at)?.union(0, union)?;
                    value.ok_or_else(|| {
                        Error::block_corrupted(format!(
                            "an element of the type {} is empty",
                            union.name
                        ))
                    })
                });
                Value::Array(values.collect::<Result<_>>()?)
            }
            FieldType::Attributes => read_attributes(&self.child(at)?)?,
            FieldType::U64
            | FieldType::U32
            | FieldType::I32
            | FieldType::Bool
            | FieldType::Time
            | FieldType::Enum(_)
            | FieldType::Union(_) => {
                return Err(Error::other(
                    "internal error: a number was read as an offset",
                ));
            }
        })
    }

    fn child(&self, at: usize) -> Result<Self> {
        self.buffer
            .table_at(self.buffer.follow_offset(at)?, self.depth + 1)
    }
}

fn read_attributes(table: &FlatBufferTable<'_>) -> Result<Value> {
    let at = table.slot_position(0, OFFSET_BYTES)?;
    let text = at.map(|at| table.buffer.text_at(at)).transpose()?;
    let attributes: Value = serde_json::from_str(text.unwrap_or("{}"))
        .map_err(|e| Error::block_corrupted("the attributes are not JSON").with_source(e))?;
    if !attributes.is_object() {
        return Err(Error::block_corrupted(
            "the attributes are not a JSON object",
        ));
    }
    Ok(attributes)
}
