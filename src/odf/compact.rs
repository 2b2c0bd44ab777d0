//! Merges many small slices into few large ones, and keeps the history verifiable.
//!
//! Blocks never change, so [`compact()`] rewrites the chain from the first merged slice on: the same events at the
//! same times (or a few nanoseconds later, for a new name), rows with the same offsets. The head moves to the new chain.
//! The blocks and the data of the old chain stay until a vacuum, and every merged block names the head that it was made
//! from.
//!
//! Errors: [`ErrorKind::PartCorrupted`] for a slice that is not what was written, [`ErrorKind::FormatNotSupported`]
//! for a block of a later release after a merged slice. After an error the merged slices are removed, unless the
//! outcome of moving the head is unknown.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use chrono::TimeDelta;

use super::append::MIN_RETRY_DELAY;
use super::block::Block;
use super::chain::{Chain, ChainHead};
use super::event::{DataEvent, Event, Slice};
use super::event_kind::EventKind;
use super::head::HeadError::{self, NotMoved};
use super::head::{HeadResult, HeadUpdate};
use super::lease::WriteLease;
use super::multihash::Multihash;
use super::rows::SliceStats;
use super::rules::ChainState;
use super::slice::{SliceOptions, remove_slice, scan_slices, slice_files, write_slice};
use super::slice_columns::{schema_to_read, schema_to_write};
use super::time::UtcDateTime;
use crate::error::{Error, ErrorKind, Result};
use crate::files::ScanOptions;
use crate::parquet::options::WriteOptions;
use crate::sync::mutex::lock;
use crate::sync::progress;

/// The result of a compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compacted {
    /// The head before the compaction.
    pub head_before: Multihash,
    /// The head after the compaction.
    pub head_after: Multihash,
    /// The number of slices of `AddData` events before the compaction.
    pub slices_before: u64,
    /// The number of slices of `AddData` events after the compaction.
    pub slices_after: u64,
}

/// Merges consecutive slices as long as they have at most `target_bytes` together; None if there is nothing to merge.
pub async fn compact(
    chain: &Chain,
    target_bytes: u64,
    options: &WriteOptions,
    timeout: Duration,
) -> Result<Option<Compacted>> {
    // Slices that were merged in one attempt are used again in the next.
    let mut merged_slices: HashMap<Vec<Multihash>, Slice> = HashMap::new();
    let result =
        match move_to_merged(chain, target_bytes, options, timeout, &mut merged_slices).await {
            // Blocks may name the slices.
            Err(unknown @ HeadError::Unknown { .. }) => return Err(unknown.into_error()),
            Err(NotMoved(e)) => Err(e),
            Ok(compacted) => Ok(compacted),
        };
    for slice in merged_slices.values() {
        remove_slice(chain, slice).await;
    }
    result
}

/// Moves the head to a chain with merged slices, until `timeout` while other writers come first. Leaves those in
/// `merged_slices` that the new chain does not name.
async fn move_to_merged(
    chain: &Chain,
    target_bytes: u64,
    options: &WriteOptions,
    timeout: Duration,
    merged_slices: &mut HashMap<Vec<Multihash>, Slice>,
) -> HeadResult<Option<Compacted>> {
    let clock = chain.store().clock();
    let deadline = clock.monotonic() + timeout;
    let lease = WriteLease::new(chain);
    let mut delay = MIN_RETRY_DELAY;
    loop {
        let (head, steps) = plan_compaction(chain, target_bytes)
            .await
            .map_err(NotMoved)?;
        if steps.iter().all(|step| step.slices.len() < 2) {
            return Ok(None);
        }
        let rewritten = rewrite_blocks(chain, &steps, &head.hash, options, merged_slices).await;
        let new_blocks = rewritten.map_err(NotMoved)?;
        let count =
            |step_count: fn(&Step) -> usize| steps.iter().map(step_count).sum::<usize>() as u64;
        let compacted = Compacted {
            head_before: head.hash.clone(),
            head_after: new_blocks.last().map_or(&head.hash, Block::hash).clone(),
            slices_before: count(|step| step.slices.len()),
            slices_after: count(|step| step.slices.len().min(1)),
        };
        if let HeadUpdate::Appended(_) = chain.move_head(Some(&head), new_blocks, &lease).await? {
            let used_keys: Vec<Vec<Multihash>> = steps.iter().map(Step::key).collect();
            merged_slices.retain(|key, _| !used_keys.contains(key));
            return Ok(Some(compacted));
        }
        if clock.monotonic() >= deadline {
            return Err(NotMoved(chain.timeout_error(timeout)));
        }
        delay = chain.back_off(delay).await;
    }
}

/// Plans the blocks of a compaction of the newest chain.
async fn plan_compaction(chain: &Chain, target_bytes: u64) -> Result<(ChainHead, Vec<Step>)> {
    progress::begin_phase("plan");
    let (head, state) = chain.state().await?;
    state.check_readable()?;
    let blocks = chain.blocks_back_from(&head.hash, None, usize::MAX).await?;
    Ok((head, plan_steps(&blocks, target_bytes)?))
}

/// A block of the new chain: a block of the old chain, or several blocks whose slices are merged.
struct Step {
    time: UtcDateTime,
    event: StepEvent,
    slices: Vec<Slice>,
    /// The size of the slices in bytes.
    bytes: u64,
    /// The schema of the slices.
    schema: Option<SchemaRef>,
}

impl Step {
    fn key(&self) -> Vec<Multihash> {
        let slices = self.slices.iter();
        slices.map(|slice| slice.physical_hash.clone()).collect()
    }
}

enum StepEvent {
    /// That of a block of the old chain.
    Original(Arc<Block>),
    /// That of the blocks whose slices are merged.
    Merged(Box<DataEvent>),
}

impl StepEvent {
    /// What the event says about data, if slices may be merged into it.
    fn mergeable(&self) -> Option<&DataEvent> {
        match self {
            Self::Original(block) => mergeable_data(block),
            Self::Merged(data) => Some(data),
        }
    }
}

/// What a block says about data, if its slice may be merged with another.
fn mergeable_data(block: &Block) -> Option<&DataEvent> {
    match block.event() {
        Event::AddData(data) if block.is_fully_decoded() => Some(data),
        _ => None,
    }
}

/// Plans the blocks of the new chain, oldest first.
fn plan_steps(newest_first: &[Arc<Block>], target_bytes: u64) -> Result<Vec<Step>> {
    let mut state = ChainState::default();
    let mut steps: Vec<Step> = Vec::new();
    // The step that the next slice can be merged into.
    let mut open_step: Option<usize> = None;
    for block in newest_first.iter().rev() {
        let data = mergeable_data(block);
        let slice = data.map_or(Ok(None), DataEvent::slice)?.cloned();
        let size = slice.as_ref().map_or(0, |slice| slice.size);
        let merge = |step: &Step| {
            let fits = step.bytes.saturating_add(size) <= target_bytes;
            let (before, after) = (step.event.mergeable()?, data?);
            (fits && can_merge(before, after)).then(|| merge_events(before, after))
        };
        let merged = open_step.and_then(|at| Some((at, merge(&steps[at])?)));
        match (merged, slice) {
            (Some((at, event)), Some(slice)) => {
                let mut step = steps.remove(at);
                step.event = StepEvent::Merged(Box::new(event));
                step.time = block.system_time;
                step.bytes = step.bytes.saturating_add(slice.size);
                step.slices.push(slice);
                steps.push(step);
                open_step = Some(steps.len() - 1);
            }
            (_, slice) => {
                let slice_schema = state
                    .schema_event
                    .as_ref()
                    .map(|event| schema_to_read(event, &state.vocabulary))
                    .transpose()?;
                // The columns of slices before the first schema may differ.
                let is_mergeable = slice.is_some() && slice_schema.is_some();
                steps.push(Step {
                    time: block.system_time,
                    event: StepEvent::Original(Arc::clone(block)),
                    slices: slice.into_iter().collect(),
                    bytes: size,
                    schema: slice_schema.map(Arc::new),
                });
                let ends_merging = block.event().data().is_some()
                    || matches!(block.kind(), EventKind::SetDataSchema | EventKind::SetVocab)
                    || !block.is_fully_decoded();
                if is_mergeable {
                    open_step = Some(steps.len() - 1);
                } else if ends_merging {
                    open_step = None;
                }
            }
        }
        state.apply(block);
    }
    Ok(steps)
}

/// Whether two events can be merged: one event has room for the state of one source and for one set of attributes.
fn can_merge(before: &DataEvent, after: &DataEvent) -> bool {
    let source = |data: &DataEvent| {
        data.new_source_state
            .as_ref()
            .map(|s| s.source_name.clone())
    };
    let source_before = source(before);
    !before.has_own_attributes()
        && !after.has_own_attributes()
        && (source_before.is_none() || source_before == source(after))
}

/// Merges two events: the result leads from the state before the first one to the state after the second one.
fn merge_events(before: &DataEvent, after: &DataEvent) -> DataEvent {
    DataEvent {
        prev_checkpoint: before.prev_checkpoint.clone(),
        prev_offset: before.prev_offset,
        ..after.clone()
    }
}

/// Makes the blocks of the new chain that are not in the old one, and writes the slices that are not in
/// `merged_slices`.
async fn rewrite_blocks(
    chain: &Chain,
    steps: &[Step],
    head: &Multihash,
    options: &WriteOptions,
    merged_slices: &mut HashMap<Vec<Multihash>, Slice>,
) -> Result<Vec<Block>> {
    progress::begin_phase("merge");
    let mut state = ChainState::default();
    let mut new_blocks: Vec<Block> = Vec::new();
    let mut has_merged = false;
    for step in steps {
        // A block stays as it is as long as the blocks before it do.
        let tip_hash = state.tip.as_ref().map(|tip| &tip.hash);
        let event = match &step.event {
            StepEvent::Original(block) if block.prev_block_hash.as_ref() == tip_hash => {
                state.apply(block);
                continue;
            }
            StepEvent::Original(block) if !block.is_fully_decoded() => {
                let message =
                    "cannot rewrite a block of a later release after merged slices; upgrade pds";
                let error = Error::new(ErrorKind::FormatNotSupported, message);
                return Err(error.with_path(chain.root()));
            }
            StepEvent::Original(block) => block.fields(),
            StepEvent::Merged(data) => {
                let key = step.key();
                let slice = match merged_slices.get(&key) {
                    Some(slice) => slice.clone(),
                    None => merge_slices(chain, step, &state, options).await?,
                };
                let mut data = data.as_ref().clone();
                data.new_data = Some(slice.clone());
                data.set_compacted_from(head);
                merged_slices.insert(key, slice);
                Event::AddData(data).to_fields()
            }
        };
        has_merged |= matches!(step.event, StepEvent::Merged(_));
        let tip = state.tip.as_ref();
        let number = tip.map_or(0, |tip| tip.sequence_number + 1);
        let mut time = tip.map_or(step.time, |tip| tip.system_time.max(step.time));
        let mut block = Block::new(time, tip.map(|tip| &tip.hash), number, &event)?;
        // Merged blocks have new names, and so has what follows them. A block before them would get the same name in
        // every compaction, and one that a failed compaction left behind may be about to be vacuumed.
        while !has_merged && chain.has_block(block.hash()).await? {
            time += TimeDelta::nanoseconds(1);
            block = Block::new(time, tip.map(|tip| &tip.hash), number, &event)?;
        }
        state.check(&block).map_err(|e| e.with_path(chain.root()))?;
        state.apply(&block);
        new_blocks.push(block);
    }
    Ok(new_blocks)
}

/// Reads slices, checks their rows, and writes them as one slice.
async fn merge_slices(
    chain: &Chain,
    step: &Step,
    state: &ChainState,
    options: &WriteOptions,
) -> Result<Slice> {
    let (Some(first), Some(last)) = (step.slices.first(), step.slices.last()) else {
        return Err(Error::other("internal error: no slices to merge"));
    };
    let schema = step.schema.as_deref().map(schema_to_write);
    let schema =
        schema.ok_or_else(|| Error::other("internal error: merged slices without a schema"))?;
    let schema = Arc::new(schema);
    let files = slice_files(&schema, &state.vocabulary, &step.slices);
    for slice in &step.slices {
        super::verify::check_rows(chain, slice, &state.vocabulary, Some(&schema)).await?;
    }
    let stream = scan_slices(chain, &files, &ScanOptions::default()).await?;
    let slice_stats = Arc::new(Mutex::new(SliceStats::new(&schema)?));
    let shared_stats = Arc::clone(&slice_stats);
    let counted_rows = stream.into_reader().map(move |batch| {
        let batch = batch?;
        let mut counted = lock(&shared_stats);
        let result = counted.update(&batch);
        result.map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        Ok(batch)
    });
    let rows: Box<dyn RecordBatchReader + Send> =
        Box::new(RecordBatchIterator::new(counted_rows, schema));
    let options = SliceOptions {
        write_options: options,
        threads: None,
    };
    let new_slice = write_slice(chain, rows, slice_stats, first.start, options).await?;
    match new_slice {
        Some(new_slice) if new_slice.slice.end == last.end => Ok(new_slice.slice),
        _ => {
            let message = "the slices do not have the number of rows that their blocks state";
            Err(Error::new(ErrorKind::PartCorrupted, message).with_path(chain.root()))
        }
    }
}
