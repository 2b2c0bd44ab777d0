//! Operators of expressions, and how much of an operand may be copied.

use std::sync::Arc;

use arrow_schema::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::expr::Expr;
use datafusion_expr::{Operator, binary_expr, lit};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{CastExpr, TryCastExpr};

/// Maximum number of nodes of all copies of an operand together.
pub(super) const MAX_COPIED: usize = 10_000;

/// Functions that return one of their arguments.
pub(super) const CONDITIONAL_FUNCTIONS: [&str; 5] =
    ["coalesce", "nvl", "nvl2", "greatest", "least"];

/// Combines terms as a balanced tree; without terms the result is true.
pub(super) fn combine_terms(mut terms: Vec<Expr>, op: Operator) -> Expr {
    let rest = terms.split_off(terms.len() / 2);
    match terms.len() {
        0 => rest.into_iter().next().unwrap_or_else(|| lit(true)),
        _ => binary_expr(combine_terms(terms, op), op, combine_terms(rest, op)),
    }
}

/// Whether an operator compares values by their order.
pub(super) fn is_comparison(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    let by_order = [
        Eq,
        NotEq,
        Lt,
        LtEq,
        Gt,
        GtEq,
        IsDistinctFrom,
        IsNotDistinctFrom,
    ];
    by_order.contains(&op)
}

/// How many nodes an expression has.
pub(super) fn node_count(expr: &Expr) -> Result<usize> {
    let mut nodes = 0;
    expr.apply(|_| {
        nodes += 1;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(nodes)
}

/// Refuses to copy a large operand: constructs within each other double it at each level.
pub(super) fn check_copies(expr: &Expr, copies: usize, construct: &str) -> Result<()> {
    if node_count(expr)? * copies > MAX_COPIED {
        let message = format!("{construct} is nested too deeply or has too large an operand");
        return Err(DataFusionError::Plan(message));
    }
    Ok(())
}

/// What is cast to which type, and whether a value that cannot be cast is NULL; `None` for other expressions.
pub(super) fn as_cast(
    expr: &Arc<dyn PhysicalExpr>,
) -> Option<(&Arc<dyn PhysicalExpr>, &DataType, bool)> {
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        return Some((cast.expr(), cast.cast_type(), cast.cast_options().safe));
    }
    let cast = expr.downcast_ref::<TryCastExpr>()?;
    Some((cast.expr(), cast.cast_type(), true))
}
