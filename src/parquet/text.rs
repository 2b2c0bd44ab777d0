//! Text that is not UTF-8: not all makers of Arrow data check it, and readers refuse a file that has it.

use arrow_array::cast::AsArray;
use arrow_array::{Array, OffsetSizeTrait, RecordBatch, make_array};
use arrow_buffer::NullBuffer;
use arrow_data::ArrayData;
use arrow_schema::DataType;

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
