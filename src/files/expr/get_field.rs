//! Fields of structs and values of maps: null where the struct or the map is null.
//!
//! DataFusion's `get_field` returns a struct's child as it is stored, and under a null struct the child
//! may hold any value.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use datafusion_common::config::ConfigOptions;
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::forward::forward;
use crate::parquet::plain_values::with_nulls;

/// The name of DataFusion's function.
const GET_FIELD: &str = "get_field";

/// A call of `get_field` with one step, null where its parent is null.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct GetFieldExpr(ScalarFunctionExpr);

impl GetFieldExpr {
    /// Replaces a call of `get_field` by one call for each of its steps; `None` for other expressions.
    pub(super) fn try_replace(
        expr: &Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else {
            return Ok(None);
        };
        let (GET_FIELD, [base, names @ ..]) = (call.fun().name(), call.args()) else {
            return Ok(None);
        };
        let mut inner = Arc::clone(base);
        for name in names {
            let args = vec![inner, Arc::clone(name)];
            let function = Arc::new(call.fun().clone());
            let step = ScalarFunctionExpr::try_new(function, args, input, default_config())?;
            inner = Arc::new(Self(step.with_nullable(true)));
        }
        Ok(Some(inner))
    }
}

/// `get_field` reads no option.
fn default_config() -> Arc<ConfigOptions> {
    Arc::new(ConfigOptions::default())
}

impl PhysicalExpr for GetFieldExpr {
    forward!(call);

    fn nullable(&self, _input: &Schema) -> Result<bool> {
        Ok(true)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let arg_exprs = self.0.args();
        let args = arg_exprs
            .iter()
            .map(|arg| arg.evaluate(batch))
            .collect::<Result<Vec<_>>>()?;
        let parent = args.first().cloned();
        let arg_fields = arg_exprs
            .iter()
            .map(|arg| arg.return_field(batch.schema_ref()));
        let return_field = self.return_field(batch.schema_ref())?;
        if let Some(ColumnarValue::Scalar(parent)) = &parent
            && parent.is_null()
        {
            let null = ScalarValue::try_from(return_field.data_type())?;
            return Ok(ColumnarValue::Scalar(null));
        }
        let child = self.0.fun().invoke_with_args(ScalarFunctionArgs {
            args,
            arg_fields: arg_fields.collect::<Result<_>>()?,
            number_rows: batch.num_rows(),
            return_field,
            config_options: default_config(),
        })?;
        match (child, parent) {
            (ColumnarValue::Array(child), Some(ColumnarValue::Array(parent))) => {
                let nulls = parent.logical_nulls();
                let child = with_nulls(&child, nulls.as_ref())
                    .map_err(|e| DataFusionError::External(Box::new(e)))?;
                Ok(ColumnarValue::Array(child))
            }
            // A constant parent has one value.
            (ColumnarValue::Array(child), _) if child.len() == 1 => {
                let value = ScalarValue::try_from_array(&child, 0)?;
                Ok(ColumnarValue::Scalar(value))
            }
            (child, _) => Ok(child),
        }
    }
}

forward!(Display for GetFieldExpr, 0);
