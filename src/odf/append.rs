//! Creates a chain and appends events to it.
//!
//! After a lost race an append is repeated on the new head.
//!
//! Errors: [`ErrorKind::InvalidAppend`] (a rule), [`ErrorKind::CommitConflict`] (every race was lost; nothing was
//! appended), [`ErrorKind::CommitStateUnknown`] (the answer of the store was lost). [`Chain::create`] refuses stores
//! that ignore conditions.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures::try_join;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::Value;

use super::block::Block;
use super::chain::{CONCURRENT_BLOCKS, Chain, ChainHead, replay};
use super::event::{DatasetKind, Event};
use super::fields::invalid_event;
use super::head::{HeadError, HeadResult, HeadUpdate};
use super::lease::WriteLease;
use super::multihash::{DatasetId, Multihash};
use super::rules::ChainState;
use super::schema;
use super::time::UtcDateTime;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::probe_conditional_writes;
use crate::versions::names::{CHAIN_HEAD, DATASET_MARKER, POINTER};

pub(super) const MIN_RETRY_DELAY: Duration = Duration::from_millis(5);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(250);

/// The result of an append.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The appended blocks, oldest first.
    pub blocks: Vec<Arc<Block>>,
    /// The number of attempts; above 1 after conflicts with other writers.
    pub attempts: u32,
}

/// Blocks that are to follow a state, each checked against the rules.
#[derive(Debug)]
pub(super) struct BlockDraft {
    /// The state after these blocks.
    pub(super) state: ChainState,
    pub(super) blocks: Vec<Block>,
}

impl BlockDraft {
    pub(super) fn new(state: ChainState) -> Self {
        let blocks = Vec::new();
        Self { state, blocks }
    }

    /// Adds a block with this event and system time.
    pub(super) fn push(&mut self, time: UtcDateTime, event: &Value) -> Result<()> {
        let block = self.make_block(time, event)?;
        check_system_columns(&self.state, block.event())?;
        self.add(block)
    }

    /// As [`Self::push`], in a chain that never has rows: its columns may have any names and types.
    pub(super) fn push_without_rows(&mut self, time: UtcDateTime, event: &Value) -> Result<()> {
        let block = self.make_block(time, event)?;
        self.add(block)
    }

    fn make_block(&self, time: UtcDateTime, event: &Value) -> Result<Block> {
        let tip = self.state.tip.as_ref();
        let number = tip.map_or(0, |tip| tip.sequence_number + 1);
        Block::new(time, tip.map(|tip| &tip.hash), number, event)
    }

    fn add(&mut self, block: Block) -> Result<()> {
        self.state.check_new(&block)?;
        self.state.apply(&block);
        self.blocks.push(block);
        Ok(())
    }
}

/// Refuses an event after which a system column cannot hold its values.
fn check_system_columns(state: &ChainState, event: &Event) -> Result<()> {
    let (vocabulary, schema_event) = match event {
        Event::SetDataSchema(fields) => (&state.vocabulary, Some(fields)),
        Event::SetVocab { vocabulary, .. } => (vocabulary, state.schema_event.as_ref()),
        _ => return Ok(()),
    };
    // Whether a schema can be used is another rule.
    let Some(Ok(schema)) = schema_event.map(schema::arrow_from_event) else {
        return Ok(());
    };
    let checked = vocabulary.check_types(&schema, state.last_offset().is_some());
    checked.map_err(|e| invalid_event(e.message().to_owned()).with_source(e))
}

impl Chain {
    /// Creates the dataset with its first block, a `Seed` of the system time `time`, which defaults to now.
    /// [`ErrorKind::AlreadyExists`] if there is a head; [`ErrorKind::InvalidPath`] if the folder holds a table, a
    /// pipeline or a dataset; [`ErrorKind::UnsafeStore`] if the store ignores conditions.
    pub async fn create(
        &self,
        id: &DatasetId,
        kind: DatasetKind,
        time: Option<UtcDateTime>,
    ) -> Result<()> {
        let path = self.path(CHAIN_HEAD);
        let exists = || {
            let message = "the dataset exists already";
            Error::new(ErrorKind::AlreadyExists, message).with_path(self.root())
        };
        let (pointer, marker) = (self.path(POINTER), self.path(DATASET_MARKER));
        let (has_head, has_versions, has_dataset) = try_join!(
            self.store().is_file(&path),
            self.store().is_file(&pointer),
            self.store().is_file(&marker)
        )?;
        if has_head {
            return Err(exists());
        }
        let others = [
            (has_versions, "table or a pipeline"),
            (has_dataset, "dataset"),
        ];
        if let Some((_, other)) = others.iter().find(|(is_there, _)| *is_there) {
            let root = self.root();
            let message = format!("{root:?} holds a {other}; a chain needs a folder of its own");
            return Err(Error::new(ErrorKind::InvalidPath, message).with_path(self.root()));
        }
        probe_conditional_writes(self.store(), self.root()).await?;
        let time = time.unwrap_or_else(|| self.store().clock().now().to_utc());
        let mut draft = BlockDraft::new(ChainState::default());
        let seed = Event::Seed {
            dataset_id: id.clone(),
            dataset_kind: kind,
        };
        draft.push(time, &seed.to_fields())?;
        let lease = WriteLease::new(self);
        let created = self.move_head(None, draft.blocks, &lease).await;
        match created.map_err(HeadError::into_error)? {
            HeadUpdate::Appended(_) => Ok(()),
            HeadUpdate::Conflict => Err(exists()),
        }
    }

    /// Appends events, all or none. After a lost race they are checked and appended again on the new head, until
    /// `timeout` has passed.
    pub async fn append(&self, events: &[Value], timeout: Duration) -> Result<Appended> {
        let clock = self.store().clock();
        let deadline = clock.monotonic() + timeout;
        let (mut attempts, mut delay) = (0, MIN_RETRY_DELAY);
        loop {
            attempts += 1;
            let lease = WriteLease::new(self);
            let (head, state) = self.state().await?;
            let time = self.time_after(&state);
            let update = self.try_append(&head, &state, time, events, &lease).await;
            if let HeadUpdate::Appended(blocks) = update.map_err(HeadError::into_error)? {
                return Ok(Appended { blocks, attempts });
            }
            if clock.monotonic() >= deadline {
                return Err(self.timeout_error(timeout));
            }
            delay = self.back_off(delay).await;
        }
    }

    /// Sleeps for a random part of `delay`, and returns the next delay.
    pub(super) async fn back_off(&self, delay: Duration) -> Duration {
        let clock = self.store().clock();
        let jitter = u32::try_from(clock.new_id() % 1024).unwrap_or(0);
        clock.sleep(delay * jitter / 1024).await;
        (delay * 2).min(MAX_RETRY_DELAY)
    }

    pub(super) fn timeout_error(&self, timeout: Duration) -> Error {
        let message = format!(
            "gave up after {} s: lost every race against other writers; nothing was appended, try again",
            timeout.as_secs()
        );
        Error::new(ErrorKind::CommitConflict, message).with_path(self.root())
    }

    /// Returns the system time of a new block: now, or the time of the newest block if that is later.
    pub(super) fn time_after(&self, state: &ChainState) -> UtcDateTime {
        let now = self.store().clock().now().to_utc();
        state
            .tip
            .as_ref()
            .map_or(now, |tip| tip.system_time.max(now))
    }

    /// Appends events to a head, in one attempt.
    pub(super) async fn try_append(
        &self,
        head: &ChainHead,
        state: &ChainState,
        time: UtcDateTime,
        events: &[Value],
        lease: &WriteLease,
    ) -> HeadResult<HeadUpdate> {
        let make_blocks = |delay: TimeDelta| {
            let mut draft = BlockDraft::new(state.clone());
            for event in events {
                draft.push(time + delay, event)?;
            }
            Ok(draft.blocks)
        };
        let is_after_tip = state.tip.as_ref().is_none_or(|tip| tip.system_time < time);
        let drafted = if is_after_tip {
            make_blocks(TimeDelta::zero())
        } else {
            self.draft_new_blocks(make_blocks).await
        };
        let blocks = drafted.map_err(|e| HeadError::NotMoved(e.with_path(self.root())))?;
        self.move_head(Some(head), blocks, lease).await
    }

    /// Makes blocks that do not exist yet, by a delay of their times of some nanoseconds. A block that a write has left
    /// behind is old, and a vacuum that found it unused may be about to remove it.
    pub(super) async fn draft_new_blocks(
        &self,
        make_blocks: impl Fn(TimeDelta) -> Result<Vec<Block>>,
    ) -> Result<Vec<Block>> {
        let mut nanoseconds = 0;
        loop {
            let blocks = make_blocks(TimeDelta::nanoseconds(nanoseconds))?;
            let lookups: Vec<_> = blocks.iter().map(|b| self.has_block(b.hash())).collect();
            let results = stream::iter(lookups).buffer_unordered(CONCURRENT_BLOCKS);
            let exist: Vec<bool> = results.try_collect().await?;
            if !exist.contains(&true) {
                return Ok(blocks);
            }
            nanoseconds += 1;
        }
    }

    /// Appends a block unchanged, in one attempt.
    pub async fn append_block(&self, block: Block) -> Result<Appended> {
        if self.head().await?.is_none() {
            ChainState::default()
                .check_new(&block)
                .map_err(|e| e.with_path(self.root()))?;
            let message = "the dataset does not exist: create it first";
            return Err(Error::new(ErrorKind::NotFound, message).with_path(self.root()));
        }
        let (head, state) = self.state().await?;
        let previous = block.prev_block_hash.as_ref();
        // A block that follows an older block is checked on that one first: a violated rule is raised before the
        // conflict.
        let base = match previous {
            Some(hash) if *hash != head.hash => match self.block(hash).await {
                Ok(_) => {
                    let blocks = self.blocks_back_from(hash, None, usize::MAX).await?;
                    Arc::new(replay(None, &blocks))
                }
                Err(e) if e.kind() == ErrorKind::BlockCorrupted => Arc::clone(&state),
                Err(e) => return Err(e),
            },
            _ => Arc::clone(&state),
        };
        base.check_new(&block)
            .and_then(|()| check_system_columns(&base, block.event()))
            .map_err(|e| e.with_path(self.root()))?;
        if previous != Some(&head.hash) {
            let message = format!(
                "the block follows {}, but the head is {}; nothing was appended",
                previous.map(Multihash::to_string).unwrap_or_default(),
                head.hash
            );
            return Err(Error::new(ErrorKind::CommitConflict, message).with_path(self.root()));
        }
        let lease = WriteLease::new(self);
        let update = self.move_head(Some(&head), vec![block], &lease).await;
        match update.map_err(HeadError::into_error)? {
            HeadUpdate::Appended(blocks) => Ok(Appended {
                blocks,
                attempts: 1,
            }),
            HeadUpdate::Conflict => {
                let message = "another writer appended first; nothing was appended";
                Err(Error::new(ErrorKind::CommitConflict, message).with_path(self.root()))
            }
        }
    }
}
