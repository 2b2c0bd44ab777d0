//! One Parquet file opened for reading: footer and seal, and which bytes a projection needs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, FieldRef, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};

use super::dictionary;
use super::seal::{CREATED_BY, PARQUET_TRAILER_BYTES, Seal, hash};
use super::types::{index_of, storage_schema};
use crate::error::{Error, ErrorKind, Result};

/// How much of a file's end is asked for at first.
pub const TAIL_BYTES: u64 = 64 << 10;
const MAGIC: &[u8] = b"PAR1";

/// A file's footer, seal and schemas.
#[derive(Debug, Clone)]
pub struct PartFile {
    /// The file's length.
    pub length: u64,
    /// Checksums and identity, if the file has them.
    pub seal: Option<Arc<Seal>>,
    /// The schema as it was written.
    pub schema: SchemaRef,
    /// The dictionaries that were kept, by field.
    dictionaries: Arc<HashMap<usize, ArrayRef>>,
    /// How row groups are decoded before they are made `schema`.
    pub(super) reader: ArrowReaderMetadata,
}

/// What the end of a file told.
#[derive(Debug)]
pub enum Opened {
    /// All there is to know.
    Ready(Box<PartFile>),
    /// So many of the file's last bytes are needed.
    NeedTail(u64),
}

fn damaged(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::PartCorrupted, message)
}

impl PartFile {
    /// Opens a file of `length` bytes by its last bytes.
    pub fn open(tail: &Bytes, length: u64) -> Result<Opened> {
        let Some(trailer) = tail.len().checked_sub(PARQUET_TRAILER_BYTES) else {
            return Err(damaged(format!("{length} bytes are no Parquet file")));
        };
        if &tail[trailer + 4..] != MAGIC {
            return Err(damaged("the file does not end as a Parquet file"));
        }
        let footer = tail[trailer..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let whole_footer = (footer + PARQUET_TRAILER_BYTES) as u64;
        if whole_footer > length {
            return Err(damaged("the footer is longer than the file"));
        }
        // A seal that is announced is read with the footer; 20 bytes announce it.
        let Some(footer_at) = (tail.len() as u64).checked_sub(whole_footer) else {
            return Ok(Opened::NeedTail((whole_footer + TAIL_BYTES).min(length)));
        };
        let footer_at = usize::try_from(footer_at).unwrap_or(usize::MAX);
        let seal_length = Seal::announced(&tail[..footer_at]);
        if seal_length.is_none() && footer_at < 64 && (tail.len() as u64) < length {
            return Ok(Opened::NeedTail((whole_footer + TAIL_BYTES).min(length)));
        }
        let metadata = ParquetMetaDataReader::decode_metadata(&tail[footer_at..trailer])
            .map_err(|e| damaged(format!("the footer cannot be read: {e}")).caused_by(e))?;
        let sealed_by_us = metadata
            .file_metadata()
            .created_by()
            .is_some_and(|by| by.starts_with(CREATED_BY));
        let seal = match seal_length {
            Some(n) if n > footer_at && (tail.len() as u64) < length => {
                return Ok(Opened::NeedTail((whole_footer + n as u64).min(length)));
            }
            Some(n) if sealed_by_us && n <= footer_at => {
                Some(Seal::decode(&tail[footer_at - n..footer_at])?)
            }
            _ if sealed_by_us => return Err(damaged("the file's checksums are missing")),
            _ => None,
        };
        if let Some(seal) = &seal {
            check_seal(seal, &metadata, &tail[footer_at..])?;
        }
        Self::ready(metadata, seal, length)
    }

    fn ready(metadata: ParquetMetaData, seal: Option<Seal>, length: u64) -> Result<Opened> {
        check_ranges(&metadata, length)?;
        let unreadable = |e| damaged(format!("the schema cannot be read: {e}")).caused_by(e);
        let metadata = Arc::new(metadata);
        let plain = ArrowReaderMetadata::try_new(
            Arc::clone(&metadata),
            reader_options().with_skip_arrow_metadata(true),
        )
        .map_err(unreadable)?;
        let schema =
            written_schema(&metadata, plain.schema()).unwrap_or_else(|| Arc::clone(plain.schema()));
        let reader = hinted(&metadata, &schema, plain);
        let dictionaries = seal.as_ref().map_or_else(HashMap::new, kept_dictionaries);
        Ok(Opened::Ready(Box::new(Self {
            length,
            seal: seal.map(Arc::new),
            schema,
            dictionaries: Arc::new(dictionaries),
            reader,
        })))
    }

    /// The footer.
    pub fn metadata(&self) -> &ParquetMetaData {
        self.reader.metadata()
    }

    /// The dictionary that a field had.
    pub(super) fn dictionary(&self, root: usize) -> Option<&ArrayRef> {
        self.dictionaries.get(&root)
    }

    /// The schema as its columns are decoded, before they are made `schema`.
    pub fn stored_schema(&self) -> &SchemaRef {
        self.reader.schema()
    }

    /// Rows of the file.
    pub fn rows(&self) -> u64 {
        let groups = self.metadata().row_groups().iter();
        groups.map(|g| g.num_rows().unsigned_abs()).sum()
    }

    /// The positions of columns in the schema; None is all of them.
    pub fn project(&self, columns: Option<&[String]>) -> Result<Vec<usize>> {
        match columns {
            None => Ok((0..self.schema.fields().len()).collect()),
            Some(names) => names
                .iter()
                .map(|name| index_of(&self.schema, name))
                .collect(),
        }
    }

    /// The leaf columns under one field.
    pub(super) fn leaves(&self, root: usize) -> impl Iterator<Item = usize> + '_ {
        let descriptor = self.metadata().file_metadata().schema_descr();
        (0..descriptor.num_columns())
            .filter(move |leaf| descriptor.get_column_root_idx(*leaf) == root)
    }

    pub(super) fn mask(&self, root: usize) -> ProjectionMask {
        ProjectionMask::roots(self.metadata().file_metadata().schema_descr(), [root])
    }

    /// The bytes of a leaf column's chunk.
    pub fn chunk_range(&self, group: usize, leaf: usize) -> Range<u64> {
        let (start, length) = self.metadata().row_group(group).column(leaf).byte_range();
        start..start + length
    }

    /// About how many bytes a field of a row group is in memory.
    pub(crate) fn decoded_bytes(&self, group: usize, root: usize) -> u64 {
        let group = self.metadata().row_group(group);
        let leaves = self.leaves(root);
        let sizes = leaves.map(|leaf| group.column(leaf).uncompressed_size().unsigned_abs());
        sizes.sum()
    }

    /// The chunks a row group's columns need, in the order of the file.
    pub fn ranges(&self, group: usize, roots: &[usize]) -> Vec<Range<u64>> {
        let leaves = roots.iter().flat_map(|root| self.leaves(*root));
        let mut ranges: Vec<_> = leaves.map(|leaf| self.chunk_range(group, leaf)).collect();
        ranges.sort_by_key(|r| r.start);
        ranges
    }

    /// Compares a chunk with its checksum.
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
        Err(damaged(format!(
            "checksum of column {path:?} in row group {group} does not match: the bytes were changed"
        )))
    }

    /// Compares the bytes between the last chunk and the seal with their checksum.
    pub fn check_indexes(&self, whole: &[u8]) -> Result<()> {
        if !whole.starts_with(MAGIC) {
            return Err(damaged("the file does not begin as a Parquet file"));
        }
        let Some(seal) = &self.seal else {
            return Ok(());
        };
        let footer = whole[whole.len() - PARQUET_TRAILER_BYTES..]
            .first_chunk()
            .map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let footer_at = whole.len() - PARQUET_TRAILER_BYTES - footer;
        let seal_at = footer_at - Seal::announced(&whole[..footer_at]).unwrap_or_default();
        let chunks_end = usize::try_from(self.chunks_end()).unwrap_or(usize::MAX);
        match whole.get(chunks_end..seal_at) {
            Some(indexes) if hash(indexes) == seal.index_hash => Ok(()),
            _ => Err(damaged("the page indexes were changed")),
        }
    }

    fn chunks_end(&self) -> u64 {
        let groups = self.metadata().row_groups().iter();
        let ends = groups.flat_map(|g| g.columns()).map(|c| {
            let (start, length) = c.byte_range();
            start + length
        });
        ends.max().unwrap_or(MAGIC.len() as u64)
    }
}

fn reader_options() -> ArrowReaderOptions {
    ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip)
}

/// A reader that decodes straight into what the columns were written as, where that fits; the other
/// columns are decoded as the file has them and converted.
fn hinted(
    metadata: &Arc<ParquetMetaData>,
    written: &SchemaRef,
    plain: ArrowReaderMetadata,
) -> ArrowReaderMetadata {
    let Ok(storage) = storage_schema(written) else {
        return plain;
    };
    let with = |fields: Vec<FieldRef>| {
        let schema = Arc::new(Schema::new(fields));
        ArrowReaderMetadata::try_new(Arc::clone(metadata), reader_options().with_schema(schema))
            .ok()
    };
    if let Some(reader) = with(storage.fields().to_vec()) {
        return reader;
    }
    let mut fields = plain.schema().fields().to_vec();
    let mut reader = plain;
    for (i, wanted) in storage.fields().iter().enumerate() {
        let inferred = std::mem::replace(&mut fields[i], Arc::clone(wanted));
        match with(fields.clone()) {
            Some(better) => reader = better,
            None => fields[i] = inferred,
        }
    }
    reader
}

fn kept_dictionaries(seal: &Seal) -> HashMap<usize, ArrayRef> {
    let kept = seal.dictionaries.iter();
    kept.filter_map(|(field, bytes)| Some((*field as usize, dictionary::decode(bytes)?)))
        .collect()
}

fn check_seal(seal: &Seal, metadata: &ParquetMetaData, footer: &[u8]) -> Result<()> {
    if hash(footer) != seal.footer_hash {
        return Err(damaged("the footer was changed"));
    }
    let columns = metadata.file_metadata().schema_descr().num_columns();
    let fits = seal.chunks.len() == metadata.num_row_groups()
        && seal.chunks.iter().all(|g| g.len() == columns);
    if fits {
        Ok(())
    } else {
        Err(damaged("the checksums are of another file"))
    }
}

/// A footer may claim anything; no range may lie outside the file.
fn check_ranges(metadata: &ParquetMetaData, length: u64) -> Result<()> {
    for group in metadata.row_groups() {
        if group.num_rows() < 0 {
            return Err(damaged("a row group has a negative number of rows"));
        }
        for column in group.columns() {
            let start = column
                .dictionary_page_offset()
                .unwrap_or(column.data_page_offset());
            let end = start.checked_add(column.compressed_size());
            let inside = start >= 0
                && column.compressed_size() >= 0
                && end.is_some_and(|e| e.unsigned_abs() <= length);
            if !inside {
                return Err(damaged(format!(
                    "column {:?} lies outside the file",
                    column.column_path().string()
                )));
            }
        }
    }
    Ok(())
}

/// The Arrow schema the writer kept, where it has the same columns as the file.
fn written_schema(metadata: &ParquetMetaData, inferred: &SchemaRef) -> Option<SchemaRef> {
    use base64::Engine;
    let kept = metadata.file_metadata().key_value_metadata()?;
    let encoded = kept
        .iter()
        .find(|kv| kv.key == parquet::arrow::ARROW_SCHEMA_META_KEY)?
        .value
        .as_ref()?;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(encoded)
        .ok()?;
    let message = bytes
        .get(8..)
        .filter(|_| bytes.starts_with(&[0xff; 4]))
        .unwrap_or(&bytes);
    let schema = arrow_ipc::root_as_message(message)
        .ok()?
        .header_as_schema()?;
    let schema = std::panic::catch_unwind(|| arrow_ipc::convert::fb_to_schema(schema)).ok()?;
    let same_names = schema.fields().len() == inferred.fields().len()
        && schema
            .fields()
            .iter()
            .zip(inferred.fields())
            .all(|(a, b)| a.name() == b.name());
    let decodable = schema.fields().iter().zip(inferred.fields()).all(|(a, b)| {
        // Both sides nested or both flat: anything else is a schema of another file.
        is_nested(a.data_type()) == is_nested(b.data_type())
    });
    (same_names && decodable).then(|| Arc::new(schema))
}

fn is_nested(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_nested(value),
        DataType::RunEndEncoded(_, values) => is_nested(values.data_type()),
        other => other.is_nested(),
    }
}
