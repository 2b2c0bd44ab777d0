//! Writers, deleters and readers of one dataset, whose requests are answered in the order a seed thinks of.
//!
//! Long parts are uploads, completed under a condition where the store has one. Requests that name a version arrive
//! at any time after their sender gave them up, crashed or was cancelled; the others within half a lease, as
//! `docs/publish.md` assumes. Encoding and decoding have threads of their own, so a step waits until nothing moves
//! any more; a seed gives nearly the same history each time, not the very same.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pds::clock::{Clock, SystemClock};
use pds::store::{ConditionSupport, Store};
use pds::{Error, ErrorKind, dataset};
use tokio::task::AbortHandle;

use super::world::{FaultRates, LateArrival, World};
use super::{expect_kind, seeds};
use crate::faults::{KEY, expected_sum, read_sum, write_dataset};

/// What each write holds, by its rows, which no other has as many of.
type Versions = Arc<HashMap<usize, i64>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Its first write has so many rows, each further one some more.
    Writer(i64, usize),
    Deleter,
    Reader,
    Streamer,
    Verifier,
}

const ROLES: [Role; 7] = [
    Role::Writer(5, 45_000),
    Role::Writer(7, 21_000),
    Role::Writer(11, 400),
    Role::Reader,
    Role::Reader,
    Role::Streamer,
    Role::Verifier,
];
const ROLES_WITH_DELETES: [Role; 5] = [
    Role::Writer(5, 45_000),
    Role::Writer(7, 21_000),
    Role::Deleter,
    Role::Deleter,
    Role::Reader,
];
const INITIAL_WRITE: (i64, usize) = (3, 60_000);
const OPERATIONS_PER_ACTOR: usize = 3;
/// Half a lease, a little less.
const LATE_WINDOW: Duration = Duration::from_secs(14);

/// A change of the dataset: when it began, and when it was acknowledged, if it was.
#[derive(Debug, Clone, Copy)]
struct Event {
    /// None for a delete.
    rows: Option<usize>,
    begun_at: usize,
    acknowledged_at: Option<usize>,
}

/// All changes, in the order in which they began.
#[derive(Debug, Default)]
struct WriteLedger {
    now: usize,
    events: Vec<Event>,
}

impl WriteLedger {
    fn begin(&mut self, rows: Option<usize>) -> usize {
        self.now += 1;
        self.events.push(Event {
            rows,
            begun_at: self.now,
            acknowledged_at: None,
        });
        self.events.len() - 1
    }

    fn acknowledge(&mut self, event: usize) {
        self.now += 1;
        self.events[event].acknowledged_at = Some(self.now);
    }

    /// Whether the dataset may hold this at the end: it was written (or deleted), and not acknowledged before
    /// another change began that was acknowledged too.
    fn may_end_with(&self, rows: Option<usize>) -> bool {
        let is_last = |event: &Event| {
            event.acknowledged_at.is_none_or(|acknowledged_at| {
                let mut others = self
                    .events
                    .iter()
                    .filter(|other| other.acknowledged_at.is_some());
                !others.any(|other| other.begun_at > acknowledged_at)
            })
        };
        self.events
            .iter()
            .any(|event| event.rows == rows && is_last(event))
    }
}

/// What an actor does when its turn comes; what it reads is one write's, whole.
async fn run_operation(
    role: Role,
    operation: usize,
    store: &Store,
    versions: &Versions,
    ledger: &Mutex<WriteLedger>,
) -> Result<(), Error> {
    match role {
        Role::Writer(seed, rows) => {
            let event = ledger.lock().unwrap().begin(Some(rows + operation));
            write_dataset(store, seed, rows + operation, true).await?;
            ledger.lock().unwrap().acknowledge(event);
        }
        Role::Deleter => {
            let event = ledger.lock().unwrap().begin(None);
            dataset::delete(store, KEY).await?;
            ledger.lock().unwrap().acknowledge(event);
        }
        Role::Reader => {
            let (rows, total) = read_sum(store).await?;
            assert_eq!(
                versions.get(&rows),
                Some(&total),
                "a mixture of {rows} rows"
            );
        }
        Role::Streamer => {
            let mut scan = dataset::scan(store, KEY, None).await?;
            let mut rows = 0;
            while let Some(batch) = scan.next().await {
                rows += batch?.num_rows();
            }
            assert!(versions.contains_key(&rows), "a mixture of {rows} rows");
        }
        Role::Verifier => {
            let verified = dataset::verify(store, KEY).await?;
            let rows = usize::try_from(verified.rows).unwrap();
            assert!(versions.contains_key(&rows), "a mixture of {rows} rows");
        }
    }
    Ok(())
}

/// What is played: whom, in which weather, on which store, and the errors that this explains.
#[derive(Clone, Copy)]
struct Scenario {
    roles: &'static [Role],
    rates: FaultRates,
    conditions: ConditionSupport,
    allowed_errors: &'static [ErrorKind],
}

/// Plays one seed.
async fn simulate(seed: u64, scenario: Scenario, versions: Versions) {
    let world = World::new(seed, scenario.rates).with_conditions(scenario.conditions);
    let ledger = Arc::new(Mutex::new(WriteLedger::default()));
    let first = ledger.lock().unwrap().begin(Some(INITIAL_WRITE.1));
    let written = write_dataset(
        &world.recovery_store(),
        INITIAL_WRITE.0,
        INITIAL_WRITE.1,
        false,
    )
    .await;
    written.unwrap();
    ledger.lock().unwrap().acknowledge(first);
    let active_actors = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    let mut handles: Vec<AbortHandle> = Vec::new();
    for (actor, role) in scenario.roles.iter().copied().enumerate() {
        let (store, versions) = (world.store(actor), Arc::clone(&versions));
        let (active_actors, ledger) = (Arc::clone(&active_actors), Arc::clone(&ledger));
        active_actors.fetch_add(1, Ordering::SeqCst);
        handles.push(tasks.spawn_local(async move {
            for operation in 0..OPERATIONS_PER_ACTOR {
                if let Err(e) = run_operation(role, operation, &store, &versions, &ledger).await {
                    expect_kind(&e, scenario.allowed_errors);
                }
            }
            active_actors.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    // Who crashed is cancelled, as by Ctrl-C, or stays in the middle of what it did.
    let on_crash = |actor: usize| {
        if world.draw(2) == 0 {
            handles[actor].abort();
        }
    };
    drive_with(&world, &mut tasks, &active_actors, on_crash, || {}).await;
    check_end(&world, &versions, &ledger).await;
    world.deliver_late_requests().await;
    check_end(&world, &versions, &ledger).await;
}

/// Whoever comes after all others finds one write's dataset, whole, or none.
async fn check_end(world: &World, versions: &Versions, ledger: &Mutex<WriteLedger>) {
    let store = world.recovery_store();
    let final_rows = match read_sum(&store).await {
        Ok((rows, total)) => {
            assert_eq!(
                versions.get(&rows),
                Some(&total),
                "a mixture of {rows} rows"
            );
            Some(rows)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        // Nothing is there, or what a delete that did not end has left, which goes with the next.
        Err(e) if e.kind() == ErrorKind::DatasetIncomplete => {
            if let Err(e) = dataset::delete(&store, KEY).await {
                expect_kind(&e, &[ErrorKind::NotFound]);
            }
            None
        }
        Err(e) => panic!("{:?}: {e}", e.kind()),
    };
    let ledger = ledger.lock().unwrap();
    assert!(
        ledger.may_end_with(final_rows),
        "it ends with {final_rows:?}: {ledger:?}"
    );
}

/// Answers requests until nobody lives; `each` is called after every one.
#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
pub(super) async fn drive(
    world: &World,
    tasks: &mut tokio::task::JoinSet<()>,
    active_actors: &AtomicUsize,
    after_step: impl Fn(),
) {
    drive_with(world, tasks, active_actors, |_| (), after_step).await;
}

/// As [`drive`]; `crashed` is called with who crashed.
#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn drive_with(
    world: &World,
    tasks: &mut tokio::task::JoinSet<()>,
    active_actors: &AtomicUsize,
    on_crash: impl Fn(usize),
    after_step: impl Fn(),
) {
    let mut last_progress = SystemClock.monotonic();
    while active_actors.load(Ordering::SeqCst) > 0 {
        for actor in world.take_crashed() {
            active_actors.fetch_sub(1, Ordering::SeqCst);
            on_crash(actor);
        }
        world
            .wait_until_idle(active_actors.load(Ordering::SeqCst))
            .await;
        if world.step() {
            last_progress = SystemClock.monotonic();
        } else if let Some(joined) = tasks.try_join_next() {
            propagate_panic(joined);
        }
        after_step();
        let too_long = SystemClock.monotonic() > last_progress + Duration::from_mins(1);
        assert!(!too_long, "somebody waits for nothing");
    }
    while let Some(joined) = tasks.try_join_next() {
        propagate_panic(joined);
    }
    // The processes of those who crashed are gone.
    tasks.shutdown().await;
}

fn propagate_panic(joined: Result<(), tokio::task::JoinError>) {
    if let Err(e) = joined
        && e.is_panic()
    {
        std::panic::resume_unwind(e.into_panic());
    }
}

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_seeds(default_count: u64, scenario: Scenario) {
    let run = async {
        let mut versions = HashMap::new();
        let writers = ROLES.into_iter().filter_map(|role| match role {
            Role::Writer(seed, rows) => Some((seed, rows)),
            _ => None,
        });
        for (seed, first) in writers.chain([INITIAL_WRITE]) {
            for rows in first..first + OPERATIONS_PER_ACTOR {
                let (rows, sum) = Box::pin(expected_sum(seed, rows)).await;
                versions.insert(rows, sum);
            }
        }
        let versions = Arc::new(versions);
        for seed in seeds(default_count) {
            let simulation =
                tokio::task::spawn_local(Box::pin(simulate(seed, scenario, Arc::clone(&versions))));
            if let Err(e) = simulation.await {
                panic!(
                    "seed {seed}, {:?}, {:?}: {e}",
                    scenario.rates, scenario.conditions
                );
            }
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

const NO_FAULTS: FaultRates = FaultRates {
    failures_per_mille: 0,
    crashes_per_mille: 0,
    late_arrival: LateArrival::Within(LATE_WINDOW),
    has_pauses: false,
};
/// Processes are stopped, and none crashes: what a stopped one sends late it looks after when it goes on.
const PROCESS_PAUSES: FaultRates = FaultRates {
    failures_per_mille: 30,
    crashes_per_mille: 0,
    late_arrival: LateArrival::Within(LATE_WINDOW),
    has_pauses: true,
};
const CRASHES: FaultRates = FaultRates {
    failures_per_mille: 40,
    crashes_per_mille: 4,
    late_arrival: LateArrival::Within(LATE_WINDOW),
    has_pauses: false,
};

/// A stream ends with an error rather than a mixture, a reader gives up when it is overtaken in every
/// attempt, and a writer that was stopped for long is told so.
const CONFLICT_ERRORS: &[ErrorKind] = &[ErrorKind::DatasetIncomplete, ErrorKind::Fenced];
const FAULT_ERRORS: &[ErrorKind] = &[
    ErrorKind::DatasetIncomplete,
    ErrorKind::Fenced,
    ErrorKind::Unavailable,
    ErrorKind::PermissionDenied,
    ErrorKind::Locked,
    ErrorKind::NotFound,
];

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_scenario(
    default_count: u64,
    roles: &'static [Role],
    rates: FaultRates,
    conditions: ConditionSupport,
    allowed_errors: &'static [ErrorKind],
) {
    let scenario = Scenario {
        roles,
        rates,
        conditions,
        allowed_errors,
    };
    run_seeds(default_count, scenario).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_complete_write() {
    run_scenario(
        40,
        &ROLES,
        NO_FAULTS,
        ConditionSupport::ALL,
        CONFLICT_ERRORS,
    )
    .await;
    run_scenario(
        20,
        &ROLES,
        NO_FAULTS,
        ConditionSupport::NONE,
        CONFLICT_ERRORS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_complete_write_with_crashes_and_late_requests() {
    run_scenario(40, &ROLES, CRASHES, ConditionSupport::ALL, FAULT_ERRORS).await;
    run_scenario(40, &ROLES, CRASHES, ConditionSupport::NONE, FAULT_ERRORS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_complete_write_with_paused_processes() {
    run_scenario(
        40,
        &ROLES,
        PROCESS_PAUSES,
        ConditionSupport::ALL,
        FAULT_ERRORS,
    )
    .await;
    run_scenario(
        40,
        &ROLES,
        PROCESS_PAUSES,
        ConditionSupport::NONE,
        FAULT_ERRORS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_removes_only_the_version_it_targets() {
    run_scenario(
        40,
        &ROLES_WITH_DELETES,
        CRASHES,
        ConditionSupport::ALL,
        FAULT_ERRORS,
    )
    .await;
    run_scenario(
        40,
        &ROLES_WITH_DELETES,
        CRASHES,
        ConditionSupport::NONE,
        FAULT_ERRORS,
    )
    .await;
}
