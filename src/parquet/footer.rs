//! Whether a Parquet footer can be decoded without harm, looked at before it is.
//!
//! A footer is a Thrift struct in the compact protocol. Lists say how long they are and schemas how
//! deep, and a decoder makes room for what they say; so every list is held against the bytes that
//! are there, and the schema against a depth.

use super::thrift::{I16, I64, LIST, STRUCT, ThriftReader, ThriftResult};

/// Groups of a schema within one another: what is written has a third of it.
const MAX_SCHEMA_DEPTH: usize = 400;

/// Of the footer: the list of schema elements.
const SCHEMA_FIELD: i32 = 2;
/// Of a schema element: how many children it has.
const CHILDREN_FIELD: i32 = 5;

/// Checks lengths, nesting and the schema's shape.
pub(super) fn check(footer: &[u8]) -> ThriftResult {
    let mut reader = ThriftReader(footer);
    let mut last_field_id = 0;
    while let Some((field, field_type)) = reader.read_field_header(&mut last_field_id)? {
        if field == SCHEMA_FIELD && field_type == LIST {
            reader.check_schema()?;
        } else {
            reader.skip_value(field_type, 0)?;
        }
    }
    Ok(())
}

/// As [`check`], of the footer of a whole file.
pub(crate) fn check_file(file: &[u8]) -> ThriftResult {
    let (before_magic, magic) = file.split_last_chunk::<4>().ok_or("it ends too early")?;
    let (before_length, length_bytes) = before_magic
        .split_last_chunk::<4>()
        .ok_or("it ends too early")?;
    if magic != b"PAR1" {
        return Err("it does not end as a Parquet file");
    }
    let length = usize::try_from(u32::from_le_bytes(*length_bytes)).unwrap_or(usize::MAX);
    let start = before_length.len().checked_sub(length);
    check(&before_length[start.ok_or("the footer is longer than the file")?..])
}

impl ThriftReader<'_> {
    /// Schema elements: a tree, each followed by its children.
    fn check_schema(&mut self) -> ThriftResult {
        let (count, element_type) = self.read_list_header()?;
        if element_type != STRUCT {
            return Err("its schema is no list of structs");
        }
        // How many children the groups that are open still wait for.
        let mut open_groups: Vec<usize> = Vec::new();
        for _ in 0..count {
            let children = self.read_child_count()?;
            if let Some(remaining) = open_groups.last_mut() {
                *remaining -= 1;
            }
            if children > count {
                return Err("its schema has more children than elements");
            }
            if children > 0 {
                open_groups.push(children);
            }
            while open_groups.last() == Some(&0) {
                open_groups.pop();
            }
            if open_groups.len() > MAX_SCHEMA_DEPTH {
                return Err("its schema is nested too deeply");
            }
        }
        Ok(())
    }

    fn read_child_count(&mut self) -> ThriftResult<usize> {
        let (mut last_field_id, mut children) = (0, 0);
        while let Some((field, field_type)) = self.read_field_header(&mut last_field_id)? {
            if field == CHILDREN_FIELD && (I16..=I64).contains(&field_type) {
                let child_count = self.read_zigzag()?;
                children = usize::try_from(child_count)
                    .map_err(|_negative| "its schema has a negative length")?;
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

    /// A root with no children, and what follows.
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
            Err("a list is longer than the footer")
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
        // 300 and 2000 as numbers of seven bits a byte.
        let (shallow, deeper) = (deep([0xac, 0x02], 300), deep([0xd0, 0x0f], 2000));
        assert_eq!(check(&shallow), Ok(()));
        assert_eq!(check(&deeper), Err("its schema is nested too deeply"));
        let structs = vec![0x1c; 10_000];
        assert_eq!(check(&footer(&structs)), Err("it is nested too deeply"));
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
    fn every_cut_of_a_footer_is_refused() {
        let whole = footer(b"\x19\x0c\x00");
        for end in 0..whole.len() {
            assert!(check(&whole[..end]).is_err(), "{end}");
        }
    }
}
