//! A chain as of a block: its schema, its slices and their rows.
//!
//! [`Chain::view`] finds the block that a [`BlockSelector`] selects and returns a [`ChainView`]. A time before a
//! compaction selects a block of the chain before that compaction. [`ChainView::files`] lists the slices as files with
//! rows of one schema, [`ChainView::ledger`] applies retractions and corrections.
//!
//! Errors: [`ErrorKind::NotFound`] (a time before the first block, or no schema), [`ErrorKind::VersionExpired`] (a
//! vacuum removed the chain of that time or block), [`ErrorKind::FormatNotSupported`] (an event of a later release may
//! determine what the data is). A ledger fails with [`ErrorKind::PartCorrupted`] for an unknown operation, with
//! [`ErrorKind::InvalidInput`] for the retraction of a row that does not exist, and with
//! [`ErrorKind::FormatNotSupported`] if the system columns got other names after the first rows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{ArrayRef, BooleanArray, RecordBatch};
use arrow_row::{OwnedRow, RowConverter, SortField};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use arrow_select::filter::filter_record_batch;
use serde_json::Value;

use super::block::Block;
use super::chain::{Chain, replay};
use super::event::{Event, Slice};
use super::multihash::Multihash;
use super::rules::ChainState;
use super::schema;
use super::slice::{read_columns, scan_slices, slice_file};
use super::slice_columns::schema_to_read;
use super::time::UtcDateTime;
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{ExternalFiles, ScanOptions};

/// Selects a block of a chain.
#[derive(Debug, Clone)]
pub enum BlockSelector {
    /// The newest block.
    Head,
    /// The block with this hash.
    Hash(Multihash),
    /// The last block that was appended at this time or before, compared in microseconds.
    Time(UtcDateTime),
}

/// A chain as of a block.
#[derive(Debug, Clone)]
pub struct ChainView {
    chain: Chain,
    /// The state of the chain after the block.
    pub state: Arc<ChainState>,
    blocks: Arc<Vec<Arc<Block>>>,
}

impl Chain {
    /// Returns the chain as of a block.
    pub async fn view(&self, selector: &BlockSelector) -> Result<ChainView> {
        let (head, newest) = self.state().await?;
        let hash = match selector {
            BlockSelector::Head => head.hash.clone(),
            BlockSelector::Hash(hash) => hash.clone(),
            BlockSelector::Time(time) => self.hash_at_time(&head.hash, *time).await?,
        };
        let is_newest = newest.tip.as_ref().is_some_and(|tip| tip.hash == hash);
        let blocks = match self.blocks_back_from(&hash, None, usize::MAX).await {
            Err(e) if e.kind() == ErrorKind::BlockCorrupted => {
                return Err(self.missing_block_error(&head.hash, &hash, e).await);
            }
            blocks => blocks?,
        };
        let state = if is_newest {
            newest
        } else {
            Arc::new(replay(None, &blocks))
        };
        Ok(ChainView {
            chain: self.clone(),
            state,
            blocks: Arc::new(blocks),
        })
    }

    /// The error of a block that cannot be read: it has expired if it does not exist and is not in the newest chain.
    /// Returns any other error unchanged.
    async fn missing_block_error(&self, head: &Multihash, hash: &Multihash, error: Error) -> Error {
        let Some(path) = error.path().map(str::to_owned) else {
            return error;
        };
        if !matches!(self.store().is_file(&path).await, Ok(false)) {
            return error;
        }
        match self.blocks_back_from(head, None, usize::MAX).await {
            Ok(newest) if newest.iter().all(|block| block.hash() != hash) => {}
            _ => return error,
        }
        let message = format!(
            "the newest chain does not have block {hash}, and its own chain is not there any more: a compaction \
             merged its slices and a vacuum removed them, or the hash is wrong; scan the newest block"
        );
        let expired = Error::new(ErrorKind::VersionExpired, message);
        expired.with_path(self.root()).with_source(error)
    }

    /// Fails with [`ErrorKind::VersionExpired`] if the slice of this name does not exist and the newest chain does not
    /// name it: a vacuum has removed it.
    pub async fn check_retained(&self, slice: &str) -> Result<()> {
        let Ok(hash) = slice.parse::<Multihash>() else {
            return Ok(());
        };
        if self.store().is_file(&self.data_path(slice)).await? {
            return Ok(());
        }
        let newest = self.view(&BlockSelector::Head).await?.slices()?;
        if newest.iter().any(|slice| slice.physical_hash == hash) {
            return Ok(());
        }
        let message = format!(
            "the block of this scan has been vacuumed: a compaction merged its slice {slice} into another, and it is \
             removed; scan the dataset again, at a newer block"
        );
        Err(Error::new(ErrorKind::VersionExpired, message).with_path(self.root()))
    }

    /// Returns the schema of slices that no `SetDataSchema` describes, as older tools wrote them: that of the newest
    /// slice. None for other chains.
    pub(super) async fn schema_of_slices(&self, state: &ChainState) -> Result<Option<Schema>> {
        let (Some(tip), Some(_), None) = (&state.tip, state.last_offset(), &state.schema_event)
        else {
            return Ok(None);
        };
        let view = self.view(&BlockSelector::Hash(tip.hash.clone())).await?;
        Ok(view.schema().await?.map(|schema| schema.as_ref().clone()))
    }

    async fn hash_at_time(&self, head: &Multihash, time: UtcDateTime) -> Result<Multihash> {
        let mut newest = head.clone();
        loop {
            let blocks = match self.blocks_back_from(&newest, None, usize::MAX).await {
                Err(e) if e.kind() == ErrorKind::BlockCorrupted && newest != *head => {
                    let message = format!(
                        "the slices of {time} were merged later, and a vacuum has removed the chain of \
                         that time"
                    );
                    let error = Error::new(ErrorKind::VersionExpired, message);
                    return Err(error.with_path(self.root()).with_source(e));
                }
                blocks => blocks?,
            };
            let is_not_later = |block: &Arc<Block>| {
                block.system_time.timestamp_micros() <= time.timestamp_micros()
            };
            let Some(at) = blocks.iter().position(is_not_later) else {
                let message = format!("the dataset begins after {time}");
                return Err(Error::new(ErrorKind::NotFound, message).with_path(self.root()));
            };
            // If the next slice was merged later, the chain of that time is the one before the compaction.
            let later = blocks[..at]
                .iter()
                .rev()
                .find(|block| block.event().data().is_some());
            match later.and_then(|block| block.event().compacted_from()) {
                Some(old_head) => newest = old_head,
                None => return Ok(blocks[at].hash().clone()),
            }
        }
    }
}

impl ChainView {
    /// Returns the blocks, newest first.
    pub fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// Returns the slices, oldest first.
    pub fn slices(&self) -> Result<Vec<Slice>> {
        let slices = self
            .blocks
            .iter()
            .rev()
            .filter_map(|block| block.event().slice().transpose());
        slices.map(|slice| slice.cloned()).collect()
    }

    /// Returns the schema of the last `SetDataSchema`; without one, the schema of the newest slice; None if there is
    /// no slice either.
    pub async fn schema(&self) -> Result<Option<SchemaRef>> {
        self.state.check_readable()?;
        if let Some(event) = &self.state.schema_event {
            return Ok(Some(Arc::new(schema::arrow_from_event(event)?)));
        }
        let Some(newest) = self.slices()?.pop() else {
            return Ok(None);
        };
        Ok(Some(Arc::new(read_columns(&self.chain, &newest).await?)))
    }

    /// Returns the files with the rows, whose paths are relative to the folder of the chain.
    pub async fn files(&self) -> Result<ExternalFiles> {
        let schema = self.schema().await?.ok_or_else(|| {
            let message = "the dataset has no schema; ingest rows or append a SetDataSchema first";
            Error::new(ErrorKind::NotFound, message).with_path(self.chain.root())
        })?;
        let slices = self.slices_with_vocabulary()?;
        let files = slices.iter().map(|(slice, names)| slice_file(slice, names));
        // After a rawArrowSchema rows may have nulls in any column, and a column may become required.
        let mut nullable_columns = self.nullable_columns()?;
        for name in self.state.vocabulary.names() {
            nullable_columns.remove(name);
        }
        let fields = schema.fields().iter().map(|field| {
            let nullable = field.is_nullable() || nullable_columns.contains(field.name());
            field.as_ref().clone().with_nullable(nullable)
        });
        let fields: Vec<_> = fields.collect();
        Ok(ExternalFiles {
            schema: Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
            files: files.collect(),
        })
    }

    /// Returns the slices, oldest first, each with the names that the system columns had at its block.
    fn slices_with_vocabulary(&self) -> Result<Vec<(&Slice, Vocabulary)>> {
        let mut slices = Vec::new();
        let mut vocabulary = Vocabulary::default();
        for block in self.blocks.iter().rev() {
            if let Event::SetVocab {
                vocabulary: names, ..
            } = block.event()
            {
                vocabulary = names.clone();
            }
            if let Some(slice) = block.event().slice()? {
                slices.push((slice, vocabulary.clone()));
            }
        }
        Ok(slices)
    }

    /// Returns the columns that may be null in the newest schema, or in one that any slice was written with.
    fn nullable_columns(&self) -> Result<HashSet<String>> {
        let mut names = HashSet::new();
        let mut schema_event = None;
        let vocabulary = &self.state.vocabulary;
        let mut add = |event: Option<&Value>| {
            // One that cannot be used is an error only if it is the last.
            if let Some(Ok(schema)) = event.map(|event| schema_to_read(event, vocabulary)) {
                let fields = schema.fields().iter();
                names.extend(fields.filter(|f| f.is_nullable()).map(|f| f.name().clone()));
            }
        };
        for block in self.blocks.iter().rev() {
            if let Event::SetDataSchema(fields) = block.event() {
                schema_event = Some(fields);
            }
            if block.event().slice()?.is_none() {
                continue;
            }
            add(schema_event.take());
        }
        add(schema_event);
        Ok(names)
    }

    /// Refuses a chain in which some slices have their operations in a column that is not the operation column now.
    fn check_vocabulary(&self) -> Result<()> {
        let now = &self.state.vocabulary;
        let is_renamed = |names: &Vocabulary| {
            (&names.offset, &names.operation, &names.system_time)
                != (&now.offset, &now.operation, &now.system_time)
        };
        let slices = self.slices_with_vocabulary()?;
        let Some((slice, _)) = slices.iter().find(|(_, names)| is_renamed(names)) else {
            return Ok(());
        };
        let message = format!(
            "the rows {} to {} were appended with other names of the system columns (SetVocab), so their retractions \
             cannot be applied; scan the rows without to_ledger()",
            slice.start, slice.end
        );
        Err(Error::new(ErrorKind::FormatNotSupported, message).with_path(self.chain.root()))
    }

    /// Applies retractions and corrections, and returns the rows that remain, in order: of those that match the
    /// filter of `options`, its columns. All rows of the chain are held in memory.
    pub async fn ledger(&self, options: ScanOptions) -> Result<(SchemaRef, Vec<RecordBatch>)> {
        self.check_vocabulary()?;
        let files = self.files().await?;
        let all_columns = ScanOptions::default();
        let (schema, batches) = collect_batches(&self.chain, &files, &all_columns).await?;
        let vocabulary = self.state.vocabulary.clone();
        let computation = crate::files::run_blocking(move || {
            let rows = concat_batches(&schema, &batches).map_err(Error::from_cause)?;
            apply_operations(&rows, &vocabulary)
        });
        let live_offsets = computation.await?;
        let output_columns = options.columns.unwrap_or_else(|| {
            let names = files.schema.fields().iter().map(|f| f.name().clone());
            names
                .filter(|name| *name != self.state.vocabulary.operation)
                .collect()
        });
        let offset = &self.state.vocabulary.offset;
        let mut scan_columns = output_columns.clone();
        let position = scan_columns.iter().position(|name| name == offset);
        let offset_index = position.unwrap_or_else(|| {
            scan_columns.push(offset.clone());
            output_columns.len()
        });
        let options = ScanOptions {
            columns: Some(scan_columns),
            ..options
        };
        let (schema, batches) = collect_batches(&self.chain, &files, &options).await?;
        let filtered = batches.iter().map(|batch| {
            let rows = filter_record_batch(
                batch,
                &live_mask(batch.column(offset_index), &live_offsets)?,
            )
            .and_then(|rows| rows.project(&(0..output_columns.len()).collect::<Vec<_>>()));
            rows.map_err(Error::from_cause)
        });
        let live_batches = filtered.collect::<Result<Vec<_>>>()?;
        let output_schema = schema
            .project(&(0..output_columns.len()).collect::<Vec<_>>())
            .map_err(Error::from_cause)?;
        Ok((Arc::new(output_schema), live_batches))
    }
}

async fn collect_batches(
    chain: &Chain,
    files: &ExternalFiles,
    options: &ScanOptions,
) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let mut stream = scan_slices(chain, files, options).await?;
    let schema = Arc::clone(&stream.schema);
    let mut batches = Vec::new();
    while let Some(batch) = stream.next().await {
        batches.push(batch?);
    }
    Ok((schema, batches))
}

fn live_mask(column: &ArrayRef, live_offsets: &[i64]) -> Result<BooleanArray> {
    let integers = arrow_cast::cast(column, &DataType::Int64).map_err(Error::from_cause)?;
    let offsets = integers.as_primitive::<Int64Type>().values();
    Ok(offsets
        .iter()
        .map(|offset| Some(live_offsets.binary_search(offset).is_ok()))
        .collect())
}

/// Returns the offsets of the rows that remain after all operations, in ascending order.
fn apply_operations(rows: &RecordBatch, vocabulary: &Vocabulary) -> Result<Vec<i64>> {
    let [offset, operation, system_time, _] = vocabulary.names();
    let schema = rows.schema();
    let column_index = |name: &str| crate::parquet::types::index_of(&schema, name);
    let generated = [
        column_index(offset)?,
        column_index(operation)?,
        column_index(system_time)?,
    ];
    let data_columns: Vec<usize> = (0..schema.fields().len())
        .filter(|i| !generated.contains(i))
        .collect();
    let fields = data_columns
        .iter()
        .map(|i| SortField::new(schema.field(*i).data_type().clone()));
    let converter = RowConverter::new(fields.collect()).map_err(Error::from_cause)?;
    let columns: Vec<_> = data_columns
        .iter()
        .map(|i| Arc::clone(rows.column(*i)))
        .collect();
    let keys = converter
        .convert_columns(&columns)
        .map_err(Error::from_cause)?;
    let operation_column =
        arrow_cast::cast(rows.column(column_index(operation)?), &DataType::Int32)
            .map_err(Error::from_cause)?;
    let operations = operation_column.as_primitive::<Int32Type>();
    let mut live_rows: HashMap<OwnedRow, Vec<u64>> = HashMap::new();
    let mut is_live = vec![false; rows.num_rows()];
    for (index, operation) in operations.values().iter().enumerate() {
        let key = keys.row(index).owned();
        match operation {
            0 | 3 => {
                live_rows.entry(key).or_default().push(index as u64);
                is_live[index] = true;
                continue;
            }
            1 | 2 => {}
            other => {
                let message = format!("row {index}: unknown operation code {other}");
                return Err(Error::new(ErrorKind::PartCorrupted, message));
            }
        }
        let Some(retracted) = live_rows.get_mut(&key).and_then(Vec::pop) else {
            let message = format!(
                "row {index} retracts a row that does not exist; scan the rows without to_ledger()"
            );
            return Err(Error::invalid(message));
        };
        is_live[usize::try_from(retracted).unwrap_or(usize::MAX)] = false;
    }
    let offset_column = arrow_cast::cast(rows.column(column_index(offset)?), &DataType::Int64)
        .map_err(Error::from_cause)?;
    let offsets = offset_column.as_primitive::<Int64Type>().values().iter();
    let mut live_offsets: Vec<i64> = offsets
        .zip(&is_live)
        .filter(|(_, is_live)| **is_live)
        .map(|(offset, _)| *offset)
        .collect();
    live_offsets.sort_unstable();
    Ok(live_offsets)
}
