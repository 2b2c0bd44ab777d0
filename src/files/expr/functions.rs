//! Calls of functions that DataFusion evaluates to another value than SQL has, or with more memory than there is.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{Field, Schema};
use datafusion_common::Result;
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::calls::Call;
use super::forward::{evaluate_rows, forward};
use super::joined_texts::joins_texts;
use super::split_texts::splits_texts;
use super::{float_rounding, logarithms, text_functions, time_functions};

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
            || logarithms::is_checked(name)
            || text_functions::is_checked(name);
        is_checked.then(|| {
            let type_field = Field::new(call.name(), call.return_type().clone(), call.nullable());
            let replaced: Arc<dyn PhysicalExpr> = Arc::new(Self(ScalarFunctionExpr::new(
                call.name(),
                Arc::new(call.fun().clone()),
                call.args().to_vec(),
                Arc::new(type_field),
                Arc::new(call.config_options().clone()),
            )));
            replaced
        })
    }
}

/// Whether functions of an expression make texts, of which the size is bounded for a batch of rows.
pub(super) fn makes_texts(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let call = expr.downcast_ref::<FunctionExpr>();
    let makes_own = call.is_some_and(|call| text_functions::is_checked(call.0.fun().name()));
    makes_own
        || joins_texts(expr)
        || splits_texts(expr)
        || expr.children().into_iter().any(makes_texts)
}

impl PhysicalExpr for FunctionExpr {
    forward!(call);

    fn nullable(&self, _input: &Schema) -> Result<bool> {
        Ok(self.0.nullable())
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let args = self.0.args().iter().map(|arg| arg.evaluate(batch));
        let args = args.collect::<Result<Vec<_>>>()?;
        evaluate_rows(args, batch.num_rows(), |args, rows| {
            let call = Call::new(&self.0, args, rows, batch.schema_ref());
            if time_functions::is_checked(call.name()) {
                time_functions::evaluate(&call)
            } else if float_rounding::is_checked(call.name()) {
                float_rounding::evaluate(&call)
            } else if logarithms::is_checked(call.name()) {
                logarithms::evaluate(&call)
            } else {
                text_functions::evaluate(&call)
            }
        })
    }
}

forward!(Display for FunctionExpr, 0);

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;
    use datafusion_common::DFSchema;

    use super::super::semantics::to_physical;
    use super::super::sql;
    use super::*;

    #[test]
    fn functions_that_make_texts_are_seen_at_any_depth() {
        let fields = ["t", "p"].map(|name| Field::new(name, DataType::Utf8, true));
        let columns = Arc::new(DFSchema::try_from(Schema::new(fields.to_vec())).unwrap());
        let makes = |text: &str| {
            let planned = sql::with_stack(text, || {
                sql::plan_deterministic(text, &columns)
                    .and_then(|expr| to_physical(&expr, &columns))
                    .map_err(|e| sql::planning_error(text, e))
            });
            makes_texts(&planned.unwrap().0)
        };
        for text in [
            "(t || p) = 'a'",
            "NOT (repeat(t, 2) = p)",
            "'a' = ANY(string_to_array(t, p))",
        ] {
            assert!(makes(text), "{text}");
        }
        assert!(!makes("upper(t) = 'A' AND t <> p"));
    }
}
