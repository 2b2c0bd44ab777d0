//! Operators of expressions.

use datafusion_expr::expr::Expr;
use datafusion_expr::{Operator, binary_expr, lit};

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
