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

use super::world::{Late, Weather, World};
use super::{expect, seeds};
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

const CAST: [Role; 7] = [
    Role::Writer(5, 45_000),
    Role::Writer(7, 21_000),
    Role::Writer(11, 400),
    Role::Reader,
    Role::Reader,
    Role::Streamer,
    Role::Verifier,
];
const WITH_DELETES: [Role; 5] = [
    Role::Writer(5, 45_000),
    Role::Writer(7, 21_000),
    Role::Deleter,
    Role::Deleter,
    Role::Reader,
];
const FIRST: (i64, usize) = (3, 60_000);
const TURNS: usize = 3;
/// Half a lease, a little less.
const WINDOW: Duration = Duration::from_secs(14);

/// A change of the dataset: when it began, and when it was acknowledged, if it was.
#[derive(Debug, Clone, Copy)]
struct Event {
    /// None for a delete.
    rows: Option<usize>,
    began: usize,
    acknowledged: Option<usize>,
}

/// All changes, in the order in which they began.
#[derive(Debug, Default)]
struct Ledger {
    now: usize,
    events: Vec<Event>,
}

impl Ledger {
    fn begin(&mut self, rows: Option<usize>) -> usize {
        self.now += 1;
        self.events.push(Event {
            rows,
            began: self.now,
            acknowledged: None,
        });
        self.events.len() - 1
    }

    fn acknowledge(&mut self, event: usize) {
        self.now += 1;
        self.events[event].acknowledged = Some(self.now);
    }

    /// Whether the dataset may hold this at the end: it was written (or deleted), and not acknowledged before
    /// another change began that was acknowledged too.
    fn may_end_with(&self, rows: Option<usize>) -> bool {
        let is_last = |event: &Event| {
            event.acknowledged.is_none_or(|done| {
                let mut others = self
                    .events
                    .iter()
                    .filter(|other| other.acknowledged.is_some());
                !others.any(|other| other.began > done)
            })
        };
        self.events
            .iter()
            .any(|event| event.rows == rows && is_last(event))
    }
}

/// What an actor does when its turn comes; what it reads is one write's, whole.
async fn act(
    role: Role,
    turn: usize,
    store: &Store,
    versions: &Versions,
    ledger: &Mutex<Ledger>,
) -> Result<(), Error> {
    match role {
        Role::Writer(seed, rows) => {
            let event = ledger.lock().unwrap().begin(Some(rows + turn));
            write_dataset(store, seed, rows + turn, true).await?;
            ledger.lock().unwrap().acknowledge(event);
        }
        Role::Deleter => {
            let event = ledger.lock().unwrap().begin(None);
            dataset::delete(store, KEY).await?;
            ledger.lock().unwrap().acknowledge(event);
        }
        Role::Reader => {
            let (rows, found) = read_sum(store).await?;
            assert_eq!(
                versions.get(&rows),
                Some(&found),
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
struct Play {
    cast: &'static [Role],
    weather: Weather,
    conditions: ConditionSupport,
    allowed: &'static [ErrorKind],
}

/// Plays one seed.
async fn simulate(seed: u64, play: Play, versions: Versions) {
    let world = World::new(seed, play.weather).with_conditions(play.conditions);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let first = ledger.lock().unwrap().begin(Some(FIRST.1));
    let written = write_dataset(&world.heir(), FIRST.0, FIRST.1, false).await;
    written.unwrap();
    ledger.lock().unwrap().acknowledge(first);
    let living = Arc::new(AtomicUsize::new(0));
    let mut players = tokio::task::JoinSet::new();
    let mut handles: Vec<AbortHandle> = Vec::new();
    for (actor, role) in play.cast.iter().copied().enumerate() {
        let (store, versions) = (world.store(actor), Arc::clone(&versions));
        let (living, ledger) = (Arc::clone(&living), Arc::clone(&ledger));
        living.fetch_add(1, Ordering::SeqCst);
        handles.push(players.spawn_local(async move {
            for turn in 0..TURNS {
                if let Err(e) = act(role, turn, &store, &versions, &ledger).await {
                    expect(&e, play.allowed);
                }
            }
            living.fetch_sub(1, Ordering::SeqCst);
        }));
    }
    // Who crashed is cancelled, as by Ctrl-C, or stays in the middle of what it did.
    let crashed = |actor: usize| {
        if world.draw(2) == 0 {
            handles[actor].abort();
        }
    };
    drive_with(&world, &mut players, &living, crashed, || {}).await;
    check_end(&world, &versions, &ledger).await;
    world.settle().await;
    check_end(&world, &versions, &ledger).await;
}

/// Whoever comes after all others finds one write's dataset, whole, or none.
async fn check_end(world: &World, versions: &Versions, ledger: &Mutex<Ledger>) {
    let store = world.heir();
    let found = match read_sum(&store).await {
        Ok((rows, found)) => {
            assert_eq!(
                versions.get(&rows),
                Some(&found),
                "a mixture of {rows} rows"
            );
            Some(rows)
        }
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        // Nothing is there, or what a delete that did not end has left, which goes with the next.
        Err(e) if e.kind() == ErrorKind::DatasetIncomplete => {
            if let Err(e) = dataset::delete(&store, KEY).await {
                expect(&e, &[ErrorKind::NotFound]);
            }
            None
        }
        Err(e) => panic!("{:?}: {e}", e.kind()),
    };
    let ledger = ledger.lock().unwrap();
    assert!(
        ledger.may_end_with(found),
        "it ends with {found:?}: {ledger:?}"
    );
}

/// Answers requests until nobody lives; `each` is called after every one.
#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
pub(super) async fn drive(
    world: &World,
    players: &mut tokio::task::JoinSet<()>,
    living: &AtomicUsize,
    each: impl Fn(),
) {
    drive_with(world, players, living, |_| (), each).await;
}

/// As [`drive`]; `crashed` is called with who crashed.
#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn drive_with(
    world: &World,
    players: &mut tokio::task::JoinSet<()>,
    living: &AtomicUsize,
    crashed: impl Fn(usize),
    each: impl Fn(),
) {
    let mut moved = SystemClock.monotonic();
    while living.load(Ordering::SeqCst) > 0 {
        for actor in world.take_crashed() {
            living.fetch_sub(1, Ordering::SeqCst);
            crashed(actor);
        }
        world.rest(living.load(Ordering::SeqCst)).await;
        if world.step() {
            moved = SystemClock.monotonic();
        } else if let Some(ended) = players.try_join_next() {
            check_ended(ended);
        }
        each();
        let too_long = SystemClock.monotonic() > moved + Duration::from_mins(1);
        assert!(!too_long, "somebody waits for nothing");
    }
    while let Some(ended) = players.try_join_next() {
        check_ended(ended);
    }
    // The processes of those who crashed are gone.
    players.shutdown().await;
}

fn check_ended(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended
        && e.is_panic()
    {
        std::panic::resume_unwind(e.into_panic());
    }
}

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_seeds(usual: u64, play: Play) {
    let run = async {
        let mut versions = HashMap::new();
        let writers = CAST.into_iter().filter_map(|role| match role {
            Role::Writer(seed, rows) => Some((seed, rows)),
            _ => None,
        });
        for (seed, first) in writers.chain([FIRST]) {
            for rows in first..first + TURNS {
                let (rows, sum) = Box::pin(expected_sum(seed, rows)).await;
                versions.insert(rows, sum);
            }
        }
        let versions = Arc::new(versions);
        for seed in seeds(usual) {
            let played =
                tokio::task::spawn_local(Box::pin(simulate(seed, play, Arc::clone(&versions))));
            if let Err(e) = played.await {
                panic!(
                    "seed {seed}, {:?}, {:?}: {e}",
                    play.weather, play.conditions
                );
            }
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

const FAIR: Weather = Weather {
    failing: 0,
    crashing: 0,
    late: Late::Within(WINDOW),
    stopping: false,
};
/// Processes are stopped, and none crashes: what a stopped one sends late it looks after when it goes on.
const STOPS: Weather = Weather {
    failing: 30,
    crashing: 0,
    late: Late::Within(WINDOW),
    stopping: true,
};
const CRASHES: Weather = Weather {
    failing: 40,
    crashing: 4,
    late: Late::Within(WINDOW),
    stopping: false,
};

/// A stream ends with an error rather than a mixture, a reader gives up when it is overtaken again
/// and again, and a writer that was stopped for long is told so.
const OVERTAKEN: &[ErrorKind] = &[ErrorKind::DatasetIncomplete, ErrorKind::Fenced];
const FAILED: &[ErrorKind] = &[
    ErrorKind::DatasetIncomplete,
    ErrorKind::Fenced,
    ErrorKind::Unavailable,
    ErrorKind::PermissionDenied,
    ErrorKind::Locked,
    ErrorKind::NotFound,
];

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn play(
    usual: u64,
    cast: &'static [Role],
    weather: Weather,
    conditions: ConditionSupport,
    allowed: &'static [ErrorKind],
) {
    let play = Play {
        cast,
        weather,
        conditions,
        allowed,
    };
    run_seeds(usual, play).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_write_or_the_other() {
    play(40, &CAST, FAIR, ConditionSupport::ALL, OVERTAKEN).await;
    play(20, &CAST, FAIR, ConditionSupport::NONE, OVERTAKEN).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_write_or_the_other_with_crashes_and_late_requests() {
    play(40, &CAST, CRASHES, ConditionSupport::ALL, FAILED).await;
    play(40, &CAST, CRASHES, ConditionSupport::NONE, FAILED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_write_or_the_other_with_stopped_processes() {
    play(40, &CAST, STOPS, ConditionSupport::ALL, FAILED).await;
    play(40, &CAST, STOPS, ConditionSupport::NONE, FAILED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_hits_what_it_was_meant_for() {
    play(40, &WITH_DELETES, CRASHES, ConditionSupport::ALL, FAILED).await;
    play(40, &WITH_DELETES, CRASHES, ConditionSupport::NONE, FAILED).await;
}
