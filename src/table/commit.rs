//! Commits: an operation is planned on the newest snapshot, its change applied to that and created as the
//! next version (`attempt.rs`), until no other commit comes first.
//!
//! [`Change`] is what is committed, a pure function of a snapshot. `Operation` makes one from a snapshot; it
//! is planned again when its change does not apply to a newer snapshot. There is one loop (`run`), and one
//! commit id for each run of it.
//!
//! What an operation wrote (`Staged`) is removed when no commit names it, and only then:
//!
//! | end of the run | what the last plan wrote | what earlier plans wrote |
//! | --- | --- | --- |
//! | committed | kept | removed after the plan that replaced it |
//! | nothing to do, or replayed | removed | removed |
//! | `CommitError::NotCommitted` | removed, after a look whether the last attempt was lost | removed |
//! | the same, while the store is unavailable | left for a vacuum | left |
//! | `CommitError::Unknown`, or cancelled | left for a vacuum | left |
//!
//! Errors: [`ErrorKind::CommitConflict`] if every attempt lost a race until the timeout, or if the change
//! does not apply to the newest snapshot; [`ErrorKind::TransactionExpired`] if a vacuum may have removed
//! the objects of the change. The timeout is for attempts and for plans after the first.

use std::sync::Arc;
use std::time::Duration;

pub use super::attempt::was_committed;
use super::attempt::{CommitAttempt, attempt, read_newest};
pub use super::change::Change;
use super::change::{Operation, Unplanned, apply};
use super::folder::{Snapshot, Table};
use super::format::{
    CommitId, CommitOperation, FORMAT, RECENT_COMMITS, TableManifest, TimestampMicros, Transaction,
};
use super::lists::ListWriter;
pub use super::outcome::Committed;
use super::outcome::{CommitError, CommitOutcome, is_conflict};
use super::staged::{Staged, remove};
use super::transactions::find_transaction;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;

/// For how long a commit is retried unless the caller sets a timeout.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
const MIN_BACKOFF: Duration = Duration::from_millis(10);
// One writer wins every round, so a longer delay only makes the losers lose again.
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// From this attempt on, every retry is delayed, even if the winner's snapshot is known.
const MAX_EAGER_ATTEMPTS: u32 = 3;
/// After this time the snapshot that a plan was made from is read again before the first attempt.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(2);

/// How an operation ended that did not fail.
pub(super) enum RunResult<C> {
    /// It was committed, as this change.
    Committed(Committed, C),
    /// An earlier commit had the same idempotency key.
    Replayed(Committed),
    /// There was nothing to change in this snapshot.
    Unchanged(Snapshot),
}

/// Commits a change to the newest snapshot; retries until `timeout` while other commits come first.
pub async fn commit(table: &Table, change: &dyn Change, timeout: Duration) -> Result<Committed> {
    Ok(commit_onto(table, change, None, timeout).await?)
}

/// Like [`commit`], but the first attempt is made on `cached_snapshot` if there is one. The caller removes
/// what it wrote for the change, if the error allows it.
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
    let mut operation = Unplanned(change);
    let staged = Staged::new(table);
    let attempts = Attempts::new(table, &mut operation, commit_id.clone(), staged, timeout);
    match attempts.finish(cached_snapshot).await? {
        RunResult::Committed(committed, _) | RunResult::Replayed(committed) => Ok(committed),
        RunResult::Unchanged(_) => Err(CommitError::NotCommitted(Error::other(
            "internal error: a change without a plan changed nothing",
        ))),
    }
}

/// Plans an operation on the newest snapshot and commits it; plans it again where the change does not
/// apply any more. The time of the first plan does not count towards `timeout`. Removes what is staged
/// for it if no commit names it.
pub(super) async fn run<O: Operation>(
    table: &Table,
    operation: &mut O,
    staged: Staged,
    timeout: Duration,
) -> CommitOutcome<RunResult<O::Change>> {
    run_on(table, operation, staged, None, timeout).await
}

/// Like [`run`], but the first plan is made on `cached_snapshot` if there is one.
pub(super) async fn run_on<O: Operation>(
    table: &Table,
    operation: &mut O,
    staged: Staged,
    cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> CommitOutcome<RunResult<O::Change>> {
    let commit_id = CommitId::new(table.store.clock().new_id());
    let attempts = Attempts::new(table, operation, commit_id, staged, timeout);
    attempts.finish(cached_snapshot).await
}

/// The attempts to commit an operation.
struct Attempts<'a, O: Operation> {
    table: &'a Table,
    operation: &'a mut O,
    commit_id: CommitId,
    staged: Staged,
    lists: ListWriter,
    timeout: Duration,
    deadline: Duration,
    change: Option<O::Change>,
    count: u32,
    waited: Duration,
    /// The version that the last attempt tried to create, until a snapshot shows whose it is.
    unverified: Option<u64>,
}

/// What an operation changes in a snapshot.
enum Prepared {
    Manifest(Box<(TableManifest, CommitOperation)>),
    Nothing,
    /// The snapshot was vacuumed meanwhile, or is old: read the newest.
    Outdated,
}

impl<'a, O: Operation> Attempts<'a, O> {
    fn new(
        table: &'a Table,
        operation: &'a mut O,
        commit_id: CommitId,
        staged: Staged,
        timeout: Duration,
    ) -> Self {
        Self {
            table,
            operation,
            commit_id,
            staged,
            lists: ListWriter::default(),
            timeout,
            deadline: table.store.clock().monotonic() + timeout,
            change: None,
            count: 0,
            waited: Duration::ZERO,
            unverified: None,
        }
    }

    /// Runs the attempts, and removes what no commit names.
    async fn finish(mut self, cached: Option<Snapshot>) -> CommitOutcome<RunResult<O::Change>> {
        let mut result = self.run(cached).await;
        if let Err(CommitError::NotCommitted(error)) = result {
            result = match self.verify_last_attempt().await {
                Ok(None) => Err(CommitError::NotCommitted(error)),
                Ok(Some(committed)) => Ok(committed),
                Err(unknown) => Err(unknown),
            };
        }
        let (is_unused, unused_lists) = match &result {
            Ok(RunResult::Committed(committed, _)) => {
                let manifest = &committed.snapshot.manifest;
                (false, self.lists.unused_paths(Some(manifest)))
            }
            Ok(_) => (true, self.lists.unused_paths(None)),
            Err(e) if e.allows_removal() => (true, self.lists.unused_paths(None)),
            Err(_) => (false, Vec::new()),
        };
        remove(self.table, &unused_lists).await;
        if is_unused {
            self.staged.remove_all().await;
        }
        result
    }

    async fn run(
        &mut self,
        mut cached_snapshot: Option<Snapshot>,
    ) -> CommitOutcome<RunResult<O::Change>> {
        let clock = Arc::clone(self.table.store.clock());
        let mut backoff = MIN_BACKOFF;
        let mut unreadable: Option<CommitId> = None;
        loop {
            let base = match cached_snapshot.take() {
                Some(snapshot) => snapshot,
                None => read_newest(self.table, self.deadline)
                    .await
                    .map_err(CommitError::NotCommitted)?,
            };
            match self.end_by_snapshot(&base).await {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => {}
                Err(CommitError::NotCommitted(e)) if self.is_outdated(&e) => continue,
                Err(e) => return Err(e),
            }
            let prepared = self.prepare(&base).await;
            let draft = match prepared.map_err(CommitError::NotCommitted)? {
                Prepared::Manifest(draft) => *draft,
                Prepared::Nothing => return Ok(RunResult::Unchanged(base)),
                Prepared::Outdated => continue,
            };
            self.count += 1;
            cached_snapshot = match self.attempt(&base, draft).await? {
                CommitAttempt::Committed(snapshot) => {
                    return Ok(self.committed(snapshot.manifest.version, snapshot));
                }
                CommitAttempt::Conflict(newest) => newest,
                // The newest snapshot has all its lists; if that is what `base` is, one is lost.
                CommitAttempt::NotSent(missing) => {
                    let id = &base.manifest.commit_id;
                    if unreadable.as_ref() == Some(id) {
                        let lost = missing.with_kind(ErrorKind::ManifestCorrupted);
                        return Err(CommitError::NotCommitted(lost));
                    }
                    unreadable = Some(id.clone());
                    None
                }
            };
            if clock.monotonic() >= self.deadline {
                let error = commit_timeout_error(self.table, self.timeout);
                return Err(CommitError::NotCommitted(error));
            }
            // With the winner's snapshot at hand, an immediate retry has as good a chance as any other writer.
            if cached_snapshot.is_none() || self.count >= MAX_EAGER_ATTEMPTS {
                backoff = jitter(clock.new_id(), backoff);
                clock.sleep(backoff).await;
                self.waited += backoff;
                cached_snapshot = None;
            }
        }
    }

    /// The end of the operation if a snapshot shows that it was committed already.
    async fn end_by_snapshot(
        &mut self,
        base: &Snapshot,
    ) -> CommitOutcome<Option<RunResult<O::Change>>> {
        if let Some(version) = self.verify(&base.manifest).await? {
            return Ok(Some(self.committed_earlier(version, base.clone())));
        }
        let Some(key) = self.operation.idempotency_key() else {
            return Ok(None);
        };
        let transaction = find_transaction(self.table, &base.manifest, key).await;
        Ok(transaction
            .map_err(CommitError::NotCommitted)?
            .map(|transaction| self.end_by_transaction(transaction, base)))
    }

    /// The end of the operation if a commit with its idempotency key was made.
    fn end_by_transaction(
        &mut self,
        transaction: Transaction,
        base: &Snapshot,
    ) -> RunResult<O::Change> {
        if transaction.commit_id == self.commit_id {
            return self.committed_earlier(transaction.version, base.clone());
        }
        RunResult::Replayed(Committed {
            attempts: self.count + 1,
            waited: self.waited,
            ..Committed::replay(transaction, base)
        })
    }

    /// Whether a vacuum has removed the snapshot since it was read, and there is time for the newest.
    fn is_outdated(&self, error: &Error) -> bool {
        let is_expired = error.kind() == ErrorKind::VersionExpired;
        is_expired && self.table.store.clock().monotonic() < self.deadline
    }

    /// Looks whether the last attempt, which looked lost, was committed after all; returns its version then.
    async fn verify(&mut self, newest: &TableManifest) -> CommitOutcome<Option<u64>> {
        let Some(attempted) = self.unverified else {
            return Ok(None);
        };
        let version = match newest.commit_id_of(attempted) {
            Some(id) => (*id == self.commit_id).then_some(attempted),
            // So many commits came since that older manifests have to tell.
            None => was_committed(self.table, &self.commit_id)
                .await
                .map_err(|cause| self.unknown(cause))?,
        };
        self.unverified = None;
        Ok(version)
    }

    /// Reads whether the last attempt was certainly lost. Returns the commit if it was not.
    async fn verify_last_attempt(&mut self) -> CommitOutcome<Option<RunResult<O::Change>>> {
        if self.unverified.is_none() {
            return Ok(None);
        }
        let newest = self.table.newest().await.map_err(|e| self.unknown(e))?;
        let version = self.verify(&newest.manifest).await?;
        Ok(version.map(|version| self.committed_earlier(version, newest)))
    }

    fn unknown(&self, cause: Error) -> CommitError {
        CommitError::Unknown {
            id: self.commit_id.clone(),
            cause,
        }
    }

    /// The end of an attempt that looked lost by a wrong answer of the store, and was committed.
    fn committed_earlier(&mut self, version: u64, newest: Snapshot) -> RunResult<O::Change> {
        // The version may reference any of the lists.
        self.lists = ListWriter::default();
        self.committed(version, newest)
    }

    fn committed(&mut self, version: u64, snapshot: Snapshot) -> RunResult<O::Change> {
        let committed = Committed {
            version,
            commit_id: self.commit_id.clone(),
            snapshot,
            attempts: self.count,
            waited: self.waited,
            replayed: false,
        };
        self.table.observe(committed.version, &committed.commit_id);
        match self.change.take() {
            Some(change) => RunResult::Committed(committed, change),
            None => RunResult::Replayed(committed),
        }
    }

    /// Applies the change to a snapshot, after it was planned where there is none that applies.
    async fn prepare(&mut self, base: &Snapshot) -> Result<Prepared> {
        let clock = self.table.store.clock();
        if let Some(change) = &self.change {
            match apply(self.table, change, &base.manifest) {
                Err(e) if is_conflict(&e) => {
                    log::info!("a change of {:?} is planned again: {e}", self.table.root());
                }
                applied => return applied.map(|draft| Prepared::Manifest(Box::new(draft))),
            }
        }
        let started_at = clock.monotonic();
        let change = match self.operation.plan(base, &mut self.staged).await {
            Err(e) if self.is_outdated(&e) => return Ok(Prepared::Outdated),
            planned => match planned? {
                Some(change) => change,
                None => return Ok(Prepared::Nothing),
            },
        };
        self.staged.remove_retired().await;
        let draft = apply(self.table, &change, &base.manifest)?;
        if self.change.replace(change).is_none() {
            self.deadline = clock.monotonic() + self.timeout;
            if clock.monotonic() > started_at + MAX_SNAPSHOT_AGE.min(self.timeout.max(MIN_BACKOFF))
            {
                // After so long the snapshot is hardly the newest any more, and an attempt on it a loss of time.
                return Ok(Prepared::Outdated);
            }
        }
        Ok(Prepared::Manifest(Box::new(draft)))
    }

    /// Tries to create the next version.
    async fn attempt(
        &mut self,
        base: &Snapshot,
        (draft, operation): (TableManifest, CommitOperation),
    ) -> CommitOutcome<CommitAttempt> {
        let manifest = finalize_manifest(
            self.table,
            &base.manifest,
            draft,
            operation,
            &self.commit_id,
        );
        let next = record_transaction(manifest, self.operation.idempotency_key());
        let version = next.version;
        let ended = attempt(self.table, base, next, &mut self.lists, self.deadline).await?;
        self.unverified = matches!(ended, CommitAttempt::Conflict(_)).then_some(version);
        Ok(ended)
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
