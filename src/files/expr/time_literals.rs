//! Literals of points in time and of intervals, in units that hold them exactly; and zones.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, Result, ScalarValue};
use datafusion_expr::expr::Expr;
use datafusion_expr::{ExprSchemable, cast, lit};
use datafusion_functions::datetime::to_local_time;

/// The zone of timestamps that have none.
pub(super) const UTC: &str = "+00:00";

/// The text of a literal that is one.
pub(super) fn string_literal(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(
            ScalarValue::Utf8(Some(text))
            | ScalarValue::LargeUtf8(Some(text))
            | ScalarValue::Utf8View(Some(text)),
            _,
        ) => Some(text),
        _ => None,
    }
}

/// The text, the unit and the zone of `TIMESTAMP '…'`.
fn timestamp_literal(expr: &Expr) -> Option<(&str, TimeUnit, &Option<Arc<str>>)> {
    let Expr::Cast(timestamp_cast) = expr else {
        return None;
    };
    match timestamp_cast.field.data_type() {
        DataType::Timestamp(unit, zone) => {
            let text = string_literal(&timestamp_cast.expr)?;
            Some((text, *unit, zone))
        }
        _ => None,
    }
}

/// Whether it is `TIMESTAMP '…'`.
pub(super) fn is_timestamp_literal(expr: &Expr) -> bool {
    timestamp_literal(expr).is_some()
}

/// Converts `TIMESTAMP '…'` to a unit that can hold it: nanoseconds end in the year 2262.
pub(super) fn refine_timestamp_literal(expr: Expr) -> Expr {
    let Some((text, TimeUnit::Nanosecond, zone)) = timestamp_literal(&expr) else {
        return expr;
    };
    let in_unit = |unit| ScalarValue::from(text).cast_to(&DataType::Timestamp(unit, zone.clone()));
    // Microseconds would cut it: it is left, and fails.
    if in_unit(TimeUnit::Nanosecond).is_ok() || has_nanoseconds(text) {
        return expr;
    }
    in_unit(TimeUnit::Microsecond).map_or(expr, lit)
}

/// Reads a timestamp without a zone as UTC if the other side has a zone, as casts do.
pub(super) fn to_utc(expr: Expr, own_type: &DataType, other_type: &DataType) -> Expr {
    match (own_type, other_type) {
        (DataType::Timestamp(unit, None), DataType::Timestamp(_, Some(_))) => {
            // A literal beyond the range of nanoseconds is in microseconds.
            let unit = match &expr {
                Expr::Literal(value, _) => match value.data_type() {
                    DataType::Timestamp(unit, _) => unit,
                    _ => *unit,
                },
                _ => *unit,
            };
            cast(expr, DataType::Timestamp(unit, Some(UTC.into())))
        }
        _ => expr,
    }
}

/// The unit that a timestamp needs so that adding this interval cuts nothing; `None` if it is no interval.
pub(super) fn interval_unit(interval: &Expr) -> Option<TimeUnit> {
    use ScalarValue::{IntervalDayTime, IntervalMonthDayNano, IntervalYearMonth};
    match interval {
        Expr::Literal(IntervalMonthDayNano(Some(interval_value)), _)
            if interval_value.nanoseconds % 1_000 != 0 =>
        {
            Some(TimeUnit::Nanosecond)
        }
        Expr::Literal(IntervalMonthDayNano(_) | IntervalDayTime(_) | IntervalYearMonth(_), _) => {
            Some(TimeUnit::Microsecond)
        }
        Expr::Cast(cast) if matches!(cast.field.data_type(), DataType::Interval(_)) => {
            Some(TimeUnit::Microsecond)
        }
        _ => None,
    }
}

/// Casts a timestamp or a date, to which an interval is added, to a timestamp of at least this unit.
pub(super) fn refine_timestamp(expr: Expr, unit: Option<TimeUnit>, schema: &DFSchema) -> Expr {
    let (Some(unit), Some(own_type)) = (unit, expr.get_type(schema).ok()) else {
        return expr;
    };
    match own_type {
        DataType::Timestamp(coarse, zone) if coarse < unit => {
            cast(expr, DataType::Timestamp(unit, zone))
        }
        DataType::Date32 | DataType::Date64 => cast(expr, DataType::Timestamp(unit, None)),
        _ => expr,
    }
}

/// An interval without months as a length of time in this unit, which is what a difference of timestamps is; others stay.
pub(super) fn interval_to_duration(interval: Expr, unit: TimeUnit) -> Expr {
    let Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(value)), _) = &interval else {
        return interval;
    };
    if value.months != 0 {
        return interval;
    }
    let nanoseconds = i128::from(value.days) * 86_400_000_000_000 + i128::from(value.nanoseconds);
    let (per_unit, duration): (i128, fn(Option<i64>) -> ScalarValue) = match unit {
        TimeUnit::Second => (1_000_000_000, ScalarValue::DurationSecond),
        TimeUnit::Millisecond => (1_000_000, ScalarValue::DurationMillisecond),
        TimeUnit::Microsecond => (1_000, ScalarValue::DurationMicrosecond),
        TimeUnit::Nanosecond => (1, ScalarValue::DurationNanosecond),
    };
    match i64::try_from(nanoseconds / per_unit) {
        Ok(count) if nanoseconds % per_unit == 0 => lit(duration(Some(count))),
        _ => interval,
    }
}

/// `TIMESTAMP '…'` in this unit if that holds it exactly; others stay.
pub(super) fn timestamp_in_unit(expr: Expr, unit: TimeUnit) -> Expr {
    let Some((text, _, zone)) = timestamp_literal(&expr) else {
        return expr;
    };
    parse_timestamp(text, unit, zone.as_ref()).map_or(expr, lit)
}

/// The timestamp of a text in this unit, if that holds it exactly.
pub(super) fn parse_timestamp(
    text: &str,
    unit: TimeUnit,
    zone: Option<&Arc<str>>,
) -> Option<ScalarValue> {
    let in_unit = |unit| {
        let to = DataType::Timestamp(unit, zone.cloned());
        ScalarValue::from(text).cast_to(&to).ok()
    };
    if has_finer_digits(text, TimeUnit::Nanosecond) {
        return None;
    }
    let value = in_unit(unit)?;
    let finest = in_unit(TimeUnit::Nanosecond).or_else(|| {
        let micros = in_unit(TimeUnit::Microsecond);
        micros.filter(|_| !has_nanoseconds(text))
    })?;
    let round_trip = value.cast_to(&finest.data_type());
    round_trip
        .is_ok_and(|value| value == finest)
        .then_some(value)
}

/// The timestamp of a text that has a time of day; `None` for a day and for other text.
pub(super) fn parse_time_of_day(text: &str) -> Option<ScalarValue> {
    let parse = |to: &DataType| ScalarValue::from(text).cast_to(to).ok();
    // Nanoseconds, unless they are needed, would end in the year 2262.
    let unit = if has_nanoseconds(text) {
        TimeUnit::Nanosecond
    } else {
        TimeUnit::Microsecond
    };
    let timestamp = parse(&DataType::Timestamp(unit, None))?;
    let day = parse(&DataType::Date32).and_then(|day| day.cast_to(&timestamp.data_type()).ok());
    (day.as_ref() != Some(&timestamp)).then_some(timestamp)
}

/// Whether a text has digits below a microsecond.
pub(super) fn has_nanoseconds(text: &str) -> bool {
    has_finer_digits(text, TimeUnit::Microsecond)
}

/// Whether a text has digits below a nanosecond, or below a microsecond for any other unit.
pub(super) fn has_finer_digits(text: &str, unit: TimeUnit) -> bool {
    let places = if unit == TimeUnit::Nanosecond { 9 } else { 6 };
    let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.bytes().take_while(u8::is_ascii_digit);
    digits.skip(places).any(|digit| digit != b'0')
}

/// Makes `timestamp AT TIME ZONE 'zone'` the local time there, where the timestamp has a zone of its own: DataFusion
/// plans it as a cast to a timestamp with that zone.
pub(super) fn to_local_times(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let rewritten = expr.transform_up(|node| {
        let Expr::Cast(zoned) = node else {
            return Ok(Transformed::no(node));
        };
        let own_type = zoned.expr.get_type(schema).ok();
        Ok(match (own_type, zoned.field.data_type()) {
            (Some(DataType::Timestamp(unit, own_zone)), DataType::Timestamp(_, Some(zone)))
                if **zone != *UTC =>
            {
                let there = cast(
                    *zoned.expr,
                    DataType::Timestamp(unit, Some(Arc::clone(zone))),
                );
                Transformed::yes(match own_zone {
                    Some(_) => to_local_time().call(vec![there]),
                    None => there,
                })
            }
            _ => Transformed::no(Expr::Cast(zoned)),
        })
    });
    rewritten.map(|rewritten| rewritten.data)
}
