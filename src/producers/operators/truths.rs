//! Aggregates of truth values: how many there are, and how many of them are true.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{BooleanBuilder, Int64Builder};
use arrow_array::cast::AsArray;

use super::accumulators::{Accumulator, Argument, Sign, count_valid, put_count, take_count};
use crate::error::Result;

/// What is asked of the values that are not null.
#[derive(Debug)]
enum TruthResults {
    /// Whether all are true; null without values.
    All(BooleanBuilder),
    /// Whether one is true; null without values.
    Any(BooleanBuilder),
    /// How many are true.
    Count(Int64Builder),
}

/// An aggregate of truth values.
#[derive(Debug)]
pub(super) struct Truths {
    /// Of the values that are not null.
    count: i64,
    trues: i64,
    results: TruthResults,
}

impl Truths {
    pub(super) fn all() -> Self {
        Self::new(TruthResults::All(BooleanBuilder::new()))
    }

    pub(super) fn any() -> Self {
        Self::new(TruthResults::Any(BooleanBuilder::new()))
    }

    pub(super) fn count() -> Self {
        Self::new(TruthResults::Count(Int64Builder::new()))
    }

    fn new(results: TruthResults) -> Self {
        Self {
            count: 0,
            trues: 0,
            results,
        }
    }
}

impl Accumulator for Truths {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        (self.count, self.trues) = match stored {
            Some((state, ..)) => (take_count(state)?, take_count(state)?),
            None => (0, 0),
        };
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign) {
        let values = argument.values.as_boolean();
        let trues = values.slice(rows.start, rows.len()).true_count();
        self.count += sign.factor() * count_valid(values, &rows);
        self.trues += sign.factor() * i64::try_from(trues).unwrap_or(i64::MAX);
    }

    fn end(&mut self, state: &mut Vec<u8>) -> Result<()> {
        put_count(state, self.count)?;
        put_count(state, self.trues)?;
        let has_values = self.count > 0;
        match &mut self.results {
            TruthResults::All(results) => {
                results.append_option(has_values.then_some(self.trues == self.count));
            }
            TruthResults::Any(results) => {
                results.append_option(has_values.then_some(self.trues > 0));
            }
            TruthResults::Count(results) => results.append_value(self.trues),
        }
        Ok(())
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(match &mut self.results {
            TruthResults::All(results) | TruthResults::Any(results) => Arc::new(results.finish()),
            TruthResults::Count(results) => Arc::new(results.finish()),
        })
    }
}
