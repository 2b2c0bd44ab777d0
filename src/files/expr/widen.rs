//! Casts columns to types that DataFusion can coerce without loss.
//!
//! DataFusion has no common type of a decimal of 32 or 64 bits and an integer, and cuts the decimal; and
//! it converts values that are compared with a dictionary of numbers to dictionaries. So such columns
//! become decimals of 128 bits and plain values before the coercion.
//!
//! Functions that read times from texts know no dictionaries; DataFusion casts the arguments of the others.
//!
//! Run-end encoded values become plain ones, too, also within structs and lists: an array of runs has no nulls of its
//! own, so that structs in runs would be compared where they are null, and their fields cannot be read.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, FieldRef};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{Expr, ScalarFunction};
use datafusion_expr::{
    ColumnarValue, ExprSchemable, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, cast,
};

use super::time_functions::TEXT_READERS;

/// The schema whose columns have the types of [`without_runs`].
pub(super) fn schema_without_runs(schema: &DFSchema) -> Result<DFSchema> {
    let plain = schema.iter().map(|(qualifier, field)| {
        let data_type = without_runs(field.data_type());
        let field = field.as_ref().clone().with_data_type(data_type);
        (qualifier.cloned(), Arc::new(field))
    });
    DFSchema::new_with_metadata(plain.collect(), schema.metadata().clone())
}

/// The type of the same values without run-end encoding, at any depth.
pub(crate) fn without_runs(data_type: &DataType) -> DataType {
    use DataType::{
        FixedSizeList, LargeList, LargeListView, List, ListView, Map, RunEndEncoded, Struct,
    };
    let plain = |field: &FieldRef| {
        let data_type = without_runs(field.data_type());
        if data_type == *field.data_type() {
            return Arc::clone(field);
        }
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match data_type {
        RunEndEncoded(_, values) => without_runs(values.data_type()),
        List(item) => List(plain(item)),
        LargeList(item) => LargeList(plain(item)),
        ListView(item) => ListView(plain(item)),
        LargeListView(item) => LargeListView(plain(item)),
        FixedSizeList(item, size) => FixedSizeList(plain(item), *size),
        Map(entries, sorted) => Map(plain(entries), *sorted),
        Struct(fields) => Struct(fields.iter().map(plain).collect()),
        other => other.clone(),
    }
}

/// Casts the columns, functions and casts of such types in an expression. A column of runs alone stays, unless it is a
/// condition.
pub(super) fn widen(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    if matches!(expr, Expr::Column(_))
        && let Ok(own_type) = expr.get_type(schema)
    {
        let plain = without_runs(&own_type);
        if plain != own_type && plain != DataType::Boolean {
            return Ok(expr);
        }
    }
    let widened = expr.transform_up(|node| {
        let node = read_dictionaries(node, schema);
        // The types of other expressions follow from their operands.
        let is_source = matches!(
            node,
            Expr::Column(_) | Expr::ScalarFunction(_) | Expr::Cast(_) | Expr::TryCast(_)
        );
        let Some(own_type) = is_source.then(|| node.get_type(schema).ok()).flatten() else {
            return Ok(Transformed::no(node));
        };
        let plain = without_runs(&own_type);
        let wide = widened_type(&plain);
        let is_plain = plain == own_type;
        let node = if is_plain {
            node
        } else {
            read_plain(node, plain)
        };
        Ok(match wide {
            Some(to) => Transformed::yes(cast(node, to)),
            None if is_plain => Transformed::no(node),
            None => Transformed::yes(node),
        })
    });
    widened.map(|widened| widened.data)
}

/// A call of one of [`TEXT_READERS`] with plain texts; other expressions as they are.
fn read_dictionaries(expr: Expr, schema: &DFSchema) -> Expr {
    match expr {
        Expr::ScalarFunction(call) if TEXT_READERS.contains(&call.func.name()) => {
            let args = call.args.into_iter();
            let args = args.map(|arg| match arg.get_type(schema) {
                Ok(DataType::Dictionary(_, values)) if values.is_string() => cast(arg, *values),
                _ => arg,
            });
            Expr::ScalarFunction(ScalarFunction {
                args: args.collect(),
                func: call.func,
            })
        }
        other => other,
    }
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

/// The values of an expression in the type `to`, which is its own one without runs. DataFusion's cast of structs does
/// not read runs in them, Arrow's does.
fn read_plain(expr: Expr, to: DataType) -> Expr {
    let signature = Signature::any(1, Volatility::Immutable);
    ScalarUDF::from(PlainValues { to, signature }).call(vec![expr])
}

/// The name of the function that reads values without runs; its nulls are those of its argument.
pub(super) const PLAIN_VALUES: &str = "plain_values";

/// The function.
#[derive(Debug, PartialEq, Eq, Hash)]
struct PlainValues {
    to: DataType,
    signature: Signature,
}

impl PlainValues {
    fn read(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        Ok(cast_with_options(values, &self.to, &options)?)
    }
}

impl ScalarUDFImpl for PlainValues {
    fn name(&self) -> &'static str {
        PLAIN_VALUES
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        let field = Field::new(self.name(), self.to.clone(), is_nullable);
        Ok(Arc::new(field))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.first() {
            Some(ColumnarValue::Array(values)) => self.read(values).map(ColumnarValue::Array),
            Some(ColumnarValue::Scalar(value)) => {
                let values = self.read(&value.to_array()?)?;
                ScalarValue::try_from_array(&values, 0).map(ColumnarValue::Scalar)
            }
            None => Err(DataFusionError::Internal("no values".to_owned())),
        }
    }
}
