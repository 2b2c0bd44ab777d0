//! A lease among the updates of one pipeline, of which any two conflict.
//!
//! Short updates would overtake a long one each time. So an update that lost a race acquires the lease: it writes the
//! object [`names::UPDATE_LEASE`], writes it again each [`RENEWAL`] while it plans, and removes it at its end. Others
//! look for the object before they read what they begin with, and wait while its value changes; then they acquire the
//! lease themselves.
//!
//! That is advice: whether a commit counts is decided by the pointer alone. What is lost of these requests, or arrives
//! late, costs a writer time:
//!
//! | what happens | what it costs |
//! | --- | --- |
//! | the holder is killed | nothing on its host, elsewhere a wait of [`LEASE`]; then another acquires the lease |
//! | a renewal or a write of the object arrives after its removal | the same |
//! | the holder is suspended for longer than the lease, or hangs (see [`MIN_HOLD`]) | the same |
//! | a removal arrives after another has acquired the lease | nothing: it is for a version of the object |
//! | two see the same abandoned object | one replaces it, the other one waits |
//! | an answer is lost | the holder knows its claim by the id of its update |
//! | the object cannot be read or written, or not within [`ANSWER`] | this update neither waits nor acquires the lease |
//! | a renewal fails | it is tried again after [`RENEWAL`] |
//! | a wait reaches its deadline | [`ErrorKind::CommitConflict`] if it saw the value change, else it goes on |
//!
//! Times are those of one process each; the object has none. How long a value has not changed is kept for all updates of
//! a process, of which each may wait for less than the lease. A pause between two looks counts for a second at most: the
//! machine may have slept.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use super::{Pipeline, names};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, VersionedValue};
use crate::store::process_id::ProcessId;
use crate::store::{SendLimit, Store};
use crate::sync::mutex::lock;

/// How long a value that does not change is waited for.
const LEASE: Duration = Duration::from_secs(20);
/// How often the holder writes a new value.
const RENEWAL: Duration = Duration::from_secs(5);
/// For how long it does at least; else four times as long as its last plan took. A function that hangs must not stop
/// others.
const MIN_HOLD: Duration = Duration::from_mins(1);
/// How long an answer is waited for.
const ANSWER: Duration = Duration::from_secs(5);
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// What counts of the time between two looks.
const MAX_CREDIT: Duration = Duration::from_secs(1);
const MAX_BYTES: u64 = 4096;

/// The value of the object.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    /// The update that has the lease.
    update: String,
    /// How often it has written the object.
    renewal: u64,
    /// Where the update runs.
    process: ProcessId,
}

/// The value that a process saw last, and for how long it has not changed.
#[derive(Debug, Default)]
struct LastSeen {
    value: Bytes,
    seen_at: Duration,
    unchanged: Duration,
}

/// The lease of one update, which may hold it.
pub(super) struct UpdateLease {
    store: Store,
    path: String,
    update: String,
    renewal: u64,
    held: Option<VersionedValue>,
    written_at: Duration,
    /// A claim of this update may be there.
    may_be_there: bool,
    /// The store did not answer as it should: the update goes on without.
    is_given_up: bool,
    last_seen: Arc<Mutex<LastSeen>>,
    last_plan: Duration,
}

impl UpdateLease {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let store = pipeline.store().clone();
        let path = pipeline.path(names::UPDATE_LEASE);
        Self {
            update: format!("{:032x}", store.clock().new_id()),
            renewal: 0,
            held: None,
            written_at: Duration::ZERO,
            may_be_there: false,
            is_given_up: false,
            last_seen: store.shared_state(&path),
            last_plan: Duration::ZERO,
            path,
            store,
        }
    }

    /// Whether another update has the lease.
    pub(super) async fn is_held_by_other(&self) -> bool {
        matches!(self.read().await, Ok(Some(value)) if !is_abandoned(&value))
    }

    /// Acquires the lease, or waits for it until `deadline`. Returns whether it has waited.
    pub(super) async fn acquire(&mut self, deadline: Duration) -> Result<bool> {
        let clock = Arc::clone(self.store.clock());
        let (mut pause, mut has_waited) = (MIN_PAUSE, false);
        let (mut seen, mut is_alive): (Option<Bytes>, bool) = (None, false);
        if let Some(held) = self.held.clone()
            && clock.monotonic() >= self.written_at + RENEWAL
        {
            // Another may have acquired it since.
            self.held = None;
            self.is_given_up = self.write(Some(&held)).await.is_err();
        }
        while self.held.is_none() && !self.is_given_up {
            let Ok(current) = self.read().await else {
                self.is_given_up = true;
                break;
            };
            let now = clock.monotonic();
            let is_over = match &current {
                None => true,
                Some(value) => {
                    is_alive |= seen
                        .replace(value.bytes.clone())
                        .is_some_and(|s| s != value.bytes);
                    is_abandoned(value) || self.unchanged_for(value, now) >= LEASE
                }
            };
            if is_over {
                self.is_given_up = self.write(current.as_ref()).await.is_err();
                if self.held.is_some() || self.is_given_up {
                    break;
                }
            }
            if now >= deadline {
                if is_alive {
                    return Err(self.timeout_error());
                }
                break;
            }
            let fraction = u32::try_from(clock.new_id() % 1024).unwrap_or(0);
            let pause_now = pause / 2 + pause * fraction / 2048;
            clock
                .sleep(pause_now.min(deadline.saturating_sub(now)))
                .await;
            pause = (pause * 2).min(MAX_PAUSE);
            has_waited = true;
        }
        Ok(has_waited)
    }

    /// Runs a plan; renews the lease meanwhile, if this update has it.
    pub(super) async fn renew_during<T>(&mut self, plan: impl Future<Output = T>) -> T {
        let clock = Arc::clone(self.store.clock());
        let started_at = clock.monotonic();
        let renew = async {
            let end = started_at + MIN_HOLD.max(self.last_plan * 4);
            while let Some(held) = self.held.clone()
                && clock.monotonic() < end
            {
                let due = self.written_at + RENEWAL;
                clock.sleep(due.saturating_sub(clock.monotonic())).await;
                // After an error it is tried again at the next renewal.
                if self.write(Some(&held)).await.is_ok() && self.held.is_none() {
                    // Its object may have been removed.
                    let _ = self.write(None).await;
                }
            }
            futures::future::pending::<()>().await;
        };
        let planned = match select(std::pin::pin!(plan), std::pin::pin!(renew)).await {
            Either::Left((planned, _)) => planned,
            Either::Right(((), _)) => unreachable!("renewals do not end"),
        };
        self.last_plan = clock.monotonic().saturating_sub(started_at);
        planned
    }

    /// Releases the lease.
    pub(super) async fn release(&mut self) {
        if self.may_be_there {
            remove_claim(&self.limited(), &self.path, &self.update).await;
        }
        self.may_be_there = false;
        self.held = None;
    }

    /// How long a value has not changed.
    fn unchanged_for(&self, value: &VersionedValue, now: Duration) -> Duration {
        let mut last = lock(&self.last_seen);
        if last.value == value.bytes {
            let elapsed = now.saturating_sub(last.seen_at);
            last.unchanged += elapsed.min(MAX_CREDIT);
        } else {
            last.value = value.bytes.clone();
            last.unchanged = Duration::ZERO;
        }
        last.seen_at = now;
        last.unchanged
    }

    async fn read(&self) -> Result<Option<VersionedValue>> {
        let store = self.limited();
        let register = Register::new(&store, &self.path);
        register.read_at_most(MAX_BYTES).await
    }

    /// Writes a new value in the place of `current`. Then this update holds the lease, unless another acquired it.
    async fn write(&mut self, current: Option<&VersionedValue>) -> Result<()> {
        self.renewal += 1;
        let claim = Claim {
            update: self.update.clone(),
            renewal: self.renewal,
            process: ProcessId::current(),
        };
        let bytes = Bytes::from(serde_json::to_vec(&claim).unwrap_or_default());
        let store = self.limited();
        let register = Register::new(&store, &self.path);
        self.may_be_there = true;
        self.written_at = store.clock().monotonic();
        let written = match current {
            Some(current) => register.replace(current, bytes).await,
            None => register.create(bytes).await,
        };
        self.held = match written {
            Ok(CasResult::Won(value)) => Some(value),
            // The answer to an earlier write of this update may have been lost.
            Ok(CasResult::Conflict(value)) if is_claim_of(&value, &self.update) => Some(value),
            Ok(CasResult::Conflict(_) | CasResult::Missing) => None,
            Err(e) => {
                log::info!("{} could not be written: {e}", self.path);
                return Err(e);
            }
        };
        Ok(())
    }

    /// The store, which does not wait long for an answer: an update does not need it.
    fn limited(&self) -> Store {
        self.store.with_send_limit(SendLimit {
            deadline: Some(self.store.clock().monotonic() + ANSWER),
            ..SendLimit::default()
        })
    }

    fn timeout_error(&self) -> Error {
        let message = "gave up: other updates, which had lost races before, were under way until the timeout; nothing was \
                       committed, try again or raise commit_timeout";
        Error::new(ErrorKind::CommitConflict, message).with_path(&self.path)
    }
}

impl Drop for UpdateLease {
    /// What is cancelled releases the lease, too, if its runtime goes on.
    fn drop(&mut self) {
        if !self.may_be_there {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (store, path) = (self.limited(), std::mem::take(&mut self.path));
        let update = std::mem::take(&mut self.update);
        runtime.spawn(async move { remove_claim(&store, &path, &update).await });
    }
}

/// Removes the object if the claim is that of an update.
async fn remove_claim(store: &Store, path: &str, update: &str) {
    let removed = match Register::new(store, path).read_at_most(MAX_BYTES).await {
        Ok(Some(value)) if is_claim_of(&value, update) => {
            let deleted = store.delete_unchanged(path, value.e_tag()).await;
            deleted.map(|_| ())
        }
        read => read.map(|_| ()),
    };
    if let Err(e) = removed {
        log::info!("{path} could not be removed: {e}");
    }
}

fn parse(value: &VersionedValue) -> Option<Claim> {
    serde_json::from_slice(&value.bytes).ok()
}

fn is_claim_of(value: &VersionedValue, update: &str) -> bool {
    parse(value).is_some_and(|claim| claim.update == update)
}

/// Whether the process that wrote a value has certainly ended.
fn is_abandoned(value: &VersionedValue) -> bool {
    parse(value).is_some_and(|claim| claim.process.is_dead())
}

#[cfg(test)]
mod tests;
