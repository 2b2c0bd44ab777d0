//! What a caller learns of a change of a chain whose answer was lost.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use pds::attach::attach_table;
use pds::clock::{Clock, SystemClock};
use pds::odf::{Block, Chain, DatasetId, DatasetKind, Multihash, compact, ingest, verify};
use pds::store::Store;
use pds::table::Table;
use pds::testing::{
    Fault, FaultKind, FaultTiming, FaultyStore, faulty_memory, test_store, test_store_with_clock,
};
use pds::versions::commit::DEFAULT_TIMEOUT;
use pds::{ErrorKind, Result};
use serde_json::json;

use crate::odf::{create_chain, ingest_options, rows};
use crate::odf_attach::{add_column, create_table};

const DAY: Duration = Duration::from_hours(24);

/// The system's clock, set forward.
#[derive(Debug, Default)]
pub(crate) struct OffsetClock {
    /// How far the time of day is ahead.
    pub(crate) seconds_ahead: AtomicI64,
    /// How long the process was suspended.
    suspended_seconds: AtomicU64,
}

impl OffsetClock {
    pub(crate) fn suspend(&self, time: Duration) {
        let seconds = time.as_secs();
        self.suspended_seconds.fetch_add(seconds, Ordering::SeqCst);
    }

    fn suspended(&self) -> Duration {
        Duration::from_secs(self.suspended_seconds.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Clock for OffsetClock {
    fn now(&self) -> DateTime<Utc> {
        let ahead = TimeDelta::seconds(self.seconds_ahead.load(Ordering::SeqCst));
        SystemClock.now() + ahead + self.suspended()
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic() + self.suspended()
    }

    async fn sleep(&self, duration: Duration) {
        SystemClock.sleep(duration).await;
    }

    fn new_id(&self) -> u128 {
        SystemClock.new_id()
    }
}

/// Runs work to its end on another thread, as another process would.
pub(crate) fn run_elsewhere<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    std::thread::spawn(move || runtime().block_on(work()))
        .join()
        .unwrap();
}

/// The store answers the head's condition, and no more request after the head was read.
const NO_BLOCKS: Fault = Fault {
    request: 1,
    timing: FaultTiming::Before,
    kind: FaultKind::Unavailable,
    is_persistent: true,
};

#[tokio::test]
async fn a_create_that_cannot_be_resolved_is_reported_as_unknown() {
    let mut unknown = 0;
    for request in 0..20 {
        let objects = faulty_memory();
        let other = Arc::new(FaultyStore::new(Arc::clone(objects.inner())));
        let chain = Chain::new(test_store(&objects, true), "d").unwrap();
        let other_chain = Chain::new(test_store(&other, true), "d").unwrap();
        let (concurrent, failing) = (other_chain.clone(), Arc::clone(&objects));
        objects.interrupt_and_drop_response(request, FaultKind::Conflict, move || {
            run_elsewhere(move || async move {
                if concurrent.head().await.unwrap().is_some() {
                    let info = json!({"kind": "SetInfo", "description": "x"});
                    concurrent.append(&[info], DEFAULT_TIMEOUT).await.unwrap();
                    failing.set_fault(Some(NO_BLOCKS));
                }
            });
        });
        let id = DatasetId::generate().unwrap().id;
        let result = chain.create(&id, DatasetKind::Root, None).await;
        let exists = other_chain.head().await.unwrap().is_some();
        match result {
            Ok(()) => assert!(exists, "request {request}"),
            Err(e) if e.kind() == ErrorKind::CommitStateUnknown => unknown += 1,
            Err(e) => assert!(!exists, "request {request}: {e}, and the dataset is there"),
        }
    }
    assert_eq!(unknown, 1);
}

/// The changes of a chain.
#[derive(Debug, Clone, Copy)]
enum Operation {
    Append,
    Ingest,
    Compact,
    Attach,
}

/// A store with a table, its chain, and a dataset of two slices.
async fn fill(store: &Store) {
    let table = create_table(store).await;
    attach_table(&table, DEFAULT_TIMEOUT).await.unwrap();
    add_column(&table, "a").await;
    let chain = create_chain(store).await;
    for from in [0, 10] {
        ingest(&chain, rows(from, 3), &ingest_options())
            .await
            .unwrap();
    }
}

/// The chain that an operation changes.
fn target(operation: Operation, store: &Store) -> Chain {
    let path = match operation {
        Operation::Attach => "lake/t/_odf",
        _ => "data/weather",
    };
    Chain::new(store.clone(), path).unwrap()
}

async fn run_operation(operation: Operation, store: &Store) -> Result<()> {
    let chain = target(operation, store);
    let options = ingest_options();
    match operation {
        Operation::Append => {
            let info = json!({"kind": "SetInfo", "description": "x"});
            chain.append(&[info], DEFAULT_TIMEOUT).await.map(drop)
        }
        Operation::Ingest => ingest(&chain, rows(20, 3), &options).await.map(drop),
        Operation::Compact => {
            let write_options = &options.write_options;
            let compaction = compact(&chain, u64::MAX, write_options, DEFAULT_TIMEOUT);
            compaction.await.map(drop)
        }
        Operation::Attach => {
            let table = Table::new(store.clone(), "lake/t").unwrap();
            attach_table(&table, DEFAULT_TIMEOUT).await.map(drop)
        }
    }
}

#[tokio::test]
async fn no_head_is_moved_after_a_vacuum_may_have_removed_its_blocks() {
    for operation in [
        Operation::Append,
        Operation::Ingest,
        Operation::Compact,
        Operation::Attach,
    ] {
        let mut refused = 0;
        for request in 0.. {
            let Some(was_refused) = suspend_at(request, operation).await else {
                break;
            };
            refused += usize::from(was_refused);
        }
        assert!(refused > 1, "{operation:?}");
    }
}

/// Suspends a process for two days at one of its requests. Whether the operation was refused; None if there was no
/// such request.
async fn suspend_at(request: usize, operation: Operation) -> Option<bool> {
    let (objects, clock) = (faulty_memory(), Arc::new(OffsetClock::default()));
    let store = test_store_with_clock(&objects, true, Arc::clone(&clock) as _);
    fill(&store).await;
    let other_objects = Arc::new(FaultyStore::new(Arc::clone(objects.inner())));
    let chain = target(operation, &test_store(&other_objects, true));
    let (reader, seen) = (chain.clone(), Arc::new(Mutex::new(None)));
    let noted = Arc::clone(&seen);
    objects.interrupt(request, move || {
        clock.suspend(2 * DAY);
        run_elsewhere(move || async move {
            let objects = list_objects(&reader).await;
            *noted.lock().unwrap() = Some((head_of(&reader).await, objects));
        });
    });
    let result = run_operation(operation, &store).await;
    let (head_then, objects_then) = seen.lock().unwrap().take()?;
    let context = format!(
        "request {request}, {operation:?}: {:?}",
        result.as_ref().err()
    );
    // What the head was moved to after that was not there when the process was suspended.
    let head = head_of(&chain).await;
    let new_blocks = chain
        .blocks_back_from(&head, Some(&head_then), usize::MAX)
        .await;
    for block in new_blocks.unwrap() {
        let slice = block.event().slice().unwrap();
        let names = [Some(block.hash()), slice.map(|slice| &slice.physical_hash)];
        for name in names.into_iter().flatten() {
            assert!(
                !objects_then.contains(&name.to_string()),
                "{context}: {name}"
            );
        }
    }
    let was_refused = result.is_err_and(|e| {
        assert_eq!(e.kind(), ErrorKind::TransactionExpired, "{context}");
        true
    });
    Some(was_refused)
}

async fn head_of(chain: &Chain) -> Multihash {
    chain.head().await.unwrap().unwrap().hash
}

#[tokio::test]
async fn no_block_that_a_write_left_behind_is_used_later() {
    for operation in [Operation::Append, Operation::Attach] {
        let objects = faulty_memory();
        let store = test_store(&objects, true);
        fill(&store).await;
        let chain = target(operation, &store);
        // The newest block is from a writer whose clock is ahead, so new blocks have its time.
        let (head, state) = chain.state().await.unwrap();
        let tip = state.tip.clone().unwrap();
        let time = tip.system_time + DAY;
        let license = json!({
            "kind": "SetLicense", "shortName": "a", "name": "b", "websiteUrl": "https://example.com",
        });
        let block = Block::new(time, Some(&head.hash), tip.sequence_number + 1, &license).unwrap();
        chain.append_block(block).await.unwrap();
        let objects_at_start = list_objects(&chain).await;
        let mut existing = objects_at_start.clone();
        for request in 0.. {
            if existing.len() > objects_at_start.len() {
                break;
            }
            objects.set_fault(Some(Fault {
                request,
                timing: FaultTiming::Before,
                kind: FaultKind::Unavailable,
                is_persistent: true,
            }));
            let stopped = run_operation(operation, &store).await;
            objects.set_fault(None);
            assert!(stopped.is_err(), "{operation:?}: no block was left behind");
            existing = list_objects(&chain).await;
        }
        let base = head_of(&chain).await;
        run_operation(operation, &store).await.unwrap();
        let head = head_of(&chain).await;
        let new_blocks = chain.blocks_back_from(&head, Some(&base), usize::MAX).await;
        for block in new_blocks.unwrap() {
            let name = block.hash().to_string();
            assert!(!existing.contains(&name), "{operation:?}: {name} existed");
        }
        let verification = verify(&chain, None, true).await.unwrap();
        let problems = verification.problems;
        assert!(problems.is_empty(), "{operation:?}: {problems:?}");
    }
}

/// The names of all objects of a chain.
async fn list_objects(chain: &Chain) -> BTreeSet<String> {
    let objects = chain.store().list(chain.root()).await.unwrap();
    let names = objects.iter().map(|meta| meta.location.filename().unwrap());
    names.map(str::to_owned).collect()
}
