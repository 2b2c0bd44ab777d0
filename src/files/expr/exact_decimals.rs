//! Decimals that are compared with decimals or integers, where both together have more than 38 digits, and quotients that
//! are compared or become decimals of another type.
//!
//! DataFusion cuts the common type at 38 digits, so that a number with more digits before the point is an error. And it
//! cuts a quotient after four digits more than the dividend has. A decimal of 256 bits has up to 76.

use arrow_schema::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType};
use datafusion_common::DFSchema;
use datafusion_expr::expr::{BinaryExpr, Expr};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, cast};

/// How many digits after the point a dividend gets at least, if there is room for them; its quotient has four more.
const MORE_DIGITS: u8 = 16;
/// The most digits after the point of a dividend. It leaves room for 38 before that of a value beside the quotient.
const MAX_DIVIDEND_SCALE: u8 = 34;
/// How many digits more than the dividend a quotient has.
const QUOTIENT_DIGITS: u8 = 4;

/// Casts the values that are compared with each other to a type with the digits of all, if they need one of 256 bits, and
/// those that are divided.
pub(super) fn widen_decimals(operands: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let is_float = |operand: &Expr| operand.get_type(schema).is_ok_and(|own| own.is_floating());
    if operands.iter().any(is_float) {
        // A quotient becomes a float, too: with more digits than a float has, not always the nearest one.
        return operands;
    }
    let operands = operands.into_iter();
    let operands: Vec<Expr> = operands
        .map(|operand| widen_quotient(operand, 0, schema))
        .collect();
    let Some(wide) = wide_type(&operands, schema) else {
        return operands;
    };
    let widen = |operand: Expr| match operand.get_type(schema) {
        Ok(own_type) if own_type == wide => operand,
        _ => cast(operand, wide.clone()),
    };
    operands.into_iter().map(widen).collect()
}

/// The type of 256 bits that the values need; `None` if they need none, or have no type with all digits.
fn wide_type(operands: &[Expr], schema: &DFSchema) -> Option<DataType> {
    let literals = operands
        .iter()
        .filter(|operand| matches!(operand, Expr::Literal(..)));
    // A literal is compared in the type of a column.
    if operands.len() - literals.count() < 2 {
        return None;
    }
    let types = operands.iter().map(|operand| operand.get_type(schema).ok());
    let common = common_decimal(&types.collect::<Option<Vec<_>>>()?);
    common.filter(|common| matches!(common, DataType::Decimal256(..)))
}

/// The decimal with the digits of all types, which are integers, decimals or NULL; `None` if they have too many.
pub(super) fn common_decimal(types: &[DataType]) -> Option<DataType> {
    let (mut whole, mut scale) = (0_u8, 0_u8);
    for data_type in types.iter().filter(|data_type| !data_type.is_null()) {
        let (own_whole, own_scale) = digits(data_type)?;
        (whole, scale) = (whole.max(own_whole), scale.max(own_scale));
    }
    let (precision, scale) = ((whole + scale).max(1), i8::try_from(scale).ok()?);
    if precision <= DECIMAL128_MAX_PRECISION {
        return Some(DataType::Decimal128(precision, scale));
    }
    (precision <= DECIMAL256_MAX_PRECISION).then_some(DataType::Decimal256(precision, scale))
}

/// A quotient of decimals with more digits after the point, by which it can be rounded to so many places; other
/// expressions as they are.
pub(super) fn widen_quotient(expr: Expr, places: u8, schema: &DFSchema) -> Expr {
    match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Divide,
            right,
        }) => match divided_types(&left, &right, places, schema) {
            Some((dividend, divisor)) => binary_expr(
                cast(*left, dividend),
                Operator::Divide,
                cast(*right, divisor),
            ),
            None => binary_expr(*left, Operator::Divide, *right),
        },
        other => other,
    }
}

/// The types in which values are divided; `None` if one is neither a decimal nor an integer, if both are integers, or if
/// they have too many digits for more.
fn divided_types(
    dividend: &Expr,
    divisor: &Expr,
    places: u8,
    schema: &DFSchema,
) -> Option<(DataType, DataType)> {
    let (own_type, other_type) = (
        dividend.get_type(schema).ok()?,
        divisor.get_type(schema).ok()?,
    );
    let (whole, scale) = digits(&own_type)?;
    let (other_whole, other_scale) = digits(&other_type)?;
    if own_type.is_integer() && other_type.is_integer() {
        return None;
    }
    // A quotient has as many digits before the point as a dividend of these.
    let quotient_whole = whole + other_scale;
    if quotient_whole > DECIMAL128_MAX_PRECISION {
        return None;
    }
    let room = DECIMAL256_MAX_PRECISION - quotient_whole - QUOTIENT_DIGITS;
    let more = (scale + MORE_DIGITS).min(MAX_DIVIDEND_SCALE);
    let needed = (places + 1).saturating_sub(QUOTIENT_DIGITS);
    let wide_scale = more.max(needed).min(room);
    if wide_scale <= scale {
        return None;
    }
    let decimal = |whole: u8, scale: u8| {
        let signed_scale = i8::try_from(scale).ok()?;
        Some(DataType::Decimal256(whole + scale, signed_scale))
    };
    Some((
        decimal(whole, wide_scale)?,
        decimal(other_whole, other_scale)?,
    ))
}

/// How many digits an integer or a decimal has before and after the point.
fn digits(data_type: &DataType) -> Option<(u8, u8)> {
    use DataType::{
        Decimal32, Decimal64, Decimal128, Decimal256, Int8, Int16, Int32, Int64, UInt8, UInt16,
        UInt32, UInt64,
    };
    match data_type {
        Int8 | UInt8 => Some((3, 0)),
        Int16 | UInt16 => Some((5, 0)),
        Int32 | UInt32 => Some((10, 0)),
        Int64 | UInt64 => Some((20, 0)),
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => {
            let scale = u8::try_from(*scale).ok()?;
            Some((precision.checked_sub(scale)?, scale))
        }
        _ => None,
    }
}
