//! Literals that are decimals: as numbers with a point are parsed.

use arrow_array::types::{Decimal128Type, DecimalType};
use arrow_cast::parse::parse_decimal;
use datafusion_common::ScalarValue;
use datafusion_expr::expr::Expr;
use datafusion_expr::lit;

/// Maximum number of digits of a decimal literal.
pub(super) const MAX_DIGITS: usize = 38;

/// The negative of an expression; that of a decimal literal is one.
pub(super) fn negate(expr: Expr) -> Expr {
    match expr {
        Expr::Literal(ScalarValue::Decimal128(Some(value), precision, scale), _) => {
            lit(ScalarValue::Decimal128(Some(-value), precision, scale))
        }
        Expr::Literal(ScalarValue::Decimal256(Some(value), precision, scale), _) => lit(
            ScalarValue::Decimal256(Some(value.wrapping_neg()), precision, scale),
        ),
        other => Expr::Negative(Box::new(other)),
    }
}

/// Parses a number with all its digits; `None` for other text and for more than [`MAX_DIGITS`].
pub(super) fn parse_decimal_literal(text: &str) -> Option<ScalarValue> {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = format!("{whole}{fraction}")
        .bytes()
        .all(|b| b.is_ascii_digit());
    let digit_count = whole.len() + fraction.len();
    if !is_plain || digit_count == 0 || digit_count > MAX_DIGITS {
        return None;
    }
    let scale = i8::try_from(fraction.len()).ok()?;
    let value = parse_decimal::<Decimal128Type>(text, Decimal128Type::MAX_PRECISION, scale).ok()?;
    let precision = u8::try_from(digit_count).ok()?;
    Some(ScalarValue::Decimal128(Some(value), precision, scale))
}

/// Replaces a negative scale of a decimal literal, because not every kernel supports one.
pub(super) fn normalize_scale(expr: Expr) -> Expr {
    let Expr::Literal(ScalarValue::Decimal128(Some(value), _, scale), _) = &expr else {
        return expr;
    };
    if *scale >= 0 {
        return expr;
    }
    let factor = 10_i128.checked_pow(u32::from(scale.unsigned_abs()));
    let value = factor.and_then(|factor| value.checked_mul(factor));
    let limit = 10_i128.pow(38);
    match value.filter(|value| (-limit < *value) && (*value < limit)) {
        Some(value) => lit(ScalarValue::Decimal128(Some(value), 38, 0)),
        None => decimal_to_float(expr),
    }
}

/// Converts a decimal literal to the nearest float; other expressions stay.
pub(super) fn decimal_to_float(expr: Expr) -> Expr {
    let text = match &expr {
        Expr::Literal(ScalarValue::Decimal128(Some(value), _, scale), _) => {
            format!("{value}e{}", -i16::from(*scale))
        }
        Expr::Literal(ScalarValue::Decimal256(Some(value), _, scale), _) => {
            format!("{value}e{}", -i16::from(*scale))
        }
        _ => return expr,
    };
    text.parse::<f64>().map_or(expr, lit)
}
