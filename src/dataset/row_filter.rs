//! A predicate on the rows of a dataset: which row groups may have matches, and which rows match.
//!
//! The rules are those of a table's filters ([`crate::files::expr::Filter`]). Errors are `InvalidInput`: a predicate that
//! cannot be used on the dataset's columns, or that fails on a row.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::files::expr::{Filter, Predicate, RowGroupStatistics};
use crate::files::{OpenPart, TableColumns};
use crate::parquet::types::batch_with_row_count;

/// A predicate that is bound to the columns of a dataset.
#[derive(Debug)]
pub(super) struct DatasetFilter {
    filter: Filter,
    columns: TableColumns,
}

impl DatasetFilter {
    pub(super) fn new(
        predicate: &Predicate,
        schema: &SchemaRef,
        clock: &dyn Clock,
    ) -> Result<Self> {
        let columns = TableColumns::numbered(Arc::clone(schema));
        let filter = predicate.bind(&columns, clock)?;
        Ok(Self { filter, columns })
    }

    /// The positions of the columns that the predicate reads.
    pub(super) fn columns(&self) -> &[usize] {
        self.filter.columns()
    }

    /// The row groups of a part that may have matching rows.
    pub(super) async fn row_groups(&self, part: &OpenPart) -> Result<VecDeque<usize>> {
        // The parts of a dataset have the same columns in the same order.
        let field_mappings: Vec<_> = (0..self.columns.ids.len()).map(Some).collect();
        let statistics = RowGroupStatistics {
            part,
            columns: &self.columns,
            field_mappings: &field_mappings,
        };
        let may_match = self.filter.prune(statistics).await?;
        let groups = may_match.into_iter().enumerate();
        Ok(groups
            .filter_map(|(group, may_match)| may_match.then_some(group))
            .collect())
    }

    /// The matching rows of a batch, whose last columns are those of the predicate, as `schema`.
    pub(super) fn select(&self, batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
        let (outputs, inputs) = batch.columns().split_at(schema.fields().len());
        let mask = self.filter.evaluate(inputs.to_vec(), batch.num_rows())?;
        let rows = batch_with_row_count(schema, outputs.to_vec(), batch.num_rows())?;
        filter_record_batch(&rows, &mask).map_err(Error::from_cause)
    }
}
