//! What the history of a table must look like.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use futures::TryStreamExt;
use futures::executor::block_on;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use pds::ErrorKind;
use pds::table::format::{CommitId, FORMAT, Pointer, TableManifest};
use pds::table::{FileRef, Table, Versioned, all_files};
use pds::versions::commit::was_committed;

use super::world::World;

/// How many steps pass between two looks at everything.
const STEPS_BETWEEN_AUDITS: usize = 25;

/// What the players say.
#[derive(Debug, Default)]
pub(super) struct CommitLedger {
    next_row: u64,
    rows: HashMap<String, Vec<u64>>,
    by_key: HashMap<String, Vec<u64>>,
    acknowledged: Vec<(u64, CommitId, Vec<u64>)>,
    refused_rows: HashSet<u64>,
    refused_files: HashSet<String>,
    unknown: Vec<CommitId>,
    observed: Vec<TableManifest>,
}

impl CommitLedger {
    /// New rows; the same ones for the same key.
    pub(super) fn rows_for_key(&mut self, key: Option<&str>) -> Vec<u64> {
        if let Some(rows) = key.and_then(|key| self.by_key.get(key)) {
            return rows.clone();
        }
        let rows: Vec<u64> = (self.next_row..self.next_row + 3).collect();
        self.next_row += 3;
        if let Some(key) = key {
            self.by_key.insert(key.to_owned(), rows.clone());
        }
        rows
    }

    pub(super) fn record_upload(&mut self, path: &str, rows: &[u64]) {
        let before = self.rows.insert(path.to_owned(), rows.to_vec());
        assert!(before.is_none(), "{path} is written twice");
    }

    pub(super) fn rows_in(&self, files: &[FileRef]) -> Vec<u64> {
        files
            .iter()
            .flat_map(|f| self.rows[&f.path].clone())
            .collect()
    }

    pub(super) fn record_acknowledged(&mut self, version: u64, commit_id: CommitId, rows: &[u64]) {
        self.acknowledged.push((version, commit_id, rows.to_vec()));
    }

    pub(super) fn record_refused(&mut self, path: &str, rows: &[u64]) {
        self.refused_rows.extend(rows);
        self.refused_files.insert(path.to_owned());
    }

    pub(super) fn record_unknown(&mut self, commit_id: &str) {
        self.unknown.push(CommitId::parse(commit_id).unwrap());
    }

    /// Takes note of an older snapshot that a reader was given.
    pub(super) fn record_observed(&mut self, manifest: &TableManifest) {
        self.observed.push(manifest.clone());
    }

    /// The rows of some files, each at most once.
    fn contents(&self, version: u64, files: &[String]) -> BTreeSet<u64> {
        let mut rows = BTreeSet::new();
        for file in files {
            for row in &self.rows[file] {
                assert!(rows.insert(*row), "row {row} is twice in version {version}");
            }
        }
        rows
    }
}

/// A version as it was when the pointer came to it.
struct Version {
    manifest: TableManifest,
    files: Vec<String>,
    rows: BTreeSet<u64>,
}

impl Version {
    fn references(&self) -> impl Iterator<Item = &str> {
        let listed = self.files.iter().map(String::as_str);
        self.manifest.references().chain(listed)
    }
}

/// The history of the pointer, as the store saw it.
pub(super) struct Model {
    world: World,
    root: String,
    pub(super) ledger: Arc<Mutex<CommitLedger>>,
    history: BTreeMap<u64, Version>,
    steps: usize,
}

impl Model {
    pub(super) fn new(world: &World, root: &str) -> Self {
        Self {
            world: world.clone(),
            root: root.to_owned(),
            ledger: Arc::default(),
            history: BTreeMap::new(),
            steps: 0,
        }
    }

    pub(super) fn commits(&self) -> usize {
        self.history.len()
    }

    fn read_object(&self, relative: &str) -> Option<Vec<u8>> {
        let path = Path::from(format!("{}/{relative}", self.root));
        let result = block_on(self.world.objects.get(&path)).ok()?;
        Some(block_on(result.bytes()).unwrap().to_vec())
    }

    /// After every request: the pointer moves by one version at a time, to what was committed.
    pub(super) fn check_step(&mut self) {
        self.steps += 1;
        if let Some(bytes) = self.read_object("_latest_manifest") {
            let pointer = Pointer::parse(&bytes, FORMAT).unwrap();
            let last = self.history.keys().next_back().copied().unwrap_or(0);
            if pointer.version != last {
                assert_eq!(pointer.version, last + 1, "the pointer jumped");
                self.record_version(&pointer);
            }
        } else {
            assert!(self.history.is_empty(), "the pointer has gone");
        }
        if self.steps.is_multiple_of(STEPS_BETWEEN_AUDITS) {
            self.audit();
        }
    }

    fn record_version(&mut self, pointer: &Pointer) {
        let bytes = self
            .read_object(&pointer.manifest)
            .expect("the manifest is there");
        let manifest = TableManifest::parse(&bytes, pointer.version).unwrap();
        assert_eq!(manifest.commit_id, pointer.commit_id);
        assert_eq!(manifest.oldest_version, pointer.oldest_version);
        assert!(manifest.oldest_version <= manifest.version);
        let table = Table::new(self.world.direct_store(), &self.root).unwrap();
        let listed_files = block_on(all_files(&table, &manifest)).unwrap();
        let files: Vec<String> = listed_files.into_iter().map(|f| f.file.path).collect();
        let ledger = self.ledger.lock().unwrap();
        let rows = ledger.contents(manifest.version, &files);
        let after = Version {
            manifest,
            files,
            rows,
        };
        if let Some(before) = self.history.get(&(pointer.version - 1)) {
            check_change(before, &after);
        } else {
            assert_eq!((pointer.version, after.files.len()), (1, 0));
        }
        drop(ledger);
        self.history.insert(pointer.version, after);
    }

    /// Everything that a retained version names is there, and so is the version.
    fn audit(&self) {
        let Some(last_version) = self.history.values().next_back() else {
            return;
        };
        let newest = &last_version.manifest;
        let listed = self.list_paths();
        for version in newest.oldest_version..=newest.version {
            let retained = &self.history[&version];
            let name = format!("manifest/v{version:08}.json");
            assert!(listed.contains(&name), "retained version {version} is gone");
            for path in retained.references() {
                assert!(listed.contains(path), "{path} of version {version} is gone");
            }
        }
    }

    fn list_paths(&self) -> HashSet<String> {
        let prefix = Path::from(self.root.as_str());
        let all: Vec<_> = block_on(self.world.objects.list(Some(&prefix)).try_collect()).unwrap();
        let relative = |path: &str| path[self.root.len() + 1..].to_owned();
        all.iter()
            .map(|meta| relative(meta.location.as_ref()))
            .collect()
    }

    /// Of commits whose outcome was unknown, the table knows in the end.
    fn check_unknown(&mut self) {
        let unknown = self.ledger.lock().unwrap().unknown.clone();
        let table = Table::new(self.world.direct_store(), &self.root).unwrap();
        for commit_id in &unknown {
            // It may be the last commit, whose pointer nobody moved: asking moves it.
            let _ = block_on(was_committed(&table, commit_id));
            self.check_step();
            let mut manifests = self.history.values().map(|recorded| &recorded.manifest);
            let committed = manifests.find(|m| m.commit_id == *commit_id);
            match block_on(was_committed(&table, commit_id)) {
                Ok(version) => assert_eq!(version, committed.map(|m| m.version)),
                Err(e) => assert_eq!(e.kind(), ErrorKind::VersionExpired, "{e}"),
            }
        }
    }

    /// What was acknowledged is there once, what was refused never was.
    pub(super) fn check_end(&mut self) {
        self.check_unknown();
        self.audit();
        let ledger = self.ledger.lock().unwrap();
        let newest = self.history.values().next_back().expect("there is a table");
        for (version, commit_id, acknowledged) in &ledger.acknowledged {
            let recorded_commit = self.history.get(version).map(|v| &v.manifest.commit_id);
            assert_eq!(
                recorded_commit,
                Some(commit_id),
                "version {version} is of another commit"
            );
            for row in acknowledged {
                assert!(newest.rows.contains(row), "acknowledged row {row} is lost");
            }
        }
        for (version, committed) in &self.history {
            let row = committed
                .rows
                .iter()
                .find(|row| ledger.refused_rows.contains(row));
            assert_eq!(row, None, "a refused row is in version {version}");
            let is_refused = |path: &str| ledger.refused_files.contains(path);
            assert!(
                !committed.references().any(is_refused),
                "a refused file is in version {version}"
            );
        }
        for observed in &ledger.observed {
            assert_eq!(
                Some(observed),
                self.history.get(&observed.version).map(|v| &v.manifest),
                "a reader saw another version"
            );
        }
        let ids: HashSet<&CommitId> = self
            .history
            .values()
            .map(|v| &v.manifest.commit_id)
            .collect();
        assert_eq!(ids.len(), self.history.len(), "a commit is there twice");
    }
}

fn check_change(old: &Version, new: &Version) {
    let (before, after) = (&old.manifest, &new.manifest);
    assert_eq!(after.previous, Some(before.version));
    assert!(after.created_at > before.created_at);
    assert!(after.oldest_version >= before.oldest_version);
    assert!(after.gc_floor >= before.gc_floor);
    match after.operation.name.as_str() {
        "append" => {
            let files_are_kept = new.files.starts_with(&old.files);
            assert!(
                files_are_kept && new.rows.len() == old.rows.len() + 3,
                "an append adds three rows"
            );
        }
        "compact" => assert_eq!(old.rows, new.rows, "a compaction changes no row"),
        "vacuum" => assert_eq!(old.files, new.files),
        other => panic!("nobody does {other:?}"),
    }
}
