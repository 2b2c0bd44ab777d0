//! Comparisons of points in time in different units, without a unit of both.
//!
//! The coercion casts the coarser side to the finer unit, which ends in the year 2262 if it is that of nanoseconds. The
//! numbers of ticks are compared here, times the length of a tick: no time is too far.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow_cast::cast;
use arrow_ord::cmp;
use arrow_schema::{DataType, Schema};
use datafusion_common::Result;
use datafusion_expr::{ColumnarValue, Operator};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{BinaryExpr, InListExpr, Literal, NotExpr};

use super::forward::forward;
use super::operators::is_comparison;
use super::time_casts::{TimeCastExpr, tick_nanoseconds};

/// A comparison of dates or timestamps of any unit.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct TimeComparisonExpr(BinaryExpr);

impl TimeComparisonExpr {
    /// The comparison without casts to a finer unit; `None` if there are none.
    pub(super) fn try_new(
        left: &Arc<dyn PhysicalExpr>,
        op: Operator,
        right: &Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if !is_comparison(op) {
            return Ok(None);
        }
        let (inner_left, inner_right) = (source_of(left, input)?, source_of(right, input)?);
        if Arc::ptr_eq(left, &inner_left) && Arc::ptr_eq(right, &inner_right) {
            return Ok(None);
        }
        let comparison = BinaryExpr::new(inner_left, op, inner_right);
        Ok(Some(Arc::new(Self(comparison))))
    }

    /// An IN of such comparisons; `None` if there are none, and of constants, which have the unit of their column.
    pub(super) fn try_from_list(
        list: &InListExpr,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if list.list().iter().all(|value| value.is::<Literal>()) {
            return Ok(None);
        }
        let mut terms = Vec::with_capacity(list.list().len());
        let mut is_exact = false;
        for value in list.list() {
            let term = match Self::try_new(list.expr(), Operator::Eq, value, input)? {
                Some(comparison) => {
                    is_exact = true;
                    comparison
                }
                None => equal(list.expr(), value),
            };
            terms.push(term);
        }
        let Some(any) = any_of(terms).filter(|_| is_exact) else {
            return Ok(None);
        };
        if list.negated() {
            return Ok(Some(Arc::new(NotExpr::new(any))));
        }
        Ok(Some(any))
    }
}

fn equal(left: &Arc<dyn PhysicalExpr>, right: &Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    let (left, right) = (Arc::clone(left), Arc::clone(right));
    Arc::new(BinaryExpr::new(left, Operator::Eq, right))
}

/// What an expression is cast from, if the casts keep the point in time.
fn source_of(expr: &Arc<dyn PhysicalExpr>, input: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    let Some(time_cast) = expr.downcast_ref::<TimeCastExpr>() else {
        return Ok(Arc::clone(expr));
    };
    match time_cast.lossless_source(input)? {
        Some(source) => source_of(source, input),
        None => Ok(Arc::clone(expr)),
    }
}

/// The terms as a balanced tree of OR.
fn any_of(mut terms: Vec<Arc<dyn PhysicalExpr>>) -> Option<Arc<dyn PhysicalExpr>> {
    if terms.len() < 2 {
        return terms.pop();
    }
    let rest = terms.split_off(terms.len() / 2);
    let (left, right) = (any_of(terms)?, any_of(rest)?);
    Some(Arc::new(BinaryExpr::new(left, Operator::Or, right)))
}

fn compare(left: &ArrayRef, op: Operator, right: &ArrayRef) -> Result<BooleanArray> {
    let left_tick = tick_nanoseconds(left.data_type());
    let right_tick = tick_nanoseconds(right.data_type());
    let numbers = |values: &ArrayRef| cast(values, &DataType::Int64);
    let (left, right) = (numbers(left)?, numbers(right)?);
    let left = left.as_primitive::<Int64Type>();
    let right = right.as_primitive::<Int64Type>();
    // Every tick is a multiple of the shorter ones.
    let tick = left_tick.min(right_tick);
    let in_ticks = (
        multiply(left, left_tick / tick),
        multiply(right, right_tick / tick),
    );
    if let (Some(left), Some(right)) = in_ticks {
        return compare_numbers(&left, op, &right);
    }
    let (left_tick, right_tick) = (i128::from(left_tick), i128::from(right_tick));
    let holds = left.iter().zip(right).map(|pair| match (pair, op) {
        ((Some(a), Some(b)), _) => {
            let order = (i128::from(a) * left_tick).cmp(&(i128::from(b) * right_tick));
            Some(has_order(order, op))
        }
        ((a, b), Operator::IsDistinctFrom) => Some(a.is_some() != b.is_some()),
        ((a, b), Operator::IsNotDistinctFrom) => Some(a.is_some() == b.is_some()),
        _ => None,
    });
    Ok(holds.collect())
}

/// The numbers times a factor; `None` if a product has more than 64 bits.
fn multiply(numbers: &Int64Array, factor: i64) -> Option<Int64Array> {
    if factor == 1 {
        return Some(numbers.clone());
    }
    let product = |number: i64| number.checked_mul(factor).ok_or(());
    numbers.try_unary::<_, Int64Type, ()>(product).ok()
}

/// Compares with the kernels of Arrow, which are faster than [`has_order`] of each pair.
fn compare_numbers(left: &Int64Array, op: Operator, right: &Int64Array) -> Result<BooleanArray> {
    let holds = match op {
        Operator::Eq => cmp::eq(left, right),
        Operator::NotEq => cmp::neq(left, right),
        Operator::Lt => cmp::lt(left, right),
        Operator::LtEq => cmp::lt_eq(left, right),
        Operator::Gt => cmp::gt(left, right),
        Operator::IsDistinctFrom => cmp::distinct(left, right),
        Operator::IsNotDistinctFrom => cmp::not_distinct(left, right),
        _ => cmp::gt_eq(left, right),
    };
    Ok(holds?)
}

/// Whether an operator is true of two values in this order.
fn has_order(order: Ordering, op: Operator) -> bool {
    match op {
        Operator::Eq | Operator::IsNotDistinctFrom => order.is_eq(),
        Operator::NotEq | Operator::IsDistinctFrom => order.is_ne(),
        Operator::Lt => order.is_lt(),
        Operator::LtEq => order.is_le(),
        Operator::Gt => order.is_gt(),
        _ => order.is_ge(),
    }
}

impl PhysicalExpr for TimeComparisonExpr {
    forward!(binary);

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        let left = self.0.left().evaluate(batch)?.into_array(rows)?;
        let right = self.0.right().evaluate(batch)?.into_array(rows)?;
        let holds = compare(&left, *self.0.op(), &right)?;
        Ok(ColumnarValue::Array(Arc::new(holds)))
    }
}

forward!(Display for TimeComparisonExpr, 0);
