//! Literals of a predicate at their full precision, whatever the type of the value they are compared with.
//!
//! SQL compares `second_column < TIMESTAMP '… 00:00:00.5'` as points in time and `bigint_column = 0.5` as
//! numbers. DataFusion's coercion would convert a string to the column's own type, and numbers with a
//! decimal point to floats. So [`keep_exact`] casts the literals, and the values they are compared with,
//! to types that lose nothing, before the coercion finds the common type of both sides.
//!
//! Number literals with a decimal point are parsed as decimals. They stay decimals beside integers and
//! decimals, and become floats of 64 bits beside everything else. Texts of columns are read by
//! [`read_texts`]. An expression that has no valid type is no error here: the coercion reports it.

use std::sync::Arc;

use arrow_schema::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::{
    Between, BinaryExpr, Case, Cast, Expr, InList, ScalarFunction, TryCast,
};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, cast, lit};

use super::decimal_literals::{
    MAX_DIGITS, decimal_to_float, negate, normalize_scale, parse_decimal_literal,
};
use super::exact_decimals::{widen_decimals, widen_quotient};
use super::exact_texts::{decimal_beside, read_text, read_texts};
use super::operators::{CONDITIONAL_FUNCTIONS, is_comparison};
use super::quantified::ARRAY_HAS;
use super::rounding::rewrite_rounding;
use super::searched_lists::widen_search;
use super::time_literals::{
    UTC, added_unit, has_nanoseconds, interval_to_duration, is_integer, is_timestamp_literal,
    parse_time_of_day, parse_timestamp, refine_added, refine_beside, refine_bins,
    refine_timestamp_literal, results_in_unit, string_literal, timestamp_in_unit, to_utc,
};

const TIME64_NANOSECOND: DataType = DataType::Time64(TimeUnit::Nanosecond);

/// Rewrites an expression whose number literals were parsed as decimals, so that literals are compared
/// and added exactly. `target` is the type that its value is converted to, if any.
pub(super) fn keep_exact(expr: Expr, schema: &DFSchema, target: Option<&DataType>) -> Result<Expr> {
    let rewritten = expr.transform_up(|node| Ok(Transformed::yes(rewrite_node(node, schema)?)));
    let exact = rewritten?.data;
    Ok(match target {
        Some(target) if target.is_decimal() => {
            widen_integer(keep_digits(exact, target, schema), target, schema)
        }
        Some(DataType::Timestamp(unit, _)) => results_in_unit(exact, *unit),
        _ => decimal_to_float(exact),
    })
}

/// An integer as a decimal of 128 bits where it becomes a narrower one: Arrow drops its upper bits.
fn widen_integer(expr: Expr, target: &DataType, schema: &DFSchema) -> Expr {
    match target {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale)
            if data_type(&expr, schema).is_some_and(|own_type| own_type.is_integer()) =>
        {
            cast(expr, DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale))
        }
        _ => expr,
    }
}

/// A value that becomes an integer or a decimal, which may have more digits than DataFusion leaves a quotient.
fn keep_digits(expr: Expr, to: &DataType, schema: &DFSchema) -> Expr {
    let exact = normalize_scale(expr);
    if to.is_decimal() {
        let places = u8::try_from(decimal_scale(to)).unwrap_or_default();
        widen_quotient(exact, places, schema)
    } else {
        exact
    }
}

/// Rewrites the literals of a node whose operands have been rewritten.
fn rewrite_node(node: Expr, schema: &DFSchema) -> Result<Expr> {
    Ok(match node {
        Expr::BinaryExpr(binary) => rewrite_binary(binary, schema),
        Expr::Negative(inner) => negate(*inner),
        Expr::Cast(Cast { expr, field }) if is_exact(field.data_type()) => {
            let expr = Box::new(keep_digits(*expr, field.data_type(), schema));
            Expr::Cast(Cast { expr, field })
        }
        Expr::TryCast(TryCast { expr, field }) if is_exact(field.data_type()) => {
            let expr = Box::new(keep_digits(*expr, field.data_type(), schema));
            Expr::TryCast(TryCast { expr, field })
        }
        Expr::Case(case) => Expr::Case(rewrite_case(case, schema)),
        Expr::ScalarFunction(call) if CONDITIONAL_FUNCTIONS.contains(&call.func.name()) => {
            let args = unify_values(call.args, schema);
            Expr::ScalarFunction(ScalarFunction { args, ..call })
        }
        Expr::ScalarFunction(call) => {
            if call.func.name() == ARRAY_HAS
                && let Some(args) = widen_search(&call.args, schema)
            {
                return Ok(Expr::ScalarFunction(ScalarFunction { args, ..call }));
            }
            let coerced = Expr::ScalarFunction(call)
                .map_children(|child| Ok(Transformed::yes(coerce_inexact(child, schema))));
            refine_bins(rewrite_rounding(coerced?.data, schema), schema)
        }
        Expr::Between(between) => {
            let mut operands =
                coerce_list(*between.expr, vec![*between.low, *between.high], schema);
            let (high, low) = (operands.pop(), operands.pop());
            let (high, low) = (high.unwrap_or_else(null), low.unwrap_or_else(null));
            let expr = operands.pop().unwrap_or_else(null);
            Expr::Between(Between::new(
                Box::new(expr),
                between.negated,
                Box::new(low),
                Box::new(high),
            ))
        }
        Expr::InList(list) => {
            let mut operands = coerce_list(*list.expr, list.list, schema);
            let values = operands.split_off(1);
            let expr = operands.pop().unwrap_or_else(null);
            Expr::InList(InList::new(Box::new(expr), values, list.negated))
        }
        Expr::IsNull(operand) => Expr::IsNull(Box::new(asked_for_null(*operand))),
        Expr::IsNotNull(operand) => Expr::IsNotNull(Box::new(asked_for_null(*operand))),
        other => {
            other
                .map_children(|child| Ok(Transformed::yes(decimal_to_float(child))))?
                .data
        }
    })
}

/// A value that is only asked for NULL, which must not fail where a comparison with it does not.
fn asked_for_null(operand: Expr) -> Expr {
    decimal_to_float(refine_timestamp_literal(operand))
}

fn rewrite_binary(binary: BinaryExpr, schema: &DFSchema) -> Expr {
    let (left, op, right) = (*binary.left, binary.op, *binary.right);
    let (left, right) = match op {
        op if is_comparison(op) => coerce_comparison(left, right, schema),
        Operator::Plus | Operator::Minus => {
            let (left, right) = coerce_arithmetic(left, right, schema);
            let (left_unit, right_unit) = (added_unit(&right, schema), added_unit(&left, schema));
            (
                refine_added(left, left_unit, schema),
                refine_added(right, right_unit, schema),
            )
        }
        Operator::Multiply if has_decimal_product(&left, &right, schema) => {
            coerce_arithmetic(left, right, schema)
        }
        Operator::Modulo => coerce_arithmetic(left, right, schema),
        Operator::Multiply | Operator::Divide => {
            (coerce_inexact(left, schema), coerce_inexact(right, schema))
        }
        _ => (decimal_to_float(left), decimal_to_float(right)),
    };
    binary_expr(left, op, right)
}

/// Whether a type is an integer or a decimal.
fn is_exact(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_decimal()
}

/// Coerces both sides of a sum: decimal literals stay decimals beside integers and decimals, and become
/// floats beside everything else.
fn coerce_arithmetic(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    let is_exact_side =
        |side: &Expr| data_type(side, schema).is_some_and(|side_type| is_exact(&side_type));
    let (is_left_exact, is_right_exact) = (is_exact_side(&left), is_exact_side(&right));
    let coerce = |side: Expr, exact| {
        if exact {
            normalize_scale(side)
        } else {
            decimal_to_float(side)
        }
    };
    let (left_type, right_type) = (data_type(&left, schema), data_type(&right, schema));
    let (left, right) = (coerce(left, is_right_exact), coerce(right, is_left_exact));
    match (left_type, right_type) {
        // Of timestamps in two zones DataFusion would subtract the local times.
        (Some(DataType::Timestamp(left_unit, a)), Some(DataType::Timestamp(right_unit, b)))
            if a != b =>
        {
            let utc = |unit| DataType::Timestamp(unit, Some(UTC.into()));
            (cast(left, utc(left_unit)), cast(right, utc(right_unit)))
        }
        _ => (left, right),
    }
}

/// Whether there is a decimal type for the product of two decimals.
fn has_decimal_product(left: &Expr, right: &Expr, schema: &DFSchema) -> bool {
    let scale = |side: &Expr| match (side, data_type(side, schema)) {
        // Most products with a literal such as 1e30 would not fit a decimal.
        (
            Expr::Literal(..),
            Some(DataType::Decimal128(_, scale) | DataType::Decimal256(_, scale)),
        ) if scale < 0 => None,
        (_, Some(operand_type)) if operand_type.is_decimal() => Some(decimal_scale(&operand_type)),
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

/// Coerces an operand of an operation without an exact result, such as a division: to a float if it
/// contains a decimal literal, because a decimal result would cut digits.
fn coerce_inexact(expr: Expr, schema: &DFSchema) -> Expr {
    let is_decimal_literal = |node: &Expr| {
        let is_decimal = |value: &ScalarValue| value.data_type().is_decimal();
        Ok(matches!(node, Expr::Literal(value, _) if is_decimal(value)))
    };
    let is_decimal = data_type(&expr, schema).is_some_and(|operand_type| operand_type.is_decimal());
    if matches!(expr, Expr::Literal(..)) {
        decimal_to_float(expr)
    } else if is_decimal && expr.exists(is_decimal_literal).unwrap_or_default() {
        cast(expr, DataType::Float64)
    } else {
        expr
    }
}

/// Coerces values of which one is chosen: decimal literals stay decimals if all values are integers or
/// decimals, decimals beside floats become floats, and timestamps are in UTC if one of them has a zone.
fn unify_values(values: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let type_of = |value: &Expr| data_type(value, schema);
    let is_plain = |value_type: DataType| value_type.is_null() || is_exact(&value_type);
    let all_exact = values
        .iter()
        .all(|value| type_of(value).is_some_and(is_plain));
    let has = |is_kind: fn(&DataType) -> bool| {
        let mut types = values.iter().filter_map(type_of);
        types.any(|value_type| is_kind(&value_type))
    };
    let (has_float, has_integer) = (has(DataType::is_floating), has(DataType::is_integer));
    let is_zoned = |value_type: &DataType| matches!(value_type, DataType::Timestamp(_, Some(_)));
    // Literals in the unit of the other timestamps: those in nanoseconds would end in the year 2262.
    let unit_of = |value: &Expr| match type_of(value) {
        Some(DataType::Timestamp(unit, _)) if !is_timestamp_literal(value) => Some(unit),
        _ => None,
    };
    let unit = values.iter().filter_map(unit_of).max();
    let values: Vec<Expr> = match unit {
        Some(unit) => values
            .into_iter()
            .map(|value| timestamp_in_unit(value, unit))
            .collect(),
        None => values.into_iter().map(refine_timestamp_literal).collect(),
    };
    let zoned_type = values.iter().filter_map(type_of).find(is_zoned);
    let coerce = |value: Expr| match (type_of(&value), &zoned_type) {
        (Some(own_type), Some(zoned_type)) => to_utc(value, &own_type, zoned_type),
        _ if all_exact => normalize_scale(value),
        // DataFusion would round all of them to 15 decimal places.
        (Some(own_type), _) if has_float && own_type.is_decimal() => cast(value, DataType::Float64),
        (Some(DataType::Float16 | DataType::Float32), _) if has_integer => {
            cast(value, DataType::Float64)
        }
        _ => decimal_to_float(value),
    };
    values.into_iter().map(coerce).collect()
}

fn rewrite_case(case: Case, schema: &DFSchema) -> Case {
    let (whens, thens): (Vec<_>, Vec<_>) = case.when_then_expr.into_iter().unzip();
    let has_else = case.else_expr.is_some();
    let results = thens.into_iter().chain(case.else_expr);
    let mut values = unify_values(results.map(|value| *value).collect(), schema);
    let else_value = if has_else { values.pop() } else { None };
    let whens = whens.into_iter().map(|when| *when);
    let (expr, whens): (_, Vec<_>) = match case.expr {
        // Each of them is compared with it.
        Some(expr) => {
            let mut operands = coerce_list(*expr, whens.collect(), schema);
            let whens = operands.split_off(1);
            (operands.pop().map(Box::new), whens)
        }
        None => (None, whens.map(decimal_to_float).collect()),
    };
    let pairs = whens
        .into_iter()
        .map(Box::new)
        .zip(values.into_iter().map(Box::new));
    Case {
        expr,
        when_then_expr: pairs.collect(),
        else_expr: else_value.map(Box::new),
    }
}

fn null() -> Expr {
    lit(ScalarValue::Null)
}

/// Coerces both sides of a comparison.
fn coerce_comparison(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    let (left_unit, right_unit) = (
        timestamp_unit(&left, schema),
        timestamp_unit(&right, schema),
    );
    let (left, right) = (
        refine_beside(left, right_unit),
        refine_beside(right, left_unit),
    );
    let operands = read_texts(vec![left, right], schema);
    let mut operands = widen_decimals(operands, schema).into_iter();
    let (left, right) = (
        operands.next().unwrap_or_else(null),
        operands.next().unwrap_or_else(null),
    );
    let (left_type, right_type) = (data_type(&left, schema), data_type(&right, schema));
    (
        coerce_operand(left, left_type.as_ref(), right_type.as_ref()),
        coerce_operand(right, right_type.as_ref(), left_type.as_ref()),
    )
}

/// The unit of a timestamp that is not a literal.
fn timestamp_unit(expr: &Expr, schema: &DFSchema) -> Option<TimeUnit> {
    match data_type(expr, schema) {
        Some(DataType::Timestamp(unit, _)) if !is_timestamp_literal(expr) => Some(unit),
        _ => None,
    }
}

/// Coerces an expression and the values that it is compared with; the expression comes first.
fn coerce_list(expr: Expr, values: Vec<Expr>, schema: &DFSchema) -> Vec<Expr> {
    let unit = timestamp_unit(&expr, schema);
    let values = values.into_iter().map(|value| refine_beside(value, unit));
    let operands = std::iter::once(expr).chain(values).collect();
    let mut operands = widen_decimals(read_texts(operands, schema), schema).into_iter();
    let expr = operands.next().unwrap_or_else(null);
    let values: Vec<Expr> = operands.collect();
    let expr_type = data_type(&expr, schema);
    let value_types: Vec<_> = values.iter().map(|v| data_type(v, schema)).collect();
    // The type that decides how the expression is read.
    let decisive = value_types.iter().flatten().find(|value_type| {
        matches!(value_type, DataType::Time64(_) | DataType::Timestamp(..))
            || value_type.is_floating()
    });
    let widest = decisive.or_else(|| value_types.iter().flatten().next());
    let expr = coerce_operand(expr, expr_type.as_ref(), widest);
    let expr_type = data_type(&expr, schema);
    let float = decisive.filter(|value_type| value_type.is_floating());
    let coerce = |(value, value_type): (Expr, &Option<DataType>)| {
        // One float among the values makes floats of all decimals: DataFusion would round it to 15 decimal places.
        let is_decimal = value_type.as_ref().is_some_and(DataType::is_decimal);
        let other_type = float.filter(|_| is_decimal).or(expr_type.as_ref());
        coerce_operand(value, value_type.as_ref(), other_type)
    };
    let values: Vec<Expr> = values.into_iter().zip(&value_types).map(coerce).collect();
    std::iter::once(expr).chain(values).collect()
}

fn data_type(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    expr.get_type(schema).ok()
}

/// Coerces an expression that is compared with a value of the type `other_type`.
fn coerce_operand(expr: Expr, own_type: Option<&DataType>, other_type: Option<&DataType>) -> Expr {
    use DataType::{
        Date32, Date64, Duration, Interval, LargeUtf8, Time32, Time64, Timestamp, Utf8, Utf8View,
    };
    let (Some(own_type), Some(other_type)) = (own_type, other_type) else {
        return decimal_to_float(expr);
    };
    if let Expr::Literal(ScalarValue::Decimal128(..) | ScalarValue::Decimal256(..), _) = &expr {
        let is_exact = other_type.is_integer() || other_type.is_decimal();
        return if is_exact {
            normalize_scale(expr)
        } else {
            decimal_to_float(expr)
        };
    }
    match (own_type, other_type) {
        (own_type, other_type) if own_type.is_string() => coerce_string(expr, other_type),
        (Timestamp(..), other_type) => to_utc(expr, own_type, other_type),
        (Interval(_), Duration(unit)) => interval_to_duration(expr, *unit),
        // A string beside a time is read in nanoseconds.
        (Time32(_) | Time64(_), Time32(_) | Time64(_) | Utf8 | LargeUtf8 | Utf8View) => {
            cast(expr, TIME64_NANOSECOND)
        }
        (Date32 | Date64, Timestamp(unit, zone))
            if *unit != TimeUnit::Nanosecond || zone.is_some() =>
        {
            let midnight = Timestamp((*unit).max(TimeUnit::Microsecond), None);
            to_utc(cast(expr, midnight.clone()), &midnight, other_type)
        }
        // These have not all integers of 32 bits.
        (DataType::Float16 | DataType::Float32, other_type) if other_type.is_integer() => {
            cast(expr, DataType::Float64)
        }
        // There is no NaN among decimals.
        (own_type, other_type) if own_type.is_decimal() && other_type.is_floating() => {
            cast(expr, DataType::Float64)
        }
        _ => expr,
    }
}

/// Coerces a literal string that is compared with a value of another type.
fn coerce_string(expr: Expr, other_type: &DataType) -> Expr {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    let Some(literal) = string_literal(&expr) else {
        return expr;
    };
    let parse = |to: &DataType| ScalarValue::from(literal).cast_to(to).ok();
    let value = match other_type {
        // It fails when it is read: the cast takes it for ticks.
        Time32(_) | Time64(_) if is_integer(literal) => return read_text(expr, TIME64_NANOSECOND),
        Time32(_) | Time64(_) => parse(&TIME64_NANOSECOND),
        Date32 | Date64 => parse_time_of_day(literal),
        Timestamp(unit, zone) => {
            let utc_zone = zone.as_ref().map(|_| Arc::from(UTC));
            let units = [*unit, TimeUnit::Microsecond, TimeUnit::Nanosecond];
            let exact = |unit: TimeUnit| parse_timestamp(literal, unit, utc_zone.as_ref());
            let value = units.into_iter().find_map(exact);
            if value.is_none() && has_nanoseconds(literal) {
                // Microseconds would cut it: it fails.
                return read_text(expr, Timestamp(TimeUnit::Nanosecond, utc_zone));
            }
            value
        }
        other_type if other_type.is_decimal() => parse_decimal_literal(literal),
        _ => None,
    };
    match (value, decimal_beside(other_type)) {
        (Some(value), _) => lit(value),
        // The cast to the other type would round it.
        (None, Some(decimal)) => read_text(expr, decimal),
        (None, None) => expr,
    }
}
