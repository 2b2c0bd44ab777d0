//! The least and the greatest value of a group.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, new_null_array};
use arrow_schema::DataType;
use arrow_select::interleave::interleave;

use super::accumulators::{Accumulator, Argument, Sign, valid_rows};
use crate::error::{Error, Result};
use crate::parquet::size::slice_bytes;

/// The least or the greatest value that is not null; null if there is none.
///
/// Its state is its result. If the value that is the result leaves, and none that comes is as extreme, nothing but the
/// group knows the next one.
#[derive(Debug)]
pub(super) struct Extreme {
    is_greatest: bool,
    data_type: DataType,
    /// The stored result.
    stored: Option<(ArrayRef, usize, Box<[u8]>)>,
    has_left: bool,
    /// The most extreme value that came.
    best: Option<(Arc<Argument>, usize)>,
    /// The arrays of the results, and where in these they are; array 0 is a null.
    arrays: Vec<ArrayRef>,
    results: Vec<(usize, usize)>,
    /// The size of the results, but numbers.
    bytes: usize,
}

/// The most arrays that results are kept of, and about how many bytes of results.
const MAX_ARRAYS: usize = 64;
const MAX_BYTES: usize = 16 << 20;

impl Extreme {
    pub(super) fn new(data_type: &DataType, is_greatest: bool) -> Self {
        Self {
            is_greatest,
            data_type: data_type.clone(),
            stored: None,
            has_left: false,
            best: None,
            arrays: Vec::new(),
            results: Vec::new(),
            bytes: 0,
        }
    }

    /// Whether `a` is at least as extreme as `b`.
    fn is_at_least(&self, a: &[u8], b: &[u8]) -> bool {
        if self.is_greatest { a >= b } else { a <= b }
    }
}

/// The bytes in the order of which the values of an argument are.
fn order_of(argument: &Argument, row: usize) -> &[u8] {
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
        if let Some((array, row)) = &result
            && !self.data_type.is_primitive()
        {
            self.bytes += slice_bytes(&array.slice(*row, 1));
        }
        let place = result.map_or((0, 0), |(array, row)| {
            let known = self.arrays.iter().rposition(|a| Arc::ptr_eq(a, &array));
            let at = known.unwrap_or_else(|| {
                self.arrays.push(array);
                self.arrays.len() - 1
            });
            (at + 1, row)
        });
        self.results.push(place);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.arrays.len() >= MAX_ARRAYS || self.bytes >= MAX_BYTES
    }

    fn take(&mut self) -> Result<ArrayRef> {
        let (arrays, results) = (
            std::mem::take(&mut self.arrays),
            std::mem::take(&mut self.results),
        );
        self.bytes = 0;
        let null = new_null_array(&self.data_type, 1);
        let arrays: Vec<&dyn Array> = [&null]
            .into_iter()
            .chain(&arrays)
            .map(AsRef::as_ref)
            .collect();
        interleave(&arrays, &results).map_err(|e| Error::other(e.to_string()).with_source(e))
    }
}
