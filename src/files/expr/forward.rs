//! What an expression has from the one within, where it only evaluates rows in another way.

use std::sync::Arc;

use arrow_array::ArrayRef;
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

/// An expression, for methods that are forwarded.
pub(super) type ExprRef = Arc<dyn PhysicalExpr>;

/// Forwards methods to the expression within. Paths are written out: they are resolved where the macro is used.
///
/// | use | where | methods |
/// | --- | --- | --- |
/// | `forward!(binary)` | `PhysicalExpr` of a newtype of a `BinaryExpr` with a truth value | all but `evaluate` |
/// | `forward!(call)` | `PhysicalExpr` of a newtype of a `ScalarFunctionExpr` | all but `evaluate` and `nullable` |
/// | `forward!(child field)` | `PhysicalExpr` of a type that wraps its only child | `children`, `with_new_children` |
/// | `forward!(text field)` | `PhysicalExpr` | `fmt_sql` |
/// | `forward!(Display for Type, field)` | a module | the implementation |
macro_rules! forward {
    (binary) => {
        fn data_type(
            &self,
            _input: &::arrow_schema::Schema,
        ) -> ::datafusion_common::Result<::arrow_schema::DataType> {
            Ok(::arrow_schema::DataType::Boolean)
        }

        fn nullable(&self, input: &::arrow_schema::Schema) -> ::datafusion_common::Result<bool> {
            self.0.nullable(input)
        }

        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            children: Vec<$crate::files::expr::forward::ExprRef>,
        ) -> ::datafusion_common::Result<$crate::files::expr::forward::ExprRef> {
            let mut children = children.into_iter();
            let (left, right) = (children.next(), children.next());
            let left = left.unwrap_or_else(|| ::std::sync::Arc::clone(self.0.left()));
            let right = right.unwrap_or_else(|| ::std::sync::Arc::clone(self.0.right()));
            let binary = ::datafusion_physical_expr::expressions::BinaryExpr::new(
                left,
                *self.0.op(),
                right,
            );
            Ok(::std::sync::Arc::new(Self(binary)))
        }

        forward!(children 0);
        forward!(text 0);
    };
    (call) => {
        fn data_type(
            &self,
            input: &::arrow_schema::Schema,
        ) -> ::datafusion_common::Result<::arrow_schema::DataType> {
            self.0.data_type(input)
        }

        fn return_field(
            &self,
            input: &::arrow_schema::Schema,
        ) -> ::datafusion_common::Result<::arrow_schema::FieldRef> {
            self.0.return_field(input)
        }

        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            children: Vec<$crate::files::expr::forward::ExprRef>,
        ) -> ::datafusion_common::Result<$crate::files::expr::forward::ExprRef> {
            let call = &self.0;
            Ok(::std::sync::Arc::new(Self(
                ::datafusion_physical_expr::ScalarFunctionExpr::new(
                    call.name(),
                    ::std::sync::Arc::new(call.fun().clone()),
                    children,
                    call.return_field(&::arrow_schema::Schema::empty())?,
                    ::std::sync::Arc::new(call.config_options().clone()),
                ),
            )))
        }

        forward!(children 0);
        forward!(text 0);
    };
    (children $field:tt) => {
        fn children(&self) -> Vec<&$crate::files::expr::forward::ExprRef> {
            self.$field.children()
        }
    };
    (child $field:tt) => {
        fn children(&self) -> Vec<&$crate::files::expr::forward::ExprRef> {
            vec![&self.$field]
        }

        fn with_new_children(
            self: ::std::sync::Arc<Self>,
            children: Vec<$crate::files::expr::forward::ExprRef>,
        ) -> ::datafusion_common::Result<$crate::files::expr::forward::ExprRef> {
            let mut expr = Self::clone(&self);
            if let Some(child) = children.into_iter().next() {
                expr.$field = child;
            }
            Ok(::std::sync::Arc::new(expr))
        }
    };
    (text $field:tt) => {
        fn fmt_sql(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
            self.$field.fmt_sql(f)
        }
    };
    (Display for $type:ty, $field:tt) => {
        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(&self.$field, f)
            }
        }
    };
}

pub(super) use forward;

/// The values after a function of arrays, which sees a constant as one row.
pub(super) fn map_values(
    value: ColumnarValue,
    map: impl FnOnce(ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    Ok(match value {
        ColumnarValue::Array(values) => ColumnarValue::Array(map(values)?),
        ColumnarValue::Scalar(value) => {
            let values = map(value.to_array()?)?;
            ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?)
        }
    })
}

/// The values of a function of these arguments, which is evaluated for one row where all of them are constants.
pub(super) fn evaluate_rows(
    args: Vec<ColumnarValue>,
    rows: usize,
    evaluate: impl FnOnce(Vec<ColumnarValue>, usize) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    let mut values = args.iter();
    if values.all(|value| matches!(value, ColumnarValue::Scalar(_))) {
        let value = evaluate(args, 1)?;
        return ScalarValue::try_from_array(&value, 0).map(ColumnarValue::Scalar);
    }
    evaluate(args, rows).map(ColumnarValue::Array)
}
