//! What a version changed in a stage, row by row: made from the keys that it stored and the content that it has.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{RecordBatch, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};

use super::Pipeline;
use super::cursor::{Cursor, Picker};
use super::diff::{ChangeType, distinct};
use super::format::PipelineManifest;
use super::layers::to_error;
use super::lookup::Keys;
use super::read::{StoredNode, TableName, as_declared, stream};
use super::tables::TableShape;
use crate::error::{Error, Result};
use crate::files::{BatchStream, SortedBatches, Spill, SpillWriter};

/// Streams the changes that the version of `manifest` made in a stage, in the order of the key: `type` (0 add, 1 update,
/// 2 delete), `key` and `value`. A key that has no row any more is one row of type 2; of another one there are all its
/// rows, the first of which is of type 0 if the key is new. A version that is not of an update changed nothing.
pub fn changes(
    pipeline: &Pipeline,
    manifest: &PipelineManifest,
    name: &str,
    memory_bytes: usize,
) -> Result<BatchStream> {
    let node = StoredNode::find(pipeline, manifest, name, memory_bytes)?;
    if node.entry.feeders.is_empty() {
        return Err(Error::invalid(format!(
            "{name:?} is a source; only stages have changes"
        )));
    }
    let schema = Arc::new(Schema::new(vec![
        Field::new("type", DataType::Int32, false),
        node.columns.key.clone().with_name("key"),
        node.columns
            .value
            .clone()
            .with_name("value")
            .with_nullable(true),
    ]));
    let is_update = manifest.data_version == manifest.version;
    let declared = Arc::clone(&schema);
    let cancel = node.cancel.clone();
    Ok(stream(
        schema,
        (pipeline, manifest.version),
        &cancel,
        move || {
            let rows = if is_update {
                changed_rows(&node, memory_bytes / 64)?
            } else {
                Box::new(std::iter::empty())
            };
            Ok(as_declared(rows, declared))
        },
    ))
}

fn changed_rows(node: &StoredNode, memory_bytes: usize) -> Result<SortedBatches> {
    let shape = node.columns.update();
    let (content, _) = node.open(TableName::Content)?;
    let update = Spill::collect(&shape.schema, node.update()?, memory_bytes).map_err(to_error)?;
    let keys = distinct(update.read().map_err(to_error)?, &shape, 1, 0, memory_bytes)?;
    let rows = content.read(Keys::Of(&keys), 3)?;
    let order = shape.keys(1)?;
    let walk = || -> Result<Spill, ArrowError> {
        let mut update = Cursor::new(update.read()?, &order)?;
        let mut rows = Cursor::new(rows, &order)?;
        let mut writer = ChangeWriter::new(&shape, &content.shape, memory_bytes);
        while let (Some(key), Some((batch, row))) = (update.key(), update.row()) {
            let change = batch.column(1).as_primitive::<Int32Type>().value(row);
            if change == ChangeType::Delete as i32 {
                writer.add((batch, row), change, true)?;
            } else {
                rows.seek(key)?;
                let mut change = change;
                while let (true, Some(row)) = (rows.is_at(key), rows.row()) {
                    writer.add(row, change, false)?;
                    change = ChangeType::Update as i32;
                    rows.advance()?;
                }
            }
            update.advance()?;
        }
        writer.finish()
    };
    walk().and_then(|spill| spill.read()).map_err(to_error)
}

/// Writes rows `type`, `key`, `value`.
struct ChangeWriter {
    schema: SchemaRef,
    rows: Picker,
    types: Vec<i32>,
    /// Whether the rows are of the content, or keys without a row.
    is_delete: bool,
    spill: SpillWriter,
}

impl ChangeWriter {
    fn new(update: &TableShape, content: &TableShape, memory_bytes: usize) -> Self {
        let schema = Arc::new(Schema::new(vec![
            Field::new("type", DataType::Int32, false),
            update.schema.field(0).clone(),
            content.schema.field(2).clone(),
        ]));
        Self {
            spill: SpillWriter::new(&schema, memory_bytes),
            schema,
            rows: Picker::default(),
            types: Vec::new(),
            is_delete: false,
        }
    }

    fn add(
        &mut self,
        row: (&Arc<RecordBatch>, usize),
        change: i32,
        is_delete: bool,
    ) -> Result<(), ArrowError> {
        if self.rows.is_full() || is_delete != self.is_delete {
            self.flush()?;
        }
        self.is_delete = is_delete;
        self.rows.pick(row.0, row.1);
        self.types.push(change);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        for (rows, types) in self.rows.take_with::<Int32Type>(&mut self.types)? {
            let value = if self.is_delete {
                new_null_array(self.schema.field(2).data_type(), rows.num_rows())
            } else {
                Arc::clone(rows.column(2))
            };
            let columns = vec![types, Arc::clone(rows.column(0)), value];
            self.spill
                .push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Spill, ArrowError> {
        self.flush()?;
        self.spill.finish()
    }
}
