//! Percentiles of a group: its values at a fraction of their number, when they are sorted.
//!
//! The state of a percentile is its result, so a change of a group reads all its values; they are sorted in bounded
//! memory (`sorted_values`). A fraction counts as the decimal number that its text says, not as the double nearest to
//! that.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::Float64Builder;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::accumulators::{Accumulator, Argument, Sign, valid_rows};
use super::picked_results::{PickedResults, StoredResult};
use super::sorted_values::SortedValues;
use crate::error::Result;

/// The digits of a fraction after the point that count.
const FRACTION_DIGITS: usize = 18;
/// One, in units of the last of them.
const ONE: u128 = 10_u128.pow(18);

/// A percentile of the values that are not null; null if there are none.
///
/// Its state is its result. If a value comes or leaves, all rows of the group are needed.
#[derive(Debug)]
pub(super) struct Percentile {
    /// In units of 10^-18.
    fraction: u128,
    stored: StoredResult,
    values: SortedValues,
    results: PercentileResults,
}

#[derive(Debug)]
enum PercentileResults {
    /// Between two values, which are doubles.
    Interpolated(Float64Builder),
    /// Values.
    Picked(PickedResults),
}

impl Percentile {
    /// `PERCENTILE_CONT` of doubles.
    pub(super) fn continuous(fraction: f64) -> Self {
        let results = PercentileResults::Interpolated(Float64Builder::new());
        Self::new(fraction, &DataType::Float64, results)
    }

    /// `PERCENTILE_DISC`: the first value that has at least this fraction of all values up to it.
    pub(super) fn discrete(fraction: f64, data_type: &DataType) -> Self {
        let results = PercentileResults::Picked(PickedResults::new(data_type));
        Self::new(fraction, data_type, results)
    }

    fn new(fraction: f64, data_type: &DataType, results: PercentileResults) -> Self {
        Self {
            fraction: to_units(fraction),
            stored: StoredResult::default(),
            values: SortedValues::new(data_type),
            results,
        }
    }
}

/// A fraction, as its shortest decimal text has it: 0.07 of 100 values are 7, and not the next number of them.
fn to_units(fraction: f64) -> u128 {
    let text = fraction.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let digits = decimals
        .chars()
        .chain(std::iter::repeat('0'))
        .take(FRACTION_DIGITS);
    let digits: String = whole.chars().chain(digits).collect();
    digits.parse().unwrap_or_default()
}

/// The value at a fraction of the way between two.
#[expect(
    clippy::cast_precision_loss,
    reason = "what is interpolated is rounded"
)]
fn interpolate(low: f64, high: f64, units: u128) -> f64 {
    // Equal infinities have no difference.
    if low.total_cmp(&high).is_eq() {
        return low;
    }
    let weight = units as f64 / ONE as f64;
    let between = low * (1.0 - weight) + high * weight;
    // Between numbers that are close it may be rounded to one outside of them.
    if between < low {
        low
    } else if between > high {
        high
    } else {
        between
    }
}

impl Accumulator for Percentile {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.stored = StoredResult::begin(stored);
        self.values.clear();
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, _: Sign) {
        if valid_rows(&argument.values, rows.clone()).next().is_some() && self.stored.change() {
            self.values.add(argument, rows);
        }
    }

    fn is_resolved(&self) -> bool {
        self.stored.is_resolved()
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        let stored = self.stored.take();
        let count = self.values.count()?;
        match &mut self.results {
            PercentileResults::Interpolated(results) => {
                let result = if let Some((values, row)) = stored {
                    let values = values.as_primitive::<Float64Type>();
                    values.is_valid(row).then(|| values.value(row))
                } else if count == 0 {
                    None
                } else {
                    let units = u128::from(count - 1) * self.fraction;
                    let (at, rest) = (units / ONE, units % ONE);
                    let picked = self.values.pick(at, if rest == 0 { 1 } else { 2 })?;
                    let mut numbers = picked
                        .iter()
                        .map(|(values, row)| values.as_primitive::<Float64Type>().value(*row));
                    let low = numbers.next();
                    let high = numbers.next().or(low);
                    low.zip(high)
                        .map(|(low, high)| interpolate(low, high, rest))
                };
                results.append_option(result);
            }
            PercentileResults::Picked(results) => {
                let result = if stored.is_some() || count == 0 {
                    stored
                } else {
                    let rank = (u128::from(count) * self.fraction).div_ceil(ONE);
                    self.values.pick(rank.saturating_sub(1), 1)?.pop()
                };
                results.push(result.filter(|(values, row)| values.is_valid(*row)));
            }
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        match &self.results {
            PercentileResults::Interpolated(_) => false,
            PercentileResults::Picked(results) => results.is_full(),
        }
    }

    fn take(&mut self) -> Result<ArrayRef> {
        match &mut self.results {
            PercentileResults::Interpolated(results) => Ok(Arc::new(results.finish())),
            PercentileResults::Picked(results) => results.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_those_of_their_texts() {
        for (fraction, units) in [
            (0.0, 0),
            (1.0, ONE),
            (0.5, ONE / 2),
            (0.07, 7 * ONE / 100),
            (1e-18, 1),
            (1e-30, 0),
            (0.1 + 0.2, 300_000_000_000_000_040),
        ] {
            assert_eq!(to_units(fraction), units, "{fraction}");
        }
    }

    #[test]
    fn what_lies_between_values_is_between_them() {
        assert!(interpolate(f64::INFINITY, f64::INFINITY, ONE / 3).is_infinite());
        assert!(interpolate(f64::MIN, f64::MAX, ONE / 2).abs() < f64::MIN_POSITIVE);
        for tenths in 11..50 {
            let low = f64::from(tenths) / 10.0;
            let high = low.next_up();
            for hundredths in 1..100 {
                let between = interpolate(low, high, hundredths * ONE / 100);
                assert!((low..=high).contains(&between), "{low} {between}");
            }
        }
        assert!(interpolate(1.0, f64::NAN, ONE / 2).is_nan());
        for third in 0..3 {
            let between = interpolate(0.1, 0.1, third * ONE / 3);
            assert!(between.total_cmp(&0.1).is_eq());
        }
    }
}
