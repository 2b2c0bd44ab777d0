//! The expressions of operators: SQL over the key, the value and the fields of the value.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use datafusion_common::{DFSchema, DataFusionError};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;

use super::super::keys::nullable;
use super::fields::{column_of, value_fields};
use crate::error::{Error, Result};
use crate::files::expr::sql;
use crate::files::expr::to_physical;

/// The columns that expressions see: `key`, `value`, and the fields of a value that is a struct, unless these are named
/// `key` or `value`.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) schema: SchemaRef,
    planned: Arc<DFSchema>,
}

impl Columns {
    pub(super) fn new(key: &Field, value: &Field) -> Result<Self> {
        let mut fields = vec![nullable(key, "key"), nullable(value, "value")];
        for field in value_fields(value) {
            if !matches!(field.name().as_str(), "key" | "value") {
                fields.push(nullable(&field, field.name()));
            }
        }
        let schema = Arc::new(Schema::new(fields));
        let planned = DFSchema::try_from(Arc::clone(&schema))
            .map_err(|e| sql::planning_error("the value", e))?;
        Ok(Self {
            schema,
            planned: Arc::new(planned),
        })
    }

    /// Plans an expression; `what` and its text name it in errors.
    pub(super) fn plan(&self, what: &str, name: &str, text: &str) -> Result<Planned> {
        let columns = &self.planned;
        let label = format!("{what} {}", sql::format_sql(text));
        sql::check_length(&label, text)?;
        let (expr, data_type) = sql::with_stack(&label, || {
            let planned =
                sql::plan_deterministic(text, columns).and_then(|expr| to_physical(&expr, columns));
            planned.map_err(|e| sql::planning_error(&label, e))
        })?;
        if data_type == DataType::Null {
            let message = format!("{label} has no type; cast it with CAST");
            return Err(Error::invalid(message));
        }
        Ok(Planned {
            expr,
            field: nullable(&Field::new(name, data_type, true), name),
            label,
        })
    }

    /// A column as it is: expressions widen some types.
    pub(super) fn unchanged(&self, index: usize) -> Planned {
        let field = self.schema.field(index).clone();
        Planned {
            expr: Arc::new(Column::new(field.name(), index)),
            label: format!("the column {:?}", field.name()),
            field,
        }
    }

    /// The columns of rows with the columns `key` and `value`.
    pub(super) fn of_rows(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let value = rows.column(1);
        let mut columns = vec![Arc::clone(rows.column(0)), Arc::clone(value)];
        for field in &self.schema.fields()[2..] {
            columns.push(column_of(value, field.name())?);
        }
        RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(Error::from_cause)
    }
}

/// A planned expression.
#[derive(Debug)]
pub(super) struct Planned {
    expr: Arc<dyn PhysicalExpr>,
    pub(super) field: Field,
    /// Names it in errors.
    pub(super) label: String,
}

impl Planned {
    /// The name of the column, if the expression is a column.
    pub(super) fn column(&self) -> Option<&str> {
        self.expr.downcast_ref::<Column>().map(Column::name)
    }

    /// With the values of a dictionary in place of it: keys and orders have none.
    pub(super) fn without_dictionary(mut self) -> Self {
        if let DataType::Dictionary(_, values) = self.field.data_type() {
            let values = values.as_ref().clone();
            self.field.set_data_type(values);
        }
        self
    }

    /// Its values for the columns of some rows.
    pub(super) fn evaluate(&self, columns: &RecordBatch) -> Result<ArrayRef> {
        let failed = |e: DataFusionError| {
            let reason = e.strip_backtrace();
            Error::invalid(format!("{} cannot be evaluated: {reason}", self.label)).with_source(e)
        };
        let value = self.expr.evaluate(columns).map_err(failed)?;
        let array = value.into_array(columns.num_rows()).map_err(failed)?;
        let is_dictionary = |data_type: &DataType| matches!(data_type, DataType::Dictionary(..));
        if is_dictionary(array.data_type()) && !is_dictionary(self.field.data_type()) {
            return cast(&array, self.field.data_type()).map_err(Error::from_cause);
        }
        Ok(array)
    }
}
