//! The pointer never goes back, whoever dies when.

use std::sync::Arc;
use std::time::Duration;

use pds::ErrorKind;
use pds::table::Table;
use pds::table::actions::create;
use pds::table::format::CommitId;
use pds::testing::{
    Fault, FaultKind, FaultTiming, FaultyStore, commit_after, faulty_memory, test_store,
};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit, was_committed};
use pds::versions::remove_versions;
use pds::versions::vacuum::vacuum;

use super::tables::{append, create_table, new_table, upload};

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
    let timeout = Duration::ZERO;
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

/// So many others commit between a lost attempt and the next that the newest manifest does not list the lost version any
/// more, and a vacuum has removed the first ones: the commit is not in an unknown state.
#[tokio::test]
async fn a_lost_attempt_is_known_as_lost_after_many_commits_and_a_vacuum() {
    for others in [2, 63, 64, 65, 66, 130, 200] {
        let objects = faulty_memory();
        let table = create_table(test_store(&objects, true)).await;
        for _ in 0..100 {
            commit_one(&table).await;
        }
        vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
            .await
            .unwrap();
        let base = table.newest().await.unwrap();
        let version = base.manifest.version;
        let change = append(upload(&table, version).await, version);
        let lost = commit_one(&table).await;
        for _ in 1..others {
            commit_one(&table).await;
        }
        let committed = commit_after(&table, &change, base, DEFAULT_TIMEOUT)
            .await
            .unwrap_or_else(|e| panic!("after {others} others: {e}"));
        assert_eq!(committed.version, version + others + 1);
        assert_eq!(committed.attempts, 2);
        let id = &committed.commit_id;
        assert_eq!(
            was_committed(&table, id).await.unwrap(),
            Some(committed.version)
        );
        assert_eq!(lost, version + 1);
    }
}

/// A write that began on a table that was removed meanwhile is not one of the table that was created in its place.
#[tokio::test]
async fn a_write_of_a_removed_table_is_not_committed_to_the_next_one() {
    let objects = faulty_memory();
    let ours = create_table(test_store(&objects, true)).await;
    for _ in 0..5 {
        commit_one(&ours).await;
    }
    let version = ours.newest().await.unwrap().manifest.version;
    let late = append(upload(&ours, version).await, version);
    remove_versions(&table(&objects)).await.unwrap();
    let next = create_table(test_store(&objects, true)).await;
    let error = commit(&table(&objects), &late, DEFAULT_TIMEOUT).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TransactionExpired, "{error}");
    assert!(error.message().contains("created again"), "{error}");
    assert_eq!(next.newest().await.unwrap().manifest.version, 1);
    // A snapshot that is older than the write is no other table.
    let old = next.newest().await.unwrap();
    let version = commit_one(&next).await;
    let change = append(upload(&next, version).await, version);
    let committed = commit_after(&next, &change, old, DEFAULT_TIMEOUT).await;
    assert_eq!(committed.unwrap().version, version + 1);
}

/// Whether a commit made a version that was vacuumed is not known, and said so.
#[tokio::test]
async fn a_commit_that_no_version_lists_may_have_been_vacuumed() {
    let table = create_table(test_store(&faulty_memory(), true)).await;
    for _ in 0..100 {
        commit_one(&table).await;
    }
    let id = CommitId::new(7);
    assert_eq!(was_committed(&table, &id).await.unwrap(), None);
    vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
        .await
        .unwrap();
    for _ in 0..3 {
        let unlisted = was_committed(&table, &id).await.unwrap_err();
        assert_eq!(unlisted.kind(), ErrorKind::VersionExpired);
        assert!(
            unlisted.message().contains("versions since 101"),
            "{unlisted}"
        );
        for _ in 0..50 {
            commit_one(&table).await;
        }
    }
}

/// A process that opens the table puts its pointer back, and the table is removed between two of its requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removal_beside_one_who_opens_leaves_no_pointer() {
    for request in 0..8 {
        let objects = faulty_memory();
        let created = create_table(test_store(&objects, true)).await;
        commit_one(&created).await;
        let store = test_store(&objects, true);
        store.delete("lake/events/_latest_manifest").await.unwrap();
        let removing = table(&objects);
        objects.interrupt(request, move || {
            let runtime = tokio::runtime::Handle::current();
            let work = std::thread::spawn(move || runtime.block_on(remove_versions(&removing)));
            work.join().unwrap().unwrap();
        });
        let _ = table(&objects).newest().await;
        if objects.requests() <= request {
            assert!(request > 4, "opening takes only {request} requests");
            return;
        }
        let left = store.list("lake").await.unwrap();
        assert!(left.is_empty(), "{request}: {left:?}");
    }
}

/// A table is removed between two requests of its creation.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removal_beside_one_who_creates_leaves_no_pointer() {
    for request in 0..30 {
        let objects = faulty_memory();
        let removing = table(&objects);
        objects.interrupt(request, move || {
            let runtime = tokio::runtime::Handle::current();
            let work = std::thread::spawn(move || runtime.block_on(remove_versions(&removing)));
            // There may be nothing to remove yet.
            let _ = work.join().unwrap();
        });
        let created = create(&table(&objects), new_table()).await;
        if objects.requests() <= request {
            assert!(request > 8, "a creation takes only {request} requests");
            return;
        }
        let opened = table(&objects).newest().await;
        let Err(error) = opened else {
            assert!(created.is_ok(), "{request}: {created:?}");
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::NotFound, "{request}: {error}");
        let left = test_store(&objects, true).list("lake").await.unwrap();
        assert!(left.is_empty(), "{request}: {left:?}");
    }
    panic!("a creation takes more than 30 requests");
}

#[tokio::test]
async fn a_pointer_whose_manifest_is_missing_is_an_error_and_no_older_version() {
    let objects = faulty_memory();
    let created = create_table(test_store(&objects, true)).await;
    let newest = commit_one(&created).await;
    let manifest = format!("lake/events/manifest/v{newest:08}.json");
    created.store().delete(&manifest).await.unwrap();
    let opened = table(&objects).newest().await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ManifestCorrupted);
    let opened = created.newest().await;
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ManifestCorrupted);
}

/// Another process drops the table too, and a new one is created, between two requests of a removal.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slow_removal_leaves_a_new_table_alone() {
    // By the answer to its first request it has not found the table yet.
    for request in 1..30 {
        let objects = faulty_memory();
        let created = create_table(test_store(&objects, true)).await;
        for _ in 0..3 {
            commit_one(&created).await;
        }
        let others = Arc::clone(&objects);
        objects.interrupt(request, move || {
            let runtime = tokio::runtime::Handle::current();
            let work = std::thread::spawn(move || {
                runtime.block_on(async {
                    match remove_versions(&table(&others)).await {
                        Err(e) if e.kind() != ErrorKind::NotFound => panic!("{e}"),
                        _ => {}
                    }
                    let new = create_table(test_store(&others, true)).await;
                    for _ in 0..5 {
                        commit_one(&new).await;
                    }
                });
            });
            work.join().unwrap();
        });
        let removed = remove_versions(&created).await;
        if objects.requests() <= request {
            assert!(request > 8, "a removal takes only {request} requests");
            removed.unwrap();
            return;
        }
        let newest = table(&objects)
            .newest()
            .await
            .unwrap_or_else(|e| panic!("{request}: {e}"));
        assert_eq!(newest.manifest.version, 6, "{request}");
        for file in &newest.manifest.data_files {
            created
                .store()
                .head(&created.path(&file.path))
                .await
                .unwrap();
        }
    }
    panic!("a removal takes more requests than were tried");
}

/// A removal that dies after each of its requests leaves the newest version or none, and can be repeated.
#[tokio::test]
async fn an_interrupted_removal_shows_no_older_version() {
    for is_damaged in [false, true] {
        for request in 0..40 {
            let objects = faulty_memory();
            let created = create_table(test_store(&objects, true)).await;
            for _ in 0..3 {
                commit_one(&created).await;
            }
            if is_damaged {
                let newest = "lake/events/manifest/v00000004.json";
                created.store().delete(newest).await.unwrap();
            }
            objects.set_fault(Some(Fault {
                request,
                timing: FaultTiming::After,
                kind: FaultKind::Unavailable,
                is_persistent: true,
            }));
            let removed = remove_versions(&table(&objects)).await;
            objects.set_fault(None);
            match table(&objects).newest().await {
                Ok(newest) => assert_eq!(
                    (newest.manifest.version, is_damaged),
                    (4, false),
                    "{request}"
                ),
                Err(e) if e.kind() == ErrorKind::ManifestCorrupted => {}
                Err(e) => assert_eq!(e.kind(), ErrorKind::NotFound, "{request}: {e}"),
            }
            match remove_versions(&table(&objects)).await {
                Err(e) if e.kind() != ErrorKind::NotFound => panic!("{request}: {e}"),
                _ => {}
            }
            assert!(
                created.store().list("lake").await.unwrap().is_empty(),
                "{request}"
            );
            if removed.is_ok() {
                assert!(request > 8, "a removal takes only {request} requests");
                break;
            }
        }
    }
}

/// Another process commits, or opens the table, between two requests of a removal, which dies at a later one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_removal_beside_others_leaves_no_table_without_its_data() {
    for commits in [true, false] {
        for request in 0..20 {
            for crash in [Some(1), Some(3), Some(5), Some(8), None] {
                let objects = faulty_memory();
                let created = create_table(test_store(&objects, true)).await;
                for _ in 0..3 {
                    commit_one(&created).await;
                }
                let others = Arc::clone(&objects);
                objects.interrupt(request, move || {
                    let runtime = tokio::runtime::Handle::current();
                    let work = std::thread::spawn(move || {
                        runtime.block_on(async {
                            let other = table(&others);
                            if let Ok(newest) = other.newest().await
                                && commits
                            {
                                let base = newest.manifest.version;
                                let change = append(upload(&other, base).await, base);
                                let _ = commit(&other, &change, DEFAULT_TIMEOUT).await;
                            }
                        });
                        others.set_fault(crash.map(|request| Fault {
                            request,
                            timing: FaultTiming::After,
                            kind: FaultKind::Unavailable,
                            is_persistent: true,
                        }));
                    });
                    work.join().unwrap();
                });
                let removed = remove_versions(&table(&objects)).await;
                objects.set_fault(None);
                let context = format!("{commits} {request} {crash:?} {removed:?}");
                let opened = table(&objects).newest().await;
                if let Ok(newest) = &opened {
                    assert!(removed.is_err(), "{context}");
                    for file in &newest.manifest.data_files {
                        let path = created.path(&file.path);
                        let read = created.store().head(&path).await;
                        assert!(read.is_ok(), "{context}: {path}");
                    }
                }
                if removed.is_ok() {
                    let left = created.store().list("lake").await.unwrap();
                    assert!(left.is_empty(), "{context}: {left:?}");
                }
            }
        }
    }
}
