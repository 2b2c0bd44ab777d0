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
use super::tables::KeyAndValue;
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
    let node = find_stage(pipeline, manifest, name, memory_bytes)?;
    let schema = change_schema(&node.columns);
    let is_update = manifest.data_version == manifest.version;
    let declared = Arc::clone(&schema);
    let (cancel, versions) = (node.cancel.clone(), [manifest.retained_version()]);
    Ok(stream(
        schema,
        (pipeline, manifest, versions.as_slice()),
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

/// A stage of a version. Fails with [`crate::ErrorKind::InvalidInput`] if it is a source: these have no changes.
pub(super) fn find_stage(
    pipeline: &Pipeline,
    manifest: &PipelineManifest,
    name: &str,
    memory_bytes: usize,
) -> Result<StoredNode> {
    let node = StoredNode::find(pipeline, manifest, name, memory_bytes)?;
    if node.entry.feeders.is_empty() {
        return Err(Error::invalid(format!(
            "{name:?} is a source; only stages have changes"
        )));
    }
    Ok(node)
}

/// The columns of the changes of a stage, as they were declared.
pub(super) fn change_schema(columns: &KeyAndValue) -> SchemaRef {
    let value = columns.value.clone().with_name("value");
    Arc::new(Schema::new(vec![
        Field::new("type", DataType::Int32, false),
        columns.key.clone().with_name("key"),
        value.with_nullable(true),
    ]))
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
        let mut writer = ChangeWriter::new(&node.columns.pairs(), memory_bytes);
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

/// Writes rows `type`, `key`, `value`, of rows whose first column is the key, and whose last one is the value.
pub(super) struct ChangeWriter {
    schema: SchemaRef,
    /// The columns `key` and `value`.
    pairs: SchemaRef,
    /// Batches of these, so that rows of the content and keys without a row are picked together.
    rows: Picker,
    types: Vec<i32>,
    /// The last batch of the content, and the last one of keys without a row, each with its `pairs`.
    last: [Option<(Arc<RecordBatch>, Arc<RecordBatch>)>; 2],
    spill: SpillWriter,
}

impl ChangeWriter {
    /// `pairs` are the columns `key` and `value`, as they are stored.
    pub(super) fn new(pairs: &SchemaRef, memory_bytes: usize) -> Self {
        let schema = Arc::new(Schema::new(vec![
            Field::new("type", DataType::Int32, false),
            pairs.field(0).clone(),
            pairs.field(1).clone(),
        ]));
        Self {
            spill: SpillWriter::new(&schema, memory_bytes),
            schema,
            pairs: Arc::clone(pairs),
            rows: Picker::default(),
            types: Vec::new(),
            last: [None, None],
        }
    }

    /// Adds a row of the content, or one that begins with a key that has no row any more.
    pub(super) fn add(
        &mut self,
        row: (&Arc<RecordBatch>, usize),
        change: i32,
        is_delete: bool,
    ) -> Result<(), ArrowError> {
        let at = usize::from(is_delete);
        let known = self.last[at].as_ref();
        let known = known.filter(|(batch, _)| Arc::ptr_eq(batch, row.0));
        let pairs = if let Some((_, pairs)) = known {
            Arc::clone(pairs)
        } else {
            let pairs = Arc::new(self.as_pairs(row.0, is_delete)?);
            self.last[at] = Some((Arc::clone(row.0), Arc::clone(&pairs)));
            pairs
        };
        self.rows.pick(&pairs, row.1);
        self.types.push(change);
        if self.rows.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn as_pairs(&self, rows: &RecordBatch, is_delete: bool) -> Result<RecordBatch, ArrowError> {
        let value = if is_delete {
            new_null_array(self.pairs.field(1).data_type(), rows.num_rows())
        } else {
            Arc::clone(rows.column(rows.num_columns() - 1))
        };
        let columns = vec![Arc::clone(rows.column(0)), value];
        RecordBatch::try_new(Arc::clone(&self.pairs), columns)
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        for (rows, types) in self.rows.take_with::<Int32Type>(&mut self.types)? {
            let columns = vec![
                types,
                Arc::clone(rows.column(0)),
                Arc::clone(rows.column(1)),
            ];
            self.spill
                .push(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)?;
        }
        Ok(())
    }

    /// The rows.
    pub(super) fn finish(mut self) -> Result<Spill, ArrowError> {
        self.flush()?;
        self.spill.finish()
    }
}
