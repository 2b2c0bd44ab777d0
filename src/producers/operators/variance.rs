//! Variances and standard deviations, of exact sums: that of the values and that of their squares.
//!
//! A square is the sum of two doubles, the rounded product and what it lacks, so the sum of squares is exact where these
//! are: for values of 2^-485 to 2^511. Then n × sum of squares - sum² is a whole number of 2^-2148 and computed as one.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::Float64Builder;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use num_bigint::BigUint;

use super::accumulators::{
    Accumulator, Argument, Sign, count_valid, put_count, take_count, valid_rows,
};
use super::exact_sum::{ExactSum, MIN_EXPONENT, scale};
use crate::error::Result;

/// What is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spread {
    /// Of a sample, which has n - 1 degrees of freedom, or of a population.
    pub(super) of_sample: bool,
    pub(super) is_root: bool,
}

/// A variance or its root, of the values that are not null, as doubles.
#[derive(Debug)]
pub(super) struct Variance {
    spread: Spread,
    count: i64,
    sum: Box<ExactSum>,
    squares: Box<ExactSum>,
    results: Float64Builder,
}

impl Variance {
    pub(super) fn new(spread: Spread) -> Self {
        Self {
            spread,
            count: 0,
            sum: Box::default(),
            squares: Box::default(),
            results: Float64Builder::new(),
        }
    }

    /// None for too few values; not-a-number if a value is not finite, an infinity if a square does not fit a double.
    fn result(&mut self) -> Option<f64> {
        let degrees = if self.spread.of_sample {
            self.count - 1
        } else {
            self.count
        };
        if degrees < 1 {
            return None;
        }
        if !self.sum.is_finite() {
            return Some(f64::NAN);
        }
        if !self.squares.is_finite() {
            return Some(f64::INFINITY);
        }
        let count = BigUint::from(self.count.unsigned_abs());
        let sum = self.sum.absolute();
        let squares = (count * self.squares.absolute()) << -MIN_EXPONENT;
        let square = &sum * &sum;
        // Squares of tiny values lack their last bits.
        let difference = if squares > square {
            squares - square
        } else {
            BigUint::ZERO
        };
        let variance = quotient(&difference, [self.count, degrees]);
        Some(if self.spread.is_root {
            variance.sqrt()
        } else {
            variance
        })
    }
}

/// A number of 2^-2148, divided. It is scaled last, since it may be too large for a double before it is divided.
#[expect(
    clippy::cast_precision_loss,
    reason = "the last bit says whether there are more"
)]
fn quotient(number: &BigUint, divisors: [i64; 2]) -> f64 {
    let shift = number.bits().saturating_sub(64);
    let top = (number >> shift)
        .iter_u64_digits()
        .next()
        .unwrap_or_default();
    let has_more = number.trailing_zeros().is_some_and(|zeros| zeros < shift);
    let exponent = i64::try_from(shift).unwrap_or(i64::MAX) + 2 * MIN_EXPONENT;
    let divided = (top | u64::from(has_more)) as f64 / divisors[0] as f64 / divisors[1] as f64;
    scale(divided, exponent)
}

impl Accumulator for Variance {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        let Some((state, ..)) = stored else {
            self.count = 0;
            self.sum.clear();
            self.squares.clear();
            return Ok(());
        };
        self.count = take_count(state)?;
        self.sum.decode(state)?;
        self.squares.decode(state)
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign) {
        let factor = sign.factor();
        self.count += factor * count_valid(&argument.values, &rows);
        let values = argument.values.as_primitive::<Float64Type>();
        for row in valid_rows(&argument.values, rows) {
            let value = values.value(row);
            let square = value * value;
            self.sum.add(value, factor);
            self.squares.add(square, factor);
            if square.is_finite() {
                self.squares.add(value.mul_add(value, -square), factor);
            }
        }
    }

    fn end(&mut self, state: &mut Vec<u8>) -> Result<()> {
        put_count(state, self.count)?;
        self.sum.encode(state);
        self.squares.encode(state);
        let result = self.result();
        self.results.append_option(result);
        Ok(())
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.results.finish()))
    }
}
