//! The pages of other codecs, which arrow-rs reads and decompresses.

use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::reader::ChunkReader;
use parquet::file::serialized_reader::SerializedPageReader;

use super::{DataPage, FlatPage, has_levels, split_levels};
use crate::parquet::flat::Unsupported;

/// Pages that arrow-rs reads.
pub(in crate::parquet::flat) struct GeneralPages<R: ChunkReader> {
    pages: SerializedPageReader<R>,
    has_levels: bool,
    /// The page that was read last.
    current: Option<Page>,
}

impl<R: ChunkReader> GeneralPages<R> {
    pub(super) fn open(
        reader: R,
        column: &ColumnChunkMetaData,
        rows: usize,
        locations: Option<&[PageLocation]>,
    ) -> Result<Self, Unsupported> {
        let locations = locations.map(<[PageLocation]>::to_vec);
        let pages = SerializedPageReader::new(Arc::new(reader), column, rows, locations);
        Ok(Self {
            pages: pages.map_err(|_damaged| Unsupported)?,
            has_levels: has_levels(column),
            current: None,
        })
    }

    pub(super) fn peek_rows(&mut self) -> Result<Option<usize>, Unsupported> {
        let peeked = self.pages.peek_next_page();
        let peeked = peeked.map_err(|_damaged| Unsupported)?;
        let Some(page) = peeked.filter(|page| !page.is_dict) else {
            return Ok(None);
        };
        // Without nesting a level is a row.
        page.num_levels
            .or(page.num_rows)
            .map(Some)
            .ok_or(Unsupported)
    }

    pub(super) fn skip_page(&mut self) -> Result<(), Unsupported> {
        let skipped = self.pages.skip_next_page();
        skipped.map_err(|_damaged| Unsupported)
    }

    pub(super) fn next_page(&mut self) -> Result<FlatPage<'_>, Unsupported> {
        let page = self.pages.get_next_page();
        let page = page.map_err(|_damaged| Unsupported)?.ok_or(Unsupported)?;
        match self.current.insert(page) {
            Page::DictionaryPage {
                buf,
                num_values,
                encoding: Encoding::PLAIN | Encoding::PLAIN_DICTIONARY,
                ..
            } => Ok(FlatPage::Dictionary {
                values: buf,
                count: *num_values as usize,
            }),
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding,
                ..
            } => {
                let (levels, values) = match def_level_encoding {
                    _ if !self.has_levels => (&[][..], &buf[..]),
                    Encoding::RLE => split_levels(buf)?,
                    _ => return Err(Unsupported),
                };
                Ok(FlatPage::Data(DataPage {
                    rows: *num_values as usize,
                    encoding: *encoding,
                    levels,
                    values,
                }))
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                def_levels_byte_len,
                rep_levels_byte_len: 0,
                ..
            } => {
                let split = buf.split_at_checked(*def_levels_byte_len as usize);
                let (levels, values) = split.ok_or(Unsupported)?;
                Ok(FlatPage::Data(DataPage {
                    rows: *num_values as usize,
                    encoding: *encoding,
                    levels,
                    values,
                }))
            }
            _ => Err(Unsupported),
        }
    }
}
