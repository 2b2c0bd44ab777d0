//! SQL's semantics where DataFusion evaluates physical expressions in another way: overflow, comparisons of floats and
//! of times, functions without a value, fields of structs that are null, what the right side of AND and OR is asked.

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
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr, create_physical_expr};

use super::checked::CheckedExpr;
use super::floats::{CanonicalFloatsExpr, canonicalize, has_floats};
use super::functions::FunctionExpr;
use super::get_field::GetFieldExpr;
use super::guarded::GuardedExpr;
use super::joined_texts::join_texts;
use super::operators::is_comparison;
use super::quantified::to_in_list;
use super::sliced::SlicedExpr;
use super::time_casts::TimeCastExpr;
use super::time_comparisons::TimeComparisonExpr;

/// Functions that compare values. Those of arrays are what `ANY` and `ALL` are planned as.
const COMPARING_FUNCTIONS: [&str; 5] = ["array_has", "array_max", "array_min", "greatest", "least"];

/// The expression that evaluates a logical one over columns, with the semantics of [`apply_sql_semantics`], and its type.
/// What its functions make of texts is bounded.
pub(crate) fn to_physical(
    expr: &Expr,
    columns: &DFSchema,
) -> Result<(Arc<dyn PhysicalExpr>, DataType)> {
    let data_type = expr.get_type(columns)?;
    let context = PhysicalPlanningContext::default();
    let physical = create_physical_expr(expr, columns, &ExecutionProps::new(), &context)?;
    let physical = apply_sql_semantics(physical, columns.as_arrow())?;
    Ok((SlicedExpr::wrap(physical), data_type))
}

/// Rewrites an expression: arithmetic fails on overflow, as casts and functions do that have no value; comparisons know
/// one zero and one NaN, and times of any unit; fields are null where their struct is; and the right side of AND and OR
/// is asked only where the left one leaves a row open. `input` has the expression's columns.
pub(crate) fn apply_sql_semantics(
    expr: Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Result<Arc<dyn PhysicalExpr>> {
    let rewritten = expr.transform_up(|expr| {
        Ok(match rewrite(&expr, input)? {
            Some(replaced) => Transformed::yes(replaced),
            None => Transformed::no(expr),
        })
    });
    rewritten.map(|transformed| transformed.data)
}

/// An expression with these semantics, whose operands have them; `None` if it has them as it is.
fn rewrite(expr: &Arc<dyn PhysicalExpr>, input: &Schema) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return rewrite_list(list, input);
    }
    if let Some(negative) = expr.downcast_ref::<NegativeExpr>() {
        return rewrite_negative(negative, input);
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return rewrite_binary(binary, input).map(Some);
    }
    if let Some(field) = GetFieldExpr::try_replace(expr, input)? {
        return Ok(Some(field));
    }
    if let Some(time_cast) = TimeCastExpr::try_replace(expr, input)? {
        return Ok(Some(time_cast));
    }
    let checked = match CheckedExpr::try_replace(expr, input)? {
        None => rewrite_extreme(expr, input)?,
        checked => checked,
    };
    let function = FunctionExpr::try_replace(checked.as_ref().unwrap_or(expr));
    Ok(function.or(checked))
}

fn rewrite_list(list: &InListExpr, input: &Schema) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    if let Some(times) = TimeComparisonExpr::try_from_list(list, input)? {
        return Ok(Some(times));
    }
    if !has_floats(&list.expr().data_type(input)?) {
        return Ok(None);
    }
    let elements = list.list().iter();
    let operands = elements.map(|value| canonicalize_operand(value, input));
    let values = operands.collect::<Result<_>>()?;
    let operand = canonicalize_operand(list.expr(), input)?;
    in_list(operand, values, &list.negated(), input).map(Some)
}

/// A negation wraps around; the difference `0 - x` fails on overflow.
fn rewrite_negative(
    negative: &NegativeExpr,
    input: &Schema,
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let data_type = negative.arg().data_type(input)?;
    if !data_type.is_integer() {
        return Ok(None);
    }
    let zero = lit_of(ScalarValue::new_zero(&data_type)?);
    let difference = BinaryExpr::new(zero, Operator::Minus, Arc::clone(negative.arg()));
    Ok(Some(Arc::new(difference.with_fail_on_overflow(true))))
}

fn rewrite_binary(binary: &BinaryExpr, input: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let (mut left, mut right) = (Arc::clone(binary.left()), Arc::clone(binary.right()));
    if is_comparison(*binary.op()) {
        if let Some(times) = TimeComparisonExpr::try_new(&left, *binary.op(), &right, input)? {
            return Ok(times);
        }
        (left, right) = (
            canonicalize_operand(&left, input)?,
            canonicalize_operand(&right, input)?,
        );
    }
    if let Some(guarded) = GuardedExpr::try_replace(binary, input)? {
        return Ok(guarded);
    }
    if *binary.op() == Operator::StringConcat {
        return join_texts(binary, input);
    }
    let strict = BinaryExpr::new(left, *binary.op(), right).with_fail_on_overflow(true);
    CheckedExpr::arithmetic(Arc::new(strict), input)
}

/// Functions that compare their arguments, or the elements of these, with canonical floats: 0.0 / 0.0 has a sign, with
/// which Arrow takes it for the least of all.
fn rewrite_extreme(
    expr: &Arc<dyn PhysicalExpr>,
    input: &Schema,
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
        return Ok(None);
    };
    if !COMPARING_FUNCTIONS.contains(&call.fun().name()) {
        return Ok(None);
    }
    if let Some(list) = to_in_list(call, input)? {
        return Ok(Some(list));
    }
    let args = call.args().iter();
    let args = args.map(|arg| canonicalize_operand(arg, input));
    let args = args.collect::<Result<Vec<_>>>()?;
    let mut pairs = args.iter().zip(call.args());
    if pairs.all(|(canonical, arg)| Arc::ptr_eq(canonical, arg)) {
        return Ok(None);
    }
    Arc::clone(expr).with_new_children(args).map(Some)
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
