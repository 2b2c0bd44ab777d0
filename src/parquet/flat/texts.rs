//! The builder of arrays of strings and binaries.
//!
//! Strings are checked to be UTF-8 when they arrive: those of a dictionary once, however many rows have them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, GenericBinaryArray, GenericStringArray, OffsetSizeTrait};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};

use super::Unsupported;
use super::values::{ColumnBuilder, RowBits, check_indices, move_down, release_unused};

/// Values of up to this many bytes are copied as one block of this size, which is faster than to copy each by its length.
const BLOCK_BYTES: usize = 32;

/// Builds an array of strings or binaries.
#[derive(Debug)]
pub(super) struct ByteArrayBuilder<O> {
    is_utf8: bool,
    /// The offset in `dictionary_page` and the length of each value of the dictionary. Strings are valid UTF-8.
    dictionary: Vec<(u32, u32)>,
    /// The dictionary page, and [`BLOCK_BYTES`] after it.
    dictionary_page: Vec<u8>,
    /// The length of the longest value of the dictionary.
    longest: usize,
    /// Where in `values` a row begins, and at the end where the last one ends.
    offsets: Vec<O>,
    /// The values of the rows, one after the other. Strings are valid UTF-8, each of them.
    values: Vec<u8>,
}

impl<O: OffsetSizeTrait> ByteArrayBuilder<O> {
    /// Reserves memory for `rows` values of `bytes` bytes in total.
    pub(super) fn new(is_utf8: bool, rows: usize, bytes: usize) -> Result<Self, Unsupported> {
        let mut offsets = Vec::new();
        let reserved = offsets.try_reserve_exact(rows + 1);
        reserved.map_err(|_no_room| Unsupported)?;
        offsets.push(O::default());
        let mut builder = Self {
            is_utf8,
            dictionary: Vec::new(),
            dictionary_page: Vec::new(),
            longest: 0,
            offsets,
            values: Vec::new(),
        };
        builder.reserve(bytes)?;
        Ok(builder)
    }

    /// Reserves memory for `bytes` more bytes of values, and for the end of a block.
    fn reserve(&mut self, bytes: usize) -> Result<(), Unsupported> {
        let reserved = self.values.try_reserve(bytes + BLOCK_BYTES);
        reserved.map_err(|_no_room| Unsupported)
    }

    /// Fails if an offset cannot be as large as `length`.
    fn check_length(length: usize) -> Result<(), Unsupported> {
        O::from_usize(length).map(drop).ok_or(Unsupported)
    }

    /// Checks that the values from the offset `begin`, which end at the offsets from `first`, are strings. If they are
    /// none, all values are removed.
    fn check_strings(&mut self, begin: usize, first: usize) -> Result<(), Unsupported> {
        let appended = &self.values[begin..];
        if !self.is_utf8 || appended.is_ascii() {
            return Ok(());
        }
        if let Ok(text) = std::str::from_utf8(appended) {
            let mut ends = self.offsets[first..].iter();
            if ends.all(|end| text.is_char_boundary(end.as_usize() - begin)) {
                return Ok(());
            }
        }
        self.refuse()
    }

    /// Removes all values, as the last ones have not been checked.
    fn refuse(&mut self) -> Result<(), Unsupported> {
        self.offsets.truncate(1);
        self.values.clear();
        Err(Unsupported)
    }

    /// Builds an array of strings without a second look at them, which would take about as long as to copy them.
    #[expect(unsafe_code, reason = "the strings were checked when they arrived")]
    fn finish_strings(
        offsets: OffsetBuffer<O>,
        values: Buffer,
        nulls: Option<NullBuffer>,
    ) -> GenericStringArray<O> {
        debug_assert!(
            GenericStringArray::try_new(offsets.clone(), values.clone(), nulls.clone()).is_ok(),
            "internal error: a string was not checked"
        );
        // SAFETY: only `finish` calls this, of a builder of strings. The type of the offsets says that they ascend, and
        // `finish` has compared the last one with the length of the values, and the number of nulls with that of rows.
        // Between two offsets is valid UTF-8: `append_plain` checks what it appends, `append_indexed` appends strings
        // of the dictionary, each of which `set_dictionary` checked, `retain` moves whole strings, and `pad_nulls`
        // adds empty ones. Nothing else changes the values.
        unsafe { GenericStringArray::new_unchecked(offsets, values, nulls) }
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

/// Copies the first `length` bytes of `from` to `at` in `to`, where [`BLOCK_BYTES`] more can be written.
#[inline]
fn copy(from: &[u8], length: usize, to: &mut [u8], at: usize) {
    match from.first_chunk::<BLOCK_BYTES>() {
        Some(block) if length <= BLOCK_BYTES => {
            to[at..at + BLOCK_BYTES].copy_from_slice(block);
        }
        _ => to[at..at + length].copy_from_slice(&from[..length]),
    }
}

/// Appends the first `length` bytes of `from`.
#[inline]
fn append(values: &mut Vec<u8>, from: &[u8], length: usize) {
    match from.first_chunk::<BLOCK_BYTES>() {
        Some(block) if length <= BLOCK_BYTES => {
            let end = values.len() + length;
            values.extend_from_slice(block);
            values.truncate(end);
        }
        _ => values.extend_from_slice(&from[..length]),
    }
}

impl<O: OffsetSizeTrait> ColumnBuilder for ByteArrayBuilder<O> {
    fn set_dictionary(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        let mut rest = bytes;
        let mut dictionary = std::mem::take(&mut self.dictionary);
        dictionary.clear();
        self.longest = 0;
        // The lengths of short strings are ASCII, too.
        let is_checked = !self.is_utf8 || bytes.is_ascii();
        for _ in 0..count {
            let (length, value) = split_value(rest)?;
            let (string, after) = value.split_at(length);
            if !is_checked {
                std::str::from_utf8(string).map_err(|_not_utf8| Unsupported)?;
            }
            let to_u32 = |n: usize| u32::try_from(n).map_err(|_too_large| Unsupported);
            let start = to_u32(bytes.len() - value.len())?;
            dictionary.push((start, to_u32(length)?));
            self.longest = self.longest.max(length);
            rest = after;
        }
        self.dictionary = dictionary;
        self.dictionary_page.clear();
        self.dictionary_page.extend_from_slice(bytes);
        self.dictionary_page.extend([0; BLOCK_BYTES]);
        Ok(())
    }

    fn append_plain(&mut self, bytes: &[u8], count: usize) -> Result<(), Unsupported> {
        // A value follows its length. So there is room for all values, if there are as many.
        let max_bytes = bytes.len().checked_sub(4 * count).ok_or(Unsupported)?;
        let (begin, first) = (self.values.len(), self.offsets.len());
        Self::check_length(begin + max_bytes)?;
        self.reserve(max_bytes)?;
        let mut rest = bytes;
        for _ in 0..count {
            let Ok((length, value)) = split_value(rest) else {
                return self.refuse();
            };
            append(&mut self.values, value, length);
            self.offsets.push(O::usize_as(self.values.len()));
            rest = &value[length..];
        }
        self.check_strings(begin, first)
    }

    fn append_integers(&mut self, _: &[i64]) -> Result<(), Unsupported> {
        Err(Unsupported)
    }

    fn append_indexed(&mut self, indices: &[u32]) -> Result<(), Unsupported> {
        check_indices(indices, self.dictionary.len())?;
        // Room for the longest value each is known without a look at the indices, but may be far too much.
        let most = indices.len().saturating_mul(self.longest);
        let (begin, first) = (self.values.len(), self.offsets.len());
        let fits = most.saturating_add(BLOCK_BYTES) <= self.values.capacity() - begin;
        let room = if fits && self.longest <= BLOCK_BYTES {
            most
        } else {
            let lengths = indices
                .iter()
                .map(|i| self.dictionary[*i as usize].1 as usize);
            lengths.sum()
        };
        Self::check_length(begin + room)?;
        self.reserve(room)?;
        self.values.resize(begin + room + BLOCK_BYTES, 0);
        self.offsets.resize(first + indices.len(), O::default());
        let (dictionary, page) = (self.dictionary.as_slice(), self.dictionary_page.as_slice());
        let values = &mut self.values[..];
        let mut at = begin;
        for (index, end) in indices.iter().zip(&mut self.offsets[first..]) {
            let (start, length) = dictionary[*index as usize];
            copy(&page[start as usize..], length as usize, values, at);
            at += length as usize;
            *end = O::usize_as(at);
        }
        self.values.truncate(at);
        Ok(())
    }

    fn pad_nulls(&mut self, rows: usize, present: usize, validity: RowBits<'_>) {
        let begin = self.offsets.len() - present;
        let mut end = self.offsets[self.offsets.len() - 1];
        self.offsets.resize(begin + rows, end);
        let mut from = present;
        for row in (0..rows).rev() {
            self.offsets[begin + row] = end;
            if validity.is_set(row) {
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
        let rows = offsets.len() - 1;
        let ends_at_last = offsets[rows].as_usize() == values.len();
        if !ends_at_last || nulls.as_ref().is_some_and(|nulls| nulls.len() != rows) {
            return Err(Unsupported);
        }
        if self.is_utf8 {
            return Ok(Arc::new(Self::finish_strings(offsets, values, nulls)));
        }
        let array = GenericBinaryArray::try_new(offsets, values, nulls);
        Ok(Arc::new(array.map_err(|_does_not_fit| Unsupported)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(values: &[&[u8]]) -> Vec<u8> {
        let with_length = |value: &&[u8]| {
            let length = u32::try_from(value.len()).unwrap();
            [&length.to_le_bytes()[..], value].concat()
        };
        values.iter().flat_map(with_length).collect()
    }

    fn builder(is_utf8: bool) -> ByteArrayBuilder<i32> {
        ByteArrayBuilder::new(is_utf8, 4, 0).unwrap()
    }

    /// Values that are no strings: also two that are one together, and one between strings.
    fn not_strings() -> [Vec<&'static [u8]>; 4] {
        let (long, split) = ("x".repeat(300).leak().as_bytes(), "é".as_bytes());
        [
            vec![b"\xff"],
            vec![b"a", &split[..1], &split[1..], b"b"],
            vec![long, b"\xf0\x9d\x84", long],
            vec![split, &split[1..]],
        ]
    }

    #[test]
    fn a_string_is_checked_when_it_arrives() {
        for values in not_strings() {
            let (bytes, count) = (plain(&values), values.len());
            assert!(builder(true).append_plain(&bytes, count).is_err());
            assert!(builder(true).set_dictionary(&bytes, count).is_err());
            let mut binary = builder(false);
            binary.set_dictionary(&bytes, count).unwrap();
            binary.append_indexed(&[0]).unwrap();
            binary.append_plain(&bytes, count).unwrap();
            assert_eq!(binary.finish(None).unwrap().len(), 1 + count);
        }
    }

    #[test]
    fn after_an_error_nothing_unchecked_is_left() {
        for values in not_strings() {
            let (bytes, count) = (plain(&values), values.len());
            let mut strings = builder(true);
            strings.set_dictionary(&plain(&[b"a"]), 1).unwrap();
            assert!(strings.set_dictionary(&bytes, count).is_err());
            assert!(strings.append_indexed(&[0]).is_err());
            strings.append_plain(&plain(&["漢".as_bytes()]), 1).unwrap();
            assert!(strings.append_plain(&bytes, count).is_err());
            assert_eq!(strings.finish(None).unwrap().len(), 0);
        }
        // A value that is no string, and one that is cut off.
        let mut strings = builder(true);
        assert!(
            strings
                .append_plain(&plain(&[b"\xff", b"ab"])[..9], 2)
                .is_err()
        );
        assert_eq!(strings.finish(None).unwrap().len(), 0);
    }

    #[test]
    fn values_of_every_length_are_copied() {
        let texts: Vec<String> = (0..70).map(|n| "é".repeat(n)).collect();
        let values: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let indices: Vec<u32> = (0..70).rev().chain(0..70).collect();
        // Dictionaries of short values only, and of long ones, and room that was reserved, and not.
        for (count, reserved) in [(16, 0), (17, 0), (70, 0), (16, 1 << 20), (70, 1 << 20)] {
            let mut strings = ByteArrayBuilder::<i64>::new(true, 4, reserved).unwrap();
            strings
                .set_dictionary(&plain(&values[..count]), count)
                .unwrap();
            let used: Vec<u32> = indices
                .iter()
                .map(|i| i % u32::try_from(count).unwrap())
                .collect();
            strings.append_indexed(&used).unwrap();
            strings.append_plain(&plain(&values), values.len()).unwrap();
            strings.append_indexed(&used).unwrap();
            let of_dictionary = used.iter().map(|i| &texts[*i as usize]);
            let expected = of_dictionary.clone().chain(&texts).chain(of_dictionary);
            let expected = GenericStringArray::<i64>::from_iter_values(expected);
            assert_eq!(*strings.finish(None).unwrap(), expected);
        }
    }

    #[test]
    fn nulls_of_another_number_are_refused() {
        let mut strings = builder(true);
        strings.append_plain(&plain(&[b"a", b"b"]), 2).unwrap();
        assert!(strings.finish(Some(NullBuffer::new_null(3))).is_err());
    }
}
