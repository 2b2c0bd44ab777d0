//! All values of a group, in their order.
//!
//! Values that do not fit into memory are sorted in parts and set aside in temporary files (`sorted_files`), which are
//! merged when values are asked for. Who asks names positions in the order, and only the values there are kept.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::{ArrowError, DataType};
use arrow_select::interleave::interleave;

use super::super::layers::to_error;
use super::accumulators::{Argument, valid_rows};
use super::extremes::order_of;
use super::sorted_files::SortedFiles;
use crate::error::Result;
use crate::files::BATCH_ROWS;
use crate::parquet::size::slice_bytes;

/// About the most bytes of values that are kept in memory.
const MEMORY_BYTES: usize = 16 << 20;
/// About what a value takes beside its bytes: its place, and the bytes that compare it.
const VALUE_BYTES: usize = 32;
/// About the most bytes of a batch of those that are set aside: to read them takes one of each file.
const BATCH_BYTES: usize = 1 << 20;

/// The values that are not null.
#[derive(Debug)]
pub(super) struct SortedValues {
    /// Values of a group that are in memory: the arrays that have them, and where in these they are.
    arguments: Vec<Arc<Argument>>,
    places: Vec<(usize, usize)>,
    bytes: usize,
    memory_bytes: usize,
    /// More of them, sorted.
    set_aside: SortedFiles,
    failure: Option<ArrowError>,
}

impl SortedValues {
    pub(super) fn new(data_type: &DataType) -> Self {
        Self::with_memory(data_type, MEMORY_BYTES)
    }

    fn with_memory(data_type: &DataType, memory_bytes: usize) -> Self {
        Self {
            arguments: Vec::new(),
            places: Vec::new(),
            bytes: 0,
            memory_bytes,
            set_aside: SortedFiles::new(data_type),
            failure: None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.arguments.clear();
        self.places.clear();
        self.bytes = 0;
        self.set_aside.clear();
    }

    /// Adds the values of rows, which are in the order of the argument.
    pub(super) fn add(&mut self, argument: &Arc<Argument>, rows: Range<usize>) {
        if self.failure.is_some() {
            return;
        }
        let is_last = self
            .arguments
            .last()
            .is_some_and(|last| Arc::ptr_eq(last, argument));
        if !is_last {
            self.arguments.push(Arc::clone(argument));
        }
        let at = self.arguments.len() - 1;
        self.bytes += rows.len() * VALUE_BYTES;
        self.bytes += slice_bytes(&argument.values.slice(rows.start, rows.len()));
        let rows = valid_rows(&argument.values, rows);
        self.places.extend(rows.map(|row| (at, row)));
        if self.bytes > self.memory_bytes
            && let Err(e) = self.set_aside()
        {
            self.failure = Some(e);
        }
    }

    /// How many there are.
    pub(super) fn count(&mut self) -> Result<u64> {
        if let Some(e) = self.failure.take() {
            return Err(to_error(e));
        }
        let in_memory = u64::try_from(self.places.len()).unwrap_or(u64::MAX);
        Ok(in_memory.saturating_add(self.set_aside.rows()))
    }

    /// Some of them, from a position on.
    pub(super) fn pick(&mut self, from: u128, count: usize) -> Result<Vec<(ArrayRef, usize)>> {
        if self.set_aside.is_empty() {
            self.sort();
            let from = usize::try_from(from).unwrap_or(usize::MAX);
            let places = self.places.iter().skip(from).take(count);
            let values = places.map(|(at, row)| (Arc::clone(&self.arguments[*at].values), *row));
            return Ok(values.collect());
        }
        self.set_aside().map_err(to_error)?;
        let merged = self.set_aside.read().map_err(to_error)?;
        let (mut passed, mut picked) = (0_u128, Vec::new());
        for batch in merged {
            let batch = batch.map_err(to_error)?;
            for row in 0..batch.num_rows() {
                if passed >= from {
                    picked.push((Arc::clone(batch.column(0)), row));
                }
                if picked.len() == count {
                    return Ok(picked);
                }
                passed += 1;
            }
        }
        Ok(picked)
    }

    fn sort(&mut self) {
        let arguments = &self.arguments;
        let order = |(at, row): (usize, usize)| order_of(&arguments[at], row);
        let places = &mut self.places;
        places.sort_unstable_by(|a, b| order(*a).cmp(order(*b)));
    }

    fn set_aside(&mut self) -> Result<(), ArrowError> {
        if self.places.is_empty() {
            return Ok(());
        }
        self.sort();
        let arrays: Vec<&dyn Array> = self.arguments.iter().map(|a| a.values.as_ref()).collect();
        let rows = (self.places.len() * BATCH_BYTES / self.bytes.max(1)).clamp(1, BATCH_ROWS);
        let batches = self.places.chunks(rows);
        self.set_aside
            .add(batches.map(|places| interleave(&arrays, places)))?;
        self.arguments.clear();
        self.places.clear();
        self.bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};
    use arrow_row::{RowConverter, SortField};

    use super::*;

    fn picked(values: &ArrayRef, memory_bytes: usize, from: u128) -> Vec<String> {
        let field = SortField::new(values.data_type().clone());
        let converter = RowConverter::new(vec![field]).unwrap();
        let mut sorted = SortedValues::with_memory(values.data_type(), memory_bytes);
        for begin in (0..values.len()).step_by(1000) {
            let values = values.slice(begin, 1000.min(values.len() - begin));
            let order = converter.convert_columns(std::slice::from_ref(&values));
            let argument = Arc::new(Argument {
                order: Some(order.unwrap()),
                values,
            });
            let half = argument.values.len() / 2;
            sorted.add(&argument, 0..half);
            sorted.add(&argument, half..argument.values.len());
        }
        let count = values.len() - values.null_count();
        assert_eq!(sorted.count().unwrap(), count as u64);
        let picked = sorted.pick(from, 2).unwrap().into_iter();
        let texts = picked.map(|(values, row)| match values.data_type() {
            DataType::Int64 => format!("{:04}", values.as_primitive::<Int64Type>().value(row)),
            _ => values.as_string::<i32>().value(row).to_owned(),
        });
        texts.collect()
    }

    #[test]
    fn values_are_sorted_in_any_memory() {
        let numbers = (0..5000_i64).map(|n| (n % 7 != 0).then_some(n * n % 1009));
        let numbers: Int64Array = numbers.collect();
        let texts = numbers.iter().map(|n| n.map(|n| format!("{n:04}")));
        let texts: StringArray = texts.collect();
        let mut sorted: Vec<_> = texts.iter().flatten().map(str::to_owned).collect();
        sorted.sort_unstable();
        for values in [Arc::new(numbers) as ArrayRef, Arc::new(texts)] {
            for memory_bytes in [0, 30_000, 1 << 20] {
                for from in [0, 1, 2000, sorted.len() - 1, sorted.len()] {
                    let expected: Vec<_> = sorted.iter().skip(from).take(2).cloned().collect();
                    assert_eq!(picked(&values, memory_bytes, from as u128), expected);
                }
            }
        }
    }
}
