//! The number of distinct values of a group.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{BinaryBuilder, Int64Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{ArrowError, DataType};

use super::super::layers::to_error;
use super::accumulators::{Accumulator, Argument, Sign, valid_rows};
use super::sorted_files::SortedFiles;
use crate::error::Result;
use crate::files::BATCH_ROWS;

/// About the most bytes of values that are kept in memory.
const MEMORY_BYTES: usize = 16 << 20;
/// About what a value takes beside its bytes.
const VALUE_BYTES: usize = 48;

/// How many distinct values there are that are not null.
///
/// Its state is its result. If a value comes or leaves, nothing but the group knows whether it has others that are equal.
#[derive(Debug)]
pub(super) struct DistinctValues {
    /// The stored result.
    stored: Option<i64>,
    has_changed: bool,
    /// Of a group that is computed from all its rows: values, in the bytes that compare them, and their size.
    values: HashSet<Box<[u8]>>,
    bytes: usize,
    memory_bytes: usize,
    /// More of them, sorted.
    set_aside: SortedFiles,
    failure: Option<ArrowError>,
    results: Int64Builder,
}

impl DistinctValues {
    pub(super) fn new() -> Self {
        Self::with_memory(MEMORY_BYTES)
    }

    fn with_memory(memory_bytes: usize) -> Self {
        Self {
            stored: None,
            has_changed: false,
            values: HashSet::new(),
            bytes: 0,
            memory_bytes,
            set_aside: SortedFiles::new(&DataType::Binary),
            failure: None,
            results: Int64Builder::new(),
        }
    }

    fn set_aside(&mut self) -> Result<(), ArrowError> {
        let mut values: Vec<Box<[u8]>> = self.values.drain().collect();
        values.sort_unstable();
        self.bytes = 0;
        let batches = values.chunks(BATCH_ROWS).map(|values| {
            let mut column = BinaryBuilder::new();
            for value in values {
                column.append_value(value);
            }
            Ok(Arc::new(column.finish()) as ArrayRef)
        });
        self.set_aside.add(batches)
    }

    fn count(&mut self) -> Result<usize> {
        if self.set_aside.is_empty() {
            return Ok(self.values.len());
        }
        self.set_aside().map_err(to_error)?;
        let merged = self.set_aside.read().map_err(to_error)?;
        let (mut count, mut last) = (0, None::<Box<[u8]>>);
        for batch in merged {
            let batch = batch.map_err(to_error)?;
            for value in batch.column(0).as_binary::<i32>().iter().flatten() {
                if last.as_deref() != Some(value) {
                    count += 1;
                    last = Some(value.into());
                }
            }
        }
        Ok(count)
    }
}

impl Accumulator for DistinctValues {
    fn begin(&mut self, stored: Option<(&mut &[u8], &Argument, usize)>) -> Result<()> {
        self.stored =
            stored.map(|(_, result, row)| result.values.as_primitive::<Int64Type>().value(row));
        self.has_changed = false;
        self.values.clear();
        self.bytes = 0;
        self.set_aside.clear();
        Ok(())
    }

    fn update(&mut self, argument: &Arc<Argument>, rows: Range<usize>, _: Sign) {
        let Some(order) = argument.order.as_ref() else {
            return;
        };
        for row in valid_rows(&argument.values, rows) {
            self.has_changed = true;
            // All rows are asked for anyway.
            if self.stored.is_some() || self.failure.is_some() {
                return;
            }
            let row = order.row(row);
            if !self.values.contains(row.data()) {
                self.bytes += row.data().len() + VALUE_BYTES;
                self.values.insert(row.data().into());
            }
            if self.bytes > self.memory_bytes
                && let Err(e) = self.set_aside()
            {
                self.failure = Some(e);
            }
        }
    }

    fn is_resolved(&self) -> bool {
        self.stored.is_none() || !self.has_changed
    }

    fn end(&mut self, _: &mut Vec<u8>) -> Result<()> {
        if let Some(e) = self.failure.take() {
            return Err(to_error(e));
        }
        let count = match self.stored {
            Some(count) => count,
            None => i64::try_from(self.count()?).unwrap_or(i64::MAX),
        };
        self.results.append_value(count);
        Ok(())
    }

    fn take(&mut self) -> Result<ArrayRef> {
        Ok(Arc::new(self.results.finish()))
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{Array, Int64Array, StringArray};
    use arrow_row::{RowConverter, SortField};

    use super::*;

    fn count(values: &ArrayRef, memory_bytes: usize) -> i64 {
        let field = SortField::new(values.data_type().clone());
        let converter = RowConverter::new(vec![field]).unwrap();
        let order = converter
            .convert_columns(std::slice::from_ref(values))
            .unwrap();
        let argument = Arc::new(Argument {
            values: Arc::clone(values),
            order: Some(order),
        });
        let mut distinct = DistinctValues::with_memory(memory_bytes);
        distinct.begin(None).unwrap();
        let half = values.len() / 2;
        distinct.update(&argument, 0..half, Sign::Added);
        distinct.update(&argument, half..values.len(), Sign::Added);
        distinct.end(&mut Vec::new()).unwrap();
        distinct
            .take()
            .unwrap()
            .as_primitive::<Int64Type>()
            .value(0)
    }

    #[test]
    fn values_are_counted_in_any_memory() {
        let numbers = (0..5000_i64).map(|n| (n % 7 != 0).then_some(n * n % 1009));
        let numbers: Int64Array = numbers.collect();
        let expected = numbers.iter().flatten().collect::<HashSet<_>>().len();
        let texts: StringArray = numbers
            .iter()
            .map(|n| n.map(|n| format!("{n}\0")))
            .collect();
        for values in [Arc::new(numbers) as ArrayRef, Arc::new(texts)] {
            for memory_bytes in [0, 3000, 1 << 20] {
                let counted = usize::try_from(count(&values, memory_bytes));
                assert_eq!(counted, Ok(expected));
            }
        }
    }
}
