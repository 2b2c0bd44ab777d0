//! Comparisons with an element of a list (`value = ANY(list)`), which are unknown where one element or the value is NULL
//! and no other element decides.
//!
//! DataFusion's plans of `ANY` are false there, and NOT of them true. Its plans of `ALL` look for NULL themselves.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, OffsetSizeTrait};
use arrow_buffer::NullBuffer;
use arrow_cast::cast;
use arrow_schema::{DataType, Schema};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{BinaryExpr, Case, Expr, ScalarFunction};
use datafusion_expr::{
    ColumnarValue, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion_physical_expr::expressions::{Literal, in_list, lit};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::operators::check_copies;
use super::time_literals::refine_timestamp_literal;
use crate::parquet::nested::element_of;

/// The plan of `value = ANY(list)`.
pub(super) const ARRAY_HAS: &str = "array_has";
const ANY_ELEMENT: &str = "any_element";

/// `value = ANY(list)`, planned as a call of [`ARRAY_HAS`].
pub(super) fn equals_any(call: ScalarFunction) -> Result<Expr> {
    let [list, value] = call.args.as_slice() else {
        return Ok(Expr::ScalarFunction(call));
    };
    let (list, value) = (list.clone(), value.clone());
    decide(Expr::ScalarFunction(call), list, value)
}

/// Another comparison than `=` with an element of a list, which is planned as a CASE; any other CASE as it is.
pub(super) fn compares_any(case: Case) -> Result<Expr> {
    let operands = operands_of(&case).map(|(list, value)| (list.clone(), value.clone()));
    match operands {
        Some((list, value)) => decide(Expr::Case(case), list, value),
        None => Ok(Expr::Case(case)),
    }
}

/// The list and the value of `CASE WHEN array_max(list) IS NOT NULL THEN array_max(list) > value …`. SQL has no other way
/// to these functions.
fn operands_of(case: &Case) -> Option<(&Expr, &Expr)> {
    let (condition, comparison) = case.when_then_expr.first()?;
    let Expr::IsNotNull(bound) = condition.as_ref() else {
        return None;
    };
    let Expr::ScalarFunction(bound) = bound.as_ref() else {
        return None;
    };
    if !matches!(bound.func.name(), "array_min" | "array_max") {
        return None;
    }
    let comparison = match comparison.as_ref() {
        // `<>` compares the least and the greatest element.
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Or,
            ..
        }) => left.as_ref(),
        other => other,
    };
    match comparison {
        Expr::BinaryExpr(BinaryExpr { right, .. }) => Some((bound.args.first()?, right.as_ref())),
        _ => None,
    }
}

/// Whether any element holds, if that is known; `holds` may be false where it is not.
fn decide(holds: Expr, list: Expr, value: Expr) -> Result<Expr> {
    check_copies(&list, 2, "ANY")?;
    check_copies(&value, 2, "ANY")?;
    let function = AnyElement {
        signature: Signature::any(3, Volatility::Immutable),
    };
    // Of the value it is only asked whether it is NULL: that must not fail where the comparison does not.
    let value = refine_timestamp_literal(value);
    Ok(ScalarUDF::from(function).call(vec![holds, list, value]))
}

/// The call of [`ARRAY_HAS`] of a list of constant texts as an IN, which does not copy them for every row; `None` for
/// other calls.
pub(super) fn to_in_list(
    call: &ScalarFunctionExpr,
    input: &Schema,
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let (ARRAY_HAS, [list, value]) = (call.fun().name(), call.args()) else {
        return Ok(None);
    };
    let Some(list) = list.downcast_ref::<Literal>() else {
        return Ok(None);
    };
    let lists = list.value().to_array()?;
    let (elements, ranges) = elements_of(&lists)?;
    let elements = elements.slice(ranges[0].start, ranges[0].len());
    if !elements.data_type().is_string() || elements.is_empty() || lists.is_null(0) {
        return Ok(None);
    }
    let texts = (0..elements.len()).map(|at| ScalarValue::try_from_array(&elements, at));
    let texts = texts.map(|text| text.map(lit));
    in_list(
        Arc::clone(value),
        texts.collect::<Result<_>>()?,
        &false,
        input,
    )
    .map(Some)
}

/// A function of what DataFusion says (`holds`), the list and the value: `holds`, or NULL where that is not known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AnyElement {
    signature: Signature,
}

impl ScalarUDFImpl for AnyElement {
    fn name(&self) -> &'static str {
        ANY_ELEMENT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [holds, lists, values] = args.args.as_slice() else {
            let message = "a comparison with any element has three arguments";
            return Err(DataFusionError::Internal(message.to_owned()));
        };
        let rows = args.number_rows;
        let (truths, values) = (holds.to_array(rows)?, values.to_array(rows)?);
        let Some(truths) = truths.as_boolean_opt() else {
            return Ok(ColumnarValue::Array(Arc::new(BooleanArray::new_null(rows))));
        };
        // A constant list is not copied for every row.
        let is_constant = matches!(lists, ColumnarValue::Scalar(_));
        let lists = lists.to_array(if is_constant { 1 } else { rows })?;
        let (elements, ranges) = elements_of(&lists)?;
        let null_elements = elements.logical_nulls();
        let (null_lists, null_values) = (lists.logical_nulls(), values.logical_nulls());
        let decided = (0..rows).map(|row| {
            let list = if is_constant { 0 } else { row };
            let range = &ranges[list];
            if is_null(null_lists.as_ref(), list) {
                None
            } else if range.is_empty() {
                Some(false)
            } else if truths.is_valid(row) && truths.value(row) {
                Some(true)
            } else {
                let nulls = null_elements.as_ref();
                let nulls = nulls.map(|nulls| nulls.slice(range.start, range.len()).null_count());
                let is_open =
                    is_null(null_values.as_ref(), row) || nulls.is_some_and(|count| count > 0);
                (!is_open).then_some(false)
            }
        });
        let decided: BooleanArray = decided.collect();
        Ok(ColumnarValue::Array(Arc::new(decided)))
    }
}

fn is_null(nulls: Option<&NullBuffer>, row: usize) -> bool {
    nulls.is_some_and(|nulls| nulls.is_null(row))
}

/// The elements of all lists, and for each list which of them are its own.
fn elements_of(lists: &ArrayRef) -> Result<(ArrayRef, Vec<Range<usize>>)> {
    Ok(match lists.data_type() {
        DataType::List(_) => {
            let lists = lists.as_list::<i32>();
            (Arc::clone(lists.values()), to_ranges(lists.value_offsets()))
        }
        DataType::LargeList(_) => {
            let lists = lists.as_list::<i64>();
            (Arc::clone(lists.values()), to_ranges(lists.value_offsets()))
        }
        DataType::FixedSizeList(_, length) => {
            let length = usize::try_from(*length).unwrap_or_default();
            let ranges = (0..lists.len()).map(|row| row * length..(row + 1) * length);
            let elements = lists.as_fixed_size_list().values();
            (Arc::clone(elements), ranges.collect())
        }
        other => match element_of(other) {
            Some(element) => {
                let lists = cast(lists, &DataType::LargeList(Arc::clone(element)))?;
                return elements_of(&lists);
            }
            // A list that is NULL.
            None => (Arc::clone(lists), vec![0..0; lists.len()]),
        },
    })
}

fn to_ranges<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<Range<usize>> {
    let pairs = offsets.windows(2);
    pairs
        .map(|pair| pair[0].as_usize()..pair[1].as_usize())
        .collect()
}
