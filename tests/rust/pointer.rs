//! The pointer never goes back, whoever dies when.

use std::sync::Arc;

use pds::table::Table;
use pds::testing::{Fault, FaultKind, FaultTiming, FaultyStore, faulty_memory, test_store};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit, commit_after};

use super::tables::{append, create_table, upload};

fn table(objects: &Arc<FaultyStore>) -> Table {
    Table::new(test_store(objects, true), "lake/events").unwrap()
}

async fn commit_one(table: &Table) -> u64 {
    let base = table.newest().await.unwrap().manifest.version;
    let change = append(upload(table, base).await, base);
    let committed = commit(table, &change, DEFAULT_TIMEOUT).await.unwrap();
    committed.version
}

/// One process commits twice, the second time onto the snapshot of its first commit, and dies at a request of that.
/// Others commit between a request of the first commit and its answer.
async fn newest_after_crash(interrupted: usize, crash: usize) -> (u64, u64) {
    let objects = faulty_memory();
    let ours = create_table(test_store(&objects, true)).await;
    let base = ours.newest().await.unwrap().manifest.version;
    let change = append(upload(&ours, base).await, base);
    let others = table(&objects);
    objects.interrupt(interrupted, move || {
        let runtime = tokio::runtime::Handle::current();
        let work = std::thread::spawn(move || {
            runtime.block_on(async {
                commit_one(&others).await;
                commit_one(&others).await;
            });
        });
        work.join().unwrap();
    });
    let first = commit(&ours, &change, DEFAULT_TIMEOUT).await.unwrap();
    objects.set_fault(None);
    let acknowledged = table(&objects).newest().await.unwrap().manifest.version;
    let change = append(upload(&ours, first.version).await, first.version);
    objects.set_fault(Some(Fault {
        request: crash,
        timing: FaultTiming::After,
        kind: FaultKind::Unavailable,
        is_persistent: true,
    }));
    let timeout = std::time::Duration::ZERO;
    let _ = commit_after(&ours, &change, first.snapshot, timeout).await;
    objects.set_fault(None);
    (
        acknowledged,
        table(&objects).newest().await.unwrap().manifest.version,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_onto_an_old_snapshot_does_not_set_the_pointer_back() {
    for interrupted in 0..6 {
        for crash in 0..6 {
            let (acknowledged, newest) = newest_after_crash(interrupted, crash).await;
            assert!(
                newest >= acknowledged,
                "{interrupted} {crash}: {newest} after {acknowledged}"
            );
        }
    }
}
