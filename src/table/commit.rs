//! Commits: a [`Change`] is applied to the newest snapshot and created as the next version
//! ([`super::attempt`]), until no other commit comes first.
//!
//! Errors: [`ErrorKind::CommitConflict`] if every attempt lost a race until the timeout, or if the change
//! does not apply to the newest snapshot; [`ErrorKind::TransactionExpired`] if a vacuum may have removed
//! the objects of the change.

use std::time::Duration;

pub use super::attempt::was_committed;
use super::attempt::{CommitAttempt, attempt, read_newest};
use super::format::{
    CommitId, CommitOperation, FORMAT, RECENT_COMMITS, TableManifest, TimestampMicros, Transaction,
};
use super::listing::SegmentCompactor;
use super::outcome::{CommitError, CommitOutcome};
use super::snapshot::{Snapshot, Table};
use super::write::remove;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;

/// For how long a commit is retried unless the caller sets a timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
const MIN_BACKOFF: Duration = Duration::from_millis(10);
// One writer wins every round, so a longer delay only makes the losers lose again.
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// From this attempt on, every retry is delayed, even if the winner's snapshot is known.
const MAX_EAGER_ATTEMPTS: u32 = 3;

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

/// Commits a change to the newest snapshot; retries until `timeout` while other commits come first.
pub async fn commit(table: &Table, change: &dyn Change, timeout: Duration) -> Result<Committed> {
    Ok(commit_onto(table, change, None, timeout).await?)
}

/// Like [`commit`], but the first attempt is made on `cached_snapshot` if there is one. Removes the
/// segments that unsuccessful attempts wrote, if the outcome is known.
pub(super) async fn commit_onto(
    table: &Table,
    change: &dyn Change,
    cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> CommitOutcome<Committed> {
    let commit_id = CommitId::new(table.store.clock().new_id());
    commit_as(&commit_id, table, change, cached_snapshot, timeout).await
}

/// Like [`commit_onto`], with the id of the commit.
pub(super) async fn commit_as(
    commit_id: &CommitId,
    table: &Table,
    change: &dyn Change,
    cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> CommitOutcome<Committed> {
    let mut compactor = SegmentCompactor::default();
    let attempts = Attempts {
        commit_id,
        table,
        change,
        timeout,
    };
    let result = attempts.run(&mut compactor, cached_snapshot).await;
    let unused = match &result {
        Ok(committed) => compactor.unused_paths(Some(&committed.snapshot.manifest)),
        Err(e) if e.allows_removal() => compactor.unused_paths(None),
        Err(_) => Vec::new(),
    };
    if !unused.is_empty() {
        remove(table, &unused).await;
    }
    result
}

/// The attempts to commit a change.
struct Attempts<'a> {
    commit_id: &'a CommitId,
    table: &'a Table,
    change: &'a dyn Change,
    timeout: Duration,
}

impl Attempts<'_> {
    async fn run(
        &self,
        compactor: &mut SegmentCompactor,
        mut cached_snapshot: Option<Snapshot>,
    ) -> CommitOutcome<Committed> {
        let (table, change) = (self.table, self.change);
        let clock = table.store.clock();
        let deadline = clock.monotonic() + self.timeout;
        let (mut attempts, mut waited, mut backoff) = (0, Duration::ZERO, MIN_BACKOFF);
        loop {
            let base = match cached_snapshot.take() {
                Some(snapshot) => snapshot,
                None => read_newest(table, deadline)
                    .await
                    .map_err(CommitError::NotCommitted)?,
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
            let applied = check_gc_floor(table, change, &base.manifest)
                .and_then(|()| change.apply(&base.manifest));
            let (draft, operation) = applied.map_err(CommitError::NotCommitted)?;
            let manifest =
                finalize_manifest(table, &base.manifest, draft, operation, self.commit_id);
            let version = manifest.version;
            let next = record_transaction(manifest, key);
            match attempt(table, &base, next, compactor, deadline).await? {
                CommitAttempt::Committed(snapshot) => {
                    table.observe(version, self.commit_id);
                    let commit_id = self.commit_id.clone();
                    return Ok(into_committed(snapshot, commit_id, version, false));
                }
                CommitAttempt::Conflict(newest) => cached_snapshot = newest,
                CommitAttempt::NotSent => {}
            }
            if clock.monotonic() >= deadline {
                let error = commit_timeout_error(table, self.timeout);
                return Err(CommitError::NotCommitted(error));
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
