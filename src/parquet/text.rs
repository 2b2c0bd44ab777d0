//! Text that is not UTF-8: not all makers of Arrow data check it, and readers refuse a file that has it.
//!
//! arrow-rs does not check all text that it decodes: not whether each delta-encoded string is text by itself, nor text
//! that only the annotation JSON or the file's Arrow schema declares. Code that takes such an array for text would have
//! undefined behavior.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, OffsetSizeTrait, RecordBatch, make_array};
use arrow_buffer::NullBuffer;
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};

use super::nested::{contains_type, visible_children};
use crate::error::{Error, Result};

/// Refuses visible text that is not UTF-8, at any depth, with [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput).
pub(super) fn check_text(batch: &RecordBatch) -> Result<()> {
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        if contains_type(column.data_type(), DataType::is_string)
            && has_invalid_text(&column.to_data(), None)
        {
            let message = format!(
                "column {:?} has text that is not UTF-8; decode it, or declare it as binary",
                field.name()
            );
            return Err(Error::invalid(message));
        }
    }
    Ok(())
}

/// Refuses decoded text that is not UTF-8, at any depth. The values of dictionaries get the type that they should have.
pub(super) fn check_decoded_text(array: &ArrayRef) -> Result<ArrayRef> {
    if !contains_type(array.data_type(), DataType::is_string) {
        return Ok(Arc::clone(array));
    }
    let data = array.to_data();
    let mut checked = Arc::clone(array);
    let not_text = "it has text that is not UTF-8";
    if has_other_values(&data) {
        let typed = with_declared_values(&data);
        checked = make_array(typed.map_err(|e| Error::other(not_text).with_source(e))?);
    }
    if has_invalid_text(&checked.to_data(), None) {
        return Err(Error::other(not_text));
    }
    Ok(checked)
}

/// Whether the values of a dictionary have another type than the dictionary declares.
fn has_other_values(data: &ArrayData) -> bool {
    let children = data.child_data();
    let is_other = match data.data_type() {
        DataType::Dictionary(_, values) => children[0].data_type() != values.as_ref(),
        _ => false,
    };
    is_other || children.iter().any(has_other_values)
}

/// The array with the values of each dictionary in the type that the dictionary declares.
fn with_declared_values(data: &ArrayData) -> std::result::Result<ArrayData, ArrowError> {
    let children = if let DataType::Dictionary(_, values) = data.data_type() {
        let declared = data.child_data()[0].clone().into_builder();
        vec![declared.data_type(values.as_ref().clone()).build()?]
    } else {
        let children = data.child_data().iter().map(with_declared_values);
        children.collect::<std::result::Result<_, _>>()?
    };
    data.clone().into_builder().child_data(children).build()
}

fn has_invalid_text(data: &ArrayData, outer: Option<&NullBuffer>) -> bool {
    let nulls = NullBuffer::union(outer, data.nulls());
    match data.data_type() {
        DataType::Utf8 => has_invalid_strings::<i32>(data, nulls.as_ref()),
        DataType::LargeUtf8 => has_invalid_strings::<i64>(data, nulls.as_ref()),
        DataType::Utf8View => {
            let array = make_array(data.clone());
            let bytes = array.as_string_view().clone().to_binary_view();
            has_invalid_value(bytes.len(), nulls.as_ref(), |at| bytes.value(at))
        }
        _ => {
            let visible = visible_children(data, nulls.as_ref());
            let mut children = data.child_data().iter();
            children.any(|child| has_invalid_text(child, visible.as_ref()))
        }
    }
}

fn has_invalid_strings<O: OffsetSizeTrait>(data: &ArrayData, nulls: Option<&NullBuffer>) -> bool {
    let array = make_array(data.clone());
    let array = array.as_string::<O>();
    let (offsets, values) = (array.value_offsets(), array.value_data());
    // Usually all of it is text, which is faster to see in one pass than value by value.
    let ends = offsets.first().zip(offsets.last());
    let whole = ends.and_then(|(first, last)| values.get(first.as_usize()..last.as_usize()));
    if let (Some(text), Some(first)) = (
        whole.and_then(|w| std::str::from_utf8(w).ok()),
        offsets.first(),
    ) && offsets
        .iter()
        .all(|at| text.is_char_boundary((*at - *first).as_usize()))
    {
        return false;
    }
    has_invalid_value(array.len(), nulls, |at| {
        &values[offsets[at].as_usize()..offsets[at + 1].as_usize()]
    })
}

fn has_invalid_value<'v>(
    len: usize,
    nulls: Option<&NullBuffer>,
    value: impl Fn(usize) -> &'v [u8],
) -> bool {
    let is_visible = |at: &usize| nulls.is_none_or(|nulls| nulls.is_valid(*at));
    let mut visible = (0..len).filter(is_visible);
    visible.any(|at| std::str::from_utf8(value(at)).is_err())
}

#[cfg(test)]
mod tests {
    use arrow_cast::cast;
    use arrow_schema::Field;
    use parquet::basic::Encoding;

    use super::*;
    use crate::error::ErrorKind;
    use crate::parquet::hand_made::{Values, read, write};

    const COLUMNS: [&str; 5] = [
        "optional binary x (UTF8);",
        "optional binary x (STRING);",
        "optional binary x (JSON);",
        "optional binary x;",
        "optional group x (LIST) { repeated group list { optional binary element (UTF8); } }",
    ];
    const ENCODINGS: [Encoding; 4] = [
        Encoding::PLAIN,
        Encoding::RLE_DICTIONARY,
        Encoding::DELTA_LENGTH_BYTE_ARRAY,
        Encoding::DELTA_BYTE_ARRAY,
    ];

    /// The types that a file's Arrow schema may declare for a column; None without such a schema.
    fn arrow_types(column: &str) -> Vec<Option<DataType>> {
        use DataType::{Dictionary, Int8, Int32, LargeUtf8, Utf8, Utf8View};
        let dictionary = |key, value| Dictionary(Box::new(key), Box::new(value));
        let types = [
            Utf8,
            LargeUtf8,
            Utf8View,
            dictionary(Int32, Utf8),
            dictionary(Int8, LargeUtf8),
        ];
        let nest = |data_type| {
            if column.contains("LIST") {
                return DataType::new_list(data_type, true);
            }
            data_type
        };
        let declared = types.into_iter().map(nest).map(Some);
        std::iter::once(None).chain(declared).collect()
    }

    fn for_each(values: &[&[u8]], check: impl Fn(&str, Option<&DataType>, Result<Vec<ArrayRef>>)) {
        for column in COLUMNS {
            for arrow_type in arrow_types(column) {
                for encoding in ENCODINGS {
                    let values = Values::Bytes(values.to_vec());
                    let bytes = write(column, arrow_type.as_ref(), encoding, &values);
                    check(column, arrow_type.as_ref(), read(&bytes));
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused() {
        let all_values: [[&[u8]; 2]; 3] = [
            [b"ok", b"\xf0\x9f"],
            [b"\xc3", b"\xa9"],
            [b"\xc3\xa9", b"\xa9"],
        ];
        for values in all_values {
            for_each(&values, |column, arrow_type, decoded| {
                if column == COLUMNS[3] && arrow_type.is_none() {
                    let decoded = decoded.unwrap();
                    assert!(decoded[0].as_binary::<i32>().iter().flatten().eq(values));
                    return;
                }
                let error = decoded.expect_err(column);
                assert_eq!(error.kind(), ErrorKind::PartCorrupted);
                assert!(error.message().contains("\"x\""), "{error}");
            });
        }
    }

    #[test]
    fn lists_of_a_huge_size_are_refused() {
        let item = Arc::new(Field::new("item", DataType::Utf8, true));
        let list = DataType::FixedSizeList(item, i32::MAX);
        let values = Values::Bytes(vec![b"a"]);
        let error = read(&write(COLUMNS[4], Some(&list), Encoding::PLAIN, &values)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PartCorrupted);
        assert!(error.message().contains("2147483647 items"), "{error}");
    }

    #[test]
    fn text_is_decoded_as_what_the_arrow_schema_declares() {
        let texts = ["ok", "é", "", "ok"];
        let values = texts.map(str::as_bytes);
        for_each(&values, |column, arrow_type, decoded| {
            let decoded = decoded.expect(column);
            let mut all = Arc::clone(&decoded[0]);
            if let Some(arrow_type) = arrow_type {
                assert_eq!(all.data_type(), arrow_type);
            }
            all.to_data().validate_full().unwrap();
            if let Some(list) = all.as_list_opt::<i32>() {
                all = Arc::clone(list.values());
            }
            let strings = cast(&all, &DataType::Utf8).unwrap();
            let strings = strings.as_string::<i32>().iter();
            assert_eq!(strings.flatten().collect::<Vec<_>>(), texts, "{column}");
        });
    }
}
