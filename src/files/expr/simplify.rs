//! Simplifies predicates before they are evaluated, and finds what statistics can decide.
//!
//! [`simplify`] does only rewrites that hold for every value: constants are evaluated once, as a row would
//! evaluate them; NOT moves inwards by the rules of three-valued logic; and a comparison such as
//! `CAST(column AS wider) < literal` becomes `column < literal` if the cast keeps every value and the
//! order of values. A literal between two values of the column is rounded to the side that keeps the
//! comparison's meaning.
//! A constant that cannot be evaluated stays, and is an error only if a row needs it.
//!
//! [`to_prunable`] weakens a predicate to what the bounds of columns can decide.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema};
use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::expr::{Between, BinaryExpr, Expr, InList, Like};
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{ExprSchemable, Operator, binary_expr, lit};
use datafusion_physical_expr::create_physical_expr;

use super::lossless_cast::{LosslessCast, ValuePosition, is_utc, position_beyond};
use super::operators::is_comparison;
use super::semantics::apply_sql_semantics;
use super::widen::PLAIN_VALUES;

/// DataFusion compares each value of a list with each container: longer ones are searched.
const MAX_IN_LIST_VALUES: usize = 20;

/// Rewrites a coerced expression to a form that is faster to evaluate and that statistics can decide.
pub(super) fn simplify(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let with_folds = expr.transform_up(|node| Ok(Transformed::yes(fold(node))))?;
    let normalized = push_not(with_folds.data, false);
    let unwrapped =
        normalized.transform_up(|node| Ok(Transformed::yes(unwrap_casts(node, schema))))?;
    Ok(unwrapped.data)
}

/// Compares timestamps and dates with constants in their own units, as [`simplify`] does; as nanoseconds those after
/// the year 2262 would fail. The rest of the expression stays.
pub(super) fn compare_times(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    let rewritten = expr.transform_up(|node| {
        if is_constant(&node) {
            let is_time = type_of(&node).is_some_and(|data_type| data_type.is_temporal());
            return Ok(Transformed::yes(if is_time { fold(node) } else { node }));
        }
        let operands: Vec<&Expr> = match &node {
            Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![left, right],
            Expr::InList(InList { expr, .. }) | Expr::IsNull(expr) | Expr::IsNotNull(expr) => {
                vec![expr]
            }
            _ => Vec::new(),
        };
        let casts_time = operands.iter().any(|operand| match operand {
            Expr::Cast(cast) => matches!(
                type_of(&cast.expr),
                Some(DataType::Timestamp(..) | DataType::Date32 | DataType::Date64)
            ),
            _ => false,
        });
        Ok(Transformed::yes(if casts_time {
            unwrap_casts(node, schema)
        } else {
            node
        }))
    });
    rewritten.map(|rewritten| rewritten.data)
}

/// Replaces an expression whose operands are constants by its value. One that cannot be evaluated stays:
/// perhaps no row needs it.
fn fold(expr: Expr) -> Expr {
    if is_constant(&expr) {
        evaluate(&expr).map_or(expr, lit)
    } else {
        expr
    }
}

/// Whether all operands of an expression are constants.
fn is_constant(expr: &Expr) -> bool {
    if matches!(expr, Expr::Literal(..) | Expr::Column(_)) || expr.is_volatile_node() {
        return false;
    }
    let mut all_constant = true;
    let visited = expr.apply_children(|child| {
        all_constant &= matches!(child, Expr::Literal(..));
        Ok(TreeNodeRecursion::Continue)
    });
    all_constant && visited.is_ok()
}

fn evaluate(expr: &Expr) -> Result<ScalarValue> {
    let (context, props) = (PhysicalPlanningContext::default(), ExecutionProps::new());
    let empty_schema = Arc::new(Schema::empty());
    let planned = create_physical_expr(expr, &DFSchema::empty(), &props, &context)?;
    let physical = apply_sql_semantics(planned, &empty_schema)?;
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let row = RecordBatch::try_new_with_options(empty_schema, Vec::new(), &options)?;
    let value = physical.evaluate(&row)?.into_array(1)?;
    let scalar = ScalarValue::try_from_array(&value, 0)?;
    if scalar.data_type() == physical.data_type(&Schema::empty())? {
        Ok(scalar)
    } else {
        let message = "the value of a constant has another type than its expression";
        Err(DataFusionError::Internal(message.to_owned()))
    }
}

/// The expression or, if `negated`, its negation: true where it is false, and null where it is null.
fn push_not(expr: Expr, negated: bool) -> Expr {
    match expr {
        Expr::Not(inner) => push_not(*inner, !negated),
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if matches!(op, Operator::And | Operator::Or) =>
        {
            let op = match (op, negated) {
                (Operator::And, true) => Operator::Or,
                (Operator::Or, true) => Operator::And,
                (op, _) => op,
            };
            binary_expr(push_not(*left, negated), op, push_not(*right, negated))
        }
        Expr::Between(Between {
            expr,
            negated: outside,
            low,
            high,
        }) if !expr.is_volatile() => {
            let (low_op, op, high_op) = if outside == negated {
                (Operator::GtEq, Operator::And, Operator::LtEq)
            } else {
                (Operator::Lt, Operator::Or, Operator::Gt)
            };
            let low = binary_expr(expr.as_ref().clone(), low_op, *low);
            binary_expr(low, op, binary_expr(*expr, high_op, *high))
        }
        expr if !negated => expr,
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op.negate() {
            Some(op) if is_comparison(op) => binary_expr(*left, op, *right),
            _ => Expr::Not(Box::new(binary_expr(*left, op, *right))),
        },
        Expr::InList(list) => Expr::InList(InList {
            negated: !list.negated,
            ..list
        }),
        Expr::Like(like) => Expr::Like(Like {
            negated: !like.negated,
            ..like
        }),
        Expr::IsNull(inner) => Expr::IsNotNull(inner),
        Expr::IsNotNull(inner) => Expr::IsNull(inner),
        Expr::Literal(ScalarValue::Boolean(Some(value)), _) => lit(!value),
        other => Expr::Not(Box::new(other)),
    }
}

/// A comparison without its cast, if the cast keeps every value.
fn unwrap_casts(expr: Expr, schema: &DFSchema) -> Expr {
    let Some(once) = unwrap_cast(&expr, schema) else {
        return expr;
    };
    // The inner expression may itself be the cast of a column.
    unwrap_cast(&once, schema).unwrap_or(once)
}

fn unwrap_cast(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(*op) => {
            match (&**left, &**right) {
                (Expr::Cast(_), Expr::Literal(value, _)) => {
                    unwrap_comparison(left, *op, value, schema)
                }
                (Expr::Literal(value, _), Expr::Cast(_)) => op
                    .swap()
                    .and_then(|op| unwrap_comparison(right, op, value, schema)),
                (side, Expr::Cast(_)) if position_beyond(right).is_some() => {
                    compare_beyond(side, *op, right, schema)
                }
                (Expr::Cast(_), side) => op
                    .swap()
                    .and_then(|op| compare_beyond(side, op, left, schema)),
                _ => None,
            }
        }
        Expr::InList(list) => unwrap_in_list(list, schema),
        Expr::IsNull(inner) => unwrap_null_check(inner, schema).map(Expr::IsNull),
        Expr::IsNotNull(inner) => unwrap_null_check(inner, schema).map(Expr::IsNotNull),
        _ => None,
    }
}

fn unwrap_null_check(cast: &Expr, schema: &DFSchema) -> Option<Box<Expr>> {
    LosslessCast::from_expr(cast, schema).map(|lossless_cast| Box::new(lossless_cast.inner.clone()))
}

fn unwrap_comparison(
    cast: &Expr,
    op: Operator,
    value: &ScalarValue,
    schema: &DFSchema,
) -> Option<Expr> {
    let lossless_cast = LosslessCast::from_expr(cast, schema)?;
    compare_at(lossless_cast.inner, op, lossless_cast.locate(value)?)
}

/// Compares a timestamp with a literal that its unit does not reach. A side that is itself cast to that unit may be as
/// far: it stays, and fails.
fn compare_beyond(side: &Expr, op: Operator, literal: &Expr, schema: &DFSchema) -> Option<Expr> {
    let position = position_beyond(literal)?;
    if LosslessCast::from_expr(side, schema).is_some() {
        return None;
    }
    compare_at(side, op, position)
}

/// Compares an expression with the literal that lies there among its values.
fn compare_at(expr: &Expr, op: Operator, position: ValuePosition) -> Option<Expr> {
    let inner = expr.clone();
    let constant_result = |holds| Some(constant_unless_null(expr, holds));
    match (position, op) {
        (ValuePosition::Exact(value), _) => Some(binary_expr(inner, op, lit(value))),
        (_, Operator::IsDistinctFrom) => Some(lit(true)),
        (_, Operator::IsNotDistinctFrom) => Some(lit(false)),
        (_, Operator::NotEq)
        | (ValuePosition::Above, Operator::Lt | Operator::LtEq)
        | (ValuePosition::Below, Operator::Gt | Operator::GtEq) => constant_result(true),
        (_, Operator::Eq)
        | (ValuePosition::Above, Operator::Gt | Operator::GtEq)
        | (ValuePosition::Below, Operator::Lt | Operator::LtEq) => constant_result(false),
        (ValuePosition::After(value), Operator::Lt | Operator::LtEq) => {
            Some(binary_expr(inner, Operator::LtEq, lit(value)))
        }
        (ValuePosition::After(value), Operator::Gt | Operator::GtEq) => {
            Some(binary_expr(inner, Operator::Gt, lit(value)))
        }
        _ => None,
    }
}

fn unwrap_in_list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let lossless_cast = LosslessCast::from_expr(&list.expr, schema)?;
    let mut values = Vec::with_capacity(list.list.len());
    for value in &list.list {
        let Expr::Literal(value, _) = value else {
            return None;
        };
        if value.is_null() {
            values.push(lit(ScalarValue::try_from(&lossless_cast.from).ok()?));
        } else if let ValuePosition::Exact(value) = lossless_cast.locate(value)? {
            values.push(lit(value));
        }
    }
    if values.is_empty() {
        return Some(constant_unless_null(lossless_cast.inner, list.negated));
    }
    let inner = Box::new(lossless_cast.inner.clone());
    Some(Expr::InList(InList::new(inner, values, list.negated)))
}

/// The value `holds`, but null where the expression is null.
pub(super) fn constant_unless_null(expr: &Expr, holds: bool) -> Expr {
    let expr = Box::new(expr.clone());
    let null = lit(ScalarValue::Boolean(None));
    if holds {
        binary_expr(Expr::IsNotNull(expr), Operator::Or, null)
    } else {
        binary_expr(Expr::IsNull(expr), Operator::And, null)
    }
}

/// An expression that holds for every row for which `expr` holds, and that statistics can decide; `None`
/// if there is none. Of casts it has only those that keep the order of values.
pub(super) fn to_prunable(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let both = || (to_prunable(left, schema), to_prunable(right, schema));
            match op {
                Operator::And => match both() {
                    (Some(left), Some(right)) => Some(binary_expr(left, *op, right)),
                    (left, right) => left.or(right),
                },
                Operator::Or => {
                    let (left, right) = both();
                    Some(binary_expr(left?, *op, right?))
                }
                _ => is_comparison_with_bound(left, *op, right, schema).then(|| expr.clone()),
            }
        }
        Expr::IsTrue(inner) => to_prunable(inner, schema),
        Expr::IsFalse(inner) => to_prunable(&push_not(inner.as_ref().clone(), true), schema),
        Expr::Literal(ScalarValue::Boolean(Some(true)), _) => None,
        Expr::Literal(ScalarValue::Boolean(_) | ScalarValue::Null, _) => Some(lit(false)),
        Expr::Column(_) => Some(expr.clone()),
        Expr::Not(inner) => matches!(**inner, Expr::Column(_)).then(|| expr.clone()),
        Expr::IsNull(inner) => Some(Expr::IsNull(Box::new(column_of(inner)?.clone()))),
        Expr::IsNotNull(inner) => Some(Expr::IsNotNull(Box::new(column_of(inner)?.clone()))),
        Expr::InList(list) => to_prunable_list(list, schema),
        Expr::Like(like) => {
            let is_plain = !like.case_insensitive && like.escape_char.is_none();
            let text = column_type(&like.expr, schema).filter(DataType::is_string)?;
            let is_pattern = matches!(&*like.pattern, Expr::Literal(p, _) if p.data_type() == text);
            (is_plain && is_pattern).then(|| expr.clone())
        }
        _ => None,
    }
}

/// The column whose nulls are those of the expression.
fn column_of(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::Column(_) => Some(expr),
        Expr::ScalarFunction(call) if call.func.name() == PLAIN_VALUES => {
            call.args.first().and_then(column_of)
        }
        _ => None,
    }
}

fn column_type(expr: &Expr, schema: &DFSchema) -> Option<DataType> {
    match expr {
        Expr::Column(_) => expr.get_type(schema).ok(),
        _ => None,
    }
}

/// Whether the bounds of a column can decide a comparison.
fn is_comparison_with_bound(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> bool {
    use Operator::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    let ((side, Expr::Literal(value, _)) | (Expr::Literal(value, _), side)) = (left, right) else {
        return false;
    };
    let compares = matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq) && !is_nan(value);
    let data_type = match side {
        Expr::Cast(cast) => {
            let (from, to) = (column_type(&cast.expr, schema), cast.field.data_type());
            from.filter(|from| keeps_order(from, to))
                .map(|_| to.clone())
        }
        side => column_type(side, schema).filter(|data_type| !data_type.is_floating()),
    };
    compares && data_type.is_some_and(|data_type| data_type == value.data_type())
}

/// Bounds decide nothing about a NaN: SQL orders it among numbers, pyarrow's expressions do not.
fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float64(Some(value)) => value.is_nan(),
        ScalarValue::Float32(Some(value)) => value.is_nan(),
        _ => false,
    }
}

/// Whether the cast of a larger value is never smaller, and never fails between two values that can be
/// cast.
fn keeps_order(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Timestamp(_, zone), DataType::Date32) => {
            zone.as_ref().is_none_or(|zone| is_utc(zone))
        }
        (from, DataType::Float64) => from.is_integer(),
        _ => false,
    }
}

fn to_prunable_list(list: &InList, schema: &DFSchema) -> Option<Expr> {
    let data_type = column_type(&list.expr, schema)?;
    let has_its_type =
        |value: &Expr| matches!(value, Expr::Literal(value, _) if value.data_type() == data_type);
    if data_type.is_floating() || !list.list.iter().all(has_its_type) {
        return None;
    }
    Some(Expr::InList(list.clone()))
}

/// Whether an expression is an IN list of more values than DataFusion compares with bounds.
pub(super) fn is_long_list(expr: &Expr) -> bool {
    matches!(expr, Expr::InList(list) if list.list.len() > MAX_IN_LIST_VALUES)
}
