//! Checks a Parquet footer before it is decoded, so that a damaged or hostile one does no harm.
//!
//! A footer is a Thrift struct in the compact protocol. It states the length of its lists and the nesting of its
//! schema, and a decoder allocates memory for what it states. So the length of every list is compared with the bytes
//! that are left, and the nesting with a limit.
//!
//! A file may have encrypted columns and a footer that can be read. [`find_encrypted_columns`] names them, because to a
//! decoder without the keys they look like damaged ones.
//!
//! Source: "Parquet Modular Encryption" in the Parquet format, `Encryption.md` and `parquet.thrift`.

use std::collections::BTreeSet;

use parquet::errors::Result;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};

use super::thrift::{I16, I64, LIST, STRUCT, ThriftReader, ThriftResult};

/// The deepest nesting of groups in a schema. The writer reaches a third of it.
const MAX_SCHEMA_DEPTH: usize = 400;

/// The id, in the footer, of the list of schema elements.
const SCHEMA_FIELD: i32 = 2;
/// The id, in a schema element, of the number of its children.
const CHILDREN_FIELD: i32 = 5;
/// The id, in the footer, of the list of row groups.
const ROW_GROUPS_FIELD: i32 = 4;
/// The id, in the footer, of the algorithm by which columns are encrypted.
const ENCRYPTION_FIELD: i32 = 8;
/// The id, in a row group, of the list of its column chunks.
const COLUMNS_FIELD: i32 = 1;
/// The id, in a column chunk, of what says by which key it is encrypted.
const CRYPTO_METADATA_FIELD: i32 = 8;

/// The footer without offsets of dictionaries that are not before the data. Some makers write 0 or another number where
/// a chunk has no dictionary.
pub(super) fn without_false_dictionaries(metadata: ParquetMetaData) -> Result<ParquetMetaData> {
    let is_false = |column: &ColumnChunkMetaData| {
        let dictionary = column.dictionary_page_offset();
        dictionary.is_some_and(|offset| offset <= 0 || offset >= column.data_page_offset())
    };
    let mut columns = metadata.row_groups().iter().flat_map(|g| g.columns());
    if !columns.any(is_false) {
        return Ok(metadata);
    }
    let mut builder = metadata.into_builder();
    for group in builder.take_row_groups() {
        let mut group = group.into_builder();
        for column in group.take_columns() {
            let column = if is_false(&column) {
                let column = column.into_builder();
                column.set_dictionary_page_offset(None).build()?
            } else {
                column
            };
            group = group.add_column_metadata(column);
        }
        builder = builder.add_row_group(group.build()?);
    }
    Ok(builder.build())
}

/// Checks lengths, nesting and the schema's tree; an error is the reason.
fn check(footer: &[u8]) -> ThriftResult {
    find_encrypted_columns(footer).map(drop)
}

/// Checks lengths, nesting and the schema's tree; an error is the reason. Returns the indices of the leaf columns that
/// are encrypted in some row group.
pub(super) fn find_encrypted_columns(footer: &[u8]) -> ThriftResult<BTreeSet<usize>> {
    let mut reader = ThriftReader(footer);
    let (mut last_field_id, mut row_groups, mut is_encrypted) = (0, None, false);
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        if field == SCHEMA_FIELD && field_type == LIST {
            reader.check_schema()?;
            continue;
        }
        if field == ROW_GROUPS_FIELD && field_type == LIST {
            row_groups = Some(ThriftReader(reader.0));
        }
        is_encrypted |= field == ENCRYPTION_FIELD;
        reader.skip_value(field_type, 0)?;
    }
    let mut encrypted_columns = BTreeSet::new();
    if let Some(mut row_groups) = row_groups.filter(|_| is_encrypted) {
        row_groups.read_list(&[STRUCT], |group| {
            group.find_encrypted_chunks(&mut encrypted_columns)
        })?;
    }
    Ok(encrypted_columns)
}

/// Does the same as [`check`] for the footer of a whole file.
pub(crate) fn check_file(file: &[u8]) -> ThriftResult {
    let (before_magic, magic) = file
        .split_last_chunk::<4>()
        .ok_or("the file is too short")?;
    let (before_length, length_bytes) = before_magic
        .split_last_chunk::<4>()
        .ok_or("the file is too short")?;
    if magic != b"PAR1" {
        return Err("the last 4 bytes are not PAR1");
    }
    let length = usize::try_from(u32::from_le_bytes(*length_bytes)).unwrap_or(usize::MAX);
    let start = before_length.len().checked_sub(length);
    check(&before_length[start.ok_or("the footer is longer than the file")?..])
}

impl ThriftReader<'_> {
    /// Checks the schema elements: a tree in which each element is followed by its children.
    fn check_schema(&mut self) -> ThriftResult {
        let (count, element_type) = self.read_list_header()?;
        if element_type != STRUCT {
            return Err("the schema is not a list of structs");
        }
        // For each open group, the number of children that are still to come.
        let mut open_groups: Vec<usize> = Vec::new();
        for _ in 0..count {
            let children = self.read_child_count()?;
            if let Some(remaining) = open_groups.last_mut() {
                *remaining -= 1;
            }
            if children > count {
                return Err("the schema claims more children than elements");
            }
            if children > 0 {
                open_groups.push(children);
            }
            while open_groups.last() == Some(&0) {
                open_groups.pop();
            }
            if open_groups.len() > MAX_SCHEMA_DEPTH {
                return Err("the schema is nested too deeply");
            }
        }
        Ok(())
    }

    /// Adds the indices of a row group's column chunks that are encrypted.
    fn find_encrypted_chunks(&mut self, encrypted_columns: &mut BTreeSet<usize>) -> ThriftResult {
        let mut last_field_id = 0;
        while let Some((field, field_type)) = self.read_field_header(&mut last_field_id)? {
            if field == COLUMNS_FIELD && field_type == LIST {
                let is_encrypted = self.read_list(&[STRUCT], Self::is_encrypted_chunk)?;
                let columns = is_encrypted.iter().enumerate();
                encrypted_columns.extend(columns.filter(|(_, is)| **is).map(|(column, _)| column));
            } else {
                self.skip_value(field_type, 1)?;
            }
        }
        Ok(())
    }

    fn is_encrypted_chunk(&mut self) -> ThriftResult<bool> {
        let (mut last_field_id, mut is_encrypted) = (0, false);
        while let Some((field, field_type)) = self.read_field_header(&mut last_field_id)? {
            is_encrypted |= field == CRYPTO_METADATA_FIELD;
            self.skip_value(field_type, 2)?;
        }
        Ok(is_encrypted)
    }

    fn read_child_count(&mut self) -> ThriftResult<usize> {
        let (mut last_field_id, mut children) = (0, 0);
        while let Some((field, field_type)) = self.read_field_header(&mut last_field_id)? {
            if field == CHILDREN_FIELD && (I16..=I64).contains(&field_type) {
                let child_count = self.read_zigzag()?;
                children = usize::try_from(child_count)
                    .map_err(|_negative| "a schema element has a negative number of children")?;
            } else {
                self.skip_value(field_type, 1)?;
            }
        }
        Ok(children)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A footer with a schema of one root without children, and `fields` after it.
    fn footer(fields: &[u8]) -> Vec<u8> {
        let schema = b"\x15\x02\x19\x1c\x48\x06schema\x15\x00\x00\x16\x00";
        [schema, fields].concat()
    }

    #[test]
    fn a_list_longer_than_the_footer_is_refused() {
        assert_eq!(check(&footer(b"\x00")), Ok(()));
        let row_groups = b"\x19\xfc\xff\xff\xff\xff\x07";
        assert_eq!(
            check(&footer(row_groups)),
            Err("a list is longer than the remaining bytes")
        );
    }

    #[test]
    fn deep_schemas_and_deep_structs_are_refused() {
        let element = b"\x48\x01a\x15\x02\x00";
        let deep = |varint: [u8; 2], levels: usize| {
            let mut bytes = b"\x15\x02\x19\xfc".to_vec();
            bytes.extend(varint);
            (0..levels).for_each(|_| bytes.extend(element));
            bytes.push(0);
            bytes
        };
        // The varints of 300 and 2000.
        let (shallow, deeper) = (deep([0xac, 0x02], 300), deep([0xd0, 0x0f], 2000));
        assert_eq!(check(&shallow), Ok(()));
        assert_eq!(check(&deeper), Err("the schema is nested too deeply"));
        let structs = vec![0x1c; 10_000];
        assert_eq!(
            check(&footer(&structs)),
            Err("a value is nested too deeply")
        );
    }

    #[test]
    fn the_footer_of_a_file_is_found() {
        let file =
            |footer: &[u8], length: u32| [b"PAR1", footer, &length.to_le_bytes(), b"PAR1"].concat();
        let whole = footer(b"\x00");
        let length = u32::try_from(whole.len()).unwrap();
        assert_eq!(check_file(&file(&whole, length)), Ok(()));
        let longer = file(&whole, length + 5);
        assert_eq!(
            check_file(&longer),
            Err("the footer is longer than the file")
        );
        for end in 0..longer.len() {
            assert!(check_file(&longer[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn encrypted_columns_are_named() {
        // Two row groups of three chunks, of which the second one, and in one the third one, has a key.
        let (plain, encrypted) = (&b"\x26\x08\x00"[..], &b"\x26\x08\x6c\x1c\x00\x00\x00"[..]);
        let group = |chunks: [&[u8]; 3]| [b"\x19\x3c", &chunks.concat()[..], b"\x00"].concat();
        let groups = [
            group([plain, encrypted, plain]),
            group([plain, encrypted, encrypted]),
        ];
        let row_groups = [b"\x19\x2c", &groups.concat()[..]].concat();
        let algorithm = b"\x4c\x1c\x00\x00";
        let whole = footer(&[&row_groups[..], algorithm, b"\x00"].concat());
        // The signature of the footer follows it.
        let signed = [&whole[..], &[7; 28]].concat();
        assert_eq!(find_encrypted_columns(&signed), Ok(BTreeSet::from([1, 2])));
        for end in 0..whole.len() {
            assert!(find_encrypted_columns(&whole[..end]).is_err(), "{end}");
        }
        let without_keys = footer(&[&row_groups[..], b"\x00"].concat());
        assert_eq!(find_encrypted_columns(&without_keys), Ok(BTreeSet::new()));
    }

    #[test]
    fn every_cut_of_a_footer_is_refused() {
        let whole = footer(b"\x19\x0c\x00");
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).is_err(), "{end}");
        }
    }
}
