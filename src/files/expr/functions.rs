//! Calls of functions that DataFusion evaluates to another value than SQL has, or with more memory than there is.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::calls::Call;
use super::{float_rounding, text_functions, time_functions};

/// A call of such a function.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct FunctionExpr(ScalarFunctionExpr);

impl FunctionExpr {
    /// Replaces a call of such a function; `None` for other expressions.
    pub(super) fn try_replace(expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
        let name = call.fun().name();
        let is_checked = time_functions::is_checked(name)
            || float_rounding::is_checked(name)
            || text_functions::is_checked(name);
        is_checked.then(|| {
            let args = call.args().to_vec();
            let replaced: Arc<dyn PhysicalExpr> = Arc::new(Self::with_args(call, args));
            replaced
        })
    }

    fn with_args(call: &ScalarFunctionExpr, args: Vec<Arc<dyn PhysicalExpr>>) -> Self {
        let data_type = call.return_type().clone();
        let type_field = Field::new(call.name(), data_type, call.nullable());
        Self(ScalarFunctionExpr::new(
            call.name(),
            Arc::new(call.fun().clone()),
            args,
            Arc::new(type_field),
            Arc::new(call.config_options().clone()),
        ))
    }
}

impl PhysicalExpr for FunctionExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.0.data_type(input)
    }

    fn nullable(&self, _input: &Schema) -> Result<bool> {
        Ok(self.0.nullable())
    }

    fn return_field(&self, input: &Schema) -> Result<FieldRef> {
        self.0.return_field(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let args = self.0.args().iter().map(|arg| arg.evaluate(batch));
        let args = args.collect::<Result<Vec<_>>>()?;
        let is_constant = args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { batch.num_rows() };
        let call = Call::new(&self.0, args, rows, batch.schema_ref());
        let values = if time_functions::is_checked(call.name()) {
            time_functions::evaluate(&call)?
        } else if float_rounding::is_checked(call.name()) {
            float_rounding::evaluate(&call)?
        } else {
            text_functions::evaluate(&call)?
        };
        if is_constant {
            return ScalarValue::try_from_array(&values, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(values))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.0.args().iter().collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(Self::with_args(&self.0, children)))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

impl Display for FunctionExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}
