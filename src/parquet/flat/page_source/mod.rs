//! The pages of a column chunk, one after the other, decompressed and split into levels and values.
//!
//! Pages without compression, of Zstandard, GZIP or Brotli are read here. They are decompressed into one buffer, which
//! the thread uses for all of its pages and chunks: a fresh buffer for each page costs as much as to decompress it. No
//! more is decompressed than a page claims. The pages of other codecs are read by arrow-rs. A page that is not as it
//! should be is [`Unsupported`].

mod buffer;
mod general;

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::ChunkReader;

pub(super) use self::buffer::PageBuffer;
use self::general::GeneralPages;
use super::Unsupported;
use crate::parquet::pages::{KindHeader, PageHeader};
use crate::parquet::thrift::ThriftReader;

/// Numbers of the kinds of pages.
const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;
const DATA_PAGE_V2: i64 = 3;
/// Numbers of encodings.
const PLAIN: u64 = 0;
const PLAIN_DICTIONARY: u64 = 2;
const RLE: i64 = 3;
const DELTA_BINARY_PACKED: u64 = 5;
const RLE_DICTIONARY: u64 = 8;
/// Field ids of the header of a data page.
const LEVEL_ENCODING: i32 = 3;
const REPETITION_ENCODING: i32 = 4;
/// Field ids of the header of a data page of version 2.
const NULLS: i32 = 2;
const ROWS: i32 = 3;
const LEVEL_BYTES: i32 = 5;
const REPETITION_BYTES: i32 = 6;
/// A truth value, not a number.
const IS_COMPRESSED: i32 = 7;

/// A page of a column without nesting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FlatPage<'a> {
    /// Plain values.
    Dictionary {
        values: &'a [u8],
        count: usize,
    },
    Data(DataPage<'a>),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct DataPage<'a> {
    /// The number of rows, nulls included.
    pub(super) rows: usize,
    pub(super) encoding: Encoding,
    /// The definition levels; empty for a required column.
    pub(super) levels: &'a [u8],
    pub(super) values: &'a [u8],
}

/// The pages of a column chunk.
pub(super) enum PageSource<R: ChunkReader> {
    Direct(Box<DirectPages<R>>),
    General(Box<GeneralPages<R>>),
}

impl<R: ChunkReader> PageSource<R> {
    /// The pages of a chunk of `rows` rows; only those at `locations` if there are any.
    pub(super) fn open(
        reader: R,
        column: &ColumnChunkMetaData,
        rows: usize,
        locations: Option<&[PageLocation]>,
    ) -> Result<Self, Unsupported> {
        let codec = column.compression();
        if matches!(
            codec,
            Compression::SNAPPY | Compression::LZO | Compression::LZ4 | Compression::LZ4_RAW
        ) {
            let pages = GeneralPages::open(reader, column, rows, locations)?;
            return Ok(Self::General(Box::new(pages)));
        }
        let pages = DirectPages {
            remaining: RemainingPages::open(&reader, column, rows, locations)?,
            reader,
            format: PageFormat {
                codec,
                has_levels: has_levels(column),
            },
            next: None,
            current: None,
        };
        Ok(Self::Direct(Box::new(pages)))
    }

    /// The number of rows of the next page; None for a dictionary and after the last page.
    pub(super) fn peek_rows(&mut self) -> Result<Option<usize>, Unsupported> {
        match self {
            Self::Direct(pages) => pages.peek_rows(),
            Self::General(pages) => pages.peek_rows(),
        }
    }

    /// Skips the next page, which is a data page.
    pub(super) fn skip_page(&mut self) -> Result<(), Unsupported> {
        match self {
            Self::Direct(pages) => pages.skip_page(),
            Self::General(pages) => pages.skip_page(),
        }
    }

    /// Reads the next page; an error after the last one.
    pub(super) fn next_page<'a>(
        &'a mut self,
        buffer: &'a mut PageBuffer,
    ) -> Result<FlatPage<'a>, Unsupported> {
        match self {
            Self::Direct(pages) => pages.next_page(buffer),
            Self::General(pages) => pages.next_page(),
        }
    }
}

fn has_levels(column: &ColumnChunkMetaData) -> bool {
    column.column_descr().max_def_level() > 0
}

/// What the header of a page does not say.
#[derive(Clone, Copy)]
struct PageFormat {
    codec: Compression,
    has_levels: bool,
}

impl PageFormat {
    fn expand<'a>(
        self,
        bytes: &'a [u8],
        length: usize,
        buffer: &'a mut PageBuffer,
    ) -> Result<&'a [u8], Unsupported> {
        match self.codec {
            Compression::UNCOMPRESSED => Ok(bytes),
            codec => buffer.decompress(codec, bytes, length),
        }
    }
}

/// A page as it is stored.
struct StoredPage {
    header: PageHeader,
    body: Bytes,
}

impl StoredPage {
    /// Takes the first page off `bytes`.
    fn split_off(bytes: &mut Bytes) -> Result<Self, Unsupported> {
        let mut reader = ThriftReader(bytes);
        let header = PageHeader::read(&mut reader).map_err(|_damaged| Unsupported)?;
        let header_bytes = bytes.len() - reader.0.len();
        let body_bytes = to_usize(header.compressed_bytes)?;
        if body_bytes > bytes.len() - header_bytes {
            return Err(Unsupported);
        }
        bytes.advance(header_bytes);
        let body = bytes.split_to(body_bytes);
        Ok(Self { header, body })
    }

    /// The rows of a data page; None for a dictionary.
    fn rows(&self) -> Result<Option<usize>, Unsupported> {
        let header = &self.header;
        match header.kind {
            Some(DICTIONARY_PAGE) => Ok(None),
            Some(DATA_PAGE) => to_rows(header.data_page.as_ref()).map(Some),
            Some(DATA_PAGE_V2) => to_rows(header.data_page_v2.as_ref()).map(Some),
            _ => Err(Unsupported),
        }
    }
}

impl StoredPage {
    /// Decompresses the page, and splits it into levels and values.
    fn expand<'a>(
        &'a self,
        format: PageFormat,
        buffer: &'a mut PageBuffer,
    ) -> Result<FlatPage<'a>, Unsupported> {
        let Self { header, body } = self;
        let length = to_usize(header.uncompressed_bytes)?;
        let kinds = (&header.dictionary, &header.data_page, &header.data_page_v2);
        match (header.kind, kinds) {
            (Some(DICTIONARY_PAGE), (Some(dictionary), None, None)) => {
                let is_plain = matches!(dictionary.encoding, PLAIN | PLAIN_DICTIONARY);
                if !is_plain || !dictionary.is_complete {
                    return Err(Unsupported);
                }
                Ok(FlatPage::Dictionary {
                    values: format.expand(body, length, buffer)?,
                    count: to_usize(dictionary.entries)?,
                })
            }
            (Some(DATA_PAGE), (None, Some(page), None)) => {
                let encodings = [LEVEL_ENCODING, REPETITION_ENCODING].map(|id| page.number(id));
                if !encodings.into_iter().all(is_encoding) {
                    return Err(Unsupported);
                }
                let bytes = format.expand(body, length, buffer)?;
                let (levels, values) = match encodings[0] {
                    _ if !format.has_levels => (&[][..], bytes),
                    Some(RLE) => split_levels(bytes)?,
                    _ => return Err(Unsupported),
                };
                DataPage::try_new(page, levels, values)
            }
            (Some(DATA_PAGE_V2), (None, None, Some(page))) => {
                let number = |field| to_usize(page.number(field).ok_or(Unsupported)?);
                // Two of them are not used, but arrow-rs refuses a page without them.
                number(NULLS).and(number(ROWS))?;
                if number(REPETITION_BYTES)? > 0 || page.number(IS_COMPRESSED).is_some() {
                    return Err(Unsupported);
                }
                let level_bytes = number(LEVEL_BYTES)?;
                let split = body.split_at_checked(level_bytes).ok_or(Unsupported)?;
                let length = length.checked_sub(level_bytes).ok_or(Unsupported)?;
                let codec = match page.is_compressed {
                    Some(false) => Compression::UNCOMPRESSED,
                    _ => format.codec,
                };
                let format = PageFormat { codec, ..format };
                DataPage::try_new(page, split.0, format.expand(split.1, length, buffer)?)
            }
            _ => Err(Unsupported),
        }
    }
}

impl<'a> DataPage<'a> {
    fn try_new(
        header: &KindHeader,
        levels: &'a [u8],
        values: &'a [u8],
    ) -> Result<FlatPage<'a>, Unsupported> {
        let encoding = match header.encoding {
            _ if !header.is_complete => return Err(Unsupported),
            PLAIN => Encoding::PLAIN,
            PLAIN_DICTIONARY => Encoding::PLAIN_DICTIONARY,
            RLE_DICTIONARY => Encoding::RLE_DICTIONARY,
            DELTA_BINARY_PACKED => Encoding::DELTA_BINARY_PACKED,
            _ => return Err(Unsupported),
        };
        Ok(FlatPage::Data(Self {
            rows: to_usize(header.entries)?,
            encoding,
            levels,
            values,
        }))
    }
}

fn is_encoding(number: Option<i64>) -> bool {
    matches!(number, Some(0 | 2..=9))
}

fn to_rows(header: Option<&KindHeader>) -> Result<usize, Unsupported> {
    to_usize(header.ok_or(Unsupported)?.entries)
}

/// A length or a count, which the format has as 32 bits with a sign.
fn to_usize(number: impl TryInto<i32>) -> Result<usize, Unsupported> {
    let number = number.try_into().map_err(|_too_large| Unsupported)?;
    usize::try_from(number).map_err(|_negative| Unsupported)
}

/// The pages that are not read yet.
enum RemainingPages {
    /// The bytes of all.
    Bytes(Bytes),
    /// Where they are, and the number of rows up to the end of the last one.
    Locations {
        dictionary: Option<(u64, usize)>,
        data_pages: VecDeque<PageLocation>,
        rows: usize,
    },
}

impl RemainingPages {
    fn open<R: ChunkReader>(
        reader: &R,
        column: &ColumnChunkMetaData,
        rows: usize,
        locations: Option<&[PageLocation]>,
    ) -> Result<Self, Unsupported> {
        let first_data_page = column.data_page_offset();
        let start = column.dictionary_page_offset().unwrap_or(first_data_page);
        let start = u64::try_from(start).map_err(|_negative| Unsupported)?;
        let Some(locations) = locations else {
            let length = usize::try_from(column.compressed_size());
            let length = length.map_err(|_negative| Unsupported)?;
            let bytes = reader.get_bytes(start, length);
            return Ok(Self::Bytes(bytes.map_err(|_missing| Unsupported)?));
        };
        // Before the first data page there is nothing but the dictionary.
        let dictionary = match locations.first() {
            None => None,
            Some(first) => {
                let first_offset = u64::try_from(first.offset).map_err(|_negative| Unsupported)?;
                let length = first_offset.checked_sub(start).ok_or(Unsupported)?;
                (length > 0).then_some((start, to_usize(length)?))
            }
        };
        Ok(Self::Locations {
            dictionary,
            data_pages: locations.iter().cloned().collect(),
            rows,
        })
    }
}

/// Pages without compression, of Zstandard, GZIP or Brotli.
pub(super) struct DirectPages<R> {
    reader: R,
    remaining: RemainingPages,
    format: PageFormat,
    /// The next page, if its header has been read.
    next: Option<StoredPage>,
    /// The page that was read last.
    current: Option<StoredPage>,
}

impl<R: ChunkReader> DirectPages<R> {
    fn peek_rows(&mut self) -> Result<Option<usize>, Unsupported> {
        match &mut self.remaining {
            RemainingPages::Bytes(bytes) => {
                let page = match &mut self.next {
                    Some(page) => page,
                    None if bytes.is_empty() => return Ok(None),
                    none => none.insert(StoredPage::split_off(bytes)?),
                };
                page.rows()
            }
            RemainingPages::Locations {
                dictionary: None,
                data_pages,
                rows,
            } => {
                let Some(first) = data_pages.front() else {
                    return Ok(None);
                };
                let begin = to_usize(first.first_row_index)?;
                let end = match data_pages.get(1) {
                    Some(next) => to_usize(next.first_row_index)?,
                    None => *rows,
                };
                end.checked_sub(begin).map(Some).ok_or(Unsupported)
            }
            RemainingPages::Locations { .. } => Ok(None),
        }
    }

    fn skip_page(&mut self) -> Result<(), Unsupported> {
        match &mut self.remaining {
            RemainingPages::Bytes(_) => self.next_stored().map(drop),
            RemainingPages::Locations { data_pages, .. } => {
                data_pages.pop_front().map(drop).ok_or(Unsupported)
            }
        }
    }

    fn next_stored(&mut self) -> Result<StoredPage, Unsupported> {
        if let Some(page) = self.next.take() {
            return Ok(page);
        }
        let (offset, length) = match &mut self.remaining {
            RemainingPages::Bytes(bytes) => return StoredPage::split_off(bytes),
            RemainingPages::Locations {
                dictionary,
                data_pages,
                ..
            } => {
                if let Some(dictionary) = dictionary.take() {
                    dictionary
                } else {
                    let page = data_pages.pop_front().ok_or(Unsupported)?;
                    let offset = u64::try_from(page.offset).map_err(|_negative| Unsupported)?;
                    (offset, to_usize(page.compressed_page_size)?)
                }
            }
        };
        let bytes = self.reader.get_bytes(offset, length);
        let mut bytes = bytes.map_err(|_missing| Unsupported)?;
        let page = StoredPage::split_off(&mut bytes)?;
        bytes.is_empty().then_some(page).ok_or(Unsupported)
    }

    fn next_page<'a>(
        &'a mut self,
        buffer: &'a mut PageBuffer,
    ) -> Result<FlatPage<'a>, Unsupported> {
        let page = self.next_stored()?;
        let page = self.current.insert(page);
        page.expand(self.format, buffer)
    }
}

/// Levels, which begin with their length, and the values after them.
fn split_levels(bytes: &[u8]) -> Result<(&[u8], &[u8]), Unsupported> {
    let (length_bytes, rest) = bytes.split_first_chunk().ok_or(Unsupported)?;
    let length = u32::from_le_bytes(*length_bytes) as usize;
    rest.split_at_checked(length).ok_or(Unsupported)
}

#[cfg(test)]
mod tests;
