//! Functions of times: an error where DataFusion has NULL, or another time, for a time that does not fit.
//!
//! `date_bin` computes in nanoseconds, and is NULL before 1678 and after 2261; `date_part` is NULL for years that the
//! calendar does not have. `date_trunc` wraps around at the first times of a type, and rounds constants before 1970 up.
//! So do `to_unixtime` and `to_timestamp_seconds`, `_millis` and `_micros`, of texts and of finer timestamps: here they
//! have the time at or before that, as `date_trunc` has.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use datafusion_common::{DataFusionError, Result, ScalarValue};
use datafusion_expr::ColumnarValue;
use datafusion_functions::datetime::to_timestamp_nanos;

use super::calls::Call;
use super::time_casts::cast_times;
use super::truncation::truncate_days;

const DATE_BIN: &str = "date_bin";
const DATE_TRUNC: &str = "date_trunc";
const TO_UNIXTIME: &str = "to_unixtime";
/// Functions that read times from texts, among others, and have a value wherever their arguments have one.
pub(super) const TEXT_READERS: [&str; 8] = [
    "to_date",
    "to_time",
    "to_timestamp",
    "to_timestamp_micros",
    "to_timestamp_millis",
    "to_timestamp_nanos",
    "to_timestamp_seconds",
    TO_UNIXTIME,
];
/// Other functions that have a value wherever their arguments have one.
const CHECKED_FUNCTIONS: [&str; 7] = [
    DATE_BIN,
    "date_part",
    DATE_TRUNC,
    "from_unixtime",
    "make_date",
    "make_time",
    "to_local_time",
];

pub(super) fn is_checked(name: &str) -> bool {
    CHECKED_FUNCTIONS.contains(&name) || TEXT_READERS.contains(&name)
}

/// The values of a call of such a function; an error where one is NULL and no argument is.
pub(super) fn evaluate(call: &Call<'_>) -> Result<ArrayRef> {
    if call.name() == DATE_BIN {
        check_stride(call.args().first())?;
    }
    let mut args = call.args().to_vec();
    // Only arrays are rounded down before 1970.
    if let (DATE_TRUNC, [_, time]) = (call.name(), args.as_mut_slice())
        && let ColumnarValue::Scalar(value) = &*time
        && matches!(value.data_type(), DataType::Timestamp(..))
    {
        *time = ColumnarValue::Array(value.to_array()?);
    }
    let computed = match convert_down(call)? {
        None if call.name() == DATE_TRUNC => truncate(call)?,
        converted => converted,
    };
    let values = match computed {
        Some(values) => values,
        None => call.invoke(args)?,
    };
    check_present(call, &values)?;
    match call.name() {
        DATE_TRUNC => check_truncated(&call.array(1)?, &values)?,
        DATE_BIN
            if matches!(
                values.data_type(),
                DataType::Time32(_) | DataType::Time64(_)
            ) =>
        {
            check_time_of_day(call, &values)?;
        }
        _ => {}
    }
    Ok(values)
}

/// The truncated times, where DataFusion does not have those of every year; `None` for others.
fn truncate(call: &Call<'_>) -> Result<Option<ArrayRef>> {
    // DataFusion refuses lengths that are not constant.
    let Some(ColumnarValue::Scalar(length)) = call.args().first() else {
        return Ok(None);
    };
    match length.try_as_str().flatten() {
        Some(length) => truncate_days(length, &call.array(1)?),
        None => Ok(None),
    }
}

/// The value of a function that converts to a coarser unit, which DataFusion rounds towards 1970; `None` for others.
fn convert_down(call: &Call<'_>) -> Result<Option<ArrayRef>> {
    use DataType::{Date32, Date64, Decimal128, Timestamp};
    let is_number = call.name() == TO_UNIXTIME;
    let to = match call.name() {
        TO_UNIXTIME => Timestamp(TimeUnit::Second, None),
        "to_timestamp_seconds" | "to_timestamp_millis" | "to_timestamp_micros" => {
            call.return_type().clone()
        }
        _ => return Ok(None),
    };
    let values = call.array(0)?;
    let times = match values.data_type() {
        Timestamp(..) => cast_times(&values, &to)?,
        Date32 | Date64 if is_number => cast_times(&values, &to)?,
        Decimal128(_, scale @ 0..) if !is_number => cast(&floor(&values, *scale), &to)?,
        data_type if data_type.is_string() && call.args().len() == 1 => {
            let options = CastOptions {
                safe: false,
                ..CastOptions::default()
            };
            cast_with_options(&values, &to, &options)?
        }
        data_type if data_type.is_string() => {
            let nanoseconds = Timestamp(TimeUnit::Nanosecond, None);
            let function = to_timestamp_nanos(call.options());
            let times = call.invoke_as(&function, &nanoseconds, call.args().to_vec())?;
            cast_times(&times, &to)?
        }
        _ => return Ok(None),
    };
    Ok(Some(if is_number {
        cast(&times, &DataType::Int64)?
    } else {
        times
    }))
}

/// The whole numbers at or before decimals; null where that has more than 64 bits.
fn floor(decimals: &ArrayRef, scale: i8) -> ArrayRef {
    let factor = 10_i128.pow(scale.unsigned_abs().into());
    let decimals = decimals.as_primitive::<Decimal128Type>();
    let whole = decimals
        .unary_opt::<_, Int64Type>(|decimal| i64::try_from(decimal.div_euclid(factor)).ok());
    Arc::new(whole)
}

/// Refuses bins that do not go forwards: times before 1970 would be in the bin after theirs.
fn check_stride(stride: Option<&ColumnarValue>) -> Result<()> {
    let length = match stride {
        Some(ColumnarValue::Scalar(ScalarValue::IntervalMonthDayNano(Some(stride)))) => {
            let days = i128::from(stride.days) * 86_400_000_000_000;
            i128::from(stride.months).min(0) + (days + i128::from(stride.nanoseconds)).min(0)
        }
        Some(ColumnarValue::Scalar(ScalarValue::IntervalDayTime(Some(stride)))) => {
            i128::from(stride.days) * 86_400_000 + i128::from(stride.milliseconds)
        }
        _ => 0,
    };
    if length < 0 {
        let message =
            "the stride of date_bin has to be longer than zero, as in INTERVAL '15 minutes'";
        return Err(DataFusionError::Execution(message.to_owned()));
    }
    Ok(())
}

/// Fails if a bin of times of day begins on the day before.
fn check_time_of_day(call: &Call<'_>, values: &ArrayRef) -> Result<()> {
    let numbers = cast(values, &DataType::Int64)?;
    let mut numbers = numbers.as_primitive::<Int64Type>().iter();
    match numbers.position(|number| number.is_some_and(|number| number < 0)) {
        None => Ok(()),
        Some(row) => Err(out_of_range(DATE_BIN, &call.arrays()?, row)),
    }
}

/// Fails if a value is NULL where no argument is.
fn check_present(call: &Call<'_>, values: &ArrayRef) -> Result<()> {
    let Some(nulls) = values
        .logical_nulls()
        .filter(|nulls| nulls.null_count() > 0)
    else {
        return Ok(());
    };
    let args = call.arrays()?;
    let arg_nulls: Vec<Option<NullBuffer>> = args.iter().map(|arg| arg.logical_nulls()).collect();
    let unknown = NullBuffer::union_many(arg_nulls.iter().map(Option::as_ref));
    let is_known = |row: usize| unknown.as_ref().is_none_or(|unknown| unknown.is_valid(row));
    match (0..values.len()).find(|row| nulls.is_null(*row) && is_known(*row)) {
        None => Ok(()),
        Some(row) => Err(out_of_range(call.name(), &args, row)),
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
