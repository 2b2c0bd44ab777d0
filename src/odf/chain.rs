//! A chain in a store: blocks by hash, and one reference that a conditional write moves.
//!
//! ```text
//! <root>/blocks/<hash>   <root>/data/<hash>   <root>/checkpoints/<hash>   <root>/refs/head
//! ```
//!
//! Data is written first, then blocks, then the head. What is named by its hash never changes. A block
//! that nobody's head came to is an orphan and harms nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, stream};
use object_store::GetOptions;
use serde_json::Value;

use super::block::{Block, MAX_BLOCK_BYTES, build_event};
use super::head::{as_unknown_outcome, parse_head};
use super::multihash::{DatasetId, Multihash};
use super::rules::ChainState;
use super::time::UtcDateTime;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::cas::{CasResult, Register, VersionedValue, probe_conditional_writes};
use crate::table::Table;

/// Blocks read or written at once.
pub(super) const CONCURRENT_BLOCKS: usize = 32;
/// So many blocks are read one after another before the folder is listed.
const STEPS_BEFORE_LISTING: usize = 8;
/// A hash in any base.
const MAX_HEAD_BYTES: u64 = 1024;
const MIN_RETRY_DELAY: Duration = Duration::from_millis(5);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(250);

/// What a dataset's data comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetKind {
    /// From outside.
    Root,
    /// From other datasets.
    Derivative,
}

impl DatasetKind {
    fn name(self) -> &'static str {
        match self {
            Self::Root => "Root",
            Self::Derivative => "Derivative",
        }
    }
}

/// A chain: its place, and the part of it that has been read.
#[derive(Debug, Clone)]
pub struct Chain {
    store: Store,
    root: String,
    cache: Arc<Mutex<ChainCache>>,
    /// The process that `known` is of.
    process_id: u32,
}

#[derive(Debug, Default)]
struct ChainCache {
    blocks: HashMap<Multihash, Arc<Block>>,
    /// The newest state that was folded.
    state: Option<Arc<ChainState>>,
}

/// The head as it was read: what it names and what identifies its writing.
#[derive(Debug, Clone)]
pub struct ChainHead {
    /// The newest block's hash.
    pub hash: Multihash,
    pub(super) version: VersionedValue,
}

/// Blocks that were appended.
#[derive(Debug, Clone)]
pub struct Appended {
    /// The blocks, oldest first.
    pub blocks: Vec<Arc<Block>>,
    /// How often it was tried.
    pub attempts: u32,
}

/// How an append that others came before goes on.
pub(super) enum HeadUpdate {
    Appended(Vec<Arc<Block>>),
    Conflict,
}

impl Chain {
    /// The chain at `root`; nothing is read yet.
    pub fn new(store: Store, root: &str) -> Result<Self> {
        // Its rows are read as a table's, so what is no place for one is none for a chain.
        Table::new(store.clone(), root)?;
        Ok(Self {
            store,
            root: root.to_owned(),
            cache: Arc::default(),
            process_id: std::process::id(),
        })
    }

    /// The same chain through another client.
    pub fn with_store(&self, store: Store) -> Result<Self> {
        let mut chain = Self::new(store, &self.root)?;
        // In a forked process a thread that is not there may hold the lock.
        if chain.process_id == self.process_id {
            chain.cache = Arc::clone(&self.cache);
        }
        Ok(chain)
    }

    /// Where it is.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// What it is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The path of an object of it.
    pub(super) fn path(&self, relative: &str) -> String {
        crate::store::path::join(&self.root, relative)
    }

    /// The path of a slice of data.
    pub(super) fn data_path(&self, hash: &str) -> String {
        self.path(&format!("data/{hash}"))
    }

    /// Begins a chain: its first block, now or at a time before.
    pub async fn create(
        &self,
        id: &DatasetId,
        kind: DatasetKind,
        time: Option<UtcDateTime>,
    ) -> Result<Arc<Block>> {
        let fields = [
            ("datasetId", Some(id.to_string().into())),
            ("datasetKind", Some(kind.name().into())),
        ];
        let time = time.unwrap_or_else(|| self.store.clock().now().to_utc());
        let seed = Block::new(time, None, 0, &build_event("Seed", fields))?;
        let path = self.path("refs/head");
        let exists = || {
            let message = "there is a dataset already";
            Error::new(ErrorKind::AlreadyExists, message).with_path(&self.root)
        };
        if self.store.is_file(&path).await? {
            return Err(exists());
        }
        probe_conditional_writes(&self.store, &self.root).await?;
        self.put_block(&seed).await?;
        let register = Register::new(&self.store, &path);
        let value = Bytes::from(seed.hash().to_string());
        let created = register.create(value).await;
        match created.map_err(|e| as_unknown_outcome(&seed, e))? {
            CasResult::Won(_) => Ok(self.cache_block(seed)),
            // Its answer may have got lost, and others have followed it by now.
            CasResult::Conflict(current_head) if self.begins_with(&current_head, &seed).await? => {
                Ok(self.cache_block(seed))
            }
            CasResult::Conflict(_) | CasResult::Missing => Err(exists()),
        }
    }

    /// The head; None where there is no chain.
    pub async fn head(&self) -> Result<Option<ChainHead>> {
        let path = self.path("refs/head");
        let register = Register::new(&self.store, &path);
        let Some(version) = register.read_at_most(MAX_HEAD_BYTES).await? else {
            return Ok(None);
        };
        let hash = parse_head(&version).map_err(|e| e.with_path(&path))?;
        Ok(Some(ChainHead { hash, version }))
    }

    async fn require_head(&self) -> Result<ChainHead> {
        self.head().await?.ok_or_else(|| self.not_found())
    }

    /// The error of a chain that is not there.
    pub fn not_found(&self) -> Error {
        let message = "there is no dataset: it has no refs/head";
        Error::new(ErrorKind::NotFound, message).with_path(&self.root)
    }

    /// A block, checked against its name.
    pub async fn block(&self, hash: &Multihash) -> Result<Arc<Block>> {
        if let Some(block) = self.lock_cache().blocks.get(hash) {
            return Ok(Arc::clone(block));
        }
        Ok(self.cache_block(self.fetch(hash).await?))
    }

    /// A block as it is in the store now, checked against its name.
    pub(super) async fn fetch(&self, hash: &Multihash) -> Result<Block> {
        let path = self.path(&format!("blocks/{hash}"));
        let get = self
            .store
            .get_at_most(&path, GetOptions::default(), MAX_BLOCK_BYTES as u64);
        let (bytes, _) = get.await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let message = format!("block {hash} is missing");
                Error::new(ErrorKind::BlockCorrupted, message).with_path(&path)
            }
            _ => e,
        })?;
        let actual_hash = Multihash::sha3_256(&bytes);
        if actual_hash != *hash {
            let message =
                format!("block {hash} is not what was written: its bytes have hash {actual_hash}");
            return Err(Error::new(ErrorKind::BlockCorrupted, message).with_path(&path));
        }
        Block::from_bytes(bytes).map_err(|e| e.with_path(&path))
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, ChainCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn cache_block(&self, block: Block) -> Arc<Block> {
        let block = Arc::new(block);
        let mut cache = self.lock_cache();
        cache
            .blocks
            .insert(block.hash().clone(), Arc::clone(&block));
        block
    }

    /// The blocks from `newest` back, at most so many, newest first; ends before `until`.
    pub async fn blocks_back_from(
        &self,
        newest: &Multihash,
        until: Option<&Multihash>,
        limit: usize,
    ) -> Result<Vec<Arc<Block>>> {
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        let mut next = Some(newest.clone());
        let mut misses = 0;
        while let Some(hash) = next.clone().filter(|hash| Some(hash) != until) {
            if blocks.len() >= limit {
                break;
            }
            if !self.lock_cache().blocks.contains_key(&hash) {
                misses += 1;
                if misses == STEPS_BEFORE_LISTING && limit - blocks.len() > STEPS_BEFORE_LISTING {
                    self.read_all().await?;
                }
            }
            let block = self.block(&hash).await?;
            check_link(&block, blocks.last())?;
            next.clone_from(&block.prev_block_hash);
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Reads all blocks there are, many at once; those that cannot be read are left for who needs them.
    async fn read_all(&self) -> Result<()> {
        let objects = self.store.list(&self.path("blocks")).await?;
        let hashes = objects.iter().filter_map(|meta| {
            let name = meta.location.filename()?;
            name.parse::<Multihash>().ok()
        });
        let missing_hashes: Vec<Multihash> = {
            let cache = self.lock_cache();
            hashes
                .filter(|hash| !cache.blocks.contains_key(hash))
                .collect()
        };
        let fetches: Vec<_> = missing_hashes.iter().map(|hash| self.fetch(hash)).collect();
        let mut reads = stream::iter(fetches).buffer_unordered(CONCURRENT_BLOCKS);
        while let Some(read) = reads.next().await {
            match read {
                Ok(block) => drop(self.cache_block(block)),
                Err(e) => log::debug!("a block was passed over: {e}"),
            }
        }
        Ok(())
    }

    /// What the chain says up to its head.
    pub async fn state(&self) -> Result<(ChainHead, Arc<ChainState>)> {
        let head = self.require_head().await?;
        let state = self.state_at(&head.hash).await?;
        Ok((head, state))
    }

    /// What the chain says up to a block.
    pub async fn state_at(&self, hash: &Multihash) -> Result<Arc<ChainState>> {
        let cached_state = self.lock_cache().state.clone();
        let cached_tip = cached_state
            .as_ref()
            .and_then(|s| s.tip.as_ref())
            .map(|t| t.hash.clone());
        if cached_tip.as_ref() == Some(hash) {
            return Ok(cached_state.unwrap_or_default());
        }
        let blocks = self
            .blocks_back_from(hash, cached_tip.as_ref(), usize::MAX)
            .await?;
        let reaches_cached_tip = blocks
            .last()
            .is_none_or(|oldest| oldest.prev_block_hash == cached_tip);
        let base = cached_state.filter(|_| reaches_cached_tip && cached_tip.is_some());
        let state = Arc::new(replay(base.as_deref().cloned(), &blocks));
        self.lock_cache().state = Some(Arc::clone(&state));
        Ok(state)
    }

    /// Appends events, all or none, on whatever the chain says by then.
    pub async fn append(&self, events: &[Value], timeout: Duration) -> Result<Appended> {
        let clock = self.store.clock();
        let deadline = clock.monotonic() + timeout;
        let (mut attempts, mut delay) = (0, MIN_RETRY_DELAY);
        loop {
            attempts += 1;
            let (head, state) = self.state().await?;
            let time = self.time_after(&state);
            if let HeadUpdate::Appended(blocks) =
                self.try_append(&head, &state, time, events).await?
            {
                return Ok(Appended { blocks, attempts });
            }
            if clock.monotonic() >= deadline {
                return Err(self.timeout_error(timeout));
            }
            delay = self.back_off(delay).await;
        }
    }

    /// Waits a while that differs from others', and gives the next one.
    pub(super) async fn back_off(&self, delay: Duration) -> Duration {
        let clock = self.store.clock();
        let jitter = u32::try_from(clock.new_id() % 1024).unwrap_or(0);
        clock.sleep(delay * jitter / 1024).await;
        (delay * 2).min(MAX_RETRY_DELAY)
    }

    pub(super) fn timeout_error(&self, timeout: Duration) -> Error {
        let message = format!(
            "other writers came first in every attempt within {} s; nothing was appended, try again",
            timeout.as_secs()
        );
        Error::new(ErrorKind::CommitConflict, message).with_path(&self.root)
    }

    /// Now, or the newest block's time where that is later.
    pub(super) fn time_after(&self, state: &ChainState) -> UtcDateTime {
        let now = self.store.clock().now().to_utc();
        state
            .tip
            .as_ref()
            .map_or(now, |tip| tip.system_time.max(now))
    }

    /// Appends events to a head, once.
    pub(super) async fn try_append(
        &self,
        head: &ChainHead,
        state: &ChainState,
        time: UtcDateTime,
        events: &[Value],
    ) -> Result<HeadUpdate> {
        let mut state = state.clone();
        let mut blocks = Vec::new();
        for event in events {
            let tip = state.tip.as_ref();
            let number = tip.map_or(0, |tip| tip.sequence_number + 1);
            let previous = tip.map(|tip| &tip.hash);
            let block = Block::new(time, previous, number, event)?;
            state
                .check_new(&block)
                .map_err(|e| e.with_path(&self.root))?;
            state.apply(&block);
            blocks.push(block);
        }
        self.move_head(head, blocks).await
    }

    /// Appends a block as it is.
    pub async fn append_block(&self, block: Block) -> Result<Appended> {
        if self.head().await?.is_none() {
            ChainState::default()
                .check_new(&block)
                .map_err(|e| e.with_path(&self.root))?;
            let message = "there is no dataset: create it first";
            return Err(Error::new(ErrorKind::NotFound, message).with_path(&self.root));
        }
        let (head, state) = self.state().await?;
        let previous = block.prev_block_hash.as_ref();
        // On an older block it keeps the rules or not; either way another came before it.
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
            .map_err(|e| e.with_path(&self.root))?;
        if previous != Some(&head.hash) {
            let message = format!(
                "the block follows {}, and the head is {} by now; nothing was appended",
                previous.map(Multihash::to_string).unwrap_or_default(),
                head.hash
            );
            return Err(Error::new(ErrorKind::CommitConflict, message).with_path(&self.root));
        }
        match self.move_head(&head, vec![block]).await? {
            HeadUpdate::Appended(blocks) => Ok(Appended {
                blocks,
                attempts: 1,
            }),
            HeadUpdate::Conflict => {
                let message = "another block came first; nothing was appended";
                Err(Error::new(ErrorKind::CommitConflict, message).with_path(&self.root))
            }
        }
    }
}

/// Numbers go down by one, and end with 0 at the first.
fn check_link(block: &Block, after: Option<&Arc<Block>>) -> Result<()> {
    let number = block.sequence_number;
    let is_next = after.is_none_or(|after| after.sequence_number == number.wrapping_add(1));
    let is_first = block.prev_block_hash.is_none();
    if !is_next || is_first != (number == 0) {
        let message = format!(
            "block {} has number {number} and is not in its place",
            block.hash()
        );
        return Err(Error::new(ErrorKind::BlockCorrupted, message));
    }
    Ok(())
}

/// What a chain says after blocks, newest first, that follow a state.
pub(super) fn replay(base: Option<ChainState>, newest_first: &[Arc<Block>]) -> ChainState {
    let mut state = base.unwrap_or_default();
    for block in newest_first.iter().rev() {
        state.apply(block);
    }
    state
}
