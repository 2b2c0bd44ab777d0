//! Expressions with functions that make texts, evaluated for some of the rows at a time: what they make of so many is
//! bounded, however many rows a batch has.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Schema};
use arrow_select::concat::concat;
use datafusion_common::Result;
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

use super::forward::forward;
use super::functions::makes_texts;
use super::text_sizes::{check_joined, made_size};

/// How many rows are evaluated at a time.
const TEXT_ROWS: usize = 8_192;

/// An expression that is evaluated for [`TEXT_ROWS`] rows at a time.
#[derive(Debug, Clone)]
pub(super) struct SlicedExpr(Arc<dyn PhysicalExpr>);

impl PartialEq for SlicedExpr {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref() == other.0.as_ref()
    }
}

impl Eq for SlicedExpr {}

impl Hash for SlicedExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl SlicedExpr {
    /// The expression or, if functions of it make texts, one that is evaluated for some of the rows at a time.
    pub(super) fn wrap(expr: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        if makes_texts(&expr) {
            Arc::new(Self(expr))
        } else {
            expr
        }
    }
}

impl PhysicalExpr for SlicedExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.0.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.0.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        if rows <= TEXT_ROWS {
            return self.0.evaluate(batch);
        }
        let mut parts = Vec::with_capacity(rows.div_ceil(TEXT_ROWS));
        let mut bytes = 0_usize;
        for begin in (0..rows).step_by(TEXT_ROWS) {
            let part = batch.slice(begin, TEXT_ROWS.min(rows - begin));
            let values = self.0.evaluate(&part)?.into_array(part.num_rows())?;
            bytes = bytes.saturating_add(made_size(&values));
            check_joined("an expression", bytes)?;
            parts.push(values);
        }
        let parts: Vec<&dyn Array> = parts.iter().map(|part| part.as_ref()).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }

    forward!(child 0);
    forward!(text 0);
}

forward!(Display for SlicedExpr, 0);

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, StringArray};
    use arrow_schema::Field;
    use datafusion_common::DFSchema;

    use super::super::semantics::to_physical;
    use super::super::sql;
    use super::*;

    const ROWS: usize = 2 * TEXT_ROWS + 5;

    fn column(text_of: impl Fn(usize) -> Option<String>) -> ArrayRef {
        Arc::new((0..ROWS).map(text_of).collect::<StringArray>())
    }

    #[test]
    fn parts_have_the_values_of_all_rows() {
        let texts = column(|row| (row % 7 > 0).then(|| format!("{row},{}", row % 3)));
        let others = column(|row| (row % 5 > 0).then(|| "x".repeat(row % 4)));
        let batch = RecordBatch::try_from_iter([("t", texts), ("p", others)]).unwrap();
        let columns = Arc::new(DFSchema::try_from(batch.schema()).unwrap());
        for text in [
            "t || p",
            "length(repeat(t, 2))",
            "string_to_array(t, ',')",
            "t || p > '5' AND p <> ''",
            "CASE WHEN p IS NULL THEN concat(t, 'y') END",
            "NULLIF(t || p, t || p)",
        ] {
            let planned = sql::with_stack(text, || {
                sql::plan_deterministic(text, &columns)
                    .and_then(|expr| to_physical(&expr, &columns))
                    .map_err(|e| sql::planning_error(text, e))
            });
            let sliced = planned.unwrap().0;
            let inner = &sliced.downcast_ref::<SlicedExpr>().expect(text).0;
            let values = |expr: &Arc<dyn PhysicalExpr>| {
                let value = expr.evaluate(&batch).unwrap();
                value.into_array(ROWS).unwrap()
            };
            assert_eq!(values(&sliced).as_ref(), values(inner).as_ref(), "{text}");
        }
    }

    #[test]
    fn others_are_evaluated_at_once() {
        let columns = Schema::new(vec![Field::new("t", DataType::Utf8, true)]);
        let columns = Arc::new(DFSchema::try_from(columns).unwrap());
        let expr = sql::with_stack("t", || {
            let planned = sql::plan_deterministic("upper(t) = 'A'", &columns);
            planned
                .and_then(|expr| to_physical(&expr, &columns))
                .map_err(|e| sql::planning_error("t", e))
        });
        assert!(!expr.unwrap().0.is::<SlicedExpr>());
    }
}
