//! Appends of one process to one table that are waiting for each other go into one commit.
//!
//! While a commit is under way those that come next wait; whose turn it is then takes all that wait
//! along. Each gets the version that holds its rows, or its own error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, oneshot};

use super::actions::Append;
use super::commit::{Change, Committed, check_floor, commit_onto, timed_out};
use super::format::{Manifest, Operation};
use super::snapshot::{Snapshot, Table};
use crate::error::{Error, ErrorKind, Result};

/// The appends of a table that wait, and whose turn it is.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Vec<Waiting>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug)]
struct Waiting {
    id: u128,
    append: Append,
    /// How long it is tried, and until when.
    timeout: Duration,
    deadline: Duration,
    answer: oneshot::Sender<Result<Committed>>,
}

/// A place in the queue; who goes away leaves it.
struct Place<'a> {
    queue: &'a Queue,
    id: u128,
}

impl Place<'_> {
    /// Takes the append back; None where somebody has taken it along.
    fn leave(&self) -> Option<Append> {
        let mut waiting = locked(&self.queue.waiting);
        let place = waiting.iter().position(|other| other.id == self.id)?;
        Some(waiting.remove(place).append)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Commits an append without a key, together with others of this process.
pub(super) async fn commit_together(
    table: &Table,
    append: Append,
    known: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let clock = table.store().clock();
    let queue: Arc<Queue> = table.store().shared_state(table.root());
    let (answer, mut answered) = oneshot::channel();
    let (id, began) = (clock.new_id(), clock.monotonic());
    locked(&queue.waiting).push(Waiting {
        id,
        append,
        timeout,
        deadline: began + timeout,
        answer,
    });
    let place = Place { queue: &queue, id };
    let waited = || clock.monotonic().saturating_sub(began);
    let mut queued = Duration::ZERO;
    if let Ok(turn) = Arc::clone(&queue.turn).try_lock_owned() {
        lead(table, &queue, known, turn);
    } else {
        tokio::select! {
            biased;
            done = &mut answered => {
                let done = done.unwrap_or_else(|_| Err(stopped()));
                return done.map(|done| Committed { waited: waited(), ..done });
            }
            turn = Arc::clone(&queue.turn).lock_owned() => {
                queued = waited();
                lead(table, &queue, None, turn);
            }
            () = clock.sleep(timeout) => {
                // The others have used up its time; one attempt is its own. Otherwise somebody is
                // about to tell how it ended.
                if let Some(append) = place.leave() {
                    return commit_onto(table, &append, None, Duration::ZERO).await;
                }
            }
        }
    }
    let done = answered.await.unwrap_or_else(|_| Err(stopped()));
    done.map(|done| Committed {
        waited: done.waited + queued,
        ..done
    })
}

fn stopped() -> Error {
    let message = "the commit stopped unexpectedly; the table's history tells whether it happened";
    Error::new(ErrorKind::CommitStateUnknown, message)
}

/// Commits all that wait, and lets the next ones in.
fn lead(table: &Table, queue: &Queue, known: Option<Snapshot>, turn: OwnedMutexGuard<()>) {
    let mut waiting = std::mem::take(&mut *locked(&queue.waiting));
    // Of those who went away nothing is committed.
    waiting.retain(|one| !one.answer.is_closed());
    let table = table.clone();
    let work = async move {
        commit_all(&table, waiting, known).await;
        drop(turn);
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "who stops waiting must not take the others along; the timeouts end it"
    )]
    tokio::spawn(work);
}

/// Commits appends in one version, without those whose time is over.
async fn commit_all(table: &Table, mut waiting: Vec<Waiting>, mut known: Option<Snapshot>) {
    let clock = table.store().clock();
    while let Some(first) = waiting.iter().map(|one| one.deadline).min() {
        let group = Group {
            table,
            appends: waiting.iter().map(|one| one.append.clone()).collect(),
            refused: Mutex::default(),
        };
        let left = first.saturating_sub(clock.monotonic());
        let done = commit_onto(table, &group, known.take(), left).await;
        let refused = std::mem::take(&mut *locked(&group.refused));
        let over = clock.monotonic();
        let late = done
            .as_ref()
            .is_err_and(|e| e.kind() == ErrorKind::CommitConflict && first <= over);
        let mut rest = Vec::new();
        let refused = refused.into_iter().chain(std::iter::repeat_with(|| None));
        for (one, refused) in waiting.into_iter().zip(refused) {
            let answer = match (&done, refused) {
                (_, Some(refused)) => Err(refused),
                (Ok(done), None) => Ok(done.clone()),
                (Err(_), None) if late && one.deadline > over => {
                    rest.push(one);
                    continue;
                }
                (Err(_), None) if late => Err(timed_out(table, one.timeout)),
                (Err(e), None) => Err(e.duplicate()),
            };
            // Who does not wait any more has given up.
            let _ = one.answer.send(answer);
        }
        waiting = rest;
    }
}

/// Appends as one change. What of them the last attempt left out is noted beside.
struct Group<'a> {
    table: &'a Table,
    appends: Vec<Append>,
    refused: Mutex<Vec<Option<Error>>>,
}

impl Change for Group<'_> {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        let fits = |append: &Append| {
            check_floor(self.table, append, base)?;
            append.check(base)
        };
        let refused: Vec<Option<Error>> = self.appends.iter().map(|a| fits(a).err()).collect();
        let fitting = self.appends.iter().zip(&refused);
        let fitting: Vec<&Append> = fitting
            .filter(|(_, refused)| refused.is_none())
            .map(|(append, _)| append)
            .collect();
        let first = refused.iter().flatten().next().map(Error::duplicate);
        let nothing = fitting.is_empty();
        *locked(&self.refused) = refused;
        match first.filter(|_| nothing) {
            Some(refused) => Err(refused),
            None => Ok(Append::all(&fitting, base)),
        }
    }

    fn began_at(&self) -> Option<u64> {
        // Each has its own, which apply looks at.
        None
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
