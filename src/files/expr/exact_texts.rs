//! Texts that are compared with decimals, dates or timestamps: read without loss, or an error.
//!
//! A cast rounds a text to the scale of a decimal, and cuts it to the unit of a timestamp: values would be equal that
//! are not. So [`read_texts`] gives the texts of a comparison a type with more digits than the other values have. A
//! text with even more digits is an error, as a text that is not an integer is one beside integers. Literals have been
//! read before, each in a type of its own.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, Decimal256Array};
use arrow_buffer::i256;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType, TimeUnit};
use arrow_select::zip::zip;
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::Expr;
use datafusion_expr::{
    ColumnarValue, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast, lit,
};

use super::time_literals::{
    UTC, has_finer_digits, is_integer, not_a_time, parse_time_of_day, string_literal,
};

/// The name of the function that reads texts.
pub(super) const EXACT_TEXT: &str = "exact_text";
/// How many digits before the point a text may have, if the decimals beside it leave room for them.
const WHOLE_DIGITS: u8 = 38;
/// How much of a text is in a message.
const MAX_TEXT_CHARS: usize = 100;

/// Reads the texts among values that are compared with each other, if one of these is a decimal, a date or a timestamp.
/// Beside a date a literal with a time of day becomes a timestamp, so that the date is not cast to nanoseconds.
pub(super) fn read_texts(mut operands: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let types_of = |operands: &[Expr]| -> Vec<Option<DataType>> {
        let types = operands.iter().map(|operand| operand.get_type(schema).ok());
        types.collect()
    };
    let mut types = types_of(&operands);
    if !types.iter().flatten().any(is_text) {
        return operands;
    }
    let is_date = |data_type: &DataType| matches!(data_type, DataType::Date32 | DataType::Date64);
    if types.iter().flatten().any(is_date) {
        for operand in &mut operands {
            if let Some(time) = string_literal(operand).and_then(parse_time_of_day) {
                *operand = lit(time);
            }
        }
        types = types_of(&operands);
    }
    let Some(to) = common_type(&operands, &types) else {
        return operands;
    };
    let typed_operands = operands.into_iter().zip(types);
    let read = |(operand, own_type): (Expr, Option<DataType>)| {
        let is_read = own_type.as_ref().is_some_and(is_text) && string_literal(&operand).is_none();
        match &to {
            _ if !is_read => operand,
            DataType::Float64 => cast(operand, DataType::Float64),
            to => read_text(operand, to.clone()),
        }
    };
    typed_operands.map(read).collect()
}

/// The value of a text as this decimal of 256 bits, timestamp or time of day; an error where it has more digits.
pub(super) fn read_text(text: Expr, to: DataType) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::from(ExactText { to, signature }).call(vec![text])
}

/// The type in which texts are compared with a decimal; `None` beside other types.
pub(super) fn decimal_beside(data_type: &DataType) -> Option<DataType> {
    digits(data_type).map(|(whole, scale)| decimal_with(whole, scale))
}

/// Whether a type is that of texts.
pub(super) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_string(),
        other => other.is_string(),
    }
}

/// The type in which texts are compared with the other values; `None` if DataFusion's own loses nothing.
fn common_type(operands: &[Expr], types: &[Option<DataType>]) -> Option<DataType> {
    let known = || types.iter().flatten();
    let units = known().filter_map(|data_type| match data_type {
        DataType::Timestamp(unit, _) => Some(*unit),
        DataType::Date32 | DataType::Date64 => Some(TimeUnit::Microsecond),
        _ => None,
    });
    if let Some(unit) = units.max() {
        let is_zoned = known().any(|t| matches!(t, DataType::Timestamp(_, Some(_))));
        let zone = is_zoned.then(|| Arc::from(UTC));
        // Nanoseconds, unless they are needed, would end in the year 2262.
        return Some(DataType::Timestamp(unit.max(TimeUnit::Microsecond), zone));
    }
    // A literal beside texts is a float.
    let typed_operands = operands.iter().zip(types);
    let columns = typed_operands.filter(|(operand, _)| !matches!(operand, Expr::Literal(..)));
    let decimals = columns.filter_map(|(_, data_type)| digits(data_type.as_ref()?));
    let (whole, scale) = decimals.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))?;
    if known().any(DataType::is_floating) {
        return Some(DataType::Float64);
    }
    Some(decimal_with(whole, scale))
}

/// How many digits a decimal has before and after the point.
fn digits(data_type: &DataType) -> Option<(u8, u8)> {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match data_type {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => {
            let whole = i16::from(*precision) - i16::from(*scale);
            Some((
                u8::try_from(whole).unwrap_or_default(),
                u8::try_from(*scale).unwrap_or_default(),
            ))
        }
        _ => None,
    }
}

/// The largest decimal with at least these digits.
fn decimal_with(whole: u8, scale: u8) -> DataType {
    let room = DECIMAL256_MAX_PRECISION.saturating_sub(scale);
    let whole = whole.max(WHOLE_DIGITS).min(room);
    let scale = DECIMAL256_MAX_PRECISION - whole;
    DataType::Decimal256(
        DECIMAL256_MAX_PRECISION,
        i8::try_from(scale).unwrap_or_default(),
    )
}

/// The function that reads texts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ExactText {
    to: DataType,
    signature: Signature,
}

impl ExactText {
    fn read(&self, texts: &ArrayRef) -> Result<ArrayRef> {
        let texts = arrow_cast::cast(texts, &DataType::LargeUtf8)?;
        let values = texts.as_string::<i64>();
        if let DataType::Decimal256(precision, scale) = &self.to {
            let places = usize::try_from(*scale).unwrap_or_default();
            let numbers = values.iter().map(|text| match text {
                Some(text) => parse_number(text, places).map(Some),
                None => Ok(None),
            });
            let numbers = numbers.collect::<Result<Decimal256Array>>()?;
            return Ok(Arc::new(
                numbers.with_precision_and_scale(*precision, *scale)?,
            ));
        }
        if let DataType::Timestamp(unit, _) = &self.to {
            let mut present = values.iter().flatten();
            if let Some(text) = present.find(|text| has_finer_digits(text, *unit)) {
                let reason = format!("has digits below a {}", unit_name(*unit));
                return Err(unreadable(text, &reason, "TIMESTAMP"));
            }
        }
        if matches!(self.to, DataType::Time64(_)) {
            let mut present = values.iter().flatten();
            if let Some(number) = present.find(|text| is_integer(text)) {
                return Err(not_a_time(number));
            }
        }
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        match cast_with_options(&texts, &self.to, &options) {
            Ok(times) => Ok(times),
            Err(error) => self.read_days(&texts)?.ok_or_else(|| error.into()),
        }
    }

    /// Reads texts of which some are days as dates are written, such as `2024-1-5`. None if one is neither that nor a
    /// timestamp.
    fn read_days(&self, texts: &ArrayRef) -> Result<Option<ArrayRef>> {
        let or_null = CastOptions::default();
        let times = cast_with_options(texts, &self.to, &or_null)?;
        let days = cast_with_options(texts, &DataType::Date32, &or_null)?;
        let midnights = cast_with_options(&days, &self.to, &or_null)?;
        let is_day: BooleanArray = (0..times.len()).map(|at| Some(times.is_null(at))).collect();
        let read = zip(&is_day, &midnights, &times)?;
        Ok((read.null_count() == texts.null_count()).then_some(read))
    }
}

impl ScalarUDFImpl for ExactText {
    fn name(&self) -> &'static str {
        EXACT_TEXT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.first() {
            Some(ColumnarValue::Array(texts)) => self.read(texts).map(ColumnarValue::Array),
            Some(ColumnarValue::Scalar(text)) => {
                let values = self.read(&text.to_array()?)?;
                ScalarValue::try_from_array(&values, 0).map(ColumnarValue::Scalar)
            }
            None => Err(DataFusionError::Internal("no text".to_owned())),
        }
    }
}

/// The number of a text times ten to the power of `scale`.
fn parse_number(text: &str, scale: usize) -> Result<i256> {
    let number = text.trim();
    let digits = number.strip_prefix(['-', '+']).unwrap_or(number);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_number = whole.len() + fraction.len() > 0
        && [whole, fraction]
            .iter()
            .all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
    let whole = whole.trim_start_matches('0');
    let fraction = fraction.trim_end_matches('0');
    let max_whole = usize::from(DECIMAL256_MAX_PRECISION) - scale;
    let fits = whole.len() <= max_whole && fraction.len() <= scale;
    let value = (is_number && fits)
        .then(|| i256::from_string(&format!("0{whole}{fraction:0<scale$}")))
        .flatten();
    let Some(value) = value else {
        let reason = if is_number {
            format!("has more than {max_whole} digits before the point or {scale} after it")
        } else {
            "is not a decimal".to_owned()
        };
        return Err(unreadable(text, &reason, "DOUBLE"));
    };
    Ok(if number.starts_with('-') {
        value.wrapping_neg()
    } else {
        value
    })
}

fn unreadable(text: &str, reason: &str, type_name: &str) -> DataFusionError {
    let shown: String = text.chars().take(MAX_TEXT_CHARS).collect();
    let message = format!(
        "the text {shown:?} {reason}, so it is not compared exactly; cast it, as in CAST(text AS {type_name})"
    );
    DataFusionError::Execution(message)
}

fn unit_name(unit: TimeUnit) -> &'static str {
    if unit == TimeUnit::Nanosecond {
        "nanosecond"
    } else {
        "microsecond"
    }
}
