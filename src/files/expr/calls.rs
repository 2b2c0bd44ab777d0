//! A call of a function whose arguments have been evaluated.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{DataType, Field, Schema};
use datafusion_common::config::ConfigOptions;
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF};
use datafusion_physical_expr::ScalarFunctionExpr;

/// The call, for one row if all arguments are constants.
pub(super) struct Call<'a> {
    expr: &'a ScalarFunctionExpr,
    args: Vec<ColumnarValue>,
    rows: usize,
    schema: &'a Schema,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        expr: &'a ScalarFunctionExpr,
        args: Vec<ColumnarValue>,
        rows: usize,
        schema: &'a Schema,
    ) -> Self {
        Self {
            expr,
            args,
            rows,
            schema,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.expr.fun().name()
    }

    pub(super) fn return_type(&self) -> &DataType {
        self.expr.return_type()
    }

    pub(super) fn options(&self) -> &ConfigOptions {
        self.expr.config_options()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn args(&self) -> &[ColumnarValue] {
        &self.args
    }

    /// The argument at a position, for every row.
    pub(super) fn array(&self, at: usize) -> Result<ArrayRef> {
        match self.args.get(at) {
            Some(arg) => arg.to_array(self.rows),
            None => Err(DataFusionError::Internal(format!(
                "{} has too few arguments",
                self.name()
            ))),
        }
    }

    /// All arguments, for every row.
    pub(super) fn arrays(&self) -> Result<Vec<ArrayRef>> {
        let args = self.args.iter().map(|arg| arg.to_array(self.rows));
        args.collect()
    }

    /// The values of the function of these arguments, which have the types of the call's own.
    pub(super) fn invoke(&self, args: Vec<ColumnarValue>) -> Result<ArrayRef> {
        self.invoke_as(self.expr.fun(), self.return_type(), args)
    }

    /// The values of the function of these arguments for some of the rows.
    pub(super) fn invoke_rows(
        &self,
        args: &[ColumnarValue],
        begin: usize,
        rows: usize,
    ) -> Result<ArrayRef> {
        let args = args.iter().map(|arg| match arg {
            ColumnarValue::Array(values) => ColumnarValue::Array(values.slice(begin, rows)),
            constant @ ColumnarValue::Scalar(_) => constant.clone(),
        });
        self.invoke_for(rows, self.expr.fun(), self.return_type(), args.collect())
    }

    /// The values of another function of these arguments.
    pub(super) fn invoke_as(
        &self,
        function: &ScalarUDF,
        return_type: &DataType,
        args: Vec<ColumnarValue>,
    ) -> Result<ArrayRef> {
        self.invoke_for(self.rows, function, return_type, args)
    }

    fn invoke_for(
        &self,
        rows: usize,
        function: &ScalarUDF,
        return_type: &DataType,
        args: Vec<ColumnarValue>,
    ) -> Result<ArrayRef> {
        let fields = self.expr.args().iter();
        let fields = fields.map(|arg| arg.return_field(self.schema));
        let return_field = Field::new(self.name(), return_type.clone(), self.expr.nullable());
        let values = function.invoke_with_args(ScalarFunctionArgs {
            args,
            arg_fields: fields.collect::<Result<_>>()?,
            number_rows: rows,
            return_field: Arc::new(return_field),
            config_options: Arc::new(self.options().clone()),
        })?;
        values.into_array_of_size(rows)
    }
}
