//! Functions that make long texts, within bounds: memory that there is not would end the process.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::ColumnarValue;

use super::calls::Call;

const REPEAT: &str = "repeat";
const REPLACE: &str = "replace";
const REGEXP_REPLACE: &str = "regexp_replace";
/// The most characters that a text is padded to.
const MAX_PADDED_CHARS: usize = 65_536;
/// The most bytes that a text is repeated to.
const MAX_REPEATED_BYTES: usize = 1 << 20;
/// The most bytes that parts of a text are replaced by, and of the repeated or padded texts of a batch of rows.
const MAX_TOTAL: usize = 1 << 30;

pub(super) fn is_checked(name: &str) -> bool {
    matches!(name, "lpad" | "rpad" | REPEAT | REPLACE | REGEXP_REPLACE)
}

/// The texts of such a function; an error where one is too long.
pub(super) fn evaluate(call: &Call<'_>) -> Result<ArrayRef> {
    match call.name() {
        REPLACE | REGEXP_REPLACE => check_replaced(call)?,
        _ => return lengthen(call),
    }
    call.invoke(call.args().to_vec())
}

/// The padded or repeated texts. A negative length is that of an empty text.
fn lengthen(call: &Call<'_>) -> Result<ArrayRef> {
    let mut args = call.args().to_vec();
    let [text, count, ..] = args.as_mut_slice() else {
        return call.invoke(call.args().to_vec());
    };
    let is_repeat = call.name() == REPEAT;
    let (max, unit, verb) = if is_repeat {
        (MAX_REPEATED_BYTES, "bytes", "repeated")
    } else {
        (MAX_PADDED_CHARS, "characters", "padded")
    };
    let is_constant = matches!(text, ColumnarValue::Scalar(_));
    let mut total = 0_usize;
    for row in 0..call.rows() {
        let bytes = text_at(text, row).map_or(0, str::len);
        let size = if is_repeat { bytes } else { 1 };
        let length = count_at(count, row).saturating_mul(size);
        if length > max {
            let message = format!("texts are {verb} to at most {max} {unit}, not {length}");
            return Err(DataFusionError::Execution(message));
        }
        // A constant is copied for every row.
        total = total.saturating_add(length.max(if is_constant { bytes } else { 0 }));
    }
    if total > MAX_TOTAL {
        return Err(too_much(call.name()));
    }
    match count {
        ColumnarValue::Scalar(ScalarValue::Int64(Some(count))) => *count = (*count).max(0),
        ColumnarValue::Scalar(_) => {}
        ColumnarValue::Array(array) => {
            if let Some(counts) = array.as_primitive_opt::<Int64Type>() {
                let counts = counts.unary::<_, Int64Type>(|count| count.max(0));
                *array = Arc::new(counts);
            }
        }
    }
    call.invoke(args)
}

/// Fails where what parts of a text are replaced by is too long.
fn check_replaced(call: &Call<'_>) -> Result<()> {
    let [text, part, other, ..] = call.args() else {
        return Ok(());
    };
    for row in 0..call.rows() {
        let (Some(text), Some(part), Some(other)) =
            (text_at(text, row), text_at(part, row), text_at(other, row))
        else {
            continue;
        };
        let is_pattern = call.name() == REGEXP_REPLACE;
        let most = if is_pattern && is_replaced_once(call, row, other) {
            1
        } else if is_pattern {
            // Before every character and after the last one; the replacement may name the match.
            text.len() + 1
        } else {
            text.len() / part.len().max(1)
        };
        if most.saturating_mul(other.len()) <= MAX_TOTAL {
            continue;
        }
        if is_pattern || text.matches(part).count().saturating_mul(other.len()) > MAX_TOTAL {
            return Err(too_much(call.name()));
        }
    }
    Ok(())
}

/// Whether the first match alone is replaced, by a text that does not name it.
fn is_replaced_once(call: &Call<'_>, row: usize, other: &str) -> bool {
    let flags = call.args().get(3).and_then(|flags| text_at(flags, row));
    flags.is_none_or(|flags| !flags.contains('g')) && !other.contains(['\\', '$'])
}

fn too_much(name: &str) -> DataFusionError {
    let message =
        format!("the texts of {name} may have more than {MAX_TOTAL} bytes; make them shorter");
    DataFusionError::Execution(message)
}

/// The text of a row; `None` for NULL.
fn text_at(arg: &ColumnarValue, row: usize) -> Option<&str> {
    match arg {
        ColumnarValue::Scalar(value) => value.try_as_str().flatten(),
        ColumnarValue::Array(texts) if texts.is_null(row) => None,
        ColumnarValue::Array(texts) => match texts.data_type() {
            DataType::Utf8 => Some(texts.as_string::<i32>().value(row)),
            DataType::LargeUtf8 => Some(texts.as_string::<i64>().value(row)),
            DataType::Utf8View => Some(texts.as_string_view().value(row)),
            _ => None,
        },
    }
}

/// The count of a row; 0 for NULL and what is negative.
fn count_at(arg: &ColumnarValue, row: usize) -> usize {
    let count = match arg {
        ColumnarValue::Scalar(ScalarValue::Int64(count)) => *count,
        ColumnarValue::Scalar(_) => None,
        ColumnarValue::Array(counts) => counts
            .as_primitive_opt::<Int64Type>()
            .filter(|counts| counts.is_valid(row))
            .map(|counts| counts.value(row)),
    };
    usize::try_from(count.unwrap_or_default()).unwrap_or_default()
}
