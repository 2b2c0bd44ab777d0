//! What DataFusion would evaluate to something else than SQL means, refused when it is planned.

use arrow_schema::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{
    Between, BinaryExpr, Case, Cast, Expr, InList, ScalarFunction, TryCast,
};
use datafusion_expr::{ExprSchemable, Operator};

use super::operators::is_comparison;
use crate::parquet::nested::element_of;

/// Refuses to compare numbers with times, of which the coercion would make days or parts of a second since 1970:
/// `day < 20240101` would be true of every date. `expr` has not been coerced.
pub(super) fn check_times(expr: &Expr, schema: &DFSchema) -> Result<()> {
    let kind_of = |operand: &&Expr| {
        let data_type = operand.get_type(schema).ok()?;
        (data_type.is_temporal() || data_type.is_numeric())
            .then_some((data_type.is_temporal(), data_type))
    };
    expr.apply(|node| {
        for operands in compared_operands(node) {
            let kinds: Vec<_> = operands.iter().filter_map(kind_of).collect();
            let of_kind = |time: bool| kinds.iter().find(|(is_time, _)| *is_time == time);
            if let (Some((_, time)), Some((_, number))) = (of_kind(true), of_kind(false)) {
                let message = format!(
                    "{time} and {number} have no common type; write times as DATE '2026-01-31' or \
                     TIMESTAMP '2026-01-31 12:00:00', or cast one of them"
                );
                return Err(DataFusionError::Plan(message));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The operands of a node that get a common type, in groups.
pub(super) fn compared_operands(node: &Expr) -> Vec<Vec<&Expr>> {
    match node {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
            vec![vec![left, right]]
        }
        Expr::Between(Between {
            expr, low, high, ..
        }) => vec![vec![expr, low, high]],
        Expr::InList(InList { expr, list, .. }) => {
            vec![std::iter::once(expr.as_ref()).chain(list).collect()]
        }
        Expr::Case(Case {
            expr,
            when_then_expr,
            else_expr,
        }) => {
            let branches = || when_then_expr.iter();
            let base = expr.as_deref();
            let compared = base.map(|base| {
                std::iter::once(base)
                    .chain(branches().map(|(when, _)| when.as_ref()))
                    .collect()
            });
            let results = branches()
                .map(|(_, then)| then.as_ref())
                .chain(else_expr.as_deref());
            compared.into_iter().chain([results.collect()]).collect()
        }
        Expr::ScalarFunction(call) => match call.func.name() {
            "coalesce" | "nvl" | "nullif" | "greatest" | "least" => {
                vec![call.args.iter().collect()]
            }
            "nvl2" => vec![call.args.iter().skip(1).collect()],
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Refuses such an expression, whose operands have their common types.
pub(super) fn check_meaning(expr: &Expr, schema: &DFSchema) -> Result<()> {
    expr.apply(|node| match reason_to_refuse(node, schema) {
        Some(reason) => Err(DataFusionError::Plan(reason.to_owned())),
        None => Ok(TreeNodeRecursion::Continue),
    })?;
    Ok(())
}

/// Arrow compares months, then days, then nanoseconds: 25 hours would be less than a day.
const INTERVALS: &str =
    "intervals cannot be compared; compare points in time, as in a > b + INTERVAL '1 day'";
/// Structs and lists have an order in which NULL is the least value, and columns of them no statistics.
const NESTED: &str = "structs, lists and maps have no order; compare their fields";

fn reason_to_refuse(node: &Expr, schema: &DFSchema) -> Option<&'static str> {
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    let is_interval = |expr: &Expr| matches!(type_of(expr), Some(DataType::Interval(_)));
    let is_nested = |expr: &Expr| type_of(expr).is_some_and(|data_type| data_type.is_nested());
    match node {
        Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field }) => {
            reason_of_cast(&type_of(expr)?, field.data_type())
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            op if is_comparison(*op) && (is_interval(left) || is_interval(right)) => {
                Some(INTERVALS)
            }
            Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                (is_nested(left) || is_nested(right)).then_some(NESTED)
            }
            Operator::BitwiseShiftLeft | Operator::BitwiseShiftRight => Some(
                "<< and >> are not supported, since bits are lost; multiply or divide by a power of two",
            ),
            _ => None,
        },
        Expr::Between(Between { expr, .. }) if is_nested(expr) => Some(NESTED),
        Expr::Between(Between { expr, .. }) | Expr::InList(InList { expr, .. }) => {
            is_interval(expr).then_some(INTERVALS)
        }
        Expr::ScalarFunction(call) => reason_of_call(call, schema),
        _ => None,
    }
}

fn reason_of_call(call: &ScalarFunction, schema: &DFSchema) -> Option<&'static str> {
    let type_at = |at: usize| call.args.get(at)?.get_type(schema).ok();
    let mut types = call.args.iter().filter_map(|arg| arg.get_type(schema).ok());
    match call.func.name() {
        "greatest" | "least" => types.find_map(|data_type| match data_type {
            DataType::Interval(_) => Some(INTERVALS),
            data_type => data_type.is_nested().then_some(NESTED),
        }),
        // Arrow gives totals, and cuts fractions of seconds.
        "date_part" if matches!(type_at(1)?, DataType::Duration(_)) => Some(
            "fields of a difference of timestamps are not supported; subtract their epochs, as in \
             extract(epoch FROM a) - extract(epoch FROM b)",
        ),
        // A number that no timestamp has would become the last one, and not-a-number 1970.
        name if name.starts_with("to_timestamp") && type_at(0)?.is_floating() => {
            Some("timestamps of floats are not supported; cast to an integer before")
        }
        // It has the first match, whichever is asked for.
        "regexp_instr" if call.args.len() > 5 && !is_one(&call.args[3]) => Some(
            "regexp_instr has the position of a group in the first match only; use 1 as its fourth argument",
        ),
        _ => None,
    }
}

fn is_one(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(ScalarValue::Int64(Some(1)), _))
}

fn reason_of_cast(from: &DataType, to: &DataType) -> Option<&'static str> {
    if wraps_around(from, to) {
        return Some(
            "a decimal of so many digits cannot be cast to one of so many more decimal places",
        );
    }
    (from.is_nested() && casts_dates(from, to)).then_some(
        "dates of 64 bits within structs or lists are not cast to timestamps; cast the fields",
    )
}

/// Whether dates of 64 bits become timestamps, at any depth: Arrow multiplies them without a look at the result.
fn casts_dates(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Date64, DataType::Timestamp(..)) => true,
        (DataType::Struct(from), DataType::Struct(to)) => {
            from.iter().enumerate().any(|(place, field)| {
                let named = to.find(field.name()).map(|(_, other)| other);
                let other = named.or_else(|| to.get(place));
                other.is_some_and(|other| casts_dates(field.data_type(), other.data_type()))
            })
        }
        (from, to) => match (element_of(from), element_of(to)) {
            (Some(from), Some(to)) => casts_dates(from.data_type(), to.data_type()),
            _ => false,
        },
    }
}

/// Whether Arrow takes a cast for one that cannot overflow, since the sum of the digits itself overflows.
fn wraps_around(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Decimal256(digits, from_scale), DataType::Decimal256(_, to_scale)) => {
            i16::from(*digits) + i16::from(*to_scale) - i16::from(*from_scale) > i16::from(i8::MAX)
        }
        _ => false,
    }
}
