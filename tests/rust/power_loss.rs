//! What a loss of power leaves of local files: every change is recorded, and each moment of the history is built
//! anew with all that was not synced by then lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pds::clock::SystemClock;
use pds::store::local::{DiskChange, DiskJournal, LocalStore};
use pds::store::metrics::Metrics;
use pds::store::{Capabilities, Store};
use pds::table::commit::{DEFAULT_TIMEOUT, commit};
use pds::table::{self, Table};

use crate::faults::{KEY, expected, sum, write};
use crate::tables::{append, created, upload};

#[derive(Debug, Default)]
struct Journal(Mutex<Vec<DiskChange>>);

impl Journal {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl DiskJournal for Journal {
    fn record(&self, change: DiskChange) {
        self.0.lock().unwrap().push(change);
    }
}

fn store_in(root: &Path, journal: Option<Arc<Journal>>) -> Store {
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
enum Names {
    Lost,
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Folder,
    File(usize),
}

/// A disk and the names in memory that are not on it yet. Content that was not synced is not there.
#[derive(Debug, Default)]
struct Disk {
    current: BTreeMap<PathBuf, Entry>,
    synced: BTreeMap<PathBuf, Entry>,
    contents: Vec<Vec<u8>>,
}

impl Disk {
    fn apply(&mut self, change: &DiskChange) {
        match change {
            DiskChange::Create(path) => {
                self.contents.push(Vec::new());
                let file = Entry::File(self.contents.len() - 1);
                self.current.insert(path.clone(), file);
            }
            DiskChange::MakeFolder(path) => drop(self.current.insert(path.clone(), Entry::Folder)),
            DiskChange::SyncFile(path, content) => {
                let Some(Entry::File(file)) = self.current.get(path) else {
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
    fn restore(&self, names: Names, root: &Path, into: &Path) {
        let left = match names {
            Names::Lost => &self.synced,
            Names::Kept => &self.current,
        };
        for (path, entry) in left {
            // A folder whose own name is lost takes its files along.
            let above = path.ancestors().skip(1).take_while(|above| *above != root);
            if !above.into_iter().all(|above| left.contains_key(above)) {
                continue;
            }
            let target = into.join(path.strip_prefix(root).unwrap());
            match entry {
                Entry::Folder => std::fs::create_dir_all(target).unwrap(),
                Entry::File(file) => std::fs::write(target, &self.contents[*file]).unwrap(),
            }
        }
    }
}

/// Calls `check` with what every moment from `from` on leaves, and whether all was done then.
async fn at_every_moment<F>(
    journal: &Journal,
    root: &Path,
    from: usize,
    check: impl Fn(Store, bool, String) -> F,
) where
    F: Future<Output = ()>,
{
    let changes = journal.0.lock().unwrap().clone();
    let mut disk = Disk::default();
    for (index, change) in changes.iter().enumerate() {
        disk.apply(change);
        if index + 1 < from {
            continue;
        }
        for names in [Names::Lost, Names::Kept] {
            let folder = tempfile::tempdir().unwrap();
            disk.restore(names, root, folder.path());
            let says = format!("unsynced names {names:?}, after {change:.120?} ({index})");
            check(
                store_in(folder.path(), None),
                index + 1 == changes.len(),
                says,
            )
            .await;
        }
    }
    assert!(changes.len() > from + 5, "nothing was recorded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_the_old_or_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::default());
    let store = store_in(folder.path(), Some(Arc::clone(&journal)));
    write(&store, 3, 60_000, false).await.unwrap();
    let created = journal.len();
    write(&store, 5, 45_000, true).await.unwrap();
    let (old, new) = (expected(3, 60_000).await, expected(5, 45_000).await);
    at_every_moment(
        &journal,
        folder.path(),
        created,
        |store, done, says| async move {
            let found = sum(&store).await.unwrap_or_else(|e| panic!("{says}: {e}"));
            assert!(found == new || (!done && found == old), "{says}: {found:?}");
            // Nothing is in the way of the next one.
            write(&store, 7, 1000, true)
                .await
                .unwrap_or_else(|e| panic!("{says}: {e}"));
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_dataset_is_there_once_it_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::default());
    let store = store_in(folder.path(), Some(Arc::clone(&journal)));
    write(&store, 3, 60_000, false).await.unwrap();
    let new = expected(3, 60_000).await;
    at_every_moment(&journal, folder.path(), 0, |store, done, says| async move {
        let marked = store.is_file(&format!("{KEY}/_SUCCESS")).await.unwrap();
        match sum(&store).await {
            Ok(found) => assert_eq!(found, new, "{says}"),
            Err(e) => assert!(!done && !marked, "{says}: {e}"),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_of_a_table_is_there_once_it_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::default());
    let table = created(store_in(folder.path(), Some(Arc::clone(&journal)))).await;
    let append_once = async || {
        let base = table.newest().await.unwrap().manifest.version;
        let change = append(upload(&table, base).await, base);
        let committed = commit(&table, &change, DEFAULT_TIMEOUT).await;
        committed.unwrap().version
    };
    let old = append_once().await;
    let before = journal.len();
    let new = append_once().await;
    let root = "lake/events";
    at_every_moment(&journal, folder.path(), before, |store, done, says| {
        let table = Table::new(store, root).unwrap();
        async move {
            let newest = table
                .newest()
                .await
                .unwrap_or_else(|e| panic!("{says}: {e}"));
            let version = newest.manifest.version;
            assert!(
                version == new || (!done && version == old),
                "{says}: {version}"
            );
            table::check(&table)
                .await
                .unwrap_or_else(|e| panic!("{says}: {e}"));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_durability_nothing_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(Journal::default());
    let clock = Arc::new(SystemClock);
    let local = LocalStore::new(folder.path(), Arc::clone(&clock) as _);
    let local = local
        .with_journal(Arc::clone(&journal) as _)
        .without_durability();
    let objects = Arc::new(local.clone());
    let metrics = Arc::new(Metrics::default());
    let store = Store::from_object_store("file", objects, Capabilities::FULL, metrics, clock)
        .with_local(local);
    write(&store, 3, 60_000, false).await.unwrap();
    let synced = |change: &DiskChange| {
        matches!(change, DiskChange::SyncFile(..) | DiskChange::SyncFolder(_))
    };
    assert!(journal.len() > 5 && !journal.0.lock().unwrap().iter().any(synced));
}
