//! A publisher that is held up so long that another takes its publish over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use pds::clock::{Clock, SystemClock};
use pds::store::Store;
use pds::testing::{faulty_memory, test_store_with_clock};
use pds::{ErrorKind, dataset};

use crate::faults::{KEY, expected_sum, read_sum, write_dataset};

/// More than an overwrite has.
const REQUESTS: usize = 40;

/// How much faster than the world's the test's clocks go.
const SPEED: u32 = 300;

/// A fast clock, which jumps when a test says so.
#[derive(Debug, Default)]
struct FastClock(AtomicU64);

impl FastClock {
    fn advance(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap();
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

#[async_trait]
impl Clock for FastClock {
    fn now(&self) -> DateTime<Utc> {
        SystemClock.now()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() * SPEED + Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    async fn sleep(&self, duration: Duration) {
        SystemClock.sleep(duration / SPEED).await;
    }

    fn new_id(&self) -> u128 {
        SystemClock.new_id()
    }
}

/// Does something to the end, as another process would.
fn run_in_other_thread<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let runtime = tokio::runtime::Handle::current();
    let other = std::thread::spawn(move || runtime.block_on(work()));
    other.join().unwrap();
}

/// An overwrite that gets the answer to one request a minute late, while `other` works on the store;
/// gives whether it was acknowledged, and the rows that are there in the end.
async fn overwrite_with_late_response<F>(
    request: usize,
    other: impl FnOnce(Store) -> F + Send + 'static,
) -> (bool, usize)
where
    F: Future<Output = ()>,
{
    let (objects, clock) = (faulty_memory(), Arc::new(FastClock::default()));
    let slow = test_store_with_clock(&objects, true, Arc::clone(&clock) as _);
    let quick = test_store_with_clock(&objects, true, Arc::new(FastClock::default()));
    write_dataset(&quick, 3, 60_000, false).await.unwrap();
    objects.interrupt(request, move || {
        run_in_other_thread(move || other(quick));
        clock.advance(Duration::from_mins(1));
    });
    let acknowledged = write_dataset(&slow, 5, 45_000, true).await.is_ok();
    let actual = read_sum(&slow).await.unwrap();
    let mut is_complete = false;
    for (seed, rows) in [(3, 60_000), (5, 45_000), (7, 1000)] {
        is_complete |= expected_sum(seed, rows).await == actual;
    }
    assert!(
        is_complete,
        "request {request}: a mixture of {} rows",
        actual.0
    );
    (acknowledged, actual.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_overwrite_finished_by_another_process_is_acknowledged() {
    let (mut finished, mut dropped) = (0, 0);
    for request in 0..REQUESTS {
        let finish = |store: Store| async move {
            dataset::clean(&store, KEY, Duration::MAX).await.unwrap();
        };
        let (acknowledged, rows) = overwrite_with_late_response(request, finish).await;
        assert_eq!(acknowledged, rows == 45_000, "request {request}: {rows}");
        finished += usize::from(acknowledged);
        dropped += usize::from(!acknowledged);
    }
    // A claim that has changed nothing is dropped; whatever has come further is finished.
    assert!(dropped > 0 && finished > dropped, "{finished}, {dropped}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_overwrite_replaced_by_another_process_is_not_acknowledged() {
    let mut replaced = 0;
    for request in 0..REQUESTS {
        let released = Arc::new(AtomicBool::new(true));
        let released_flag = Arc::clone(&released);
        let replace = |store: Store| async move {
            let intent = format!("{KEY}/_publish.json");
            released_flag.store(!store.is_file(&intent).await.unwrap(), Ordering::SeqCst);
            write_dataset(&store, 7, 1000, true).await.unwrap();
        };
        let (acknowledged, rows) = overwrite_with_late_response(request, replace).await;
        // Before its intent or after its end it is a write like any other.
        let is_released = released.load(Ordering::SeqCst);
        assert!(
            is_released || acknowledged == (rows == 45_000),
            "request {request}: {rows} rows"
        );
        replaced += usize::from(!acknowledged);
    }
    assert!(replaced > 3, "superseded only {replaced} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_delete_finished_by_another_process_is_acknowledged() {
    let mut dropped = 0;
    for request in 0..REQUESTS {
        let (objects, clock) = (faulty_memory(), Arc::new(FastClock::default()));
        let slow = test_store_with_clock(&objects, true, Arc::clone(&clock) as _);
        let quick = test_store_with_clock(&objects, true, Arc::new(FastClock::default()));
        write_dataset(&quick, 3, 60_000, false).await.unwrap();
        objects.interrupt(request, move || {
            run_in_other_thread(|| async move {
                dataset::clean(&quick, KEY, Duration::MAX).await.unwrap();
            });
            clock.advance(Duration::from_mins(1));
        });
        let deleted = dataset::delete(&slow, KEY).await;
        let remaining = slow.list(KEY).await.unwrap();
        if let Err(e) = deleted {
            // Only its claim was there, and was dropped.
            assert_eq!(e.kind(), ErrorKind::Fenced, "request {request}: {e}");
            assert_eq!(
                read_sum(&slow).await.unwrap(),
                expected_sum(3, 60_000).await
            );
            dropped += 1;
        } else {
            assert!(remaining.is_empty(), "request {request}: {remaining:?}");
        }
    }
    assert!(dropped < 10, "{dropped} deletions were dropped");
}
