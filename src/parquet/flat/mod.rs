//! Flat columns, decoded straight into the array that is handed out.
//!
//! The general decoder of arrow-rs gathers values in one form and makes the array from it in a
//! second pass. This one knows the common cases only: numbers, times, decimals, strings and binaries
//! without nesting, plain or with a dictionary. Whatever is not of that kind, or not as it should
//! be, it leaves to the other, whose errors are the ones a user sees.

mod hybrid;
mod values;

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_buffer::bit_chunk_iterator::UnalignedBitChunk;
use arrow_buffer::bit_util::get_bit;
use arrow_buffer::{BooleanBufferBuilder, NullBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

use self::hybrid::{Run, Runs};
use self::values::{Fixed, Sink};

/// For so many rows and bytes room is made beforehand, whatever a footer says.
const MAX_ROWS_AHEAD: usize = 1 << 24;
const MAX_BYTES_AHEAD: usize = 1 << 30;

/// This is for the general decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unsuited;

/// The rows `wanted` of a column chunk of `rows` rows as an array of `data_type`, which is what the
/// general decoder makes of it; None where that one is to decode it. Pages without such rows are
/// passed over.
pub(super) fn decode<R: ChunkReader + 'static>(
    reader: R,
    column: &ColumnChunkMetaData,
    rows: usize,
    wanted: &Range<usize>,
    data_type: &DataType,
) -> Option<ArrayRef> {
    let descriptor = column.column_descr();
    let flat = descriptor.path().parts().len() == 1 && descriptor.max_rep_level() == 0;
    let known = |encoding| is_of_values(encoding) || encoding == Encoding::RLE;
    if !flat || descriptor.max_def_level() > 1 || !column.encodings().all(known) {
        return None;
    }
    let is_whole = *wanted == (0..rows);
    let sink = sink_for(column, wanted.len(), is_whole, data_type)?;
    let pages = SerializedPageReader::new(Arc::new(reader), column, rows, None).ok()?;
    let chunk = Chunk {
        sink,
        rows,
        wanted: wanted.clone(),
        passed: 0,
        validity: (descriptor.max_def_level() == 1).then(Validity::default),
        indices: Vec::new(),
        done: 0,
    };
    chunk.read(pages).ok()
}

fn is_of_values(encoding: Encoding) -> bool {
    use Encoding::{PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY};
    matches!(encoding, PLAIN | PLAIN_DICTIONARY | RLE_DICTIONARY)
}

/// What the general decoder reinterprets or widens, and nothing it converts otherwise.
fn sink_for(
    column: &ColumnChunkMetaData,
    rows: usize,
    is_whole: bool,
    data_type: &DataType,
) -> Option<Box<dyn Sink>> {
    use DataType as D;
    let room = rows.min(MAX_ROWS_AHEAD);
    let bytes = column.unencoded_byte_array_data_bytes();
    let bytes = bytes.filter(|_| is_whole).unwrap_or_default();
    let bytes = usize::try_from(bytes)
        .unwrap_or_default()
        .min(MAX_BYTES_AHEAD);
    let sink: Box<dyn Sink> = match (column.column_type(), data_type) {
        (Type::INT32, D::Int8 | D::UInt8) => Box::new(Fixed::<4, u8>::new(data_type, room).ok()?),
        (Type::INT32, D::Int16 | D::UInt16) => {
            Box::new(Fixed::<4, u16>::new(data_type, room).ok()?)
        }
        (Type::INT32, D::Int32 | D::UInt32 | D::Date32 | D::Time32(_) | D::Decimal32(..))
        | (Type::FLOAT, D::Float32) => Box::new(Fixed::<4, i32>::new(data_type, room).ok()?),
        (
            Type::INT64,
            D::Int64
            | D::UInt64
            | D::Timestamp(..)
            | D::Time64(_)
            | D::Duration(_)
            | D::Decimal64(..),
        )
        | (Type::DOUBLE, D::Float64) => Box::new(Fixed::<8, i64>::new(data_type, room).ok()?),
        (Type::INT32, D::Decimal128(..)) => Box::new(Fixed::<4, i128>::new(data_type, room).ok()?),
        (Type::INT64, D::Decimal128(..)) => Box::new(Fixed::<8, i128>::new(data_type, room).ok()?),
        (Type::BYTE_ARRAY, D::Utf8 | D::Binary) => {
            let utf8 = *data_type == D::Utf8;
            Box::new(values::Bytes::<i32>::new(utf8, room, bytes).ok()?)
        }
        (Type::BYTE_ARRAY, D::LargeUtf8 | D::LargeBinary) => {
            let utf8 = *data_type == D::LargeUtf8;
            Box::new(values::Bytes::<i64>::new(utf8, room, bytes).ok()?)
        }
        _ => return None,
    };
    Some(sink)
}

/// A column chunk as its pages are read.
struct Chunk {
    sink: Box<dyn Sink>,
    rows: usize,
    wanted: Range<usize>,
    /// Rows of pages before the first that is decoded.
    passed: usize,
    /// Of a nullable column.
    validity: Option<Validity>,
    /// Those of a page.
    indices: Vec<u32>,
    /// Rows so far.
    done: usize,
}

impl Chunk {
    fn read<R: ChunkReader>(
        mut self,
        mut pages: SerializedPageReader<R>,
    ) -> Result<ArrayRef, Unsuited> {
        let is_whole = self.wanted == (0..self.rows);
        while self.passed + self.done < self.wanted.end {
            if !is_whole && self.pass(&mut pages)? {
                continue;
            }
            match pages.get_next_page().map_err(|_damaged| Unsuited)? {
                Some(page) => self.page(page)?,
                None => return Err(Unsuited),
            }
        }
        let nulls = self.validity.and_then(Validity::finish);
        let array = self.sink.finish(nulls)?;
        if is_whole {
            return Ok(array);
        }
        let first = self.wanted.start.checked_sub(self.passed);
        Ok(array.slice(first.ok_or(Unsuited)?, self.wanted.len()))
    }

    /// Passes over the next page if all of its rows come before those that are wanted.
    fn pass<R: ChunkReader>(
        &mut self,
        pages: &mut SerializedPageReader<R>,
    ) -> Result<bool, Unsuited> {
        if self.done > 0 {
            return Ok(false);
        }
        let next = pages.peek_next_page().map_err(|_damaged| Unsuited)?;
        let Some(next) = next.filter(|page| !page.is_dict) else {
            return Ok(false);
        };
        // Without nesting a level is a row.
        let rows = next.num_levels.or(next.num_rows).ok_or(Unsuited)?;
        if self.passed + rows > self.wanted.start {
            return Ok(false);
        }
        self.passed += rows;
        pages.skip_next_page().map_err(|_damaged| Unsuited)?;
        Ok(true)
    }

    fn page(&mut self, page: Page) -> Result<(), Unsuited> {
        match page {
            Page::DictionaryPage {
                buf,
                num_values,
                encoding: Encoding::PLAIN | Encoding::PLAIN_DICTIONARY,
                ..
            } => self.sink.dictionary(&buf, num_values as usize),
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                ..
            } => {
                let (levels, values) = match self.validity {
                    Some(_) if def_level_encoding == Encoding::RLE => {
                        let (length, rest) = buf.split_first_chunk().ok_or(Unsuited)?;
                        let length = u32::from_le_bytes(*length) as usize;
                        split(&buf.slice_ref(rest), length)?
                    }
                    Some(_) => return Err(Unsuited),
                    None => (Bytes::new(), buf),
                };
                self.data(num_values as usize, &levels, &values, encoding)
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len: 0,
                ..
            } => {
                let (levels, values) = split(&buf, def_levels_byte_len as usize)?;
                self.data(num_values as usize, &levels, &values, encoding)
            }
            _ => Err(Unsuited),
        }
    }

    fn data(
        &mut self,
        rows: usize,
        levels: &[u8],
        values: &[u8],
        encoding: Encoding,
    ) -> Result<(), Unsuited> {
        if rows > self.rows - self.passed - self.done || !is_of_values(encoding) {
            return Err(Unsuited);
        }
        let present = match &mut self.validity {
            Some(validity) => validity.append(levels, rows)?,
            None => rows,
        };
        match encoding {
            // A page of nulls may have nothing behind its levels.
            _ if present == 0 => {}
            Encoding::PLAIN => self.sink.plain(values, present)?,
            _ => {
                let (&width, runs) = values.split_first().ok_or(Unsuited)?;
                self.indices.clear();
                hybrid::read_all(runs, u32::from(width), present, &mut self.indices)?;
                self.sink.indexed(&self.indices)?;
            }
        }
        if let Some(bits) = self.validity.as_ref().and_then(|v| v.bits.as_ref())
            && present < rows
        {
            let (bits, begin) = (bits.as_slice(), self.done);
            let is_valid = |row| get_bit(bits, begin + row);
            self.sink.spread(rows, present, &is_valid);
        }
        self.done += rows;
        Ok(())
    }
}

fn split(bytes: &Bytes, at: usize) -> Result<(Bytes, Bytes), Unsuited> {
    if at > bytes.len() {
        return Err(Unsuited);
    }
    Ok((bytes.slice(..at), bytes.slice(at..)))
}

/// Which rows hold a value.
#[derive(Default)]
struct Validity {
    /// From the first null on.
    bits: Option<BooleanBufferBuilder>,
    rows: usize,
}

impl Validity {
    /// Appends a page's levels; gives how many of its rows hold a value.
    fn append(&mut self, levels: &[u8], rows: usize) -> Result<usize, Unsuited> {
        let mut runs = Runs::new(levels, 1, rows)?;
        let before = self.rows;
        self.rows += rows;
        if self.bits.is_none() {
            match runs.next().transpose()? {
                Some(Run::Same { value: 1, count }) if count == rows => return Ok(rows),
                None => return Ok(rows),
                Some(_) => runs = Runs::new(levels, 1, rows)?,
            }
        }
        let bits = self.bits.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(before + rows);
            bits.append_n(before, true);
            bits
        });
        let mut present = 0;
        for run in runs {
            match run? {
                Run::Same { value, count } if value < 2 => {
                    bits.append_n(count, value == 1);
                    present += count * value as usize;
                }
                Run::Same { .. } => return Err(Unsuited),
                Run::Packed { bytes, count } => {
                    bits.append_packed_range(0..count, bytes);
                    present += UnalignedBitChunk::new(bytes, 0, count).count_ones();
                }
            }
        }
        Ok(present)
    }

    fn finish(self) -> Option<NullBuffer> {
        let nulls = NullBuffer::new(self.bits?.finish());
        (nulls.null_count() > 0).then_some(nulls)
    }
}

#[cfg(test)]
mod tests;
