//! Every kind of store keeps the contract.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::GetOptions;
use pds::ErrorKind;
use pds::store::cas::{CasResult, Register};
use pds::store::metrics::{ReadCounter, ReadCounts};
use pds::store::stage::{StageOutcome, Staging};
use pds::store::staged_write::StagedWrite;
use pds::store::{Condition, ConditionSupport, SendLimit, Store, StoreBuilder};
use pds::testing::{
    Fault, FaultKind, FaultTiming, FaultyStore, check_store, faulty_memory, test_store,
};

fn open(url: &str) -> Store {
    StoreBuilder::parse(url, &BTreeMap::new())
        .unwrap()
        .build()
        .unwrap()
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    check_store(&open("memory://contract/with/prefix"))
        .await
        .unwrap();
    check_store(&test_store(&faulty_memory(), true))
        .await
        .unwrap();
}

#[tokio::test]
async fn local_files_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}/not yet there", folder.path().display());
    check_store(&open(&url)).await.unwrap();
}

#[tokio::test]
async fn local_files_outside_the_root_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(&outside).unwrap();
    std::fs::write(outside.join("secret"), "s").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("out")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), root.join("dangling")).unwrap();
    std::fs::create_dir(root.join("real")).unwrap();
    std::fs::write(root.join("real/file"), "f").unwrap();
    std::os::unix::fs::symlink(root.join("real"), root.join("in")).unwrap();
    let store = open(&format!("file://{}", root.display()));
    for path in ["out/secret", "out/new", "dangling"] {
        let kind = ErrorKind::InvalidPath;
        assert_eq!(
            store
                .get(path, GetOptions::default())
                .await
                .unwrap_err()
                .kind(),
            kind,
            "{path}"
        );
        let put = store
            .put(path, "x".into(), object_store::PutMode::Overwrite)
            .await;
        assert_eq!(put.unwrap_err().kind(), kind, "{path}");
        if path.contains('/') {
            assert_eq!(store.delete(path).await.unwrap_err().kind(), kind, "{path}");
        }
    }
    assert!(store.get("in/file", GetOptions::default()).await.is_ok());
    let listed = store.list("").await.unwrap();
    let names: Vec<&str> = listed.iter().map(|m| m.location.as_ref()).collect();
    assert_eq!(names, ["dangling", "in", "out", "real/file"]);
    assert!(!outside.join("new").exists());
}

/// What a store must do to one version of an object.
pub(crate) async fn check_conditions(store: &Store) {
    let created = store
        .put_if("c/x", "1".into(), &Condition::Absent)
        .await
        .unwrap();
    let first = Condition::Matches(created.e_tag.unwrap());
    let duplicate = store
        .put_if("c/x", "2".into(), &Condition::Absent)
        .await
        .unwrap_err();
    assert!(
        matches!(
            duplicate.kind(),
            ErrorKind::AlreadyExists | ErrorKind::Conflict
        ),
        "{duplicate}"
    );
    let replaced = store.put_if("c/x", "22".into(), &first).await.unwrap();
    let second = Condition::Matches(replaced.e_tag.unwrap());
    let stale = store.put_if("c/x", "3".into(), &first).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Conflict);
    let missing = store
        .put_if("c/none", "3".into(), &first)
        .await
        .unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Conflict);
    // The ETag that a listing shows is the one that was returned.
    let listed = store.list("c").await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(Condition::Matches(listed[0].e_tag.clone().unwrap()), second);
    let stale = store.delete_if("c/x", &first).await.unwrap_err();
    assert_eq!(stale.kind(), ErrorKind::Conflict);
    assert!(store.is_file("c/x").await.unwrap());
    assert!(store.delete_if("c/x", &second).await.unwrap());
    // Not every store tells that it was not there any more.
    store.delete_if("c/x", &second).await.unwrap();
    assert!(store.list("c").await.unwrap().is_empty());
}

/// A staged write of `bytes`.
async fn stage(store: &Store, target: &str, bytes: Vec<u8>) -> StagedWrite {
    let staging = Staging::new(store, None, 64 << 20);
    let (mut writer, uploader) = staging.begin(target);
    let write = tokio::task::spawn_blocking(move || {
        writer.write(&bytes).unwrap();
        writer.finish().unwrap()
    });
    let result = match uploader {
        Some(uploader) => uploader.run().await.unwrap(),
        None => None,
    };
    match write.await.unwrap() {
        StageOutcome::Done(staged) => staged,
        StageOutcome::Uploading => result.unwrap(),
    }
}

pub(crate) async fn check_staged(store: &Store) {
    for bytes in [10, 9_000_000_usize] {
        let content: Vec<u8> = (32..=126).cycle().take(bytes).collect();
        let length = content.len() as u64;
        let staged = stage(store, "s/x", content.clone()).await;
        assert!(staged.is_intact(store, length).await.unwrap());
        assert!(!staged.is_intact(store, length + 1).await.unwrap());
        store
            .put_if("s/x", "in the way".into(), &Condition::Absent)
            .await
            .unwrap();
        let denied = staged
            .publish_if(store, "s/x", &Condition::Absent)
            .await
            .unwrap_err();
        assert!(
            matches!(
                denied.kind(),
                ErrorKind::AlreadyExists | ErrorKind::Conflict
            ),
            "{denied}"
        );
        let other = Condition::Matches("another".to_owned());
        let denied = staged.publish_if(store, "s/x", &other).await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Conflict, "{denied}");
        assert!(
            staged.is_intact(store, length).await.unwrap(),
            "a denial destroys nothing"
        );
        let current = store.head("s/x").await.unwrap().e_tag.unwrap();
        let e_tag = staged
            .publish_if(store, "s/x", &Condition::Matches(current))
            .await
            .unwrap();
        let (stored, meta) = store.get("s/x", GetOptions::default()).await.unwrap();
        assert_eq!(stored, content);
        assert!(e_tag.is_none() || e_tag == meta.e_tag);
        if bytes > 1000 {
            assert!(!staged.is_intact(store, length).await.unwrap());
            let repeated = staged
                .publish_if(store, "s/x", &Condition::Always)
                .await
                .unwrap_err();
            assert_eq!(repeated.kind(), ErrorKind::NotFound);
        }
        store.delete("s/x").await.unwrap();
        let leaked = stage(store, "s/x", content).await;
        leaked.discard(store).await.unwrap();
        assert_eq!(leaked.is_intact(store, length).await.unwrap(), bytes < 1000);
    }
    assert!(store.list("s").await.unwrap().is_empty());
}

/// Memory with and without uploads, with and without more than conditional PUTs, and local files.
fn all_stores(folder: &std::path::Path) -> Vec<Store> {
    let bare =
        || Arc::new(FaultyStore::new(Arc::default()).with_conditions(ConditionSupport::NONE));
    vec![
        open("memory://"),
        test_store(&faulty_memory(), true),
        test_store(&faulty_memory(), false),
        test_store(&bare(), false),
        open(&format!("file://{}", folder.display())),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn conditional_requests_change_only_the_matching_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut stores = all_stores(folder.path());
    // Servers such as the emulators of S3 and Azure, with what is not in their own variables as name=value,name=value.
    if let Ok(urls) = std::env::var("PDS_TEST_STORES") {
        let settings = std::env::var("PDS_TEST_OPTIONS").unwrap_or_default();
        let pairs = settings.split(',').filter_map(|pair| pair.split_once('='));
        let options = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
        let server = |url| StoreBuilder::parse(url, &options).unwrap().build().unwrap();
        stores.extend(urls.split(',').map(server));
    }
    for store in stores {
        check_conditions(&store.child("conditions").unwrap()).await;
        check_staged(&store.child("staged").unwrap()).await;
    }
}

#[tokio::test]
async fn no_request_is_sent_after_its_deadline() {
    let folder = tempfile::tempdir().unwrap();
    for store in all_stores(folder.path()) {
        let now = store.clock().monotonic();
        let limit = |deadline| SendLimit {
            deadline,
            once: true,
        };
        let past = store.with_send_limit(limit(Some(now)));
        let expired = past
            .put_if("x", "1".into(), &Condition::Always)
            .await
            .unwrap_err();
        assert_eq!(expired.kind(), ErrorKind::Expired, "{expired}");
        let expired = past.delete("x").await.unwrap_err();
        assert_eq!(expired.kind(), ErrorKind::Expired, "{expired}");
        assert!(!store.is_file("x").await.unwrap());
        let future = store.with_send_limit(limit(Some(now + Duration::from_hours(1))));
        future
            .put_if("x", "1".into(), &Condition::Absent)
            .await
            .unwrap();
        assert!(future.delete_if("x", &Condition::Always).await.unwrap());
    }
}

#[tokio::test]
async fn requests_limited_to_one_attempt_are_not_retried() {
    let objects = faulty_memory();
    let store = test_store(&objects, true).with_send_limit(SendLimit {
        deadline: None,
        once: true,
    });
    let fault = |kind| Fault {
        request: 0,
        timing: FaultTiming::After,
        kind,
        is_persistent: false,
    };
    objects.set_fault(Some(fault(FaultKind::Unavailable)));
    let error = store
        .put("x", "1".into(), object_store::PutMode::Overwrite)
        .await
        .unwrap_err();
    assert_eq!(
        (error.kind(), objects.requests()),
        (ErrorKind::Unavailable, 1)
    );
    assert!(error.message().contains("injected"), "{error}");
    objects.set_fault(Some(fault(FaultKind::Unavailable)));
    store.delete_if("x", &Condition::Always).await.unwrap_err();
    assert_eq!(objects.requests(), 1);
}

/// S3 answers 409 while another request for a name is under way, which may come to nothing.
#[tokio::test]
async fn a_creation_refused_where_nothing_exists_is_sent_again() {
    for timing in [FaultTiming::Before, FaultTiming::After] {
        let objects = faulty_memory();
        let store = test_store(&objects, true);
        objects.set_fault(Some(Fault {
            request: 0,
            timing,
            kind: FaultKind::Conflict,
            is_persistent: false,
        }));
        let result = store.create("x", "1".into()).await;
        // An object that is there may be another writer's.
        match timing {
            FaultTiming::Before => drop(result.unwrap()),
            FaultTiming::After => {
                assert_eq!(result.unwrap_err().kind(), ErrorKind::AlreadyExists);
            }
        }
        let (bytes, _) = store.get("x", GetOptions::default()).await.unwrap();
        assert_eq!(&bytes[..], b"1");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replace_of_a_locked_file_fails_as_locked() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&format!("file://{}", folder.path().display()));
    let register = Register::new(&store, "head");
    let CasResult::Won(first) = register.create("one".into()).await.unwrap() else {
        panic!("the folder is empty");
    };
    let key = store.key("head").unwrap();
    let _lock = store.local().unwrap().lock_file(&key, false).unwrap();
    let error = register.replace(&first, "two".into()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    assert_eq!(register.read().await.unwrap().unwrap().bytes, "one");
}

#[test]
fn a_locked_file_is_replaced_and_removed_only_by_its_holder() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&format!("file://{}", folder.path().display()));
    let (local, key) = (store.local().unwrap(), store.key("deep/intent").unwrap());
    let missing = local.lock_file(&key, false).unwrap_err();
    assert!(matches!(missing, object_store::Error::NotFound { .. }));
    let (mut lock, content) = local.lock_file(&key, true).unwrap().unwrap();
    assert!(content.is_empty() && local.lock_file(&key, true).unwrap().is_none());
    local.replace_locked(&mut lock, &key, b"one").unwrap();
    assert!(local.lock_file(&key, false).unwrap().is_none());
    drop(lock);
    let (mut lock, content) = local.lock_file(&key, false).unwrap().unwrap();
    assert_eq!(content, "one");
    // Somebody who knows no locks puts another file there: the lock is on the one that was there.
    std::fs::remove_file(folder.path().join("deep/intent")).unwrap();
    std::fs::write(folder.path().join("deep/intent"), "theirs").unwrap();
    let error = local.replace_locked(&mut lock, &key, b"two").unwrap_err();
    assert!(
        matches!(error, object_store::Error::Precondition { .. }),
        "{error}"
    );
    let (lock, content) = local.lock_file(&key, false).unwrap().unwrap();
    assert_eq!(content, "theirs");
    local.unlink_locked(lock, &key).unwrap();
    assert!(
        std::fs::read_dir(folder.path().join("deep"))
            .unwrap()
            .next()
            .is_none()
    );
}

#[tokio::test]
async fn symlinks_are_listed_and_deleted_but_not_followed() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for dir in ["a", "b", "loop"] {
        std::fs::create_dir(root.join(dir)).unwrap();
    }
    std::fs::write(root.join("b/file"), "content").unwrap();
    symlink("../b", root.join("a/folder")).unwrap();
    symlink("../b/file", root.join("a/file")).unwrap();
    symlink("nowhere", root.join("a/dangling")).unwrap();
    // Followed, these would have two to the power of forty paths.
    symlink(".", root.join("loop/x")).unwrap();
    symlink(".", root.join("loop/y")).unwrap();
    let store = open(&format!("file://{}", root.display()));
    let names = async |folder: &str| -> Vec<String> {
        let listed = store.list(folder).await.unwrap();
        listed
            .iter()
            .map(|meta| meta.location.to_string())
            .collect()
    };
    assert_eq!(names("loop").await, ["loop/x", "loop/y"]);
    let listed = names("a").await;
    assert_eq!(listed, ["a/dangling", "a/file", "a/folder"]);
    let direct = store.list_folder("a").await.unwrap();
    assert!(direct.folders.is_empty() && direct.files.len() == 3);
    // What is read through a link is what the listing says.
    let (bytes, meta) = store.get("a/file", GetOptions::default()).await.unwrap();
    assert_eq!(bytes, "content");
    assert!(
        direct
            .files
            .iter()
            .any(|file| file.e_tag == meta.e_tag && file.size == 7)
    );
    assert!(
        store
            .get("a/folder/file", GetOptions::default())
            .await
            .is_ok()
    );
    store.delete_all(&listed).await.unwrap();
    assert!(names("a").await.is_empty());
    assert_eq!(
        std::fs::read_to_string(root.join("b/file")).unwrap(),
        "content"
    );
    store.remove_empty_folder("a").await.unwrap();
    assert!(!root.join("a").exists());
}

#[tokio::test]
async fn a_conditional_put_and_a_conditional_delete_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&format!("file://{}", folder.path().display()));
    for round in 0..50 {
        let value = format!("value {round}");
        let put = store
            .put_if("x", value.clone().into(), &Condition::Absent)
            .await
            .unwrap();
        let condition = Condition::Matches(put.e_tag.unwrap());
        let (replaced, deleted) = tokio::join!(
            store.put_if("x", format!("new {round}").into(), &condition),
            store.delete_if("x", &condition)
        );
        // One of the two found the version it was meant for.
        assert_ne!(
            replaced.is_ok(),
            matches!(deleted, Ok(true)),
            "{replaced:?} {deleted:?}"
        );
        store.delete("x").await.unwrap();
    }
}

/// What is on a store besides objects with a name.
fn is_clean(store: &Store, objects: &FaultyStore, folder: &std::path::Path) -> bool {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let hidden = files.filter(|file| file.file_name().to_string_lossy().starts_with(".pds-"));
    store.local().map_or_else(
        || objects.inner().open_uploads().is_empty(),
        |_| hidden.count() == 0,
    )
}

/// Ends a write of several files while it waits for its input, after its first files were finished.
#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn a_cancelled_write_leaves_no_files_and_no_uploads() {
    use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
    use arrow_schema::{DataType, Field, Schema};
    use pds::dataset::{self, DatasetWrite, Layout, WriteTask};

    let folder = tempfile::tempdir().unwrap();
    let objects = faulty_memory();
    let local = open(&format!("file://{}", folder.path().display()));
    for store in [local, test_store(&objects, true)] {
        let options =
            pds::parquet::options::WriteOptions::new("none", None, None, Some(20_000), None)
                .unwrap();
        let write = DatasetWrite::begin(&store, "d", false, Layout::Numbered, options)
            .await
            .unwrap();
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let (last_batch_sender, last_batch_receiver) = std::sync::mpsc::channel();
        let (resume, gate) = std::sync::mpsc::channel::<()>();
        let batch = {
            let schema = Arc::clone(&schema);
            move |number: i64| {
                let values =
                    (0..20_000).map(|i: i64| (i + number).wrapping_mul(-0x61C8_8646_80B5_83EB));
                let column = Arc::new(values.collect::<Int64Array>());
                RecordBatch::try_new(Arc::clone(&schema), vec![column as _])
            }
        };
        let batches = (0..5).map(move |number| {
            if number == 4 {
                last_batch_sender.send(()).unwrap();
                let _ = gate.recv();
            }
            batch(number)
        });
        let input = Box::new(RecordBatchIterator::new(batches, schema));
        let task = WriteTask {
            number: 0,
            threads: 1,
            input_in_memory: false,
            keep_empty: true,
            shared: false,
        };
        let mut prepared = tokio::task::JoinSet::new();
        prepared.spawn({
            let store = store.clone();
            async move {
                dataset::prepare(&store, &write, task, input)
                    .await
                    .map(drop)
            }
        });
        tokio::task::spawn_blocking(move || last_batch_receiver.recv().unwrap())
            .await
            .unwrap();
        prepared.shutdown().await;
        drop(resume);
        // The encoder ends when it gets its next batch, and uploads are aborted by tasks of their own.
        let dataset = folder.path().join("d");
        for _ in 0..500 {
            if is_clean(&store, &objects, &dataset) {
                break;
            }
            store.clock().sleep(Duration::from_millis(10)).await;
        }
        assert!(is_clean(&store, &objects, &dataset), "{}", store.name());
    }
}

#[tokio::test]
async fn listed_versions_are_deleted_and_no_later_ones() {
    for conditions in [ConditionSupport::ALL, ConditionSupport::NONE] {
        let objects = Arc::new(FaultyStore::new(Arc::default()).with_conditions(conditions));
        let store = test_store(&objects, true);
        let mut listed = Vec::new();
        for path in ["same", "later", "missing"] {
            let put = store.put_if(path, "1".into(), &Condition::Always).await;
            listed.push((path.to_owned(), put.unwrap().e_tag));
        }
        store.delete("missing").await.unwrap();
        let put = store.put_if("later", "2".into(), &Condition::Always);
        put.await.unwrap();
        // The answer to the first deletion is lost, and it is sent again.
        objects.set_fault(Some(Fault {
            request: usize::from(!conditions.delete),
            timing: FaultTiming::After,
            kind: FaultKind::Unavailable,
            is_persistent: false,
        }));
        store.delete_listed(listed[..1].to_vec()).await.unwrap();
        store.delete_listed(listed[1..].to_vec()).await.unwrap();
        assert!(!store.is_file("same").await.unwrap());
        assert!(store.is_file("later").await.unwrap());
    }
}

#[tokio::test]
async fn a_reader_counts_what_is_read_through_its_own_store() {
    let folder = tempfile::tempdir().unwrap();
    for store in all_stores(folder.path()) {
        let mode = object_store::PutMode::Overwrite;
        let put = store.put("folder/object", "0123456789".into(), mode);
        put.await.unwrap();
        let (first, second) = (
            Arc::new(ReadCounter::default()),
            Arc::new(ReadCounter::default()),
        );
        let child = store.with_read_counter(&first).child("folder").unwrap();
        let other = store.with_read_counter(&second);
        // Other tasks count too.
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { child.get_range("object", 2..5, None).await });
        let read = tasks.join_next().await.unwrap().unwrap();
        assert_eq!(read.unwrap().as_ref(), b"234");
        other.head("folder/object").await.unwrap();
        let missing = other.get("folder/missing", GetOptions::default());
        missing.await.unwrap_err();
        let whole = store.get("folder/object", GetOptions::default());
        whole.await.unwrap();
        let counts = |requests, bytes| ReadCounts { requests, bytes };
        assert_eq!(first.counts(), counts(1, 3));
        assert_eq!(second.counts(), counts(2, 0));
        let all: ReadCounts = [first.counts(), second.counts()].into_iter().sum();
        assert_eq!(counts(3, 3), all);
    }
}
