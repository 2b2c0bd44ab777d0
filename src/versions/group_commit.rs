//! Group commit: concurrent changes of one process to one folder share a commit, such as appends to a table.
//!
//! Changes without an idempotency key queue while a commit of the folder is under way. The first change
//! that gets the leader lock commits all queued ones as one version, in a task of its own, so that a
//! caller who stops waiting does not cancel the others.
//!
//! Every change gets the version that has it, or its own error: a change that does not fit the newest
//! snapshot is left out of the batch, and a change whose timeout is over is dropped while the others are
//! tried further. If the task ends without a reply, the outcome is [`CommitError::Unknown`], unless it never began.
//!
//! A change owns what was written for it ([`Staged`]): who takes it out of the queue, or drops it there, removes that
//! if no commit names it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::ancestor::Ancestor;
use super::backoff::commit_timeout_error;
use super::change::{Change, OnVersion, check_gc_floor};
use super::commit::{commit_as, commit_written};
use super::commit_id::CommitId;
use super::folder::{Folder, Snapshot};
use super::lists::RollLists;
use super::manifest::{CommitOperation, Versioned};
use super::outcome::{CommitError, CommitOutcome, Committed};
use super::staged::Staged;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::blocking::NO_THREAD_HINT;
use crate::sync::in_place::spawn_in_place;
use crate::sync::mutex::lock;
use crate::sync::progress;

/// A change that can be committed together with others of its type.
pub(crate) trait GroupChange<M>: Change<M> + Clone + 'static {
    /// Why the change does not fit a snapshot, if it does not.
    fn check(&self, base: &M) -> Result<()>;

    /// Applies several changes that fit as one.
    fn apply_all(changes: &[&Self], base: &M) -> (M, CommitOperation);
}

/// The queued changes of a folder, and the lock of the change that leads the next commit.
#[derive(Debug)]
struct Queue<M: Versioned, C> {
    pending: Mutex<Vec<PendingChange<M, C>>>,
    leader: Arc<tokio::sync::Mutex<()>>,
}

impl<M: Versioned, C> Default for Queue<M, C> {
    fn default() -> Self {
        Self {
            pending: Mutex::default(),
            leader: Arc::default(),
        }
    }
}

#[derive(Debug)]
struct PendingChange<M: Versioned, C> {
    id: u128,
    change: C,
    /// What was written for the change.
    staged: Staged<M>,
    /// What the versions that it is applied to have to descend from.
    ancestor: Ancestor,
    /// The caller's timeout, for the error message.
    timeout: Duration,
    /// The end of the timeout, by the store's monotonic clock.
    deadline: Duration,
    /// The id of the group's commit, which its task sets before it sends anything.
    commit_id: Arc<OnceLock<CommitId>>,
    reply: oneshot::Sender<CommitOutcome<Committed<M>>>,
}

/// An entry of the queue, which is removed when the ticket is dropped.
struct QueueTicket<'a, M: Versioned, C> {
    queue: &'a Queue<M, C>,
    id: u128,
}

impl<M: Versioned, C> QueueTicket<'_, M, C> {
    /// Removes the change from the queue; None if a leader has taken it.
    fn cancel(&self) -> Option<PendingChange<M, C>> {
        let mut pending = lock(&self.queue.pending);
        let position = pending.iter().position(|other| other.id == self.id)?;
        Some(pending.remove(position))
    }
}

impl<M: Versioned, C> Drop for QueueTicket<'_, M, C> {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Commits a change without an idempotency key, together with others of this process, to a version that descends from
/// `ancestor`. Removes what is staged for it if no commit names it.
pub(crate) async fn commit_batched<M: RollLists, C: GroupChange<M>>(
    folder: &Folder<M>,
    (change, ancestor): (C, Ancestor),
    mut staged: Staged<M>,
    cached_snapshot: Option<Snapshot<M>>,
    timeout: Duration,
) -> CommitOutcome<Committed<M>> {
    progress::begin_phase("commit");
    staged.remove_on_drop();
    let clock = folder.store().clock();
    let queue: Arc<Queue<M, C>> = folder.store().shared_state(folder.root());
    let (reply, mut reply_receiver) = oneshot::channel();
    let (id, start) = (clock.new_id(), clock.monotonic());
    let commit_id: Arc<OnceLock<CommitId>> = Arc::default();
    lock(&queue.pending).push(PendingChange {
        id,
        change,
        staged,
        ancestor,
        timeout,
        deadline: start + timeout,
        commit_id: Arc::clone(&commit_id),
        reply,
    });
    let ticket = QueueTicket { queue: &queue, id };
    let waited = || clock.monotonic().saturating_sub(start);
    let mut queue_time = Duration::ZERO;
    if let Ok(guard) = Arc::clone(&queue.leader).try_lock_owned() {
        lead_group_commit(folder, &queue, cached_snapshot, guard);
    } else {
        tokio::select! {
            biased;
            committed = &mut reply_receiver => {
                let committed = committed.unwrap_or_else(|_| Err(leader_stopped_error(&commit_id)));
                return committed.map(|committed| Committed { waited: waited(), ..committed });
            }
            guard = Arc::clone(&queue.leader).lock_owned() => {
                queue_time = waited();
                lead_group_commit(folder, &queue, None, guard);
            }
            () = clock.sleep(timeout) => {
                // The commits of others have used up the timeout: make one attempt without them. If a
                // leader has taken the change, its reply is on the way.
                queue_time = waited();
                if let Some(pending) = ticket.cancel() {
                    let change = OnVersion {
                        change: &pending.change,
                        version: None,
                        ancestor: pending.ancestor,
                    };
                    let staged = pending.staged;
                    let committed = commit_written(folder, &change, staged, None, Duration::ZERO).await;
                    return committed.map(|committed| committed.after(queue_time));
                }
            }
        }
    }
    let committed = reply_receiver
        .await
        .unwrap_or_else(|_| Err(leader_stopped_error(&commit_id)));
    committed.map(|committed| committed.after(queue_time))
}

fn leader_stopped_error(commit_id: &OnceLock<CommitId>) -> CommitError {
    if let Some(id) = commit_id.get() {
        let message = "the task that committed the change stopped unexpectedly";
        return CommitError::Unknown {
            id: id.clone(),
            cause: Error::other(message),
        };
    }
    let message =
        "nothing was committed: no thread began the commit, as where the system has none for it";
    CommitError::NotCommitted(Error::other(message).with_hint(NO_THREAD_HINT))
}

/// Starts a task that commits all queued changes and then releases the leader lock.
fn lead_group_commit<M: RollLists, C: GroupChange<M>>(
    folder: &Folder<M>,
    queue: &Queue<M, C>,
    cached_snapshot: Option<Snapshot<M>>,
    guard: OwnedMutexGuard<()>,
) {
    let mut pending = std::mem::take(&mut *lock(&queue.pending));
    // The caller of a closed reply has been cancelled: its change is not committed.
    pending.retain(|entry| !entry.reply.is_closed());
    let commit_id = CommitId::new(folder.store().clock().new_id());
    let folder = folder.clone();
    let is_local = folder.store().local().is_some();
    let task = async move {
        commit_pending(&folder, &commit_id, pending, cached_snapshot).await;
        drop(guard);
    };
    if is_local {
        spawn_in_place(task);
        return;
    }
    #[expect(
        clippy::disallowed_methods,
        reason = "a cancelled caller must not cancel the others; the timeouts end the task"
    )]
    tokio::spawn(task);
}

/// Commits changes in one version. If the earliest deadline passes, the changes that are over it fail
/// and the others are tried again, as the same commit.
async fn commit_pending<M: RollLists, C: GroupChange<M>>(
    folder: &Folder<M>,
    commit_id: &CommitId,
    mut pending: Vec<PendingChange<M, C>>,
    mut cached_snapshot: Option<Snapshot<M>>,
) {
    let clock = folder.store().clock();
    for entry in &mut pending {
        // Each entry is taken by one leader.
        let _ = entry.commit_id.set(commit_id.clone());
        entry.staged.keep_on_drop();
    }
    while let Some(earliest_deadline) = pending.iter().map(|entry| entry.deadline).min() {
        let changes = pending.iter();
        let changes = changes.map(|entry| (entry.change.clone(), entry.ancestor.clone()));
        let batch = ChangeBatch {
            folder,
            changes: changes.collect(),
            rejections: Mutex::default(),
        };
        let remaining = earliest_deadline.saturating_sub(clock.monotonic());
        // Another change of the batch may have begun with a later snapshot.
        let begun_at = pending.iter().map(|entry| entry.ancestor.version()).max();
        let cached = cached_snapshot.take();
        let cached = cached.filter(|s| Some(s.manifest.header().version) >= begun_at);
        let result = commit_as(commit_id, folder, &batch, cached, remaining).await;
        let rejections = std::mem::take(&mut *lock(&batch.rejections));
        let now = clock.monotonic();
        let is_timed_out = earliest_deadline <= now
            && matches!(&result, Err(CommitError::NotCommitted(e)) if e.kind() == ErrorKind::CommitConflict);
        let (mut rest, mut refused) = (Vec::new(), Vec::new());
        let per_change = rejections
            .into_iter()
            .chain(std::iter::repeat_with(|| None));
        for (entry, rejection) in pending.into_iter().zip(per_change) {
            let reply = match (&result, rejection) {
                (_, Some(error)) => Err(CommitError::NotCommitted(error)),
                (Ok(committed), None) => Ok(committed.clone()),
                (Err(_), None) if is_timed_out && entry.deadline > now => {
                    rest.push(entry);
                    continue;
                }
                (Err(_), None) if is_timed_out => Err(CommitError::NotCommitted(
                    commit_timeout_error(folder, entry.timeout),
                )),
                (Err(e), None) => Err(e.duplicate()),
            };
            match reply {
                Err(error) => refused.push(refuse(entry, error)),
                // A failed send means that the caller has been cancelled.
                committed => drop(entry.reply.send(committed)),
            }
        }
        // The others have their replies.
        join_all(refused).await;
        pending = rest;
    }
}

/// Removes what was written for a change, unless it may have been committed, before its caller has the error.
async fn refuse<M: Versioned, C>(entry: PendingChange<M, C>, error: CommitError) {
    entry.staged.end(&error).await;
    // As for one that was committed.
    let _ = entry.reply.send(Err(error));
}

/// Several changes as one, and for each the error with which the last attempt left it out.
struct ChangeBatch<'a, M: Versioned, C> {
    folder: &'a Folder<M>,
    changes: Vec<(C, Ancestor)>,
    rejections: Mutex<Vec<Option<Error>>>,
}

impl<M: Versioned, C: GroupChange<M>> Change<M> for ChangeBatch<'_, M, C> {
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)> {
        let validate = |(change, ancestor): &(C, Ancestor)| {
            ancestor.check(self.folder, base)?;
            check_gc_floor(self.folder, change, base)?;
            change.check(base)
        };
        let rejections: Vec<Option<Error>> =
            self.changes.iter().map(|c| validate(c).err()).collect();
        let candidates = self.changes.iter().zip(&rejections);
        let accepted: Vec<&C> = candidates
            .filter(|(_, rejection)| rejection.is_none())
            .map(|((change, _), _)| change)
            .collect();
        let first_rejection = rejections.iter().flatten().next().map(Error::duplicate);
        let all_rejected = accepted.is_empty();
        *lock(&self.rejections) = rejections;
        match first_rejection.filter(|_| all_rejected) {
            Some(error) => Err(error),
            None => Ok(C::apply_all(&accepted, base)),
        }
    }

    fn base_version(&self) -> Option<u64> {
        // Every change has its own, which `apply` checks.
        None
    }
}
