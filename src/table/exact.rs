//! Literals of a predicate at their full precision, whatever the type of what they are compared with.
//!
//! SQL compares `second_column < TIMESTAMP '… 00:00:00.5'` as moments and `bigint_column = 0.5` as
//! numbers. DataFusion's coercion would take a string for the column's own type, and numbers with a
//! point for floats; so the literals (and what is compared with them) get types here that lose nothing,
//! before the coercion finds the common type of both sides.

use arrow_array::types::{Decimal128Type, DecimalType};
use arrow_cast::parse::parse_decimal;
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{Between, BinaryExpr, Expr, InList};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, cast, lit};

use super::sql;

/// Digits of the widest decimal that literals are.
const MAX_DIGITS: usize = 38;
const NANOSECOND: DataType = DataType::Time64(TimeUnit::Nanosecond);

/// The expression, as it was parsed with decimals for numbers with a point, with literals that are
/// compared exactly.
pub(super) fn keep_exact(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let exact = expr.transform_up(|node| {
        let node = match node {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if sql::is_comparison(op) => {
                let (left, right) = pair(*left, *right, schema);
                binary_expr(left, op, right)
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right })
                if matches!(op, Operator::Plus | Operator::Minus) =>
            {
                let (left, right) = (float(*left), float(*right));
                let (to_left, to_right) = (resolution(&right), resolution(&left));
                binary_expr(
                    refine(left, to_left, schema),
                    op,
                    refine(right, to_right, schema),
                )
            }
            Expr::Between(between) => {
                let mut all = beside_all(*between.expr, vec![*between.low, *between.high], schema);
                let (high, low) = (all.pop(), all.pop());
                let (high, low) = (high.unwrap_or_else(null), low.unwrap_or_else(null));
                let expr = all.pop().unwrap_or_else(null);
                Expr::Between(Between::new(
                    Box::new(expr),
                    between.negated,
                    Box::new(low),
                    Box::new(high),
                ))
            }
            Expr::InList(list) => {
                let mut all = beside_all(*list.expr, list.list, schema);
                let values = all.split_off(1);
                let expr = all.pop().unwrap_or_else(null);
                Expr::InList(InList::new(Box::new(expr), values, list.negated))
            }
            other => {
                other
                    .map_children(|child| Ok(Transformed::yes(float(child))))?
                    .data
            }
        };
        Ok(Transformed::yes(node))
    });
    exact.map(|exact| float(exact.data))
}

fn null() -> Expr {
    lit(ScalarValue::Null)
}

/// Both sides of a comparison.
fn pair(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    let (of_left, of_right) = (data_type(&left, schema), data_type(&right, schema));
    (
        beside(left, of_left.as_ref(), of_right.as_ref()),
        beside(right, of_right.as_ref(), of_left.as_ref()),
    )
}

/// An expression and the values that it is compared with.
fn beside_all(expr: Expr, values: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let of_expr = data_type(&expr, schema);
    let of_values: Vec<_> = values.iter().map(|v| data_type(v, schema)).collect();
    // The one that says most of how the expression has to be read.
    let widest = of_values
        .iter()
        .flatten()
        .find(|of| matches!(of, DataType::Time64(_) | DataType::Timestamp(..)) || of.is_floating());
    let widest = widest
        .or_else(|| of_values.iter().flatten().next())
        .cloned();
    let mut all = vec![beside(expr, of_expr.as_ref(), widest.as_ref())];
    let values = values.into_iter().zip(&of_values);
    all.extend(values.map(|(value, of)| beside(value, of.as_ref(), of_expr.as_ref())));
    all
}

fn data_type(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

/// What is compared with a value of the type `other`.
fn beside(expr: Expr, own: Option<&DataType>, other: Option<&DataType>) -> Expr {
    use DataType::{Date32, Date64, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View};
    let (Some(own), Some(other)) = (own, other) else {
        return float(expr);
    };
    if let Expr::Literal(ScalarValue::Decimal128(..) | ScalarValue::Decimal256(..), _) = &expr {
        let is_exact = other.is_integer() || other.is_decimal();
        return if is_exact { whole(expr) } else { float(expr) };
    }
    match (own, other) {
        (own, other) if own.is_string() => text(expr, other),
        (Timestamp(..), _) => moment(expr),
        // A string beside it is read in nanoseconds.
        (Time32(_) | Time64(_), Time32(_) | Time64(_) | Utf8 | LargeUtf8 | Utf8View) => {
            cast(expr, NANOSECOND)
        }
        (Date32 | Date64, Timestamp(unit, _)) if *unit != TimeUnit::Nanosecond => {
            cast(expr, Timestamp(TimeUnit::Microsecond, None))
        }
        // As a decimal, a NaN would be none.
        (own, other) if own.is_decimal() && other.is_floating() => cast(expr, DataType::Float64),
        _ => expr,
    }
}

/// A string that is compared with a value of another type.
fn text(expr: Expr, other: &DataType) -> Expr {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    let Some(given) = string_of(&expr) else {
        return expr;
    };
    let read = |to: &DataType| ScalarValue::from(given).cast_to(to).ok();
    let found = match other {
        Time32(_) | Time64(_) => read(&NANOSECOND),
        Date32 | Date64 => {
            let moment = read(&Timestamp(TimeUnit::Nanosecond, None));
            let day = read(&Date32).and_then(|day| day.cast_to(&moment.as_ref()?.data_type()).ok());
            moment.filter(|moment| Some(moment) != day.as_ref())
        }
        Timestamp(_, zone) => {
            let units = [TimeUnit::Nanosecond, TimeUnit::Microsecond];
            let mut units = units.map(|unit| Timestamp(unit, zone.clone())).into_iter();
            units.find_map(|to| read(&to))
        }
        other if other.is_decimal() => decimal_of(given),
        _ => None,
    };
    found.map_or(expr, lit)
}

fn string_of(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::LargeUtf8(Some(text))
            | ScalarValue::Utf8View(Some(text)),
            _,
        ) => Some(text),
        _ => None,
    }
}

/// A number with a point, with all its digits.
fn decimal_of(text: &str) -> Option<ScalarValue> {
    let text = text.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, cents) = digits.split_once('.').unwrap_or((digits, ""));
    let is_plain = format!("{whole}{cents}")
        .bytes()
        .all(|b| b.is_ascii_digit());
    let count = whole.len() + cents.len();
    if !is_plain || count == 0 || count > MAX_DIGITS {
        return None;
    }
    let scale = i8::try_from(cents.len()).ok()?;
    let value = parse_decimal::<Decimal128Type>(text, Decimal128Type::MAX_PRECISION, scale).ok()?;
    let precision = u8::try_from(count).ok()?;
    Some(ScalarValue::Decimal128(Some(value), precision, scale))
}

/// `TIMESTAMP '…'` in a unit that holds it: nanoseconds end in 2262.
fn moment(expr: Expr) -> Expr {
    let Expr::Cast(found) = &expr else {
        return expr;
    };
    let (Some(given), DataType::Timestamp(unit, zone)) =
        (string_of(&found.expr), found.field.data_type())
    else {
        return expr;
    };
    let given = ScalarValue::from(given);
    if *unit != TimeUnit::Nanosecond || given.cast_to(found.field.data_type()).is_ok() {
        return expr;
    }
    let coarser = given.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, zone.clone()));
    coarser.map_or(expr, lit)
}

/// Where an interval is added: the unit that the other side needs, so that nothing of it is cut.
fn resolution(interval: &Expr) -> Option<TimeUnit> {
    use ScalarValue::{IntervalDayTime, IntervalMonthDayNano, IntervalYearMonth};
    match interval {
        Expr::Literal(IntervalMonthDayNano(Some(given)), _) if given.nanoseconds % 1_000 != 0 => {
            Some(TimeUnit::Nanosecond)
        }
        Expr::Literal(IntervalMonthDayNano(_) | IntervalDayTime(_) | IntervalYearMonth(_), _) => {
            Some(TimeUnit::Microsecond)
        }
        Expr::Cast(cast) if matches!(cast.field.data_type(), DataType::Interval(_)) => {
            Some(TimeUnit::Microsecond)
        }
        _ => None,
    }
}

/// A moment or a day to which an interval is added, as a moment in at least this unit.
fn refine(expr: Expr, unit: Option<TimeUnit>, schema: &DFSchema) -> Expr {
    let (Some(unit), Some(own)) = (unit, data_type(&expr, schema)) else {
        return expr;
    };
    match own {
        DataType::Timestamp(coarse, zone) if coarse < unit => {
            cast(expr, DataType::Timestamp(unit, zone))
        }
        DataType::Date32 | DataType::Date64 => cast(expr, DataType::Timestamp(unit, None)),
        _ => expr,
    }
}

/// A decimal literal without a negative scale, which not every kernel knows.
fn whole(expr: Expr) -> Expr {
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
        None => float(expr),
    }
}

/// A decimal literal as the float that is next to it.
fn float(expr: Expr) -> Expr {
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
