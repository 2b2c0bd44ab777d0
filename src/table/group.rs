//! Appends of one process to one table that are waiting for each other go into one commit.
//!
//! While a commit is under way those that come next wait; whose turn it is then takes all that wait
//! along. Each gets the version that holds its rows, or its own error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::actions::Append;
use super::commit::{Change, Committed, check_floor, commit_onto, timed_out};
use super::format::{Manifest, Operation};
use super::snapshot::{Snapshot, Table};
use crate::error::{Error, Result};

/// The appends of a table that wait, and whose turn it is.
#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Vec<Waiting>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Queue {
    /// Takes an append back; false where somebody took it along already.
    fn withdraw(&self, id: u128) -> bool {
        let mut waiting = locked(&self.waiting);
        let place = waiting.iter().position(|other| other.id == id);
        place.map(|place| waiting.remove(place)).is_some()
    }
}

#[derive(Debug)]
struct Waiting {
    id: u128,
    append: Append,
    answer: oneshot::Sender<Result<Committed>>,
}

/// Appends as one change. What of them the last attempt left out is noted beside.
struct Group {
    table: Table,
    appends: Vec<Append>,
    refused: Mutex<Vec<Option<Error>>>,
}

/// Commits an append without a key, together with others of this process.
pub(super) async fn commit_together(
    table: &Table,
    append: Append,
    known: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let clock = table.store().clock();
    let queue: Arc<Queue> = table.store().shared(table.root());
    let (answer, mut answered) = oneshot::channel();
    let id = clock.new_id();
    locked(&queue.waiting).push(Waiting { id, append, answer });
    let began = clock.monotonic();
    let turn = tokio::select! {
        biased;
        done = &mut answered => return done.unwrap_or_else(|_| Err(stopped())),
        turn = Arc::clone(&queue.turn).lock_owned() => turn,
        () = clock.sleep(timeout) => {
            if queue.withdraw(id) {
                return Err(timed_out(table, 0, timeout));
            }
            // Somebody commits it right now.
            return answered.await.unwrap_or_else(|_| Err(stopped()));
        }
    };
    if let Ok(done) = answered.try_recv() {
        return done;
    }
    let group = std::mem::take(&mut *locked(&queue.waiting));
    let waited = clock.monotonic().saturating_sub(began);
    // What was known before others committed is old.
    let known = known.filter(|_| waited.is_zero());
    let left = timeout.saturating_sub(waited);
    let table = table.clone();
    let work = async move {
        commit_group(&table, group, known, left).await;
        drop(turn);
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "who stops waiting must not take the others along; the timeout ends it"
    )]
    tokio::spawn(work);
    answered.await.unwrap_or_else(|_| Err(stopped()))
}

fn stopped() -> Error {
    Error::other("the commit stopped unexpectedly")
}

async fn commit_group(
    table: &Table,
    group: Vec<Waiting>,
    known: Option<Snapshot>,
    timeout: Duration,
) {
    let (answers, appends): (Vec<_>, Vec<_>) =
        group.into_iter().map(|w| (w.answer, w.append)).unzip();
    let group = Group {
        table: table.clone(),
        appends,
        refused: Mutex::default(),
    };
    let done = commit_onto(table, &group, known, timeout).await;
    let refused = std::mem::take(&mut *locked(&group.refused));
    let refused = refused.into_iter().chain(std::iter::repeat_with(|| None));
    for (answer, refused) in answers.into_iter().zip(refused) {
        let done = match (&done, refused) {
            (_, Some(refused)) => Err(refused),
            (Ok(done), None) => Ok(done.clone()),
            (Err(e), None) => Err(e.again()),
        };
        // Who does not wait any more has given up.
        let _ = answer.send(done);
    }
}

impl Change for Group {
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)> {
        let fits = |append: &Append| {
            check_floor(&self.table, append, base)?;
            append.check(base)
        };
        let refused: Vec<Option<Error>> = self.appends.iter().map(|a| fits(a).err()).collect();
        let fitting = self.appends.iter().zip(&refused);
        let fitting: Vec<&Append> = fitting
            .filter(|(_, refused)| refused.is_none())
            .map(|(append, _)| append)
            .collect();
        let first = refused.iter().flatten().next().map(Error::again);
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
