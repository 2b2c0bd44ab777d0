//! Values of which DataFusion does not look whether their type holds them: an error in place of another value.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Schema};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::expressions::CastExpr;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::parquet::types::find_overflow;

/// The most characters that a text is padded to.
const MAX_PADDED_CHARS: i64 = 65_536;

/// How values are checked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Check {
    /// Decimals have no more digits than their type.
    Digits,
    /// Floats become narrower ones of this type, and finite ones stay finite.
    Narrow(DataType),
    /// The length of a text is not too large, and not negative.
    TextLength,
}

/// An expression whose values are checked.
#[derive(Debug)]
pub(super) struct CheckedExpr {
    inner: Arc<dyn PhysicalExpr>,
    check: Check,
}

impl PartialEq for CheckedExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.as_ref() == other.inner.as_ref() && self.check == other.check
    }
}

impl Eq for CheckedExpr {}

impl Hash for CheckedExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
        self.check.hash(state);
    }
}

impl CheckedExpr {
    fn wrap(inner: Arc<dyn PhysicalExpr>, check: Check) -> Arc<dyn PhysicalExpr> {
        Arc::new(Self { inner, check })
    }

    /// The result of arithmetic: that of decimals may have a digit more than the type.
    pub(super) fn arithmetic(
        expr: Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(match expr.data_type(input)? {
            DataType::Decimal128(38, _) | DataType::Decimal256(76, _) => {
                Self::wrap(expr, Check::Digits)
            }
            _ => expr,
        })
    }

    /// Replaces casts to narrower floats, and functions that pad; `None` for other expressions.
    pub(super) fn try_replace(
        expr: &Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        use DataType::{Float16, Float32, Float64};
        if let Some(cast) = expr.downcast_ref::<CastExpr>() {
            let to = expr.data_type(input)?;
            let narrows = matches!(
                (cast.expr().data_type(input)?, &to),
                (Float64, Float16 | Float32) | (Float32, Float16)
            );
            return Ok(narrows.then(|| Self::wrap(Arc::clone(cast.expr()), Check::Narrow(to))));
        }
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
            return Ok(None);
        };
        let is_padding = matches!(call.fun().name(), "lpad" | "rpad");
        if !is_padding || call.args().len() < 2 {
            return Ok(None);
        }
        let mut args = call.args().to_vec();
        args[1] = Self::wrap(Arc::clone(&args[1]), Check::TextLength);
        Arc::clone(expr).with_new_children(args).map(Some)
    }
}

impl Check {
    fn apply(&self, values: ArrayRef) -> Result<ArrayRef> {
        match self {
            Self::Digits => {
                check_digits(&values)?;
                Ok(values)
            }
            Self::Narrow(to) => narrow(&values, to),
            Self::TextLength => {
                let Some(lengths) = values.as_primitive_opt::<Int64Type>() else {
                    return Ok(values);
                };
                if let Some(length) = lengths.iter().flatten().find(|n| *n > MAX_PADDED_CHARS) {
                    let message = format!(
                        "texts are padded to at most {MAX_PADDED_CHARS} characters, not {length}"
                    );
                    return Err(DataFusionError::Execution(message));
                }
                Ok(Arc::new(lengths.unary::<_, Int64Type>(|n| n.max(0))))
            }
        }
    }
}

fn check_digits(values: &ArrayRef) -> std::result::Result<(), ArrowError> {
    match values.data_type() {
        DataType::Decimal128(digits, _) => {
            let values = values.as_primitive::<Decimal128Type>();
            values.validate_decimal_precision(*digits)
        }
        DataType::Decimal256(digits, _) => {
            let values = values.as_primitive::<Decimal256Type>();
            values.validate_decimal_precision(*digits)
        }
        _ => Ok(()),
    }
}

fn narrow(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let narrowed = arrow_cast::cast(values, to)?;
    match find_overflow(values, &narrowed)? {
        Some(value) => {
            let message = format!("{value} is beyond the range of {to}");
            Err(DataFusionError::Execution(message))
        }
        None => Ok(narrowed),
    }
}

impl PhysicalExpr for CheckedExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        match &self.check {
            Check::Narrow(to) => Ok(to.clone()),
            Check::Digits | Check::TextLength => self.inner.data_type(input),
        }
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.inner.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        Ok(match self.inner.evaluate(batch)? {
            ColumnarValue::Array(values) => ColumnarValue::Array(self.check.apply(values)?),
            ColumnarValue::Scalar(value) => {
                let values = self.check.apply(value.to_array()?)?;
                ColumnarValue::Scalar(ScalarValue::try_from_array(&values, 0)?)
            }
        })
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next();
        let inner = inner.unwrap_or_else(|| Arc::clone(&self.inner));
        Ok(Self::wrap(inner, self.check.clone()))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.inner.fmt_sql(f)
    }
}

impl Display for CheckedExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.inner, f)
    }
}
