//! Builders of the arrays of flat columns.
//!
//! [`FixedWidthBuilder`] is for numbers, times and decimals, `super::texts` has the one for strings and binaries. A
//! page appends its values without the nulls; [`ColumnBuilder::pad_nulls`] then moves them to their rows, and
//! [`ColumnBuilder::retain`] removes rows that are not selected. Anything that a builder cannot take is
//! [`Unsupported`], and is left to the general decoder.

use std::ops::Range;

use arrow_array::{ArrayRef, make_array};
use arrow_buffer::bit_util::get_bit;
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer};
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::Unsupported;

/// Collects the values of a column, page by page.
pub(super) trait ColumnBuilder {
    /// Sets the dictionary, which is `count` plain values.
    fn set_dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported>;
    /// Appends `count` plain values.
    fn append_plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported>;
    /// Appends integers, of which the lower bits count.
    fn append_integers(&mut self, values: &[i64]) -> Result<(), Unsupported>;
    /// Appends the dictionary's values at `indices`.
    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported>;
    /// Spreads the last `present` values over `rows` rows, to those that are valid.
    fn pad_nulls(&mut self, rows: usize, present: usize, validity: RowBits<'_>);
    /// Of the last `rows` rows keeps those of `selected`: ascending ranges, counted from the first of these rows.
    fn retain(&mut self, rows: usize, selected: &[Range<usize>]);
    /// Builds the array of the column.
    fn finish(&mut self, nulls: Option<NullBuffer>) -> Result<ArrayRef, Unsupported>;
}

/// One bit for each row from the bit `first`.
#[derive(Clone, Copy)]
pub(super) struct RowBits<'a> {
    pub(super) bits: &'a [u8],
    pub(super) first: usize,
}

impl RowBits<'_> {
    pub(super) fn is_set(self, row: usize) -> bool {
        get_bit(self.bits, self.first + row)
    }
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

    fn append_integers(&mut self, values: &[i64]) -> Result<(), Unsupported> {
        let read = |value: &i64| {
            value
                .to_le_bytes()
                .first_chunk()
                .map(|bytes| V::read(*bytes))
        };
        self.values.extend(values.iter().filter_map(read));
        Ok(())
    }

    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported> {
        let dictionary = self.dictionary.as_slice();
        check_indices(indices, dictionary.len())?;
        let values = indices.iter().map(|i| dictionary[*i as usize]);
        self.values.extend(values);
        Ok(())
    }

    fn pad_nulls(&mut self, rows: usize, present: usize, validity: RowBits<'_>) {
        let begin = self.values.len() - present;
        self.values.resize(begin + rows, V::default());
        let mut from = present;
        for row in (0..rows).rev() {
            self.values[begin + row] = if validity.is_set(row) {
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
pub(super) fn move_down<T: Copy>(values: &mut [T], range: Range<usize>, to: usize) {
    if range.len() < 8 {
        for (at, from) in range.enumerate() {
            values[to + at] = values[from];
        }
    } else if to < range.start {
        values.copy_within(range, to);
    }
}

/// Gives back memory that was reserved for rows that were not selected.
pub(super) fn release_unused<T>(values: &mut Vec<T>) {
    if values.len() < values.capacity() / 2 {
        values.shrink_to_fit();
    }
}

pub(super) fn check_indices(indices: &[u32], length: usize) -> Result<(), Unsupported> {
    // A fold over values is done many at a time; the maximum of references is not.
    let highest = indices
        .iter()
        .fold(0_u32, |highest, index| highest.max(*index));
    if !indices.is_empty() && highest as usize >= length {
        return Err(Unsupported);
    }
    Ok(())
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
