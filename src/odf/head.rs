//! Moves the head of a chain by one conditional write, and resolves its outcome from the chain if the answer was
//! lost.
//!
//! Whether the head may still move after an error is in the type: only after [`HeadError::NotMoved`] may what the
//! blocks name be removed.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;

use self::HeadError::NotMoved;
use super::block::Block;
use super::chain::{CONCURRENT_BLOCKS, Chain, ChainHead, parse_head};
use super::lease::WriteLease;
use super::multihash::Multihash;
use crate::error::{Error, ErrorKind, Result};
use crate::store::SendLimit;
use crate::store::cas::{CasResult, Register};
use crate::versions::names::CHAIN_HEAD;

/// The outcome of moving the head once.
pub(super) enum HeadUpdate {
    Appended(Vec<Arc<Block>>),
    Conflict,
}

/// Why the head was not moved.
#[derive(Debug)]
pub(super) enum HeadError {
    /// It was not moved to the new blocks, and will not be.
    NotMoved(Error),
    /// It may have been moved to this block, or may still be.
    Unknown { block: Multihash, cause: Error },
}

pub(super) type HeadResult<T> = std::result::Result<T, HeadError>;

impl HeadError {
    fn unknown(block: &Block, cause: Error) -> Self {
        let block = block.hash().clone();
        Self::Unknown { block, cause }
    }

    pub(super) fn into_error(self) -> Error {
        let (block, cause) = match self {
            Self::NotMoved(error) => return error,
            Self::Unknown { block, cause } => (block, cause),
        };
        let message = format!(
            "block {block} is in an unknown state: it may have been appended; check the log later"
        );
        Error::new(ErrorKind::CommitStateUnknown, message)
            .with_detail(block.to_string())
            .with_source(cause)
    }
}

impl Chain {
    /// Writes blocks, and makes the last of them the head if the head is still the one that was read, or if there is
    /// still none. No request for the head is sent after the lease of what the blocks name.
    pub(super) async fn move_head(
        &self,
        head: Option<&ChainHead>,
        blocks: Vec<Block>,
        lease: &WriteLease,
    ) -> HeadResult<HeadUpdate> {
        let Some(last) = blocks.last() else {
            return Ok(HeadUpdate::Appended(Vec::new()));
        };
        let value = Bytes::from(last.hash().to_string());
        let writes: Vec<_> = blocks.iter().map(|block| self.put_block(block)).collect();
        let puts = stream::iter(writes).buffer_unordered(CONCURRENT_BLOCKS);
        puts.try_collect::<()>().await.map_err(NotMoved)?;
        lease.check(self).map_err(NotMoved)?;
        let path = self.path(CHAIN_HEAD);
        let store = self.store().with_send_limit(SendLimit {
            deadline: Some(lease.deadline()),
            once: false,
        });
        let register = Register::new(&store, &path);
        let outcome = match head {
            Some(head) => register.replace(&head.version, value).await,
            None => register.create(value).await,
        };
        let is_appended = match outcome.map_err(|e| self.head_error(last, e))? {
            CasResult::Won(_) => true,
            CasResult::Conflict(current_head) => {
                // The answer may have been lost, and other blocks may follow the new one by now.
                let base = head.map(|head| &head.hash);
                let contains_result = match parse_head(&current_head) {
                    Ok(newest) => self.contains_block(&newest, last, base).await,
                    Err(e) => Err(e.with_path(&path)),
                };
                contains_result.map_err(|e| HeadError::unknown(last, e))?
            }
            CasResult::Missing => {
                let message = "the dataset was removed: refs/head is missing";
                let error = Error::new(ErrorKind::NotFound, message);
                return Err(NotMoved(error.with_path(self.root())));
            }
        };
        if !is_appended {
            return Ok(HeadUpdate::Conflict);
        }
        let blocks: Vec<Arc<Block>> = blocks
            .into_iter()
            .map(|block| self.cache_block(block))
            .collect();
        Ok(HeadUpdate::Appended(blocks))
    }

    /// Turns the error of the conditional write: the head may still move if the store was unavailable.
    fn head_error(&self, block: &Block, error: Error) -> HeadError {
        match error.kind() {
            ErrorKind::Unavailable => HeadError::unknown(block, error),
            ErrorKind::Expired => NotMoved(WriteLease::expired_error(self).with_source(error)),
            _ => NotMoved(error),
        }
    }

    /// Whether a block is in the chain of `newest`, or was in it before a compaction. The block was to follow `base`, or
    /// to be the first.
    async fn contains_block(
        &self,
        newest: &Multihash,
        block: &Block,
        base: Option<&Multihash>,
    ) -> Result<bool> {
        let mut heads = vec![newest.clone()];
        let mut visited = 0;
        while let Some(head) = heads.get(visited).cloned() {
            visited += 1;
            let branch = match self.blocks_back_from(&head, base, usize::MAX).await {
                // A copy of the dataset may lack the blocks before a compaction.
                Err(e) if e.kind() == ErrorKind::BlockCorrupted && visited > 1 => continue,
                branch => branch?,
            };
            for ancestor in branch {
                if ancestor.hash() == block.hash() {
                    return Ok(true);
                }
                let old_head = ancestor
                    .event()
                    .compacted_from()
                    .filter(|old| !heads.contains(old));
                heads.extend(old_head);
            }
        }
        Ok(false)
    }

    async fn put_block(&self, block: &Block) -> Result<()> {
        let path = self.block_path(block.hash());
        // The path is the hash of the bytes, so every writer of it writes the same.
        self.store()
            .put(&path, block.bytes().clone(), PutMode::Overwrite)
            .await?;
        Ok(())
    }
}
