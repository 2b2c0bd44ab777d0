//! Comparisons of rows of values, such as `(a, b) > (1, 'x')`, by their values one after another.
//!
//! DataFusion compares them as structs, in which NULL is a value, the least of all. In SQL a comparison with NULL is
//! unknown, unless the values before it have decided. The rules are those of SQL:2016, 8.2.

use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{Expr, InList};
use datafusion_expr::{ExprSchemable, Operator, binary_expr};

use super::operators::{check_copies, combine_terms, is_comparison, node_count};

/// Maximum number of nodes of all copies of the row before an `IN` whose values may be NULL.
const MAX_LISTED: usize = 15_000;

/// Compares two expressions, value by value if both are rows.
pub(super) fn compare(left: Expr, op: Operator, right: Expr) -> Result<Expr> {
    let (Some(lefts), Some(rights)) = (row_values(&left), row_values(&right)) else {
        return Ok(binary_expr(left, op, right));
    };
    if !is_comparison(op) {
        return Ok(binary_expr(left, op, right));
    }
    if lefts.len() != rights.len() {
        let message = format!(
            "a row of {} values cannot be compared with one of {}",
            lefts.len(),
            rights.len()
        );
        return Err(DataFusionError::Plan(message));
    }
    // Each value is asked twice, and so are those of rows within rows.
    check_copies(&left, 2, "a comparison of rows")?;
    check_copies(&right, 2, "a comparison of rows")?;
    if left.is_volatile() || right.is_volatile() {
        let message = "rows with values that change cannot be compared";
        return Err(DataFusionError::Plan(message.to_owned()));
    }
    compare_rows(lefts, op, rights)
}

fn compare_rows(lefts: &[Expr], op: Operator, rights: &[Expr]) -> Result<Expr> {
    let each = |op: Operator, combined: Operator| {
        let pairs = lefts.iter().zip(rights);
        let terms = pairs.map(|(left, right)| compare(left.clone(), op, right.clone()));
        Ok(combine_terms(terms.collect::<Result<_>>()?, combined))
    };
    let strict = match op {
        Operator::Eq | Operator::IsNotDistinctFrom => return each(op, Operator::And),
        Operator::NotEq | Operator::IsDistinctFrom => return each(op, Operator::Or),
        Operator::LtEq => Operator::Lt,
        Operator::GtEq => Operator::Gt,
        strict => strict,
    };
    let mut decided: Option<Expr> = None;
    for (left, right) in lefts.iter().zip(rights).rev() {
        decided = Some(match decided {
            None => compare(left.clone(), op, right.clone())?,
            Some(rest) => {
                let differs = compare(left.clone(), strict, right.clone())?;
                let equals = compare(left.clone(), Operator::Eq, right.clone())?;
                binary_expr(
                    differs,
                    Operator::Or,
                    binary_expr(equals, Operator::And, rest),
                )
            }
        });
    }
    decided.ok_or_else(|| DataFusionError::Plan("a row needs values".to_owned()))
}

/// `row IN (…)` as comparisons, unless no value can be NULL; other lists as they are.
pub(super) fn expand_list(list: InList, schema: &DFSchema) -> Result<Expr> {
    let Some(values) = row_values(&list.expr) else {
        return Ok(Expr::InList(list));
    };
    let has_nulls = |values: &[Expr]| {
        values
            .iter()
            .any(|value| value.nullable(schema).unwrap_or(true))
    };
    let is_exact = !has_nulls(values)
        && list
            .list
            .iter()
            .all(|item| row_values(item).is_some_and(|v| !has_nulls(v)));
    if is_exact {
        return Ok(Expr::InList(list));
    }
    if node_count(&list.expr)? * list.list.len() > MAX_LISTED {
        let message = "IN has too many rows of values that may be NULL; use several filters, or an upsert or a merge by \
                       the key";
        return Err(DataFusionError::Plan(message.to_owned()));
    }
    let (op, combined) = if list.negated {
        (Operator::NotEq, Operator::And)
    } else {
        (Operator::Eq, Operator::Or)
    };
    let terms = list.list.into_iter().map(|item| match item {
        Expr::Literal(value, _) if value.is_null() => {
            Ok(Expr::Literal(ScalarValue::Boolean(None), None))
        }
        item => compare(list.expr.as_ref().clone(), op, item),
    });
    Ok(combine_terms(terms.collect::<Result<_>>()?, combined))
}

/// Whether an expression is a row of values.
pub(super) fn is_row(expr: &Expr) -> bool {
    row_values(expr).is_some()
}

/// The values of `(a, b)`.
fn row_values(expr: &Expr) -> Option<&[Expr]> {
    match expr {
        Expr::ScalarFunction(call) if call.func.name() == "struct" => Some(&call.args),
        _ => None,
    }
}
