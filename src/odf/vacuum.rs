//! Removes blocks, slices and checkpoints that no reference leads to.
//!
//! They are of writes that failed or were interrupted, and of chains as they were before a compaction. Needed
//! is what the blocks name that any reference (`refs/…`) leads to, and as long as the blocks of a compaction are
//! young, also what those before it name.
//!
//! A write that is under way has a slice and blocks that no head leads to yet. It moves the head only within
//! `LEASE` of when it began with them, by its own clock, and a vacuum takes nothing that is younger than
//! [`MIN_AGE`], twice as long, by the store's: both count from when an upload began, as stores do. Objects are
//! listed before references are read. So what a head is moved to after that was too young to be listed as old.
//!
//! Crash points: what is removed is needed by nobody, in any order; who comes next removes the rest. Late
//! messages: names are hashes of bytes with a random identity, and never come again, so a removal that arrives
//! late removes nothing else. Where a block cannot be read nothing is removed.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;
use serde_json::Value;

use super::block::Block;
use super::chain::{Chain, folded};
use super::compact::made_from;
use super::head::named_by;
use super::multihash::Multihash;
use super::rules::is_data_event;
use super::slice::Slice;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::Register;
use crate::table::Table;
use crate::table::vacuum::{horizon, list};

/// How long after it began a write may still move the head.
pub(super) const LEASE: Duration = Duration::from_hours(24);
/// Younger objects stay.
pub const MIN_AGE: Duration = Duration::from_hours(48);
const FOLDERS: [&str; 3] = ["blocks", "data", "checkpoints"];

/// When a write began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    monotonic: Duration,
    time: DateTime<Utc>,
}

impl Lease {
    pub(super) fn new(chain: &Chain) -> Self {
        let clock = chain.store().clock();
        Self {
            monotonic: clock.monotonic(),
            time: clock.now(),
        }
    }

    /// An error when what was written may have been removed by now.
    pub(super) fn check(&self, chain: &Chain) -> Result<()> {
        let clock = chain.store().clock();
        let elapsed = clock.monotonic().saturating_sub(self.monotonic);
        // A machine that was suspended has only noticed by the other clock.
        let slept = (clock.now() - self.time).to_std().unwrap_or_default();
        if elapsed.max(slept) <= LEASE {
            return Ok(());
        }
        let message = format!(
            "the write took longer than {} hours, after which a vacuum may remove what it wrote; nothing was \
             appended, write again",
            LEASE.as_secs() / 3600
        );
        Err(Error::new(ErrorKind::TransactionExpired, message).with_path(chain.root()))
    }
}

/// What a vacuum removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Relative to the dataset.
    pub files: Vec<String>,
    /// Their bytes.
    pub bytes: u64,
}

/// Removes what no reference leads to and is older than `older_than` by the store's clock.
pub async fn vacuum(chain: &Chain, older_than: Duration, dry_run: bool) -> Result<Removed> {
    if older_than < MIN_AGE {
        let message = format!(
            "older_than must be at least {} days: what is younger may belong to a write that is under way",
            MIN_AGE.as_secs() / 86_400
        );
        return Err(Error::invalid(message));
    }
    // As it is in the store now, not as it is remembered.
    let chain = &Chain::new(chain.store().clone(), chain.root())?;
    if chain.head().await?.is_none() {
        return Err(chain.missing());
    }
    let table = Table::new(chain.store().clone(), chain.root())?;
    let horizon = horizon(&table, older_than).await?;
    let mut objects = BTreeMap::new();
    for folder in FOLDERS {
        objects.extend(list(&table, folder).await?);
    }
    let needed = needed(chain, &table, &objects, horizon).await?;
    let mut removed = Removed::default();
    for (path, meta) in objects {
        let is_old = meta.last_modified <= horizon;
        if is_old && named(&path).is_some_and(|name| !needed.contains(&name)) {
            removed.bytes = removed.bytes.saturating_add(meta.size);
            removed.files.push(path);
        }
    }
    if !dry_run {
        let paths: Vec<String> = removed.files.iter().map(|path| chain.path(path)).collect();
        chain.store().delete_all(&paths).await?;
    }
    Ok(removed)
}

/// The folder and the hash of an object's path; None for what a chain does not name so.
fn named(path: &str) -> Option<(&'static str, Multihash)> {
    let (folder, name) = path.split_once('/')?;
    let folder = FOLDERS.into_iter().find(|known| *known == folder)?;
    Some((folder, name.parse().ok()?))
}

/// What the references lead to.
async fn needed(
    chain: &Chain,
    table: &Table,
    objects: &BTreeMap<String, ObjectMeta>,
    horizon: DateTime<Utc>,
) -> Result<HashSet<(&'static str, Multihash)>> {
    let mut heads: Vec<(Multihash, bool)> = Vec::new();
    for path in list(table, "refs").await?.into_keys() {
        let path = chain.path(&path);
        let register = Register::new(chain.store(), &path);
        if let Some(value) = register.read().await? {
            heads.push((named_by(&value).map_err(|e| e.with_path(&path))?, true));
        }
    }
    let mut found = HashSet::new();
    let mut looked = HashSet::new();
    while let Some((head, is_reference)) = heads.pop() {
        if !looked.insert(head.clone()) {
            continue;
        }
        let blocks = match chain.back_from(&head, None, usize::MAX).await {
            // Of a chain that was merged something may have been left behind, or removed.
            Err(e) if e.kind() == ErrorKind::BlockCorrupted && !is_reference => continue,
            blocks => blocks?,
        };
        folded(None, &blocks).check_readable()?;
        for block in &blocks {
            add(block, &mut found)?;
            let path = format!("blocks/{}", block.hash());
            let is_young = objects
                .get(&path)
                .is_none_or(|meta| meta.last_modified > horizon);
            if is_young {
                heads.extend(made_from(block.event()).map(|before| (before, false)));
            }
        }
    }
    Ok(found)
}

/// A block and what it names.
fn add(block: &Block, found: &mut HashSet<(&'static str, Multihash)>) -> Result<()> {
    found.insert(("blocks", block.hash().clone()));
    if !is_data_event(block.kind()) {
        return Ok(());
    }
    if !block.is_fully_decoded() {
        let message = format!(
            "block {} has fields of a later release, which may name files; upgrade",
            block.hash()
        );
        return Err(Error::new(ErrorKind::FormatNotSupported, message));
    }
    let event = block.event();
    found.extend(Slice::of(event)?.map(|slice| ("data", slice.physical)));
    let new = event
        .get("newCheckpoint")
        .and_then(|c| c.get("physicalHash"));
    for hash in [new, event.get("prevCheckpoint")].into_iter().flatten() {
        let hash = Value::as_str(hash).map(str::parse::<Multihash>);
        found.extend(hash.transpose()?.map(|hash| ("checkpoints", hash)));
    }
    Ok(())
}
