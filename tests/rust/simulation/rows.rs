//! Appends, deletes, upserts, merges, overwrites, restores, compactions, sorts, changes of columns and vacuums of
//! one table with real files, in the order a seed thinks of; readers scan any version meanwhile.
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
use pds::table::actions::{Alter, NewTable, Restore, create};
use pds::table::format::{FORMAT, Pointer, TableManifest};
use pds::table::{
    Clause, ClauseAction, ClauseKind, ListingLimits, OpenedColumns, ReplaceTarget, ScanOptions,
    Table, TableWriteOptions, Versioned, compact, delete, merge, replace_rows, scan, scan_changes,
    sort, write,
};
use pds::versions::commit::{DEFAULT_TIMEOUT, commit};
use pds::versions::vacuum;
use pds::{Error, ErrorKind, Result};

use super::datasets::drive;
use super::world::{FaultRates, LateArrival, World};
use super::{SHORT_LISTS, expect_kind, seeds};

const ROOT: &str = "lake/rows";
const OPERATIONS_PER_ACTOR: usize = 3;
/// Keys that upserts and overwrites are about; appends bring larger ones.
const SHARED_KEYS: u32 = 20;

#[derive(Debug, Clone, Copy)]
enum Role {
    Appender,
    Upserter,
    Deleter,
    Overwriter,
    Merger,
    Compactor,
    Sorter,
    Alterer,
    Restorer,
    Vacuum,
    Reader,
}

const ROLES: [Role; 14] = [
    Role::Appender,
    Role::Upserter,
    Role::Upserter,
    Role::Deleter,
    Role::Deleter,
    Role::Overwriter,
    Role::Merger,
    Role::Merger,
    Role::Compactor,
    Role::Sorter,
    Role::Alterer,
    Role::Restorer,
    Role::Vacuum,
    Role::Reader,
];

/// Which rows a delete or an overwrite is about.
#[derive(Debug, Clone)]
enum KeyPredicate {
    Range(RangeInclusive<i64>),
    Modulo(i64, i64),
}

impl KeyPredicate {
    fn to_sql(&self) -> String {
        match self {
            Self::Range(keys) => format!("id BETWEEN {} AND {}", keys.start(), keys.end()),
            Self::Modulo(by, remainder) => format!("id % {by} = {remainder}"),
        }
    }

    fn matches(&self, id: i64) -> bool {
        match self {
            Self::Range(keys) => keys.contains(&id),
            Self::Modulo(by, remainder) => id % by == *remainder,
        }
    }
}

/// What a merge does, by the number of its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MergeKind {
    /// Updates rows and inserts others.
    Upsert,
    /// Inserts rows whose keys are not there.
    Insert,
    /// As an upsert, but rows of odd writes stay.
    UpdateEven,
}

impl MergeKind {
    fn of(number: i64) -> Self {
        [Self::Upsert, Self::Insert, Self::UpdateEven][usize::try_from(number % 3).unwrap()]
    }

    fn clauses(self) -> Vec<Clause> {
        let predicate = (self == Self::UpdateEven).then(|| "target.write % 2 = 0".to_owned());
        let update = Clause {
            kind: ClauseKind::Matched,
            predicate,
            action: ClauseAction::WriteAll,
        };
        let insert = Clause {
            kind: ClauseKind::NotMatched,
            predicate: None,
            action: ClauseAction::WriteAll,
        };
        match self {
            Self::Insert => vec![insert],
            _ => vec![update, insert],
        }
    }

    /// Whether a row of a write stays although its key is in the source.
    fn keeps(self, write: i64) -> bool {
        match self {
            Self::Upsert => false,
            Self::Insert => true,
            Self::UpdateEven => write % 2 != 0,
        }
    }
}

/// Rows by key: the write that brought them, and the version that write made.
type Rows = BTreeMap<i64, (i64, u64)>;
/// What a reader sees: keys and writes.
type ScannedRows = Vec<(i64, i64)>;

/// What the players did and saw.
#[derive(Default)]
struct RowLedger {
    writes: i64,
    /// The keys that a write brings, by its number.
    keys: HashMap<i64, Vec<i64>>,
    predicates: HashMap<String, KeyPredicate>,
    acknowledged: Vec<(i64, u64)>,
    refused: BTreeSet<i64>,
    scans: Vec<(u64, ScannedRows)>,
    /// Manifests as the pointer came to them.
    history: BTreeMap<u64, TableManifest>,
}

type SharedLedger = Arc<Mutex<RowLedger>>;

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

fn write_options(number: i64) -> TableWriteOptions {
    TableWriteOptions {
        write_options: WriteOptions::new("none", None, Some(3), None, Some(32 << 20)).unwrap(),
        input_in_memory: true,
        overwrite: false,
        idempotency_key: Some(number.to_string()),
        timeout: DEFAULT_TIMEOUT,
        if_version: None,
        merge_schema: false,
        sort_by: None,
        threads: None,
        opened: OpenedColumns::default(),
    }
}

/// One actor.
struct Actor {
    world: World,
    table: Table,
    ledger: SharedLedger,
}

impl Actor {
    fn draw(&self, limit: u32) -> i64 {
        i64::from(self.world.draw(limit))
    }

    /// A new write and its keys.
    fn begin_write(&self, keys: impl FnOnce(i64) -> Vec<i64>) -> (i64, Vec<i64>) {
        let mut ledger = self.ledger.lock().unwrap();
        ledger.writes += 1;
        let number = ledger.writes;
        let keys = keys(number);
        ledger.keys.insert(number, keys.clone());
        (number, keys)
    }

    fn random_keys(&self, range: RangeInclusive<i64>) -> Vec<i64> {
        let keys: BTreeSet<i64> = (0..4)
            .map(|_| {
                range.start() + self.draw(u32::try_from(range.end() - range.start() + 1).unwrap())
            })
            .collect();
        keys.into_iter().collect()
    }

    /// Notes how a write ended; who was told that nothing was committed must be right.
    fn record_outcome(&self, number: i64, result: Result<u64>) -> Result<()> {
        let mut ledger = self.ledger.lock().unwrap();
        let definite_errors = [ErrorKind::CommitConflict, ErrorKind::TransactionExpired];
        match result {
            Ok(version) => ledger.acknowledged.push((number, version)),
            Err(e) => {
                if definite_errors.contains(&e.kind()) {
                    ledger.refused.insert(number);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one operation for each role")]
    async fn run_operation(&self, role: Role) -> Result<()> {
        let table = &self.table;
        match role {
            Role::Appender => self.append().await,
            Role::Upserter => {
                let all = 0..=i64::from(SHARED_KEYS) - 1;
                let (number, keys) = self.begin_write(|_| self.random_keys(all));
                let replace_target = ReplaceTarget::MatchingKeys(None);
                self.replace(number, &keys, &replace_target).await
            }
            Role::Overwriter => {
                let first = self.draw(SHARED_KEYS - 5);
                let predicate = KeyPredicate::Range(first..=first + 5);
                let (number, keys) = self.begin_write(|_| self.random_keys(first..=first + 5));
                let replace_target =
                    ReplaceTarget::Predicate(self.record_predicate(&predicate).as_str().into());
                self.replace(number, &keys, &replace_target).await
            }
            Role::Merger => {
                let all = 0..=i64::from(SHARED_KEYS) - 1;
                let (number, keys) = self.begin_write(|_| self.random_keys(all));
                let (source, clauses) = (rows(number, &keys), MergeKind::of(number).clauses());
                let merged = merge(table, source, None, &clauses, &write_options(number)).await;
                let version = merged.map(|m| m.committed.map_or(0, |c| c.version));
                self.record_outcome(number, version)
            }
            Role::Alterer => self.alter().await,
            Role::Sorter => {
                let options = TableWriteOptions {
                    idempotency_key: None,
                    ..write_options(0)
                };
                sort(table, None, 1 << 20, &options).await.map(drop)
            }
            Role::Deleter => {
                let predicate = match self.draw(3) {
                    0 => KeyPredicate::Modulo(3, self.draw(3)),
                    1 => KeyPredicate::Range(self.draw(20)..=20 + self.draw(3000)),
                    _ => KeyPredicate::Range(self.draw(20)..=self.draw(25)),
                };
                delete(
                    table,
                    &self.record_predicate(&predicate).as_str().into(),
                    OpenedColumns::default(),
                    DEFAULT_TIMEOUT,
                )
                .await
                .map(drop)
            }
            Role::Compactor => {
                let options = TableWriteOptions {
                    idempotency_key: None,
                    ..write_options(0)
                };
                // With the smaller one hardly a file is, but tombstones are merged.
                let target = [1, 1 << 20][self.world.draw(2) as usize];
                compact(table, target, None, &options).await.map(drop)
            }
            Role::Restorer => {
                let newest = table.newest().await?.manifest.version;
                let back = u64::from(self.world.draw(4));
                let from = table
                    .manifest_at(newest.saturating_sub(back).max(1))
                    .await?;
                let restored = commit(table, &Restore { from }, DEFAULT_TIMEOUT).await;
                restored.map(drop)
            }
            Role::Vacuum => {
                let retention = Duration::from_millis([0, 100, 1000][self.world.draw(3) as usize]);
                let vacuumed = vacuum::vacuum(table, retention, false, DEFAULT_TIMEOUT).await;
                vacuumed.map(drop)
            }
            Role::Reader => self.read().await,
        }
    }

    async fn replace(&self, number: i64, keys: &[i64], target: &ReplaceTarget) -> Result<()> {
        let (input, options) = (rows(number, keys), write_options(number));
        let replaced = replace_rows(&self.table, input, target, &options).await;
        self.record_outcome(number, replaced.map(|(committed, _)| committed.version))
    }

    /// Adds a column of nulls, or drops the last one that was added.
    async fn alter(&self) -> Result<()> {
        let newest = self.table.newest().await?.manifest;
        let last = newest.schema.columns.last().unwrap();
        let change = if newest.schema.columns.len() > 2 && self.draw(2) == 0 {
            let column = last.name.clone();
            Alter::Drop { column }
        } else {
            let name = format!("c{}", self.draw(1 << 30));
            Alter::Add(Field::new(name, DataType::Int64, true))
        };
        match commit(&self.table, &change, DEFAULT_TIMEOUT).await {
            // Somebody else has dropped it.
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
            altered => altered.map(drop),
        }
    }

    async fn append(&self) -> Result<()> {
        if self.draw(2) == 0 {
            // Without keys they wait for each other, and the last two share a commit.
            let writes: Vec<_> = (0..3).map(|_| self.append_one()).collect();
            let results = futures::future::join_all(writes).await;
            return results.into_iter().collect();
        }
        let (number, keys) = self.begin_write(|n| (n * 100..n * 100 + 5).collect());
        let result = write(&self.table, rows(number, &keys), &write_options(number)).await;
        self.record_outcome(number, result.map(|(committed, _)| committed.version))
    }

    async fn append_one(&self) -> Result<()> {
        let (number, keys) = self.begin_write(|n| (n * 100..n * 100 + 5).collect());
        let options = TableWriteOptions {
            idempotency_key: None,
            ..write_options(number)
        };
        let result = write(&self.table, rows(number, &keys), &options).await;
        self.record_outcome(number, result.map(|(committed, _)| committed.version))
    }

    fn record_predicate(&self, predicate: &KeyPredicate) -> String {
        let mut ledger = self.ledger.lock().unwrap();
        ledger
            .predicates
            .insert(predicate.to_sql(), predicate.clone());
        predicate.to_sql()
    }

    async fn read(&self) -> Result<()> {
        let newest = self.table.newest().await?.manifest;
        let back = u64::from(self.world.draw(3));
        let version = newest.version.saturating_sub(back).max(1);
        let manifest = self.table.manifest_at(version).await?;
        let scanned = scan_rows(&self.table, manifest).await?;
        self.ledger.lock().unwrap().scans.push((version, scanned));
        Ok(())
    }
}

async fn scan_rows(table: &Table, manifest: Arc<TableManifest>) -> Result<ScannedRows> {
    let mut stream = scan(table, manifest, ScanOptions::default()).await?;
    let mut scanned = ScannedRows::new();
    while let Some(batch) = stream.next().await {
        let batch = batch?;
        let column = |i: usize| {
            batch
                .column(i)
                .as_primitive::<Int64Type>()
                .values()
                .to_vec()
        };
        scanned.extend(column(0).into_iter().zip(column(1)));
    }
    scanned.sort_unstable();
    Ok(scanned)
}

/// Takes note of the versions that the pointer has come to.
fn record_version(world: &World, ledger: &SharedLedger) {
    let object = |relative: &str| {
        let path = Path::from(format!("{ROOT}/{relative}"));
        let result = block_on(world.objects.get(&path)).ok()?;
        block_on(result.bytes()).ok()
    };
    let pointer = Pointer::parse(&object("_latest_manifest").unwrap(), FORMAT).unwrap();
    let mut ledger = ledger.lock().unwrap();
    let last = ledger.history.keys().next_back().copied().unwrap_or(0);
    if pointer.version != last {
        assert_eq!(pointer.version, last + 1, "the pointer jumped");
        let manifest = TableManifest::parse(&object(&pointer.manifest).unwrap(), pointer.version);
        ledger.history.insert(pointer.version, manifest.unwrap());
    }
}

/// The rows of every version, by playing the commits again.
fn replay(ledger: &RowLedger) -> BTreeMap<u64, Rows> {
    // A commit's own key is in its manifest, before later ones move it to a list.
    let transactions = ledger.history.values().flat_map(|m| &m.transactions);
    let mut numbers: HashMap<u64, Vec<i64>> = transactions
        .map(|(key, transaction)| (transaction.version, vec![key.parse().unwrap()]))
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
        let predicate = filter.map(|filter| &ledger.predicates[filter]);
        match operation.name.as_str() {
            "upsert" => rows.retain(|id, _| !ledger.keys[&numbers[version][0]].contains(id)),
            "overwrite" => rows.retain(|id, _| !predicate.unwrap().matches(*id)),
            "delete" => {
                // Rows that came while it was under way stay.
                let read_version = operation.details["read_version"].as_u64().unwrap();
                rows.retain(|id, (_, written_version)| {
                    !predicate.unwrap().matches(*id) || *written_version > read_version
                });
            }
            "restore" => {
                let from = operation.details["restored_version"].as_u64().unwrap();
                rows.clone_from(&states[&from]);
            }
            "merge" => {
                let number = numbers[version][0];
                let (kind, keys) = (MergeKind::of(number), &ledger.keys[&number]);
                rows.retain(|id, (write, _)| !keys.contains(id) || kind.keeps(*write));
            }
            "create" | "append" | "compact" | "sort" | "vacuum" | "add_column" | "drop_column" => {}
            other => panic!("nobody does {other:?}"),
        }
        for number in numbers.get(version).into_iter().flatten() {
            for key in &ledger.keys[number] {
                if operation.name == "merge" && rows.contains_key(key) {
                    // It stayed.
                    continue;
                }
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
        let is_committed = numbers.get(version).is_some_and(|n| n.contains(number));
        assert!(is_committed, "write {number} is not there");
    }
    let mut all = numbers.values().flatten();
    let refused = all.find(|n| ledger.refused.contains(n));
    assert_eq!(refused, None, "a refused write is there");
    states
}

/// The writes whose files a version has and the one before it has not, by the bounds of their numbers.
fn new_writes(manifest: &TableManifest, before: &TableManifest) -> Vec<i64> {
    let known_paths: BTreeSet<&str> = before.data_files.iter().map(|f| f.path.as_str()).collect();
    let files = manifest.data_files.iter();
    let new_files = files.filter(|f| !known_paths.contains(f.path.as_str()));
    let numbers: Vec<i64> = new_files.map(|f| f.min[&2].as_i64().unwrap()).collect();
    let appends = manifest.operation.details.get("appends");
    let append_count = appends.map_or(1, |n| n.as_u64().unwrap());
    assert_eq!(
        numbers.len() as u64,
        append_count,
        "appends of version {}",
        manifest.version
    );
    numbers
}

async fn simulate(seed: u64, rates: FaultRates) {
    let world = World::new(seed ^ 0x7ab1e, rates);
    let table_definition = NewTable::new(&schema(), &["id".to_owned()], &[]).unwrap();
    let direct_table = Table::new(world.direct_store(), ROOT).unwrap();
    create(&direct_table, table_definition).await.unwrap();
    let ledger = SharedLedger::default();
    record_version(&world, &ledger);
    // What a commit of two brings has to be in sight.
    let short = ListingLimits {
        max_inline_files: 4,
        ..SHORT_LISTS
    };
    let limits = [ListingLimits::default(), short][world.draw(2) as usize];
    let active_actors = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for (actor_id, role) in ROLES.into_iter().enumerate() {
        let mut table = Table::new(world.store(actor_id), ROOT).unwrap();
        table.limits = limits;
        let actor = Actor {
            world: world.clone(),
            table,
            ledger: Arc::clone(&ledger),
        };
        let active_actors = Arc::clone(&active_actors);
        active_actors.fetch_add(1, Ordering::SeqCst);
        tasks.spawn_local(async move {
            for _ in 0..OPERATIONS_PER_ACTOR {
                if let Err(e) = actor.run_operation(role).await {
                    expect_allowed(&e);
                }
            }
            active_actors.fetch_sub(1, Ordering::SeqCst);
        });
    }
    drive(&world, &mut tasks, &active_actors, || {
        record_version(&world, &ledger);
    })
    .await;
    check_scans(&direct_table, &ledger).await;
}

/// Compares every scan with the replayed commits.
async fn check_scans(direct_table: &Table, ledger: &SharedLedger) {
    // What is committed and not pointed at yet is moved on by whoever writes next.
    let last = loop {
        match write(direct_table, rows(0, &[-1]), &write_options(0)).await {
            Ok((last, _)) => break last,
            // A version with older columns was committed, and is found only now.
            Err(e) => assert_eq!(e.kind(), ErrorKind::TransactionExpired, "{e}"),
        }
    };
    let newest = direct_table.newest().await.unwrap().manifest;
    let recorded_count = ledger.lock().unwrap().history.len() as u64;
    let mut unrecorded = Vec::new();
    for version in recorded_count + 1..=newest.version {
        unrecorded.push(direct_table.manifest_at(version).await.unwrap());
    }
    let oldest_version = newest.oldest_version;
    let end = scan_rows(direct_table, newest).await.unwrap();
    let (states, manifests) = {
        let mut ledger = ledger.lock().unwrap();
        for manifest in unrecorded {
            ledger
                .history
                .insert(manifest.version, manifest.as_ref().clone());
        }
        ledger.keys.insert(0, vec![-1]);
        ledger.acknowledged.push((0, last.version));
        ledger.scans.push((last.version, end));
        let states = replay(&ledger);
        for (version, scanned) in &ledger.scans {
            let expected: ScannedRows = states[version]
                .iter()
                .map(|(id, (write, _))| (*id, *write))
                .collect();
            assert_eq!(*scanned, expected, "version {version}");
        }
        let retained = ledger.history.range(oldest_version..);
        let manifests: Vec<_> = retained.map(|(_, m)| Arc::new(m.clone())).collect();
        (states, manifests)
    };
    for pair in manifests.windows(2) {
        check_changes(direct_table, &pair[0], &pair[1], &states).await;
    }
}

/// Compares the change feed of one commit with the rows before and after it.
async fn check_changes(
    table: &Table,
    before: &Arc<TableManifest>,
    after: &Arc<TableManifest>,
    states: &BTreeMap<u64, Rows>,
) {
    let mut expected: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for (manifest, sign) in [(before, -1), (after, 1)] {
        for (id, (write, _)) in &states[&manifest.version] {
            *expected.entry((*id, *write)).or_default() += sign;
        }
    }
    let mut stream = scan_changes(table, Arc::clone(before), Arc::clone(after), None).unwrap();
    let mut changes: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap();
        let numbers = |name: &str| {
            let column = batch.column_by_name(name).unwrap();
            column.as_primitive::<Int64Type>().values().to_vec()
        };
        let kinds = batch
            .column_by_name("_change_type")
            .unwrap()
            .as_string::<i32>();
        for ((id, write), kind) in numbers("id").into_iter().zip(numbers("write")).zip(kinds) {
            let sign = if kind == Some("insert") { 1 } else { -1 };
            *changes.entry((id, write)).or_default() += sign;
        }
    }
    expected.retain(|_, count| *count != 0);
    changes.retain(|_, count| *count != 0);
    assert_eq!(changes, expected, "changes of version {}", after.version);
}

fn expect_allowed(error: &Error) {
    expect_kind(
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

const LOST_RESPONSES_AND_CRASHES: FaultRates = FaultRates {
    failures_per_mille: 30,
    crashes_per_mille: 4,
    late_arrival: LateArrival::AnyTime,
    has_pauses: true,
};

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_seeds(default_count: u64, rates: FaultRates) {
    let run = async {
        for seed in seeds(default_count) {
            let simulation = tokio::task::spawn_local(simulate(seed, rates));
            if let Err(e) = simulation.await {
                panic!("seed {seed}, {rates:?}: {e}");
            }
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_match_the_replayed_commits() {
    let rates = FaultRates {
        failures_per_mille: 0,
        crashes_per_mille: 0,
        late_arrival: LateArrival::AnyTime,
        has_pauses: true,
    };
    run_seeds(60, rates).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_match_the_replayed_commits_with_lost_responses_and_crashes() {
    run_seeds(60, LOST_RESPONSES_AND_CRASHES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_match_the_replayed_commits_of_seeds_that_failed() {
    let simulation = Box::pin(simulate(2823, LOST_RESPONSES_AND_CRASHES));
    tokio::task::LocalSet::new().run_until(simulation).await;
}
