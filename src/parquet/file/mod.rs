//! A Parquet file opened for reading: its footer, seal and schemas, and the byte ranges that a projection needs.
//!
//! [`ParquetFile::open`] works on the last bytes of a file and asks for more if they are too few. A footer that does
//! not match the checksum in the seal is refused before it is decoded. Refused too are footers with lengths, nesting,
//! row counts or ranges that the file cannot have, and files of `pds` without a valid seal. Files of other writers are
//! read without checksums. All these errors are of the kind [`ErrorKind::PartCorrupted`].
//!
//! A file has two schemas: `schema` is what was written (the Arrow schema that the file keeps, if it fits); the stored
//! schema is what the decoder returns before the conversion to `schema`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::{FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::schema::types::Type;

use super::narrow::decoded_field;
use super::seal::{CREATED_BY, PAGE_CHECKSUM_BYTES, PARQUET_TRAILER_BYTES, PageSeal, Seal, hash};
use super::types::storage_schema;
use super::unknown_formats::{self, UnreadableLeaves};
use super::written_schema::{with_plain_seconds, written_schema};
use super::{dictionary, footer, panic_text};
use crate::error::{Error, ErrorKind, Result};

/// Bytes of a file's end that are requested first.
pub const TAIL_BYTES: u64 = 64 << 10;
/// About the memory of a decoded value, or of the offset of a text.
const VALUE_BYTES: u64 = 8;
/// The first and the last bytes of a Parquet file.
pub(crate) const MAGIC: &[u8] = b"PAR1";
/// The last bytes of a Parquet file whose footer is encrypted.
const ENCRYPTED_MAGIC: &[u8] = b"PARE";
/// The detail of errors about encrypted files and columns.
pub(crate) const ENCRYPTED: &str = "encrypted";

/// The footer, seal and schemas of an open file.
#[derive(Debug, Clone)]
pub struct ParquetFile {
    /// The file's length in bytes.
    pub length: u64,
    /// Checksums and identity; None for files of other writers.
    pub seal: Option<Arc<Seal>>,
    /// The schema that was written.
    pub schema: SchemaRef,
    /// Where the seal begins, or the footer if there is no seal.
    seal_start: u64,
    /// XXH3-64 of the footer with its length and magic.
    pub footer_hash: u64,
    /// What tells the file from others: the hash of its seal, or that of its footer if it has no seal.
    pub checksum: u64,
    /// The leaf columns to read; None for all.
    leaves: Option<Arc<[usize]>>,
    /// The dictionaries that the seal keeps, by the index of their field.
    dictionaries: Arc<HashMap<usize, ArrayRef>>,
    /// The leaf columns that cannot be read.
    pub(super) unreadable: Arc<UnreadableLeaves>,
    /// What row groups are decoded with, before the conversion to `schema`.
    pub(super) reader: ArrowReaderMetadata,
}

/// The result of opening a file by its last bytes.
#[derive(Debug)]
pub enum FileOpenResult {
    /// The open file.
    Ready(Box<ParquetFile>),
    /// The number of last bytes of the file that are needed instead.
    NeedTail(u64),
}

pub(super) fn corruption(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::PartCorrupted, message)
}

pub(super) fn encrypted_error(what: &str) -> Error {
    corruption(format!("{what} encrypted, which pds cannot read"))
        .with_detail(ENCRYPTED)
        .with_hint("write the file again without encryption")
}

impl ParquetFile {
    /// Opens a file of `length` bytes by its last bytes, `tail`.
    pub fn open(tail: &Bytes, length: u64) -> Result<FileOpenResult> {
        let Some(trailer_start) = tail.len().checked_sub(PARQUET_TRAILER_BYTES) else {
            return Err(corruption(format!("not a Parquet file ({length} bytes)")));
        };
        check_magic(&tail[trailer_start + 4..])?;
        let footer_length = tail[trailer_start..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let whole_footer = (footer_length + PARQUET_TRAILER_BYTES) as u64;
        if whole_footer > length {
            return Err(corruption("the footer is longer than the file"));
        }
        // The 20 bytes before the footer declare a seal, which is read together with the footer.
        let Some(footer_start) = (tail.len() as u64).checked_sub(whole_footer) else {
            return Ok(FileOpenResult::NeedTail(
                (whole_footer + TAIL_BYTES).min(length),
            ));
        };
        let footer_start = usize::try_from(footer_start).unwrap_or(usize::MAX);
        let seal_length = Seal::declared_length(&tail[..footer_start]);
        if seal_length.is_none() && footer_start < 64 && (tail.len() as u64) < length {
            return Ok(FileOpenResult::NeedTail(
                (whole_footer + TAIL_BYTES).min(length),
            ));
        }
        let decoded_seal = match seal_length {
            Some(n) if n > footer_start && (tail.len() as u64) < length => {
                return Ok(FileOpenResult::NeedTail(
                    (whole_footer + n as u64).min(length),
                ));
            }
            Some(n) if n <= footer_start => {
                Some(Seal::decode(&tail[footer_start - n..footer_start]))
            }
            _ => None,
        };
        let footer_hash = hash(&tail[footer_start..]);
        // A footer that was changed is not decoded.
        if let Some(Ok(seal)) = &decoded_seal
            && seal.footer_hash != footer_hash
        {
            return Err(corruption("the footer does not match its checksum"));
        }
        let (metadata, unreadable) = decode_footer(&tail[footer_start..trailer_start])?;
        let written_by_pds = metadata
            .file_metadata()
            .created_by()
            .is_some_and(|by| by.starts_with(CREATED_BY));
        let seal = match decoded_seal {
            Some(seal) if written_by_pds => Some(seal?),
            None if written_by_pds => return Err(corruption("the checksum block is missing")),
            _ => None,
        };
        let seal_bytes = seal.as_ref().and(seal_length).unwrap_or_default();
        let seal_start = length - whole_footer - seal_bytes as u64;
        if let Some(seal) = &seal {
            check_seal(seal, &metadata, seal_start)?;
        }
        let mut file = Self::from_metadata(metadata, seal, length, (seal_start, footer_hash))?;
        file.unreadable = Arc::new(unreadable);
        let seal_hash = Seal::own_hash(&tail[footer_start - seal_bytes..footer_start]);
        file.checksum = seal_hash.unwrap_or(footer_hash);
        Ok(FileOpenResult::Ready(Box::new(file)))
    }

    fn from_metadata(
        metadata: ParquetMetaData,
        seal: Option<Seal>,
        length: u64,
        (seal_start, footer_hash): (u64, u64),
    ) -> Result<Self> {
        check_ranges(&metadata, length)?;
        let unreadable = |e| corruption(format!("the schema cannot be read: {e}")).with_source(e);
        let metadata = Arc::new(metadata);
        let plain = ArrowReaderMetadata::try_new(
            Arc::clone(&metadata),
            reader_options().with_skip_arrow_metadata(true),
        )
        .map_err(unreadable)?;
        let schema =
            written_schema(&metadata, plain.schema()).unwrap_or_else(|| Arc::clone(plain.schema()));
        let reader = reader_with_schema_hint(&metadata, &schema, plain);
        let dictionaries = seal.as_ref().map_or_else(HashMap::new, decode_dictionaries);
        let seal = seal.map(|seal| Seal {
            // They are kept decoded.
            dictionaries: Vec::new(),
            ..seal
        });
        Ok(Self {
            length,
            seal_start,
            footer_hash,
            checksum: footer_hash,
            leaves: None,
            seal: seal.map(Arc::new),
            schema,
            dictionaries: Arc::new(dictionaries),
            unreadable: Arc::default(),
            reader,
        })
    }

    /// The decoded footer.
    pub fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    /// The dictionary that was kept for a field.
    pub(super) fn dictionary(&self, root: usize) -> Option<&ArrayRef> {
        self.dictionaries.get(&root)
    }

    /// The schema that the decoder returns, before the conversion to `schema`.
    pub fn stored_schema(&self) -> &SchemaRef {
        self.reader.schema()
    }

    /// The Parquet type of a top-level field.
    pub(crate) fn stored_type(&self, root: usize) -> &Type {
        let descriptor = self.metadata().file_metadata().schema_descr();
        &descriptor.root_schema().get_fields()[root]
    }

    /// The number of rows of the file.
    pub fn rows(&self) -> u64 {
        let groups = self.metadata().row_groups().iter();
        groups
            .map(|g| g.num_rows().unsigned_abs())
            .fold(0, u64::saturating_add)
    }

    /// The same file with only these leaf columns, whose fields are `fields`.
    pub(super) fn with_leaves(&self, leaves: Vec<usize>, fields: Vec<FieldRef>) -> Self {
        let metadata = self.schema.metadata().clone();
        Self {
            leaves: Some(leaves.into()),
            schema: Arc::new(Schema::new_with_metadata(fields, metadata)),
            ..self.clone()
        }
    }

    /// The leaf columns to read of a top-level field.
    pub(crate) fn leaves(&self, root: usize) -> impl Iterator<Item = usize> + '_ {
        let descriptor = self.metadata().file_metadata().schema_descr();
        let root_of = |leaf: &usize| descriptor.get_column_root_idx(*leaf);
        // The leaf columns of a field are consecutive: the first one is found by bisection.
        let (mut begin, mut end) = (0, descriptor.num_columns());
        while begin < end {
            let middle = begin.midpoint(end);
            if root_of(&middle) < root {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        (begin..descriptor.num_columns())
            .take_while(move |leaf| root_of(leaf) == root)
            .filter(|leaf| {
                self.leaves
                    .as_ref()
                    .is_none_or(|selected| selected.contains(leaf))
            })
    }

    pub(super) fn mask(&self, root: usize) -> ProjectionMask {
        let descriptor = self.metadata().file_metadata().schema_descr();
        ProjectionMask::leaves(descriptor, self.leaves(root))
    }

    /// About how many bytes the open file takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let arrays = self.dictionaries.values();
        let dictionaries: usize = arrays.map(|d| d.get_array_memory_size()).sum();
        let hashes = self.seal.as_ref().map_or(0, |seal| {
            let chunks = 8 * seal.chunks.iter().map(Vec::len).sum::<usize>();
            chunks + 64 * seal.pages.len()
        });
        // The schema is held three times: as Parquet's, as written and as decoded.
        let fields = self.metadata().file_metadata().schema_descr().num_columns();
        self.metadata().memory_size() + dictionaries + hashes + 1024 * fields
    }

    /// The byte range of a leaf column's chunk.
    pub fn chunk_range(&self, group: usize, leaf: usize) -> Range<u64> {
        let (start, length) = self.metadata().row_group(group).column(leaf).byte_range();
        start..start + length
    }

    /// About how many bytes a top-level field of a row group takes in memory.
    pub(crate) fn decoded_bytes(&self, group: usize, root: usize) -> u64 {
        let group = self.metadata().row_group(group);
        let leaves = self.leaves(root);
        let sizes = leaves.map(|leaf| group.column(leaf).uncompressed_size().unsigned_abs());
        sizes.sum()
    }

    /// About how much memory a column of a row group takes when it is decoded.
    pub(crate) fn memory_bytes_of(&self, group: usize, root: usize) -> u64 {
        let group = self.metadata().row_group(group);
        let leaves = self.leaves(root).map(|leaf| group.column(leaf));
        let sizes = leaves.map(|column| {
            let values = column.num_values().unsigned_abs();
            let texts = column.unencoded_byte_array_data_bytes().unwrap_or_default();
            let length = u64::try_from(column.column_descr().type_length()).unwrap_or_default();
            let decoded = values
                .saturating_mul(VALUE_BYTES.max(length))
                .saturating_add(texts.unsigned_abs());
            // Without a dictionary the pages are about as long as the values.
            decoded.max(column.uncompressed_size().unsigned_abs())
        });
        sizes.fold(0, u64::saturating_add)
    }

    /// The byte ranges of the chunks that a projection needs of a row group, in the order of the file.
    pub fn ranges(&self, group: usize, projection: &[usize]) -> Vec<Range<u64>> {
        let leaves = projection.iter().flat_map(|root| self.leaves(*root));
        let mut ranges: Vec<_> = leaves.map(|leaf| self.chunk_range(group, leaf)).collect();
        ranges.sort_by_key(|r| r.start);
        ranges
    }

    /// Compares a chunk with its checksum; does nothing if the file has no checksums.
    pub fn check_chunk(&self, group: usize, leaf: usize, bytes: &[u8]) -> Result<()> {
        let Some(seal) = &self.seal else {
            return Ok(());
        };
        if seal.chunks[group][leaf] == hash(bytes) {
            return Ok(());
        }
        let path = self
            .metadata()
            .row_group(group)
            .column(leaf)
            .column_path()
            .string();
        Err(corruption(format!(
            "checksum of column {path:?} in row group {group} does not match: the bytes were changed"
        )))
    }

    /// The byte range between the last chunk and the seal, which holds the page indexes, and its checksum. None if the
    /// file has no checksums.
    pub(crate) fn page_index_checksum(&self) -> Option<(Range<u64>, u64)> {
        let seal = self.seal.as_ref()?;
        Some((self.chunks_end()..self.seal_start, seal.index_hash))
    }

    /// The offset at which the page indexes end, and the checksums of pages begin.
    pub(super) fn indexes_end(&self) -> u64 {
        let seal = self.seal.as_ref();
        self.seal_start - seal.map_or(0, |seal| page_checksum_bytes(seal))
    }

    /// The byte range of the checksums of a chunk's pages.
    pub(super) fn checksums_range(&self, page_seal: &PageSeal) -> Range<u64> {
        let bytes = |pages: u64| pages * PAGE_CHECKSUM_BYTES as u64;
        let start = self.indexes_end() + bytes(page_seal.first);
        start..start + bytes(page_seal.pages.into())
    }

    /// The offset at which the last column chunk ends.
    pub(crate) fn chunks_end(&self) -> u64 {
        let groups = self.metadata().row_groups().iter();
        let ends = groups.flat_map(|g| g.columns()).map(|c| {
            let (start, length) = c.byte_range();
            start + length
        });
        ends.max().unwrap_or(MAGIC.len() as u64)
    }
}

/// The most rows of a row group: memory is allocated for them before they are read, and their numbers have 32 bits.
const MAX_GROUP_ROWS: i64 = i32::MAX as i64;

fn reader_options() -> ArrowReaderOptions {
    ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip)
}

/// A reader that decodes each column directly to the type that was written, if arrow-rs accepts it. The other columns
/// are decoded to the type that the file has, and converted later.
pub(super) fn reader_with_schema_hint(
    metadata: &Arc<ParquetMetaData>,
    written: &SchemaRef,
    plain: ArrowReaderMetadata,
) -> ArrowReaderMetadata {
    let Ok(storage) = storage_schema(written) else {
        return plain;
    };
    let fields = written.fields().iter().zip(plain.schema().fields());
    let fields = storage.fields().iter().map(decoded_field).zip(fields);
    let decoded_fields: Vec<FieldRef> = fields
        .map(|(decoded, (written, inferred))| with_plain_seconds(&decoded, written, inferred))
        .collect();
    let reader_with = |fields: Vec<FieldRef>| {
        let schema = Arc::new(Schema::new(fields));
        ArrowReaderMetadata::try_new(Arc::clone(metadata), reader_options().with_schema(schema))
            .ok()
    };
    if let Some(reader) = reader_with(decoded_fields.clone()) {
        return reader;
    }
    let mut fields = plain.schema().fields().to_vec();
    let mut reader = plain;
    for (i, decoded) in decoded_fields.iter().enumerate() {
        let inferred = std::mem::replace(&mut fields[i], Arc::clone(decoded));
        match reader_with(fields.clone()) {
            Some(better) => reader = better,
            None => fields[i] = inferred,
        }
    }
    reader
}

fn decode_dictionaries(seal: &Seal) -> HashMap<usize, ArrayRef> {
    let encoded = seal.dictionaries.iter();
    encoded
        .filter_map(|(field, bytes)| Some((*field as usize, dictionary::decode(bytes)?)))
        .collect()
}

fn check_magic(last_bytes: &[u8]) -> Result<()> {
    if last_bytes == ENCRYPTED_MAGIC {
        Err(encrypted_error("the file is"))
    } else if last_bytes == MAGIC {
        Ok(())
    } else {
        Err(corruption("not a Parquet file: no PAR1 at its end"))
    }
}

/// Decodes a footer; also returns the leaf columns that cannot be read.
fn decode_footer(footer: &[u8]) -> Result<(ParquetMetaData, UnreadableLeaves)> {
    let unreadable = |reason: &str| corruption(format!("the footer cannot be read: {reason}"));
    let encrypted = footer::find_encrypted_columns(footer).map_err(unreadable)?;
    let decoded = std::panic::catch_unwind(|| unknown_formats::decode(footer))
        .map_err(|panic| unreadable(panic_text(panic.as_ref())))?;
    match decoded {
        Ok((metadata, unknown)) => Ok((metadata, UnreadableLeaves { encrypted, unknown })),
        // Its writer left out what other readers need to know of an encrypted column.
        Err(_) if !encrypted.is_empty() => Err(encrypted_error("a column of the file is")),
        Err(e) => Err(unreadable(&e.to_string()).with_source(e)),
    }
}

/// Refuses a seal with other chunks than the file has, or with more checksums of pages than there are bytes.
fn check_seal(seal: &Seal, metadata: &ParquetMetaData, seal_start: u64) -> Result<()> {
    let columns = metadata.file_metadata().schema_descr().num_columns();
    let is_chunk = |(group, leaf): &(u32, u32)| {
        (*group as usize) < metadata.num_row_groups() && (*leaf as usize) < columns
    };
    let fits = seal.chunks.len() == metadata.num_row_groups()
        && seal.chunks.iter().all(|g| g.len() == columns)
        && seal.pages.keys().all(is_chunk)
        && page_checksum_bytes(seal) <= seal_start;
    if fits {
        Ok(())
    } else {
        Err(corruption("the checksum block does not match this file"))
    }
}

/// The bytes of the checksums of all pages, which lie before the seal.
fn page_checksum_bytes(seal: &Seal) -> u64 {
    let last = seal.pages.last_key_value();
    let pages = last.map_or(0, |(_, last)| last.first + u64::from(last.pages));
    pages * PAGE_CHECKSUM_BYTES as u64
}

/// Refuses row counts that cannot be, and chunks outside the file: a footer may claim anything.
fn check_ranges(metadata: &ParquetMetaData, length: u64) -> Result<()> {
    let mut rows = 0_i64;
    for group in metadata.row_groups() {
        if !(0..=MAX_GROUP_ROWS).contains(&group.num_rows()) {
            let group_rows = group.num_rows();
            return Err(corruption(format!(
                "a row group claims {group_rows} rows, expected 0 to {MAX_GROUP_ROWS}"
            )));
        }
        let sum = rows.checked_add(group.num_rows());
        rows = sum.ok_or_else(|| corruption("the total of the row counts exceeds 64 bits"))?;
        for column in group.columns() {
            let start = column
                .dictionary_page_offset()
                .unwrap_or(column.data_page_offset());
            let end = start.checked_add(column.compressed_size());
            let inside = start >= 0
                && column.compressed_size() >= 0
                && end.is_some_and(|e| e.unsigned_abs() <= length);
            if !inside {
                return Err(corruption(format!(
                    "the chunk of column {:?} lies outside the file",
                    column.column_path().string()
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
