//! Flatbuffers read by their layout: every offset is checked before it is followed, so that damaged
//! and hostile bytes give an error.
//!
//! Source: the binary format of flatbuffers. Depth and the bytes looked at are limited; a buffer may
//! share tables, and sharing could make a small one endless.

use std::cell::Cell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::layout::{Enum, Field, Kind, Table, Union, Width};
use super::multihash::{DatasetId, Multihash};
use super::time;
use crate::error::{Error, ErrorKind, Result};

/// Tables in tables; the same limit as the verifiers of the flatbuffers libraries.
pub(super) const MAX_DEPTH: usize = 64;
/// How often the same bytes may be looked at, on average.
const MAX_READS_PER_BYTE: usize = 8;
/// What a vector, a string or an offset starts with.
const OFFSET_BYTES: usize = 4;
/// What a table costs besides its bytes.
const TABLE_COST: usize = 32;
const TIMESTAMP_BYTES: usize = 16;

/// An error of damaged bytes.
pub(super) fn damaged(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::BlockCorrupted, why)
}

/// An error of bytes that a later release may have written.
fn unknown(why: String) -> Error {
    Error::new(ErrorKind::FormatNotSupported, why)
}

/// A buffer with one root table.
#[derive(Debug)]
pub(super) struct Buffer<'a> {
    bytes: &'a [u8],
    budget: Cell<usize>,
    /// Whether slots were seen that the layout does not have.
    unknown_slots: Cell<bool>,
}

/// A table of a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    buffer: &'a Buffer<'a>,
    at: usize,
    vtable: usize,
    vtable_bytes: usize,
    bytes: usize,
    depth: usize,
}

impl<'a> Buffer<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let budget = bytes.len().saturating_mul(MAX_READS_PER_BYTE);
        Self {
            bytes,
            budget: Cell::new(budget),
            unknown_slots: Cell::new(false),
        }
    }

    pub(super) fn has_unknown_slots(&self) -> bool {
        self.unknown_slots.get()
    }

    /// The root.
    pub(super) fn root(&'a self) -> Result<View<'a>> {
        self.table(self.target(0)?, 0)
    }

    fn at<const N: usize>(&self, at: usize) -> Result<[u8; N]> {
        let end = at.checked_add(N);
        let found = end.and_then(|end| self.bytes.get(at..end));
        found
            .and_then(|found| found.try_into().ok())
            .ok_or_else(|| damaged(format!("it ends before byte {at} and {N} more")))
    }

    fn spend(&self, bytes: usize) -> Result<()> {
        let left = self.budget.get().checked_sub(bytes);
        let left =
            left.ok_or_else(|| damaged("its offsets lead to the same bytes again and again"))?;
        self.budget.set(left);
        Ok(())
    }

    /// Where the offset at a place leads.
    fn target(&self, at: usize) -> Result<usize> {
        let offset = u32::from_le_bytes(self.at(at)?) as usize;
        let target = at.checked_add(offset).filter(|t| *t < self.bytes.len());
        target
            .filter(|_| offset != 0)
            .ok_or_else(|| damaged(format!("the offset at byte {at} leads nowhere")))
    }

    fn table(&'a self, at: usize, depth: usize) -> Result<View<'a>> {
        if depth >= MAX_DEPTH {
            return Err(damaged(format!("more than {MAX_DEPTH} tables in tables")));
        }
        let back = i64::from(i32::from_le_bytes(self.at(at)?));
        let vtable = i64::try_from(at).ok().and_then(|at| at.checked_sub(back));
        let vtable = vtable.and_then(|v| usize::try_from(v).ok());
        let nowhere = || damaged(format!("the table at byte {at} has no description"));
        let vtable = vtable.ok_or_else(nowhere)?;
        let vtable_bytes = usize::from(u16::from_le_bytes(self.at(vtable)?));
        let bytes = usize::from(u16::from_le_bytes(self.at(vtable.saturating_add(2))?));
        let is_sound = vtable_bytes >= 4
            && vtable_bytes.is_multiple_of(2)
            && vtable + vtable_bytes <= self.bytes.len()
            && bytes >= 4
            && at + bytes <= self.bytes.len();
        if !is_sound {
            return Err(nowhere());
        }
        self.spend(bytes + vtable_bytes + TABLE_COST)?;
        Ok(View {
            buffer: self,
            at,
            vtable,
            vtable_bytes,
            bytes,
            depth,
        })
    }

    /// The bytes of the vector an offset leads to, of elements of a width.
    fn vector(&self, at: usize, width: usize) -> Result<(usize, usize)> {
        let start = self.target(at)?;
        let count = u32::from_le_bytes(self.at(start)?) as usize;
        let bytes = count.checked_mul(width).filter(|bytes| {
            let end = bytes.checked_add(start + OFFSET_BYTES);
            end.is_some_and(|end| end <= self.bytes.len())
        });
        let bytes = bytes.ok_or_else(|| {
            damaged(format!(
                "the vector at byte {start} is longer than the buffer"
            ))
        })?;
        self.spend(bytes + OFFSET_BYTES)?;
        Ok((start + OFFSET_BYTES, count))
    }

    fn bytes_at(&self, at: usize) -> Result<&'a [u8]> {
        let (start, count) = self.vector(at, 1)?;
        Ok(&self.bytes[start..start + count])
    }

    fn text(&self, at: usize) -> Result<&'a str> {
        let bytes = self.bytes_at(at)?;
        std::str::from_utf8(bytes).map_err(|e| damaged("text that is not UTF-8").with_source(e))
    }

    /// Where the elements of a vector of offsets are.
    fn offsets(&self, at: usize) -> Result<impl Iterator<Item = usize> + use<>> {
        let (start, count) = self.vector(at, OFFSET_BYTES)?;
        Ok((0..count).map(move |index| start + index * OFFSET_BYTES))
    }
}

impl<'a> View<'a> {
    /// Where a slot's value is, of so many bytes; none if it is left out.
    fn slot(&self, slot: u16, width: usize) -> Result<Option<usize>> {
        let Some(offset) = self.offset(slot)? else {
            return Ok(None);
        };
        if offset < 4 || offset + width > self.bytes {
            return Err(damaged(format!("slot {slot} is outside its table")));
        }
        Ok(Some(self.at + offset))
    }

    fn offset(&self, slot: u16) -> Result<Option<usize>> {
        let entry = 4 + 2 * usize::from(slot);
        if entry + 2 > self.vtable_bytes {
            return Ok(None);
        }
        let offset = u16::from_le_bytes(self.buffer.at(self.vtable + entry)?);
        Ok((offset != 0).then_some(usize::from(offset)))
    }

    /// Whether the value of a slot cannot have a width: it would lie over the next one.
    pub(super) fn overlaps(&self, slot: u16, width: usize) -> Result<bool> {
        let Some(start) = self.offset(slot)? else {
            return Ok(false);
        };
        let mut is_over = start + width > self.bytes;
        for other in 0..u16::try_from((self.vtable_bytes - 4) / 2).unwrap_or(0) {
            let offset = self.offset(other)?.unwrap_or(0);
            is_over |= other != slot && (start..start + width).contains(&offset);
        }
        Ok(is_over)
    }

    pub(super) fn number<const N: usize>(&self, slot: u16) -> Result<Option<[u8; N]>> {
        self.slot(slot, N)?.map(|at| self.buffer.at(at)).transpose()
    }

    pub(super) fn byte_vector(&self, slot: u16) -> Result<Option<&'a [u8]>> {
        let at = self.slot(slot, OFFSET_BYTES)?;
        at.map(|at| self.buffer.bytes_at(at)).transpose()
    }

    pub(super) fn timestamp(&self, slot: u16) -> Result<Option<time::Moment>> {
        let bytes = self.number::<TIMESTAMP_BYTES>(slot)?;
        bytes.map(|bytes| time::from_bytes(&bytes)).transpose()
    }

    /// The table of a slot.
    fn table(&self, slot: u16) -> Result<Option<Self>> {
        let at = self.slot(slot, OFFSET_BYTES)?;
        at.map(|at| self.buffer.table(self.buffer.target(at)?, self.depth + 1))
            .transpose()
    }

    /// A union's value with its name as `kind`; the tag is in this slot, the table in the next.
    pub(super) fn union(&self, slot: u16, union: &Union) -> Result<Option<Value>> {
        let tag = self.number::<1>(slot)?.map_or(0, |[tag]| tag);
        let Some(table) = self.table(slot + 1)?.filter(|_| tag != 0) else {
            return Ok(None);
        };
        let (name, layout) = union.tagged(tag).ok_or_else(|| {
            unknown(format!(
                "{} has no number {tag} in this release",
                union.name
            ))
        })?;
        let mut found = table.read(layout)?;
        found.insert("kind".to_owned(), name.into());
        Ok(Some(Value::Object(found)))
    }

    /// All fields, in the spelling of the specification.
    pub(super) fn read(&self, layout: &'static Table) -> Result<Map<String, Value>> {
        let mut found = Map::new();
        for (slot, field) in layout.slots() {
            let inside = |e: Error| e.context(field.name);
            match self.field(slot, field).map_err(inside)? {
                Some(value) => {
                    found.insert(field.name.to_owned(), value);
                }
                None if field.optional => {}
                None => {
                    let message = format!("{} has no {}", layout.name, field.name);
                    return Err(damaged(message));
                }
            }
        }
        for slot in layout.width()..u16::try_from((self.vtable_bytes - 4) / 2).unwrap_or(0) {
            if self.offset(slot)?.is_some() {
                self.buffer.unknown_slots.set(true);
            }
        }
        Ok(found)
    }

    fn field(&self, slot: u16, field: &'static Field) -> Result<Option<Value>> {
        let zero = (!field.optional).then_some(0);
        match &field.kind {
            Kind::U64 => {
                let found = self.number(slot)?.map(u64::from_le_bytes);
                Ok(found.or(zero).map(Value::from))
            }
            Kind::U32 => {
                let found = self.number(slot)?.map(u32::from_le_bytes);
                Ok(found.map(u64::from).or(zero).map(Value::from))
            }
            Kind::I32 => {
                let found = self.number(slot)?.map(i32::from_le_bytes);
                let found = found.map(Value::from);
                Ok(found.or(zero.map(Value::from)))
            }
            Kind::Bool => {
                let found = self.number(slot)?.map(|[byte]| byte != 0);
                Ok(found.or(zero.map(|_| false)).map(Value::from))
            }
            Kind::Time => Ok(self.timestamp(slot)?.map(|t| time::to_text(&t).into())),
            Kind::Enum(kind) => self.named(slot, kind, field.optional),
            Kind::Union(union) => self.union(slot, union),
            _ => {
                let at = self.slot(slot, OFFSET_BYTES)?;
                at.map(|at| self.object(at, &field.kind)).transpose()
            }
        }
    }

    fn named(&self, slot: u16, kind: &Enum, optional: bool) -> Result<Option<Value>> {
        let number = match kind.width {
            Width::I16 => self.number(slot)?.map(|b| i32::from(i16::from_le_bytes(b))),
            Width::I32 => self.number(slot)?.map(i32::from_le_bytes),
        };
        let Some(number) = number.or((!optional).then_some(0)) else {
            return Ok(None);
        };
        let name = usize::try_from(number).ok();
        let name = name.and_then(|n| kind.names.get(n));
        let name = name.ok_or_else(|| {
            unknown(format!(
                "{number} is none of {} in this release",
                kind.names.join(", ")
            ))
        })?;
        Ok(Some(Value::from(*name)))
    }

    /// What an offset leads to.
    fn object(&self, at: usize, kind: &Kind) -> Result<Value> {
        let buffer = self.buffer;
        let wrong = |e: Error| e.with_kind(ErrorKind::BlockCorrupted);
        Ok(match kind {
            Kind::Hash => {
                let hash = Multihash::from_bytes(buffer.bytes_at(at)?).map_err(wrong)?;
                hash.to_string().into()
            }
            Kind::DatasetId => {
                let id = DatasetId::from_bytes(buffer.bytes_at(at)?).map_err(wrong)?;
                id.to_string().into()
            }
            Kind::Bytes => STANDARD.encode(buffer.bytes_at(at)?).into(),
            Kind::Text | Kind::DatasetRef => buffer.text(at)?.into(),
            Kind::Texts => {
                let texts = buffer.offsets(at)?;
                let texts = texts.map(|at| Ok(Value::from(buffer.text(at)?)));
                Value::Array(texts.collect::<Result<_>>()?)
            }
            Kind::Table(layout) => Value::Object(self.child(at)?.read(layout)?),
            Kind::Tables(layout) => {
                let tables = buffer.offsets(at)?;
                let tables = tables.map(|at| Ok(Value::Object(self.child(at)?.read(layout)?)));
                Value::Array(tables.collect::<Result<_>>()?)
            }
            Kind::Unions(union) => {
                let wrapped = buffer.offsets(at)?;
                let wrapped = wrapped.map(|at| {
                    let value = self.child(at)?.union(0, union)?;
                    value.ok_or_else(|| damaged(format!("a {} without a value", union.name)))
                });
                Value::Array(wrapped.collect::<Result<_>>()?)
            }
            Kind::Attributes => attributes(&self.child(at)?)?,
            Kind::U64
            | Kind::U32
            | Kind::I32
            | Kind::Bool
            | Kind::Time
            | Kind::Enum(_)
            | Kind::Union(_) => return Err(Error::other("a number is not an offset")),
        })
    }

    fn child(&self, at: usize) -> Result<Self> {
        self.buffer.table(self.buffer.target(at)?, self.depth + 1)
    }
}

fn attributes(table: &View<'_>) -> Result<Value> {
    let at = table.slot(0, OFFSET_BYTES)?;
    let text = at.map(|at| table.buffer.text(at)).transpose()?;
    let found: Value = serde_json::from_str(text.unwrap_or("{}"))
        .map_err(|e| damaged("attributes that are not JSON").with_source(e))?;
    if !found.is_object() {
        return Err(damaged("attributes that are not a JSON object"));
    }
    Ok(found)
}
