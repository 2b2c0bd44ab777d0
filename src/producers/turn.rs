//! Whose turn it is among the updates of one pipeline, of which any two conflict.
//!
//! Short updates would come before the commit of a long one again and again. So an update that lost a race takes the
//! turn: it writes the object [`names::TURN`], writes it again each [`RENEWAL`] while it plans, and removes it at its end.
//! Others look for the object before they read what they begin with, and wait while its value changes; then they take
//! the turn themselves.
//!
//! That is advice: whether a commit counts is decided by the pointer alone. What is lost of these requests, or arrives
//! late, costs a writer time:
//!
//! | what happens | what it costs |
//! | --- | --- |
//! | the holder is killed | nothing on its host, elsewhere a wait of [`LEASE`]; then another takes the turn |
//! | a renewal or a write of the object arrives after its removal | the same |
//! | a removal arrives after another has taken the turn | nobody waits for that one |
//! | two see the same abandoned object | one replaces it, the other one waits |
//! | the holder is suspended for longer than the lease | another takes the turn, which the first finds at its renewal |
//! | the object cannot be read or written | nobody waits |
//! | a writer waits until its timeout | it fails with [`ErrorKind::CommitConflict`] |
//!
//! Times are those of one process each; the object has none.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use serde::{Deserialize, Serialize};

use super::{Pipeline, names};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;
use crate::store::cas::{CasResult, Register, VersionedValue};
use crate::store::process_id::ProcessId;

/// How long a value that does not change is waited for.
const LEASE: Duration = Duration::from_secs(20);
/// How often the holder writes a new value.
const RENEWAL: Duration = Duration::from_secs(5);
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(500);
const MAX_BYTES: u64 = 4096;

/// The value of the object.
#[derive(Debug, Serialize, Deserialize)]
struct Claim {
    /// The update that has the turn.
    update: String,
    /// How often it has written the object.
    renewal: u64,
    /// Where the update runs.
    process: ProcessId,
}

/// The turn of one update, which may have it.
pub(super) struct Turn {
    store: Store,
    path: String,
    update: String,
    renewal: u64,
    held: Option<VersionedValue>,
}

impl Turn {
    pub(super) fn new(pipeline: &Pipeline) -> Self {
        let store = pipeline.store().clone();
        Self {
            path: pipeline.path(names::TURN),
            update: format!("{:032x}", store.clock().new_id()),
            renewal: 0,
            held: None,
            store,
        }
    }

    /// Whether another update has the turn.
    pub(super) async fn is_taken(&self) -> bool {
        let value = self.register().read_at_most(MAX_BYTES).await;
        matches!(value, Ok(Some(value)) if !is_abandoned(&value))
    }

    /// Takes the turn, or waits for it until `deadline`. Returns whether it has waited.
    pub(super) async fn take(&mut self, deadline: Duration) -> Result<bool> {
        let clock = Arc::clone(self.store.clock());
        let (mut pause, mut has_waited) = (MIN_PAUSE, false);
        let mut unchanged: Option<(Bytes, Duration)> = None;
        while self.held.is_none() {
            let now = clock.monotonic();
            let Ok(current) = self.register().read_at_most(MAX_BYTES).await else {
                return Ok(has_waited);
            };
            let is_over = current.as_ref().is_none_or(|value| {
                let since = unchanged
                    .as_ref()
                    .filter(|(bytes, _)| *bytes == value.bytes);
                is_abandoned(value) || since.is_some_and(|(_, since)| now >= *since + LEASE)
            });
            if is_over && !self.write(current.as_ref()).await {
                return Ok(has_waited);
            }
            if self.held.is_none() {
                if now >= deadline {
                    return Err(self.timeout_error());
                }
                if let Some(value) = current
                    && unchanged
                        .as_ref()
                        .is_none_or(|(bytes, _)| *bytes != value.bytes)
                {
                    unchanged = Some((value.bytes, now));
                }
                let fraction = u32::try_from(clock.new_id() % 1024).unwrap_or(0);
                clock.sleep(pause / 2 + pause * fraction / 2048).await;
                pause = (pause * 2).min(MAX_PAUSE);
                has_waited = true;
            }
        }
        Ok(has_waited)
    }

    /// Runs `work`; keeps the turn meanwhile, if this update has it.
    pub(super) async fn keep_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        if self.held.is_none() {
            return work.await;
        }
        let clock = Arc::clone(self.store.clock());
        let renew = async {
            while let Some(held) = self.held.clone() {
                clock.sleep(RENEWAL).await;
                self.write(Some(&held)).await;
            }
            futures::future::pending::<()>().await;
        };
        match select(std::pin::pin!(work), std::pin::pin!(renew)).await {
            Either::Left((done, _)) => done,
            Either::Right(((), _)) => unreachable!("renewals do not end"),
        }
    }

    /// Gives the turn back.
    pub(super) async fn give_back(&mut self) {
        if self.held.take().is_some() {
            remove(&self.store, &self.path).await;
        }
    }

    /// Writes a new value in the place of `current`. If another did, this update does not have the turn. Returns whether
    /// the store answered.
    async fn write(&mut self, current: Option<&VersionedValue>) -> bool {
        self.renewal += 1;
        let claim = Claim {
            update: self.update.clone(),
            renewal: self.renewal,
            process: ProcessId::current(),
        };
        let Ok(bytes) = serde_json::to_vec(&claim) else {
            return false;
        };
        let register = self.register();
        let written = match current {
            Some(current) => register.replace(current, bytes.into()).await,
            None => register.create(bytes.into()).await,
        };
        match written {
            Ok(CasResult::Won(value)) => self.held = Some(value),
            Ok(CasResult::Conflict(_) | CasResult::Missing) => self.held = None,
            Err(e) => {
                log::info!("{} could not be written: {e}", self.path);
                return false;
            }
        }
        true
    }

    fn register(&self) -> Register<'_> {
        Register::new(&self.store, &self.path)
    }

    fn timeout_error(&self) -> Error {
        let message = "gave up: another update, which had lost a race before, was under way until the timeout; nothing was \
                       committed, try again or raise commit_timeout";
        Error::new(ErrorKind::CommitConflict, message).with_path(&self.path)
    }
}

impl Drop for Turn {
    /// What is cancelled gives the turn back, too.
    fn drop(&mut self) {
        if self.held.is_none() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (store, path) = (self.store.clone(), self.path.clone());
        runtime.spawn(async move { remove(&store, &path).await });
    }
}

async fn remove(store: &Store, path: &str) {
    if let Err(e) = store.delete(path).await {
        log::info!("{path} could not be removed: {e}");
    }
}

/// Whether the process that wrote a value has certainly ended.
fn is_abandoned(value: &VersionedValue) -> bool {
    serde_json::from_slice(&value.bytes).is_ok_and(|claim: Claim| claim.process.is_dead())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use async_trait::async_trait;
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::testing::{faulty_memory, test_store_with_clock};

    /// Time passes only while somebody sleeps.
    #[derive(Debug, Default)]
    struct SleepClock(AtomicU64);

    #[async_trait]
    impl Clock for SleepClock {
        fn now(&self) -> DateTime<Utc> {
            SystemClock.now()
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::SeqCst))
        }

        async fn sleep(&self, duration: Duration) {
            let end = self.monotonic() + duration;
            while self.monotonic() < end {
                self.0.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }

        fn new_id(&self) -> u128 {
            SystemClock.new_id()
        }
    }

    fn pipeline() -> Pipeline {
        let clock = Arc::new(SleepClock::default());
        let store = test_store_with_clock(&faulty_memory(), true, clock);
        Pipeline::new(store, "p").unwrap()
    }

    const LONG: Duration = Duration::from_hours(1);

    /// Writes the object as a process of another host does.
    async fn claim_elsewhere(pipeline: &Pipeline, renewal: u64) {
        let host = "other".to_owned();
        let process = ProcessId {
            host,
            ..ProcessId::current()
        };
        let claim = Claim {
            update: "u".to_owned(),
            renewal,
            process,
        };
        let value = serde_json::to_vec(&claim).unwrap();
        let (store, path) = (pipeline.store(), pipeline.path(names::TURN));
        let mode = object_store::PutMode::Overwrite;
        store.put(&path, value.into(), mode).await.unwrap();
    }

    #[tokio::test]
    async fn one_waits_until_the_other_gives_the_turn_back() {
        let pipeline = pipeline();
        let (mut first, mut second) = (Turn::new(&pipeline), Turn::new(&pipeline));
        assert!(!first.is_taken().await);
        assert!(!first.take(LONG).await.unwrap());
        assert!(!first.take(LONG).await.unwrap(), "it has the turn");
        assert!(second.is_taken().await);
        let clock = Arc::clone(pipeline.store().clock());
        let first_works = async {
            first.keep_during(clock.sleep(LEASE * 5)).await;
            let ended = clock.monotonic();
            first.give_back().await;
            ended
        };
        let (ended, waited) = futures::future::join(first_works, second.take(LONG)).await;
        assert!(ended >= LEASE * 5 && clock.monotonic() >= ended);
        assert!(waited.unwrap());
        second.give_back().await;
        assert!(!first.is_taken().await);
    }

    #[tokio::test]
    async fn a_holder_that_does_not_go_on_is_waited_for_once() {
        let pipeline = pipeline();
        claim_elsewhere(&pipeline, 1).await;
        let clock = Arc::clone(pipeline.store().clock());
        let mut turn = Turn::new(&pipeline);
        assert!(turn.is_taken().await);
        let renews = async {
            clock.sleep(LEASE / 2).await;
            claim_elsewhere(&pipeline, 2).await;
        };
        let (waited, ()) = futures::future::join(turn.take(LONG), renews).await;
        assert!(waited.unwrap());
        let elapsed = clock.monotonic();
        assert!(
            elapsed > LEASE * 5 / 4 && elapsed < LEASE * 2,
            "{elapsed:?}"
        );
        turn.give_back().await;
        assert!(!Turn::new(&pipeline).take(LONG).await.unwrap());
    }

    #[tokio::test]
    async fn a_wait_ends_by_the_timeout() {
        let pipeline = pipeline();
        claim_elsewhere(&pipeline, 1).await;
        let error = Turn::new(&pipeline).take(LEASE / 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::CommitConflict);
        assert!(error.message().contains("commit_timeout"), "{error}");
    }

    #[tokio::test]
    async fn one_who_lost_the_turn_does_not_keep_it() {
        let pipeline = pipeline();
        let mut turn = Turn::new(&pipeline);
        turn.take(LONG).await.unwrap();
        claim_elsewhere(&pipeline, 1).await;
        let clock = Arc::clone(pipeline.store().clock());
        turn.keep_during(clock.sleep(RENEWAL * 2)).await;
        turn.give_back().await;
        assert!(turn.is_taken().await, "it is the other one's");
    }

    #[tokio::test]
    async fn what_is_no_claim_is_waited_for_like_one() {
        let pipeline = pipeline();
        let path = pipeline.path(names::TURN);
        let mode = object_store::PutMode::Overwrite;
        pipeline
            .store()
            .put(&path, Bytes::from_static(b"?"), mode)
            .await
            .unwrap();
        let mut turn = Turn::new(&pipeline);
        assert!(turn.is_taken().await);
        assert!(turn.take(LONG).await.unwrap());
    }
}
