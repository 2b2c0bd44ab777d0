//! What aggregates keep of a group: exact counts and sums, from which values can be taken out again.
//!
//! An `Accumulator` computes one aggregate for group after group: a group begins with its stored state, if it has one,
//! rows are taken out and added, and it ends with its new state and its result; the results of many groups are taken as
//! one array. Sums are exact, those of floats in `exact_sum`, so the order of rows does not matter and what is taken
//! out leaves nothing behind. Here are counts, sums and means. An aggregate from which a value cannot always be taken
//! out, such as a minimum, asks for all rows of the group (`is_resolved`). States are stored: their form is part of the
//! format.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, Int64Builder, UInt64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Decimal256Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Decimal128Array, Decimal256Array};
use arrow_buffer::i256;
use arrow_row::Rows;
use arrow_schema::DataType;

use super::exact_sum::{
    ExactSum, put_signed, put_unsigned, state_error, take_signed, take_unsigned,
};
use crate::error::{Error, Result};

/// Whether rows come into a group or leave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Sign {
    Added,
    Removed,
}

impl Sign {
    pub(super) fn factor(self) -> i64 {
        match self {
            Self::Added => 1,
            Self::Removed => -1,
        }
    }
}

/// The values of an aggregate's column in a batch, in the type that it computes with.
#[derive(Debug)]
pub(super) struct Argument {
    pub(super) values: ArrayRef,
    /// For comparisons, if the aggregate compares.
    pub(super) order: Option<Rows>,
}

/// One aggregate of the group that is being computed, and its results for the groups before.
pub(super) trait Accumulator: Send {
    /// Begins a group: with the state of the stored one, and its result.
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()>;

    /// Adds rows or takes them out. Those that are taken out come first.
    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign);

    /// Whether the result is known. If not, all rows of the group are needed, from the beginning.
    fn is_resolved(&self) -> bool {
        true
    }

    /// Takes the value of a row as the result beside what was added, or none, where it is not known.
    fn resolve(&mut self, _: Option<(&Argument, usize)>) {}

    /// Ends the group: appends its state, and keeps the result.
    fn end(&mut self, state: &mut Vec<u8>) -> Result<()>;

    /// Whether the results since the last time keep enough in memory.
    fn is_full(&self) -> bool {
        false
    }

    /// The results of the groups since the last time.
    fn take(&mut self) -> Result<ArrayRef>;
}

/// The rows of the range that have a value.
pub(super) fn valid_rows(values: &dyn Array, rows: Range<usize>) -> impl Iterator<Item = usize> {
    let nulls = values
        .nulls()
        .filter(|nulls| nulls.null_count() > 0)
        .cloned();
    rows.filter(move |row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row)))
}

pub(super) fn count_valid(values: &dyn Array, rows: &Range<usize>) -> i64 {
    if *values.data_type() == DataType::Null {
        return 0;
    }
    let nulls = values
        .nulls()
        .map_or(0, |nulls| nulls.slice(rows.start, rows.len()).null_count());
    i64::try_from(rows.len() - nulls).unwrap_or(i64::MAX)
}

pub(super) fn take_count(state: &mut &[u8]) -> Result<i64> {
    i64::try_from(take_unsigned(state)?)
        .ok()
        .ok_or_else(state_error)
}

/// A count that cannot be negative if what is taken out was there.
pub(super) fn put_count(state: &mut Vec<u8>, count: i64) -> Result<()> {
    let Ok(count) = u128::try_from(count) else {
        let message = "internal error: more rows were taken out of a group than it had";
        return Err(Error::other(message));
    };
    put_unsigned(state, count);
    Ok(())
}

/// Counts values that are not null.
#[derive(Debug, Default)]
pub(super) struct Count {
    count: i64,
    results: Int64Builder,
}

impl Accumulator for Count {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.count = stored.map_or(Ok(0), |(state, ..)| take_count(state))?;
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign) {
        self.count += sign.factor() * count_valid(&argument.values, &rows);
    }

    fn end(&mut self, state: &mut Vec<u8>) -> Result<()> {
        put_count(state, self.count)?;
        self.results.append_value(self.count);
        Ok(())
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.results.finish()))
    }
}

/// The exact sum of values.
#[derive(Debug)]
enum Total {
    Integer(i128),
    Decimal(i256),
    Float(Box<ExactSum>),
}

impl Total {
    fn clear(&mut self) {
        match self {
            Self::Integer(sum) => *sum = 0,
            Self::Decimal(sum) => *sum = i256::ZERO,
            Self::Float(sum) => sum.clear(),
        }
    }

    fn update(&mut self, values: &ArrayRef, rows: Range<usize>, sign: Sign) {
        let factor = sign.factor();
        let rows = valid_rows(values, rows);
        match self {
            Self::Integer(sum) => {
                if let Some(values) = values.as_primitive_opt::<Int64Type>() {
                    let added: i128 = rows.map(|row| i128::from(values.value(row))).sum();
                    *sum += added * i128::from(factor);
                } else {
                    let values = values.as_primitive::<UInt64Type>();
                    let added: i128 = rows.map(|row| i128::from(values.value(row))).sum();
                    *sum += added * i128::from(factor);
                }
            }
            Self::Decimal(sum) => {
                let factor = i256::from_i128(i128::from(factor));
                // Their precision leaves room for the sums of 2^64 of them.
                if let Some(values) = values.as_primitive_opt::<Decimal128Type>() {
                    rows.for_each(|row| *sum += i256::from_i128(values.value(row)) * factor);
                } else {
                    let values = values.as_primitive::<Decimal256Type>();
                    rows.for_each(|row| *sum += values.value(row) * factor);
                }
            }
            Self::Float(sum) => {
                let values = values.as_primitive::<Float64Type>();
                rows.for_each(|row| sum.add(values.value(row), factor));
            }
        }
    }

    fn encode(&mut self, state: &mut Vec<u8>) {
        match self {
            Self::Integer(sum) => put_signed(state, *sum),
            Self::Decimal(sum) => state.extend_from_slice(&sum.to_le_bytes()),
            Self::Float(sum) => sum.encode(state),
        }
    }

    fn decode(&mut self, state: &mut &[u8]) -> Result<()> {
        match self {
            Self::Integer(sum) => *sum = take_signed(state)?,
            Self::Decimal(sum) => {
                let (bytes, rest) = state.split_first_chunk().ok_or_else(state_error)?;
                *sum = i256::from_le_bytes(*bytes);
                *state = rest;
            }
            Self::Float(sum) => sum.decode(state)?,
        }
        Ok(())
    }
}

/// The results of sums and means.
#[derive(Debug)]
enum Results {
    Int64(Int64Builder),
    UInt64(UInt64Builder),
    /// Values, precision and scale.
    Decimal128(Vec<Option<i128>>, u8, i8),
    Decimal256(Vec<Option<i256>>, u8, i8),
    Float64(Float64Builder),
    /// Means, of values with this scale.
    Mean(Float64Builder, i8),
}

/// A sum or a mean of the values that are not null; null if there are none.
#[derive(Debug)]
pub(super) struct Sum {
    count: i64,
    total: Total,
    results: Results,
}

impl Sum {
    /// For values of this type; None if it has no sum. The result has the type [`sum_type`].
    pub(super) fn new(argument: &DataType, is_mean: bool) -> Option<Self> {
        use DataType as T;
        let (total, results, scale) = match argument {
            T::Int64 => (Total::Integer(0), Results::Int64(Int64Builder::new()), 0),
            T::UInt64 => (Total::Integer(0), Results::UInt64(UInt64Builder::new()), 0),
            T::Decimal128(_, s) => {
                let results = Results::Decimal128(Vec::new(), MAX_PRECISION_128, *s);
                (Total::Decimal(i256::ZERO), results, *s)
            }
            T::Decimal256(_, s) => {
                let results = Results::Decimal256(Vec::new(), MAX_PRECISION_256, *s);
                (Total::Decimal(i256::ZERO), results, *s)
            }
            T::Float64 => (
                Total::Float(Box::default()),
                Results::Float64(Float64Builder::new()),
                0,
            ),
            _ => return None,
        };
        let results = if is_mean {
            Results::Mean(Float64Builder::new(), scale)
        } else {
            results
        };
        Some(Self {
            count: 0,
            total,
            results,
        })
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean is a double")]
    fn mean(&mut self, scale: i8) -> f64 {
        let sum = match &mut self.total {
            Total::Integer(sum) => *sum as f64,
            // The text is rounded once.
            Total::Decimal(sum) => format!("{sum}e{}", -i32::from(scale))
                .parse()
                .unwrap_or(f64::NAN),
            Total::Float(sum) => sum.round(),
        };
        sum / self.count as f64
    }
}

/// The precision of sums of decimals.
const MAX_PRECISION_128: u8 = 38;
const MAX_PRECISION_256: u8 = 76;
/// With more digits, sums of 2^64 values might not fit 256 bits.
pub(super) const MAX_SUMMED_PRECISION: u8 = 56;

/// The type of the sums of values of a type that [`Sum`] computes with.
pub(super) fn sum_type(argument: &DataType) -> DataType {
    match argument {
        DataType::Decimal128(_, scale) => DataType::Decimal128(MAX_PRECISION_128, *scale),
        DataType::Decimal256(_, scale) => DataType::Decimal256(MAX_PRECISION_256, *scale),
        other => other.clone(),
    }
}

fn too_large(sum: &dyn std::fmt::Display, data_type: &str) -> Error {
    Error::invalid(format!(
        "the sum {sum} does not fit {data_type}; cast the column to a wider type, or to a decimal"
    ))
}

impl Accumulator for Sum {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        if let Some((state, ..)) = stored {
            self.count = take_count(state)?;
            return self.total.decode(state);
        }
        self.count = 0;
        self.total.clear();
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign) {
        self.count += sign.factor() * count_valid(&argument.values, &rows);
        self.total.update(&argument.values, rows, sign);
    }

    fn end(&mut self, state: &mut Vec<u8>) -> Result<()> {
        put_count(state, self.count)?;
        self.total.encode(state);
        let is_null = self.count == 0;
        if let Results::Mean(_, scale) = self.results {
            let mean = (!is_null).then(|| self.mean(scale));
            if let Results::Mean(results, _) = &mut self.results {
                results.append_option(mean);
            }
            return Ok(());
        }
        match (&mut self.results, &mut self.total) {
            (Results::Int64(results), Total::Integer(sum)) => {
                let fits = i64::try_from(*sum)
                    .ok()
                    .ok_or_else(|| too_large(sum, "int64"))?;
                results.append_option((!is_null).then_some(fits));
            }
            (Results::UInt64(results), Total::Integer(sum)) => {
                let fits = u64::try_from(*sum)
                    .ok()
                    .ok_or_else(|| too_large(sum, "uint64"))?;
                results.append_option((!is_null).then_some(fits));
            }
            (Results::Decimal128(results, precision, scale), Total::Decimal(sum)) => {
                let name = format!("decimal128({precision}, {scale})");
                let fits = sum
                    .to_i128()
                    .filter(|sum| sum.unsigned_abs() < 10_u128.pow(u32::from(MAX_PRECISION_128)))
                    .ok_or_else(|| too_large(sum, &name))?;
                results.push((!is_null).then_some(fits));
            }
            (Results::Decimal256(results, ..), Total::Decimal(sum)) => {
                results.push((!is_null).then_some(*sum));
            }
            (Results::Float64(results), Total::Float(sum)) => {
                results.append_option((!is_null).then(|| sum.round()));
            }
            _ => return Err(Error::other("internal error: a sum of another type")),
        }
        Ok(())
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(match &mut self.results {
            Results::Int64(results) => Arc::new(results.finish()),
            Results::UInt64(results) => Arc::new(results.finish()),
            Results::Float64(results) | Results::Mean(results, _) => Arc::new(results.finish()),
            Results::Decimal128(results, precision, scale) => {
                let array = Decimal128Array::from(std::mem::take(results));
                Arc::new(
                    array
                        .with_precision_and_scale(*precision, *scale)
                        .map_err(Error::from_cause)?,
                )
            }
            Results::Decimal256(results, precision, scale) => {
                let array = Decimal256Array::from(std::mem::take(results));
                Arc::new(
                    array
                        .with_precision_and_scale(*precision, *scale)
                        .map_err(Error::from_cause)?,
                )
            }
        })
    }
}
