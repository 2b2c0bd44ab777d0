//! The pages of a column chunk as arrow-rs decodes them: checked, and changed where it needs that, after they are
//! decompressed.
//!
//! - Skipping plain strings, arrow-rs adds up lengths that it does not compare with the page. So a page ends behind the
//!   last string that it holds as a whole.
//! - Skipping 32-bit deltas, it refuses many equal steps whose sum exceeds 32 bits, although sums wrap around. So such
//!   steps get a width of one bit, and it adds them one by one.
//! - Of a page without values it wants the bits of a dictionary index, and finds none. So it gets such a page as plain.
//! - Of the intervals of other makers it leaves out the months, and wraps what exceeds a signed number. They are
//!   refused.
//!
//! What else a page must hold is in `contents`.

mod contents;

use parquet::basic::{ConvertedType, Encoding, Type};
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescPtr;

use super::chunks::SparseFile;
use super::deltas::DeltaHeader;
use super::pages::skip_levels;
use super::thrift::{ThriftReader, ThriftResult};

/// Three numbers of 32 bits without a sign: months, days and milliseconds.
const INTERVAL_BYTES: usize = 12;
const LOST_INTERVAL: &str = "it has intervals of months, or of more days or milliseconds than a signed 32-bit number, \
                             which pds cannot read; write them as separate numbers";

/// The pages of one column chunk.
pub(super) struct CheckedPages {
    pub(super) pages: SerializedPageReader<SparseFile>,
    pub(super) column: ColumnDescPtr,
    /// Whether rows are skipped.
    pub(super) skips: bool,
    /// Whether the file keeps its Arrow schema, whose intervals leave nothing out.
    pub(super) has_arrow_schema: bool,
    /// Whether the pages have been compared with checksums.
    pub(super) is_sealed: bool,
}

impl CheckedPages {
    fn check(&self, page: Page) -> Result<Page> {
        let failed = |reason: &str| ParquetError::General(reason.to_owned());
        let values = skip_levels(&page, &self.column).map_err(failed)?.0;
        let levels = page.buffer().len() - values.len();
        let is_dictionary = matches!(page, Page::DictionaryPage { .. });
        if !self.is_sealed && !is_dictionary {
            contents::check(&page, &self.column).map_err(failed)?;
        }
        if values.is_empty() && page.encoding() != Encoding::PLAIN {
            return Ok(as_plain(page));
        }
        let buffer = match (self.column.physical_type(), page.encoding()) {
            (Type::FIXED_LEN_BYTE_ARRAY, encoding) if self.has_unchecked_intervals() => {
                check_intervals(values, encoding, is_dictionary).map_err(failed)?;
                return Ok(page);
            }
            _ if !self.skips || is_dictionary => return Ok(page),
            (Type::BYTE_ARRAY, Encoding::PLAIN) => {
                let end = whole_strings(values);
                if end == values.len() {
                    return Ok(page);
                }
                page.buffer().slice(..levels + end)
            }
            (Type::INT32, Encoding::DELTA_BINARY_PACKED) => {
                // What cannot be read, arrow-rs refuses.
                let Ok(Some(packed)) = pack_steps(values, page.num_values().into()) else {
                    return Ok(page);
                };
                [&page.buffer()[..levels], &packed].concat().into()
            }
            _ => return Ok(page),
        };
        let mut page = page;
        match &mut page {
            Page::DataPage { buf, .. }
            | Page::DataPageV2 { buf, .. }
            | Page::DictionaryPage { buf, .. } => *buf = buffer,
        }
        Ok(page)
    }

    fn has_unchecked_intervals(&self) -> bool {
        !self.has_arrow_schema && self.column.converted_type() == ConvertedType::INTERVAL
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        page.map(|page| self.check(page)).transpose()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

/// The page, which has no values, in plain encoding; unless arrow-rs can read it as it is.
fn as_plain(mut page: Page) -> Page {
    if let Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. } = &mut page
        && matches!(
            encoding,
            Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY
        )
    {
        *encoding = Encoding::PLAIN;
    }
    page
}

/// Where the last string ends that `values` holds as a whole.
fn whole_strings(values: &[u8]) -> usize {
    let mut rest = values;
    while let Some((length, after)) = rest.split_first_chunk()
        && let Some(next) = after.get(u32::from_le_bytes(*length) as usize..)
    {
        rest = next;
    }
    values.len() - rest.len()
}

/// Deltas of 32 bits with a width for equal steps whose sum exceeds 32 bits; None where all can stay as they are.
fn pack_steps(values: &[u8], max_values: u64) -> ThriftResult<Option<Vec<u8>>> {
    let mut reader = ThriftReader(values);
    let header = DeltaHeader::read(&mut reader, max_values)?;
    let mut packed = values[..values.len() - reader.0.len()].to_vec();
    let (mut remaining, mut is_changed) = (header.remaining_values(), false);
    let exceeds = |step: i64| {
        let sum = i128::from(step) * i128::from(header.values_each);
        i32::try_from(sum).is_err()
    };
    while remaining > 0 {
        let block = reader.0;
        let step = reader.read_zigzag()?;
        packed.extend_from_slice(&block[..block.len() - reader.0.len()]);
        let widths_start = packed.len();
        let widths = reader.take(header.miniblocks)?;
        packed.extend_from_slice(widths);
        for (at, width) in widths.iter().enumerate() {
            if remaining == 0 {
                break;
            }
            let count = header.values_each.min(remaining);
            if *width == 0 && exceeds(step) {
                is_changed = true;
                packed[widths_start + at] = 1;
                let bytes = usize::try_from(count.div_ceil(8)).unwrap_or_default();
                packed.resize(packed.len() + bytes, 0);
            } else {
                let bytes = header.values_each.saturating_mul(u64::from(*width)) / 8;
                packed.extend_from_slice(reader.take(bytes)?);
            }
            remaining -= count;
        }
    }
    packed.extend_from_slice(reader.0);
    Ok(is_changed.then_some(packed))
}

/// Refuses intervals that do not fit days and milliseconds.
fn check_intervals(values: &[u8], encoding: Encoding, is_dictionary: bool) -> ThriftResult {
    match encoding {
        Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY if !is_dictionary => return Ok(()),
        Encoding::PLAIN | Encoding::PLAIN_DICTIONARY => {}
        _ => return Err("its intervals have an encoding that pds does not know for them"),
    }
    let (intervals, _) = values.as_chunks::<INTERVAL_BYTES>();
    let fits = |interval: &[u8; INTERVAL_BYTES]| {
        let months = &interval[..4];
        months == [0; 4] && interval[7] < 0x80 && interval[11] < 0x80
    };
    intervals
        .iter()
        .all(fits)
        .then_some(())
        .ok_or(LOST_INTERVAL)
}

#[cfg(test)]
mod tests;
