//! Stages that get new tables in the place of those that they have: what the old ones had.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, new_null_array};

use super::apply::replaced_keys;
use super::diff::{distinct, keys_only};
use super::functions::Rows;
use super::graph::Node;
use super::keys::are_stored_alike;
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::plan::Plan;
use super::read::{StoredNode, TableName};
use super::tables::KeyAndValue;
use crate::error::Result;
use crate::files::{SortedBatches, Spill, sort_batches};

impl Plan {
    /// The changed keys of a stage with new tables, those of its old tables among them if they are stored alike.
    pub(super) fn changes_of_replaced(&self, node: &Node, added: Spill) -> Result<Spill> {
        let Some(stored) = self.base.node(node.name()) else {
            return Ok(added);
        };
        let (old, new) = (KeyAndValue::from_entry(stored)?, node.columns());
        if !are_stored_alike(&old.key, &new.key) {
            return Ok(added);
        }
        let memory_bytes = self.memory_bytes / 64;
        let table = self.replaced_content(&stored.name)?;
        // The source key decides too which rows are the newest.
        let old_keys = distinct(table.read(Keys::All, 2)?, &table.shape, 1, 0, memory_bytes)?;
        let mut old_keys: SortedBatches = keys_only(&old_keys)?;
        if old.descending != new.descending {
            let schema = Arc::new(table.shape.schema.project(&[0]).map_err(to_error)?);
            let unsorted: Rows = Box::new(RecordBatchIterator::new(old_keys, schema));
            let order = new.update().sort_columns(1);
            old_keys = Box::new(sort_batches(unsorted, &order, self.memory_bytes / 4)?);
        }
        replaced_keys(old_keys, &added, &new.update(), memory_bytes)
    }

    /// The rows of the old tables of a stage with new ones, as the new ones would have them without source keys. None
    /// if the key or value is stored as another type.
    pub(super) fn rows_of_replaced(&self, node: &Node) -> Result<Option<Spill>> {
        let Some(stored) = self.base.node(node.name()) else {
            return Ok(None);
        };
        let (old, new) = (KeyAndValue::from_entry(stored)?, node.columns());
        if !are_stored_alike(&old.key, &new.key) || !are_stored_alike(&old.value, &new.value) {
            return Ok(None);
        }
        let shape = self.content(node, self.sources_of(node).as_ref()).shape;
        let schema = Arc::clone(&shape.schema);
        let rows = self.replaced_content(&stored.name)?.read(Keys::All, 3)?;
        let rows = rows.map(move |batch| {
            let batch = batch?;
            let sources = new_null_array(schema.field(1).data_type(), batch.num_rows());
            let columns = vec![
                Arc::clone(batch.column(0)),
                sources,
                Arc::clone(batch.column(2)),
            ];
            RecordBatch::try_new(Arc::clone(&schema), columns)
        });
        let unsorted: Rows = Box::new(RecordBatchIterator::new(rows, Arc::clone(&shape.schema)));
        let rows = sort_batches(unsorted, &shape.sort_columns(1), self.memory_bytes / 4)?;
        let rows = Spill::collect(&shape.schema, rows, self.memory_bytes / 64);
        rows.map(Some).map_err(to_error)
    }

    fn replaced_content(&self, name: &str) -> Result<StoredTable> {
        let mut stored = StoredNode::find(&self.pipeline, &self.base, name, self.memory_bytes)?;
        stored.cancel = self.cancel.clone();
        Ok(StoredTable {
            store: self.store_of(name),
            ..stored.open(TableName::Content)?.0
        })
    }
}
