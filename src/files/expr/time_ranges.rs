//! BETWEEN and IN of timestamps, as comparisons that have a unit each.
//!
//! All values of a BETWEEN or an IN get one type. Beside one of nanoseconds all would become nanoseconds, and those
//! after the year 2262 would fail.

use arrow_schema::{DataType, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::{Between, BinaryExpr, Expr, InList};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, lit};

use super::operators::{check_copies, combine_terms, is_comparison};
use super::simplify::constant_unless_null;
use super::time_literals::{
    cut_far_literal, has_nanoseconds, is_timestamp_literal, refine_beside,
    refine_timestamp_literal, string_literal,
};

/// Splits every BETWEEN and IN of timestamps of several units. Its literals have not been coerced.
pub(super) fn split_ranges(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let rewritten = expr.transform_up(|node| match node {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            Ok(Transformed::yes(compare(*left, op, *right, schema)))
        }
        Expr::Between(between) if has_several_units(&between, schema) => {
            split_between(between, schema).map(Transformed::yes)
        }
        Expr::InList(list) => split_list(list, schema).map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// Compares two values. A literal between two microseconds, which has no nanoseconds, becomes the first of them.
fn compare(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Expr {
    let is_time = |value: &Expr| {
        let data_type = value.get_type(schema);
        matches!(
            data_type,
            Ok(DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
        )
    };
    let (value, compared, literal) = match (cut_far_literal(&left), cut_far_literal(&right)) {
        (None, Some(literal)) => (&left, Some(op), literal),
        (Some(literal), None) => (&right, op.swap(), literal),
        _ => return binary_expr(left, op, right),
    };
    let Some(compared) = compared.filter(|_| is_time(value)) else {
        return binary_expr(left, op, right);
    };
    match compared {
        Operator::Lt | Operator::LtEq => binary_expr(value.clone(), Operator::LtEq, literal),
        Operator::Gt | Operator::GtEq => binary_expr(value.clone(), Operator::Gt, literal),
        Operator::Eq => constant_unless_null(value, false),
        Operator::NotEq => constant_unless_null(value, true),
        Operator::IsDistinctFrom => lit(true),
        Operator::IsNotDistinctFrom => lit(false),
        _ => binary_expr(left, op, right),
    }
}

/// Whether the type of an expression is the one that it will be compared in: that of others is known when their literals
/// have been coerced.
fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Column(_) => true,
        Expr::ScalarFunction(call) if call.func.name() == "get_field" => {
            call.args.first().is_some_and(is_column)
        }
        _ => false,
    }
}

/// Whether a value keeps its meaning in whatever group it is compared. One time makes all texts beside it times, so texts
/// that are not literals need it.
fn stands_alone(value: &Expr, schema: &DFSchema) -> bool {
    string_literal(value).is_some()
        || matches!(
            value.get_type(schema),
            Ok(DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 | DataType::Null)
        )
}

fn has_several_units(between: &Between, schema: &DFSchema) -> bool {
    let operands = [&between.expr, &between.low, &between.high];
    if !is_column(&between.expr) || !operands.iter().all(|operand| stands_alone(operand, schema)) {
        return false;
    }
    let type_of = |operand: &Expr| {
        let refined = || refine_timestamp_literal(operand.clone());
        let exact = cut_far_literal(operand).unwrap_or_else(refined);
        exact.get_type(schema).ok()
    };
    let types = operands.iter().filter_map(|operand| type_of(operand));
    let types: Vec<DataType> = types.collect();
    let has_far_literal = operands
        .iter()
        .any(|operand| cut_far_literal(operand).is_some());
    let is_timestamp = |data_type: &DataType| matches!(data_type, DataType::Timestamp(..));
    types.iter().any(is_timestamp)
        && (has_far_literal || types.iter().any(|other| types.first() != Some(other)))
}

fn split_between(between: Between, schema: &DFSchema) -> Result<Expr> {
    check_copies(&between.expr, 2, "BETWEEN")?;
    let (low_op, op, high_op) = if between.negated {
        (Operator::Lt, Operator::Or, Operator::Gt)
    } else {
        (Operator::GtEq, Operator::And, Operator::LtEq)
    };
    let low = compare(between.expr.as_ref().clone(), low_op, *between.low, schema);
    let high = compare(*between.expr, high_op, *between.high, schema);
    Ok(binary_expr(low, op, high))
}

/// One IN for the literals of each unit, and one for the other values of it. Literals that no value equals are left
/// out.
fn split_list(mut list: InList, schema: &DFSchema) -> Result<Expr> {
    let unit = match list.expr.get_type(schema) {
        Ok(DataType::Timestamp(unit, _)) => Some(unit),
        Ok(DataType::Date32 | DataType::Date64) => None,
        _ => return Ok(Expr::InList(list)),
    };
    let unit = unit.filter(|_| is_column(&list.expr));
    list.list.retain(|value| !is_unequal(value, unit));
    if list.list.is_empty() {
        return Ok(constant_unless_null(&list.expr, list.negated));
    }
    let is_split = list.list.len() > 1 && list.list.iter().all(|value| stands_alone(value, schema));
    let Some(unit) = unit.filter(|_| is_split) else {
        return Ok(Expr::InList(list));
    };
    let mut groups: Vec<(Kind, Vec<Expr>)> = Vec::new();
    for value in list.list {
        let kind = kind_of(&value, unit, schema);
        match groups.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, values)) => values.push(value),
            None => groups.push((kind, vec![value])),
        }
    }
    if groups.len() > 1 {
        check_copies(&list.expr, groups.len(), "IN")?;
    }
    let op = if list.negated {
        Operator::And
    } else {
        Operator::Or
    };
    let terms = groups
        .into_iter()
        .map(|(_, values)| Expr::InList(InList::new(list.expr.clone(), values, list.negated)));
    Ok(combine_terms(terms.collect(), op))
}

/// Whether a value is a literal that no timestamp of this unit, or no date, equals.
fn is_unequal(value: &Expr, unit: Option<TimeUnit>) -> bool {
    let is_beyond_nanoseconds = || {
        is_timestamp_literal(value)
            && matches!(refine_timestamp_literal(value.clone()), Expr::Literal(..))
    };
    let is_beyond_unit = unit == Some(TimeUnit::Nanosecond) && is_beyond_nanoseconds();
    is_beyond_unit || cut_far_literal(value).is_some()
}

/// Whether a value is a literal, and the unit in which it is compared.
type Kind = (bool, Option<TimeUnit>);

/// The kind of a value beside timestamps of `unit`.
fn kind_of(value: &Expr, unit: TimeUnit, schema: &DFSchema) -> Kind {
    if let Some(text) = string_literal(value) {
        let needs_nanoseconds = unit == TimeUnit::Nanosecond || has_nanoseconds(text);
        let text_unit = if needs_nanoseconds {
            TimeUnit::Nanosecond
        } else {
            TimeUnit::Microsecond
        };
        return (true, Some(text_unit));
    }
    let refined = refine_beside(value.clone(), Some(unit));
    if let Expr::Literal(value, _) = &refined
        && value.is_null()
    {
        return (true, Some(unit));
    }
    let is_literal = matches!(refined, Expr::Literal(..)) || is_timestamp_literal(&refined);
    match refined.get_type(schema) {
        Ok(DataType::Timestamp(unit, _)) => (is_literal, Some(unit)),
        _ => (is_literal, None),
    }
}
