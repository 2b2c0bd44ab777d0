//! A reader of Thrift's compact protocol, for checks of footers and page headers before they are decoded.

/// The deepest nesting of structs, lists and maps.
const MAX_NESTING: usize = 64;

const STOP: u8 = 0;
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
const BYTE: u8 = 3;
pub(super) const I16: u8 = 4;
pub(super) const I64: u8 = 6;
const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
pub(super) const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// A value, or the reason why it cannot be read.
pub(super) type ThriftResult<T = ()> = Result<T, &'static str>;

/// The bytes that are not read yet.
pub(super) struct ThriftReader<'a>(pub(super) &'a [u8]);

impl<'a> ThriftReader<'a> {
    fn read_byte(&mut self) -> ThriftResult<u8> {
        let (first, rest) = self.0.split_first().ok_or("the bytes end too early")?;
        self.0 = rest;
        Ok(*first)
    }

    /// The next `count` bytes.
    pub(super) fn take(&mut self, count: u64) -> ThriftResult<&'a [u8]> {
        let bytes = self.0;
        self.skip_bytes(usize::try_from(count).unwrap_or(usize::MAX))?;
        Ok(&bytes[..bytes.len() - self.0.len()])
    }

    pub(super) fn skip_bytes(&mut self, count: usize) -> ThriftResult {
        self.0 = self.0.get(count..).ok_or("the bytes end too early")?;
        Ok(())
    }

    pub(super) fn read_varint(&mut self) -> ThriftResult<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.read_byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a varint is too long")
    }

    pub(super) fn read_zigzag(&mut self) -> ThriftResult<i64> {
        let value = self.read_varint()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// The next field's id and type; None at the end of a struct.
    pub(super) fn read_field_header(
        &mut self,
        last_field_id: &mut i32,
    ) -> ThriftResult<Option<(i32, u8)>> {
        let header = self.read_byte()?;
        if header & 0x0f == STOP {
            return Ok(None);
        }
        *last_field_id = match header >> 4 {
            0 => {
                i32::try_from(self.read_zigzag()?).map_err(|_large| "a field id is out of range")?
            }
            delta => last_field_id
                .checked_add(i32::from(delta))
                .ok_or("a field id is out of range")?,
        };
        Ok(Some((*last_field_id, header & 0x0f)))
    }

    /// A list's length and the type of its elements. An element takes at least one byte, which limits the length.
    pub(super) fn read_list_header(&mut self) -> ThriftResult<(usize, u8)> {
        let header = self.read_byte()?;
        let length = match header >> 4 {
            15 => self.read_varint()?,
            short => u64::from(short),
        };
        let count = usize::try_from(length).unwrap_or(usize::MAX);
        if count > self.0.len() {
            return Err("a list is longer than the remaining bytes");
        }
        Ok((count, header & 0x0f))
    }

    /// A list whose elements have one of some types, each read by `read`.
    pub(super) fn read_list<T>(
        &mut self,
        element_types: &[u8],
        mut read: impl FnMut(&mut Self) -> ThriftResult<T>,
    ) -> ThriftResult<Vec<T>> {
        let (count, element_type) = self.read_list_header()?;
        if !element_types.contains(&element_type) {
            return Err("a list has elements of another type");
        }
        (0..count).map(|_| read(self)).collect()
    }

    /// A boolean of a list.
    pub(super) fn read_bool(&mut self) -> ThriftResult<bool> {
        // Some writers have 0 for false.
        Ok(self.read_byte()? == TRUE)
    }

    pub(super) fn read_binary(&mut self) -> ThriftResult<&'a [u8]> {
        let length = usize::try_from(self.read_varint()?).unwrap_or(usize::MAX);
        let value = self.0.get(..length).ok_or("the bytes end too early")?;
        self.0 = &self.0[length..];
        Ok(value)
    }

    pub(super) fn skip_value(&mut self, value_type: u8, depth: usize) -> ThriftResult {
        if depth > MAX_NESTING {
            return Err("a value is nested too deeply");
        }
        match value_type {
            TRUE | FALSE => Ok(()),
            BYTE => self.skip_bytes(1),
            I16..=I64 => self.read_varint().map(drop),
            DOUBLE => self.skip_bytes(8),
            UUID => self.skip_bytes(16),
            BINARY => {
                let length = self.read_varint()?;
                self.skip_bytes(usize::try_from(length).unwrap_or(usize::MAX))
            }
            LIST | SET => {
                let (count, element_type) = self.read_list_header()?;
                (0..count).try_for_each(|_| self.skip_element(element_type, depth + 1))
            }
            MAP => {
                let count = self.read_varint()?;
                if count == 0 {
                    return Ok(());
                }
                let entry_types = self.read_byte()?;
                for _ in 0..count {
                    self.skip_element(entry_types >> 4, depth + 1)?;
                    self.skip_element(entry_types & 0x0f, depth + 1)?;
                }
                Ok(())
            }
            STRUCT => {
                let mut last_field_id = 0;
                while let Some((_, field_type)) = self.read_field_header(&mut last_field_id)? {
                    self.skip_value(field_type, depth + 1)?;
                }
                Ok(())
            }
            _ => Err("unknown Thrift type"),
        }
    }

    /// Skips an element of a list or map, where a boolean takes a byte of its own.
    fn skip_element(&mut self, element_type: u8, depth: usize) -> ThriftResult {
        match element_type {
            TRUE | FALSE => self.skip_bytes(1),
            other => self.skip_value(other, depth),
        }
    }
}
