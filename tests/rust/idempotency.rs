//! Idempotency keys of many commits: older ones are in lists of their own, and are found there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::{GetOptions, PutMode};
use pds::ErrorKind;
use pds::table::actions::Append;

use pds::table::format::{CommitId, Pointer, TableManifest, Transaction, TransactionList};
use pds::table::{Committed, ListingLimits, Table, Versioned};
use pds::testing::{faulty_memory, test_store};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit};
use pds::versions::vacuum::vacuum;

use super::tables::{append, create_table, upload};

/// Lists of few keys, so that few commits make and merge many.
fn with_short_lists(table: Table) -> Table {
    let mut table = table;
    table.limits = ListingLimits {
        max_inline_files: 4,
        max_inline_transactions: 8,
        max_listed_transactions: 40,
        merge_factor: 3,
        ..ListingLimits::default()
    };
    table
}

async fn commit_keyed(table: &Table, key: &str) -> Result<Committed, pds::Error> {
    let base = table.newest().await?.manifest.version;
    let change = Append {
        idempotency_key: Some(key.to_owned()),
        ..append(upload(table, base).await, base)
    };
    commit(table, &change, DEFAULT_TIMEOUT).await
}

async fn newest(table: &Table) -> Arc<TableManifest> {
    table.newest().await.unwrap().manifest
}

#[tokio::test]
async fn the_keys_of_many_commits_are_found_by_every_process() {
    let memory = faulty_memory();
    let table = with_short_lists(create_table(test_store(&memory, true)).await);
    let mut first_commits = BTreeMap::new();
    for number in 0..300 {
        let key = format!("batch {number}");
        let committed = commit_keyed(&table, &key).await.unwrap();
        assert!(!committed.replayed);
        first_commits.insert(key, (committed.version, committed.commit_id));
        let manifest = newest(&table).await;
        assert!(manifest.transactions.len() <= 8);
        let lists = &manifest.older_transactions;
        assert!(lists.iter().all(|list| list.transactions <= 40));
        let older: u32 = lists.iter().map(|list| list.transactions).sum();
        let keys = older as usize + manifest.transactions.len();
        assert_eq!(keys, first_commits.len());
    }
    let list_count = newest(&table).await.older_transactions.len();
    assert!((8..20).contains(&list_count), "{list_count} lists");
    let another = with_short_lists(Table::new(test_store(&memory, true), "lake/events").unwrap());
    let version = newest(&table).await.version;
    for table in [&another, &table] {
        for (key, (version, commit_id)) in &first_commits {
            let replay = commit_keyed(table, key).await.unwrap();
            assert!(replay.replayed);
            assert_eq!((&replay.version, &replay.commit_id), (version, commit_id));
        }
    }
    assert_eq!(newest(&table).await.version, version);
    let committed = commit_keyed(&another, "batch 300").await.unwrap();
    assert!(!committed.replayed);
}

#[tokio::test]
async fn a_manifest_of_ten_thousand_keys_stays_short() {
    let table = create_table(test_store(&faulty_memory(), true)).await;
    let first = newest(&table).await;
    // As an older pds wrote it: all keys in the manifest.
    let mut manifest = TableManifest::clone(&first);
    let transaction = |number: u64| Transaction {
        version: 1,
        commit_id: CommitId::new(number.into()),
        created_at: first.created_at,
    };
    manifest.transactions = (0..10_000)
        .map(|number| (format!("key {number}"), transaction(number)))
        .collect();
    let path = table.path(&Pointer::for_manifest(&manifest).manifest);
    let put = table
        .store()
        .put(&path, manifest.to_bytes(), PutMode::Overwrite);
    put.await.unwrap();
    for number in 0..200 {
        commit_keyed(&table, &format!("new {number}"))
            .await
            .unwrap();
    }
    let manifest = newest(&table).await;
    let bytes = manifest.to_bytes().len();
    assert!(bytes <= 100_000, "{bytes} bytes");
    let replay = commit_keyed(&table, "key 7").await.unwrap();
    assert!(replay.replayed);
    assert_eq!((replay.version, replay.commit_id), (1, CommitId::new(7)));
}

/// What is lost or damaged is named, and no commit is made that may be a second one.
#[tokio::test]
async fn a_damaged_list_ends_a_commit() {
    let memory = faulty_memory();
    let table = with_short_lists(create_table(test_store(&memory, true)).await);
    for number in 0..20 {
        commit_keyed(&table, &format!("key {number}"))
            .await
            .unwrap();
    }
    let manifest = newest(&table).await;
    let list = &manifest.older_transactions[0];
    let path = table.path(&list.path);
    let (intact, _) = table
        .store()
        .get(&path, GetOptions::default())
        .await
        .unwrap();
    let mut swapped = intact[48..96].to_vec();
    swapped.extend_from_slice(&intact[..48]);
    swapped.extend_from_slice(&intact[96..]);
    let mut late = intact.to_vec();
    late[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    let damages = [
        Some(Bytes::new()),
        Some(intact.slice(..intact.len() - 1)),
        Some(intact.slice(48..)),
        Some([&intact[..], &intact[..48]].concat().into()),
        Some(swapped.into()),
        Some(late.into()),
        None,
    ];
    for damaged in damages {
        match damaged {
            Some(bytes) => drop(
                table
                    .store()
                    .put(&path, bytes, PutMode::Overwrite)
                    .await
                    .unwrap(),
            ),
            None => drop(table.store().delete(&path).await.unwrap()),
        }
        // A process that has read the list before goes on with what it knows.
        let another = Table::new(test_store(&memory, true), "lake/events").unwrap();
        for key in ["key 0", "another"] {
            let error = commit_keyed(&another, key).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ManifestCorrupted);
            assert!(error.to_string().contains(&path), "{error}");
        }
        assert_eq!(newest(&table).await.version, manifest.version);
        commit_keyed(&another, "key 19").await.unwrap();
    }
}

/// A vacuum gives up the keys of versions that are neither retained nor among the last 10,000.
#[tokio::test]
async fn a_vacuum_removes_lists_of_old_keys() {
    const VERSION: u64 = 20_001;
    let table = create_table(test_store(&faulty_memory(), true)).await;
    let put = async |path: &str, bytes: Bytes| {
        let path = table.path(path);
        let put = table.store().put(&path, bytes, PutMode::Overwrite);
        put.await.unwrap();
    };
    let mut manifest = TableManifest {
        version: VERSION,
        previous: Some(VERSION - 1),
        oldest_version: VERSION,
        recent_commits: vec![CommitId::new(1)],
        ..TableManifest::clone(&*newest(&table).await)
    };
    for last_version in [10_000, 10_001] {
        let path = format!("manifest/transactions/b{last_version:08}-{last_version:032x}.bin");
        put(&path, Bytes::from_static(&[0; 48])).await;
        manifest.older_transactions.push(TransactionList {
            path,
            size_bytes: 48,
            transactions: 1,
            last_version,
        });
    }
    let pointer = Pointer::for_manifest(&manifest);
    put(&pointer.manifest, manifest.to_bytes()).await;
    put("_latest_manifest", pointer.to_bytes()).await;
    let vacuum = async || {
        vacuum(&table, Duration::ZERO, false, DEFAULT_TIMEOUT)
            .await
            .unwrap()
    };
    // The version before the first vacuum still has both.
    assert!(vacuum().await.files.is_empty());
    assert_eq!(
        newest(&table).await.older_transactions,
        manifest.older_transactions[1..]
    );
    let removed = vacuum().await.files;
    assert_eq!(removed, [manifest.older_transactions[0].path.clone()]);
    let left = table
        .store()
        .list(&table.path("manifest/transactions"))
        .await
        .unwrap();
    assert_eq!(left.len(), 1);
}

#[test]
fn a_list_beyond_its_manifest_is_refused() {
    let manifest = r#"{"format": 2, "version": 3, "previous": 2, "created_at": "2026-11-23T08:00:00.000000Z",
        "commit_id": "00000000000000000000000000000003", "operation": {"name": "append"},
        "recent_commits": ["00000000000000000000000000000002"], "schema": {"columns": [], "last_id": 0},
        "arrow_schema": "", "data_files": [], "tombstones": [], "oldest_version": 1, "gc_floor": 0,
        "older_transactions": [{"path": "manifest/transactions/b00000001-x.bin", "size_bytes": 48,
        "transactions": 1, "last_version": 3}]}"#;
    TableManifest::parse(manifest.as_bytes(), 3).unwrap();
    for (valid, invalid) in [
        (r#""last_version": 3"#, r#""last_version": 4"#),
        (r#""last_version": 3"#, r#""last_version": 0"#),
        ("manifest/transactions/", "../"),
    ] {
        let changed = manifest.replace(valid, invalid);
        let error = TableManifest::parse(changed.as_bytes(), 3).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ManifestCorrupted, "{invalid}");
    }
}
