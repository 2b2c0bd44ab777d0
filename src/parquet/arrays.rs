//! Columns as sequences of arrays: some of their rows, and batches of common rows.

use std::ops::Range;

use arrow_array::{ArrayRef, BooleanArray};
use arrow_buffer::BooleanBuffer;
use arrow_select::filter::filter;

use crate::error::{Error, Result};

/// The rows `row_range` of consecutive arrays, without empty arrays.
pub(crate) fn slice_arrays(arrays: Vec<ArrayRef>, row_range: &Range<usize>) -> Vec<ArrayRef> {
    let mut begin = 0;
    let slices = arrays.into_iter().map(|array| {
        let end = begin + array.len();
        let from = row_range.start.clamp(begin, end);
        let to = row_range.end.clamp(from, end);
        let slice = array.slice(from - begin, to - from);
        begin = end;
        slice
    });
    slices.filter(|slice| !slice.is_empty()).collect()
}

/// The rows of consecutive arrays that a mask of all of them selects.
pub(crate) fn filter_arrays(
    arrays: Vec<ArrayRef>,
    mask: Option<&BooleanBuffer>,
) -> Result<Vec<ArrayRef>> {
    let Some(mask) = mask else {
        return Ok(arrays);
    };
    let mut begin = 0;
    let filtered = arrays.into_iter().map(|array| {
        let selected = BooleanArray::new(mask.slice(begin, array.len()), None);
        begin += array.len();
        filter(&array, &selected).map_err(Error::from_cause)
    });
    filtered.collect()
}

/// Cuts columns of several arrays each at common rows; returns the batches, each with its number of rows.
pub(crate) fn align(columns: &[Vec<ArrayRef>], rows: usize) -> Vec<(usize, Vec<ArrayRef>)> {
    if columns.iter().all(|arrays| arrays.len() == 1) {
        return vec![(
            rows,
            columns
                .iter()
                .map(|arrays| ArrayRef::clone(&arrays[0]))
                .collect(),
        )];
    }
    let mut cuts: Vec<usize> = columns
        .iter()
        .flat_map(|arrays| {
            arrays.iter().scan(0, |at, array| {
                *at += array.len();
                Some(*at)
            })
        })
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut start = 0;
    let mut batches = Vec::new();
    for end in cuts {
        if end > start {
            let slices = columns
                .iter()
                .map(|arrays| slice_at(arrays, start, end - start))
                .collect();
            batches.push((end - start, slices));
            start = end;
        }
    }
    batches
}

/// The `length` rows from `start`, which lie in one array: the cuts include the end of every array.
fn slice_at(arrays: &[ArrayRef], mut start: usize, length: usize) -> ArrayRef {
    for array in arrays {
        if start < array.len() {
            return array.slice(start, length);
        }
        start -= array.len();
    }
    arrow_array::new_empty_array(arrays[0].data_type())
}
