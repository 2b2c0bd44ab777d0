//! SQL's semantics where DataFusion evaluates physical expressions in another way: overflow, comparisons of floats,
//! fields of structs that are null, what the right side of AND and OR is asked.

use std::sync::Arc;

use arrow_schema::{DataType, Schema};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::execution_props::ExecutionProps;
use datafusion_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion_expr::{Expr, ExprSchemable, Operator};
use datafusion_physical_expr::expressions::{
    BinaryExpr, InListExpr, Literal, NegativeExpr, in_list, lit as lit_of,
};
use datafusion_physical_expr::{PhysicalExpr, create_physical_expr};

use super::checked::CheckedExpr;
use super::floats::{CanonicalFloatsExpr, canonicalize, has_floats};
use super::get_field::GetFieldExpr;
use super::guarded::GuardedExpr;
use super::operators::is_comparison;
use super::time_functions::TimeFunctionExpr;

/// The expression that evaluates a logical one over columns, with the semantics of [`apply_sql_semantics`], and its type.
pub(crate) fn to_physical(
    expr: &Expr,
    columns: &DFSchema,
) -> Result<(Arc<dyn PhysicalExpr>, DataType)> {
    let data_type = expr.get_type(columns)?;
    let context = PhysicalPlanningContext::default();
    let physical = create_physical_expr(expr, columns, &ExecutionProps::new(), &context)?;
    Ok((
        apply_sql_semantics(physical, columns.as_arrow())?,
        data_type,
    ))
}

/// Rewrites an expression: arithmetic fails on overflow, as casts to narrower floats and functions of times do;
/// comparisons know one zero and one NaN; fields are null where their struct is; and the right side of AND and OR is
/// asked only where the left one leaves a row open. `input` has the expression's columns.
pub(crate) fn apply_sql_semantics(
    expr: Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Result<Arc<dyn PhysicalExpr>> {
    let rewritten = expr.transform_up(|expr| {
        if let Some(list) = expr.downcast_ref::<InListExpr>() {
            if !has_floats(&list.expr().data_type(input)?) {
                return Ok(Transformed::no(expr));
            }
            let elements = list.list().iter();
            let operands = elements.map(|value| canonicalize_operand(value, input));
            let values = operands.collect::<Result<_>>()?;
            let operand = canonicalize_operand(list.expr(), input)?;
            return Ok(Transformed::yes(in_list(
                operand,
                values,
                &list.negated(),
                input,
            )?));
        }
        let replaced = match GetFieldExpr::try_replace(&expr, input)? {
            None => CheckedExpr::try_replace(&expr, input)?,
            field => field,
        };
        if let Some(replaced) = replaced.or_else(|| TimeFunctionExpr::try_replace(&expr)) {
            return Ok(Transformed::yes(replaced));
        }
        if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
            let data_type = negative.arg().data_type(input)?;
            if !data_type.is_integer() {
                return Ok(Transformed::no(expr));
            }
            // A negation wraps around; the difference `0 - x` fails on overflow.
            let zero = lit_of(ScalarValue::new_zero(&data_type)?);
            let difference = BinaryExpr::new(zero, Operator::Minus, Arc::clone(negative.arg()));
            return Ok(Transformed::yes(Arc::new(
                difference.with_fail_on_overflow(true),
            )));
        }
        let Some(binary) = expr.downcast_ref::<BinaryExpr>() else {
            return Ok(Transformed::no(expr));
        };
        let (mut left, mut right) = (Arc::clone(binary.left()), Arc::clone(binary.right()));
        if is_comparison(*binary.op()) {
            (left, right) = (
                canonicalize_operand(&left, input)?,
                canonicalize_operand(&right, input)?,
            );
        }
        if let Some(guarded) = GuardedExpr::try_replace(binary, input)? {
            return Ok(Transformed::yes(guarded));
        }
        let strict = BinaryExpr::new(left, *binary.op(), right).with_fail_on_overflow(true);
        CheckedExpr::arithmetic(Arc::new(strict), input).map(Transformed::yes)
    });
    rewritten.map(|transformed| transformed.data)
}

/// One side of a comparison, with canonical floats.
fn canonicalize_operand(
    expr: &Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Result<Arc<dyn PhysicalExpr>> {
    if !has_floats(&expr.data_type(input)?) {
        return Ok(Arc::clone(expr));
    }
    if let Some(literal) = expr.downcast_ref::<Literal>() {
        let value = canonicalize(&literal.value().to_array()?);
        return Ok(lit_of(ScalarValue::try_from_array(&value, 0)?));
    }
    Ok(Arc::new(CanonicalFloatsExpr(Arc::clone(expr))))
}
