//! Builders of the arrays of flat columns.
//!
//! [`FixedWidthBuilder`] is for numbers, times and decimals, [`ByteArrayBuilder`] for strings and binaries. A page
//! appends its values without the nulls; [`ColumnBuilder::pad_nulls`] then moves them to their rows, and
//! [`ColumnBuilder::retain`] removes rows that are not selected. Anything that a builder cannot take is
//! [`Unsupported`], and is left to the general decoder.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, GenericBinaryArray, GenericStringArray, OffsetSizeTrait, make_array,
};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::Unsupported;

/// Values of up to this many bytes are copied as one block of this size, so buffers have as many bytes at their end.
const SLACK_BYTES: usize = 32;

/// Collects the values of a column, page by page.
pub(super) trait ColumnBuilder {
    /// Sets the dictionary, which is `count` plain values.
    fn set_dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported>;
    /// Appends `count` plain values.
    fn append_plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported>;
    /// Appends the dictionary's values at `indices`.
    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported>;
    /// Spreads the last `present` values over `rows` rows, to those for which `is_valid` holds.
    fn pad_nulls(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool);
    /// Of the last `rows` rows keeps those of `selected`: ascending ranges, counted from the first of these rows.
    fn retain(&mut self, rows: usize, selected: &[Range<usize>]);
    /// Builds the array of the column.
    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsupported>;
}

/// A native value of Arrow that Parquet stores in `N` bytes.
pub(super) trait Physical<const N: usize>: ArrowNativeType {
    fn read(bytes: [u8; N]) -> Self;
}

impl Physical<4> for i32 {
    fn read(bytes: [u8; 4]) -> Self {
        Self::from_le_bytes(bytes)
    }
}

impl Physical<8> for i64 {
    fn read(bytes: [u8; 8]) -> Self {
        Self::from_le_bytes(bytes)
    }
}

impl Physical<4> for i128 {
    fn read(bytes: [u8; 4]) -> Self {
        Self::from(i32::from_le_bytes(bytes))
    }
}

impl Physical<8> for i128 {
    fn read(bytes: [u8; 8]) -> Self {
        Self::from(i64::from_le_bytes(bytes))
    }
}

// Narrow integers are stored in 32 bits, of which the lower ones count.
impl Physical<4> for u8 {
    fn read(bytes: [u8; 4]) -> Self {
        bytes[0]
    }
}

impl Physical<4> for u16 {
    fn read(bytes: [u8; 4]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
}

/// Builds an array of values of a fixed width; `V` has the bits of the values of `data_type`.
#[derive(Debug)]
pub(super) struct FixedWidthBuilder<const N: usize, V> {
    data_type: DataType,
    dictionary: Vec<V>,
    values: Vec<V>,
}

impl<const N: usize, V: Physical<N>> FixedWidthBuilder<N, V> {
    pub(super) fn new(data_type: &DataType, rows: usize) -> Result<Self, Unsupported> {
        let mut values = Vec::new();
        values
            .try_reserve_exact(rows)
            .map_err(|_no_room| Unsupported)?;
        Ok(Self {
            data_type: data_type.clone(),
            dictionary: Vec::new(),
            values,
        })
    }
}

fn plain_values<const N: usize, V: Physical<N>>(
    bytes: &[u8],
    count: usize,
) -> Result<impl Iterator<Item = V>, Unsupported> {
    let chunks = bytes.as_chunks::<N>().0.get(..count).ok_or(Unsupported)?;
    Ok(chunks.iter().map(|bytes| V::read(*bytes)))
}

impl<const N: usize, V: Physical<N>> ColumnBuilder for FixedWidthBuilder<N, V> {
    fn set_dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        self.dictionary = plain_values::<N, V>(bytes, count)?.collect();
        Ok(())
    }

    fn append_plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        self.values.extend(plain_values::<N, V>(bytes, count)?);
        Ok(())
    }

    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported> {
        let dictionary = self.dictionary.as_slice();
        check_indices(indices, dictionary.len())?;
        let values = indices.iter().map(|i| dictionary[*i as usize]);
        self.values.extend(values);
        Ok(())
    }

    fn pad_nulls(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool) {
        let begin = self.values.len() - present;
        self.values.resize(begin + rows, V::default());
        let mut from = present;
        for row in (0..rows).rev() {
            self.values[begin + row] = if is_valid(row) {
                from -= 1;
                self.values[begin + from]
            } else {
                V::default()
            };
        }
    }

    fn retain(&mut self, rows: usize, selected: &[Range<usize>]) {
        let begin = self.values.len() - rows;
        let mut to = begin;
        for range in selected {
            move_down(&mut self.values, begin + range.start..begin + range.end, to);
            to += range.len();
        }
        self.values.truncate(to);
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsupported> {
        let mut values = std::mem::take(&mut self.values);
        release_unused(&mut values);
        let builder = ArrayData::builder(self.data_type.clone())
            .len(values.len())
            .add_buffer(Buffer::from_vec(values))
            .nulls(nulls);
        let data = builder.build().map_err(|_does_not_fit| Unsupported)?;
        Ok(make_array(data))
    }
}

/// Copies `range` to `to`, which does not come after it.
fn move_down<T: Copy>(values: &mut [T], range: Range<usize>, to: usize) {
    if range.len() < 8 {
        for (at, from) in range.enumerate() {
            values[to + at] = values[from];
        }
    } else if to < range.start {
        values.copy_within(range, to);
    }
}

/// Gives back memory that was reserved for rows that were not selected.
fn release_unused<T>(values: &mut Vec<T>) {
    if values.len() < values.capacity() / 2 {
        values.shrink_to_fit();
    }
}

fn check_indices(indices: &[u32], length: usize) -> Result<(), Unsupported> {
    // A fold over values is done many at a time; the maximum of references is not.
    let highest = indices
        .iter()
        .fold(0_u32, |highest, index| highest.max(*index));
    if !indices.is_empty() && highest as usize >= length {
        return Err(Unsupported);
    }
    Ok(())
}

/// Builds an array of strings or binaries.
#[derive(Debug)]
pub(super) struct ByteArrayBuilder<O> {
    is_utf8: bool,
    /// The offset in `dictionary_page` and the length of each value of the dictionary.
    dictionary: Vec<(u32, u32)>,
    /// The dictionary page, and [`SLACK_BYTES`] after it.
    dictionary_page: Vec<u8>,
    offsets: Vec<O>,
    values: Vec<u8>,
}

impl<O: OffsetSizeTrait> ByteArrayBuilder<O> {
    /// Reserves memory for `rows` values of `bytes` bytes in total.
    pub(super) fn new(is_utf8: bool, rows: usize, bytes: usize) -> Result<Self, Unsupported> {
        let (mut offsets, mut values) = (Vec::new(), Vec::new());
        let reserved_offsets = offsets.try_reserve_exact(rows + 1);
        let reserved_values = values.try_reserve_exact(bytes + SLACK_BYTES);
        reserved_offsets
            .and(reserved_values)
            .map_err(|_no_room| Unsupported)?;
        offsets.push(O::default());
        Ok(Self {
            is_utf8,
            dictionary: Vec::new(),
            dictionary_page: Vec::new(),
            offsets,
            values,
        })
    }

    /// Adds room for `additional` bytes, if offsets reach that far, and [`SLACK_BYTES`]; returns where it begins.
    fn make_room(&mut self, additional: usize) -> Result<usize, Unsupported> {
        let begin = self.values.len();
        O::from_usize(begin + additional).ok_or(Unsupported)?;
        self.values.resize(begin + additional + SLACK_BYTES, 0);
        Ok(begin)
    }
}

/// The length of the next plain value, and the bytes after this length.
fn split_value(bytes: &[u8]) -> Result<(usize, &[u8]), Unsupported> {
    let (length_bytes, rest) = bytes.split_first_chunk().ok_or(Unsupported)?;
    let length = u32::from_le_bytes(*length_bytes) as usize;
    if length > rest.len() {
        return Err(Unsupported);
    }
    Ok((length, rest))
}

/// Copies the first `length` bytes of `from` to `at` in `to`; up to [`SLACK_BYTES`] where that is faster.
fn copy(from: &[u8], length: usize, to: &mut [u8], at: usize) {
    match from.first_chunk::<SLACK_BYTES>() {
        Some(chunk) if length <= SLACK_BYTES => to[at..at + SLACK_BYTES].copy_from_slice(chunk),
        _ => to[at..at + length].copy_from_slice(&from[..length]),
    }
}

impl<O: OffsetSizeTrait> ColumnBuilder for ByteArrayBuilder<O> {
    fn set_dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        let mut rest = bytes;
        self.dictionary.clear();
        for _ in 0..count {
            let (length, value) = split_value(rest)?;
            let to_u32 = |n: usize| u32::try_from(n).map_err(|_too_large| Unsupported);
            let start = to_u32(bytes.len() - value.len())?;
            self.dictionary.push((start, to_u32(length)?));
            rest = &value[length..];
        }
        self.dictionary_page.clear();
        self.dictionary_page.extend_from_slice(bytes);
        self.dictionary_page.extend([0; SLACK_BYTES]);
        Ok(())
    }

    fn append_plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        let max_bytes = bytes.len().checked_sub(4 * count).ok_or(Unsupported)?;
        let mut at = self.make_room(max_bytes)?;
        let end = at + max_bytes;
        let mut rest = bytes;
        for _ in 0..count {
            let (length, value) = split_value(rest)?;
            if length > end - at {
                return Err(Unsupported);
            }
            copy(value, length, &mut self.values, at);
            at += length;
            self.offsets.push(O::usize_as(at));
            rest = &value[length..];
        }
        self.values.truncate(at);
        Ok(())
    }

    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported> {
        check_indices(indices, self.dictionary.len())?;
        let lengths = indices
            .iter()
            .map(|i| self.dictionary[*i as usize].1 as usize);
        let mut at = self.make_room(lengths.sum())?;
        let (dictionary, dictionary_page, values) =
            (&self.dictionary, &self.dictionary_page, &mut self.values);
        let offsets = indices.iter().map(|i| {
            let (start, length) = dictionary[*i as usize];
            copy(
                &dictionary_page[start as usize..],
                length as usize,
                values,
                at,
            );
            at += length as usize;
            O::usize_as(at)
        });
        self.offsets.extend(offsets);
        self.values.truncate(at);
        Ok(())
    }

    fn pad_nulls(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool) {
        let begin = self.offsets.len() - present;
        let mut end = self.offsets[self.offsets.len() - 1];
        self.offsets.resize(begin + rows, end);
        let mut from = present;
        for row in (0..rows).rev() {
            self.offsets[begin + row] = end;
            if is_valid(row) {
                from -= 1;
                // The end of the value before; the offsets begin with a zero.
                end = self.offsets[begin + from - 1];
            }
        }
    }

    fn retain(&mut self, rows: usize, selected: &[Range<usize>]) {
        let first = self.offsets.len() - 1 - rows;
        let mut next = first;
        let mut end = self.offsets[first].as_usize();
        for range in selected {
            let bytes = self.offsets[first + range.start].as_usize()
                ..self.offsets[first + range.end].as_usize();
            let shift = bytes.start - end;
            for row in range.clone() {
                let row_end = self.offsets[first + row + 1].as_usize();
                next += 1;
                self.offsets[next] = O::usize_as(row_end - shift);
            }
            let length = bytes.len();
            move_down(&mut self.values, bytes, end);
            end += length;
        }
        self.offsets.truncate(next + 1);
        self.values.truncate(end);
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsupported> {
        release_unused(&mut self.offsets);
        release_unused(&mut self.values);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::take(&mut self.offsets)));
        let values = Buffer::from_vec(std::mem::take(&mut self.values));
        let array: Arc<dyn Array> = if self.is_utf8 {
            let array = GenericStringArray::try_new(offsets, values, nulls);
            Arc::new(array.map_err(|_not_utf8| Unsupported)?)
        } else {
            let array = GenericBinaryArray::try_new(offsets, values, nulls);
            Arc::new(array.map_err(|_does_not_fit| Unsupported)?)
        };
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_beyond_the_dictionary_is_refused_wherever_it_is() {
        assert!(check_indices(&[], 0).is_ok());
        assert!(check_indices(&[0], 0).is_err());
        let mut indices: Vec<u32> = (0..100).collect();
        assert!(check_indices(&indices, 100).is_ok());
        for at in 0..100 {
            for beyond in [100, u32::MAX] {
                let within = std::mem::replace(&mut indices[at], beyond);
                assert!(check_indices(&indices, 100).is_err(), "{beyond} at {at}");
                indices[at] = within;
            }
        }
    }
}
