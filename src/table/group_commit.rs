//! Group commit: concurrent appends of one process to one table share a commit.
//!
//! Appends without an idempotency key queue while a commit of the table is under way. The first append
//! that gets the leader lock commits all queued ones as one version, in a task of its own, so that a
//! caller who stops waiting does not cancel the others.
//!
//! Every append gets the version that holds its rows, or its own error: an append whose columns or files
//! do not fit the newest snapshot is left out of the batch, and an append whose timeout is over is
//! dropped while the others are tried further. If the task ends without a reply, the outcome is
//! [`CommitError::Unknown`].

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::actions::Append;
use super::change::{Change, check_gc_floor};
use super::commit::{Committed, commit_as, commit_onto, commit_timeout_error};
use super::folder::{Snapshot, Table};
use super::format::{CommitId, CommitOperation, TableManifest};
use super::outcome::{CommitError, CommitOutcome};
use crate::error::{Error, ErrorKind, Result};

/// The queued appends of a table, and the lock of the append that leads the next commit.
#[derive(Debug, Default)]
struct Queue {
    pending: Mutex<Vec<PendingAppend>>,
    leader: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct PendingAppend {
    id: u128,
    append: Append,
    /// The caller's timeout, for the error message.
    timeout: Duration,
    /// The end of the timeout, by the store's monotonic clock.
    deadline: Duration,
    /// The id of the group's commit, which the leader sets before it starts.
    commit_id: Arc<OnceLock<CommitId>>,
    reply: oneshot::Sender<CommitOutcome<Committed>>,
}

/// An entry of the queue, which is removed when the ticket is dropped.
struct QueueTicket<'a> {
    queue: &'a Queue,
    id: u128,
}

impl QueueTicket<'_> {
    /// Removes the append from the queue; None if a leader has taken it.
    fn cancel(&self) -> Option<Append> {
        let mut pending = lock(&self.queue.pending);
        let position = pending.iter().position(|other| other.id == self.id)?;
        Some(pending.remove(position).append)
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Commits an append without an idempotency key, together with other appends of this process.
pub(super) async fn commit_batched(
    table: &Table,
    append: Append,
    cached_snapshot: Option<Snapshot>,
    timeout: Duration,
) -> CommitOutcome<Committed> {
    let clock = table.store().clock();
    let queue: Arc<Queue> = table.store().shared_state(table.root());
    let (reply, mut reply_receiver) = oneshot::channel();
    let (id, start) = (clock.new_id(), clock.monotonic());
    let commit_id: Arc<OnceLock<CommitId>> = Arc::default();
    lock(&queue.pending).push(PendingAppend {
        id,
        append,
        timeout,
        deadline: start + timeout,
        commit_id: Arc::clone(&commit_id),
        reply,
    });
    let ticket = QueueTicket { queue: &queue, id };
    let waited = || clock.monotonic().saturating_sub(start);
    let mut queue_time = Duration::ZERO;
    if let Ok(guard) = Arc::clone(&queue.leader).try_lock_owned() {
        lead_group_commit(table, &queue, cached_snapshot, guard);
    } else {
        tokio::select! {
            biased;
            committed = &mut reply_receiver => {
                let committed = committed.unwrap_or_else(|_| Err(leader_stopped_error(&commit_id)));
                return committed.map(|committed| Committed { waited: waited(), ..committed });
            }
            guard = Arc::clone(&queue.leader).lock_owned() => {
                queue_time = waited();
                lead_group_commit(table, &queue, None, guard);
            }
            () = clock.sleep(timeout) => {
                // The commits of others have used up the timeout: make one attempt without them. If a
                // leader has taken the append, its reply is on the way.
                if let Some(append) = ticket.cancel() {
                    return commit_onto(table, &append, None, Duration::ZERO).await;
                }
            }
        }
    }
    let committed = reply_receiver
        .await
        .unwrap_or_else(|_| Err(leader_stopped_error(&commit_id)));
    committed.map(|committed| Committed {
        waited: committed.waited + queue_time,
        ..committed
    })
}

fn leader_stopped_error(commit_id: &OnceLock<CommitId>) -> CommitError {
    let message = "the task that committed the append stopped unexpectedly";
    let cause = Error::other(message);
    match commit_id.get() {
        Some(id) => CommitError::Unknown {
            id: id.clone(),
            cause,
        },
        // It stopped before it could send anything.
        None => CommitError::NotCommitted(cause),
    }
}

/// Starts a task that commits all queued appends and then releases the leader lock.
fn lead_group_commit(
    table: &Table,
    queue: &Queue,
    cached_snapshot: Option<Snapshot>,
    guard: OwnedMutexGuard<()>,
) {
    let mut pending = std::mem::take(&mut *lock(&queue.pending));
    // The caller of a closed reply has been cancelled: its append is not committed.
    pending.retain(|entry| !entry.reply.is_closed());
    let commit_id = CommitId::new(table.store().clock().new_id());
    for entry in &pending {
        // Each entry is taken by one leader.
        let _ = entry.commit_id.set(commit_id.clone());
    }
    let table = table.clone();
    let task = async move {
        commit_pending(&table, &commit_id, pending, cached_snapshot).await;
        drop(guard);
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a cancelled caller must not cancel the others; the timeouts end the task"
    )]
    tokio::spawn(task);
}

/// Commits appends in one version. If the earliest deadline passes, the appends that are over it fail
/// and the others are tried again, as the same commit.
async fn commit_pending(
    table: &Table,
    commit_id: &CommitId,
    mut pending: Vec<PendingAppend>,
    mut cached_snapshot: Option<Snapshot>,
) {
    let clock = table.store().clock();
    while let Some(earliest_deadline) = pending.iter().map(|entry| entry.deadline).min() {
        let batch = AppendBatch {
            table,
            appends: pending.iter().map(|entry| entry.append.clone()).collect(),
            rejections: Mutex::default(),
        };
        let remaining = earliest_deadline.saturating_sub(clock.monotonic());
        let cached = cached_snapshot.take();
        let result = commit_as(commit_id, table, &batch, cached, remaining).await;
        let rejections = std::mem::take(&mut *lock(&batch.rejections));
        let now = clock.monotonic();
        let is_timed_out = earliest_deadline <= now
            && matches!(&result, Err(CommitError::NotCommitted(e)) if e.kind() == ErrorKind::CommitConflict);
        let mut rest = Vec::new();
        let per_append = rejections
            .into_iter()
            .chain(std::iter::repeat_with(|| None));
        for (entry, rejection) in pending.into_iter().zip(per_append) {
            let reply = match (&result, rejection) {
                (_, Some(error)) => Err(CommitError::NotCommitted(error)),
                (Ok(committed), None) => Ok(committed.clone()),
                (Err(_), None) if is_timed_out && entry.deadline > now => {
                    rest.push(entry);
                    continue;
                }
                (Err(_), None) if is_timed_out => Err(CommitError::NotCommitted(
                    commit_timeout_error(table, entry.timeout),
                )),
                (Err(e), None) => Err(e.duplicate()),
            };
            // A failed send means that the caller has been cancelled.
            let _ = entry.reply.send(reply);
        }
        pending = rest;
    }
}

/// Appends as one change, and for each the error with which the last attempt left it out.
struct AppendBatch<'a> {
    table: &'a Table,
    appends: Vec<Append>,
    rejections: Mutex<Vec<Option<Error>>>,
}

impl Change for AppendBatch<'_> {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let validate = |append: &Append| {
            check_gc_floor(self.table, append, base)?;
            append.check_columns(base)
        };
        let rejections: Vec<Option<Error>> =
            self.appends.iter().map(|a| validate(a).err()).collect();
        let candidates = self.appends.iter().zip(&rejections);
        let accepted: Vec<&Append> = candidates
            .filter(|(_, rejection)| rejection.is_none())
            .map(|(append, _)| append)
            .collect();
        let first_rejection = rejections.iter().flatten().next().map(Error::duplicate);
        let all_rejected = accepted.is_empty();
        *lock(&self.rejections) = rejections;
        match first_rejection.filter(|_| all_rejected) {
            Some(error) => Err(error),
            None => Ok(Append::apply_all(&accepted, base)),
        }
    }

    fn base_version(&self) -> Option<u64> {
        // Every append has its own, which `apply` checks.
        None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
