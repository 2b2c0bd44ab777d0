//! Times in columns: conversions between the units that a column of times may have.
//!
//! [`convert_times`] keeps every value or refuses it. Only milliseconds, in which the format keeps times, are rounded
//! towards the past. [`fill_times`] and [`repeat_time`] make times of the time of writing, which any unit may round.
//!
//! Errors are [`crate::ErrorKind::InvalidInput`]: a value that the type of its column cannot hold.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};

use crate::error::{Error, Result};

const NANOS_PER_MICRO: i64 = 1_000;
const NANOS_PER_MILLI: i64 = 1_000_000;
const NANOS_PER_SECOND: i64 = 1_000_000_000;
const NANOS_PER_DAY: i64 = 86_400 * NANOS_PER_SECOND;

/// Whether a column of this type holds times.
pub(super) fn is_time(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64
    )
}

/// Returns the nanoseconds between two numbers of a column of times.
fn unit_nanos(data_type: &DataType) -> Result<i64> {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, _) => Ok(NANOS_PER_SECOND),
        DataType::Timestamp(TimeUnit::Millisecond, _) | DataType::Date64 => Ok(NANOS_PER_MILLI),
        DataType::Timestamp(TimeUnit::Microsecond, _) => Ok(NANOS_PER_MICRO),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => Ok(1),
        DataType::Date32 => Ok(NANOS_PER_DAY),
        _ => {
            let message = format!("{data_type} is not a type of times");
            Err(Error::invalid(message))
        }
    }
}

/// Converts a number of one unit to another; None if it is out of range, or between two numbers and not to be rounded.
fn rescale(number: i64, from_nanos: i64, to_nanos: i64, rounds_down: bool) -> Option<i64> {
    if from_nanos >= to_nanos {
        return number.checked_mul(from_nanos / to_nanos);
    }
    let per_unit = to_nanos / from_nanos;
    (rounds_down || number.rem_euclid(per_unit) == 0).then(|| number.div_euclid(per_unit))
}

fn cast(array: &dyn Array, target: &DataType) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, target, &options)
        .map_err(|e| Error::invalid(format!("a time is out of range: {e}")).with_source(e))
}

/// Converts the times of the column `name` to another type. Times without a zone are UTC.
pub(super) fn convert_times(column: &ArrayRef, target: &DataType, name: &str) -> Result<ArrayRef> {
    if column.data_type() == target {
        return Ok(Arc::clone(column));
    }
    // A date in milliseconds holds whole days.
    let stored_type = match target {
        DataType::Date64 => &DataType::Date32,
        other => other,
    };
    let (from_nanos, to_nanos) = (unit_nanos(column.data_type())?, unit_nanos(stored_type)?);
    let rounds_down = to_nanos == NANOS_PER_MILLI;
    let integers = cast(column, &DataType::Int64)?;
    let numbers = integers.as_primitive::<Int64Type>();
    let rescaled: Int64Array =
        numbers.unary_opt(|number| rescale(number, from_nanos, to_nanos, rounds_down));
    if rescaled.null_count() > numbers.null_count() {
        let is_lost = |row: &usize| numbers.is_valid(*row) && rescaled.is_null(*row);
        let row = (0..numbers.len()).find(is_lost).unwrap_or_default();
        let text = array_value_to_string(column, row)
            .unwrap_or_else(|_unknown_zone| numbers.value(row).to_string());
        let message = format!(
            "column {name:?}: {text} cannot be kept as {target}, the type of the column in the schema of the dataset; \
             round it first, or use a schema with a finer type"
        );
        return Err(Error::invalid(message));
    }
    cast(&cast(&rescaled, stored_type)?, target)
}

/// Returns the number that a time has in a column of this type, rounded towards the past.
fn round_down(time_ms: i64, data_type: &DataType) -> Result<i64> {
    let out_of_range =
        || Error::invalid(format!("{time_ms} ms is out of the range of {data_type}"));
    if *data_type == DataType::Date64 {
        let day_ms = NANOS_PER_DAY / NANOS_PER_MILLI;
        return Ok(time_ms.div_euclid(day_ms) * day_ms);
    }
    let to_nanos = unit_nanos(data_type)?;
    rescale(time_ms, NANOS_PER_MILLI, to_nanos, true).ok_or_else(out_of_range)
}

/// Returns a column of this type with `rows` times the same time.
pub(super) fn repeat_time(time_ms: i64, data_type: &DataType, rows: usize) -> Result<ArrayRef> {
    let numbers = Int64Array::from_value(round_down(time_ms, data_type)?, rows);
    cast(&numbers, data_type)
}

/// Returns the column with a time for every null.
pub(super) fn fill_times(column: &ArrayRef, time_ms: i64) -> Result<ArrayRef> {
    if column.null_count() == 0 {
        return Ok(Arc::clone(column));
    }
    let default = round_down(time_ms, column.data_type())?;
    let integers = cast(column, &DataType::Int64)?;
    let numbers = integers.as_primitive::<Int64Type>().iter();
    let filled = Int64Array::from_iter_values(numbers.map(|number| number.unwrap_or(default)));
    cast(&filled, column.data_type())
}

/// Returns the latest time of a column without nulls, in microseconds; None without rows.
pub(super) fn latest_micros(column: &ArrayRef) -> Result<Option<i64>> {
    let from_nanos = unit_nanos(column.data_type())?;
    let integers = cast(column, &DataType::Int64)?;
    let numbers = integers.as_primitive::<Int64Type>().values().iter();
    Ok(numbers.copied().max().map(|latest| {
        if from_nanos < NANOS_PER_MICRO {
            latest.div_euclid(NANOS_PER_MICRO / from_nanos)
        } else {
            latest.saturating_mul(from_nanos / NANOS_PER_MICRO)
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: [TimeUnit; 4] = [
        TimeUnit::Second,
        TimeUnit::Millisecond,
        TimeUnit::Microsecond,
        TimeUnit::Nanosecond,
    ];

    fn times(numbers: Vec<Option<i64>>, data_type: &DataType) -> ArrayRef {
        cast(&Int64Array::from(numbers), data_type).unwrap()
    }

    fn numbers(column: &ArrayRef) -> Vec<Option<i64>> {
        let integers = cast(column, &DataType::Int64).unwrap();
        integers.as_primitive::<Int64Type>().iter().collect()
    }

    #[test]
    fn a_time_is_kept_or_refused_and_milliseconds_are_rounded() {
        // Half a millisecond before 1970-01-02 12:00.
        let column = times(
            vec![None, Some(129_599_999_500)],
            &DataType::Timestamp(TimeUnit::Microsecond, None),
        );
        let expected = [
            None,
            Some(129_599_999),
            Some(129_599_999_500),
            Some(129_599_999_500_000),
        ];
        for (unit, expected) in UNITS.into_iter().zip(expected) {
            let target = DataType::Timestamp(unit, Some("Europe/Riga".into()));
            let converted = convert_times(&column, &target, "at");
            match expected {
                Some(_) => assert_eq!(numbers(&converted.unwrap()), [None, expected]),
                None => assert!(converted.unwrap_err().message().contains("\"at\"")),
            }
        }
        let before = times(
            vec![Some(-1)],
            &DataType::Timestamp(TimeUnit::Nanosecond, None),
        );
        let millis = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        assert_eq!(
            numbers(&convert_times(&before, &millis, "at").unwrap()),
            [Some(-1)]
        );
        for date in [DataType::Date32, DataType::Date64] {
            assert!(convert_times(&column, &date, "at").is_err());
            let day = times(
                vec![Some(86_400)],
                &DataType::Timestamp(TimeUnit::Second, None),
            );
            let converted = convert_times(&day, &date, "at").unwrap();
            assert_eq!(latest_micros(&converted).unwrap(), Some(86_400_000_000));
        }
        let far = times(
            vec![Some(i64::MAX)],
            &DataType::Timestamp(TimeUnit::Second, None),
        );
        assert!(convert_times(&far, &millis, "at").is_err());
    }

    #[test]
    fn the_time_of_writing_is_rounded_to_any_unit() {
        let hour_ms = 3_600_000;
        for (data_type, number) in [
            (DataType::Date32, 1),
            (DataType::Date64, 86_400_000),
            (DataType::Timestamp(TimeUnit::Second, None), 90_000),
            (
                DataType::Timestamp(TimeUnit::Nanosecond, None),
                90_000_000_000_000,
            ),
        ] {
            let written = repeat_time(25 * hour_ms, &data_type, 2).unwrap();
            assert_eq!(numbers(&written), [Some(number); 2], "{data_type}");
            let column = times(vec![Some(0), None], &data_type);
            let filled = fill_times(&column, 25 * hour_ms).unwrap();
            assert_eq!(numbers(&filled), [Some(0), Some(number)], "{data_type}");
        }
    }
}
