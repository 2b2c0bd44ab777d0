//! What a caller learns of a change of a chain whose answer was lost.

use std::sync::Arc;

use pds::ErrorKind;
use pds::odf::{Chain, DatasetId, DatasetKind};
use pds::table::commit::DEFAULT_TIMEOUT;
use pds::testing::{Fault, FaultKind, FaultTiming, FaultyStore, faulty_memory, test_store};
use serde_json::json;

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
