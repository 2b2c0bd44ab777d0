//! Idempotency keys: the newest are in the manifest, older ones in lists of their own ([`TransactionList`]).
//!
//! When the manifest has more than a limit, the older ones become a list; neighboring lists are merged as long as the
//! result is within its limit ([`super::TransactionLimits`]). A list has a record of 48 bytes for each key, in the order of the
//! first 16, which are the beginning of the key's SHA3-256; then come the commit id (16, big-endian), the version and the
//! time in microseconds (8 each, little-endian). A process reads each list once.
//!
//! Errors: as in [`Folder::missing_object_error`] for a list that does not exist, [`ErrorKind::ManifestCorrupted`] for
//! one that is not what the manifest says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::commit_id::{CommitId, TimestampMicros};
use super::folder::{Folder, Snapshot};
use super::lists::{ListWriter, find_mergeable};
use super::manifest::{ManifestHeader, Transaction, TransactionList, Versioned};
use super::names;
use super::outcome::Committed;
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::sync::hash::Sha3;
use crate::sync::mutex::lock;

/// Keys are stored in manifests as they are.
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 1024;
const HASH_BYTES: usize = 16;
const RECORD_BYTES: usize = 48;
/// The maximum number of lists that are read concurrently.
const CONCURRENT_LISTS: usize = 16;

/// The beginning of a key's hash.
type KeyHash = [u8; HASH_BYTES];

/// A transaction of a list: the hash of its key, and its fields, as they are stored.
#[derive(Debug, Clone, Copy)]
struct Record([u8; RECORD_BYTES]);

/// The lists that this process has read of one folder, by path.
#[derive(Debug, Default)]
struct LoadedLists(Mutex<HashMap<String, Arc<Vec<Record>>>>);

impl Record {
    fn new(key: &str, transaction: &Transaction) -> Self {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&hash_key(key));
        bytes[16..32].copy_from_slice(&transaction.commit_id.to_bits().to_be_bytes());
        bytes[32..40].copy_from_slice(&transaction.version.to_le_bytes());
        bytes[40..].copy_from_slice(&transaction.created_at.as_micros().to_le_bytes());
        Self(bytes)
    }

    /// The `N` bytes from `start`.
    fn field<const N: usize>(&self, start: usize) -> [u8; N] {
        let mut field = [0; N];
        field.copy_from_slice(&self.0[start..start + N]);
        field
    }

    fn key_hash(&self) -> KeyHash {
        self.field(0)
    }

    fn version(&self) -> u64 {
        u64::from_le_bytes(self.field(32))
    }

    fn transaction(&self) -> Transaction {
        Transaction {
            version: self.version(),
            commit_id: CommitId::new(u128::from_be_bytes(self.field(16))),
            created_at: TimestampMicros::from_micros(i64::from_le_bytes(self.field(40))),
        }
    }
}

/// Refuses an idempotency key that is empty or too long to be stored in manifests.
pub(crate) fn check_idempotency_key(key: Option<&str>) -> Result<()> {
    let bytes = key.map_or(1, str::len);
    if (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&bytes) {
        return Ok(());
    }
    let message =
        format!("idempotency_key must have 1 to {MAX_IDEMPOTENCY_KEY_BYTES} bytes, not {bytes}");
    Err(Error::invalid(message))
}

fn hash_key(key: &str) -> KeyHash {
    let mut hash = KeyHash::default();
    hash.copy_from_slice(&Sha3::digest(key.as_bytes())[..HASH_BYTES]);
    hash
}

/// Returns the commit with an idempotency key, if the manifest or one of its lists has it.
pub(super) async fn find_transaction<M: Versioned>(
    folder: &Folder<M>,
    manifest: &M,
    key: &str,
) -> Result<Option<Transaction>> {
    let header = manifest.header();
    if let Some(transaction) = header.transactions.get(key) {
        return Ok(Some(transaction.clone()));
    }
    if header.older_transactions.is_empty() {
        return Ok(None);
    }
    let hash = hash_key(key);
    let lists = load_all(folder, header).await?;
    Ok(lists.iter().find_map(|records| {
        let position = records.binary_search_by_key(&hash, Record::key_hash);
        Some(records[position.ok()?].transaction())
    }))
}

/// Returns the newest snapshot, and the commit with the idempotency key, if there is one.
pub(crate) async fn find_replay<M: Versioned>(
    folder: &Folder<M>,
    key: Option<&str>,
) -> Result<(Snapshot<M>, Option<Committed<M>>)> {
    loop {
        let newest = folder.newest().await?;
        let Some(key) = key else {
            return Ok((newest, None));
        };
        match find_transaction(folder, &*newest.manifest, key).await {
            // A vacuum has removed the snapshot since it was read, so there is a newer one.
            Err(e) if e.kind() == ErrorKind::VersionExpired => {}
            transaction => {
                let replay =
                    transaction?.map(|transaction| Committed::replay(transaction, &newest));
                return Ok((newest, replay));
            }
        }
    }
}

/// Moves the older transactions of a manifest that has too many of them to lists, and merges lists.
pub(crate) async fn roll_transactions<M: Versioned>(
    writer: &mut ListWriter,
    folder: &Folder<M>,
    base: &M,
    next: &mut M,
) -> Result<()> {
    let limits = M::transaction_limits(&folder.limits);
    let next = next.header_mut();
    if next.transactions.len() > limits.max_inline {
        let mut by_version: Vec<_> = std::mem::take(next.transactions).into_iter().collect();
        by_version.sort_by_key(|(_, transaction)| transaction.version);
        let older_count = by_version.len() - limits.max_inline / 2;
        *next.transactions = by_version.split_off(older_count).into_iter().collect();
        for older in by_version.chunks(limits.max_listed) {
            let records = older.iter().map(|(key, t)| Record::new(key, t)).collect();
            let list = write_list(writer, folder, base, records).await?;
            next.older_transactions.push(list);
        }
    }
    let fits = |lists: &[TransactionList]| {
        let counts = lists.iter().map(|list| u64::from(list.transactions));
        counts.sum::<u64>() <= limits.max_listed as u64
    };
    while let Some(range) = find_mergeable(next.older_transactions, limits.merge_factor, fits) {
        let merging = next.older_transactions[range.clone()].iter();
        let loaded = try_join_all(merging.map(|list| load(folder, list))).await?;
        let merged = write_list(writer, folder, base, loaded.concat()).await?;
        next.older_transactions.splice(range, [merged]);
    }
    Ok(())
}

async fn write_list<M: Versioned>(
    writer: &mut ListWriter,
    folder: &Folder<M>,
    base: &M,
    mut records: Vec<Record>,
) -> Result<TransactionList> {
    records.sort_by_key(|record| (record.key_hash(), record.version()));
    // No writer commits one key twice. If one did, the first commit would count.
    records.dedup_by_key(|record| record.key_hash());
    let bytes: Bytes = records.iter().flat_map(|record| record.0).collect();
    let versions = records.iter().map(Record::version);
    Ok(TransactionList {
        size_bytes: bytes.len() as u64,
        transactions: u32::try_from(records.len()).unwrap_or(u32::MAX),
        last_version: versions.max().unwrap_or(base.header().version),
        path: writer.put(folder, base, bytes, names::transactions).await?,
    })
}

/// Reads all lists of a manifest, from the store those that this process has not read yet.
async fn load_all<M: Versioned>(
    folder: &Folder<M>,
    header: ManifestHeader<'_>,
) -> Result<Vec<Arc<Vec<Record>>>> {
    let cache: Arc<LoadedLists> = folder.store().shared_state(folder.root());
    let lock_cache = || lock(&cache.0);
    let known = lock_cache().clone();
    let reads = header.older_transactions.iter().map(|list| {
        let known = known.get(&list.path).cloned();
        async move {
            if let Some(records) = known {
                return Ok(records);
            }
            match load(folder, list).await {
                Ok(records) => Ok(Arc::new(records)),
                Err(e) => Err(missing_list_error(folder, header.version, list, e).await),
            }
        }
    });
    let reads: Vec<_> = reads.collect();
    let lists: Vec<_> = stream::iter(reads)
        .buffered(CONCURRENT_LISTS)
        .try_collect()
        .await?;
    let paths = header.older_transactions.iter().map(|l| l.path.clone());
    *lock_cache() = paths.zip(lists.iter().cloned()).collect();
    Ok(lists)
}

async fn missing_list_error<M: Versioned>(
    folder: &Folder<M>,
    version: u64,
    list: &TransactionList,
    error: Error,
) -> Error {
    let error = folder.missing_object_error(version, &list.path, error);
    let error = error.await;
    match error.kind() {
        ErrorKind::PartCorrupted => error.with_kind(ErrorKind::ManifestCorrupted),
        _ => error,
    }
}

/// Reads a list, and compares it with its entry in the manifest.
pub(crate) async fn verify_list<M: Versioned>(
    folder: &Folder<M>,
    list: &TransactionList,
) -> Result<()> {
    load(folder, list).await.map(drop)
}

async fn load<M: Versioned>(folder: &Folder<M>, list: &TransactionList) -> Result<Vec<Record>> {
    let path = folder.path(&list.path);
    let store = folder.store();
    let read = store.get_at_most(&path, GetOptions::default(), list.size_bytes);
    let (bytes, _) = read.await.map_err(|e| match e.kind() {
        ErrorKind::TooLarge => e.with_kind(ErrorKind::ManifestCorrupted),
        _ => e,
    })?;
    let (chunks, rest) = bytes.as_chunks();
    let records: Vec<Record> = chunks.iter().copied().map(Record).collect();
    let is_as_listed = rest.is_empty()
        && records.len() == list.transactions as usize
        && records.iter().all(|r| r.version() <= list.last_version);
    if is_as_listed && records.is_sorted_by(|a, b| a.key_hash() < b.key_hash()) {
        return Ok(records);
    }
    let reason = "its records are not those of the manifest, or not in order";
    Err(corrupted_error(&list.path, reason).with_path(&path))
}
