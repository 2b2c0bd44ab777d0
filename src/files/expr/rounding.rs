//! Functions that round decimals, whose types DataFusion has too narrow, or knows too late.

use arrow_schema::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion_common::{DFSchema, ScalarValue};
use datafusion_expr::expr::{Cast, Expr, ScalarFunction};
use datafusion_expr::{ExprSchemable, cast, lit};

/// Rewrites a call of `ceil`, `floor`, `trunc` or `round`; other expressions stay as they are.
pub(super) fn rewrite_rounding(expr: Expr, schema: &DFSchema) -> Expr {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, mut args }) => {
            let is_to_integer = matches!(func.name(), "ceil" | "floor" | "trunc");
            if is_to_integer
                && args.len() == 1
                && let Some(arg) = args.pop_if(|arg| is_whole(arg, schema))
            {
                return arg;
            }
            let args = args.into_iter().enumerate();
            let args = args.map(|(at, arg)| match (func.name(), at) {
                ("ceil" | "floor", 0) => add_digit(arg, schema),
                ("round", 1) => to_places(arg),
                _ => arg,
            });
            let args = args.collect();
            Expr::ScalarFunction(ScalarFunction { func, args })
        }
        other => other,
    }
}

/// Whether an expression is a cast of an integer to a float, which has no fraction to cut.
fn is_whole(expr: &Expr, schema: &DFSchema) -> bool {
    let Expr::Cast(Cast { expr, field }) = expr else {
        return false;
    };
    let is_integer = expr.get_type(schema).is_ok_and(|from| from.is_integer());
    is_integer && *field.data_type() == DataType::Float64
}

/// A decimal in a type with a digit more: the whole number above 9.9 has two.
fn add_digit(expr: Expr, schema: &DFSchema) -> Expr {
    match expr.get_type(schema) {
        Ok(DataType::Decimal128(precision, scale)) if precision < DECIMAL128_MAX_PRECISION => {
            cast(expr, DataType::Decimal128(precision + 1, scale))
        }
        _ => expr,
    }
}

/// The number of places as a literal of the type that `round` has. As a cast of a literal it would change the type of the
/// result when it is folded, after what the result is compared with was cast to its type.
fn to_places(expr: Expr) -> Expr {
    let places = match &expr {
        Expr::Literal(ScalarValue::Int64(Some(places)), _) => Some(*places),
        Expr::Negative(inner) => match &**inner {
            Expr::Literal(ScalarValue::Int64(Some(places)), _) => places.checked_neg(),
            _ => None,
        },
        _ => None,
    };
    match places.and_then(|places| i32::try_from(places).ok()) {
        Some(places) => lit(places),
        None => expr,
    }
}
