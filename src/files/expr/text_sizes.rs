//! How many bytes texts have, and how many functions may make of them in a batch of rows.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait};
use arrow_schema::DataType;
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::ColumnarValue;

/// The most bytes of the texts that a function makes longer, for a batch of rows.
pub(super) const MAX_TOTAL: usize = 1 << 30;
/// The most bytes of the texts that a function joins, for a batch of rows: an array has no offsets of more.
const MAX_JOINED: usize = (1 << 31) - 1;

/// Fails where a function would make texts of more than [`MAX_TOTAL`] bytes.
pub(super) fn check_total(function: &str, bytes: usize) -> Result<()> {
    check_limit(function, bytes, MAX_TOTAL)
}

/// Fails where a function would join texts to more than [`MAX_JOINED`] bytes.
pub(super) fn check_joined(function: &str, bytes: usize) -> Result<()> {
    check_limit(function, bytes, MAX_JOINED)
}

fn check_limit(function: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    let message =
        format!("the texts of {function} may have more than {limit} bytes; make them shorter");
    Err(DataFusionError::Execution(message))
}

/// The number of bytes of texts; those of a constant count for every row.
pub(super) fn byte_size(texts: &ColumnarValue, rows: usize) -> usize {
    match texts {
        ColumnarValue::Scalar(text) => scalar_size(text).saturating_mul(rows),
        ColumnarValue::Array(texts) => array_size(texts),
    }
}

/// The number of bytes that a constant has in every row; those of other texts are not copied.
pub(super) fn copied_size(text: &ColumnarValue, rows: usize) -> usize {
    match text {
        ColumnarValue::Scalar(text) => scalar_size(text).saturating_mul(rows),
        ColumnarValue::Array(_) => 0,
    }
}

fn scalar_size(text: &ScalarValue) -> usize {
    match text {
        ScalarValue::Utf8(Some(text))
        | ScalarValue::LargeUtf8(Some(text))
        | ScalarValue::Utf8View(Some(text)) => text.len(),
        ScalarValue::Binary(Some(bytes))
        | ScalarValue::LargeBinary(Some(bytes))
        | ScalarValue::BinaryView(Some(bytes))
        | ScalarValue::FixedSizeBinary(_, Some(bytes)) => bytes.len(),
        ScalarValue::Dictionary(_, text) => scalar_size(text),
        _ => 0,
    }
}

/// The number of bytes of texts, without what the array has beside them.
pub(super) fn array_size(texts: &ArrayRef) -> usize {
    match texts.data_type() {
        DataType::Utf8 => span(texts.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => span(texts.as_string::<i64>().value_offsets()),
        DataType::Binary => span(texts.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => span(texts.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => sum(texts.as_string_view().lengths()),
        DataType::BinaryView => sum(texts.as_binary_view().lengths()),
        _ => texts.get_array_memory_size(),
    }
}

/// The number of bytes of texts, and of those within lists; 0 of other values, which functions do not make longer.
pub(super) fn made_size(values: &ArrayRef) -> usize {
    match values.data_type() {
        data_type if data_type.is_string() || data_type.is_binary() => array_size(values),
        DataType::List(_) => {
            let lists = values.as_list::<i32>();
            let offsets = lists.value_offsets();
            made_size(&lists.values().slice(begin(offsets), span(offsets)))
        }
        _ => 0,
    }
}

fn begin<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    offsets.first().map_or(0, |first| first.as_usize())
}

fn span<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    match offsets {
        [first, .., last] => last.as_usize().saturating_sub(first.as_usize()),
        _ => 0,
    }
}

fn sum(lengths: impl Iterator<Item = u32>) -> usize {
    let lengths = lengths.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    lengths.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{ListBuilder, StringBuilder};
    use arrow_array::{
        BinaryArray, Int64Array, LargeBinaryArray, LargeStringArray, StringArray, StringViewArray,
    };

    use super::*;

    #[test]
    fn the_bytes_of_lists_are_those_of_their_texts() {
        let mut builder = ListBuilder::new(StringBuilder::new());
        for texts in [vec!["abc", "de"], vec![], vec!["f"]] {
            builder.append_value(texts.into_iter().map(Some));
        }
        let lists: ArrayRef = Arc::new(builder.finish());
        let sizes = [(0, 3, 6), (0, 2, 5), (1, 2, 1), (2, 1, 1), (3, 0, 0)];
        for (begin, rows, bytes) in sizes {
            assert_eq!(made_size(&lists.slice(begin, rows)), bytes);
        }
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        assert_eq!(made_size(&numbers), 0);
    }

    #[test]
    fn the_bytes_are_those_of_the_rows() {
        let texts = [
            Some("héllo"),
            None,
            Some(""),
            Some("a text of more than twelve bytes"),
        ];
        let bytes = || texts.iter().map(|text| text.map(str::as_bytes));
        let arrays: [ArrayRef; 5] = [
            Arc::new(StringArray::from_iter(texts)),
            Arc::new(LargeStringArray::from_iter(texts)),
            Arc::new(StringViewArray::from_iter(texts)),
            Arc::new(bytes().collect::<BinaryArray>()),
            Arc::new(bytes().collect::<LargeBinaryArray>()),
        ];
        for array in arrays {
            for begin in 0..texts.len() {
                let expected: usize = texts[begin..].iter().flatten().map(|text| text.len()).sum();
                let rows = array.slice(begin, texts.len() - begin);
                assert_eq!(array_size(&rows), expected, "{}", array.data_type());
                assert_eq!(made_size(&rows), expected, "{}", array.data_type());
                let constant = ScalarValue::try_from_array(&array, begin).unwrap();
                let once = texts[begin].map_or(0, str::len);
                assert_eq!(byte_size(&ColumnarValue::Scalar(constant), 3), 3 * once);
            }
        }
    }
}
