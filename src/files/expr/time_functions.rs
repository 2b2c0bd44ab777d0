//! Functions of times: an error where DataFusion has NULL, or another time, for a time that does not fit.
//!
//! `date_bin` computes in nanoseconds, and is NULL before 1678 and after 2261; `date_part` is NULL for years that the
//! calendar does not have. `date_trunc` wraps around at the first times of a type, and rounds constants before 1970 up.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, Field, FieldRef, Schema};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion_physical_expr::{PhysicalExpr, ScalarFunctionExpr};

const DATE_TRUNC: &str = "date_trunc";
/// Functions that have a value wherever their arguments have one.
const CHECKED_FUNCTIONS: [&str; 15] = [
    "date_bin",
    "date_part",
    DATE_TRUNC,
    "from_unixtime",
    "make_date",
    "make_time",
    "to_date",
    "to_local_time",
    "to_time",
    "to_timestamp",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    "to_unixtime",
];

/// A call of such a function, which fails where the value is NULL and no argument is.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct TimeFunctionExpr(ScalarFunctionExpr);

impl TimeFunctionExpr {
    /// Replaces a call of such a function; `None` for other expressions.
    pub(super) fn try_replace(expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
        let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
        if !CHECKED_FUNCTIONS.contains(&call.fun().name()) {
            return None;
        }
        let args = call.args().to_vec();
        Some(Arc::new(Self::with_args(call, args)))
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

    fn invoke(
        &self,
        args: Vec<ColumnarValue>,
        rows: usize,
        schema: &Schema,
    ) -> Result<ColumnarValue> {
        let arg_fields = self.0.args().iter().map(|arg| arg.return_field(schema));
        self.0.fun().invoke_with_args(ScalarFunctionArgs {
            args,
            arg_fields: arg_fields.collect::<Result<_>>()?,
            number_rows: rows,
            return_field: self.0.return_field(schema)?,
            config_options: Arc::new(self.0.config_options().clone()),
        })
    }
}

impl PhysicalExpr for TimeFunctionExpr {
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
        let name = self.0.fun().name();
        let args = self.0.args().iter().map(|arg| arg.evaluate(batch));
        let mut args = args.collect::<Result<Vec<_>>>()?;
        let is_constant = args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { batch.num_rows() };
        // Only arrays are rounded down before 1970.
        if let (DATE_TRUNC, [_, time]) = (name, args.as_mut_slice())
            && let ColumnarValue::Scalar(value) = &*time
            && matches!(value.data_type(), DataType::Timestamp(..))
        {
            *time = ColumnarValue::Array(value.to_array()?);
        }
        let values = self.invoke(args.clone(), rows, batch.schema_ref())?;
        let values = values.into_array_of_size(rows)?;
        check_present(name, &args, &values)?;
        if let (DATE_TRUNC, [_, ColumnarValue::Array(times)]) = (name, args.as_slice()) {
            check_truncated(times, &values)?;
        }
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

impl Display for TimeFunctionExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

/// Fails if a value is NULL where no argument is.
fn check_present(name: &str, args: &[ColumnarValue], values: &ArrayRef) -> Result<()> {
    let Some(nulls) = values
        .logical_nulls()
        .filter(|nulls| nulls.null_count() > 0)
    else {
        return Ok(());
    };
    let args = args.iter().map(|arg| arg.to_array(values.len()));
    let args = args.collect::<Result<Vec<_>>>()?;
    let arg_nulls: Vec<Option<NullBuffer>> = args.iter().map(|arg| arg.logical_nulls()).collect();
    let unknown = NullBuffer::union_many(arg_nulls.iter().map(Option::as_ref));
    let is_known = |row: usize| unknown.as_ref().is_none_or(|unknown| unknown.is_valid(row));
    match (0..values.len()).find(|row| nulls.is_null(*row) && is_known(*row)) {
        None => Ok(()),
        Some(row) => Err(out_of_range(name, &args, row)),
    }
}

/// Fails if a time was truncated to a later one: it wrapped around.
fn check_truncated(times: &ArrayRef, values: &ArrayRef) -> Result<()> {
    if !matches!(times.data_type(), DataType::Timestamp(..)) {
        return Ok(());
    }
    let number = |times: &ArrayRef| cast(times, &DataType::Int64);
    let (before, after) = (number(times)?, number(values)?);
    let before = before.as_primitive::<Int64Type>().iter();
    let mut pairs = before.zip(after.as_primitive::<Int64Type>());
    match pairs.position(|pair| matches!(pair, (Some(before), Some(after)) if after > before)) {
        None => Ok(()),
        Some(row) => Err(out_of_range(DATE_TRUNC, &[Arc::clone(times)], row)),
    }
}

fn out_of_range(name: &str, args: &[ArrayRef], row: usize) -> DataFusionError {
    let time = args.iter().find(|arg| {
        arg.data_type().is_temporal() && !matches!(arg.data_type(), DataType::Interval(_))
    });
    let shown = time.or(args.first()).map_or_else(String::new, |arg| {
        array_value_to_string(arg, row).unwrap_or_else(|e| e.to_string())
    });
    let message = format!(
        "{name} has no value for {shown}: it is out of the range that {name} computes with (that of date_bin is in \
         nanoseconds, from 1678 to 2261); leave such rows out, as in CASE WHEN"
    );
    DataFusionError::Execution(message)
}
