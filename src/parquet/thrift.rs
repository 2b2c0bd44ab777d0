//! The compact protocol of Thrift, as far as what is written in it is looked over before it is decoded.

/// Structs, lists and maps within one another.
const MAX_NESTING: usize = 64;

const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
pub(super) const I16: u8 = 4;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// What is read, or why it cannot be.
pub(super) type Checked<T = ()> = Result<T, &'static str>;

/// What is left to be read.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    fn byte(&mut self) -> Checked<u8> {
        let (first, rest) = self.0.split_first().ok_or("it ends too early")?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn pass(&mut self, count: usize) -> Checked {
        self.0 = self.0.get(count..).ok_or("it ends too early")?;
        Ok(())
    }

    pub(super) fn varint(&mut self) -> Checked<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is too long")
    }

    pub(super) fn signed(&mut self) -> Checked<i64> {
        let value = self.varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The next field's number and type; None at the end of a struct.
    pub(super) fn field(&mut self, last: &mut i32) -> Checked<Option<(i32, u8)>> {
        let head = self.byte()?;
        if head & 0x0f == STOP {
            return Ok(None);
        }
        *last = match head >> 4 {
            0 => i32::try_from(self.signed()?).map_err(|_large| "a field's number is too large")?,
            step => last
                .checked_add(i32::from(step))
                .ok_or("a field's number is too large")?,
        };
        Ok(Some((*last, head & 0x0f)))
    }

    /// A list's length and the type of its elements, of which each has a byte at least.
    pub(super) fn list(&mut self) -> Checked<(usize, u8)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            short => u64::from(short),
        };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > self.0.len() {
            return Err("a list is longer than the footer");
        }
        Ok((count, head & 0x0f))
    }

    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Checked {
        if depth > MAX_NESTING {
            return Err("it is nested too deeply");
        }
        match kind {
            TRUE | FALSE => Ok(()),
            BYTE => self.pass(1),
            I16..=I64 => self.varint().map(drop),
            DOUBLE => self.pass(8),
            UUID => self.pass(16),
            BINARY => {
                let length = self.varint()?;
                self.pass(usize::try_from(length).unwrap_or(usize::MAX))
            }
            LIST | SET => {
                let (count, kind) = self.list()?;
                (0..count).try_for_each(|_| self.element(kind, depth + 1))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                for _ in 0..count {
                    self.element(kinds >> 4, depth + 1)?;
                    self.element(kinds & 0x0f, depth + 1)?;
                }
                Ok(())
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth + 1)?;
                }
                Ok(())
            }
            _ => Err("it has a type that Thrift does not have"),
        }
    }

    /// In lists a truth value has a byte of its own.
    fn element(&mut self, kind: u8, depth: usize) -> Checked {
        match kind {
            TRUE | FALSE => self.pass(1),
            other => self.skip(other, depth),
        }
    }
}
