//! What tests of this crate and of others need: a store that fails on command, and the contract
//! every store has to keep.

mod conformance;
mod faulty;

use std::sync::Arc;

use object_store::memory::InMemory;

pub use self::conformance::check_store;
pub use self::faulty::{Effect, Fault, FaultKind, FaultyStore};
use crate::clock::{Clock, SystemClock};
use crate::store::metrics::Metrics;
use crate::store::{Abilities, Store};

/// A store over `objects`, with multipart uploads or, without them, staged objects.
pub fn store_over(objects: &Arc<FaultyStore>, multipart: bool) -> Store {
    store_with_clock(objects, multipart, Arc::new(SystemClock))
}

/// As [`store_over`], with a clock of the test's own.
pub fn store_with_clock(
    objects: &Arc<FaultyStore>,
    multipart: bool,
    clock: Arc<dyn Clock>,
) -> Store {
    let metrics = Arc::new(Metrics::default());
    let store = Store::over(
        "test",
        Arc::clone(objects) as _,
        Abilities::FULL,
        metrics,
        clock,
    );
    if multipart {
        store.with_multipart(Arc::clone(objects) as _)
    } else {
        store
    }
}

/// A faulty store over memory that does not fail yet.
pub fn faulty_memory() -> Arc<FaultyStore> {
    Arc::new(FaultyStore::new(Arc::new(InMemory::new())))
}
