//! Writers and readers of one dataset, whose requests are answered in the order a seed thinks of.
//!
//! Encoding and decoding have threads of their own, so a step waits until nothing moves any more; a
//! seed gives nearly the same history each time, not the very same.
//!
//! No request arrives after another process has taken the publish over: against a deletion that does,
//! object stores have no means (see `docs/design/2026-11-21-datasets.md`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pds::clock::{Clock, SystemClock};
use pds::store::Store;
use pds::{Error, ErrorKind, dataset};

use super::world::{Weather, World};
use super::{expect, seeds};
use crate::faults::{KEY, expected, sum, write};

/// What a write holds, by its rows.
type Versions = Arc<HashMap<usize, i64>>;

#[derive(Debug, Clone, Copy)]
enum Role {
    Writer(i64, usize),
    Reader,
    Streamer,
    Verifier,
}

const CAST: [Role; 6] = [
    Role::Writer(5, 45_000),
    Role::Writer(7, 21_000),
    Role::Reader,
    Role::Reader,
    Role::Streamer,
    Role::Verifier,
];
const FIRST: (i64, usize) = (3, 60_000);
const TURNS: usize = 3;

/// What an actor does when its turn comes; what it reads is one write's, whole.
async fn act(role: Role, store: &Store, versions: &Versions) -> Result<(), Error> {
    match role {
        Role::Writer(seed, rows) => write(store, seed, rows, true).await,
        Role::Reader => {
            let (rows, found) = sum(store).await?;
            assert_eq!(
                versions.get(&rows),
                Some(&found),
                "a mixture of {rows} rows"
            );
            Ok(())
        }
        Role::Streamer => {
            let mut scan = dataset::scan(store, KEY, None).await?;
            let mut rows = 0;
            while let Some(batch) = scan.next().await {
                rows += batch?.num_rows();
            }
            assert!(versions.contains_key(&rows), "a mixture of {rows} rows");
            Ok(())
        }
        Role::Verifier => {
            let verified = dataset::verify(store, KEY).await?;
            let rows = usize::try_from(verified.rows).unwrap();
            assert!(versions.contains_key(&rows), "a mixture of {rows} rows");
            Ok(())
        }
    }
}

/// Plays one seed; `allowed` are the errors this weather explains.
async fn simulate(seed: u64, weather: Weather, versions: Versions, allowed: &'static [ErrorKind]) {
    // A process knows its own publishes by their ids: worlds that run side by side must not share any.
    let world = World::new(seed ^ u64::from(weather.crashing) << 32, weather);
    write(&world.calm_store(), FIRST.0, FIRST.1, false)
        .await
        .unwrap();
    let living = Arc::new(AtomicUsize::new(0));
    let mut players = tokio::task::JoinSet::new();
    for (actor, role) in CAST.into_iter().enumerate() {
        let (store, versions) = (world.store(actor), Arc::clone(&versions));
        let living = Arc::clone(&living);
        living.fetch_add(1, Ordering::SeqCst);
        players.spawn_local(async move {
            for _ in 0..TURNS {
                if let Err(e) = act(role, &store, &versions).await {
                    expect(&e, allowed);
                }
            }
            living.fetch_sub(1, Ordering::SeqCst);
        });
    }
    drive(&world, &mut players, &living, || {}).await;
    let (rows, found) = sum(&world.calm_store()).await.unwrap();
    assert_eq!(
        versions.get(&rows),
        Some(&found),
        "a mixture of {rows} rows"
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
    let mut moved = SystemClock.monotonic();
    while living.load(Ordering::SeqCst) > 0 {
        living.fetch_sub(world.take_crashed().len(), Ordering::SeqCst);
        world.rest(living.load(Ordering::SeqCst)).await;
        if world.step() {
            moved = SystemClock.monotonic();
        } else if let Some(Err(e)) = players.try_join_next() {
            std::panic::resume_unwind(e.into_panic());
        }
        each();
        let too_long = SystemClock.monotonic() > moved + Duration::from_mins(1);
        assert!(!too_long, "somebody waits for nothing");
    }
    while let Some(ended) = players.try_join_next() {
        ended.unwrap();
    }
    // The process of who crashed is gone: its intents need not be waited for.
    players.shutdown().await;
}

#[allow(clippy::future_not_send, reason = "a test's own thread has it")]
async fn run_seeds(usual: u64, weather: Weather, allowed: &'static [ErrorKind]) {
    let run = async {
        let mut versions = HashMap::new();
        let writers = CAST.into_iter().filter_map(|role| match role {
            Role::Writer(seed, rows) => Some((seed, rows)),
            _ => None,
        });
        for (seed, rows) in writers.chain([FIRST]) {
            let (rows, sum) = expected(seed, rows).await;
            versions.insert(rows, sum);
        }
        let versions = Arc::new(versions);
        for seed in seeds(usual) {
            let played =
                tokio::task::spawn_local(simulate(seed, weather, Arc::clone(&versions), allowed));
            if let Err(e) = played.await {
                panic!("seed {seed}, {weather:?}: {e}");
            }
        }
    };
    tokio::task::LocalSet::new().run_until(run).await;
}

/// A stream ends with an error rather than a mixture, a reader gives up when it is overtaken again
/// and again, and a writer that was stopped for long is told so; nothing else is theirs to see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_write_or_the_other() {
    let weather = Weather {
        failing: 0,
        crashing: 0,
        late: false,
    };
    let allowed = &[ErrorKind::DatasetIncomplete, ErrorKind::Superseded];
    run_seeds(60, weather, allowed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_see_one_write_or_the_other_with_crashes() {
    let weather = Weather {
        failing: 20,
        crashing: 4,
        late: false,
    };
    let allowed = &[
        ErrorKind::DatasetIncomplete,
        ErrorKind::Superseded,
        ErrorKind::Unavailable,
        ErrorKind::PermissionDenied,
    ];
    run_seeds(60, weather, allowed).await;
}
