//! Appends, deletes, upserts, overwrites, restores, compactions and vacuums of one table with real
//! files, in the order a seed thinks of; readers scan any version meanwhile.
//!
//! In the end the commits are played again, one after the other, on a map of rows, and whatever a
//! reader saw of a version must be what the map held then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::executor::block_on;
use object_store::ObjectStoreExt;
use object_store::path::Path;
use pds::parquet::options::WriteOptions;
use pds::table::actions::{NewTable, Restore, create};
use pds::table::commit::{DEFAULT_TIMEOUT, commit};
use pds::table::format::{Manifest, Pointer};
use pds::table::{
    Instead, Limits, Table, Upload, Wanted, compact, delete, exchange, scan, vacuum, write,
};
use pds::{Error, ErrorKind, Result};

use super::datasets::drive;
use super::world::{FaultRates, LateArrival, World};
use super::{SHORT_LISTS, expect, seeds};

const ROOT: &str = "lake/rows";
const TURNS: usize = 3;
/// Keys that upserts and overwrites are about; appends bring larger ones.
const SHARED_KEYS: u32 = 20;

#[derive(Debug, Clone, Copy)]
enum Role {
    Appender,
    Upserter,
    Deleter,
    Overwriter,
    Compactor,
    Restorer,
    Vacuum,
    Reader,
}

const CAST: [Role; 10] = [
    Role::Appender,
    Role::Upserter,
    Role::Upserter,
    Role::Deleter,
    Role::Deleter,
    Role::Overwriter,
    Role::Compactor,
    Role::Restorer,
    Role::Vacuum,
    Role::Reader,
];

/// Which rows a delete or an overwrite is about.
#[derive(Debug, Clone)]
enum Meant {
    Range(RangeInclusive<i64>),
    Modulo(i64, i64),
}

impl Meant {
    fn sql(&self) -> String {
        match self {
            Self::Range(keys) => format!("id BETWEEN {} AND {}", keys.start(), keys.end()),
            Self::Modulo(by, rest) => format!("id % {by} = {rest}"),
        }
    }

    fn holds(&self, id: i64) -> bool {
        match self {
            Self::Range(keys) => keys.contains(&id),
            Self::Modulo(by, rest) => id % by == *rest,
        }
    }
}

/// Rows by key: the write that brought them, and the version that write made.
type Rows = BTreeMap<i64, (i64, u64)>;
/// What a reader sees: keys and writes.
type Seen = Vec<(i64, i64)>;

/// What the players did and saw.
#[derive(Default)]
struct Ledger {
    writes: i64,
    /// The keys that a write brings, by its number.
    keys: HashMap<i64, Vec<i64>>,
    meant: HashMap<String, Meant>,
    acknowledged: Vec<(i64, u64)>,
    refused: BTreeSet<i64>,
    seen: Vec<(u64, Seen)>,
    /// Manifests as the pointer came to them.
    history: BTreeMap<u64, Manifest>,
}

type Shared = Arc<Mutex<Ledger>>;

fn schema() -> SchemaRef {
    let field = |name| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(vec![field("id"), field("write")]))
}

fn rows(number: i64, keys: &[i64]) -> Box<dyn RecordBatchReader + Send> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(keys.to_vec())),
        Arc::new(Int64Array::from_value(number, keys.len())),
    ];
    let batch = RecordBatch::try_new(schema(), columns).unwrap();
    Box::new(RecordBatchIterator::new([Ok(batch)], schema()))
}

fn how(number: i64) -> Upload {
    Upload {
        options: WriteOptions::new("none", None, Some(3), None, Some(32 << 20)).unwrap(),
        resident: true,
        overwrite: false,
        idempotency_key: Some(number.to_string()),
        timeout: DEFAULT_TIMEOUT,
        order: None,
    }
}

/// One actor.
struct Player {
    world: World,
    table: Table,
    ledger: Shared,
}

impl Player {
    fn draw(&self, limit: u32) -> i64 {
        i64::from(self.world.draw(limit))
    }

    /// A new write and its keys.
    fn begin(&self, keys: impl FnOnce(i64) -> Vec<i64>) -> (i64, Vec<i64>) {
        let mut ledger = self.ledger.lock().unwrap();
        ledger.writes += 1;
        let number = ledger.writes;
        let keys = keys(number);
        ledger.keys.insert(number, keys.clone());
        (number, keys)
    }

    fn some_keys(&self, of: RangeInclusive<i64>) -> Vec<i64> {
        let keys: BTreeSet<i64> = (0..4)
            .map(|_| of.start() + self.draw(u32::try_from(of.end() - of.start() + 1).unwrap()))
            .collect();
        keys.into_iter().collect()
    }

    /// Notes how a write ended; who was told that nothing was committed must be right.
    fn ended(&self, number: i64, done: Result<u64>) -> Result<()> {
        let mut ledger = self.ledger.lock().unwrap();
        let certain = [ErrorKind::CommitConflict, ErrorKind::TransactionExpired];
        match done {
            Ok(version) => ledger.acknowledged.push((number, version)),
            Err(e) => {
                if certain.contains(&e.kind()) {
                    ledger.refused.insert(number);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    async fn act(&self, role: Role) -> Result<()> {
        let table = &self.table;
        match role {
            Role::Appender => self.append().await,
            Role::Upserter => {
                let all = 0..=i64::from(SHARED_KEYS) - 1;
                let (number, keys) = self.begin(|_| self.some_keys(all));
                let instead = Instead::Of(None);
                let done = exchange(table, rows(number, &keys), &instead, &how(number)).await;
                self.ended(number, done.map(|(done, _)| done.version))
            }
            Role::Overwriter => {
                let first = self.draw(SHARED_KEYS - 5);
                let meant = Meant::Range(first..=first + 5);
                let (number, keys) = self.begin(|_| self.some_keys(first..=first + 5));
                let instead = Instead::Where(self.means(&meant).as_str().into());
                let done = exchange(table, rows(number, &keys), &instead, &how(number)).await;
                self.ended(number, done.map(|(done, _)| done.version))
            }
            Role::Deleter => {
                let meant = match self.draw(3) {
                    0 => Meant::Modulo(3, self.draw(3)),
                    1 => Meant::Range(self.draw(20)..=20 + self.draw(3000)),
                    _ => Meant::Range(self.draw(20)..=self.draw(25)),
                };
                delete(table, &self.means(&meant).as_str().into(), DEFAULT_TIMEOUT)
                    .await
                    .map(drop)
            }
            Role::Compactor => {
                let how = Upload {
                    idempotency_key: None,
                    ..how(0)
                };
                // With the smaller one hardly a file is, but tombstones are merged.
                let target = [1, 1 << 20][self.world.draw(2) as usize];
                compact(table, target, None, &how).await.map(drop)
            }
            Role::Restorer => {
                let newest = table.newest().await?.manifest.version;
                let back = u64::from(self.world.draw(4));
                let from = table.at(newest.saturating_sub(back).max(1)).await?;
                let restored = commit(table, &Restore { from }, DEFAULT_TIMEOUT).await;
                restored.map(drop)
            }
            Role::Vacuum => {
                let retention = Duration::from_millis([0, 100, 1000][self.world.draw(3) as usize]);
                let done = vacuum::vacuum(table, retention, false, DEFAULT_TIMEOUT).await;
                done.map(drop)
            }
            Role::Reader => self.read().await,
        }
    }

    async fn append(&self) -> Result<()> {
        if self.draw(2) == 0 {
            // Without keys they wait for each other, and the last two share a commit.
            let writes: Vec<_> = (0..3).map(|_| self.append_one()).collect();
            let done = futures::future::join_all(writes).await;
            return done.into_iter().collect();
        }
        let (number, keys) = self.begin(|n| (n * 100..n * 100 + 5).collect());
        let done = write(&self.table, rows(number, &keys), &how(number)).await;
        self.ended(number, done.map(|(done, _)| done.version))
    }

    async fn append_one(&self) -> Result<()> {
        let (number, keys) = self.begin(|n| (n * 100..n * 100 + 5).collect());
        let how = Upload {
            idempotency_key: None,
            ..how(number)
        };
        let done = write(&self.table, rows(number, &keys), &how).await;
        self.ended(number, done.map(|(done, _)| done.version))
    }

    fn means(&self, meant: &Meant) -> String {
        let mut ledger = self.ledger.lock().unwrap();
        ledger.meant.insert(meant.sql(), meant.clone());
        meant.sql()
    }

    async fn read(&self) -> Result<()> {
        let newest = self.table.newest().await?.manifest;
        let back = u64::from(self.world.draw(3));
        let version = newest.version.saturating_sub(back).max(1);
        let manifest = self.table.at(version).await?;
        let seen = contents(&self.table, manifest).await?;
        self.ledger.lock().unwrap().seen.push((version, seen));
        Ok(())
    }
}

async fn contents(table: &Table, manifest: Arc<Manifest>) -> Result<Seen> {
    let mut scan = scan(table, manifest, Wanted::default()).await?;
    let mut seen = Seen::new();
    while let Some(batch) = scan.next().await {
        let batch = batch?;
        let column = |i: usize| {
            batch
                .column(i)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        };
        seen.extend(column(0).into_iter().zip(column(1)));
    }
    seen.sort_unstable();
    Ok(seen)
}

/// Takes note of the versions that the pointer has come to.
fn record(world: &World, ledger: &Shared) {
    let object = |relative: &str| {
        let path = Path::from(format!("{ROOT}/{relative}"));
        let found = block_on(world.objects.get(&path)).ok()?;
        block_on(found.bytes()).ok()
    };
    let pointer = Pointer::parse(&object("_latest_manifest").unwrap()).unwrap();
    let mut ledger = ledger.lock().unwrap();
    let last = ledger.history.keys().next_back().copied().unwrap_or(0);
    if pointer.version != last {
        assert_eq!(pointer.version, last + 1, "the pointer jumped");
        let manifest = Manifest::parse(&object(&pointer.manifest).unwrap(), pointer.version);
        ledger.history.insert(pointer.version, manifest.unwrap());
    }
}

/// The rows of every version, by playing the commits again.
fn replay(ledger: &Ledger) -> BTreeMap<u64, Rows> {
    let newest = ledger.history.values().next_back().unwrap();
    let keyed = newest.transactions.iter();
    let mut numbers: HashMap<u64, Vec<i64>> = keyed
        .map(|(key, done)| (done.version, vec![key.parse().unwrap()]))
        .collect();
    for (version, manifest) in &ledger.history {
        let before = ledger.history.get(&(version - 1));
        if manifest.operation.name == "append" && !numbers.contains_key(version) {
            numbers.insert(*version, new_writes(manifest, before.unwrap()));
        }
    }
    let mut states: BTreeMap<u64, Rows> = BTreeMap::new();
    let mut rows = Rows::new();
    for (version, manifest) in &ledger.history {
        let operation = &manifest.operation;
        let filter = operation.details.get("filter").and_then(|f| f.as_str());
        let meant = filter.map(|filter| &ledger.meant[filter]);
        match operation.name.as_str() {
            "upsert" => rows.retain(|id, _| !ledger.keys[&numbers[version][0]].contains(id)),
            "overwrite" => rows.retain(|id, _| !meant.unwrap().holds(*id)),
            "delete" => {
                // Rows that came while it was under way stay.
                let read = operation.details["read_version"].as_u64().unwrap();
                rows.retain(|id, (_, since)| !meant.unwrap().holds(*id) || *since > read);
            }
            "restore" => {
                let from = operation.details["restored_version"].as_u64().unwrap();
                rows.clone_from(&states[&from]);
            }
            "create" | "append" | "compact" | "vacuum" => {}
            other => panic!("nobody does {other:?}"),
        }
        for number in numbers.get(version).into_iter().flatten() {
            for key in &ledger.keys[number] {
                let before = rows.insert(*key, (*number, *version));
                assert!(
                    before.is_none(),
                    "key {key} is there twice in version {version}"
                );
            }
        }
        states.insert(*version, rows.clone());
    }
    for (number, version) in &ledger.acknowledged {
        let there = numbers.get(version).is_some_and(|n| n.contains(number));
        assert!(there, "write {number} is not there");
    }
    let mut all = numbers.values().flatten();
    let refused = all.find(|n| ledger.refused.contains(n));
    assert_eq!(refused, None, "a refused write is there");
    states
}

/// The writes whose files a version has and the one before it has not, by the bounds of their numbers.
fn new_writes(manifest: &Manifest, before: &Manifest) -> Vec<i64> {
    let known: BTreeSet<&str> = before.data_files.iter().map(|f| f.path.as_str()).collect();
    let new = manifest.data_files.iter();
    let new = new.filter(|f| !known.contains(f.path.as_str()));
    let numbers: Vec<i64> = new.map(|f| f.min[&2].as_i64().unwrap()).collect();
    let told = manifest.operation.details.get("appends");
    let told = told.map_or(1, |n| n.as_u64().unwrap());
    assert_eq!(
        numbers.len() as u64,
        told,
        "appends of version {}",
        manifest.version
    );
    numbers
}

async fn simulate(seed: u64, weather: FaultRates) {
    let world = World::new(seed ^ 0x7ab1e, weather);
    let new = NewTable::of(&schema(), &["id".to_owned()], &[]).unwrap();
    let calm = Table::new(world.direct_store(), ROOT).unwrap();
    create(&calm, new).await.unwrap();
    let ledger = Shared::default();
    record(&world, &ledger);
    // What a commit of two brings has to be in sight.
    let short = Limits {
        inline: 4,
        ..SHORT_LISTS
    };
    let limits = [Limits::default(), short][world.draw(2) as usize];
    let living = Arc::new(AtomicUsize::new(0));
    let mut players = tokio::task::JoinSet::new();
    for (actor, role) in CAST.into_iter().enumerate() {
        let mut table = Table::new(world.store(actor), ROOT).unwrap();
        table.limits = limits;
        let player = Player {
            world: world.clone(),
            table,
            ledger: Arc::clone(&ledger),
        };
        let living = Arc::clone(&living);
        living.fetch_add(1, Ordering::SeqCst);
        players.spawn_local(async move {
            for _ in 0..TURNS {
                if let Err(e) = player.act(role).await {
                    allow(&e);
                }
            }
            living.fetch_sub(1, Ordering::SeqCst);
        });
    }
    drive(&world, &mut players, &living, || record(&world, &ledger)).await;
    // What is committed and not pointed at yet is moved on by whoever writes next.
    let last = write(&calm, rows(0, &[-1]), &how(0)).await.unwrap().0;
    let newest = calm.newest().await.unwrap().manifest;
    let known = ledger.lock().unwrap().history.len() as u64;
    let mut late = Vec::new();
    for version in known + 1..=newest.version {
        late.push(calm.at(version).await.unwrap());
    }
    let end = contents(&calm, newest).await.unwrap();
    let mut ledger = ledger.lock().unwrap();
    for manifest in late {
        ledger
            .history
            .insert(manifest.version, manifest.as_ref().clone());
    }
    ledger.keys.insert(0, vec![-1]);
    ledger.acknowledged.push((0, last.version));
    ledger.seen.push((last.version, end));
    let states = replay(&ledger);
    for (version, seen) in &ledger.seen {
        let expected: Seen = states[version]
            .iter()
            .map(|(id, (write, _))| (*id, *write))
            .collect();
        assert_eq!(*seen, expected, "version {version}");
    }
}

fn allow(error: &Error) {
    expect(
        error,
        &[
            ErrorKind::CommitConflict,
            ErrorKind::CommitStateUnknown,
            ErrorKind::TransactionExpired,
            ErrorKind::VersionExpired,
            ErrorKind::Unavailable,
            ErrorKind::PermissionDenied,
        ],
    );
}

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_seeds(usual: u64, weather: FaultRates) {
    let run = async {
        for seed in seeds(usual) {
            let played = tokio::task::spawn_local(simulate(seed, weather));
            if let Err(e) = played.await {
                panic!("seed {seed}, {weather:?}: {e}");
            }
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_the_commits() {
    let weather = FaultRates {
        failures_per_mille: 0,
        crashes_per_mille: 0,
        late_arrival: LateArrival::AnyTime,
        has_pauses: true,
    };
    run_seeds(60, weather).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_the_commits_with_lost_answers_and_crashes() {
    let weather = FaultRates {
        failures_per_mille: 30,
        crashes_per_mille: 4,
        late_arrival: LateArrival::AnyTime,
        has_pauses: true,
    };
    run_seeds(60, weather).await;
}
