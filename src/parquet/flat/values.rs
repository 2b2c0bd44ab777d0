//! Where the values of a flat column go.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, GenericBinaryArray, GenericStringArray, OffsetSizeTrait, make_array,
};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::Unsuited;

/// Short values are copied in one piece of so many bytes, whatever they need of it.
const SLACK: usize = 32;

/// Takes a column's values as its pages come.
pub(super) trait Sink {
    /// The dictionary: `count` plain values.
    fn dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited>;
    /// Appends `count` plain values.
    fn plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited>;
    /// Appends the dictionary's values at these places.
    fn indexed(&mut self, indices: &[u32]) -> Result<(), Unsuited>;
    /// Spreads the last `present` values over `rows` rows, to those for which `is_valid`.
    fn spread(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool);
    /// The column.
    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsuited>;
}

/// A value as Parquet writes it in `N` bytes, as Arrow has it.
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

// Narrow integers are written as 32 bits, of which the lower ones count.
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

/// Values of a fixed width; `V` has the bits of `data_type`'s values.
#[derive(Debug)]
pub(super) struct Fixed<const N: usize, V> {
    data_type: DataType,
    dictionary: Vec<V>,
    values: Vec<V>,
}

impl<const N: usize, V: Physical<N>> Fixed<N, V> {
    pub(super) fn new(data_type: &DataType, rows: usize) -> Result<Self, Unsuited> {
        let mut values = Vec::new();
        values
            .try_reserve_exact(rows)
            .map_err(|_no_room| Unsuited)?;
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
) -> Result<impl Iterator<Item = V>, Unsuited> {
    let chunks = bytes.as_chunks::<N>().0.get(..count).ok_or(Unsuited)?;
    Ok(chunks.iter().map(|bytes| V::read(*bytes)))
}

impl<const N: usize, V: Physical<N>> Sink for Fixed<N, V> {
    fn dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited> {
        self.dictionary = plain_values::<N, V>(bytes, count)?.collect();
        Ok(())
    }

    fn plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited> {
        self.values.extend(plain_values::<N, V>(bytes, count)?);
        Ok(())
    }

    fn indexed(&mut self, indices: &[u32]) -> Result<(), Unsuited> {
        let dictionary = self.dictionary.as_slice();
        check_indices(indices, dictionary.len())?;
        let values = indices.iter().map(|i| dictionary[*i as usize]);
        self.values.extend(values);
        Ok(())
    }

    fn spread(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool) {
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

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsuited> {
        let values = std::mem::take(&mut self.values);
        let data = ArrayData::builder(self.data_type.clone())
            .len(values.len())
            .add_buffer(Buffer::from_vec(values))
            .nulls(nulls);
        let data = data.build().map_err(|_does_not_fit| Unsuited)?;
        Ok(make_array(data))
    }
}

fn check_indices(indices: &[u32], length: usize) -> Result<(), Unsuited> {
    match indices.iter().max() {
        Some(&highest) if highest as usize >= length => Err(Unsuited),
        _ => Ok(()),
    }
}

/// Strings or binaries.
#[derive(Debug)]
pub(super) struct Bytes<O> {
    utf8: bool,
    /// Where the dictionary's values begin and how long they are.
    words: Vec<(u32, u32)>,
    /// The dictionary page, and `SLACK` bytes behind it.
    page: Vec<u8>,
    offsets: Vec<O>,
    values: Vec<u8>,
}

impl<O: OffsetSizeTrait> Bytes<O> {
    /// For `rows` values that may have `bytes` bytes together.
    pub(super) fn new(utf8: bool, rows: usize, bytes: usize) -> Result<Self, Unsuited> {
        let (mut offsets, mut values) = (Vec::new(), Vec::new());
        let rows = offsets.try_reserve_exact(rows + 1);
        let bytes = values.try_reserve_exact(bytes + SLACK);
        rows.and(bytes).map_err(|_no_room| Unsuited)?;
        offsets.push(O::default());
        Ok(Self {
            utf8,
            words: Vec::new(),
            page: Vec::new(),
            offsets,
            values,
        })
    }

    /// Room for `more` bytes, as far as offsets reach, and `SLACK` behind them; gives where they begin.
    fn make_room(&mut self, more: usize) -> Result<usize, Unsuited> {
        let begin = self.values.len();
        O::from_usize(begin + more).ok_or(Unsuited)?;
        self.values.resize(begin + more + SLACK, 0);
        Ok(begin)
    }
}

/// The next value of plain bytes: its length and what follows it.
fn split_value(bytes: &[u8]) -> Result<(usize, &[u8]), Unsuited> {
    let (length, rest) = bytes.split_first_chunk().ok_or(Unsuited)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > rest.len() {
        return Err(Unsuited);
    }
    Ok((length, rest))
}

/// Copies the first `length` bytes of `from` to `at`; more, where that is quicker.
fn copy(from: &[u8], length: usize, to: &mut [u8], at: usize) {
    match from.first_chunk::<SLACK>() {
        Some(chunk) if length <= SLACK => to[at..at + SLACK].copy_from_slice(chunk),
        _ => to[at..at + length].copy_from_slice(&from[..length]),
    }
}

impl<O: OffsetSizeTrait> Sink for Bytes<O> {
    fn dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited> {
        let mut rest = bytes;
        self.words.clear();
        for _ in 0..count {
            let (length, value) = split_value(rest)?;
            let place = |n: usize| u32::try_from(n).map_err(|_too_large| Unsuited);
            let start = place(bytes.len() - value.len())?;
            self.words.push((start, place(length)?));
            rest = &value[length..];
        }
        self.page.clear();
        self.page.extend_from_slice(bytes);
        self.page.extend([0; SLACK]);
        Ok(())
    }

    fn plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsuited> {
        let most = bytes.len().checked_sub(4 * count).ok_or(Unsuited)?;
        let mut at = self.make_room(most)?;
        let end = at + most;
        let mut rest = bytes;
        for _ in 0..count {
            let (length, value) = split_value(rest)?;
            if length > end - at {
                return Err(Unsuited);
            }
            copy(value, length, &mut self.values, at);
            at += length;
            self.offsets.push(O::usize_as(at));
            rest = &value[length..];
        }
        self.values.truncate(at);
        Ok(())
    }

    fn indexed(&mut self, indices: &[u32]) -> Result<(), Unsuited> {
        check_indices(indices, self.words.len())?;
        let lengths = indices.iter().map(|i| self.words[*i as usize].1 as usize);
        let mut at = self.make_room(lengths.sum())?;
        let (words, page, values) = (&self.words, &self.page, &mut self.values);
        let offsets = indices.iter().map(|i| {
            let (start, length) = words[*i as usize];
            copy(&page[start as usize..], length as usize, values, at);
            at += length as usize;
            O::usize_as(at)
        });
        self.offsets.extend(offsets);
        self.values.truncate(at);
        Ok(())
    }

    fn spread(&mut self, rows: usize, present: usize, is_valid: &dyn Fn(usize) -> bool) {
        let begin = self.offsets.len() - present;
        let mut end = self.offsets[self.offsets.len() - 1];
        self.offsets.resize(begin + rows, end);
        let mut from = present;
        for row in (0..rows).rev() {
            self.offsets[begin + row] = end;
            if is_valid(row) {
                from -= 1;
                // What lies before this value; the offsets begin with a zero.
                end = self.offsets[begin + from - 1];
            }
        }
    }

    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsuited> {
        let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::take(&mut self.offsets)));
        let values = Buffer::from_vec(std::mem::take(&mut self.values));
        let array: Arc<dyn Array> = if self.utf8 {
            let array = GenericStringArray::try_new(offsets, values, nulls);
            Arc::new(array.map_err(|_not_utf8| Unsuited)?)
        } else {
            let array = GenericBinaryArray::try_new(offsets, values, nulls);
            Arc::new(array.map_err(|_does_not_fit| Unsuited)?)
        };
        Ok(array)
    }
}
