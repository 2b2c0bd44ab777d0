//! For tests of this crate and of others: a store that fails on command, the contract that every store has to keep, a
//! commit onto an older snapshot, and the checks of the fuzzers.

mod conformance;
mod faulty;
mod fuzz;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatchReader;

pub use self::conformance::check_store;
pub use self::faulty::{Fault, FaultKind, FaultTiming, FaultyStore};
pub use self::fuzz::{FUZZ_CHECKS, FuzzCheck};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::files::{SortColumn, sort_batches};
use crate::store::memory::MemoryStore;
use crate::store::metrics::Metrics;
use crate::store::{Capabilities, Store};
use crate::versions::commit::commit_onto;
use crate::versions::{Change, Committed, Folder, RollLists, Snapshot};

/// A store over `objects` that stages long writes as multipart uploads, or as hidden objects if `multipart` is false.
pub fn test_store(objects: &Arc<FaultyStore>, multipart: bool) -> Store {
    // A request whose answer was lost is awaited for half of this lease.
    test_store_with_clock(objects, multipart, Arc::new(SystemClock))
        .with_publish_lease(Duration::from_millis(60))
}

/// As [`test_store`], with a clock of the test and the default publish lease.
pub fn test_store_with_clock(
    objects: &Arc<FaultyStore>,
    multipart: bool,
    clock: Arc<dyn Clock>,
) -> Store {
    let metrics = Arc::new(Metrics::default());
    let store = Store::from_object_store(
        "test",
        Arc::clone(objects) as _,
        Capabilities::FULL,
        metrics,
        clock,
    )
    .with_conditional_store(Arc::clone(objects) as _);
    if multipart {
        store.with_multipart(Arc::clone(objects) as _)
    } else {
        store
    }
}

/// A [`FaultyStore`] over a new store in memory; it does not fail yet.
pub fn faulty_memory() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(Arc::new(MemoryStore::new())))
}

/// As [`commit`](crate::versions::commit::commit); the first attempt is made on `snapshot`, which was read or committed
/// before.
pub async fn commit_after<M: RollLists>(
    folder: &Folder<M>,
    change: &dyn Change<M>,
    snapshot: Snapshot<M>,
    timeout: Duration,
) -> Result<Committed<M>> {
    Ok(commit_onto(folder, change, Some(snapshot), timeout).await?)
}

/// Sorts rows by their first columns, ascending; holds about `memory_bytes` of them in memory at a time.
pub fn sort_by_first_columns(
    input: Box<dyn RecordBatchReader + Send>,
    columns: usize,
    memory_bytes: usize,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let order: Vec<SortColumn> = (0..columns).map(SortColumn::ascending).collect();
    sort_batches(input, &order, memory_bytes)
}
