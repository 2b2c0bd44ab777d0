//! The commit protocol: create the next manifest, then advance the pointer.
//!
//! 1. Read the pointer (version N) and its manifest.
//! 2. Create `manifest/v(N+1).json` on condition that it does not exist. This is the commit; only one
//!    writer succeeds.
//! 3. Advance the pointer from N to N+1.
//!
//! A writer that finds v(N+1) while the pointer is at N advances the pointer on behalf of that commit's
//! writer. Then it applies its own [`Change`] to the newer snapshot and tries again. An ambiguous answer
//! is resolved by reading back ([`Register`]). If that fails too, the error is
//! [`ErrorKind::CommitStateUnknown`], and no uploaded object is removed.
//!
//! A create can land in a slot that a vacuum has emptied, if its writer was suspended for many versions.
//! Such a manifest is no commit: the pointer is already past it. So a commit is reported only after the
//! pointer was read at or beyond its version, with an `oldest_version` at or before it. If the version
//! has been vacuumed, the create may still have been a commit to which another writer advanced the
//! pointer: the newest manifest lists the commits before it and decides.
//!
//! Errors: [`ErrorKind::CommitConflict`] if every attempt lost a race until the timeout, or if the change
//! does not apply to the newest snapshot; [`ErrorKind::TransactionExpired`] if a vacuum may have removed
//! the objects of the change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::format::{
    CommitId, CommitOperation, FORMAT, MAX_MANIFEST_BYTES, Pointer, RECENT_COMMITS, TableManifest,
    TimestampMicros, Transaction, corrupted_error,
};
use super::listing::SegmentCompactor;
use super::names;
use super::snapshot::{Snapshot, Table};
use super::write::{is_definite_failure, remove};
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::store::cas::{CasResult, Register, VersionedValue};

/// For how long a commit is retried unless the caller sets a timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
const MIN_BACKOFF: Duration = Duration::from_millis(10);
// One writer wins every round, so a longer delay only makes the losers lose again.
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// From this attempt on, every retry is delayed, even if the winner's snapshot is known.
const MAX_EAGER_ATTEMPTS: u32 = 3;
/// The delay between retries while the store is unavailable.
const UNAVAILABLE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A change of a table: a pure function of the snapshot it is applied to, the same for every attempt.
pub trait Change: Send + Sync {
    /// Returns the manifest after the change of `base`, and the operation for the history. The commit
    /// sets the version, the commit id and the time.
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)>;

    /// The version in the names of the change's uploaded objects, if it has any. A vacuum may have
    /// removed them if `gc_floor` is above it.
    fn base_version(&self) -> Option<u64>;

    /// The key under which the change is committed at most once: a second commit with the same key
    /// returns the first one.
    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

/// A commit that happened.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The version that the commit created.
    pub version: u64,
    /// The random id of the commit.
    pub commit_id: CommitId,
    /// The snapshot that the commit created; for a replay the newest snapshot.
    pub snapshot: Snapshot,
    /// The number of attempts, the successful one included.
    pub attempts: u32,
    /// The time spent in delays between attempts and in the queue of a group commit.
    pub waited: Duration,
    /// An earlier commit had the same idempotency key; this one changed nothing.
    pub replayed: bool,
}

/// Whether a change that was planned from a snapshot alone can be planned again on a newer one after
/// an error of this kind.
pub(super) fn is_retryable_conflict(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::CommitConflict | ErrorKind::TransactionExpired
    )
}

/// How one attempt ended.
enum CommitAttempt {
    Committed(Snapshot),
    /// Another commit has the version. Holds the newest snapshot if it is known.
    Conflict(Option<Snapshot>),
}

/// Commits a change to the newest snapshot; retries until `timeout` while other commits come first.
pub async fn commit(table: &Table, change: &dyn Change, timeout: Duration) -> Result<Committed> {
    commit_onto(table, change, None, timeout).await
}

/// Like [`commit`], but the first attempt is made on `cached_snapshot` if there is one. Removes the
/// segments that unsuccessful attempts wrote, if the outcome is known.
pub(super) async fn commit_onto(
    table: &Table,
    change: &dyn Change,
    cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let mut compactor = SegmentCompactor::default();
    let result = commit_with(&mut compactor, table, change, cached_snapshot, timeout).await;
    let unused = match &result {
        Ok(committed) => compactor.unused_paths(Some(&committed.snapshot.manifest)),
        Err(e) if is_definite_failure(e.kind()) => compactor.unused_paths(None),
        Err(_) => Vec::new(),
    };
    if !unused.is_empty() {
        remove(table, &unused).await;
    }
    result
}

async fn commit_with(
    compactor: &mut SegmentCompactor,
    table: &Table,
    change: &dyn Change,
    mut cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let clock = table.store.clock();
    let commit_id = CommitId::new(clock.new_id());
    let deadline = clock.monotonic() + timeout;
    let (mut attempts, mut waited, mut backoff) = (0, Duration::ZERO, MIN_BACKOFF);
    loop {
        let base = match cached_snapshot.take() {
            Some(snapshot) => snapshot,
            None => read_newest(table, deadline).await?,
        };
        attempts += 1;
        let into_committed = |snapshot: Snapshot, commit_id, version, replayed| Committed {
            version,
            commit_id,
            snapshot,
            attempts,
            waited,
            replayed,
        };
        let key = change.idempotency_key();
        if let Some(transaction) = key.and_then(|key| base.manifest.transactions.get(key)) {
            let (commit_id, version) = (transaction.commit_id.clone(), transaction.version);
            return Ok(into_committed(base, commit_id, version, true));
        }
        check_gc_floor(table, change, &base.manifest)?;
        let (draft, operation) = change.apply(&base.manifest)?;
        let manifest = finalize_manifest(table, &base.manifest, draft, operation, &commit_id);
        let version = manifest.version;
        let next = record_transaction(manifest, key);
        match attempt(table, &base, next, compactor, deadline).await? {
            CommitAttempt::Committed(snapshot) => {
                table.observe(version, &commit_id);
                return Ok(into_committed(snapshot, commit_id, version, false));
            }
            CommitAttempt::Conflict(newest) => cached_snapshot = newest,
        }
        if clock.monotonic() >= deadline {
            return Err(commit_timeout_error(table, timeout));
        }
        // With the winner's snapshot at hand, an immediate retry has as good a chance as any other writer.
        if cached_snapshot.is_none() || attempts >= MAX_EAGER_ATTEMPTS {
            backoff = jitter(clock.new_id(), backoff);
            clock.sleep(backoff).await;
            waited += backoff;
            cached_snapshot = None;
        }
    }
}

/// Records the commit under its idempotency key.
fn record_transaction(mut next: TableManifest, key: Option<&str>) -> TableManifest {
    if let Some(key) = key {
        let transaction = Transaction {
            version: next.version,
            commit_id: next.commit_id.clone(),
            created_at: next.created_at,
        };
        next.transactions.insert(key.to_owned(), transaction);
    }
    next
}

pub(super) fn commit_timeout_error(table: &Table, timeout: Duration) -> Error {
    let message = format!(
        "gave up after {} s: lost every race against concurrent commits; nothing was committed, try \
         again or raise commit_timeout",
        timeout.as_secs()
    );
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// A random delay, uniform between [`MIN_BACKOFF`] and three times the previous one, at most
/// [`MAX_BACKOFF`].
fn jitter(random_bits: u128, previous: Duration) -> Duration {
    let span = (previous * 3).saturating_sub(MIN_BACKOFF);
    let fraction = u32::try_from(random_bits % 1024).unwrap_or(0);
    (MIN_BACKOFF + span * fraction / 1024).min(MAX_BACKOFF)
}

/// Fails with [`ErrorKind::TransactionExpired`] if a vacuum may have removed the change's objects.
pub(super) fn check_gc_floor(
    table: &Table,
    change: &dyn Change,
    base: &TableManifest,
) -> Result<()> {
    match change.base_version() {
        Some(base_version) if base_version < base.gc_floor => {
            let message = format!(
                "the write started at version {base_version}, and a vacuum has since removed the files \
                 of writes that started before version {}; write again, or vacuum with a longer \
                 retention",
                base.gc_floor
            );
            Err(Error::new(ErrorKind::TransactionExpired, message).with_path(table.root()))
        }
        _ => Ok(()),
    }
}

/// Sets the fields that every commit sets: version, commit id, time, operation and recent commits.
fn finalize_manifest(
    table: &Table,
    base: &TableManifest,
    mut next: TableManifest,
    operation: CommitOperation,
    commit_id: &CommitId,
) -> TableManifest {
    if base.format < FORMAT {
        TableColumns::complete_nested_ids(&mut next);
    }
    let now = TimestampMicros::new(table.store.clock().now());
    let older = base.recent_commits.iter().take(RECENT_COMMITS - 1);
    let recent_commits = [&base.commit_id].into_iter().chain(older);
    TableManifest {
        format: FORMAT,
        version: base.version + 1,
        previous: Some(base.version),
        commit_id: commit_id.clone(),
        created_at: now.max(base.created_at.next_millisecond()),
        operation,
        recent_commits: recent_commits.cloned().collect(),
        ..next
    }
}

async fn attempt(
    table: &Table,
    base: &Snapshot,
    draft: TableManifest,
    compactor: &mut SegmentCompactor,
    deadline: Duration,
) -> Result<CommitAttempt> {
    let next = match compactor.roll_segments(table, &base.manifest, draft).await {
        Ok(next) => next,
        // A segment of `base` is missing: `base` is no longer the newest snapshot.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(CommitAttempt::Conflict(None)),
        Err(e) => return Err(e),
    };
    let bytes = next.to_bytes();
    check_readable(table, &bytes, &next)?;
    let path = table.path(&names::manifest(next.version));
    let register = Register::new(&table.store, &path);
    // Every retry sends the same bytes on the same condition, so they land at most once.
    let created = retry_until(table, deadline, || register.create(bytes.clone())).await;
    let winner = match created.map_err(|e| unknown_if_unavailable(&next.commit_id, e))? {
        CasResult::Won(_) => None,
        CasResult::Conflict(stored) => {
            let manifest = TableManifest::parse(&stored.bytes, next.version)
                .map_err(|e| e.with_path(&path))?;
            Some(verify_successor(base, manifest)?)
        }
        CasResult::Missing => return Ok(CommitAttempt::Conflict(None)),
    };
    // The winner may have crashed before it advanced the pointer, so this is done for it, too.
    let target = Pointer::for_manifest(winner.as_ref().unwrap_or(&next));
    let advanced = retry_until(table, deadline, || {
        advance_pointer(table, &base.pointer, &target)
    })
    .await;
    // Once our manifest exists, the next writer advances the pointer to it: no error here is definite.
    let (pointer, current_pointer) = advanced.map_err(|e| match winner {
        None => as_unknown_outcome(&next.commit_id, e),
        Some(_) => unknown_if_unavailable(&next.commit_id, e),
    })?;
    let is_committed = if next.version < current_pointer.oldest_version {
        is_own_commit(table, &next).await?
    } else {
        winner.is_none()
    };
    let is_newest = current_pointer.commit_id == target.commit_id;
    let snapshot = |manifest| Snapshot {
        manifest: Arc::new(manifest),
        pointer,
    };
    Ok(match winner {
        _ if is_committed => CommitAttempt::Committed(snapshot(next)),
        Some(winner) if is_newest => CommitAttempt::Conflict(Some(snapshot(winner))),
        _ => CommitAttempt::Conflict(None),
    })
}

/// Refuses a manifest that readers would refuse: committing it would make the table unusable.
fn check_readable(table: &Table, bytes: &Bytes, next: &TableManifest) -> Result<()> {
    let length = bytes.len() as u64;
    if length > MAX_MANIFEST_BYTES {
        let message = format!(
            "the new manifest has {length} bytes, more than the maximum of {MAX_MANIFEST_BYTES}; compact \
             the table"
        );
        return Err(Error::invalid(message).with_path(table.root()));
    }
    TableManifest::parse(bytes, next.version).map_err(|e| {
        let message = format!("the new manifest is invalid: {}", e.message());
        Error::invalid(message).with_path(table.root())
    })?;
    Ok(())
}

/// Checks that another writer created `manifest` from `base`.
fn verify_successor(base: &Snapshot, manifest: TableManifest) -> Result<TableManifest> {
    // Otherwise an older table in this folder left it behind. A slot that a vacuum emptied and a late
    // create took is detected by the pointer instead.
    if manifest.recent_commits.first() == Some(&base.manifest.commit_id) {
        return Ok(manifest);
    }
    let reason = "it was not created from the version before it";
    Err(corrupted_error(&names::manifest(manifest.version), reason))
}

/// Whether the commit of a version that has been vacuumed was this one. If not, the manifest landed in
/// the slot after the vacuum had emptied it, and is no commit.
async fn is_own_commit(table: &Table, next: &TableManifest) -> Result<bool> {
    let newest = table
        .newest()
        .await
        .map_err(|e| as_unknown_outcome(&next.commit_id, e))?;
    let Some(commit_id) = newest.manifest.commit_id_of(next.version) else {
        let message = "the version is older than the retained commit history";
        return Err(as_unknown_outcome(&next.commit_id, Error::other(message)));
    };
    Ok(*commit_id == next.commit_id)
}

/// Returns the version that a commit created, or None if it created none. A commit whose outcome was
/// unknown can still land while the last requests of its writer are in flight.
pub async fn was_committed(table: &Table, commit_id: &CommitId) -> Result<Option<u64>> {
    let mut newest = table.newest().await?;
    // A manifest beyond the pointer is a commit already.
    while let Some(candidate) = table.read_manifest(newest.manifest.version + 1).await? {
        let next = verify_successor(&newest, candidate)?;
        advance_pointer(table, &newest.pointer, &Pointer::for_manifest(&next)).await?;
        newest = table.newest().await?;
    }
    let mut manifest = newest.manifest;
    loop {
        let mut versions = (manifest.oldest_known_version()..=manifest.version).rev();
        if let Some(version) = versions.find(|v| manifest.commit_id_of(*v) == Some(commit_id)) {
            return Ok(Some(version));
        }
        let oldest = manifest.oldest_known_version();
        if oldest == 1 {
            return Ok(None);
        }
        manifest = table.manifest_at(oldest).await?;
    }
}

/// Repeats a conditional write until `deadline` while the store is unavailable. After the first request
/// without an answer every error has the kind [`ErrorKind::Unavailable`]: that request may still land.
async fn retry_until<T, F>(
    table: &Table,
    deadline: Duration,
    operation: impl Fn() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let clock = table.store.clock();
    let mut may_have_landed = false;
    loop {
        match operation().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                may_have_landed = true;
                clock.sleep(UNAVAILABLE_RETRY_DELAY).await;
            }
            Err(e) if may_have_landed => return Err(e.with_kind(ErrorKind::Unavailable)),
            result => return result,
        }
    }
}

/// Reads the newest snapshot; retries until `deadline` while the store is unavailable.
async fn read_newest(table: &Table, deadline: Duration) -> Result<Snapshot> {
    let clock = table.store.clock();
    loop {
        match table.newest().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                clock.sleep(UNAVAILABLE_RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

/// Advances the pointer to `target`, unless it is at that version or a later one already. Returns the
/// current pointer.
async fn advance_pointer(
    table: &Table,
    from: &VersionedValue,
    target: &Pointer,
) -> Result<(VersionedValue, Pointer)> {
    let path = table.path(names::POINTER);
    let register = Register::new(&table.store, &path);
    let outcome = match register.replace(from, target.to_bytes()).await {
        // A pointer that was written again with the same bytes has another ETag.
        Err(e) if e.kind() == ErrorKind::Unavailable => match register.read().await? {
            Some(current) if current.bytes == from.bytes => {
                register.replace(&current, target.to_bytes()).await?
            }
            _ => return Err(e),
        },
        outcome => outcome?,
    };
    match outcome {
        CasResult::Won(pointer) => Ok((pointer, target.clone())),
        CasResult::Conflict(current) => {
            let pointer = Pointer::parse(&current.bytes).map_err(|e| e.with_path(&path))?;
            if pointer.version >= target.version {
                return Ok((current, pointer));
            }
            Err(table_replaced_error(table))
        }
        // The pointer was removed. Recovery by the manifests finds that of `target` or a later one.
        CasResult::Missing => match table.find_newest().await? {
            Some(newest) if newest.manifest.version >= target.version => {
                Ok((newest.pointer, Pointer::for_manifest(&newest.manifest)))
            }
            _ => Err(table_replaced_error(table)),
        },
    }
}

fn table_replaced_error(table: &Table) -> Error {
    let message = "the table was removed or set back to an older state during the commit";
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// Reports an unknown outcome if the store was unavailable; every other error is definite.
pub(super) fn unknown_if_unavailable(commit_id: &CommitId, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => as_unknown_outcome(commit_id, error),
        _ => error,
    }
}

pub(super) fn as_unknown_outcome(commit_id: &CommitId, cause: Error) -> Error {
    let message = format!(
        "commit {} is in an unknown state; check later with was_committed({:?})",
        commit_id.as_str(),
        commit_id.as_str()
    );
    Error::new(ErrorKind::CommitStateUnknown, message)
        .with_detail(commit_id.as_str())
        .with_source(cause)
}
