//! Removes blocks, slices and checkpoints that no reference leads to, and hidden files of writers that were killed.
//!
//! Such objects are left by writes that failed or were interrupted, and by compactions, which leave the old chain
//! behind. An object is needed if it is a block that any reference (`refs/…`) leads to, or if such a block names it.
//! As long as the blocks of a compaction are young, the blocks before the compaction and what they name are needed as
//! well.
//!
//! A write in progress has a slice and blocks that no head leads to yet. It sends a new head only within `lease::WRITE_LEASE`
//! of its beginning, by its own clock, and a vacuum removes nothing that is younger than [`MIN_AGE`], which is twice
//! as long, by the clock of the store. Both count from the beginning of an upload, as stores do. Objects are listed
//! before references are read, so whatever a head is moved to after that was too young to be listed as old.
//!
//! Crash points: nothing that is removed is needed, in whatever order it is removed, and the next vacuum removes the
//! rest. Late requests: names do not recur, so a removal that arrives late removes nothing else. They are hashes of bytes
//! with a random identity or the time of the write; where that time is not the clock's, a write makes no block that
//! exists already. A block that a caller appends unchanged is the exception.
//!
//! A folder that is a symbolic link is [`ErrorKind::InvalidPath`]: where it leads, objects may be another dataset's.
//!
//! Nothing is removed if a block cannot be read ([`ErrorKind::BlockCorrupted`]) or if an event of a later release may
//! name files ([`ErrorKind::FormatNotSupported`]).

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use object_store::ObjectMeta;

use super::block::Block;
use super::chain::{Chain, parse_head, replay};
use super::multihash::Multihash;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::Register;
use crate::store::temp_name::{is_hidden, is_stale};
use crate::sync::progress;
use crate::versions::vacuum::{before, remove_hidden, store_time};
use crate::versions::{list_below, list_root};

/// Younger objects are never removed.
pub const MIN_AGE: Duration = Duration::from_hours(48);
const FOLDERS: [&str; 3] = ["blocks", "data", "checkpoints"];
const REFERENCES: &str = "refs";

/// The objects that a vacuum removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemovedFiles {
    /// The paths of the objects, relative to the dataset.
    pub files: Vec<String>,
    /// The size of all objects in bytes.
    pub bytes: u64,
}

/// Removes objects that no reference leads to and that are older than `older_than` by the clock of the store; only
/// lists them if `dry_run`. An `older_than` below [`MIN_AGE`] is [`ErrorKind::InvalidInput`].
pub async fn vacuum(chain: &Chain, older_than: Duration, dry_run: bool) -> Result<RemovedFiles> {
    if older_than < MIN_AGE {
        let message = format!(
            "older_than must be at least {} days: younger objects may belong to a write in progress",
            MIN_AGE.as_secs() / 86_400
        );
        return Err(Error::invalid(message));
    }
    let folders: Vec<String> = FOLDERS
        .iter()
        .chain(&[REFERENCES])
        .map(|folder| chain.path(folder))
        .collect();
    chain.store().refuse_links(&folders).await?;
    progress::begin_phase("list");
    // A new chain has no cache: only blocks that are in the store now count.
    let chain = &Chain::new(chain.store().clone(), chain.root())?;
    if chain.head().await?.is_none() {
        return Err(chain.not_found());
    }
    let (store, root) = (chain.store(), chain.root());
    let cutoff = before(store_time(store, root).await?, older_than);
    let mut objects = list_root(store, root).await?;
    for folder in FOLDERS.iter().chain(&[REFERENCES]) {
        objects.extend(list_below(store, root, folder).await?);
    }
    let references = collect_references(chain, &objects, cutoff).await?;
    let mut removed = RemovedFiles::default();
    for (path, meta) in objects {
        let is_old = meta.last_modified <= cutoff;
        let is_unreferenced =
            parse_object_path(&path).is_some_and(|name| !references.contains(&name));
        if (is_old && is_unreferenced) || is_stale(&meta, cutoff) {
            removed.bytes = removed.bytes.saturating_add(meta.size);
            removed.files.push(path);
        }
    }
    if !dry_run {
        progress::begin_phase("remove");
        let paths = removed.files.iter().map(|path| chain.path(path));
        let (hidden, paths): (Vec<String>, Vec<String>) = paths.partition(|path| is_hidden(path));
        chain.store().delete_all(&paths).await?;
        remove_hidden(chain.store(), &hidden).await;
    }
    if let Some(progress) = progress::current() {
        progress.add_files(removed.files.len() as u64);
        progress.add_bytes(removed.bytes);
    }
    Ok(removed)
}

/// Parses the path of an object into its folder and its hash; None if the object is not part of a chain.
fn parse_object_path(path: &str) -> Option<(&'static str, Multihash)> {
    let (folder, name) = path.split_once('/')?;
    let folder = FOLDERS.into_iter().find(|known| *known == folder)?;
    Some((folder, name.parse().ok()?))
}

/// Collects what the references lead to.
async fn collect_references(
    chain: &Chain,
    objects: &BTreeMap<String, ObjectMeta>,
    cutoff: DateTime<Utc>,
) -> Result<HashSet<(&'static str, Multihash)>> {
    let mut heads: Vec<(Multihash, bool)> = Vec::new();
    let listed = list_below(chain.store(), chain.root(), REFERENCES).await?;
    for path in listed.into_keys() {
        if is_hidden(&path) {
            continue;
        }
        let path = chain.path(&path);
        let register = Register::new(chain.store(), &path);
        if let Some(value) = register.read().await? {
            heads.push((parse_head(&value).map_err(|e| e.with_path(&path))?, true));
        }
    }
    let mut references = HashSet::new();
    let mut visited = HashSet::new();
    while let Some((head, is_reference)) = heads.pop() {
        if !visited.insert(head.clone()) {
            continue;
        }
        let blocks = match chain.blocks_back_from(&head, None, usize::MAX).await {
            // Of the chain before a compaction, blocks may have been removed, or left out when the dataset was
            // copied.
            Err(e) if e.kind() == ErrorKind::BlockCorrupted && !is_reference => continue,
            blocks => blocks?,
        };
        replay(None, &blocks).check_readable()?;
        for block in &blocks {
            add_references(block, &mut references)?;
            let path = format!("blocks/{}", block.hash());
            let is_young = objects
                .get(&path)
                .is_none_or(|meta| meta.last_modified > cutoff);
            if is_young {
                heads.extend(
                    block
                        .event()
                        .compacted_from()
                        .map(|old_head| (old_head, false)),
                );
            }
        }
    }
    Ok(references)
}

/// Adds a block and the files that it names.
fn add_references(
    block: &Block,
    references: &mut HashSet<(&'static str, Multihash)>,
) -> Result<()> {
    references.insert(("blocks", block.hash().clone()));
    let Some(data) = block.event().data() else {
        return Ok(());
    };
    if !block.is_fully_decoded() {
        let message = format!(
            "block {} has fields of a later release, which may name files; upgrade pds",
            block.hash()
        );
        return Err(Error::new(ErrorKind::FormatNotSupported, message));
    }
    references.extend(
        data.slice()?
            .map(|slice| ("data", slice.physical_hash.clone())),
    );
    let checkpoints = [data.checkpoint(), data.prev_checkpoint.as_ref()];
    let hashes = checkpoints.into_iter().flatten().cloned();
    references.extend(hashes.map(|hash| ("checkpoints", hash)));
    Ok(())
}
