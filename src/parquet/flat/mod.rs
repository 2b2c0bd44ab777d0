//! A fast decoder for flat columns, which writes values straight into the array that it returns.
//!
//! The general decoder of arrow-rs collects values in one form and builds the array in a second pass. This decoder
//! knows only the common cases: numbers, times, decimals, strings and binaries without nesting, in plain or dictionary
//! encoding, and integers as packed differences. `page_source` reads its pages. Every other column, and every one with an
//! error, it leaves to the general decoder, whose errors are those that a user sees: [`decode`] has no errors of its own.

pub(super) mod hybrid;
mod packed;
mod page_source;
mod texts;
mod values;

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray};
use arrow_buffer::bit_chunk_iterator::UnalignedBitChunk;
use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, NullBuffer};
use arrow_schema::DataType;
use arrow_select::filter::filter;
use parquet::basic::{Encoding, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::ChunkReader;

use self::hybrid::{HybridRun, HybridRuns};
use self::page_source::{DataPage, FlatPage, PageBuffer, PageSource};
use self::texts::ByteArrayBuilder;
use self::values::{ColumnBuilder, FixedWidthBuilder, RowBits};

/// The most rows and bytes for which memory is reserved beforehand, whatever a footer claims.
const MAX_RESERVED_ROWS: usize = 1 << 24;
const MAX_RESERVED_BYTES: usize = 1 << 30;
/// About the most rows of a page.
const PAGE_ROWS: usize = 1 << 15;

/// The column must be decoded by the general decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unsupported;

/// The rows of a column chunk to decode.
#[derive(Debug)]
pub(super) struct RowsToDecode<'a> {
    pub(super) range: Range<usize>,
    /// For each row of the range whether it is selected; None selects all.
    pub(super) mask: Option<&'a BooleanBuffer>,
    /// Where the data pages are, if pages without a selected row may be missing.
    pub(super) locations: Option<&'a [PageLocation]>,
}

/// Decodes some rows of a column chunk of `rows` rows to an array of `data_type`, equal to the general decoder's. None if
/// the general decoder must decode the chunk. Pages without a selected row are skipped.
pub(super) fn decode<R: ChunkReader + 'static>(
    reader: R,
    column: &ColumnChunkMetaData,
    rows: usize,
    selected: &RowsToDecode<'_>,
    data_type: &DataType,
) -> Option<ArrayRef> {
    let descriptor = column.column_descr();
    let is_flat = descriptor.path().parts().len() == 1 && descriptor.max_rep_level() == 0;
    // Of values and of levels; the pages say which levels they have.
    let is_supported = |encoding| is_value_encoding(encoding) || is_level_encoding(encoding);
    if !is_flat || descriptor.max_def_level() > 1 || !column.encodings().all(is_supported) {
        return None;
    }
    let selected_rows = selected.mask.map_or(selected.range.len(), |mask| {
        // A page more, because a page is decoded before its rows are selected.
        (mask.count_set_bits() + PAGE_ROWS).min(mask.len())
    });
    let builder = create_builder(column, selected_rows, rows, data_type)?;
    let pages = PageSource::open(reader, column, rows, selected.locations).ok()?;
    let decoder = ChunkDecoder {
        builder,
        rows,
        row_range: selected.range.clone(),
        mask: selected.mask.cloned(),
        skipped_rows: 0,
        validity: (descriptor.max_def_level() == 1).then(Validity::default),
        selected: Vec::new(),
        decoded_rows: 0,
    };
    PageBuffer::with(|buffer| decoder.read(pages, buffer)).ok()
}

fn is_value_encoding(encoding: Encoding) -> bool {
    use Encoding::{DELTA_BINARY_PACKED, PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY};
    matches!(
        encoding,
        PLAIN | PLAIN_DICTIONARY | RLE_DICTIONARY | DELTA_BINARY_PACKED
    )
}

#[allow(deprecated, reason = "old writers list it among the encodings")]
fn is_level_encoding(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::RLE | Encoding::BIT_PACKED)
}

/// The builder for types that the general decoder reinterprets or widens; None for those that it converts otherwise.
fn create_builder(
    column: &ColumnChunkMetaData,
    selected_rows: usize,
    rows: usize,
    data_type: &DataType,
) -> Option<Box<dyn ColumnBuilder>> {
    use DataType as D;
    let capacity_rows = selected_rows.min(MAX_RESERVED_ROWS);
    let claimed_bytes = column.unencoded_byte_array_data_bytes();
    let claimed_bytes = u128::from(claimed_bytes.unwrap_or_default().unsigned_abs());
    let used_bytes = claimed_bytes * selected_rows as u128 / rows.max(1) as u128;
    let capacity_bytes = usize::try_from(used_bytes)
        .unwrap_or(usize::MAX)
        .min(MAX_RESERVED_BYTES);
    let builder: Box<dyn ColumnBuilder> = match (column.column_type(), data_type) {
        (Type::INT32, D::Int8 | D::UInt8) => {
            Box::new(FixedWidthBuilder::<4, u8>::new(data_type, capacity_rows).ok()?)
        }
        (Type::INT32, D::Int16 | D::UInt16) => {
            Box::new(FixedWidthBuilder::<4, u16>::new(data_type, capacity_rows).ok()?)
        }
        (Type::INT32, D::Int32 | D::UInt32 | D::Date32 | D::Time32(_) | D::Decimal32(..))
        | (Type::FLOAT, D::Float32) => {
            Box::new(FixedWidthBuilder::<4, i32>::new(data_type, capacity_rows).ok()?)
        }
        (
            Type::INT64,
            D::Int64
            | D::UInt64
            | D::Timestamp(..)
            | D::Time64(_)
            | D::Duration(_)
            | D::Decimal64(..),
        )
        | (Type::DOUBLE, D::Float64) => {
            Box::new(FixedWidthBuilder::<8, i64>::new(data_type, capacity_rows).ok()?)
        }
        (Type::INT32, D::Decimal128(..)) => {
            Box::new(FixedWidthBuilder::<4, i128>::new(data_type, capacity_rows).ok()?)
        }
        (Type::INT64, D::Decimal128(..)) => {
            Box::new(FixedWidthBuilder::<8, i128>::new(data_type, capacity_rows).ok()?)
        }
        (Type::BYTE_ARRAY, D::Utf8 | D::Binary) => {
            let is_utf8 = *data_type == D::Utf8;
            Box::new(ByteArrayBuilder::<i32>::new(is_utf8, capacity_rows, capacity_bytes).ok()?)
        }
        (Type::BYTE_ARRAY, D::LargeUtf8 | D::LargeBinary) => {
            let is_utf8 = *data_type == D::LargeUtf8;
            Box::new(ByteArrayBuilder::<i64>::new(is_utf8, capacity_rows, capacity_bytes).ok()?)
        }
        _ => return None,
    };
    Some(builder)
}

/// The state of decoding a column chunk, page by page.
struct ChunkDecoder {
    builder: Box<dyn ColumnBuilder>,
    rows: usize,
    row_range: Range<usize>,
    /// For each row of `row_range` whether it is selected; None selects all.
    mask: Option<BooleanBuffer>,
    /// Rows of the pages before the first one that is decoded.
    skipped_rows: usize,
    /// The validity of a nullable column; None for a required one.
    validity: Option<Validity>,
    /// The selected rows of a page, as ranges.
    selected: Vec<Range<usize>>,
    /// Rows decoded so far, whether selected or not.
    decoded_rows: usize,
}

impl ChunkDecoder {
    fn read<R: ChunkReader>(
        mut self,
        mut pages: PageSource<R>,
        buffer: &mut PageBuffer,
    ) -> Result<ArrayRef, Unsupported> {
        let is_whole = self.row_range == (0..self.rows);
        while self.skipped_rows + self.decoded_rows < self.row_range.end {
            if (!is_whole || self.mask.is_some()) && self.skip_page(&mut pages)? {
                continue;
            }
            match pages.next_page(buffer)? {
                FlatPage::Dictionary { values, count } => {
                    self.builder.set_dictionary(values, count)?;
                }
                FlatPage::Data(page) => self.read_data_page(&page)?,
            }
        }
        let first = self
            .row_range
            .start
            .checked_sub(self.skipped_rows)
            .ok_or(Unsupported)?;
        let mut bits = self.validity.and_then(Validity::finish);
        if let Some(mask) = &self.mask {
            let of_range = bits.map(|bits| bits.slice(first, self.row_range.len()));
            let selected = of_range.map(|bits| select(bits, mask));
            bits = selected.transpose()?;
        }
        let nulls = bits.map(NullBuffer::new);
        let array = self.builder.finish(nulls.filter(|n| n.null_count() > 0))?;
        let is_whole = is_whole || self.mask.is_some();
        if is_whole {
            return Ok(array);
        }
        Ok(array.slice(first, self.row_range.len()))
    }

    /// Skips the next page if none of its rows is selected; returns whether it did.
    fn skip_page<R: ChunkReader>(
        &mut self,
        pages: &mut PageSource<R>,
    ) -> Result<bool, Unsupported> {
        if self.decoded_rows > 0 && self.mask.is_none() {
            return Ok(false);
        }
        let Some(rows) = pages.peek_rows()? else {
            return Ok(false);
        };
        if self.decoded_rows == 0 && self.skipped_rows + rows <= self.row_range.start {
            self.skipped_rows += rows;
        } else if rows <= self.rows - self.skipped_rows - self.decoded_rows
            && let Some((_, page_mask)) = self.page_mask(rows)
            && page_mask.count_set_bits() == 0
        {
            if let Some(validity) = &mut self.validity {
                validity.skip(rows);
            }
            self.decoded_rows += rows;
        } else {
            return Ok(false);
        }
        pages.skip_page()?;
        Ok(true)
    }

    fn read_data_page(&mut self, page: &DataPage<'_>) -> Result<(), Unsupported> {
        let DataPage {
            rows,
            encoding,
            levels,
            values,
        } = *page;
        if rows > self.rows - self.skipped_rows - self.decoded_rows || !is_value_encoding(encoding)
        {
            return Err(Unsupported);
        }
        let present = match &mut self.validity {
            Some(validity) => validity.append(levels, rows)?,
            None => rows,
        };
        match encoding {
            // A page of nulls may have no bytes after its levels.
            _ if present == 0 => {}
            Encoding::PLAIN => self.builder.append_plain(values, present)?,
            Encoding::DELTA_BINARY_PACKED => {
                let append = |block: &[i64]| self.builder.append_integers(block);
                packed::read_blocks(values, present, append)?;
            }
            _ => {
                let (&width, runs) = values.split_first().ok_or(Unsupported)?;
                let append = |indices: &[u32]| self.builder.append_indexed(indices);
                hybrid::read_blocks(runs, u32::from(width), present, append)?;
            }
        }
        if let Some(bits) = self.validity.as_ref().and_then(|v| v.bits.as_ref())
            && present < rows
        {
            let bits = bits.as_slice();
            let first = self.decoded_rows;
            let validity = RowBits { bits, first };
            self.builder.pad_nulls(rows, present, validity);
        }
        self.retain_selected(rows);
        self.decoded_rows += rows;
        Ok(())
    }

    /// Keeps the selected ones of the `rows` rows of a page, while they are in the processor's cache.
    fn retain_selected(&mut self, rows: usize) {
        let Some((offset, page_mask)) = self.page_mask(rows) else {
            return;
        };
        if page_mask.count_set_bits() < rows {
            let slices = page_mask.set_slices();
            self.selected.clear();
            self.selected
                .extend(slices.map(|(start, end)| offset + start..offset + end));
            self.builder.retain(rows, &self.selected);
        }
    }

    /// The mask of those of the next `rows` rows that are in `row_range`, and how many come before these.
    fn page_mask(&self, rows: usize) -> Option<(usize, BooleanBuffer)> {
        let first = self.skipped_rows + self.decoded_rows;
        let begin = self.row_range.start.clamp(first, first + rows);
        let end = self.row_range.end.clamp(begin, first + rows);
        let position = begin.saturating_sub(self.row_range.start);
        let page_mask = self.mask.as_ref()?.slice(position, end - begin);
        Some((begin - first, page_mask))
    }
}

/// The bits that a mask selects.
fn select(bits: BooleanBuffer, mask: &BooleanBuffer) -> Result<BooleanBuffer, Unsupported> {
    let mask = BooleanArray::new(mask.clone(), None);
    let selected = filter(&BooleanArray::new(bits, None), &mask).map_err(|_refused| Unsupported)?;
    Ok(selected.as_boolean().values().clone())
}

/// Which rows hold a value.
#[derive(Default)]
struct Validity {
    /// One bit for each row; None before the first null.
    bits: Option<BooleanBufferBuilder>,
    rows: usize,
}

impl Validity {
    /// Appends the levels of a page; returns how many of its rows hold a value.
    fn append(&mut self, levels: &[u8], rows: usize) -> Result<usize, Unsupported> {
        let mut runs = HybridRuns::new(levels, 1, rows)?;
        let previous_rows = self.rows;
        self.rows += rows;
        if self.bits.is_none() {
            match runs.next().transpose()? {
                Some(HybridRun::Rle { value: 1, count }) if count == rows => return Ok(rows),
                None => return Ok(rows),
                Some(_) => runs = HybridRuns::new(levels, 1, rows)?,
            }
        }
        let bits = self.bits.get_or_insert_with(|| {
            let mut bits = BooleanBufferBuilder::new(previous_rows + rows);
            bits.append_n(previous_rows, true);
            bits
        });
        let mut present = 0;
        for run in runs {
            match run? {
                HybridRun::Rle { value, count } if value < 2 => {
                    bits.append_n(count, value == 1);
                    present += count * value as usize;
                }
                HybridRun::Rle { .. } => return Err(Unsupported),
                HybridRun::BitPacked { bytes, count } => {
                    bits.append_packed_range(0..count, bytes);
                    present += UnalignedBitChunk::new(bytes, 0, count).count_ones();
                }
            }
        }
        Ok(present)
    }

    /// Appends rows of which it does not matter whether they hold a value.
    fn skip(&mut self, rows: usize) {
        self.rows += rows;
        if let Some(bits) = &mut self.bits {
            bits.append_n(rows, true);
        }
    }

    fn finish(self) -> Option<BooleanBuffer> {
        Some(self.bits?.finish())
    }
}

#[cfg(test)]
mod tests;
