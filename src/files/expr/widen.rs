//! Casts columns to types that DataFusion can coerce without loss.
//!
//! DataFusion has no common type of a decimal of 32 or 64 bits and an integer, and cuts the decimal; and
//! it converts values that are compared with a dictionary of numbers to dictionaries. So such columns
//! become decimals of 128 bits and plain values before the coercion.

use arrow_schema::DataType;
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result};
use datafusion_expr::expr::Expr;
use datafusion_expr::{ExprSchemable, cast};

/// Casts the columns, functions and casts of such types in an expression.
pub(super) fn widen(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let widened = expr.transform_up(|node| {
        // The types of other expressions follow from their operands.
        let is_source = matches!(
            node,
            Expr::Column(_) | Expr::ScalarFunction(_) | Expr::Cast(_) | Expr::TryCast(_)
        );
        let own_type = is_source.then(|| node.get_type(schema).ok()).flatten();
        Ok(match own_type.as_ref().and_then(widened_type) {
            Some(to) => Transformed::yes(cast(node, to)),
            None => Transformed::no(node),
        })
    });
    widened.map(|widened| widened.data)
}

/// The type that values of a type are cast to, if any.
fn widened_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            Some(DataType::Decimal128(*precision, *scale))
        }
        // Dictionaries of strings and bytes are compared as they are, key by key.
        DataType::Dictionary(_, values) if values.is_string() || values.is_binary() => None,
        DataType::Dictionary(_, values) if !values.is_nested() => {
            Some(widened_type(values).unwrap_or_else(|| values.as_ref().clone()))
        }
        _ => None,
    }
}
