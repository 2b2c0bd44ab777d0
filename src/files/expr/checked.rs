//! Values of which DataFusion does not look whether their type holds them: an error in place of another value.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{ArrowError, DECIMAL128_MAX_PRECISION, DataType, Schema};
use arrow_select::dictionary::garbage_collect_any_dictionary;
use arrow_select::nullif::nullif;
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::expressions::{CastExpr, TryCastExpr};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::exact_texts::is_text;
use super::forward::{forward, map_values};
use super::operators::as_cast;
use super::time_literals::{is_integer, not_a_time};
use crate::parquet::types::find_overflow;

/// How values are checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Check {
    /// Decimals have no more digits than their type.
    Digits,
    /// Floats become narrower ones of this type, and finite ones stay finite.
    Narrow(DataType),
    /// As [`Self::Narrow`], with NULL in place of an error.
    NarrowOrNull(DataType),
    /// Integers become floats that have all their digits.
    Whole,
    /// Dictionaries have no values but those of their rows: Arrow casts them all.
    UsedValues,
    /// Texts that are times of day, and no numbers.
    TimeText {
        /// Whether a number is NULL; otherwise it is an error.
        or_null: bool,
    },
}

/// An expression whose values are checked.
#[derive(Debug, Clone)]
pub(super) struct CheckedExpr {
    inner: Arc<dyn PhysicalExpr>,
    check: Check,
}

impl PartialEq for CheckedExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.as_ref() == other.inner.as_ref() && self.check == other.check
    }
}

impl Eq for CheckedExpr {}

impl Hash for CheckedExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
        self.check.hash(state);
    }
}

impl CheckedExpr {
    fn wrap(inner: Arc<dyn PhysicalExpr>, check: Check) -> Arc<dyn PhysicalExpr> {
        Arc::new(Self { inner, check })
    }

    /// The result of arithmetic: that of decimals may have a digit more than the type.
    pub(super) fn arithmetic(
        expr: Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(match expr.data_type(input)? {
            DataType::Decimal128(38, _) | DataType::Decimal256(76, _) => {
                Self::wrap(expr, Check::Digits)
            }
            _ => expr,
        })
    }

    /// Replaces casts of values that the other type may not have, and functions that return an integer as it is; `None`
    /// for other expressions.
    pub(super) fn try_replace(
        expr: &Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if let Some((inner, to, or_null)) = as_cast(expr) {
            return Self::replace_cast(expr, (inner, to, or_null), input);
        }
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
            return Ok(None);
        };
        if !matches!(call.fun().name(), "ceil" | "floor" | "trunc") {
            return Ok(None);
        }
        let Some((inner, DataType::Float64, false)) = call.args().first().and_then(as_cast) else {
            return Ok(None);
        };
        if !matches!(inner.data_type(input)?, DataType::Int64 | DataType::UInt64) {
            return Ok(None);
        }
        let mut args = call.args().to_vec();
        args[0] = Self::wrap(Arc::clone(inner), Check::Whole);
        Arc::clone(expr).with_new_children(args).map(Some)
    }

    fn replace_cast(
        expr: &Arc<dyn PhysicalExpr>,
        (inner, to, or_null): (&Arc<dyn PhysicalExpr>, &DataType, bool),
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        use DataType::{
            Decimal32, Decimal64, Decimal128, Float16, Float32, Float64, Time32, Time64,
        };
        let from = inner.data_type(input)?;
        let is_of_values = !or_null && casts_values(&from, to);
        let inner = if is_of_values {
            Self::wrap(Arc::clone(inner), Check::UsedValues)
        } else {
            Arc::clone(inner)
        };
        Ok(match (from, to) {
            (Float64, Float16 | Float32) | (Float32, Float16) => {
                let to = to.clone();
                let check = if or_null {
                    Check::NarrowOrNull(to)
                } else {
                    Check::Narrow(to)
                };
                Some(Self::wrap(inner, check))
            }
            // Arrow drops the upper bits of the integer.
            (from, Decimal32(_, scale) | Decimal64(_, scale)) if from.is_integer() => {
                let wide = Decimal128(DECIMAL128_MAX_PRECISION, *scale);
                let wide = Arc::new(CastExpr::new(inner, wide, None));
                let narrow: Arc<dyn PhysicalExpr> = if or_null {
                    Arc::new(TryCastExpr::new(wide, to.clone()))
                } else {
                    Arc::new(CastExpr::new(wide, to.clone(), None))
                };
                Some(narrow)
            }
            // Arrow reads an integer as ticks since midnight.
            (from, Time32(_) | Time64(_)) if is_text(&from) => {
                let text = Self::wrap(inner, Check::TimeText { or_null });
                Some(Arc::clone(expr).with_new_children(vec![text])?)
            }
            _ if is_of_values => Some(Arc::clone(expr).with_new_children(vec![inner])?),
            _ => None,
        })
    }
}

impl Check {
    fn apply(&self, values: ArrayRef) -> Result<ArrayRef> {
        match self {
            Self::Digits => {
                check_digits(&values)?;
                Ok(values)
            }
            Self::Narrow(to) => narrow(&values, to),
            Self::NarrowOrNull(to) => narrow_or_null(&values, to),
            Self::Whole => {
                if let Some(number) = find_long_number(&values) {
                    let message = format!(
                        "{number} has more digits than a float; ceil, floor and trunc of an integer are the integer \
                         itself"
                    );
                    return Err(DataFusionError::Execution(message));
                }
                Ok(arrow_cast::cast(&values, &DataType::Float64)?)
            }
            Self::UsedValues => {
                let dictionary = values.as_any_dictionary_opt();
                let used = dictionary.map(garbage_collect_any_dictionary);
                Ok(used.transpose()?.unwrap_or(values))
            }
            Self::TimeText { or_null } => without_integers(values, *or_null),
        }
    }
}

/// Whether a cast of a dictionary is one of its values, also of those that no row has.
fn casts_values(from: &DataType, to: &DataType) -> bool {
    let DataType::Dictionary(_, values) = from else {
        return false;
    };
    let to = match to {
        DataType::Dictionary(_, others) => others.as_ref(),
        other => other,
    };
    let are_texts = values.is_string() && to.is_string();
    values.as_ref() != to && !are_texts
}

/// Texts of which none is an integer: those are null, or an error.
fn without_integers(values: ArrayRef, or_null: bool) -> Result<ArrayRef> {
    let texts = arrow_cast::cast(&values, &DataType::LargeUtf8)?;
    let texts = texts.as_string::<i64>();
    let Some(number) = texts.iter().flatten().find(|text| is_integer(text)) else {
        return Ok(values);
    };
    if !or_null {
        return Err(not_a_time(number));
    }
    let is_number = texts.iter().map(|text| Some(text.is_some_and(is_integer)));
    Ok(nullif(&values, &is_number.collect::<BooleanArray>())?)
}

/// An integer that no float of 64 bits is equal to.
fn find_long_number(values: &ArrayRef) -> Option<String> {
    let is_long = |number: u64| {
        let outside = number.leading_zeros() + number.trailing_zeros();
        u64::BITS.saturating_sub(outside) > f64::MANTISSA_DIGITS
    };
    if let Some(numbers) = values.as_primitive_opt::<Int64Type>() {
        let mut numbers = numbers.iter().flatten();
        let long = numbers.find(|number| is_long(number.unsigned_abs()));
        return long.map(|number| number.to_string());
    }
    let mut numbers = values.as_primitive_opt::<UInt64Type>()?.iter().flatten();
    let long = numbers.find(|number| is_long(*number));
    long.map(|number| number.to_string())
}

fn check_digits(values: &ArrayRef) -> std::result::Result<(), ArrowError> {
    match values.data_type() {
        DataType::Decimal128(digits, _) => {
            let values = values.as_primitive::<Decimal128Type>();
            values.validate_decimal_precision(*digits)
        }
        DataType::Decimal256(digits, _) => {
            let values = values.as_primitive::<Decimal256Type>();
            values.validate_decimal_precision(*digits)
        }
        _ => Ok(()),
    }
}

fn narrow(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let narrowed = arrow_cast::cast(values, to)?;
    match find_overflow(values, &narrowed)? {
        Some(value) => {
            let message = format!("{value} is beyond the range of {to}");
            Err(DataFusionError::Execution(message))
        }
        None => Ok(narrowed),
    }
}

fn narrow_or_null(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let narrowed = arrow_cast::cast(values, to)?;
    if find_overflow(values, &narrowed)?.is_none() {
        return Ok(narrowed);
    }
    let wide = |values: &ArrayRef| arrow_cast::cast(values, &DataType::Float64);
    let (before, after) = (wide(values)?, wide(&narrowed)?);
    let before = before.as_primitive::<Float64Type>().iter();
    let pairs = before.zip(after.as_primitive::<Float64Type>());
    let is_beyond = pairs.map(|pair| match pair {
        (Some(before), Some(after)) => Some(before.is_finite() && after.is_infinite()),
        _ => Some(false),
    });
    Ok(nullif(&narrowed, &is_beyond.collect::<BooleanArray>())?)
}

impl PhysicalExpr for CheckedExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        match &self.check {
            Check::Narrow(to) | Check::NarrowOrNull(to) => Ok(to.clone()),
            Check::Whole => Ok(DataType::Float64),
            Check::Digits | Check::UsedValues | Check::TimeText { .. } => {
                self.inner.data_type(input)
            }
        }
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        let or_null = matches!(
            self.check,
            Check::NarrowOrNull(_) | Check::TimeText { or_null: true }
        );
        Ok(or_null || self.inner.nullable(input)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let values = self.inner.evaluate(batch)?;
        map_values(values, |values| self.check.apply(values))
    }

    forward!(child inner);
    forward!(text inner);
}

forward!(Display for CheckedExpr, inner);
