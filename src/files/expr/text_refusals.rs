//! Texts beside values of another type where DataFusion would round or cut the texts, refused when it is planned.

use arrow_schema::DataType;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_common::{DFSchema, DataFusionError, Result};
use datafusion_expr::ExprSchemable;
use datafusion_expr::expr::{BinaryExpr, Expr, ScalarFunction};

use super::exact_texts::{EXACT_TEXT, is_text};
use super::operators::is_comparison;
use super::refusals::compared_operands;
use super::time_literals::{parse_time_of_day, string_literal};
use crate::parquet::nested::element_of;

const ELEMENTS: &str = "ANY and ALL do not read texts as numbers or times; compare a text, as in \
                        CAST(n AS VARCHAR) = ANY(l)";

/// Refuses texts that are chosen beside dates or compared with numbers by their letters, and texts within lists and
/// structs that are compared with decimals or times. `expr` has not been coerced, but its single texts are exact.
pub(super) fn check_texts(expr: &Expr, schema: &DFSchema) -> Result<()> {
    expr.apply(|node| {
        let reason = match node {
            Expr::ScalarFunction(call) => reason_of_call(call, schema),
            Expr::BinaryExpr(binary) => reason_of_comparison(binary, schema),
            _ => None,
        };
        let mut groups = compared_operands(node).into_iter();
        match reason.or_else(|| groups.find_map(|operands| reason_of_group(&operands, schema))) {
            Some(reason) => Err(DataFusionError::Plan(reason.to_owned())),
            None => Ok(TreeNodeRecursion::Continue),
        }
    })?;
    Ok(())
}

/// Why texts beside other values of a call are refused.
fn reason_of_call(call: &ScalarFunction, schema: &DFSchema) -> Option<&'static str> {
    let types = || call.args.iter().filter_map(|arg| arg.get_type(schema).ok());
    match call.func.name() {
        // They would be ordered by their letters.
        "greatest" | "least" => {
            let mixes = types().any(|t| is_text(&t)) && types().any(|t| t.is_numeric());
            mixes.then_some("a text and a number have no common order; cast one of them")
        }
        // This is `value = ANY(list)`.
        "array_has" => {
            let (list, value) = (types().next()?, types().nth(1)?);
            let element = element_of(&list)?.data_type();
            are_inexact(element, &value).then_some(ELEMENTS)
        }
        _ => None,
    }
}

/// `value < ANY(list)` compares with the greatest element, which of texts is the one by their letters.
fn reason_of_comparison(binary: &BinaryExpr, schema: &DFSchema) -> Option<&'static str> {
    let sides = [binary.left.as_ref(), binary.right.as_ref()];
    let is_other = |side: &&Expr| side.get_type(schema).is_ok_and(|t| !is_text(&t));
    let mixes = is_comparison(binary.op)
        && sides.iter().any(|side| is_extreme_of_texts(side, schema))
        && sides.iter().any(is_other);
    mixes.then_some(ELEMENTS)
}

/// Whether an expression is the least or the greatest text of a list, or the value that is read from it.
fn is_extreme_of_texts(expr: &Expr, schema: &DFSchema) -> bool {
    let call = match expr {
        Expr::ScalarFunction(call) => call,
        Expr::Cast(cast) => return is_extreme_of_texts(&cast.expr, schema),
        _ => return false,
    };
    let Some(arg) = call.args.first() else {
        return false;
    };
    match call.func.name() {
        "array_min" | "array_max" => arg.get_type(schema).is_ok_and(|list| {
            element_of(&list).is_some_and(|element| is_text(element.data_type()))
        }),
        EXACT_TEXT => is_extreme_of_texts(arg, schema),
        _ => false,
    }
}

/// Why texts among values that get a common type are refused.
fn reason_of_group(operands: &[&Expr], schema: &DFSchema) -> Option<&'static str> {
    let typed: Vec<(&Expr, DataType)> = operands
        .iter()
        .filter_map(|operand| Some((*operand, operand.get_type(schema).ok()?)))
        .collect();
    let is_date = |(_, t): &(&Expr, DataType)| matches!(t, DataType::Date32 | DataType::Date64);
    // The texts of comparisons are timestamps here, unless they are dates.
    let is_cut = |(operand, data_type): &(&Expr, DataType)| {
        is_text(data_type)
            && string_literal(operand).is_none_or(|text| parse_time_of_day(text).is_some())
    };
    if typed.iter().any(is_date) && typed.iter().any(is_cut) {
        return Some(
            "a date and a text that may have a time of day have no common type; cast one of them",
        );
    }
    let mut nested: Vec<&DataType> = Vec::new();
    for (_, data_type) in typed.iter().filter(|(_, t)| t.is_nested()) {
        if !nested.contains(&data_type) {
            nested.push(data_type);
        }
    }
    let mut pairs = nested
        .iter()
        .flat_map(|a| nested.iter().map(move |b| (a, b)));
    pairs.any(|(a, b)| mix_texts(a, b)).then_some(
        "texts within structs or lists are not compared with decimals, dates or timestamps; compare the fields",
    )
}

/// Whether texts within one type are compared with decimals or times within another.
fn mix_texts(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::Struct(a), DataType::Struct(b)) => a.iter().enumerate().any(|(place, field)| {
            let named = b.find(field.name()).map(|(_, other)| other);
            let other = named.or_else(|| b.get(place));
            other.is_some_and(|other| mix_texts(field.data_type(), other.data_type()))
        }),
        (a, b) => match (element_of(a), element_of(b)) {
            (Some(a), Some(b)) => mix_texts(a.data_type(), b.data_type()),
            _ => are_inexact(a, b),
        },
    }
}

/// Whether one is a text, which a cast to the other would round or cut.
fn are_inexact(a: &DataType, b: &DataType) -> bool {
    use DataType::{Date32, Date64, Timestamp};
    let is_cast = |t: &DataType| t.is_decimal() || matches!(t, Date32 | Date64 | Timestamp(..));
    (is_text(a) && is_cast(b)) || (is_cast(a) && is_text(b))
}
