//! A chain in a store: blocks under their hashes, and a reference, the head, that names the newest of them.
//!
//! ```text
//! <root>/blocks/<hash>   <root>/data/<hash>   <root>/checkpoints/<hash>   <root>/refs/head
//! ```
//!
//! Data is written first, then blocks, then the head. An object that is named by its hash never changes. A block that
//! no head ever named is an orphan and does no harm.
//!
//! A [`Chain`] reads blocks, which it caches, and computes the state after a block. [`super::append`] writes blocks
//! and moves the head.
//!
//! Errors: [`ErrorKind::NotFound`] (no dataset), [`ErrorKind::BlockCorrupted`] (a block is missing or is not what was
//! written).

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use object_store::GetOptions;

use super::block::{Block, MAX_BLOCK_BYTES};
use super::multihash::Multihash;
use super::rules::ChainState;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::cas::{Register, VersionedValue};
use crate::sync::mutex::lock;
use crate::versions::check_root;
use crate::versions::names::CHAIN_HEAD;

/// The number of blocks that are read or written at once.
pub(super) const CONCURRENT_BLOCKS: usize = 32;
/// The number of blocks that are read one after another before blocks are listed and read many at once.
const STEPS_BEFORE_LISTING: usize = 8;
/// How many times the blocks that are needed may be read to have all of them.
const MAX_READS_PER_BLOCK: usize = 4;
/// The longest head that is read, in bytes. A hash in any base is shorter.
const MAX_HEAD_BYTES: u64 = 1024;

/// A chain at a location in a store, and the blocks of it that have been read. Clones share these blocks.
#[derive(Debug, Clone)]
pub struct Chain {
    store: Store,
    root: String,
    cache: Arc<Mutex<ChainCache>>,
    /// The process that `cache` belongs to.
    process_id: u32,
}

#[derive(Debug, Default)]
struct ChainCache {
    blocks: HashMap<Multihash, Arc<Block>>,
    /// The state that was computed last.
    state: Option<Arc<ChainState>>,
}

/// A head that was read: the hash that it names, and the version of the object.
#[derive(Debug, Clone)]
pub struct ChainHead {
    /// The hash of the newest block.
    pub hash: Multihash,
    pub(super) version: VersionedValue,
}

impl Chain {
    /// The chain at `root`. Sends no request.
    pub fn new(store: Store, root: &str) -> Result<Self> {
        // A folder may come to hold a table instead, so the path must be valid for one.
        check_root(root, "table")?;
        Ok(Self {
            store,
            root: root.to_owned(),
            cache: Arc::default(),
            process_id: std::process::id(),
        })
    }

    /// Returns the same chain through another client of its store.
    pub fn with_store(&self, store: Store) -> Result<Self> {
        let mut chain = Self::new(store, &self.root)?;
        // In a forked process the lock may be held by a thread that does not exist there.
        if chain.process_id == self.process_id {
            chain.cache = Arc::clone(&self.cache);
        }
        Ok(chain)
    }

    /// The path of the dataset.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The store of the dataset.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the path of an object of the dataset.
    pub(super) fn path(&self, relative: &str) -> String {
        crate::store::path::join(&self.root, relative)
    }

    /// Returns the path of a block.
    pub(super) fn block_path(&self, hash: &Multihash) -> String {
        self.path(&format!("blocks/{hash}"))
    }

    /// Whether a block of this name exists. S3 answers 403 for what does not, if the account may not list.
    pub(super) async fn has_block(&self, hash: &Multihash) -> Result<bool> {
        match self.store().is_file(&self.block_path(hash)).await {
            Err(e) if e.kind() == ErrorKind::PermissionDenied => Ok(false),
            result => result,
        }
    }

    /// Returns the path of a slice.
    pub(super) fn data_path(&self, hash: &str) -> String {
        self.path(&format!("data/{hash}"))
    }

    /// Reads the head from the store; None if there is no dataset.
    pub async fn head(&self) -> Result<Option<ChainHead>> {
        let path = self.path(CHAIN_HEAD);
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

    /// Returns the error of a dataset that does not exist.
    pub fn not_found(&self) -> Error {
        let message = "the dataset does not exist: refs/head is missing";
        Error::new(ErrorKind::NotFound, message).with_path(&self.root)
    }

    /// Returns a block, checked against its hash.
    pub async fn block(&self, hash: &Multihash) -> Result<Arc<Block>> {
        if let Some(block) = self.lock_cache().blocks.get(hash) {
            return Ok(Arc::clone(block));
        }
        Ok(self.cache_block(self.fetch(hash).await?))
    }

    /// Reads a block from the store, also if it is cached, and checks it against its hash.
    pub(super) async fn fetch(&self, hash: &Multihash) -> Result<Block> {
        let path = self.block_path(hash);
        let get = self
            .store
            .get_at_most(&path, GetOptions::default(), MAX_BLOCK_BYTES as u64);
        let (bytes, _) = get.await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let message = format!("block {hash} is missing");
                Error::block_corrupted(message).with_path(&path)
            }
            _ => e,
        })?;
        let actual_hash = Multihash::sha3_256(&bytes);
        if actual_hash != *hash {
            let message = format!(
                "block {hash} is not what was written: its bytes have the hash {actual_hash}"
            );
            return Err(Error::block_corrupted(message).with_path(&path));
        }
        Block::from_bytes(bytes).map_err(|e| e.with_path(&path))
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, ChainCache> {
        lock(&self.cache)
    }

    pub(super) fn cache_block(&self, block: Block) -> Arc<Block> {
        let block = Arc::new(block);
        let mut cache = self.lock_cache();
        cache
            .blocks
            .insert(block.hash().clone(), Arc::clone(&block));
        block
    }

    /// Returns the blocks from `newest` back, newest first: at most `limit`, and only those after `until`.
    pub async fn blocks_back_from(
        &self,
        newest: &Multihash,
        until: Option<&Multihash>,
        limit: usize,
    ) -> Result<Vec<Arc<Block>>> {
        let mut blocks: Vec<Arc<Block>> = Vec::new();
        let mut next = Some(newest.clone());
        let mut misses = 0;
        let mut unread: Option<Vec<Multihash>> = None;
        while let Some(hash) = next.clone().filter(|hash| Some(hash) != until) {
            if blocks.len() >= limit {
                break;
            }
            if !self.lock_cache().blocks.contains_key(&hash) {
                misses += 1;
                let needed = self.count_needed(&blocks, until, limit);
                if misses == STEPS_BEFORE_LISTING && needed > STEPS_BEFORE_LISTING {
                    unread = Some(self.read_many(unread.take(), needed).await?);
                    misses = 0;
                }
            }
            let block = self.block(&hash).await?;
            check_link(&block, blocks.last())?;
            next.clone_from(&block.prev_block_hash);
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Returns how many blocks are still to be read, at most: the number of a block is that of the blocks before it.
    fn count_needed(
        &self,
        blocks: &[Arc<Block>],
        until: Option<&Multihash>,
        limit: usize,
    ) -> usize {
        let rest = limit - blocks.len();
        let Some(oldest) = blocks.last() else {
            return rest;
        };
        let until_block = until.and_then(|hash| self.lock_cache().blocks.get(hash).cloned());
        let known = until_block.map_or(0, |block| block.sequence_number.saturating_add(1));
        let needed = oldest.sequence_number.saturating_sub(known);
        usize::try_from(needed).map_or(rest, |needed| needed.min(rest))
    }

    /// Reads blocks of the dataset into the cache, many at once, and returns the names of the rest, the newest first.
    /// Without names it lists them and reads the `needed` newest: others may be those of chains before a compaction.
    /// Where the times of objects say nothing, as in a copy, the rest is read the next time, unless it is much more
    /// than needed.
    async fn read_many(
        &self,
        names: Option<Vec<Multihash>>,
        needed: usize,
    ) -> Result<Vec<Multihash>> {
        let is_listed = names.is_some();
        let mut names = match names {
            Some(names) => names,
            None => self.list_unread().await?,
        };
        let is_small = names.len() <= needed.saturating_mul(MAX_READS_PER_BLOCK);
        let rest = match (is_listed, is_small) {
            (true, true) => Vec::new(),
            (true, false) => return Ok(names),
            (false, _) => names.split_off(needed.min(names.len())),
        };
        self.read_into_cache(&names).await;
        Ok(rest)
    }

    /// Lists the blocks of the dataset that are not in the cache, the newest first.
    async fn list_unread(&self) -> Result<Vec<Multihash>> {
        let mut objects = self.store.list(&self.path("blocks")).await?;
        objects.sort_by_key(|meta| std::cmp::Reverse(meta.last_modified));
        let hashes = objects.iter().filter_map(|meta| {
            let name = meta.location.filename()?;
            name.parse::<Multihash>().ok()
        });
        let cache = self.lock_cache();
        Ok(hashes
            .filter(|hash| !cache.blocks.contains_key(hash))
            .collect())
    }

    /// Reads blocks into the cache. Blocks that cannot be read are skipped: an error is raised only for a block that is
    /// needed.
    async fn read_into_cache(&self, names: &[Multihash]) {
        let unread: Vec<&Multihash> = {
            let cache = self.lock_cache();
            let names = names.iter();
            names
                .filter(|hash| !cache.blocks.contains_key(*hash))
                .collect()
        };
        let fetches: Vec<_> = unread.into_iter().map(|hash| self.fetch(hash)).collect();
        let mut reads = stream::iter(fetches).buffer_unordered(CONCURRENT_BLOCKS);
        while let Some(read) = reads.next().await {
            match read {
                Ok(block) => drop(self.cache_block(block)),
                Err(e) => log::debug!("skipped a block that cannot be read: {e}"),
            }
        }
    }

    /// Reads the head and returns it with the state of the chain.
    pub async fn state(&self) -> Result<(ChainHead, Arc<ChainState>)> {
        let head = self.require_head().await?;
        let state = self.state_at(&head.hash).await?;
        Ok((head, state))
    }

    /// Returns the state of the chain after a block.
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
}

/// Checks that sequence numbers go down by one, to 0 at the first block.
fn check_link(block: &Block, after: Option<&Arc<Block>>) -> Result<()> {
    let number = block.sequence_number;
    let is_next = after.is_none_or(|after| after.sequence_number == number.wrapping_add(1));
    let is_first = block.prev_block_hash.is_none();
    if !is_next || is_first != (number == 0) {
        let message = format!(
            "block {}: unexpected sequence number {number}",
            block.hash()
        );
        return Err(Error::block_corrupted(message));
    }
    Ok(())
}

/// Returns the state of a chain after blocks, given newest first, that follow the state `base`.
pub(super) fn replay(base: Option<ChainState>, newest_first: &[Arc<Block>]) -> ChainState {
    let mut state = base.unwrap_or_default();
    for block in newest_first.iter().rev() {
        state.apply(block);
    }
    state
}

/// Parses the hash of the block that a head names.
pub(super) fn parse_head(head: &VersionedValue) -> Result<Multihash> {
    let text = std::str::from_utf8(&head.bytes).unwrap_or_default();
    text.trim_end().parse().map_err(|e: Error| {
        let error = e.with_kind(ErrorKind::BlockCorrupted);
        error.context("the head does not name a block")
    })
}
