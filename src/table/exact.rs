//! Literals of a predicate at their full precision, whatever the type of what they are compared with.
//!
//! SQL compares `second_column < TIMESTAMP '… 00:00:00.5'` as moments and `bigint_column = 0.5` as
//! numbers. DataFusion's coercion would take a string for the column's own type, and numbers with a
//! point for floats; so the literals (and what is compared with them) get types here that lose nothing,
//! before the coercion finds the common type of both sides.

use std::sync::Arc;

use arrow_array::types::{Decimal128Type, DecimalType};
use arrow_cast::parse::parse_decimal;
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{
    Between, BinaryExpr, Case, Cast, Expr, InList, ScalarFunction, TryCast,
};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, cast, lit};

use super::sql;

/// Digits of the widest decimal that literals are.
const MAX_DIGITS: usize = 38;
/// The zone of moments without one.
const UTC: &str = "+00:00";
const NANOSECOND: DataType = DataType::Time64(TimeUnit::Nanosecond);

/// Functions whose value is one of their arguments.
const CHOOSING: [&str; 5] = ["coalesce", "nvl", "nvl2", "greatest", "least"];

/// The expression, as it was parsed with decimals for numbers with a point, with literals that are
/// compared and added up exactly. `target` is what its value becomes.
pub(super) fn keep_exact(expr: Expr, schema: &DFSchema, target: Option<&DataType>) -> Result<Expr> {
    let exact = expr.transform_up(|node| Ok(Transformed::yes(with_exact(node, schema)?)));
    let exact = exact?.data;
    Ok(match target {
        Some(target) if target.is_decimal() => whole(exact),
        _ => float(exact),
    })
}

/// A node with its literals, those in its operands being done.
fn with_exact(node: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match node {
        Expr::BinaryExpr(binary) => binary_of(binary, schema),
        Expr::Negative(inner) => negative(*inner),
        Expr::Cast(Cast { expr, field }) if is_exact(field.data_type()) => {
            let expr = Box::new(whole(*expr));
            Expr::Cast(Cast { expr, field })
        }
        Expr::TryCast(TryCast { expr, field }) if is_exact(field.data_type()) => {
            let expr = Box::new(whole(*expr));
            Expr::TryCast(TryCast { expr, field })
        }
        Expr::Case(case) => Expr::Case(case_of(case, schema)),
        Expr::ScalarFunction(call) if CHOOSING.contains(&call.func.name()) => {
            let args = alike(call.args, schema);
            Expr::ScalarFunction(ScalarFunction { args, ..call })
        }
        Expr::ScalarFunction(_) => {
            node.map_children(|child| Ok(Transformed::yes(inexact(child, schema))))?
                .data
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
    })
}

fn binary_of(binary: BinaryExpr, schema: &DFSchema) -> Expr {
    let (left, op, right) = (*binary.left, binary.op, *binary.right);
    let (left, right) = match op {
        op if sql::is_comparison(op) => pair(left, right, schema),
        Operator::Plus | Operator::Minus => {
            let (left, right) = operands(left, right, schema);
            let (to_left, to_right) = (resolution(&right), resolution(&left));
            (
                refine(left, to_left, schema),
                refine(right, to_right, schema),
            )
        }
        Operator::Multiply if has_product(&left, &right, schema) => operands(left, right, schema),
        Operator::Modulo => operands(left, right, schema),
        Operator::Multiply | Operator::Divide => (inexact(left, schema), inexact(right, schema)),
        _ => (float(left), float(right)),
    };
    binary_expr(left, op, right)
}

/// Whether numbers of a type are those that decimals are, and no others.
fn is_exact(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_decimal()
}

/// Both sides of a sum: numbers with a point are decimals beside integers and decimals, and floats beside
/// all else.
fn operands(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    let is_beside = |side: &Expr| data_type(side, schema).is_some_and(|of| is_exact(&of));
    let (by_left, by_right) = (is_beside(&left), is_beside(&right));
    let fitted = |side: Expr, exact| if exact { whole(side) } else { float(side) };
    let (of_left, of_right) = (data_type(&left, schema), data_type(&right, schema));
    let (left, right) = (fitted(left, by_right), fitted(right, by_left));
    match (of_left, of_right) {
        // Of two zones DataFusion would take the clocks' difference.
        (Some(DataType::Timestamp(one, a)), Some(DataType::Timestamp(other, b))) if a != b => {
            let utc = |unit| DataType::Timestamp(unit, Some(UTC.into()));
            (cast(left, utc(one)), cast(right, utc(other)))
        }
        _ => (left, right),
    }
}

/// Whether a product of decimals has a type.
fn has_product(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let scale = |side: &Expr| match (side, data_type(side, schema)) {
        // Of 1e30 as a decimal most products would not fit.
        (
            Expr::Literal(..),
            Some(DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale)),
        ) if scale < 0 => None,
        (_, Some(of)) if of.is_decimal() => Some(decimal_scale(&of)),
        _ => Some(0),
    };
    let scales = scale(left).zip(scale(right));
    scales.is_some_and(|(left, right)| left + right <= MAX_DIGITS)
}

fn decimal_scale(data_type: &DataType) -> usize {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    match data_type {
        Decimal32(_, scale) | Decimal64(_, scale) | Decimal128(_, scale) | Decimal256(_, scale) => {
            usize::try_from(*scale).unwrap_or_default()
        }
        _ => 0,
    }
}

/// An operand of what has no exact value, such as a quotient: a float where a number with a point is
/// in it, whose digits a decimal would cut.
fn inexact(expr: Expr, schema: &DFSchema) -> Expr {
    let is_point = |node: &Expr| {
        let is_decimal = |value: &ScalarValue| value.data_type().is_decimal();
        Ok(matches!(node, Expr::Literal(value, _) if is_decimal(value)))
    };
    let is_decimal = data_type(&expr, schema).is_some_and(|of| of.is_decimal());
    if matches!(expr, Expr::Literal(..)) {
        float(expr)
    } else if is_decimal && expr.exists(is_point).unwrap_or_default() {
        cast(expr, DataType::Float64)
    } else {
        expr
    }
}

fn negative(expr: Expr) -> Expr {
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

/// Values of which one is chosen: numbers with a point are decimals where the others are none but
/// integers and decimals, and moments are in UTC where one has a zone.
fn alike(values: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let of = |value: &Expr| data_type(value, schema);
    let is_plain = |of: DataType| of.is_null() || is_exact(&of);
    let exact = values.iter().all(|value| of(value).is_some_and(is_plain));
    let is_zoned = |of: &DataType| matches!(of, DataType::Timestamp(_, Some(_)));
    let zoned = values.iter().filter_map(of).find(is_zoned);
    let fitted = |value: Expr| match (of(&value), &zoned) {
        (Some(own), Some(zoned)) => in_utc(value, &own, zoned),
        _ if exact => whole(value),
        _ => float(value),
    };
    values.into_iter().map(fitted).collect()
}

fn case_of(case: Case, schema: &DFSchema) -> Case {
    let (whens, thens): (Vec<_>, Vec<_>) = case.when_then_expr.into_iter().unzip();
    let has_else = case.else_expr.is_some();
    let values = thens.into_iter().chain(case.else_expr);
    let mut values = alike(values.map(|value| *value).collect(), schema);
    let otherwise = if has_else { values.pop() } else { None };
    let pairs = whens.into_iter().zip(values);
    Case {
        expr: case.expr.map(|expr| Box::new(float(*expr))),
        when_then_expr: pairs
            .map(|(when, then)| (Box::new(float(*when)), Box::new(then)))
            .collect(),
        else_expr: otherwise.map(Box::new),
    }
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
        (Timestamp(..), other) => in_utc(moment(expr), own, other),
        // A string beside it is read in nanoseconds.
        (Time32(_) | Time64(_), Time32(_) | Time64(_) | Utf8 | LargeUtf8 | Utf8View) => {
            cast(expr, NANOSECOND)
        }
        (Date32 | Date64, Timestamp(unit, zone))
            if *unit != TimeUnit::Nanosecond || zone.is_some() =>
        {
            let midnight = Timestamp((*unit).max(TimeUnit::Microsecond), None);
            in_utc(cast(expr, midnight.clone()), &midnight, other)
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
        return match other {
            Timestamp(unit, Some(_)) => cast(expr, Timestamp(*unit, Some(UTC.into()))),
            _ => expr,
        };
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
            let zone = zone.as_ref().map(|_| Arc::from(UTC));
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

/// A moment without a zone that is beside one with a zone: it is one of UTC, as casts have it.
fn in_utc(expr: Expr, own: &DataType, other: &DataType) -> Expr {
    match (own, other) {
        (DataType::Timestamp(unit, None), DataType::Timestamp(_, Some(_))) => {
            // What is too late for nanoseconds is a literal of microseconds.
            let unit = match &expr {
                Expr::Literal(value, _) => match value.data_type() {
                    DataType::Timestamp(unit, _) => unit,
                    _ => *unit,
                },
                _ => *unit,
            };
            cast(expr, DataType::Timestamp(unit, Some(UTC.into())))
        }
        _ => expr,
    }
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
