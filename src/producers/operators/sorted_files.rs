//! Sorted values of a group that are set aside, in few files: each has a descriptor.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::super::layers::to_arrow;
use crate::error::Result;
use crate::files::{BATCH_ROWS, Merge, SortColumn, SortKeys, Spill};

/// So many files of one level are merged into one of the next.
const MERGED_FILES: usize = 16;

/// Values that were set aside, file by file.
#[derive(Debug)]
pub(super) struct SortedFiles {
    schema: SchemaRef,
    /// Each with its level: how often its values were merged. Levels never rise from a file to the next.
    files: Vec<(u32, Spill)>,
}

impl SortedFiles {
    pub(super) fn new(data_type: &DataType) -> Self {
        let field = Field::new("value", data_type.clone(), true);
        Self {
            schema: Arc::new(Schema::new(vec![field])),
            files: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.files.clear();
    }

    /// The number of values.
    pub(super) fn rows(&self) -> u64 {
        self.files.iter().map(|(_, file)| file.rows()).sum()
    }

    /// Sets aside batches of values, which come in their order.
    pub(super) fn add(
        &mut self,
        batches: impl Iterator<Item = Result<ArrayRef, ArrowError>>,
    ) -> Result<(), ArrowError> {
        let schema = Arc::clone(&self.schema);
        let batches =
            batches.map(|values| RecordBatch::try_new(Arc::clone(&schema), vec![values?]));
        let file = Spill::collect(&self.schema, batches, 0)?;
        self.files.push((0, file));
        while let Some(level) = self.full_level() {
            let last = self.files.split_off(self.files.len() - MERGED_FILES);
            let merged = Spill::collect(&self.schema, merge(&self.schema, &last)?, 0)?;
            self.files.push((level + 1, merged));
        }
        Ok(())
    }

    /// The level of the last [`MERGED_FILES`] files, if they all have the same.
    fn full_level(&self) -> Option<u32> {
        let last = self.files.last_chunk::<MERGED_FILES>()?;
        let level = last[0].0;
        last.iter()
            .all(|(other, _)| *other == level)
            .then_some(level)
    }

    /// All values in their order.
    pub(super) fn read(&self) -> Result<Merge, ArrowError> {
        merge(&self.schema, &self.files)
    }
}

fn merge(schema: &SchemaRef, files: &[(u32, Spill)]) -> Result<Merge, ArrowError> {
    let keys = SortKeys::new(schema, &[SortColumn::ascending(0)]).map_err(to_arrow)?;
    let streams = files
        .iter()
        .map(|(_, file)| file.read())
        .collect::<Result<Vec<_>, ArrowError>>()?;
    Merge::new(streams, &Arc::new(keys), BATCH_ROWS)
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;

    use super::*;

    #[test]
    fn many_sets_are_in_few_files() {
        let mut files = SortedFiles::new(&DataType::Int64);
        let mut expected = Vec::new();
        for n in 0..1000_i64 {
            let values = [n * 7 % 1000, 1000 + n];
            expected.extend(values);
            let values: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
            files.add(std::iter::once(Ok(values))).unwrap();
            assert!(files.files.len() <= 2 * MERGED_FILES + 3, "{n}");
        }
        expected.sort_unstable();
        assert_eq!(files.rows(), 2000);
        let read = files.read().unwrap().flat_map(|batch| {
            let batch = batch.unwrap();
            batch
                .column(0)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        });
        assert_eq!(read.collect::<Vec<_>>(), expected);
    }
}
