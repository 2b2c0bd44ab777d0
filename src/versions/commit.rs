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
//! | `CommitError::Unknown`, or cancelled during an attempt | left for a vacuum | left |
//! | cancelled before or after one | removed in the background | removed |
//!
//! Errors: [`ErrorKind::CommitConflict`] if every attempt lost a race until the timeout, or if the change
//! does not apply to the newest snapshot; [`ErrorKind::TransactionExpired`] if a vacuum may have removed
//! the objects of the change. The timeout is for attempts, and for plans after the first eight: an
//! operation whose every plan comes too late ends. Waits for a lease count beyond the time of the last plan.

use std::sync::Arc;
use std::time::Duration;

use super::ancestor::{Ancestor, recreated_error};
pub use super::attempt::was_committed;
use super::attempt::{CommitAttempt, attempt, commit_id_at, read_newest};
use super::backoff::{MIN_BACKOFF, commit_timeout_error, jitter};
pub use super::change::Change;
use super::change::{Operation, Unplanned, apply, check_required_version};
use super::commit_id::CommitId;
use super::finalize::{finalize_manifest, record_transaction};
use super::folder::{Folder, Snapshot};
use super::lists::{ListWriter, RollLists};
use super::manifest::{CommitOperation, Transaction};
pub(crate) use super::outcome::RunResult;
use super::outcome::{CommitError, CommitOutcome, Committed, is_conflict};
use super::staged::{Staged, remove};
use super::transactions::find_transaction;
use crate::error::{Error, ErrorKind, Result};

/// For how long tests retry a commit.
#[cfg(feature = "testing")]
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
/// From this attempt on, every retry is delayed, even if the winner's snapshot is known: of many writers only one wins
/// each race. With fewer, an operation loses them all to a writer who never stops.
const MAX_EAGER_ATTEMPTS: u32 = 8;
/// How many plans do not count towards the timeout.
const MAX_UNTIMED_PLANS: u32 = 8;
/// After this time the snapshot that a plan was made from is read again before the attempt.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(2);

/// Commits a change to the newest snapshot; retries until `timeout` while other commits come first.
pub async fn commit<M: RollLists>(
    folder: &Folder<M>,
    change: &dyn Change<M>,
    timeout: Duration,
) -> Result<Committed<M>> {
    Ok(commit_onto(folder, change, None, timeout).await?)
}

/// Like [`commit`], but the first attempt is made on `cached_snapshot` if there is one. The caller removes
/// what it wrote for the change, if the error allows it.
pub(crate) async fn commit_onto<M: RollLists>(
    folder: &Folder<M>,
    change: &dyn Change<M>,
    cached_snapshot: Option<Snapshot<M>>,
    timeout: Duration,
) -> CommitOutcome<Committed<M>> {
    let commit_id = CommitId::new(folder.store.clock().new_id());
    commit_as(&commit_id, folder, change, cached_snapshot, timeout).await
}

/// Like [`commit_onto`]; removes what was written for the change if no commit names it.
pub(crate) async fn commit_written<M: RollLists>(
    folder: &Folder<M>,
    change: &dyn Change<M>,
    staged: Staged<M>,
    cached_snapshot: Option<Snapshot<M>>,
    timeout: Duration,
) -> CommitOutcome<Committed<M>> {
    let mut operation = Unplanned(change);
    let ended = run_on(folder, &mut operation, staged, cached_snapshot, timeout).await?;
    ended.into_committed()
}

/// Like [`commit_onto`], with the id of the commit.
pub(super) async fn commit_as<M: RollLists>(
    commit_id: &CommitId,
    folder: &Folder<M>,
    change: &dyn Change<M>,
    cached_snapshot: Option<Snapshot<M>>,
    timeout: Duration,
) -> CommitOutcome<Committed<M>> {
    let mut operation = Unplanned(change);
    let staged = Staged::new(folder);
    let attempts = Attempts::new(folder, &mut operation, commit_id.clone(), staged, timeout);
    let ended = Box::pin(attempts.finish(cached_snapshot)).await?;
    ended.into_committed()
}

/// Plans an operation on the newest snapshot and commits it; plans it again where the change does not
/// apply any more. The time of the first eight plans does not count towards `timeout`. Removes what is
/// staged for it if no commit names it.
pub(crate) async fn run<M: RollLists, O: Operation<M>>(
    folder: &Folder<M>,
    operation: &mut O,
    staged: Staged<M>,
    timeout: Duration,
) -> CommitOutcome<RunResult<M, O::Change>> {
    run_on(folder, operation, staged, None, timeout).await
}

/// Like [`run`], but the first plan is made on `cached_snapshot` if there is one.
pub(crate) async fn run_on<M: RollLists, O: Operation<M>>(
    folder: &Folder<M>,
    operation: &mut O,
    staged: Staged<M>,
    cached_snapshot: Option<Snapshot<M>>,
    timeout: Duration,
) -> CommitOutcome<RunResult<M, O::Change>> {
    let commit_id = CommitId::new(folder.store.clock().new_id());
    let attempts = Attempts::new(folder, operation, commit_id, staged, timeout);
    Box::pin(attempts.finish(cached_snapshot)).await
}

/// The attempts to commit an operation.
struct Attempts<'a, M: RollLists, O: Operation<M>> {
    folder: &'a Folder<M>,
    operation: &'a mut O,
    commit_id: CommitId,
    staged: Staged<M>,
    lists: ListWriter,
    timeout: Duration,
    deadline: Duration,
    plans: u32,
    /// How much later than the deadline a wait for a further plan may end: what the last one took.
    grace: Duration,
    /// It has waited, and is planned again whatever the time is.
    has_waited: bool,
    change: Option<O::Change>,
    count: u32,
    waited: Duration,
    /// The version that the last attempt tried to create, until a snapshot shows whose it is.
    unverified: Option<u64>,
    /// A snapshot was older than what the change began with.
    was_behind: bool,
    /// What the next snapshot has to descend from.
    ancestor: Option<Ancestor>,
}

/// What an operation changes in a snapshot.
enum Prepared<M> {
    Manifest(Box<(M, CommitOperation)>),
    Nothing,
    /// The snapshot was vacuumed meanwhile, or is old: read the newest.
    Outdated,
}

impl<'a, M: RollLists, O: Operation<M>> Attempts<'a, M, O> {
    fn new(
        folder: &'a Folder<M>,
        operation: &'a mut O,
        commit_id: CommitId,
        mut staged: Staged<M>,
        timeout: Duration,
    ) -> Self {
        let ancestor = operation.ancestor().cloned();
        staged.remove_on_drop();
        Self {
            ancestor,
            folder,
            operation,
            commit_id,
            staged,
            lists: ListWriter::default(),
            timeout,
            deadline: folder.store.clock().monotonic() + timeout,
            plans: 0,
            grace: Duration::ZERO,
            has_waited: false,
            change: None,
            count: 0,
            waited: Duration::ZERO,
            unverified: None,
            was_behind: false,
        }
    }

    /// Runs the attempts, and removes what no commit names.
    async fn finish(
        mut self,
        cached: Option<Snapshot<M>>,
    ) -> CommitOutcome<RunResult<M, O::Change>> {
        let mut result = self.run(cached).await;
        if let Err(CommitError::NotCommitted(error)) = result {
            result = match self.verify_last_attempt().await {
                Ok(None) => Err(CommitError::NotCommitted(error)),
                Ok(Some(committed)) => Ok(committed),
                Err(unknown) => Err(unknown),
            };
        }
        let unused_lists = match &result {
            Ok(RunResult::Committed(committed, _)) => {
                let manifest = &*committed.snapshot.manifest;
                self.lists.unused_paths(Some(manifest))
            }
            Ok(_) => self.lists.unused_paths::<M>(None),
            Err(e) if e.allows_removal() => self.lists.unused_paths::<M>(None),
            Err(_) => Vec::new(),
        };
        remove(self.folder, &unused_lists).await;
        match &result {
            Ok(RunResult::Committed(..)) => self.staged.keep_on_drop(),
            Ok(_) => self.staged.remove_all().await,
            Err(e) => self.staged.end(e).await,
        }
        result
    }

    async fn run(
        &mut self,
        mut cached_snapshot: Option<Snapshot<M>>,
    ) -> CommitOutcome<RunResult<M, O::Change>> {
        let clock = Arc::clone(self.folder.store.clock());
        let mut backoff = MIN_BACKOFF;
        let mut unreadable: Option<CommitId> = None;
        loop {
            let base = match cached_snapshot.take() {
                Some(snapshot) => snapshot,
                None => read_newest(self.folder, self.deadline)
                    .await
                    .map_err(CommitError::NotCommitted)?,
            };
            match self.end_by_snapshot(&base).await {
                Ok(Some(ended)) => return Ok(ended),
                // The last attempt was lost for certain.
                Ok(None) => self.staged.remove_on_drop(),
                Err(CommitError::NotCommitted(e)) if self.is_outdated(&e) => continue,
                // Its time is over: what replaced the snapshot is not read.
                Err(CommitError::NotCommitted(e)) if e.kind() == ErrorKind::VersionExpired => {
                    let error = commit_timeout_error(self.folder, self.timeout);
                    return Err(CommitError::NotCommitted(error.with_source(e)));
                }
                Err(e) => return Err(e),
            }
            let required = self.operation.required_version();
            check_required_version(self.folder, required, &*base.manifest)
                .map_err(CommitError::NotCommitted)?;
            let prepared = self.prepare(&base).await;
            let draft = match prepared.map_err(CommitError::NotCommitted)? {
                Prepared::Manifest(draft) => *draft,
                Prepared::Nothing => return Ok(RunResult::Unchanged(base)),
                Prepared::Outdated => continue,
            };
            self.count += 1;
            cached_snapshot = match self.attempt(&base, draft).await? {
                CommitAttempt::Committed(snapshot) => {
                    return Ok(self.committed(snapshot.manifest.header().version, snapshot));
                }
                CommitAttempt::Conflict(newest) => newest,
                // The newest snapshot has all its lists; if that is what `base` is, one is lost.
                CommitAttempt::NotSent(missing) => {
                    let id = base.manifest.header().commit_id;
                    if unreadable.as_ref() == Some(id) {
                        let lost = missing.with_kind(ErrorKind::ManifestCorrupted);
                        return Err(CommitError::NotCommitted(lost));
                    }
                    unreadable = Some(id.clone());
                    None
                }
            };
            if clock.monotonic() >= self.deadline {
                let error = commit_timeout_error(self.folder, self.timeout);
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
        base: &Snapshot<M>,
    ) -> CommitOutcome<Option<RunResult<M, O::Change>>> {
        let Some(key) = self.operation.idempotency_key() else {
            let version = self.verify(&base.manifest).await?;
            return Ok(version.map(|version| self.committed_earlier(version, base.clone())));
        };
        // Manifests list keys longer than ids of commits: a key that is not listed has not been committed.
        let transaction = find_transaction(self.folder, &*base.manifest, key).await;
        let transaction = transaction.map_err(CommitError::NotCommitted)?;
        self.unverified = None;
        Ok(transaction.map(|transaction| self.end_by_transaction(transaction, base)))
    }

    /// The end of the operation if a commit with its idempotency key was made.
    fn end_by_transaction(
        &mut self,
        transaction: Transaction,
        base: &Snapshot<M>,
    ) -> RunResult<M, O::Change> {
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
        is_expired && self.folder.store.clock().monotonic() < self.deadline
    }

    /// Looks whether the last attempt, which looked lost, was committed after all; returns its version then.
    async fn verify(&mut self, newest: &M) -> CommitOutcome<Option<u64>> {
        let Some(attempted) = self.unverified else {
            return Ok(None);
        };
        let version = match newest.header().commit_id_of(attempted) {
            Some(id) => (*id == self.commit_id).then_some(attempted),
            // All was removed meanwhile.
            None if newest.header().version < attempted => {
                was_committed(self.folder, &self.commit_id)
                    .await
                    .map_err(|cause| self.unknown(cause))?
            }
            // So many commits came since that an older manifest has to tell.
            None => {
                let commit_id = commit_id_at(self.folder, attempted).await;
                let commit_id = commit_id.map_err(|cause| self.unknown(cause))?;
                (commit_id == self.commit_id).then_some(attempted)
            }
        };
        self.unverified = None;
        Ok(version)
    }

    /// Reads whether the last attempt was certainly lost. Returns the commit if it was not.
    async fn verify_last_attempt(&mut self) -> CommitOutcome<Option<RunResult<M, O::Change>>> {
        if self.unverified.is_none() {
            return Ok(None);
        }
        let newest = self.folder.newest().await.map_err(|e| self.unknown(e))?;
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
    fn committed_earlier(&mut self, version: u64, newest: Snapshot<M>) -> RunResult<M, O::Change> {
        // The version may reference any of the lists.
        self.lists = ListWriter::default();
        self.committed(version, newest)
    }

    fn committed(&mut self, version: u64, snapshot: Snapshot<M>) -> RunResult<M, O::Change> {
        let committed = Committed {
            version,
            commit_id: self.commit_id.clone(),
            snapshot,
            attempts: self.count,
            waited: self.waited,
            replayed: false,
        };
        self.folder.observe(committed.version, &committed.commit_id);
        match self.change.take() {
            Some(change) => RunResult::Committed(committed, change),
            None => RunResult::Replayed(committed),
        }
    }

    /// Waits as long as the operation wants before it is planned again; false if `base` is not the newest snapshot then.
    async fn wait_before_replan(&mut self, base: &Snapshot<M>) -> Result<bool> {
        if std::mem::take(&mut self.has_waited) {
            return Ok(true);
        }
        let clock = self.folder.store.clock();
        let started_at = clock.monotonic();
        let was_tried = self.count > 0 || self.plans >= MAX_UNTIMED_PLANS;
        if was_tried && started_at >= self.deadline {
            return Err(commit_timeout_error(self.folder, self.timeout));
        }
        let end = self.deadline.max(started_at) + self.grace;
        self.has_waited = self.operation.before_replan(base, end).await?;
        if self.has_waited {
            let waited = clock.monotonic().saturating_sub(started_at);
            self.deadline += waited.min(self.grace);
        }
        Ok(!self.has_waited)
    }

    /// Applies the change to a snapshot, after it was planned where there is none that applies.
    async fn prepare(&mut self, base: &Snapshot<M>) -> Result<Prepared<M>> {
        let clock = self.folder.store.clock();
        if self.is_behind(&base.manifest)? {
            return Ok(Prepared::Outdated);
        }
        if let Some(ancestor) = &self.ancestor {
            Box::pin(ancestor.check_descends(self.folder, &base.manifest)).await?;
        }
        self.ancestor = Some(Ancestor::of(&*base.manifest));
        if let Some(change) = &self.change {
            match apply(self.folder, change, &base.manifest) {
                Err(e) if is_conflict(&e) => {
                    log::info!("a change of {:?} is planned again: {e}", self.folder.root());
                    if !self.wait_before_replan(base).await? {
                        return Ok(Prepared::Outdated);
                    }
                }
                applied => return applied.map(|draft| Prepared::Manifest(Box::new(draft))),
            }
        }
        let started_at = clock.monotonic();
        let planned = self.operation.plan(base, &mut self.staged).await;
        let elapsed = clock.monotonic().saturating_sub(started_at);
        self.grace = Duration::ZERO;
        if self.plans < MAX_UNTIMED_PLANS {
            self.plans += 1;
            self.deadline += elapsed;
            self.grace = elapsed;
        }
        let change = match planned {
            Err(e) if self.is_outdated(&e) => return Ok(Prepared::Outdated),
            planned => match planned? {
                Some(change) => change,
                None => return Ok(Prepared::Nothing),
            },
        };
        self.staged.remove_retired().await;
        let draft = apply(self.folder, &change, &base.manifest)?;
        self.change = Some(change);
        if elapsed > MAX_SNAPSHOT_AGE.min(self.timeout.max(MIN_BACKOFF)) {
            // After so long the snapshot is hardly the newest any more, and an attempt on it a loss of time.
            return Ok(Prepared::Outdated);
        }
        Ok(Prepared::Manifest(Box::new(draft)))
    }

    /// Whether a snapshot that was read earlier is older than what the change began with. That the newest is, is an error.
    fn is_behind(&mut self, base: &M) -> Result<bool> {
        let version = base.header().version;
        let change = self.change.as_ref();
        let planned_base = change.and_then(Change::base_version);
        let begun_at = planned_base.or(self.operation.base_version());
        let Some(base_version) = begun_at.max(self.ancestor.as_ref().map(Ancestor::version)) else {
            return Ok(false);
        };
        if base_version <= version {
            return Ok(false);
        }
        if std::mem::replace(&mut self.was_behind, true) {
            return Err(recreated_error(self.folder));
        }
        Ok(true)
    }

    /// Tries to create the next version.
    async fn attempt(
        &mut self,
        base: &Snapshot<M>,
        (mut next, operation): (M, CommitOperation),
    ) -> CommitOutcome<CommitAttempt<M>> {
        finalize_manifest(
            self.folder,
            &base.manifest,
            &mut next,
            operation,
            &self.commit_id,
        );
        record_transaction(&mut next, self.operation.idempotency_key());
        let version = next.header().version;
        self.staged.keep_on_drop();
        let (lists, is_eager) = (&mut self.lists, self.count < MAX_EAGER_ATTEMPTS);
        let ended = attempt(self.folder, base, next, lists, self.deadline, is_eager).await?;
        self.unverified = matches!(ended, CommitAttempt::Conflict(_)).then_some(version);
        Ok(ended)
    }
}
