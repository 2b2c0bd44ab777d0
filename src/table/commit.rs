//! The commit: one manifest is created, then the pointer is moved on.
//!
//! 1. Read the pointer (version N) and its manifest.
//! 2. Create `manifest/v(N+1).json` where there is none. This is the commit; one writer wins it.
//! 3. Move the pointer from N to N+1.
//!
//! Who finds v(N+1) while the pointer says N moves the pointer on for its owner and starts again
//! from there, with the same change applied to the newer snapshot. An answer that is not plain is
//! settled by reading back ([`Register`]); where that fails too, the caller is told that the outcome
//! is unknown, and nothing is removed.
//!
//! A create can land in a slot that a vacuum emptied (its owner slept through many versions). Such
//! a manifest is no commit: the pointer has moved past it. So success is reported only after the
//! pointer was seen at or beyond the version, and its `oldest_version` at or before it. A version
//! that has been vacuumed may have been ours all the same, committed on our behalf before we looked:
//! the newest manifest names the commits before it.

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
use crate::store::cas::{CasResult, Register, VersionedValue};

/// How long a commit is tried.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
const MIN_BACKOFF: Duration = Duration::from_millis(10);
// Somebody wins every round, so waiting longer only makes those who lost lose again.
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// So many attempts in a row are made without a pause.
const MAX_EAGER_ATTEMPTS: u32 = 3;
/// Between two tries at a store that cannot be reached.
const UNAVAILABLE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A change of a table: the same for every attempt, a pure function of the snapshot it meets.
pub trait Change: Send + Sync {
    /// What becomes of `base`. Version, identity and time of the result are set by the commit.
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)>;

    /// The version its objects are named after, if it has any: a vacuum may have removed them when
    /// the floor is above.
    fn base_version(&self) -> Option<u64>;

    /// A second commit with the same key is the first one again.
    fn idempotency_key(&self) -> Option<&str> {
        None
    }
}

/// A commit that happened.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The version it made.
    pub version: u64,
    /// Its identity.
    pub commit_id: CommitId,
    /// The snapshot it made; for a replay the newest.
    pub snapshot: Snapshot,
    /// How often it was tried.
    pub attempts: u32,
    /// How long it waited for others.
    pub waited: Duration,
    /// It was committed before, under the same idempotency key.
    pub replayed: bool,
}

/// Whether a change that is made from a snapshot alone is worth planning on a newer one.
pub(super) fn is_retryable_conflict(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::CommitConflict | ErrorKind::TransactionExpired
    )
}

/// How one attempt ended.
enum CommitAttempt {
    Committed(Snapshot),
    /// Another commit has the version; the newest snapshot, where it is known.
    Conflict(Option<Snapshot>),
}

/// Commits a change to the newest snapshot, as often as it takes until `timeout`.
pub async fn commit(table: &Table, change: &dyn Change, timeout: Duration) -> Result<Committed> {
    commit_onto(table, change, None, timeout).await
}

/// As [`commit`], with a snapshot that was the newest just now.
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
        // Who has just seen the winner's snapshot is as good as anyone for the next one.
        if cached_snapshot.is_none() || attempts >= MAX_EAGER_ATTEMPTS {
            backoff = jitter(clock.new_id(), backoff);
            clock.sleep(backoff).await;
            waited += backoff;
            cached_snapshot = None;
        }
    }
}

/// Notes the result of a commit under its idempotency key.
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
        "other commits came first in every attempt within {} s; nothing was committed, try again or \
         raise commit_timeout",
        timeout.as_secs()
    );
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// Between the shortest pause and three times the last one, evenly.
fn jitter(random_bits: u128, previous: Duration) -> Duration {
    let span = (previous * 3).saturating_sub(MIN_BACKOFF);
    let fraction = u32::try_from(random_bits % 1024).unwrap_or(0);
    (MIN_BACKOFF + span * fraction / 1024).min(MAX_BACKOFF)
}

pub(super) fn check_gc_floor(
    table: &Table,
    change: &dyn Change,
    base: &TableManifest,
) -> Result<()> {
    match change.base_version() {
        Some(base_version) if base_version < base.gc_floor => {
            let message = format!(
                "the write began at version {base_version}, and a vacuum has since removed what began \
                 before version {}; write again, or vacuum with a longer retention",
                base.gc_floor
            );
            Err(Error::new(ErrorKind::TransactionExpired, message).with_path(table.root()))
        }
        _ => Ok(()),
    }
}

/// What every snapshot has from its commit.
fn finalize_manifest(
    table: &Table,
    base: &TableManifest,
    next: TableManifest,
    operation: CommitOperation,
    commit_id: &CommitId,
) -> TableManifest {
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
        // A list of a snapshot that is not the newest any more.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(CommitAttempt::Conflict(None)),
        Err(e) => return Err(e),
    };
    let bytes = next.to_bytes();
    check_readable(table, &bytes, &next)?;
    let path = table.path(&names::manifest(next.version));
    let register = Register::new(&table.store, &path);
    // The same bytes again and again while the outcome is open: they land at most once.
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
    // For its owner, too, who may have crashed.
    let target = Pointer::for_manifest(winner.as_ref().unwrap_or(&next));
    let advanced = retry_until(table, deadline, || {
        advance_pointer(table, &base.pointer, &target)
    })
    .await;
    // With our manifest there, whoever comes next moves the pointer on.
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

/// A manifest that nobody could read would end the table.
fn check_readable(table: &Table, bytes: &Bytes, next: &TableManifest) -> Result<()> {
    let length = bytes.len() as u64;
    if length > MAX_MANIFEST_BYTES {
        let message = format!(
            "the manifest would have {length} bytes, more than {MAX_MANIFEST_BYTES}; compact the \
             table"
        );
        return Err(Error::invalid(message).with_path(table.root()));
    }
    TableManifest::parse(bytes, next.version).map_err(|e| {
        let message = format!("the commit cannot be written: {}", e.message());
        Error::invalid(message).with_path(table.root())
    })?;
    Ok(())
}

/// The manifest that was made from `base` by somebody else.
fn verify_successor(base: &Snapshot, manifest: TableManifest) -> Result<TableManifest> {
    // Where not: left behind by an older table in this place. Of a slot that was emptied and taken
    // again since, the pointer tells.
    if manifest.recent_commits.first() == Some(&base.manifest.commit_id) {
        return Ok(manifest);
    }
    let reason = "it was not made from the version before it";
    Err(corrupted_error(&names::manifest(manifest.version), reason))
}

/// Whether a version that has been vacuumed since was this commit. If not, the manifest landed in
/// the slot after the vacuum had emptied it, and is no commit.
async fn is_own_commit(table: &Table, next: &TableManifest) -> Result<bool> {
    let newest = table.newest().await;
    let newest = newest.map_err(|e| as_unknown_outcome(&next.commit_id, e))?;
    let Some(commit_id) = newest.manifest.commit_id_of(next.version) else {
        let message = "the version is older than any that the newest manifest knows";
        return Err(as_unknown_outcome(&next.commit_id, Error::other(message)));
    };
    Ok(*commit_id == next.commit_id)
}

/// The version that a commit made, None if it made none. A commit whose outcome was unknown may
/// still arrive while its writer's last requests are on their way.
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

/// Repeats a conditional write that the store could not answer until `deadline`. Once there was no
/// answer, no other error is certain: what was sent first may still arrive.
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

/// The newest snapshot, asked for until `deadline` while the store cannot answer.
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

/// Moves the pointer on to `target`, unless it is there or further already; gives what it is then.
async fn advance_pointer(
    table: &Table,
    from: &VersionedValue,
    target: &Pointer,
) -> Result<(VersionedValue, Pointer)> {
    let path = table.path(names::POINTER);
    let register = Register::new(&table.store, &path);
    let outcome = match register.replace(from, target.to_bytes()).await {
        // The same pointer written anew has another version at the store.
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
        // Who finds the newest manifest, as everybody does then, finds that of `target`.
        CasResult::Missing => match table.find_newest().await? {
            Some(newest) if newest.manifest.version >= target.version => {
                Ok((newest.pointer, Pointer::for_manifest(&newest.manifest)))
            }
            _ => Err(table_replaced_error(table)),
        },
    }
}

fn table_replaced_error(table: &Table) -> Error {
    let message = "the table was removed or put back to an older state while it was written to";
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// Only what the store could not answer leaves the outcome open.
pub(super) fn unknown_if_unavailable(commit_id: &CommitId, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => as_unknown_outcome(commit_id, error),
        _ => error,
    }
}

pub(super) fn as_unknown_outcome(commit_id: &CommitId, cause: Error) -> Error {
    let message = format!(
        "it is not known whether commit {} happened; was_committed({:?}) tells later",
        commit_id.as_str(),
        commit_id.as_str()
    );
    Error::new(ErrorKind::CommitStateUnknown, message)
        .with_detail(commit_id.as_str())
        .with_source(cause)
}
