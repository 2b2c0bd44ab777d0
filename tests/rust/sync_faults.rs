//! Syncs that fail, one at a time and from one on: what is reported is what is there.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use arrow_array::{Int64Array, RecordBatch, RecordBatchIterator};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use object_store::PutMode;
use pds::clock::SystemClock;
use pds::parquet::options::WriteOptions;
use pds::store::local::{DiskChange, DiskJournal, LocalStore};
use pds::store::metrics::Metrics;
use pds::store::{Capabilities, Store};
use pds::sync::in_place::BlockingThread;
use pds::table::actions::{NewTable, create};
use pds::table::{OpenedColumns, Table, TableWriteOptions, check, write};
use pds::{ErrorKind, Result};
use tokio::sync::oneshot;

use crate::faults::{KEY, expected_sum, read_sum, write_dataset};

/// EIO, of a broken disk.
const IO_ERROR: i32 = 5;
/// ENOSPC, of a full one, which a later attempt may get over.
const NO_SPACE: i32 = 28;
const TABLE: &str = "lake/events";

/// Fails syncs by their number: one, or all from it on.
#[derive(Debug)]
struct FailingSyncs {
    first: usize,
    lasts: bool,
    errno: i32,
    count: AtomicUsize,
}

impl DiskJournal for FailingSyncs {
    fn record(&self, _change: DiskChange) {}

    fn before_sync(&self, _path: &Path) -> std::io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let fails = number == self.first || (self.lasts && number > self.first);
        if fails {
            return Err(std::io::Error::from_raw_os_error(self.errno));
        }
        Ok(())
    }
}

/// Cancels a call when a data file is synced.
#[derive(Debug)]
struct CancellingSync(Mutex<Option<oneshot::Sender<()>>>);

impl DiskJournal for CancellingSync {
    fn record(&self, _change: DiskChange) {}

    fn before_sync(&self, path: &Path) -> std::io::Result<()> {
        if path.components().any(|part| part.as_os_str() == "data") {
            let sender = self.0.lock().unwrap().take();
            sender.map_or(Ok(()), |sender| {
                sender
                    .send(())
                    .map_err(|()| std::io::ErrorKind::Other.into())
            })
        } else {
            Ok(())
        }
    }
}

/// Cancels a call at the sync of a number.
#[derive(Debug)]
struct CancellingOne {
    cancel: Mutex<Option<oneshot::Sender<()>>>,
    number: usize,
    count: AtomicUsize,
}

impl DiskJournal for CancellingOne {
    fn record(&self, _change: DiskChange) {}

    fn before_sync(&self, _path: &Path) -> std::io::Result<()> {
        if self.count.fetch_add(1, Ordering::Relaxed) == self.number
            && let Some(cancel) = self.cancel.lock().unwrap().take()
        {
            cancel.send(()).unwrap();
        }
        Ok(())
    }
}

/// Says that the first sync has begun, and waits until it may go on.
#[derive(Debug)]
struct WaitingSync(Mutex<Option<(oneshot::Sender<()>, mpsc::Receiver<()>)>>);

impl DiskJournal for WaitingSync {
    fn record(&self, _change: DiskChange) {}

    fn before_sync(&self, _path: &Path) -> std::io::Result<()> {
        let first = self.0.lock().unwrap().take();
        if let Some((begun, go_on)) = first {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        Ok(())
    }
}

pub(crate) fn store_in(root: &Path, journal: Option<Arc<dyn DiskJournal>>) -> Store {
    let clock = Arc::new(SystemClock);
    let mut local = LocalStore::new(root, Arc::clone(&clock) as _);
    if let Some(journal) = journal {
        local = local.with_journal(journal);
    }
    let objects = Arc::new(local.clone());
    let metrics = Arc::new(Metrics::default());
    Store::from_object_store("file", objects, Capabilities::FULL, metrics, clock).with_local(local)
}

/// Calls `work` on a copy of `template` once for each sync that it makes, with that sync failing.
async fn fail_every_sync<F>(template: &Path, work: impl Fn(Store, PathBuf, String) -> F)
where
    F: Future<Output = ()>,
{
    for lasts in [false, true] {
        for first in 0.. {
            let folder = tempfile::tempdir().unwrap();
            copy_folder(template, folder.path());
            let count = AtomicUsize::new(0);
            let journal = Arc::new(FailingSyncs {
                first,
                lasts,
                errno: IO_ERROR,
                count,
            });
            let context = format!("sync {first} fails, and all after it: {lasts}");
            let store = store_in(folder.path(), Some(Arc::clone(&journal) as _));
            work(store, folder.path().to_owned(), context).await;
            if journal.count.load(Ordering::Relaxed) <= first {
                assert!(first > 4, "there were hardly any syncs");
                break;
            }
        }
    }
}

fn copy_folder(from: &Path, into: &Path) {
    std::fs::create_dir_all(into).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = into.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true)]))
}

async fn append_rows(table: &Table) -> Result<u64> {
    let column = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let batch = RecordBatch::try_new(schema(), vec![column]).unwrap();
    let options = TableWriteOptions {
        write_options: WriteOptions::new("none", None, None, None, Some(32 << 20))?,
        input_in_memory: true,
        overwrite: false,
        idempotency_key: None,
        timeout: Duration::from_secs(1),
        if_version: None,
        merge_schema: false,
        sort_by: None,
        threads: None,
        opened: OpenedColumns::default(),
    };
    let rows = Box::new(RecordBatchIterator::new([Ok(batch)], schema()));
    let (committed, _) = write(table, rows, &options).await?;
    Ok(committed.version)
}

/// As a call from Python is interrupted, whose thread does the work of the disk itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cancelled_while_its_file_is_synced_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let table = Table::new(store_in(folder.path(), None), TABLE).unwrap();
    create(&table, NewTable::new(&schema(), &[], &[]).unwrap())
        .await
        .unwrap();
    let old = append_rows(&table).await.unwrap();
    let (cancel, cancelled) = oneshot::channel();
    let journal = Arc::new(CancellingSync(Mutex::new(Some(cancel))));
    let interrupted = Table::new(store_in(folder.path(), Some(journal)), TABLE).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let call = tokio::task::spawn_blocking(move || {
        let _may_block = BlockingThread::enter();
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = cancelled => None,
                done = append_rows(&interrupted) => Some(done),
            }
        })
    });
    assert!(call.await.unwrap().is_none(), "it went on");
    // One that was begun would have ended by then.
    table
        .store()
        .clock()
        .sleep(Duration::from_millis(500))
        .await;
    assert_eq!(append_rows(&table).await.unwrap(), old + 1);
}

/// As above: what its thread has begun is done, the next step is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_publish_that_is_cancelled_while_it_syncs_ends_with_that_step() {
    let marker = format!("{KEY}/_SUCCESS");
    // The folders, the claim, the part, the manifest and the names of both, the marker.
    let last = 6;
    for number in 0..=last {
        let folder = tempfile::tempdir().unwrap();
        let (cancel, cancelled) = oneshot::channel();
        let journal = Arc::new(CancellingOne {
            cancel: Mutex::new(Some(cancel)),
            number,
            count: AtomicUsize::new(0),
        });
        let interrupted = store_in(folder.path(), Some(journal));
        let runtime = tokio::runtime::Handle::current();
        let call = tokio::task::spawn_blocking(move || {
            let _may_block = BlockingThread::enter();
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    _ = cancelled => None,
                    done = write_dataset(&interrupted, 5, 2000, false) => Some(done),
                }
            })
        });
        assert!(
            call.await.unwrap().is_none(),
            "sync {number}: it went on to its end"
        );
        let store = store_in(folder.path(), None);
        let is_marked = store.is_file(&marker).await.unwrap();
        assert_eq!(is_marked, number == last, "sync {number}");
        write_dataset(&store, 7, 1000, true).await.unwrap();
        let sum = read_sum(&store).await.unwrap();
        assert_eq!(sum, expected_sum(7, 1000).await, "sync {number}");
    }
}

/// Its thread goes on, and would give its file the name after a later write did.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_cancelled_does_not_replace_a_later_one() {
    for mode in [PutMode::Overwrite, PutMode::Create] {
        let folder = tempfile::tempdir().unwrap();
        let store = store_in(folder.path(), None);
        let (begun, has_begun) = oneshot::channel();
        let (go_on, may_go_on) = mpsc::channel();
        let journal = Arc::new(WaitingSync(Mutex::new(Some((begun, may_go_on)))));
        let interrupted = store_in(folder.path(), Some(journal));
        tokio::select! {
            biased;
            begun = has_begun => begun.unwrap(),
            _ = interrupted.put("a", "old".into(), mode) => panic!("it was not interrupted"),
        }
        store
            .put("a", "new".into(), PutMode::Overwrite)
            .await
            .unwrap();
        store.delete("a").await.unwrap();
        store.put("b", "new".into(), PutMode::Create).await.unwrap();
        go_on.send(()).unwrap();
        // The hidden file of the interrupted call is the last that goes.
        while std::fs::read_dir(folder.path()).unwrap().count() > 1 {
            assert!(!store.is_file("a").await.unwrap(), "it was written late");
            store.clock().sleep(Duration::from_millis(5)).await;
        }
        assert!(store.is_file("b").await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_with_a_failed_sync_does_not_deny_the_file() {
    let template = tempfile::tempdir().unwrap();
    fail_every_sync(template.path(), async |store, _, context| {
        let result = store.create("a/b/c/d/x", "1".into()).await;
        let exists = store.is_file("a/b/c/d/x").await.unwrap();
        match result {
            Ok(_) => assert!(exists, "{context}"),
            Err(e) => assert_eq!(e.kind() == ErrorKind::Unavailable, exists, "{context}: {e}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_with_a_failed_sync_is_whole_or_not_there() {
    let template = tempfile::tempdir().unwrap();
    let table = Table::new(store_in(template.path(), None), TABLE).unwrap();
    let definition = NewTable::new(&schema(), &[], &[]).unwrap();
    create(&table, definition).await.unwrap();
    let old = append_rows(&table).await.unwrap();
    fail_every_sync(template.path(), |store, folder, context| async move {
        let result = append_rows(&Table::new(store, TABLE).unwrap()).await;
        let table = Table::new(store_in(&folder, None), TABLE).unwrap();
        // A manifest beyond the pointer is a commit, too: the next writer moves the pointer on.
        let next = append_rows(&table).await;
        let next = next.unwrap_or_else(|e| panic!("{context}: {e}"));
        match result {
            Ok(new) => assert!(new > old && next == new + 1, "{context}: {next}"),
            Err(e) if e.kind() == ErrorKind::CommitStateUnknown => {
                assert!(next == old + 1 || next == old + 2, "{context}: {next}");
            }
            Err(e) => assert_eq!(next, old + 1, "{context}: {e}"),
        }
        let report = check(&table)
            .await
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(report.missing.is_empty(), "{context}: {report:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_with_a_failed_sync_leaves_a_whole_dataset_or_says_so() {
    let template = tempfile::tempdir().unwrap();
    let store = store_in(template.path(), None);
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let (old, new) = (expected_sum(3, 60_000).await, expected_sum(5, 45_000).await);
    fail_every_sync(template.path(), |store, folder, context| async move {
        let written = write_dataset(&store, 5, 45_000, true).await;
        let after = store_in(&folder, None);
        match (read_sum(&after).await, written) {
            (Ok(sum), Ok(())) => assert_eq!(sum, new, "{context}"),
            (Ok(sum), Err(_)) => assert!(sum == old || sum == new, "{context}: {sum:?}"),
            (Err(e), Ok(())) => panic!("{context}: {e}"),
            // Some parts were replaced. The error says so, and the next write ends it.
            (Err(e), Err(_)) => {
                assert_eq!(e.kind(), ErrorKind::DatasetIncomplete, "{context}: {e}");
            }
        }
        let next = write_dataset(&after, 7, 1000, true).await;
        next.unwrap_or_else(|e| panic!("{context}: {e}"));
    })
    .await;
}

/// A step looks whether what failed is there all the same. Its name may not be on the disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_is_reported_only_once_its_manifest_has_a_name_on_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_in(folder.path(), None);
    write_dataset(&store, 3, 1000, false).await.unwrap();
    let journal = Arc::new(FailingSyncs {
        // Those of the claim, of the intent and of the part, of the manifest's content; then that of its name.
        first: 6,
        lasts: true,
        errno: NO_SPACE,
        count: AtomicUsize::new(0),
    });
    let full = store_in(folder.path(), Some(Arc::clone(&journal) as _));
    write_dataset(&full, 5, 2000, true).await.unwrap_err();
    assert!(journal.count.load(Ordering::Relaxed) > 6);
    let sum = read_sum(&store).await.unwrap();
    assert_eq!(sum, expected_sum(5, 2000).await);
    write_dataset(&store, 7, 1000, true).await.unwrap();
    let sum = read_sum(&store).await.unwrap();
    assert_eq!(sum, expected_sum(7, 1000).await);
}
