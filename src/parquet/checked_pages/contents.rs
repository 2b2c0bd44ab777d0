//! What a page must hold so that it is decoded right. Pages of `pds` have checksums and are not checked.

use parquet::basic::{Encoding, Type};
use parquet::column::page::Page;
use parquet::schema::types::ColumnDescriptor;

use crate::parquet::deltas::{DeltaHeader, DeltaNumbers};
use crate::parquet::flat::hybrid::{HybridRun, HybridRuns, read_blocks};
use crate::parquet::pages::split_levels;
use crate::parquet::thrift::{ThriftReader, ThriftResult};

/// Checks the levels of a data page, and what its encoding demands of the values.
pub(super) fn check(page: &Page, column: &ColumnDescriptor) -> ThriftResult {
    let count = page.num_values();
    let check_levels = |max_level, levels: &[u8]| {
        let is_valid = has_levels_up_to(max_level, levels, count as usize);
        is_valid
            .then_some(())
            .ok_or("a page has a level that its column does not have")
    };
    let values = split_levels(page, column, check_levels)?;
    match page.encoding() {
        Encoding::BYTE_STREAM_SPLIT if !values.0.len().is_multiple_of(value_bytes(column)) => {
            Err("a page has bytes of a part of a value")
        }
        Encoding::DELTA_BYTE_ARRAY if !values.0.is_empty() => check_prefixes(values, count.into()),
        _ => Ok(()),
    }
}

/// Whether none of the levels is above `max_level`. Of levels that are cut off it does not matter.
fn has_levels_up_to(max_level: i16, levels: &[u8], count: usize) -> bool {
    let max = u32::from(max_level.unsigned_abs());
    let width = u32::BITS - max.leading_zeros();
    if (max + 1).is_power_of_two() {
        // Packed levels cannot be larger.
        let Ok(mut runs) = HybridRuns::new(levels, width, count) else {
            return false;
        };
        while let Some(Ok(run)) = runs.next() {
            if matches!(run, HybridRun::Rle { value, .. } if value > max) {
                return false;
            }
        }
        return true;
    }
    let mut are_valid = true;
    let check_block = |block: &[u32]| {
        are_valid &= block.iter().all(|level| *level <= max);
        Ok(())
    };
    let is_read = read_blocks(levels, width, count, check_block);
    are_valid || is_read.is_err()
}

/// The bytes of a value of a fixed length.
fn value_bytes(column: &ColumnDescriptor) -> usize {
    match column.physical_type() {
        Type::INT64 | Type::DOUBLE => 8,
        Type::FIXED_LEN_BYTE_ARRAY => usize::try_from(column.type_length()).unwrap_or(1).max(1),
        _ => 4,
    }
}

/// Checks that no string shares more bytes with the one before than that one has.
fn check_prefixes(mut reader: ThriftReader<'_>, max_values: u64) -> ThriftResult {
    let mut prefixes = DeltaNumbers::open(ThriftReader(reader.0), max_values)?;
    DeltaHeader::read(&mut reader, max_values)?.skip_blocks(&mut reader)?;
    let mut suffixes = DeltaNumbers::open(reader, max_values)?;
    let mut previous = 0;
    while let (Some(prefix), Some(suffix)) = (prefixes.read_next()?, suffixes.read_next()?) {
        if !(0..=previous).contains(&prefix) || suffix < 0 {
            return Err("a string has a longer prefix than the one before it");
        }
        previous = prefix.saturating_add(suffix);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    fn check_page(column: &str, values: u32, encoding: Encoding, bytes: &[u8]) -> ThriftResult {
        let schema = parse_message_type(&format!("message m {{ {column} }}")).unwrap();
        let column = SchemaDescriptor::new(Arc::new(schema)).column(0);
        let page = Page::DataPage {
            buf: bytes.to_vec().into(),
            num_values: values,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        check(&page, &column)
    }

    #[test]
    fn levels_are_those_of_the_column() {
        let check_levels =
            |column, levels: &[u8]| check_page(column, 3, Encoding::PLAIN, levels).is_ok();
        for (level, is_valid) in [(0, true), (1, true), (2, false), (3, false)] {
            let run = [2, 0, 0, 0, 3 << 1, level];
            assert_eq!(check_levels("optional int32 x;", &run), is_valid, "{level}");
        }
        let nested = "optional group g { optional int32 x; }";
        for (level, is_valid) in [(1, true), (2, true), (3, false)] {
            let run = [2, 0, 0, 0, 3 << 1, level];
            assert_eq!(check_levels(nested, &run), is_valid, "{level}");
            let packed = [3, 0, 0, 0, 3, level << 4, 0];
            assert_eq!(check_levels(nested, &packed), is_valid, "{level}");
        }
    }

    #[test]
    fn levels_that_are_cut_off_are_left_to_the_decoder() {
        for column in [
            "optional int32 x;",
            "optional group g { optional int32 x; }",
        ] {
            for levels in [&[0, 0, 0, 0][..], &[1, 0, 0, 0, 2], &[2, 0, 0, 0, 4, 1]] {
                assert!(check_page(column, 3, Encoding::PLAIN, levels).is_ok());
            }
        }
    }

    /// Two delta-encoded numbers, which take no bits beyond their step.
    fn deltas(numbers: [i8; 2]) -> Vec<u8> {
        let zigzag = |number: i8| ((number << 1) ^ (number >> 7)).cast_unsigned();
        let [first, second] = numbers;
        let step = zigzag(second - first);
        vec![0x80, 1, 4, 2, zigzag(first), step, 0, 0, 0, 0]
    }

    #[test]
    fn prefixes_are_those_of_the_string_before() {
        for (prefixes, is_valid) in [
            ([0, 2], true),
            ([0, 3], true),
            ([0, 4], false),
            ([0, -2], false),
            ([2, 2], false),
        ] {
            let bytes = [deltas(prefixes), deltas([3, 1]), b"abcd".to_vec()].concat();
            let column = "required binary x (UTF8);";
            let checked = check_page(column, 2, Encoding::DELTA_BYTE_ARRAY, &bytes);
            assert_eq!(checked.is_ok(), is_valid, "{prefixes:?}");
        }
    }

    #[test]
    fn split_bytes_are_of_whole_values() {
        let split = Encoding::BYTE_STREAM_SPLIT;
        let is_valid = |column, bytes: &[u8]| check_page(column, 3, split, bytes).is_ok();
        for (column, width) in [
            ("required int32 x;", 4),
            ("required double x;", 8),
            ("required fixed_len_byte_array(3) x;", 3),
        ] {
            assert!(is_valid(column, &vec![0; 3 * width]));
            assert!(!is_valid(column, &vec![0; 3 * width - 1]));
        }
    }
}
