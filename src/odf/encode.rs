//! Flatbuffers written by their layout, in the canonical order: of every table first its vectors,
//! strings and tables, depth first as they are declared, then its slots as they are declared, a
//! union's tag before its value. Hashes are of these bytes, so nothing here may change.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flatbuffers::{FlatBufferBuilder, Push, PushAlignment, UnionWIPOffset, WIPOffset};
use serde_json::{Map, Value};

use super::decode::MAX_DEPTH;
use super::layout::{Enum, Field, Kind, Table, Union, Width, is_spelling};
use super::multihash::{DatasetId, Multihash};
use super::time;
use super::transforms::canonical;
use crate::error::{Error, Result};

type Offset = WIPOffset<UnionWIPOffset>;

/// A timestamp of a manifest's version: those of version 2 are aligned to a byte.
#[derive(Clone, Copy)]
pub(super) struct Stamp {
    bytes: [u8; 16],
}

/// The same, aligned to four bytes.
#[derive(Clone, Copy)]
struct AlignedStamp(Stamp);

impl Push for Stamp {
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

impl Push for AlignedStamp {
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

/// A buffer under way.
pub(super) struct Writer<'f> {
    builder: FlatBufferBuilder<'f>,
    aligned_stamps: bool,
    depth: usize,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("depth", &self.depth)
            .finish_non_exhaustive()
    }
}

/// What a slot gets.
enum Slot {
    Offset(Offset),
    Union(u8, Offset),
    U64(u64),
    U32(u32),
    I32(i32),
    I16(i16),
    Bool(bool),
    Stamp([u8; 16]),
}

impl Writer<'_> {
    pub(super) fn new(aligned_stamps: bool) -> Self {
        Self {
            builder: FlatBufferBuilder::with_capacity(1024),
            aligned_stamps,
            depth: 0,
        }
    }

    pub(super) fn finish(mut self, root: Offset) -> Vec<u8> {
        self.builder.finish(root, None);
        self.builder.finished_data().to_vec()
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Offset {
        self.builder.create_vector(bytes).as_union_value()
    }

    /// A table of slots that are there already.
    pub(super) fn slots(&mut self, fill: impl FnOnce(&mut Self)) -> Offset {
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

    pub(super) fn push_stamp(&mut self, slot: u16, moment: &time::Moment) {
        self.push(slot, &Slot::Stamp(time::to_bytes(moment)), true);
    }

    fn push(&mut self, slot: u16, value: &Slot, always: bool) {
        let at = voffset(slot);
        let builder = &mut self.builder;
        match *value {
            Slot::Offset(offset) => builder.push_slot_always(at, offset),
            Slot::Union(tag, offset) => {
                builder.push_slot(at, tag, 0);
                builder.push_slot_always(at + 2, offset);
            }
            Slot::Stamp(bytes) if self.aligned_stamps => {
                builder.push_slot_always(at, AlignedStamp(Stamp { bytes }));
            }
            Slot::Stamp(bytes) => builder.push_slot_always(at, Stamp { bytes }),
            Slot::U64(value) if always => builder.push_slot_always(at, value),
            Slot::U64(value) => builder.push_slot(at, value, 0),
            Slot::U32(value) if always => builder.push_slot_always(at, value),
            Slot::U32(value) => builder.push_slot(at, value, 0),
            Slot::I32(value) if always => builder.push_slot_always(at, value),
            Slot::I32(value) => builder.push_slot(at, value, 0),
            Slot::I16(value) if always => builder.push_slot_always(at, value),
            Slot::I16(value) => builder.push_slot(at, value, 0),
            Slot::Bool(value) if always => builder.push_slot_always(at, value),
            Slot::Bool(value) => builder.push_slot(at, value, false),
        }
    }

    /// A table with all its fields.
    pub(super) fn table(
        &mut self,
        layout: &'static Table,
        fields: &Map<String, Value>,
    ) -> Result<Offset> {
        check_names(layout, fields.keys())?;
        self.known_fields(layout, fields)
    }

    fn known_fields(
        &mut self,
        layout: &'static Table,
        fields: &Map<String, Value>,
    ) -> Result<Offset> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} tables in tables");
            return Err(Error::invalid(message));
        }
        let mut made = Vec::with_capacity(layout.fields.len());
        for (slot, field) in layout.slots() {
            let given = fields.get(field.name).filter(|value| !value.is_null());
            match given {
                Some(value) => {
                    let inside = |e: Error| e.context(field.name);
                    let value = self.value(&field.kind, value).map_err(inside)?;
                    made.push((slot, value, field.optional));
                }
                None if field.optional => {}
                None => return Err(missing(layout, field)),
            }
        }
        self.depth -= 1;
        Ok(self.slots(|writer| {
            for (slot, value, always) in &made {
                writer.push(*slot, value, *always);
            }
        }))
    }

    /// A union's tag and table; which one it is, `kind` says.
    pub(super) fn union(&mut self, union: &'static Union, value: &Value) -> Result<(u8, Offset)> {
        let fields = object(value)?;
        let Some(kind) = fields.get("kind").and_then(Value::as_str) else {
            let message = format!("{} has no kind: {}", union.name, names_of(union));
            return Err(Error::invalid(message));
        };
        let found = union.named(kind);
        let (tag, layout) = found.ok_or_else(|| {
            let message = format!("{kind:?} is no {}: {}", union.name, names_of(union));
            Error::invalid(message)
        })?;
        let inside = |e: Error| e.context(kind);
        check_names(layout, fields.keys().filter(|key| *key != "kind")).map_err(inside)?;
        let offset = self.known_fields(layout, fields).map_err(inside)?;
        Ok((tag, offset))
    }

    fn value(&mut self, kind: &'static Kind, value: &Value) -> Result<Slot> {
        Ok(match kind {
            Kind::U64 => Slot::U64(number(value)?),
            Kind::U32 => Slot::U32(number(value)?),
            Kind::I32 => Slot::I32(number(value)?),
            Kind::Bool => {
                let found = value.as_bool();
                Slot::Bool(found.ok_or_else(|| expected("true or false", value))?)
            }
            Kind::Time => Slot::Stamp(time::to_bytes(&time::from_text(text(value)?)?)),
            Kind::Enum(named) => number_of(named, value)?,
            Kind::Union(union) => {
                let (tag, offset) = self.union(union, value)?;
                Slot::Union(tag, offset)
            }
            _ => Slot::Offset(self.object(kind, value)?),
        })
    }

    fn object(&mut self, kind: &'static Kind, value: &Value) -> Result<Offset> {
        Ok(match kind {
            Kind::Hash => {
                let hash: Multihash = text(value)?.parse()?;
                self.bytes(hash.as_bytes())
            }
            Kind::DatasetId => {
                let id: DatasetId = text(value)?.parse()?;
                self.bytes(&id.to_bytes())
            }
            Kind::Bytes => {
                let bytes = STANDARD.decode(text(value)?);
                let bytes = bytes.map_err(|e| Error::invalid("not base64").with_source(e))?;
                self.bytes(&bytes)
            }
            Kind::DatasetRef => {
                let text = canonical(text(value)?);
                self.builder.create_string(&text).as_union_value()
            }
            Kind::Texts => {
                let texts = array(value)?.iter().map(|item| {
                    let text = text(item)?;
                    Ok(self.builder.create_string(text).as_union_value())
                });
                let texts: Vec<Offset> = texts.collect::<Result<_>>()?;
                self.builder.create_vector(&texts).as_union_value()
            }
            Kind::Table(layout) => self.table(layout, object(value)?)?,
            Kind::Tables(layout) => {
                let tables = array(value)?
                    .iter()
                    .map(|item| self.table(layout, object(item)?));
                let tables: Vec<Offset> = tables.collect::<Result<_>>()?;
                self.builder.create_vector(&tables).as_union_value()
            }
            Kind::Unions(union) => {
                let wrapped = array(value)?.iter().map(|item| {
                    let (tag, offset) = self.union(union, item)?;
                    let value = Slot::Union(tag, offset);
                    Ok(self.slots(|writer| writer.push(0, &value, true)))
                });
                let wrapped: Vec<Offset> = wrapped.collect::<Result<_>>()?;
                self.builder.create_vector(&wrapped).as_union_value()
            }
            Kind::Attributes => {
                let entries =
                    serde_json::to_string(&sorted(&Value::Object(object(value)?.clone())))
                        .map_err(|e| Error::other("attributes cannot be written").with_source(e))?;
                let entries = self.builder.create_string(&entries).as_union_value();
                self.slots(|writer| writer.push_offset(0, entries))
            }
            _ => self.builder.create_string(text(value)?).as_union_value(),
        })
    }
}

/// Keys in order at every level, whatever map the JSON library has been built with.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().collect();
            let fields = fields
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        other => other.clone(),
    }
}

fn voffset(slot: u16) -> u16 {
    4 + 2 * slot
}

fn check_names<'k>(layout: &Table, mut keys: impl Iterator<Item = &'k String>) -> Result<()> {
    let is_known = |key: &str| layout.fields.iter().any(|field| field.name == key);
    let Some(key) = keys.find(|key| !is_known(key)) else {
        return Ok(());
    };
    let names: Vec<_> = layout.fields.iter().map(|field| field.name).collect();
    let names = if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    };
    let message = format!("there is no field {key:?}; there are: {names}");
    Err(Error::invalid(message))
}

fn missing(layout: &Table, field: &Field) -> Error {
    let message = format!("{} needs {}", layout.name, field.name);
    Error::invalid(message)
}

fn names_of(union: &Union) -> String {
    let names: Vec<_> = union.variants.iter().map(|(name, _)| *name).collect();
    format!("it is one of {}", names.join(", "))
}

fn expected(what: &str, value: &Value) -> Error {
    Error::invalid(format!("{value} is not {what}"))
}

fn text(value: &Value) -> Result<&str> {
    value.as_str().ok_or_else(|| expected("text", value))
}

fn array(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| expected("a list", value))
}

fn object(value: &Value) -> Result<&Map<String, Value>> {
    value
        .as_object()
        .ok_or_else(|| expected("a mapping", value))
}

fn number<T: TryFrom<i128>>(value: &Value) -> Result<T> {
    let found = value.as_i64().map(i128::from);
    let found = found.or_else(|| value.as_u64().map(i128::from));
    let found = found.and_then(|n| T::try_from(n).ok());
    found.ok_or_else(|| expected("a whole number in range", value))
}

fn number_of(named: &Enum, value: &Value) -> Result<Slot> {
    let given = text(value)?;
    let found = named.names.iter().position(|name| is_spelling(name, given));
    let found = found.and_then(|index| i16::try_from(index).ok());
    let found = found.ok_or_else(|| {
        let message = format!("{given:?} is none of {}", named.names.join(", "));
        Error::invalid(message)
    })?;
    Ok(match named.width {
        Width::I16 => Slot::I16(found),
        Width::I32 => Slot::I32(found.into()),
    })
}
