//! Writes flatbuffers by their layout, in the canonical order: of every table first its vectors, strings and tables,
//! depth first in the order of declaration, then its slots in the order of declaration, the tag of a union before its
//! value. Blocks are named by the hash of these bytes, so the bytes of an event must never change.
//!
//! A [`FlatBufferWriter`] builds one buffer. It takes JSON in the spelling of the specification.
//!
//! Errors are [`crate::ErrorKind::InvalidInput`], with the names of the fields that lead to the value in front of the
//! message: unknown and missing fields, values of another type, unknown variants, and tables that are nested too
//! deeply.
//!
//! Source: the binary format of flatbuffers. `tests/vectors/odf.json` has blocks of other tools to compare with.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flatbuffers::{FlatBufferBuilder, Push, PushAlignment, UnionWIPOffset, WIPOffset};
use serde_json::{Map, Value};

use super::decode::MAX_DEPTH;
use super::layout::{
    EnumLayout, EnumWidth, FieldLayout, FieldType, TableLayout, UnionLayout, is_spelling,
};
use super::multihash::{DatasetId, Multihash};
use super::time;
use super::transforms::canonicalize_reference;
use crate::error::{Error, Result};

type Offset = WIPOffset<UnionWIPOffset>;

/// A timestamp that is aligned to one byte, as in version 2 of the manifest.
#[derive(Clone, Copy)]
pub(super) struct PackedTimestamp {
    bytes: [u8; 16],
}

/// A timestamp that is aligned to four bytes, as in version 3 of the manifest.
#[derive(Clone, Copy)]
struct AlignedTimestamp(PackedTimestamp);

impl Push for PackedTimestamp {
    type Output = Self;

    #[expect(
        unsafe_code,
        reason = "the trait declares the method unsafe; it copies a slice"
    )]
    unsafe fn push(&self, dst: &mut [u8], _written: usize) {
        dst[..16].copy_from_slice(&self.bytes);
    }

    fn size() -> usize {
        16
    }

    fn alignment() -> PushAlignment {
        PushAlignment::new(1)
    }
}

impl Push for AlignedTimestamp {
    type Output = Self;

    #[expect(
        unsafe_code,
        reason = "the trait declares the method unsafe; it copies a slice"
    )]
    unsafe fn push(&self, dst: &mut [u8], _written: usize) {
        dst[..16].copy_from_slice(&self.0.bytes);
    }

    fn size() -> usize {
        16
    }

    fn alignment() -> PushAlignment {
        PushAlignment::new(4)
    }
}

/// Builds one flatbuffer.
pub(super) struct FlatBufferWriter<'f> {
    builder: FlatBufferBuilder<'f>,
    aligned_timestamps: bool,
    depth: usize,
}

impl fmt::Debug for FlatBufferWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatBufferWriter")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// The value of a slot.
enum SlotValue {
    Offset(Offset),
    Union(u8, Offset),
    U64(u64),
    U32(u32),
    I32(i32),
    I16(i16),
    Bool(bool),
    Timestamp([u8; 16]),
}

impl FlatBufferWriter<'_> {
    pub(super) fn new(aligned_timestamps: bool) -> Self {
        Self {
            builder: FlatBufferBuilder::with_capacity(1024),
            aligned_timestamps,
            depth: 0,
        }
    }

    pub(super) fn finish(mut self, root: Offset) -> Vec<u8> {
        self.builder.finish(root, None);
        self.builder.finished_data().to_vec()
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Offset {
        self.builder.create_vector(bytes).as_union_value()
    }

    /// Writes a table with the slots that `fill` pushes. The vectors, strings and tables of the slots must be written
    /// before.
    pub(super) fn write_slots(&mut self, fill: impl FnOnce(&mut Self)) -> Offset {
        let start = self.builder.start_table();
        fill(self);
        WIPOffset::new(self.builder.end_table(start).value())
    }

    pub(super) fn push_offset(&mut self, slot: u16, value: Offset) {
        self.builder.push_slot_always(voffset(slot), value);
    }

    pub(super) fn push_u64(&mut self, slot: u16, value: u64) {
        self.builder.push_slot(voffset(slot), value, 0);
    }

    pub(super) fn push_i64(&mut self, slot: u16, value: i64) {
        self.builder.push_slot(voffset(slot), value, 0);
    }

    pub(super) fn push_i32(&mut self, slot: u16, value: i32) {
        self.builder.push_slot(voffset(slot), value, 0);
    }

    pub(super) fn push_u8(&mut self, slot: u16, value: u8) {
        self.builder.push_slot(voffset(slot), value, 0);
    }

    pub(super) fn push_timestamp(&mut self, slot: u16, moment: &time::UtcDateTime) {
        self.push(slot, &SlotValue::Timestamp(time::to_bytes(moment)), true);
    }

    fn push(&mut self, slot: u16, value: &SlotValue, always: bool) {
        let at = voffset(slot);
        let builder = &mut self.builder;
        match *value {
            SlotValue::Offset(offset) => builder.push_slot_always(at, offset),
            SlotValue::Union(tag, offset) => {
                builder.push_slot(at, tag, 0);
                builder.push_slot_always(at + 2, offset);
            }
            SlotValue::Timestamp(bytes) if self.aligned_timestamps => {
                builder.push_slot_always(at, AlignedTimestamp(PackedTimestamp { bytes }));
            }
            SlotValue::Timestamp(bytes) => builder.push_slot_always(at, PackedTimestamp { bytes }),
            SlotValue::U64(value) if always => builder.push_slot_always(at, value),
            SlotValue::U64(value) => builder.push_slot(at, value, 0),
            SlotValue::U32(value) if always => builder.push_slot_always(at, value),
            SlotValue::U32(value) => builder.push_slot(at, value, 0),
            SlotValue::I32(value) if always => builder.push_slot_always(at, value),
            SlotValue::I32(value) => builder.push_slot(at, value, 0),
            SlotValue::I16(value) if always => builder.push_slot_always(at, value),
            SlotValue::I16(value) => builder.push_slot(at, value, 0),
            SlotValue::Bool(value) if always => builder.push_slot_always(at, value),
            SlotValue::Bool(value) => builder.push_slot(at, value, false),
        }
    }

    /// Writes a table with all its fields.
    pub(super) fn write_table(
        &mut self,
        layout: &'static TableLayout,
        fields: &Map<String, Value>,
    ) -> Result<Offset> {
        check_field_names(layout, fields.keys())?;
        self.write_known_fields(layout, fields)
    }

    fn write_known_fields(
        &mut self,
        layout: &'static TableLayout,
        fields: &Map<String, Value>,
    ) -> Result<Offset> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("the event is nested in more than {MAX_DEPTH} levels");
            return Err(Error::invalid(message));
        }
        let mut slot_values = Vec::with_capacity(layout.fields.len());
        for (slot, field) in layout.slots() {
            let field_value = fields.get(field.name).filter(|value| !value.is_null());
            match field_value {
                Some(value) => {
                    let with_context = |e: Error| e.context(field.name);
                    let slot_value = self
                        .write_slot_value(&field.field_type, value)
                        .map_err(with_context)?;
                    slot_values.push((slot, slot_value, field.optional));
                }
                None if field.optional => {}
                None => return Err(missing_field(layout, field)),
            }
        }
        self.depth -= 1;
        Ok(self.write_slots(|writer| {
            for (slot, value, always) in &slot_values {
                writer.push(*slot, value, *always);
            }
        }))
    }

    /// Writes the table of a union and returns its tag and its offset. The field `kind` names the variant.
    pub(super) fn write_union(
        &mut self,
        union: &'static UnionLayout,
        value: &Value,
    ) -> Result<(u8, Offset)> {
        let fields = as_object(value)?;
        let Some(kind) = fields.get("kind").and_then(Value::as_str) else {
            let message = format!("{} needs a kind: {}", union.name, describe_variants(union));
            return Err(Error::invalid(message));
        };
        let variant = union.variant_by_name(kind);
        let (tag, layout) = variant.ok_or_else(|| {
            let message = format!(
                "unknown {} {kind:?}: {}",
                union.name,
                describe_variants(union)
            );
            Error::invalid(message)
        })?;
        let with_context = |e: Error| e.context(kind);
        check_field_names(layout, fields.keys().filter(|key| *key != "kind"))
            .map_err(with_context)?;
        let offset = self
            .write_known_fields(layout, fields)
            .map_err(with_context)?;
        Ok((tag, offset))
    }

    fn write_slot_value(
        &mut self,
        field_type: &'static FieldType,
        value: &Value,
    ) -> Result<SlotValue> {
        Ok(match field_type {
            FieldType::U64 => SlotValue::U64(as_number(value)?),
            FieldType::U32 => SlotValue::U32(as_number(value)?),
            FieldType::I32 => SlotValue::I32(as_number(value)?),
            FieldType::Bool => {
                let boolean = value.as_bool();
                SlotValue::Bool(boolean.ok_or_else(|| unexpected_value("true or false", value))?)
            }
            FieldType::Time => {
                SlotValue::Timestamp(time::to_bytes(&time::from_text(as_text(value)?)?))
            }
            FieldType::Enum(enum_layout) => enum_slot_value(enum_layout, value)?,
            FieldType::Union(union) => {
                let (tag, offset) = self.write_union(union, value)?;
                SlotValue::Union(tag, offset)
            }
            _ => SlotValue::Offset(self.write_offset_value(field_type, value)?),
        })
    }

    fn write_offset_value(
        &mut self,
        field_type: &'static FieldType,
        value: &Value,
    ) -> Result<Offset> {
        Ok(match field_type {
            FieldType::Hash => {
                let hash: Multihash = as_text(value)?.parse()?;
                self.write_bytes(hash.as_bytes())
            }
            FieldType::DatasetId => {
                let id: DatasetId = as_text(value)?.parse()?;
                self.write_bytes(&id.to_bytes())
            }
            FieldType::Bytes => {
                let bytes = STANDARD
                    .decode(as_text(value)?)
                    .map_err(|e| Error::invalid("the value is not base64").with_source(e))?;
                self.write_bytes(&bytes)
            }
            FieldType::DatasetRef => {
                let text = canonicalize_reference(as_text(value)?);
                self.builder.create_string(&text).as_union_value()
            }
            FieldType::Texts => {
                let strings = as_array(value)?.iter().map(|item| {
                    let text = as_text(item)?;
                    Ok(self.builder.create_string(text).as_union_value())
                });
                let offsets: Vec<Offset> = strings.collect::<Result<_>>()?;
                self.builder.create_vector(&offsets).as_union_value()
            }
            FieldType::Table(layout) => self.write_table(layout, as_object(value)?)?,
            FieldType::Tables(layout) => {
                let tables = as_array(value)?
                    .iter()
                    .map(|item| self.write_table(layout, as_object(item)?));
                let offsets: Vec<Offset> = tables.collect::<Result<_>>()?;
                self.builder.create_vector(&offsets).as_union_value()
            }
            FieldType::Unions(union) => {
                let wrapped = as_array(value)?.iter().map(|item| {
                    let (tag, offset) = self.write_union(union, item)?;
                    let slot_value = SlotValue::Union(tag, offset);
                    Ok(self.write_slots(|writer| writer.push(0, &slot_value, true)))
                });
                let offsets: Vec<Offset> = wrapped.collect::<Result<_>>()?;
                self.builder.create_vector(&offsets).as_union_value()
            }
            FieldType::Attributes => {
                let json =
                    serde_json::to_string(&sort_keys(&Value::Object(as_object(value)?.clone())))
                        .map_err(|e| {
                            Error::other("the attributes cannot be serialized").with_source(e)
                        })?;
                let entries = self.builder.create_string(&json).as_union_value();
                self.write_slots(|writer| writer.push_offset(0, entries))
            }
            _ => self.builder.create_string(as_text(value)?).as_union_value(),
        })
    }
}

/// Sorts the keys at every level. Features of `serde_json` decide whether its maps are sorted.
fn sort_keys(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let ordered_fields: BTreeMap<_, _> = fields.iter().collect();
            let sorted_fields = ordered_fields
                .into_iter()
                .map(|(key, value)| (key.clone(), sort_keys(value)));
            Value::Object(sorted_fields.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sort_keys).collect()),
        other => other.clone(),
    }
}

fn voffset(slot: u16) -> u16 {
    4 + 2 * slot
}

fn check_field_names<'k>(
    layout: &TableLayout,
    mut keys: impl Iterator<Item = &'k String>,
) -> Result<()> {
    let is_known = |key: &str| layout.fields.iter().any(|field| field.name == key);
    let Some(key) = keys.find(|key| !is_known(key)) else {
        return Ok(());
    };
    let names: Vec<_> = layout.fields.iter().map(|field| field.name).collect();
    let name_list = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    let message = format!("unknown field {key:?}; known fields: {name_list}");
    Err(Error::invalid(message))
}

fn missing_field(layout: &TableLayout, field: &FieldLayout) -> Error {
    let message = format!("{} needs the field {:?}", layout.name, field.name);
    Error::invalid(message)
}

fn describe_variants(union: &UnionLayout) -> String {
    let names: Vec<_> = union.variants.iter().map(|(name, _)| *name).collect();
    format!("expected one of {}", names.join(", "))
}

fn unexpected_value(expected_type: &str, value: &Value) -> Error {
    Error::invalid(format!("expected {expected_type}, found {value}"))
}

fn as_text(value: &Value) -> Result<&str> {
    value
        .as_str()
        .ok_or_else(|| unexpected_value("text", value))
}

fn as_array(value: &Value) -> Result<&Vec<Value>> {
    value
        .as_array()
        .ok_or_else(|| unexpected_value("a list", value))
}

fn as_object(value: &Value) -> Result<&Map<String, Value>> {
    value
        .as_object()
        .ok_or_else(|| unexpected_value("a mapping", value))
}

fn as_number<T: TryFrom<i128>>(value: &Value) -> Result<T> {
    value
        .as_i64()
        .map(i128::from)
        .or_else(|| value.as_u64().map(i128::from))
        .and_then(|n| T::try_from(n).ok())
        .ok_or_else(|| unexpected_value("a whole number in range", value))
}

fn enum_slot_value(enum_layout: &EnumLayout, value: &Value) -> Result<SlotValue> {
    let variant_name = as_text(value)?;
    let position = enum_layout
        .names
        .iter()
        .position(|name| is_spelling(name, variant_name));
    let number = position
        .and_then(|index| i16::try_from(index).ok())
        .ok_or_else(|| {
            let message = format!(
                "unknown value {variant_name:?}: expected one of {}",
                enum_layout.names.join(", ")
            );
            Error::invalid(message)
        })?;
    Ok(match enum_layout.width {
        EnumWidth::I16 => SlotValue::I16(number),
        EnumWidth::I32 => SlotValue::I32(number.into()),
    })
}
