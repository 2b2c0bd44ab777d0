//! Functions that make long texts, within bounds: memory that there is not would end the process. And `levenshtein`, of
//! which the time is bounded, since nothing cancels it within a batch of rows.
//!
//! In the replacement of `regexp_replace` only a backslash names what was matched, as in SQL. In DataFusion `$` does,
//! too.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, LargeStringArray};
use arrow_cast::cast;
use arrow_schema::DataType;
use arrow_select::concat::concat;
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::ColumnarValue;

use super::calls::Call;
use super::text_sizes::{MAX_TOTAL, array_size, byte_size, check_joined, check_total, copied_size};

const CONCAT: &str = "concat";
const CONCAT_WS: &str = "concat_ws";
const LEVENSHTEIN: &str = "levenshtein";
const REPEAT: &str = "repeat";
const REPLACE: &str = "replace";
const REGEXP_REPLACE: &str = "regexp_replace";
/// The most characters that a text is padded to.
const MAX_PADDED_CHARS: usize = 65_536;
/// The most bytes that a text is repeated to.
const MAX_REPEATED_BYTES: usize = 1 << 20;
/// The most bytes of a character.
const MAX_CHAR_BYTES: usize = 4;
/// The most pairs of characters that are compared for a batch of rows; they take some seconds.
const MAX_PAIRS: u64 = 1 << 32;
/// How many pairs of characters a batch of many rows may have for each of them.
const MAX_ROW_PAIRS: u64 = 1 << 16;

pub(super) fn is_checked(name: &str) -> bool {
    matches!(
        name,
        CONCAT | CONCAT_WS | LEVENSHTEIN | "lpad" | "rpad" | REPEAT | REPLACE | REGEXP_REPLACE
    )
}

/// The values of such a function; an error where one is too long, or takes too long.
pub(super) fn evaluate(call: &Call<'_>) -> Result<ArrayRef> {
    match call.name() {
        REGEXP_REPLACE => return replace_matches(call),
        REPLACE => check_replaced(call)?,
        LEVENSHTEIN => check_pairs(call)?,
        CONCAT | CONCAT_WS => check_parts(call)?,
        _ => return lengthen(call),
    }
    call.invoke(call.args().to_vec())
}

/// The padded or repeated texts. A negative length is that of an empty text.
fn lengthen(call: &Call<'_>) -> Result<ArrayRef> {
    let mut args = call.args().to_vec();
    let [text, count, others @ ..] = args.as_mut_slice() else {
        return call.invoke(call.args().to_vec());
    };
    let fill = others.first();
    let is_repeat = call.name() == REPEAT;
    let (max, unit, verb) = if is_repeat {
        (MAX_REPEATED_BYTES, "bytes", "repeated")
    } else {
        (MAX_PADDED_CHARS, "characters", "padded")
    };
    let copied = [Some(&*text), fill].map(|arg| arg.map_or(0, |arg| copied_size(arg, call.rows())));
    let mut total = copied[0].saturating_add(copied[1]);
    for row in 0..call.rows() {
        let bytes = text_at(text, row).map_or(0, str::len);
        let size = if is_repeat { bytes } else { 1 };
        let length = count_at(count, row).saturating_mul(size);
        if length > max {
            let message = format!("texts are {verb} to at most {max} {unit}, not {length}");
            return Err(DataFusionError::Execution(message));
        }
        let produced = if is_repeat {
            length
        } else {
            let is_ascii = fill
                .and_then(|fill| text_at(fill, row))
                .is_none_or(str::is_ascii);
            let char_bytes = if is_ascii { 1 } else { MAX_CHAR_BYTES };
            length * char_bytes + bytes.min(length * MAX_CHAR_BYTES)
        };
        total = total.saturating_add(produced);
    }
    check_total(call.name(), total)?;
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

/// Fails where the joined texts are too long.
fn check_parts(call: &Call<'_>) -> Result<()> {
    let Some((first, others)) = call.args().split_first() else {
        return Ok(());
    };
    let size = |arg| byte_size(arg, call.rows());
    // A separator is between all others.
    let times = if call.name() == CONCAT_WS {
        others.len()
    } else {
        1
    };
    let total = size(first).saturating_mul(times);
    let total = others.iter().map(size).fold(total, usize::saturating_add);
    check_joined(call.name(), total)
}

/// Fails where the texts are so long that their comparison, which nothing cancels, takes long.
fn check_pairs(call: &Call<'_>) -> Result<()> {
    let [left, right] = call.args() else {
        return Ok(());
    };
    let counts = [left, right].map(|arg| char_counts(arg, call.rows()));
    let pairs = counts[0].iter().zip(&counts[1]);
    let pairs = pairs.map(|(left, right)| left.saturating_mul(*right));
    let pairs = pairs.fold(0, u64::saturating_add);
    let rows = u64::try_from(call.rows()).unwrap_or(u64::MAX);
    let limit = rows.saturating_mul(MAX_ROW_PAIRS).max(MAX_PAIRS);
    if pairs <= limit {
        return Ok(());
    }
    let message = format!(
        "{LEVENSHTEIN} would compare {pairs} pairs of characters of a batch of rows, more than {limit}; compare \
         the beginnings of the texts, as in left(text, 1000)"
    );
    Err(DataFusionError::Execution(message))
}

/// How many characters the text of each row has; those of a constant are counted once.
fn char_counts(arg: &ColumnarValue, rows: usize) -> Vec<u64> {
    let count = |row| {
        let chars = text_at(arg, row).map_or(0, |text| text.chars().count());
        u64::try_from(chars).unwrap_or(u64::MAX)
    };
    match arg {
        ColumnarValue::Scalar(_) => vec![count(0); rows],
        ColumnarValue::Array(_) => (0..rows).map(count).collect(),
    }
}

/// Fails where what parts of a text are replaced by is too long.
fn check_replaced(call: &Call<'_>) -> Result<()> {
    let [text, part, other, ..] = call.args() else {
        return Ok(());
    };
    let rows = call.rows();
    let copied = [text, part, other].map(|arg| copied_size(arg, rows));
    let copied = copied.into_iter().fold(0, usize::saturating_add);
    check_total(REPLACE, copied)?;
    let added = |count: fn(&str, &str) -> usize| {
        let added = (0..rows).map(|row| {
            let texts = (text_at(text, row), text_at(part, row), text_at(other, row));
            let (Some(text), Some(part), Some(other)) = texts else {
                return 0;
            };
            count(text, part).saturating_mul(other.len())
        });
        added.fold(copied, usize::saturating_add)
    };
    // Only long texts are looked through.
    if added(count_most) <= MAX_TOTAL {
        return Ok(());
    }
    check_total(REPLACE, added(count_parts))
}

/// How often a part may be in a text.
fn count_most(text: &str, part: &str) -> usize {
    text.len().checked_div(part.len()).unwrap_or_default()
}

fn count_parts(text: &str, part: &str) -> usize {
    match part {
        "" => 0,
        part => text.matches(part).count(),
    }
}

/// The texts with their matches replaced, of so many rows at a time that the size of what is made is bounded.
fn replace_matches(call: &Call<'_>) -> Result<ArrayRef> {
    let args = call.args().iter().enumerate().map(|(at, arg)| match at {
        1 => change_texts(arg, &keep_whole),
        2 => change_texts(arg, &to_template),
        _ => Ok(arg.clone()),
    });
    let args = args.collect::<Result<Vec<_>>>()?;
    let (mut begin, mut bytes, mut total) = (0, 0_usize, 0_usize);
    let mut parts = Vec::new();
    for row in 0..call.rows() {
        let most = most_replaced(call, row);
        check_total(REGEXP_REPLACE, most)?;
        bytes = bytes.saturating_add(most);
        if bytes > MAX_TOTAL {
            let part = call.invoke_rows(&args, begin, row - begin)?;
            total = total.saturating_add(array_size(&part));
            check_total(REGEXP_REPLACE, total)?;
            parts.push(part);
            (begin, bytes) = (row, most);
        }
    }
    let last = call.invoke_rows(&args, begin, call.rows() - begin)?;
    if parts.is_empty() {
        return Ok(last);
    }
    total = total.saturating_add(array_size(&last));
    check_total(REGEXP_REPLACE, total)?;
    parts.push(last);
    let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
    Ok(concat(&parts)?)
}

/// The most bytes that the text of a row has when its matches are replaced.
fn most_replaced(call: &Call<'_>, row: usize) -> usize {
    let [text, _, other, ..] = call.args() else {
        return 0;
    };
    let (Some(text), Some(other)) = (text_at(text, row), text_at(other, row)) else {
        return 0;
    };
    let flags = call.args().get(3).and_then(|flags| text_at(flags, row));
    let is_once = flags.is_none_or(|flags| !flags.contains('g')) && !other.contains('\\');
    // Before every character and after the last one; the replacement may name the match.
    let matches = if is_once { 1 } else { text.len() + 1 };
    text.len()
        .saturating_add(matches.saturating_mul(other.len()))
}

/// A pattern that DataFusion would take for one from the beginning to the end of a text, though it has alternatives, a
/// comment or no beginning, after an empty group, which hides that from it; `None` for others.
fn keep_whole(pattern: &str) -> Option<String> {
    let rest = pattern.strip_prefix('^')?;
    let is_cut = rest.contains(['|', '#']) || rest.starts_with(['?', '*', '+', '{']);
    (is_cut && rest.ends_with(".*$")).then(|| format!("(?:){pattern}"))
}

/// A replacement of SQL as DataFusion reads it, where `$` names what was matched; `None` for one without such signs. A
/// backslash before a digit is a group, as that before `&` is the whole match; two are one.
fn to_template(replacement: &str) -> Option<String> {
    if !replacement.contains(['$', '\\']) {
        return None;
    }
    let mut template = String::with_capacity(2 * replacement.len());
    let mut characters = replacement.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '$' => template.push_str("$$"),
            '\\' => {
                let named = characters.next_if(|next| next.is_ascii_digit() || *next == '&');
                if let Some(group) = named {
                    let group = if group == '&' { '0' } else { group };
                    template.push_str("${");
                    template.push(group);
                    template.push('}');
                    continue;
                }
                characters.next_if_eq(&'\\');
                template.push('\\');
                if characters.peek().is_some_and(char::is_ascii_digit) {
                    // DataFusion would take both for a group: a name that no group has is empty.
                    template.push_str("${}");
                }
            }
            other => template.push(other),
        }
    }
    Some(template)
}

/// Texts of which some are changed.
fn change_texts(
    arg: &ColumnarValue,
    change: &dyn Fn(&str) -> Option<String>,
) -> Result<ColumnarValue> {
    let rows = match arg {
        ColumnarValue::Scalar(_) => 1,
        ColumnarValue::Array(texts) => texts.len(),
    };
    let mut texts = (0..rows).filter_map(|row| text_at(arg, row));
    if !texts.any(|text| change(text).is_some()) {
        return Ok(arg.clone());
    }
    let changed = (0..rows).map(|row| {
        let text = text_at(arg, row)?;
        Some(change(text).unwrap_or_else(|| text.to_owned()))
    });
    let changed: LargeStringArray = changed.collect();
    let changed = cast(&changed, &arg.data_type())?;
    Ok(match arg {
        ColumnarValue::Scalar(_) => {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&changed, 0)?)
        }
        ColumnarValue::Array(_) => ColumnarValue::Array(changed),
    })
}

/// The text of a row; `None` for NULL.
pub(super) fn text_at(arg: &ColumnarValue, row: usize) -> Option<&str> {
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
