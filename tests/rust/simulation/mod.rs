//! Writers, compactions, vacuums and readers on one table, in every order a seed can think of, with
//! lost answers, late requests, stopped and crashed processes and wrong clocks.
//!
//! The history of the pointer is recorded request by request and compared with a model: what each
//! commit may change, that acknowledged rows are there exactly once and refused rows never.
//! `PDS_SIMULATION_SEED` replays one seed or a range (`0..500`), `PDS_SOAK` runs ten thousand.

mod clock;
mod datasets;
mod model;
mod rows;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::executor::LocalPool;
use futures::task::LocalSpawnExt;
use object_store::PutMode;
use pds::table::actions::{Append, MergedTombstones, NewTable, Replace, create};

use pds::table::format::{ColumnSchema, DataFile, TableManifest, TableSchema};
use pds::table::{
    Committed, FileRef, ListingLimits, SnapshotFile, Table, Versioned, all_files, data_file_name,
};
use pds::versions::commit::{Change, DEFAULT_TIMEOUT, commit};
use pds::versions::vacuum;
use pds::{Error, ErrorKind, Result};

use self::model::{CommitLedger, Model};
use self::world::{FaultRates, LateArrival, World};

const ROOT: &str = "lake/events";
const MAX_STEPS: usize = 200_000;
const OPERATIONS_PER_ACTOR: usize = 4;
const SHORT_LISTS: ListingLimits = ListingLimits {
    max_inline_files: 2,
    max_inline_bytes: 1 << 20,
    file_statistics: 32,
    segment_statistics: 8,
    max_segment_files: 5,
    max_merged_segment_bytes: 64 << 10,
    max_merged_segment_part: 32,
    max_inline_transactions: 2,
    max_listed_transactions: 5,
    merge_factor: 2,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Appends without a key: what is not acknowledged is not repeated.
    Appender,
    /// Appends with a key, once more after each failure until it is acknowledged.
    IdempotentAppender,
    Compactor,
    Vacuum,
    Reader,
}

const ROLES: [Role; 7] = [
    Role::Appender,
    Role::Appender,
    Role::IdempotentAppender,
    Role::IdempotentAppender,
    Role::Compactor,
    Role::Vacuum,
    Role::Reader,
];

/// One role's player: the process that has it may crash, and another goes on in its place.
#[derive(Clone)]
struct Actor {
    id: usize,
    role: Role,
    table: Table,
    world: World,
    ledger: Arc<Mutex<CommitLedger>>,
    operations_left: Arc<AtomicUsize>,
}

impl Actor {
    async fn run(self) {
        while self.operations_left.load(Ordering::Relaxed) > 0 {
            if self.run_operation().await {
                self.operations_left.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Does the next thing; false when it is to be done again.
    async fn run_operation(&self) -> bool {
        let Some(base) = self.open_or_create().await else {
            return false;
        };
        match self.role {
            Role::Appender => {
                self.append(&base, None).await;
            }
            Role::IdempotentAppender => {
                let operations_left = self.operations_left.load(Ordering::Relaxed);
                return self
                    .append(&base, Some(format!("{}-{operations_left}", self.id)))
                    .await;
            }
            Role::Compactor => {
                self.compact(&base).await;
            }
            Role::Vacuum => {
                let retention =
                    Duration::from_millis([0, 0, 100, 1000][self.world.draw(4) as usize]);
                let vacuumed = vacuum::vacuum(&self.table, retention, false, DEFAULT_TIMEOUT);
                return match vacuumed.await {
                    Ok(_) => true,
                    Err(e) => {
                        let unknown = ErrorKind::CommitStateUnknown;
                        let denied = ErrorKind::PermissionDenied;
                        expect_kind(&e, &[unknown, ErrorKind::Unavailable, denied]);
                        false
                    }
                };
            }
            Role::Reader => self.read(&base).await,
        }
        true
    }

    /// The newest snapshot of the table, which whoever comes first creates.
    async fn open_or_create(&self) -> Option<Arc<TableManifest>> {
        match self.table.newest().await {
            Ok(snapshot) => return Some(snapshot.manifest),
            Err(e) => {
                // It places the pointer of a table whose creator did not.
                let denied = ErrorKind::PermissionDenied;
                expect_kind(&e, &[ErrorKind::NotFound, ErrorKind::Unavailable, denied]);
            }
        }
        if let Err(e) = create(&self.table, new_table()).await {
            let (unknown, denied) = (ErrorKind::CommitStateUnknown, ErrorKind::PermissionDenied);
            let exists = ErrorKind::AlreadyExists;
            expect_kind(&e, &[exists, unknown, denied, ErrorKind::Unavailable]);
        }
        None
    }

    async fn upload(&self, base: u64, rows: &[u64]) -> Result<DataFile> {
        let clock = self.table.store().clock();
        let path = data_file_name(clock.now(), base, clock.new_id());
        let bytes = Bytes::from(format!("{rows:?}"));
        let file = DataFile {
            path: path.clone(),
            size_bytes: bytes.len() as u64,
            footer_size: 0,
            row_group_count: 1,
            total_rows: rows.len() as u64,
            min: BTreeMap::new(),
            max: BTreeMap::new(),
            null_counts: BTreeMap::new(),
            columns: None,
            constants: BTreeMap::new(),
            checksum: None,
        };
        self.ledger.lock().unwrap().record_upload(&path, rows);
        let path = self.table.path(&path);
        let put = self.table.store().put(&path, bytes, PutMode::Overwrite);
        put.await.map(|_| file)
    }

    async fn append(&self, base: &TableManifest, key: Option<String>) -> bool {
        let rows = self.ledger.lock().unwrap().rows_for_key(key.as_deref());
        let Ok(file) = self.upload(base.version, &rows).await else {
            return false;
        };
        let path = file.path.clone();
        let change = Append {
            files: vec![file],
            base_version: base.version,
            idempotency_key: key,
        };
        self.commit_and_record(&change, &path, &rows).await
    }

    /// The files of a snapshot; None where it cannot be read now.
    async fn list_files(&self, base: &TableManifest) -> Option<Vec<SnapshotFile>> {
        let listed = all_files(&self.table, base).await;
        let expected_errors = [ErrorKind::VersionExpired, ErrorKind::Unavailable];
        listed
            .inspect_err(|e| expect_kind(e, &expected_errors))
            .ok()
    }

    async fn compact(&self, base: &TableManifest) -> bool {
        let Some(files) = self.list_files(base).await else {
            return false;
        };
        let count = files.len();
        if count < 2 {
            return true;
        }
        let first = self.world.draw(u32::try_from(count - 1).unwrap()) as usize;
        let neighbours = files[first..first + 2].iter();
        let removed: Vec<FileRef> = neighbours.map(SnapshotFile::to_file_ref).collect();
        let rows = self.ledger.lock().unwrap().rows_in(&removed);
        let Ok(file) = self.upload(base.version, &rows).await else {
            return false;
        };
        let path = file.path.clone();
        let change = Replace {
            operation: "compact",
            merged: MergedTombstones::default(),
            removed,
            applied_tombstones: Vec::new(),
            added: vec![file],
            base_version: base.version,
        };
        self.commit_and_record(&change, &path, &[]).await
    }

    /// Commits and notes the outcome; whether it was acknowledged.
    async fn commit_and_record(
        &self,
        change: &dyn Change<TableManifest>,
        path: &str,
        rows: &[u64],
    ) -> bool {
        // Some have no patience, and learn that the outcome is unknown.
        let timeout = [Duration::ZERO, DEFAULT_TIMEOUT][self.world.draw(2) as usize];
        let outcome = commit(&self.table, change, timeout).await;
        let mut ledger = self.ledger.lock().unwrap();
        match outcome {
            Ok(Committed {
                version, commit_id, ..
            }) => {
                ledger.record_acknowledged(version, commit_id, rows);
                true
            }
            Err(e) => {
                if e.kind() == ErrorKind::CommitStateUnknown {
                    ledger.record_unknown(e.detail().unwrap());
                } else if change.idempotency_key().is_none() {
                    ledger.record_refused(path, rows);
                }
                expect_kind(
                    &e,
                    &[
                        ErrorKind::CommitStateUnknown,
                        ErrorKind::CommitConflict,
                        ErrorKind::TransactionExpired,
                        ErrorKind::Unavailable,
                        ErrorKind::PermissionDenied,
                    ],
                );
                false
            }
        }
    }

    /// Everything a snapshot names is there, or the snapshot has expired.
    async fn read(&self, base: &TableManifest) {
        let files = self.list_files(base).await.unwrap_or_default();
        let listed = files.iter().map(|f| f.file.path.as_str());
        for path in base.references().chain(listed) {
            let metadata = self.table.store().head(&self.table.path(path)).await;
            let Err(missing) = metadata else { continue };
            expect_kind(&missing, &[ErrorKind::NotFound, ErrorKind::Unavailable]);
            if missing.kind() == ErrorKind::NotFound {
                match self.table.newest().await {
                    Ok(newest) => assert!(
                        !newest.manifest.retains(base.version),
                        "{path} of version {} is not there, and it is retained",
                        base.version
                    ),
                    Err(e) => expect_kind(&e, &[ErrorKind::Unavailable]),
                }
            }
        }
        let limit = u32::try_from(base.version).unwrap();
        let version = u64::from(self.world.draw(limit)) + 1;
        match self.table.manifest_at(version).await {
            Ok(older) => self.ledger.lock().unwrap().record_observed(&older),
            Err(e) => expect_kind(&e, &[ErrorKind::VersionExpired, ErrorKind::Unavailable]),
        }
    }
}

fn expect_kind(error: &Error, kinds: &[ErrorKind]) {
    assert!(kinds.contains(&error.kind()), "{:?}: {error}", error.kind());
}

fn new_table() -> NewTable {
    NewTable {
        schema: TableSchema {
            columns: vec![ColumnSchema {
                id: 1,
                name: "row".to_owned(),
                data_type: "uint64".to_owned(),
                ..ColumnSchema::default()
            }],
            last_id: 1,
            ..TableSchema::default()
        },
        arrow_schema: Bytes::new().into(),
        key: vec![1],
        sort_by: Vec::new(),
        exports: std::collections::BTreeSet::new(),
    }
}

fn open_table(world: &World, actor: usize, limits: ListingLimits) -> Table {
    let mut table = Table::new(world.store(actor), ROOT).unwrap();
    table.limits = limits;
    table
}

/// Plays one seed to its end.
fn simulate(seed: u64, rates: FaultRates) -> Model {
    let world = World::new(seed, rates);
    let mut model = Model::new(&world, ROOT);
    // In some worlds lists are long after few commits.
    let limits = [ListingLimits::default(), SHORT_LISTS][world.draw(2) as usize];
    let mut pool = LocalPool::new();
    let active_actors = Arc::new(AtomicUsize::new(0));
    let mut actors = Vec::new();
    let spawn = |actor: &Actor, pool: &LocalPool| {
        active_actors.fetch_add(1, Ordering::Relaxed);
        let (actor, active_actors) = (actor.clone(), Arc::clone(&active_actors));
        let task = async move {
            actor.run().await;
            active_actors.fetch_sub(1, Ordering::Relaxed);
        };
        pool.spawner().spawn_local(task).unwrap();
    };
    for (actor_id, role) in ROLES.into_iter().enumerate() {
        let actor = Actor {
            id: actor_id,
            role,
            table: open_table(&world, actor_id, limits),
            world: world.clone(),
            ledger: Arc::clone(&model.ledger),
            operations_left: Arc::new(AtomicUsize::new(OPERATIONS_PER_ACTOR)),
        };
        spawn(&actor, &pool);
        actors.push(actor);
    }
    for _ in 0..MAX_STEPS {
        pool.run_until_stalled();
        for actor_id in world.take_crashed() {
            active_actors.fetch_sub(1, Ordering::Relaxed);
            // Another process, with another clock.
            let number = actors.len();
            let mut successor = actors[actor_id].clone();
            successor.table = open_table(&world, number, limits);
            spawn(&successor, &pool);
            actors.push(successor);
        }
        pool.run_until_stalled();
        model.check_step();
        if !world.step() {
            assert_eq!(
                active_actors.load(Ordering::Relaxed),
                0,
                "somebody waits for nothing"
            );
            model.check_end();
            return model;
        }
    }
    panic!("no end after {MAX_STEPS} steps");
}

fn run_seeds(seeds: std::ops::Range<u64>, rates: FaultRates) {
    let mut commits = 0;
    for seed in seeds {
        let simulation = std::panic::AssertUnwindSafe(|| simulate(seed, rates));
        match std::panic::catch_unwind(simulation) {
            Ok(model) => commits += model.commits(),
            Err(panic) => {
                let replay = format!("PDS_SIMULATION_SEED={seed} replays it");
                let plain = panic.downcast_ref::<&str>().copied();
                let message = panic.downcast_ref::<String>().map_or(plain, |t| Some(t));
                let text = message.unwrap_or_default();
                panic!("seed {seed}, {rates:?}: {text}; {replay}");
            }
        }
    }
    assert!(commits > 0, "nothing was ever committed");
}

fn seeds(default_count: u64) -> std::ops::Range<u64> {
    if let Ok(seeds) = std::env::var("PDS_SIMULATION_SEED") {
        let (first, end) = seeds.split_once("..").unwrap_or((&seeds, ""));
        let first = first.parse().unwrap();
        return first..end.parse().unwrap_or(first + 1);
    }
    0..if std::env::var_os("PDS_SOAK").is_some() {
        10_000
    } else {
        default_count
    }
}

const CRASHES: FaultRates = FaultRates {
    failures_per_mille: 30,
    crashes_per_mille: 10,
    late_arrival: LateArrival::AnyTime,
    has_pauses: true,
};

const FREQUENT_FAULTS: FaultRates = FaultRates {
    failures_per_mille: 400,
    crashes_per_mille: 3,
    late_arrival: LateArrival::AnyTime,
    has_pauses: true,
};

/// A commit without patience met a snapshot whose older transactions were vacuumed, and said that a version had expired.
#[test]
fn table_history_of_seeds_that_failed() {
    run_seeds(1034..1035, CRASHES);
    run_seeds(1436..1437, FREQUENT_FAULTS);
    run_seeds(2163..2164, FREQUENT_FAULTS);
    run_seeds(3683..3684, FREQUENT_FAULTS);
}

#[test]
fn table_history_without_faults() {
    let rates = FaultRates {
        failures_per_mille: 0,
        crashes_per_mille: 0,
        late_arrival: LateArrival::AnyTime,
        has_pauses: true,
    };
    run_seeds(seeds(100), rates);
}

#[test]
fn table_history_with_lost_responses_and_late_requests() {
    let rates = FaultRates {
        failures_per_mille: 60,
        crashes_per_mille: 0,
        late_arrival: LateArrival::AnyTime,
        has_pauses: true,
    };
    run_seeds(seeds(150), rates);
}

#[test]
fn table_history_with_frequent_faults() {
    run_seeds(seeds(60), FREQUENT_FAULTS);
}

#[test]
fn table_history_with_crashes() {
    run_seeds(seeds(250), CRASHES);
}
