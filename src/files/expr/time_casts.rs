//! Casts between dates, times and timestamps, where Arrow wraps around, rounds up, or fails in place of NULL.
//!
//! Arrow multiplies the milliseconds of a `Date64` without a look at the result, divides times before 1970 towards
//! 1970, and fails for a timestamp beyond the years of the calendar in `TRY_CAST`, too. Here a coarser unit has the time
//! at or before the value, as `date_trunc` has. A value that the other type does not have is an error, and NULL for
//! `TRY_CAST`.

use std::fmt::{self, Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, Schema, TimeUnit};
use chrono::{DateTime, Utc};
use datafusion_common::{DataFusionError, Result};
use datafusion_expr::ColumnarValue;
use datafusion_physical_expr::PhysicalExpr;

use super::forward::{forward, map_values};
use super::lossless_cast::keeps_all_values;
use super::operators::as_cast;

/// A zone moves a time by less than this.
const ZONE_SECONDS: i64 = 2 * 86_400;

/// A cast between dates, times and timestamps.
#[derive(Debug, Clone)]
pub(super) struct TimeCastExpr {
    inner: Arc<dyn PhysicalExpr>,
    to: DataType,
    /// Whether a value that `to` does not have is NULL; otherwise it is an error.
    or_null: bool,
}

impl PartialEq for TimeCastExpr {
    fn eq(&self, other: &Self) -> bool {
        self.inner.as_ref() == other.inner.as_ref()
            && self.to == other.to
            && self.or_null == other.or_null
    }
}

impl Eq for TimeCastExpr {}

impl Hash for TimeCastExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
        self.to.hash(state);
        self.or_null.hash(state);
    }
}

impl TimeCastExpr {
    /// Replaces such a cast; `None` for other expressions.
    pub(super) fn try_replace(
        expr: &Arc<dyn PhysicalExpr>,
        input: &Schema,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let Some((inner, to, or_null)) = as_cast(expr) else {
            return Ok(None);
        };
        if !is_time_cast(&inner.data_type(input)?, to) {
            return Ok(None);
        }
        Ok(Some(Arc::new(Self {
            inner: Arc::clone(inner),
            to: to.clone(),
            or_null,
        })))
    }

    /// What is cast to a timestamp that is the same point in time; `None` if the cast may change a value.
    pub(super) fn lossless_source(&self, input: &Schema) -> Result<Option<&Arc<dyn PhysicalExpr>>> {
        if self.or_null || !matches!(self.to, DataType::Timestamp(..)) {
            return Ok(None);
        }
        let from = self.inner.data_type(input)?;
        Ok(keeps_all_values(&from, &self.to).then_some(&self.inner))
    }

    fn cast(&self, values: &ArrayRef) -> Result<ArrayRef> {
        let result = cast_times(values, &self.to)?;
        if self.or_null || result.null_count() == values.null_count() {
            return Ok(result);
        }
        match (0..values.len()).find(|row| result.is_null(*row) && values.is_valid(*row)) {
            None => Ok(result),
            Some(row) => Err(self.out_of_range(values, row)?),
        }
    }

    fn out_of_range(&self, values: &ArrayRef, row: usize) -> Result<DataFusionError> {
        let shown = array_value_to_string(values, row)?;
        // The calendar does not have the year.
        let shown = if shown.starts_with("ERROR") {
            array_value_to_string(&cast(values, &DataType::Int64)?, row)?
        } else {
            shown
        };
        let advice = match self.to {
            DataType::Timestamp(TimeUnit::Nanosecond, _) => {
                "nanoseconds are those from 1678 to 2261: cast what is beside them to microseconds, as in \
                 CAST(t AS TIMESTAMP(6)), or a length of time by arrow_cast(d, 'Duration(Microsecond)'), or leave such \
                 rows out; TRY_CAST has NULL for them"
            }
            _ => "leave such rows out, as in CASE WHEN; TRY_CAST has NULL for them",
        };
        let message = format!(
            "{} has the value {shown}, which {} does not have; {advice}",
            AsSql(self.inner.as_ref()),
            self.to
        );
        Ok(DataFusionError::Execution(message))
    }
}

/// An expression as SQL, with the names of columns.
struct AsSql<'a>(&'a dyn PhysicalExpr);

impl Display for AsSql<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

fn is_time_cast(from: &DataType, to: &DataType) -> bool {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    matches!(
        (from, to),
        (Date32 | Date64 | Timestamp(..), Timestamp(..))
            | (Date64, Date32)
            | (Timestamp(..), Date32 | Date64 | Time32(_) | Time64(_))
            | (Time32(_) | Time64(_), Time32(_) | Time64(_))
    )
}

/// The values in another type of dates, times or timestamps; null where it does not have the value.
pub(super) fn cast_times(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    use DataType::{Date32, Date64, Time32, Timestamp};
    let from = values.data_type();
    if from == to {
        return Ok(Arc::clone(values));
    }
    Ok(match (from, to) {
        (Date32 | Date64 | Timestamp(..), Timestamp(unit, _)) => {
            let zone = match from {
                Timestamp(_, zone) => zone.clone(),
                _ => None,
            };
            let in_unit = cast(&rescale(values, to)?, &Timestamp(*unit, zone))?;
            cast(&in_unit, to)?
        }
        (Timestamp(..), Date64) => cast(&cast(&within_calendar(values)?, &Date32)?, to)?,
        (Timestamp(..), _) => cast(&within_calendar(values)?, to)?,
        (_, Time32(_)) => cast(&cast(&rescale(values, to)?, &DataType::Int32)?, to)?,
        _ => cast(&rescale(values, to)?, to)?,
    })
}

/// The numbers of ticks of another type, which for a coarser one is that at or before the value; null where there are
/// too many.
fn rescale(values: &ArrayRef, to: &DataType) -> Result<Int64Array> {
    let numbers = cast(values, &DataType::Int64)?;
    let numbers = numbers.as_primitive::<Int64Type>();
    let (own, other) = (tick_nanoseconds(values.data_type()), tick_nanoseconds(to));
    Ok(if own < other {
        let ticks = other / own;
        numbers.unary::<_, Int64Type>(|number| number.div_euclid(ticks))
    } else {
        let ticks = own / other;
        numbers.unary_opt::<_, Int64Type>(|number| number.checked_mul(ticks))
    })
}

/// How long one tick of a date, a time or a timestamp is.
pub(super) fn tick_nanoseconds(data_type: &DataType) -> i64 {
    use DataType::{Date32, Date64, Time32, Time64, Timestamp};
    match data_type {
        Date32 => 86_400_000_000_000,
        Date64 => 1_000_000,
        Timestamp(unit, _) | Time32(unit) | Time64(unit) => match unit {
            TimeUnit::Second => 1_000_000_000,
            TimeUnit::Millisecond => 1_000_000,
            TimeUnit::Microsecond => 1_000,
            TimeUnit::Nanosecond => 1,
        },
        _ => 1,
    }
}

/// The timestamps of which the calendar has the years; null for the others.
fn within_calendar(values: &ArrayRef) -> Result<ArrayRef> {
    let first = DateTime::<Utc>::MIN_UTC.timestamp() + ZONE_SECONDS;
    let last = DateTime::<Utc>::MAX_UTC.timestamp() - ZONE_SECONDS;
    let ticks = 1_000_000_000 / tick_nanoseconds(values.data_type());
    let numbers = cast(values, &DataType::Int64)?;
    let kept = numbers
        .as_primitive::<Int64Type>()
        .unary_opt::<_, Int64Type>(|number| {
            (first..=last)
                .contains(&number.div_euclid(ticks))
                .then_some(number)
        });
    Ok(cast(&kept, values.data_type())?)
}

impl PhysicalExpr for TimeCastExpr {
    fn data_type(&self, _input: &Schema) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        Ok(self.or_null || self.inner.nullable(input)?)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        map_values(self.inner.evaluate(batch)?, |values| self.cast(&values))
    }

    forward!(child inner);

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = if self.or_null { "TRY_CAST" } else { "CAST" };
        write!(f, "{name}({} AS {})", AsSql(self.inner.as_ref()), self.to)
    }
}

impl Display for TimeCastExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = if self.or_null { "TRY_CAST" } else { "CAST" };
        write!(f, "{name}({} AS {})", self.inner, self.to)
    }
}
