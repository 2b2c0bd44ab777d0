//! `date_trunc` to days and longer, of timestamps without a zone or in UTC. DataFusion, which computes that of other
//! zones, does so in nanoseconds, which end in the year 2262.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_cast::cast;
use arrow_schema::DataType;
use chrono::{Datelike, NaiveDate};
use datafusion_common::Result;

use super::lossless_cast::is_utc;
use super::time_casts::tick_nanoseconds;

const DAY_NANOSECONDS: i64 = 86_400_000_000_000;
/// The first of January 1970 as chrono counts days, from 1 for the first of January of the year 1.
const EPOCH_DAYS: i64 = 719_163;

/// The timestamps at the beginnings of their days, weeks, months, quarters or years; null where the type does not have
/// it. `None` for other lengths, and for other values.
pub(super) fn truncate_days(length: &str, times: &ArrayRef) -> Result<Option<ArrayRef>> {
    let DataType::Timestamp(_, zone) = times.data_type() else {
        return Ok(None);
    };
    let first_day: fn(i64) -> Option<i64> = match length.to_lowercase().as_str() {
        "day" => Some,
        // 1970 began on a Thursday.
        "week" => |day| Some(day - (day.checked_add(3)?).rem_euclid(7)),
        "month" => |day| first_of_months(day, 1),
        "quarter" => |day| first_of_months(day, 3),
        "year" => |day| first_of_months(day, 12),
        _ => return Ok(None),
    };
    if zone.as_ref().is_some_and(|zone| !is_utc(zone)) {
        return Ok(None);
    }
    let ticks = DAY_NANOSECONDS / tick_nanoseconds(times.data_type());
    let numbers = cast(times, &DataType::Int64)?;
    let truncated = numbers
        .as_primitive::<Int64Type>()
        .unary_opt::<_, Int64Type>(|number| {
            first_day(number.div_euclid(ticks))?.checked_mul(ticks)
        });
    Ok(Some(cast(&truncated, times.data_type())?))
}

/// The first day of the month, quarter or year, which has so many `months`, that a day is in.
fn first_of_months(day: i64, months: u32) -> Option<i64> {
    let days = i32::try_from(day.checked_add(EPOCH_DAYS)?).ok()?;
    let first = NaiveDate::from_num_days_from_ce_opt(days)?.with_day(1)?;
    let first = first.with_month0(first.month0() / months * months)?;
    Some(i64::from(first.num_days_from_ce()) - EPOCH_DAYS)
}
