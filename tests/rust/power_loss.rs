//! What a loss of power leaves of local files: every change is recorded, and each moment of the history is built
//! anew with all that was not synced by then lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pds::clock::SystemClock;
use pds::store::local::{DiskChange, DiskJournal, LocalStore};
use pds::store::metrics::Metrics;
use pds::store::{Capabilities, Store};
use pds::table::{self, Table};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit};

use crate::faults::{KEY, expected_sum, read_sum, write_dataset};
use crate::tables::{append, create_table, upload};

#[derive(Debug, Default)]
struct RecordingJournal(Mutex<Vec<DiskChange>>);

impl RecordingJournal {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl DiskJournal for RecordingJournal {
    fn record(&self, change: DiskChange) {
        self.0.lock().unwrap().push(change);
    }
}

fn store_in(root: &Path, journal: Option<Arc<RecordingJournal>>) -> Store {
    let clock = Arc::new(SystemClock);
    let mut local = LocalStore::new(root, Arc::clone(&clock) as _);
    if let Some(journal) = journal {
        local = local.with_journal(journal);
    }
    let objects = Arc::new(local.clone());
    Store::from_object_store(
        "file",
        objects,
        Capabilities::FULL,
        Arc::new(Metrics::default()),
        clock,
    )
    .with_local(local)
}

/// What is kept of a name whose folder was not synced since it was made, renamed or removed. File systems do either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsyncedNames {
    Lost,
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskEntry {
    Folder,
    File(usize),
}

/// A disk and the names in memory that are not on it yet. Content that was not synced is not there.
#[derive(Debug, Default)]
struct SimulatedDisk {
    current: BTreeMap<PathBuf, DiskEntry>,
    synced: BTreeMap<PathBuf, DiskEntry>,
    contents: Vec<Vec<u8>>,
}

impl SimulatedDisk {
    fn apply(&mut self, change: &DiskChange) {
        match change {
            DiskChange::Create(path) => {
                self.contents.push(Vec::new());
                let file = DiskEntry::File(self.contents.len() - 1);
                self.current.insert(path.clone(), file);
            }
            DiskChange::MakeFolder(path) => {
                self.current.insert(path.clone(), DiskEntry::Folder);
            }
            DiskChange::SyncFile(path, content) => {
                let Some(DiskEntry::File(file)) = self.current.get(path) else {
                    panic!("{} is not there", path.display());
                };
                self.contents[*file].clone_from(content);
            }
            DiskChange::SyncFolder(folder) => {
                let inside = |path: &Path| path.parent() == Some(folder);
                self.synced.retain(|path, _| !inside(path));
                let entries = self.current.iter().filter(|(path, _)| inside(path));
                self.synced
                    .extend(entries.map(|(path, entry)| (path.clone(), *entry)));
            }
            DiskChange::Link(from, to) => drop(self.current.insert(to.clone(), self.current[from])),
            DiskChange::Rename(from, to) => {
                let entry = self.current.remove(from).unwrap();
                self.current.insert(to.clone(), entry);
            }
            DiskChange::Unlink(path) => drop(self.current.remove(path)),
        }
    }

    /// Builds what is left of `root` in another folder.
    fn restore(&self, names: UnsyncedNames, root: &Path, into: &Path) {
        let entries = match names {
            UnsyncedNames::Lost => &self.synced,
            UnsyncedNames::Kept => &self.current,
        };
        for (path, entry) in entries {
            // A folder whose own name is lost takes its files along.
            let parents = path
                .ancestors()
                .skip(1)
                .take_while(|folder| *folder != root);
            if !parents
                .into_iter()
                .all(|folder| entries.contains_key(folder))
            {
                continue;
            }
            let target = into.join(path.strip_prefix(root).unwrap());
            match entry {
                DiskEntry::Folder => std::fs::create_dir_all(target).unwrap(),
                DiskEntry::File(file) => std::fs::write(target, &self.contents[*file]).unwrap(),
            }
        }
    }
}

/// Calls `check` with what every moment from `from` on leaves, and whether all was done then.
async fn check_after_every_change<F>(
    journal: &RecordingJournal,
    root: &Path,
    from: usize,
    check: impl Fn(Store, bool, String) -> F,
) where
    F: Future<Output = ()>,
{
    let changes = journal.0.lock().unwrap().clone();
    let mut disk = SimulatedDisk::default();
    for (index, change) in changes.iter().enumerate() {
        disk.apply(change);
        if index + 1 < from {
            continue;
        }
        for names in [UnsyncedNames::Lost, UnsyncedNames::Kept] {
            let folder = tempfile::tempdir().unwrap();
            disk.restore(names, root, folder.path());
            let context = format!("unsynced names {names:?}, after {change:.120?} ({index})");
            check(
                store_in(folder.path(), None),
                index + 1 == changes.len(),
                context,
            )
            .await;
        }
    }
    assert!(changes.len() > from + 5, "nothing was recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_is_atomic_under_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let store = store_in(folder.path(), Some(Arc::clone(&journal)));
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let first_change = journal.len();
    write_dataset(&store, 5, 45_000, true).await.unwrap();
    let (old, new) = (expected_sum(3, 60_000).await, expected_sum(5, 45_000).await);
    check_after_every_change(
        &journal,
        folder.path(),
        first_change,
        |store, done, context| async move {
            let actual = read_sum(&store)
                .await
                .unwrap_or_else(|e| panic!("{context}: {e}"));
            assert!(
                actual == new || (!done && actual == old),
                "{context}: {actual:?}"
            );
            // Nothing is in the way of the next one.
            write_dataset(&store, 7, 1000, true)
                .await
                .unwrap_or_else(|e| panic!("{context}: {e}"));
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_dataset_survives_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let store = store_in(folder.path(), Some(Arc::clone(&journal)));
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let new = expected_sum(3, 60_000).await;
    check_after_every_change(
        &journal,
        folder.path(),
        0,
        |store, done, context| async move {
            let has_marker = store.is_file(&format!("{KEY}/_SUCCESS")).await.unwrap();
            match read_sum(&store).await {
                Ok(actual) => assert_eq!(actual, new, "{context}"),
                Err(e) => assert!(!done && !has_marker, "{context}: {e}"),
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_commit_survives_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let table = create_table(store_in(folder.path(), Some(Arc::clone(&journal)))).await;
    let append_once = async || {
        let base = table.newest().await.unwrap().manifest.version;
        let change = append(upload(&table, base).await, base);
        let committed = commit(&table, &change, DEFAULT_TIMEOUT).await;
        committed.unwrap().version
    };
    let old = append_once().await;
    let first_change = journal.len();
    let new = append_once().await;
    let root = "lake/events";
    check_after_every_change(
        &journal,
        folder.path(),
        first_change,
        |store, done, context| {
            let table = Table::new(store, root).unwrap();
            async move {
                let newest = table
                    .newest()
                    .await
                    .unwrap_or_else(|e| panic!("{context}: {e}"));
                let version = newest.manifest.version;
                assert!(
                    version == new || (!done && version == old),
                    "{context}: {version}"
                );
                table::check(&table)
                    .await
                    .unwrap_or_else(|e| panic!("{context}: {e}"));
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_durability_no_file_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let clock = Arc::new(SystemClock);
    let durable = LocalStore::new(folder.path(), Arc::clone(&clock) as _);
    let local = durable
        .with_journal(Arc::clone(&journal) as _)
        .without_durability();
    let objects = Arc::new(local.clone());
    let metrics = Arc::new(Metrics::default());
    let store = Store::from_object_store("file", objects, Capabilities::FULL, metrics, clock)
        .with_local(local);
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let is_sync = |change: &DiskChange| {
        matches!(change, DiskChange::SyncFile(..) | DiskChange::SyncFolder(_))
    };
    assert!(journal.len() > 5 && !journal.0.lock().unwrap().iter().any(is_sync));
}
