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
    let (store, path) = (pipeline.store(), pipeline.path(names::UPDATE_LEASE));
    let mode = object_store::PutMode::Overwrite;
    store.put(&path, value.into(), mode).await.unwrap();
}

#[tokio::test]
async fn one_waits_until_the_other_releases_the_lease() {
    let pipeline = pipeline();
    let (mut first, mut second) = (UpdateLease::new(&pipeline), UpdateLease::new(&pipeline));
    assert!(!first.is_held_by_other().await);
    assert!(!first.acquire(LONG).await.unwrap());
    assert!(!first.acquire(LONG).await.unwrap(), "it holds the lease");
    assert!(second.is_held_by_other().await);
    let clock = Arc::clone(pipeline.store().clock());
    let first_works = async {
        first.renew_during(clock.sleep(LEASE * 5)).await;
        let ended = clock.monotonic();
        first.release().await;
        ended
    };
    let (ended, waited) = futures::future::join(first_works, second.acquire(LONG)).await;
    assert!(ended >= LEASE * 5 && clock.monotonic() >= ended);
    assert!(waited.unwrap());
    second.release().await;
    assert!(!first.is_held_by_other().await);
}

#[tokio::test]
async fn a_holder_that_does_not_go_on_is_waited_for_once() {
    let pipeline = pipeline();
    claim_elsewhere(&pipeline, 1).await;
    let clock = Arc::clone(pipeline.store().clock());
    let mut lease = UpdateLease::new(&pipeline);
    assert!(lease.is_held_by_other().await);
    let renews = async {
        clock.sleep(LEASE / 2).await;
        claim_elsewhere(&pipeline, 2).await;
    };
    let (waited, ()) = futures::future::join(lease.acquire(LONG), renews).await;
    assert!(waited.unwrap());
    let elapsed = clock.monotonic();
    assert!(
        elapsed > LEASE * 5 / 4 && elapsed < LEASE * 2,
        "{elapsed:?}"
    );
    lease.release().await;
    assert!(!UpdateLease::new(&pipeline).acquire(LONG).await.unwrap());
}

#[tokio::test]
async fn a_wait_for_one_who_goes_on_ends_by_the_timeout() {
    let pipeline = pipeline();
    let clock = Arc::clone(pipeline.store().clock());
    claim_elsewhere(&pipeline, 1).await;
    let renews = async {
        clock.sleep(LEASE / 4).await;
        claim_elsewhere(&pipeline, 2).await;
    };
    let mut lease = UpdateLease::new(&pipeline);
    let (ended, ()) = futures::future::join(lease.acquire(LEASE / 2), renews).await;
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitConflict);
    assert!(error.message().contains("commit_timeout"), "{error}");
}

#[tokio::test]
async fn short_timeouts_end_the_wait_for_one_who_does_not_go_on() {
    let pipeline = pipeline();
    claim_elsewhere(&pipeline, 1).await;
    let clock = Arc::clone(pipeline.store().clock());
    let mut takes = 0;
    loop {
        // Each goes on without the lease, like an update of which nobody is in the way.
        let mut lease = UpdateLease::new(&pipeline);
        lease.acquire(clock.monotonic() + LEASE / 8).await.unwrap();
        takes += 1;
        if lease.held.is_some() {
            break;
        }
    }
    assert!((8..=10).contains(&takes), "{takes}");
    assert!(
        !UpdateLease::new(&pipeline)
            .acquire(Duration::ZERO)
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn a_plan_that_hangs_loses_the_lease() {
    let pipeline = pipeline();
    let mut hangs = UpdateLease::new(&pipeline);
    hangs.acquire(LONG).await.unwrap();
    let mut other = UpdateLease::new(&pipeline);
    let never = std::future::pending::<()>();
    let hung = std::pin::pin!(hangs.renew_during(never));
    let waits = std::pin::pin!(other.acquire(LONG));
    let ended = select(hung, waits).await;
    assert!(matches!(ended, Either::Right((Ok(true), _))));
    let elapsed = pipeline.store().clock().monotonic();
    assert!(elapsed < MIN_HOLD + LEASE * 2, "{elapsed:?}");
}

#[tokio::test]
async fn one_who_lost_the_lease_waits_for_it_again() {
    let pipeline = pipeline();
    let clock = Arc::clone(pipeline.store().clock());
    let mut lease = UpdateLease::new(&pipeline);
    lease.acquire(LONG).await.unwrap();
    clock.sleep(LEASE * 2).await;
    claim_elsewhere(&pipeline, 1).await;
    assert!(lease.acquire(LONG).await.unwrap());
    // What is removed by a late request is written again.
    let (store, path) = (pipeline.store(), pipeline.path(names::UPDATE_LEASE));
    store.delete(&path).await.unwrap();
    lease.renew_during(clock.sleep(RENEWAL * 2)).await;
    assert!(lease.is_held_by_other().await);
}

#[tokio::test]
async fn an_own_claim_is_known_whatever_was_answered() {
    let pipeline = pipeline();
    let mut lease = UpdateLease::new(&pipeline);
    lease.acquire(LONG).await.unwrap();
    let before = lease.held.clone().unwrap();
    lease.write(Some(&before)).await.unwrap();
    // As if the answer had been lost.
    lease.write(Some(&before)).await.unwrap();
    assert!(lease.held.is_some());
    drop(lease);
    let clock = Arc::clone(pipeline.store().clock());
    clock.sleep(Duration::from_millis(100)).await;
    assert!(
        !UpdateLease::new(&pipeline).is_held_by_other().await,
        "it is removed by the drop"
    );
}

#[tokio::test]
async fn one_who_lost_the_lease_does_not_keep_it() {
    let pipeline = pipeline();
    let mut lease = UpdateLease::new(&pipeline);
    lease.acquire(LONG).await.unwrap();
    claim_elsewhere(&pipeline, 1).await;
    let clock = Arc::clone(pipeline.store().clock());
    lease.renew_during(clock.sleep(RENEWAL * 2)).await;
    lease.release().await;
    assert!(lease.is_held_by_other().await, "it is the other one's");
}

#[tokio::test]
async fn what_is_no_claim_is_waited_for_like_one() {
    let pipeline = pipeline();
    let path = pipeline.path(names::UPDATE_LEASE);
    let mode = object_store::PutMode::Overwrite;
    pipeline
        .store()
        .put(&path, Bytes::from_static(b"?"), mode)
        .await
        .unwrap();
    let mut lease = UpdateLease::new(&pipeline);
    assert!(lease.is_held_by_other().await);
    assert!(lease.acquire(LONG).await.unwrap());
}
