//! Literals of points in time and of intervals, in units that hold them exactly; and zones.

use std::sync::Arc;

use arrow_schema::{DataType, TimeUnit};
use chrono::{DateTime, Utc};
use datafusion_common::tree_node::{Transformed, TreeNode};
use datafusion_common::{DFSchema, DataFusionError, Result, ScalarValue};
use datafusion_expr::expr::{BinaryExpr, Case, Expr, ScalarFunction};
use datafusion_expr::{ExprSchemable, Operator, binary_expr, cast, lit};
use datafusion_functions::datetime::to_local_time;

use super::operators::CONDITIONAL_FUNCTIONS;

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

/// Whether a text is an integer, which Arrow reads as a number of ticks since midnight where it is to be a time.
pub(super) fn is_integer(text: &str) -> bool {
    text.parse::<i64>().is_ok()
}

/// The error of an integer in the place of a time of day.
pub(super) fn not_a_time(text: &str) -> DataFusionError {
    DataFusionError::Execution(format!(
        "the text {text:?} is not a time of day, such as '12:30:00'"
    ))
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

/// `TIMESTAMP '…'` that has digits below a microsecond and no nanoseconds, cut to microseconds; `None` for others.
pub(super) fn cut_far_literal(expr: &Expr) -> Option<Expr> {
    let (text, _, zone) = timestamp_literal(expr)?;
    let in_unit = |text: &str, unit| {
        let to = DataType::Timestamp(unit, zone.clone());
        ScalarValue::from(text).cast_to(&to).ok()
    };
    if !has_nanoseconds(text) || in_unit(text, TimeUnit::Nanosecond).is_some() {
        return None;
    }
    let (whole, fraction) = text.split_once('.')?;
    let places = fraction.bytes().take_while(u8::is_ascii_digit).count();
    let (kept, zone_text) = (fraction.get(..6)?, fraction.get(places..)?);
    let cut = format!("{whole}.{kept}{zone_text}");
    in_unit(&cut, TimeUnit::Microsecond).map(lit)
}

/// Makes `now()` a literal of the timestamp that the value of the expression is converted to, where it may be that
/// value: cut to its unit. It stays everywhere else. In UTC, as texts beside it are read in its zone.
pub(super) fn assign_now(expr: Expr, now: DateTime<Utc>, target: Option<&DataType>) -> Expr {
    let Some(DataType::Timestamp(unit, zone)) = target else {
        return expr;
    };
    let zone = zone.as_ref().map(|_| Arc::from(UTC));
    let value = match unit {
        TimeUnit::Second => ScalarValue::TimestampSecond(Some(now.timestamp()), zone),
        TimeUnit::Millisecond => {
            ScalarValue::TimestampMillisecond(Some(now.timestamp_millis()), zone)
        }
        TimeUnit::Microsecond => {
            ScalarValue::TimestampMicrosecond(Some(now.timestamp_micros()), zone)
        }
        TimeUnit::Nanosecond => ScalarValue::TimestampNanosecond(now.timestamp_nanos_opt(), zone),
    };
    map_results(expr, &|result| match result {
        Expr::ScalarFunction(call) if call.func.name() == "now" => lit(value.clone()),
        other => other,
    })
}

/// `TIMESTAMP '…'` in this unit, if that holds it exactly, where it may be the value of an expression.
pub(super) fn results_in_unit(expr: Expr, unit: TimeUnit) -> Expr {
    map_results(expr, &|result| timestamp_in_unit(result, unit))
}

/// Changes the expressions of which one is the value of an expression, and no conditions.
fn map_results(expr: Expr, change: &dyn Fn(Expr) -> Expr) -> Expr {
    let changed = |expr: Box<Expr>| Box::new(map_results(*expr, change));
    match expr {
        Expr::Case(case) => {
            let branches = case.when_then_expr.into_iter();
            let branches = branches.map(|(when, then)| (when, changed(then)));
            Expr::Case(Case {
                expr: case.expr,
                when_then_expr: branches.collect(),
                else_expr: case.else_expr.map(changed),
            })
        }
        Expr::ScalarFunction(call) if CONDITIONAL_FUNCTIONS.contains(&call.func.name()) => {
            // The first argument of nvl2 is a condition.
            let conditions = usize::from(call.func.name() == "nvl2");
            let args = call.args.into_iter().enumerate();
            let args = args.map(|(at, arg)| {
                if at < conditions {
                    arg
                } else {
                    map_results(arg, change)
                }
            });
            Expr::ScalarFunction(ScalarFunction {
                args: args.collect(),
                func: call.func,
            })
        }
        // As `current_timestamp` is planned.
        Expr::Alias(alias) => map_results(*alias.expr, change),
        other => change(other),
    }
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
fn interval_unit(interval: &Expr) -> Option<TimeUnit> {
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

/// The unit that a timestamp needs so that adding an interval or a length of time cuts nothing; `None` for others.
pub(super) fn added_unit(expr: &Expr, schema: &DFSchema) -> Option<TimeUnit> {
    interval_unit(expr).or_else(|| match expr.get_type(schema) {
        Ok(DataType::Duration(unit)) => Some(unit),
        _ => None,
    })
}

/// Casts the times of `date_bin` to a unit in which its bins begin at whole numbers: of 1.5 seconds, milliseconds. Its
/// dates and those of `date_trunc` become timestamps with microseconds: as nanoseconds they would end in the year 2262.
pub(super) fn refine_bins(expr: Expr, schema: &DFSchema) -> Expr {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, args })
            if matches!(func.name(), "date_bin" | "date_trunc") =>
        {
            let unit = match func.name() {
                "date_bin" => bin_unit(&args),
                _ => None,
            };
            let refine = |time: Expr| match time.get_type(schema) {
                Ok(DataType::Date32 | DataType::Date64) => {
                    cast(time, DataType::Timestamp(TimeUnit::Microsecond, None))
                }
                _ => time,
            };
            let args = args.into_iter().enumerate();
            let args = args.map(|(at, arg)| match at {
                1 => refine(refine_timestamp(arg, unit, schema)),
                _ => arg,
            });
            Expr::ScalarFunction(ScalarFunction {
                args: args.collect(),
                func,
            })
        }
        other => other,
    }
}

/// The unit that bins of this length and this origin need; `None` if every unit has their beginnings.
fn bin_unit(args: &[Expr]) -> Option<TimeUnit> {
    let of_stride = match args.first() {
        Some(Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(stride)), _)) => {
            match stride.nanoseconds {
                whole if whole % 1_000_000_000 == 0 => None,
                millis if millis % 1_000_000 == 0 => Some(TimeUnit::Millisecond),
                micros if micros % 1_000 == 0 => Some(TimeUnit::Microsecond),
                _ => Some(TimeUnit::Nanosecond),
            }
        }
        _ => None,
    };
    let of_origin = args.get(2).map(origin_unit);
    of_stride.max(of_origin)
}

/// The coarsest unit that has the origin of bins.
fn origin_unit(origin: &Expr) -> TimeUnit {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    let Some((text, _, zone)) = timestamp_literal(origin) else {
        return Nanosecond;
    };
    let has_origin = |unit: &TimeUnit| parse_timestamp(text, *unit, zone.as_ref()).is_some();
    let mut units = [Second, Millisecond, Microsecond].into_iter();
    units.find(has_origin).unwrap_or(Nanosecond)
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

/// As [`refine_timestamp`], also of a time of day: DataFusion cuts the interval to its unit.
pub(super) fn refine_added(expr: Expr, unit: Option<TimeUnit>, schema: &DFSchema) -> Expr {
    let Some(unit) = unit else {
        return expr;
    };
    let own_type = expr.get_type(schema).ok();
    let Some(DataType::Time32(own) | DataType::Time64(own)) = own_type else {
        return refine_timestamp(expr, Some(unit), schema);
    };
    let fine = DataType::Time64(own.max(unit).max(TimeUnit::Microsecond));
    if own_type.as_ref() == Some(&fine) {
        return expr;
    }
    cast(expr, fine)
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

/// `TIMESTAMP '…'` in the unit of what it is compared with, which otherwise would be converted and may be beyond the
/// range of nanoseconds; or in one that holds it, also where an interval is added.
pub(super) fn refine_beside(expr: Expr, unit: Option<TimeUnit>) -> Expr {
    let expr = match unit {
        Some(unit) => timestamp_in_unit(timestamp_in_unit(expr, unit), TimeUnit::Microsecond),
        None => expr,
    };
    match expr {
        // Nanoseconds of the interval would be cut.
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if matches!(op, Operator::Plus | Operator::Minus)
                && matches!(*right, Expr::Literal(..))
                && interval_unit(&right) == Some(TimeUnit::Microsecond) =>
        {
            binary_expr(refine_timestamp_literal(*left), op, *right)
        }
        other => refine_timestamp_literal(other),
    }
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
