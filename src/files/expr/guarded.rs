//! AND and OR whose right side is asked only of the rows that the left side leaves open.
//!
//! DataFusion skips the right side only where the left one decides all rows of a batch, or nearly all. So `q <> 0 AND
//! 10 / q > 1` would fail or not by which rows share a batch. Where the right side may fail for some rows, it is
//! evaluated for those rows alone that need it.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, BooleanArray, RecordBatch};
use arrow_schema::Schema;
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{
    BinaryExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, LikeExpr, Literal, NotExpr,
};

use super::floats::CanonicalFloatsExpr;
use super::forward::forward;
use super::get_field::GetFieldExpr;
use super::operators::is_comparison;
use super::time_comparisons::TimeComparisonExpr;

/// AND or OR, evaluated from left to right, row by row.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct GuardedExpr(BinaryExpr);

impl GuardedExpr {
    /// Replaces an AND or OR whose right side may fail; `None` for other expressions.
    pub(super) fn try_replace(
        binary: &BinaryExpr,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if !matches!(binary.op(), Operator::And | Operator::Or) || !can_fail(binary.right(), input)?
        {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self(binary.clone()))))
    }
}

/// Whether the evaluation may fail for some values.
fn can_fail(expr: &Arc<dyn PhysicalExpr>, input: &Schema) -> Result<bool> {
    let is_safe = if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        let op = *binary.op();
        is_comparison(op)
            || matches!(op, Operator::And | Operator::Or)
            || expr.data_type(input)?.is_floating()
    } else {
        expr.is::<Column>()
            || expr.is::<Literal>()
            || expr.is::<NotExpr>()
            || expr.is::<IsNullExpr>()
            || expr.is::<IsNotNullExpr>()
            || expr.is::<InListExpr>()
            || expr.is::<LikeExpr>()
            || expr.is::<CanonicalFloatsExpr>()
            || expr.is::<GetFieldExpr>()
            || expr.is::<TimeComparisonExpr>()
    };
    if !is_safe {
        return Ok(true);
    }
    for child in expr.children() {
        if can_fail(child, input)? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl PhysicalExpr for GuardedExpr {
    forward!(binary);

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        // The value of one side that is the value of both.
        let decisive = *self.0.op() == Operator::Or;
        let left = self.0.left().evaluate(batch)?.into_array(rows)?;
        let left = left.as_boolean();
        let is_open = (0..rows).map(|row| left.is_null(row) || left.value(row) != decisive);
        let is_open = BooleanArray::from(is_open.collect::<Vec<bool>>());
        let right = self.0.right().evaluate_selection(batch, &is_open)?;
        let right = right.into_array(rows)?;
        let right = right.as_boolean();
        let value = (0..rows).map(|row| {
            if !is_open.value(row) || (right.is_valid(row) && right.value(row) == decisive) {
                Some(decisive)
            } else if left.is_null(row) || right.is_null(row) {
                None
            } else {
                Some(!decisive)
            }
        });
        let value: BooleanArray = value.collect();
        Ok(ColumnarValue::Array(Arc::new(value)))
    }
}

forward!(Display for GuardedExpr, 0);
