//! The least and the greatest value of a group.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;

use super::accumulators::{Accumulator, Argument, Sign, valid_rows};
use super::picked_results::PickedResults;
use crate::error::Result;

/// The least or the greatest value that is not null; null if there is none.
///
/// Its state is its result. If the value that is the result leaves, and none that comes is as extreme, nothing but the
/// group knows the next one.
#[derive(Debug)]
pub(super) struct Extreme {
    is_greatest: bool,
    /// The stored result.
    stored: Option<(ArrayRef, usize, Box<[u8]>)>,
    has_left: bool,
    /// The most extreme value that came.
    best: Option<(Arc<Argument>, usize)>,
    results: PickedResults,
}

impl Extreme {
    pub(super) fn new(data_type: &DataType, is_greatest: bool) -> Self {
        Self {
            is_greatest,
            stored: None,
            has_left: false,
            best: None,
            results: PickedResults::new(data_type),
        }
    }

    /// Whether `a` is at least as extreme as `b`.
    fn is_at_least(&self, a: &[u8], b: &[u8]) -> bool {
        if self.is_greatest { a >= b } else { a <= b }
    }
}

/// The bytes in the order of which the values of an argument are.
pub(super) fn order_of(argument: &Argument, row: usize) -> &[u8] {
    let order = argument.order.as_ref();
    order.map_or(&[], |order| order.row(row).data())
}

impl Accumulator for Extreme {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.has_left = false;
        self.best = None;
        self.stored = stored.and_then(|(_, result, row)| {
            let order = order_of(result, row).into();
            let is_valid = result.values.is_valid(row);
            is_valid.then(|| (Arc::clone(&result.values), row, order))
        });
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, sign: Sign) {
        for row in valid_rows(&argument.values, rows) {
            let order = order_of(argument, row);
            match sign {
                Sign::Removed => {
                    self.has_left |= self.stored.as_ref().is_some_and(|(.., o)| **o == *order);
                }
                Sign::Added => {
                    let is_better = self
                        .best
                        .as_ref()
                        .is_none_or(|(best, at)| !self.is_at_least(order_of(best, *at), order));
                    if is_better {
                        self.best = Some((Arc::clone(argument), row));
                    }
                }
            }
        }
    }

    fn is_resolved(&self) -> bool {
        !self.has_left
            || match (&self.best, &self.stored) {
                (Some((best, row)), Some((.., stored))) => {
                    self.is_at_least(order_of(best, *row), stored)
                }
                _ => false,
            }
    }

    fn resolve(&mut self, row: Option<(&Argument, usize)>) {
        self.has_left = false;
        self.stored = row.map(|(argument, row)| {
            let order = order_of(argument, row).into();
            (Arc::clone(&argument.values), row, order)
        });
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        let best = self.best.take();
        let result = match (best, self.stored.take()) {
            (Some((best, row)), Some((stored, at, order))) => {
                if self.is_at_least(order_of(&best, row), &order) {
                    Some((Arc::clone(&best.values), row))
                } else {
                    Some((stored, at))
                }
            }
            (Some((best, row)), None) => Some((Arc::clone(&best.values), row)),
            (None, stored) => stored.map(|(values, row, _)| (values, row)),
        };
        self.results.push(result);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.results.is_full()
    }

    fn take(&mut self) -> Result<ArrayRef> {
        self.results.take()
    }
}
