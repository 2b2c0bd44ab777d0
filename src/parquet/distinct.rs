//! Whether the values of a column are distinct, so that a dictionary of them would only cost.
//!
//! A dictionary of distinct values grows to its limit before the encoder gives it up: it makes the file larger, and
//! everyone who reads one of the chunk's pages fetches it. [`is_distinct`] looks at blocks of neighbouring rows from all
//! over the column, so that it sees both values that repeat side by side and values that come back later.

use std::collections::HashSet;

use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, SortField};
use arrow_schema::DataType;

use super::seal::hash;

/// Blocks of a sample, and the rows of each.
const BLOCKS: usize = 16;
const BLOCK_ROWS: usize = 256;
/// Columns of fewer rows keep their dictionary: it is small.
const MIN_ROWS: usize = 2 * BLOCKS * BLOCK_ROWS;
/// A sample of distinct values may have one value in so many twice. If values are drawn at random, a column with so few
/// of them twice in the sample has far more values than a dictionary holds.
const MIN_VALUES_PER_REPEAT: usize = 256;
/// The most values that a full sample may have twice.
const MAX_REPEATS: usize = BLOCKS * BLOCK_ROWS / MIN_VALUES_PER_REPEAT;

/// Whether nearly all values of a sample of `array` are distinct. Columns that are dictionaries or nested, or of few
/// rows or of narrow types, are not.
pub(super) fn is_distinct(array: &ArrayRef) -> bool {
    if array.len() < MIN_ROWS || !is_wide(array.data_type()) {
        return false;
    }
    let Ok(converter) = RowConverter::new(vec![SortField::new(array.data_type().clone())]) else {
        return false;
    };
    let mut distinct = HashSet::with_capacity(BLOCKS * BLOCK_ROWS);
    let (mut values, mut repeats) = (0, 0);
    for block in 0..BLOCKS {
        let begin = (array.len() - BLOCK_ROWS) / (BLOCKS - 1) * block;
        let slice = array.slice(begin, BLOCK_ROWS);
        let Ok(rows) = converter.convert_columns(std::slice::from_ref(&slice)) else {
            return false;
        };
        for row in (0..slice.len()).filter(|row| slice.is_valid(*row)) {
            values += 1;
            repeats += usize::from(!distinct.insert(hash(rows.row(row).as_ref())));
        }
        // The other blocks cannot make up for so many.
        if repeats > MAX_REPEATS {
            return false;
        }
    }
    values >= BLOCKS * BLOCK_ROWS / 4 && repeats * MIN_VALUES_PER_REPEAT <= values
}

/// Whether a type has more values than a dictionary holds.
fn is_wide(data_type: &DataType) -> bool {
    use DataType as D;
    match data_type {
        D::Boolean | D::Int8 | D::UInt8 | D::Int16 | D::UInt16 | D::Float16 => false,
        D::Utf8 | D::LargeUtf8 | D::Utf8View | D::Binary | D::LargeBinary | D::BinaryView => true,
        other => other.is_primitive(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{DictionaryArray, Float64Array, Int8Array, Int64Array, StringArray};

    use super::*;

    const ROWS: i64 = 100_000;

    fn numbers(value: impl Fn(i64) -> i64) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..ROWS).map(value)))
    }

    /// A number that looks like chance.
    fn scramble(n: i64) -> i64 {
        n.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed()) >> 20
    }

    #[test]
    fn keys_measures_and_texts_are_distinct() {
        let nullable = (0..ROWS).map(|n| (n % 3 == 0).then_some(n));
        let columns: [ArrayRef; 5] = [
            numbers(|n| n),
            numbers(scramble),
            Arc::new(
                (0..ROWS)
                    .map(|n| i32::try_from(n).ok().map(|n| f64::from(n) / 7.0))
                    .collect::<Float64Array>(),
            ),
            Arc::new(
                (0..ROWS)
                    .map(|n| Some(format!("row {n}")))
                    .collect::<StringArray>(),
            ),
            Arc::new(nullable.collect::<Int64Array>()),
        ];
        for (number, column) in columns.iter().enumerate() {
            assert!(is_distinct(column), "{number}");
        }
    }

    #[test]
    fn values_that_come_again_are_not() {
        let narrow: Int8Array = (0..ROWS).map(|n| i8::try_from(n % 100).ok()).collect();
        let texts = ["a", "b", "c"];
        let dictionary: DictionaryArray<Int32Type> = (0..9000).map(|n| texts[n % 3]).collect();
        let columns: [ArrayRef; 7] = [
            // Side by side, all over the column, within a block, and of few values.
            numbers(|n| n / 2),
            numbers(|n| scramble(n % 20_000)),
            numbers(|n| n / 300 * 300 + n % 150),
            numbers(|n| n % 50),
            Arc::new(narrow),
            Arc::new(dictionary),
            numbers(|n| n).slice(0, MIN_ROWS - 1),
        ];
        for (number, column) in columns.iter().enumerate() {
            assert!(!is_distinct(column), "{number}");
        }
    }
}
