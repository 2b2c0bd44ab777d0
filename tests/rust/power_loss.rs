//! What a loss of power leaves of local files: every change is recorded, and each moment of the history is built
//! anew with all that was not synced by then lost.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pds::clock::SystemClock;
use pds::dataset;
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

fn store_in(root: &Path, journal: Arc<RecordingJournal>) -> Store {
    store_of(LocalStore::new(root, Arc::new(SystemClock)).with_journal(journal))
}

/// A store of what was left, which need not be on the disk.
fn store_of_rest(root: &Path) -> Store {
    store_of(LocalStore::new(root, Arc::new(SystemClock)).without_durability())
}

fn store_of(local: LocalStore) -> Store {
    let (objects, metrics) = (Arc::new(local.clone()), Arc::new(Metrics::default()));
    let clock = Arc::new(SystemClock);
    Store::from_object_store("file", objects, Capabilities::FULL, metrics, clock).with_local(local)
}

/// What is kept of names whose folder was not synced since they were made, renamed or removed, by the number of each
/// change. File systems do any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsyncedNames {
    Lost,
    Kept,
    Only(usize),
    AllBut(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskEntry {
    Folder,
    File(usize),
}

/// A change of names.
#[derive(Debug, Clone)]
struct NameChange {
    removed: Option<PathBuf>,
    added: Option<(PathBuf, DiskEntry)>,
}

impl NameChange {
    fn addition(path: &Path, entry: DiskEntry) -> Self {
        Self {
            removed: None,
            added: Some((path.to_owned(), entry)),
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, DiskEntry>) {
        if let Some(path) = &self.removed {
            names.remove(path);
        }
        names.extend(self.added.clone());
    }

    fn is_in(&self, folder: &Path) -> bool {
        let added = self.added.as_ref().map(|(path, _)| path);
        let path = added.or(self.removed.as_ref());
        path.is_some_and(|path| path.parent() == Some(folder))
    }
}

/// A disk and the names in memory that are not on it yet. Content that was not synced is not there.
#[derive(Debug, Default)]
struct SimulatedDisk {
    current: BTreeMap<PathBuf, DiskEntry>,
    synced: BTreeMap<PathBuf, DiskEntry>,
    unsynced: Vec<NameChange>,
    contents: Vec<Vec<u8>>,
}

impl SimulatedDisk {
    fn apply(&mut self, change: &DiskChange) {
        let name_change = match change {
            DiskChange::Create(path) => {
                self.contents.push(Vec::new());
                NameChange::addition(path, DiskEntry::File(self.contents.len() - 1))
            }
            DiskChange::MakeFolder(path) => NameChange::addition(path, DiskEntry::Folder),
            DiskChange::SyncFile(path, content) => {
                let Some(DiskEntry::File(file)) = self.current.get(path) else {
                    panic!("{} is not there", path.display());
                };
                self.contents[*file].clone_from(content);
                return;
            }
            DiskChange::SyncFolder(folder) => {
                let inside = |path: &Path| path.parent() == Some(folder);
                self.synced.retain(|path, _| !inside(path));
                let entries = self.current.iter().filter(|(path, _)| inside(path));
                self.synced
                    .extend(entries.map(|(path, entry)| (path.clone(), *entry)));
                self.unsynced.retain(|change| !change.is_in(folder));
                return;
            }
            DiskChange::Link(from, to) => NameChange::addition(to, self.current[from]),
            DiskChange::Rename(from, to) => NameChange {
                removed: Some(from.clone()),
                added: Some((to.clone(), self.current[from])),
            },
            DiskChange::Unlink(path) => NameChange {
                removed: Some(path.clone()),
                added: None,
            },
        };
        name_change.apply(&mut self.current);
        self.unsynced.push(name_change);
    }

    /// All that may be kept of the names in memory.
    fn outcomes(&self) -> Vec<UnsyncedNames> {
        let mut outcomes = vec![UnsyncedNames::Lost, UnsyncedNames::Kept];
        if self.unsynced.len() > 1 {
            let numbers = 0..self.unsynced.len();
            outcomes.extend(numbers.clone().map(UnsyncedNames::Only));
            outcomes.extend(numbers.map(UnsyncedNames::AllBut));
        }
        outcomes
    }

    fn entries(&self, names: UnsyncedNames) -> BTreeMap<PathBuf, DiskEntry> {
        let mut entries = self.synced.clone();
        for (number, change) in self.unsynced.iter().enumerate() {
            let is_kept = match names {
                UnsyncedNames::Lost => false,
                UnsyncedNames::Kept => true,
                UnsyncedNames::Only(kept) => number == kept,
                UnsyncedNames::AllBut(lost) => number != lost,
            };
            if is_kept {
                change.apply(&mut entries);
            }
        }
        entries
    }

    /// Builds what is left of `root` in another folder.
    fn restore(&self, names: UnsyncedNames, root: &Path, into: &Path) {
        let entries = self.entries(names);
        for (path, entry) in &entries {
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
async fn check_after_every_change(
    journal: &RecordingJournal,
    root: &Path,
    from: usize,
    check: impl AsyncFn(Store, bool, String),
) {
    let changes = journal.0.lock().unwrap().clone();
    let mut disk = SimulatedDisk::default();
    for (index, change) in changes.iter().enumerate() {
        disk.apply(change);
        if index + 1 < from {
            continue;
        }
        for names in disk.outcomes() {
            let folder = tempfile::tempdir().unwrap();
            disk.restore(names, root, folder.path());
            let context = format!("unsynced names {names:?}, after {change:.120?} ({index})");
            let is_done = index + 1 == changes.len();
            check(store_of_rest(folder.path()), is_done, context).await;
        }
    }
    assert!(changes.len() > from + 5, "nothing was recorded");
}

/// What was synced from a change on: `CONTENT` for a file, else the folder.
fn syncs_since(journal: &RecordingJournal, root: &Path, from: usize) -> Vec<String> {
    let changes = journal.0.lock().unwrap();
    let synced = changes[from..].iter().filter_map(|change| match change {
        DiskChange::SyncFile(..) => Some(CONTENT.to_owned()),
        DiskChange::SyncFolder(folder) => {
            let folder = folder.strip_prefix(root).unwrap();
            Some(folder.to_str().unwrap().to_owned())
        }
        _ => None,
    });
    synced.collect()
}

const CONTENT: &str = "a file";

/// The order of the table in `docs/design/2026-11-30-local-syncs.md`.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_synced_as_often_as_its_promises_need() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let store = store_in(folder.path(), Arc::clone(&journal));
    let mut from = 0;
    let mut expect = |what: &str, expected: &[&str]| {
        let syncs = syncs_since(&journal, folder.path(), from);
        assert_eq!(syncs, expected, "{what}");
        from = journal.len();
    };
    write_dataset(&store, 3, 1000, false).await.unwrap();
    // The folders, the claim, the part, the manifest, the marker.
    let created = ["", "silver", CONTENT, CONTENT, CONTENT, KEY, KEY];
    expect("a new dataset", &created);
    write_dataset(&store, 5, 2000, true).await.unwrap();
    // The claim, the intent, the part, the manifest.
    let replaced = [CONTENT, CONTENT, KEY, CONTENT, KEY, CONTENT, KEY];
    expect("one file by one file", &replaced);
    write_dataset(&store, 7, 45_000, true).await.unwrap();
    // Two staged parts, the claim, the intent, the removed marker; then the third part and the names of all, the
    // manifest, the marker.
    let begun = [CONTENT, CONTENT, CONTENT, CONTENT, KEY, KEY];
    let ended = [CONTENT, KEY, CONTENT, KEY, KEY];
    expect("one part by three", &[&begun[..], &ended].concat());
    dataset::delete(&store, KEY).await.unwrap();
    // The claim, the intent, the marker, the manifest, the parts, the removed intent.
    let deleted = [CONTENT, CONTENT, KEY, KEY, KEY, KEY, KEY];
    expect("nothing", &deleted);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overwrite_is_atomic_under_power_loss() {
    // Many parts by as many, by fewer, one file by one file, one part by many.
    for (old_rows, new_rows) in [
        (60_000, 45_000),
        (60_000, 1000),
        (1000, 2000),
        (1000, 45_000),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(RecordingJournal::default());
        let store = store_in(folder.path(), Arc::clone(&journal));
        write_dataset(&store, 3, old_rows, false).await.unwrap();
        let first_change = journal.len();
        write_dataset(&store, 5, new_rows, true).await.unwrap();
        let old = expected_sum(3, old_rows).await;
        let new = expected_sum(5, new_rows).await;
        let check = async |store: Store, done: bool, context: String| {
            let actual = read_sum(&store)
                .await
                .unwrap_or_else(|e| panic!("{old_rows} to {new_rows} rows, {context}: {e}"));
            assert!(
                actual == new || (!done && actual == old),
                "{old_rows} to {new_rows} rows, {context}: {actual:?}"
            );
            // Nothing is in the way of the next one.
            write_dataset(&store, 7, 1000, true)
                .await
                .unwrap_or_else(|e| panic!("{old_rows} to {new_rows} rows, {context}: {e}"));
        };
        check_after_every_change(&journal, folder.path(), first_change, check).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_dataset_survives_power_loss() {
    for rows in [60_000, 1000] {
        let folder = tempfile::tempdir().unwrap();
        let journal = Arc::new(RecordingJournal::default());
        let store = store_in(folder.path(), Arc::clone(&journal));
        write_dataset(&store, 3, rows, false).await.unwrap();
        let new = expected_sum(3, rows).await;
        let check = async |store: Store, done: bool, context: String| {
            let has_marker = store.is_file(&format!("{KEY}/_SUCCESS")).await.unwrap();
            match read_sum(&store).await {
                Ok(actual) => assert_eq!(actual, new, "{context}"),
                Err(e) => {
                    assert!(!done && !has_marker, "{context}: {e}");
                    // Nothing is in the way of the next one.
                    write_dataset(&store, 7, 1000, false)
                        .await
                        .unwrap_or_else(|e| panic!("{context}: {e}"));
                }
            }
        };
        check_after_every_change(&journal, folder.path(), 0, check).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_dataset_stays_away_after_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let store = store_in(folder.path(), Arc::clone(&journal));
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let first_change = journal.len();
    dataset::delete(&store, KEY).await.unwrap();
    let old = expected_sum(3, 60_000).await;
    let intent = format!("{KEY}/_publish.json");
    let check = async |store: Store, done: bool, context: String| {
        // It would delete what others put into the folder after the deletion was reported.
        let may_delete = store.is_file(&intent).await.unwrap();
        assert!(!done || !may_delete, "{context}");
        if let Ok(actual) = read_sum(&store).await {
            assert!(!done && actual == old, "{context}: {actual:?}");
        }
        write_dataset(&store, 7, 1000, true)
            .await
            .unwrap_or_else(|e| panic!("{context}: {e}"));
    };
    check_after_every_change(&journal, folder.path(), first_change, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_commit_survives_power_loss() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let table = create_table(store_in(folder.path(), Arc::clone(&journal))).await;
    let append_once = async || {
        let base = table.newest().await.unwrap().manifest.version;
        let change = append(upload(&table, base).await, base);
        let committed = commit(&table, &change, DEFAULT_TIMEOUT).await;
        committed.unwrap().version
    };
    let old = append_once().await;
    let first_change = journal.len();
    let new = append_once().await;
    let check = async |store: Store, done: bool, context: String| {
        let table = Table::new(store, "lake/events").unwrap();
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
    };
    check_after_every_change(&journal, folder.path(), first_change, check).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_durability_no_file_is_synced() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Arc::new(RecordingJournal::default());
    let local = LocalStore::new(folder.path(), Arc::new(SystemClock))
        .with_journal(Arc::clone(&journal) as _)
        .without_durability();
    let store = store_of(local);
    write_dataset(&store, 3, 60_000, false).await.unwrap();
    let is_sync = |change: &DiskChange| {
        matches!(change, DiskChange::SyncFile(..) | DiskChange::SyncFolder(_))
    };
    assert!(journal.len() > 5 && !journal.0.lock().unwrap().iter().any(is_sync));
}
