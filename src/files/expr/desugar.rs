//! Shorthand for comparisons (`CASE x WHEN …`, `nullif`, comparisons of rows), written out so that the comparisons are
//! exact.

use datafusion_common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{Between, BinaryExpr, Case, Expr, ScalarFunction};
use datafusion_expr::{Operator, binary_expr, not};
use datafusion_functions::core::coalesce;

use super::negations::is_negation;
use super::operators::{MAX_COPIED, check_copies};
use super::quantified::{ARRAY_HAS, compares_any, equals_any};
use super::row_values::{compare, expand_list, is_row};

/// Rewrites shorthand to the expressions that it stands for.
pub(super) fn desugar(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    // Before anything asks for its type, which is as much work as the copies are.
    let (nodes, expanded) = count_nodes(&expr)?;
    if expanded - nodes > MAX_COPIED {
        let message = "coalesce is nested too deeply";
        return Err(DataFusionError::Plan(message.to_owned()));
    }
    let rewritten = expr.transform_up(|node| match node {
        Expr::SimilarTo(_) => {
            let message = "SIMILAR TO is not supported; use LIKE or ~";
            Err(DataFusionError::Plan(message.to_owned()))
        }
        Expr::Case(Case {
            expr: Some(operand),
            when_then_expr,
            else_expr,
        }) if !operand.is_volatile() => {
            check_copies(&operand, when_then_expr.len(), "CASE")?;
            let equals = |value| compare(operand.as_ref().clone(), Operator::Eq, value);
            let branches = when_then_expr.into_iter();
            let pairs = branches.map(|(value, then)| Ok((Box::new(equals(*value)?), then)));
            let case = Case::new(None, pairs.collect::<Result<_>>()?, else_expr);
            Ok(Transformed::yes(Expr::Case(case)))
        }
        Expr::Case(case) => compares_any(case).map(Transformed::yes),
        Expr::ScalarFunction(call) if call.func.name() == ARRAY_HAS => {
            equals_any(call).map(Transformed::yes)
        }
        Expr::ScalarFunction(call) if is_negation(&call) => {
            let operand = call.args.into_iter().next().unwrap_or(NULL);
            Ok(Transformed::yes(not(operand)))
        }
        Expr::ScalarFunction(call) if is_nullif(&call) => {
            let mut args = call.args.into_iter();
            let (value, other) = (args.next().unwrap_or(NULL), args.next().unwrap_or(NULL));
            check_copies(&value, 2, "nullif")?;
            let equal = compare(value.clone(), Operator::Eq, other)?;
            let pairs = vec![(Box::new(equal), Box::new(NULL))];
            let case = Case::new(None, pairs, Some(Box::new(value)));
            Ok(Transformed::yes(Expr::Case(case)))
        }
        // `nvl` does not support decimals.
        Expr::ScalarFunction(call) if call.func.name() == "nvl" => Ok(Transformed::yes(
            Expr::ScalarFunction(ScalarFunction::new_udf(coalesce(), call.args)),
        )),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            compare(*left, op, *right).map(Transformed::yes)
        }
        Expr::Between(between) => expand_between(between).map(Transformed::yes),
        Expr::InList(list) => expand_list(list, schema).map(Transformed::yes),
        other => Ok(Transformed::no(other)),
    });
    rewritten.map(|transformed| transformed.data)
}

/// `row BETWEEN …` as two comparisons; another one as it is.
fn expand_between(between: Between) -> Result<Expr> {
    if !is_row(&between.expr) {
        return Ok(Expr::Between(between));
    }
    check_copies(&between.expr, 2, "BETWEEN")?;
    let from = compare(between.expr.as_ref().clone(), Operator::GtEq, *between.low)?;
    let to = compare(*between.expr, Operator::LtEq, *between.high)?;
    let both = binary_expr(from, Operator::And, to);
    Ok(if between.negated { not(both) } else { both })
}

/// How many nodes an expression has, now and when each value of a `coalesce` is copied into a condition of its own.
fn count_nodes(expr: &Expr) -> Result<(usize, usize)> {
    let copies = match expr {
        Expr::ScalarFunction(call) if matches!(call.func.name(), "coalesce" | "nvl" | "nvl2") => 2,
        _ => 1,
    };
    let (mut nodes, mut expanded) = (1_usize, 1_usize);
    expr.apply_children(|child| {
        let (child_nodes, child_expanded) = count_nodes(child)?;
        nodes += child_nodes;
        expanded = expanded.saturating_add(child_expanded.saturating_mul(copies));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok((nodes, expanded))
}

const NULL: Expr = Expr::Literal(ScalarValue::Null, None);

fn is_nullif(call: &ScalarFunction) -> bool {
    call.func.name() == "nullif" && call.args.len() == 2 && !call.args[0].is_volatile()
}
