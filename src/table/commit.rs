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
    CommitId, FORMAT, MAX_MANIFEST_BYTES, Manifest, Moment, Operation, Pointer, RECENT_COMMITS,
    Transaction, corrupted,
};
use super::listing::Shortener;
use super::names;
use super::snapshot::{Snapshot, Table};
use super::write::{is_certain, remove};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, VersionedValue};

/// How long a commit is tried.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_mins(2);
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
// Somebody wins every round, so waiting longer only makes those who lost lose again.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// So many attempts in a row are made without a pause.
const MAX_EAGER_ATTEMPTS: u32 = 3;
/// Between two tries at a store that cannot be reached.
const UNAVAILABLE_PAUSE: Duration = Duration::from_secs(1);

/// A change of a table: the same for every attempt, a pure function of the snapshot it meets.
pub trait Change: Send + Sync {
    /// What becomes of `base`. Version, identity and time of the result are set by the commit.
    fn apply(&self, base: &Manifest) -> Result<(Manifest, Operation)>;

    /// The version its objects are named after, if it has any: a vacuum may have removed them when
    /// the floor is above.
    fn began_at(&self) -> Option<u64>;

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
pub(super) fn plans_again(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::CommitConflict | ErrorKind::TransactionExpired
    )
}

/// How one attempt ended.
enum Attempt {
    Committed(Snapshot),
    /// Another commit has the version; the newest snapshot, where it is known.
    Lost(Option<Snapshot>),
}

/// Commits a change to the newest snapshot, as often as it takes until `timeout`.
pub async fn commit(table: &Table, change: &dyn Change, timeout: Duration) -> Result<Committed> {
    commit_onto(table, change, None, timeout).await
}

/// As [`commit`], with a snapshot that was the newest just now.
pub(super) async fn commit_onto(
    table: &Table,
    change: &dyn Change,
    known: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let mut lists = Shortener::default();
    let done = commit_with(&mut lists, table, change, known, timeout).await;
    let unused = match &done {
        Ok(done) => lists.unused(Some(&done.snapshot.manifest)),
        Err(e) if is_certain(e.kind()) => lists.unused(None),
        Err(_) => Vec::new(),
    };
    if !unused.is_empty() {
        remove(table, &unused).await;
    }
    done
}

async fn commit_with(
    lists: &mut Shortener,
    table: &Table,
    change: &dyn Change,
    mut known: Option<Snapshot>,
    timeout: Duration,
) -> Result<Committed> {
    let clock = table.store.clock();
    let commit_id = CommitId::new(clock.new_id());
    let deadline = clock.monotonic() + timeout;
    let (mut attempts, mut waited, mut pause) = (0, Duration::ZERO, SHORTEST_PAUSE);
    loop {
        let base = match known.take() {
            Some(snapshot) => snapshot,
            None => newest(table, deadline).await?,
        };
        attempts += 1;
        let committed = |snapshot: Snapshot, commit_id, version, replayed| Committed {
            version,
            commit_id,
            snapshot,
            attempts,
            waited,
            replayed,
        };
        let key = change.idempotency_key();
        if let Some(done) = key.and_then(|key| base.manifest.transactions.get(key)) {
            let (commit_id, version) = (done.commit_id.clone(), done.version);
            return Ok(committed(base, commit_id, version, true));
        }
        check_floor(table, change, &base.manifest)?;
        let (next, operation) = change.apply(&base.manifest)?;
        let next = stamped(table, &base.manifest, next, operation, &commit_id);
        let version = next.version;
        let next = with_key(next, key);
        match attempt(table, &base, next, lists, deadline).await? {
            Attempt::Committed(snapshot) => {
                table.observe(version, &commit_id);
                return Ok(committed(snapshot, commit_id, version, false));
            }
            Attempt::Lost(newest) => known = newest,
        }
        if clock.monotonic() >= deadline {
            return Err(timed_out(table, timeout));
        }
        // Who has just seen the winner's snapshot is as good as anyone for the next one.
        if known.is_none() || attempts >= MAX_EAGER_ATTEMPTS {
            pause = jitter(clock.new_id(), pause);
            clock.sleep(pause).await;
            waited += pause;
            known = None;
        }
    }
}

/// Notes the result of a commit under its idempotency key.
fn with_key(mut next: Manifest, key: Option<&str>) -> Manifest {
    if let Some(key) = key {
        let done = Transaction {
            version: next.version,
            commit_id: next.commit_id.clone(),
            created_at: next.created_at,
        };
        next.transactions.insert(key.to_owned(), done);
    }
    next
}

pub(super) fn timed_out(table: &Table, timeout: Duration) -> Error {
    let message = format!(
        "other commits came first in every attempt within {} s; nothing was committed, try again or \
         raise commit_timeout",
        timeout.as_secs()
    );
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// Between the shortest pause and three times the last one, evenly.
fn jitter(chance: u128, last: Duration) -> Duration {
    let span = (last * 3).saturating_sub(SHORTEST_PAUSE);
    let part = u32::try_from(chance % 1024).unwrap_or(0);
    (SHORTEST_PAUSE + span * part / 1024).min(LONGEST_PAUSE)
}

pub(super) fn check_floor(table: &Table, change: &dyn Change, base: &Manifest) -> Result<()> {
    match change.began_at() {
        Some(began) if began < base.gc_floor => {
            let message = format!(
                "the write began at version {began}, and a vacuum has since removed what began \
                 before version {}; write again, or vacuum with a longer retention",
                base.gc_floor
            );
            Err(Error::new(ErrorKind::TransactionExpired, message).with_path(table.root()))
        }
        _ => Ok(()),
    }
}

/// What every snapshot has from its commit.
fn stamped(
    table: &Table,
    base: &Manifest,
    next: Manifest,
    operation: Operation,
    commit_id: &CommitId,
) -> Manifest {
    let now = Moment::new(table.store.clock().now());
    let older = base.recent_commits.iter().take(RECENT_COMMITS - 1);
    let recent_commits = [&base.commit_id].into_iter().chain(older);
    Manifest {
        format: FORMAT,
        version: base.version + 1,
        previous: Some(base.version),
        commit_id: commit_id.clone(),
        created_at: now.max(base.created_at.next()),
        operation,
        recent_commits: recent_commits.cloned().collect(),
        ..next
    }
}

async fn attempt(
    table: &Table,
    base: &Snapshot,
    next: Manifest,
    lists: &mut Shortener,
    deadline: Duration,
) -> Result<Attempt> {
    let next = match lists.shorten(table, &base.manifest, next).await {
        Ok(next) => next,
        // A list of a snapshot that is not the newest any more.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Attempt::Lost(None)),
        Err(e) => return Err(e),
    };
    let bytes = next.to_bytes();
    check_readable(table, &bytes, &next)?;
    let path = table.path(&names::manifest(next.version));
    let register = Register::new(&table.store, &path);
    // The same bytes again and again while the outcome is open: they land at most once.
    let created = persistently(table, deadline, || register.create(bytes.clone())).await;
    let winner = match created.map_err(|e| unless_certain(&next.commit_id, e))? {
        CasResult::Won(_) => None,
        CasResult::Conflict(found) => {
            let found =
                Manifest::parse(&found.bytes, next.version).map_err(|e| e.with_path(&path))?;
            Some(successor(base, found)?)
        }
        CasResult::Missing => return Ok(Attempt::Lost(None)),
    };
    // For its owner, too, who may have crashed.
    let target = Pointer::to(winner.as_ref().unwrap_or(&next));
    let moved = persistently(table, deadline, || advance(table, &base.pointer, &target)).await;
    // With our manifest there, whoever comes next moves the pointer on.
    let (pointer, seen) = moved.map_err(|e| match winner {
        None => unknown(&next.commit_id, e),
        Some(_) => unless_certain(&next.commit_id, e),
    })?;
    let committed = if next.version < seen.oldest_version {
        was_ours(table, &next).await?
    } else {
        winner.is_none()
    };
    let is_newest = seen.commit_id == target.commit_id;
    let snapshot = |manifest| Snapshot {
        manifest: Arc::new(manifest),
        pointer,
    };
    Ok(match winner {
        _ if committed => Attempt::Committed(snapshot(next)),
        Some(winner) if is_newest => Attempt::Lost(Some(snapshot(winner))),
        _ => Attempt::Lost(None),
    })
}

/// A manifest that nobody could read would end the table.
fn check_readable(table: &Table, bytes: &Bytes, next: &Manifest) -> Result<()> {
    let length = bytes.len() as u64;
    if length > MAX_MANIFEST_BYTES {
        let message = format!(
            "the manifest would have {length} bytes, more than {MAX_MANIFEST_BYTES}; compact the \
             table"
        );
        return Err(Error::invalid(message).with_path(table.root()));
    }
    Manifest::parse(bytes, next.version).map_err(|e| {
        let message = format!("the commit cannot be written: {}", e.message());
        Error::invalid(message).with_path(table.root())
    })?;
    Ok(())
}

/// The manifest that was made from `base` by somebody else.
fn successor(base: &Snapshot, found: Manifest) -> Result<Manifest> {
    // Where not: left behind by an older table in this place. Of a slot that was emptied and taken
    // again since, the pointer tells.
    if found.recent_commits.first() == Some(&base.manifest.commit_id) {
        return Ok(found);
    }
    let why = "it was not made from the version before it";
    Err(corrupted(&names::manifest(found.version), why))
}

/// Whether a version that has been vacuumed since was this commit. If not, the manifest landed in
/// the slot after the vacuum had emptied it, and is no commit.
async fn was_ours(table: &Table, next: &Manifest) -> Result<bool> {
    let newest = table.newest().await;
    let newest = newest.map_err(|e| unknown(&next.commit_id, e))?;
    let Some(commit_id) = newest.manifest.commit_of(next.version) else {
        let message = "the version is older than any that the newest manifest knows";
        return Err(unknown(&next.commit_id, Error::other(message)));
    };
    Ok(*commit_id == next.commit_id)
}

/// The version that a commit made, None if it made none. A commit whose outcome was unknown may
/// still arrive while its writer's last requests are on their way.
pub async fn was_committed(table: &Table, commit_id: &CommitId) -> Result<Option<u64>> {
    let mut newest = table.newest().await?;
    // A manifest beyond the pointer is a commit already.
    while let Some(next) = table.manifest(newest.manifest.version + 1).await? {
        let next = successor(&newest, next)?;
        advance(table, &newest.pointer, &Pointer::to(&next)).await?;
        newest = table.newest().await?;
    }
    let mut manifest = newest.manifest;
    loop {
        let mut known = (manifest.oldest_known()..=manifest.version).rev();
        if let Some(version) = known.find(|v| manifest.commit_of(*v) == Some(commit_id)) {
            return Ok(Some(version));
        }
        let oldest = manifest.oldest_known();
        if oldest == 1 {
            return Ok(None);
        }
        manifest = table.at(oldest).await?;
    }
}

/// Repeats a conditional write that the store could not answer until `deadline`. Once there was no
/// answer, no other error is certain: what was sent first may still arrive.
async fn persistently<T, F>(table: &Table, deadline: Duration, work: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let clock = table.store.clock();
    let mut open = false;
    loop {
        match work().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                open = true;
                clock.sleep(UNAVAILABLE_PAUSE).await;
            }
            Err(e) if open => return Err(e.with_kind(ErrorKind::Unavailable)),
            done => return done,
        }
    }
}

/// The newest snapshot, asked for until `deadline` while the store cannot answer.
async fn newest(table: &Table, deadline: Duration) -> Result<Snapshot> {
    let clock = table.store.clock();
    loop {
        match table.newest().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                clock.sleep(UNAVAILABLE_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// Moves the pointer on to `target`, unless it is there or further already; gives what it is then.
async fn advance(
    table: &Table,
    from: &VersionedValue,
    target: &Pointer,
) -> Result<(VersionedValue, Pointer)> {
    let path = table.path(names::POINTER);
    let register = Register::new(&table.store, &path);
    let moved = match register.replace(from, target.to_bytes()).await {
        // The same pointer written anew has another version at the store.
        Err(e) if e.kind() == ErrorKind::Unavailable => match register.read().await? {
            Some(now) if now.bytes == from.bytes => {
                register.replace(&now, target.to_bytes()).await?
            }
            _ => return Err(e),
        },
        moved => moved?,
    };
    match moved {
        CasResult::Won(pointer) => Ok((pointer, target.clone())),
        CasResult::Conflict(found) => {
            let pointer = Pointer::parse(&found.bytes).map_err(|e| e.with_path(&path))?;
            if pointer.version >= target.version {
                return Ok((found, pointer));
            }
            Err(replaced(table))
        }
        // Who finds the newest manifest, as everybody does then, finds that of `target`.
        CasResult::Missing => match table.find().await? {
            Some(newest) if newest.manifest.version >= target.version => {
                Ok((newest.pointer, Pointer::to(&newest.manifest)))
            }
            _ => Err(replaced(table)),
        },
    }
}

fn replaced(table: &Table) -> Error {
    let message = "the table was removed or put back to an older state while it was written to";
    Error::new(ErrorKind::CommitConflict, message).with_path(table.root())
}

/// Only what the store could not answer leaves the outcome open.
pub(super) fn unless_certain(commit_id: &CommitId, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unavailable => unknown(commit_id, error),
        _ => error,
    }
}

pub(super) fn unknown(commit_id: &CommitId, cause: Error) -> Error {
    let message = format!(
        "it is not known whether commit {} happened; was_committed({:?}) tells later",
        commit_id.as_str(),
        commit_id.as_str()
    );
    Error::new(ErrorKind::CommitStateUnknown, message)
        .with_detail(commit_id.as_str())
        .with_source(cause)
}
