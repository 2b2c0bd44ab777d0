//! A store whose requests, and clocks whose sleeps, go on only when a seeded driver says so.
//!
//! Every actor has a store of its own over the same memory. The driver picks, one after another,
//! whose request is answered, and how: carried out; failed before or after its effect; failed now
//! and carried out much later; or never answered, with which the actor has crashed. One seed gives
//! one history.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta};
use futures::channel::oneshot;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use pds::clock::{Clock, SystemClock};

use pds::store::metrics::Metrics;
use pds::store::{Abilities, Store};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::clock::WorldClock;

/// How a request ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Done,
    FailBefore,
    FailAfter,
    /// Fails now; the request arrives later all the same.
    FailAndArriveLate,
    CrashBefore,
    CrashAfter,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Writes,
    WritesIf,
}

/// What an actor waits for.
enum Waiting {
    Request {
        actor: usize,
        effect: Effect,
        go: oneshot::Sender<Verdict>,
    },
    Sleep {
        actor: usize,
        until: Duration,
        go: oneshot::Sender<()>,
    },
}

impl Waiting {
    fn actor(&self) -> usize {
        match self {
            Self::Request { actor, .. } | Self::Sleep { actor, .. } => *actor,
        }
    }
}

/// How unfriendly the world is, in thousandths of all requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) failing: u32,
    pub(super) crashing: u32,
    /// Requests may arrive, and stopped processes go on, at any time later.
    pub(super) late: bool,
}

struct State {
    random: StdRng,
    weather: Weather,
    waiting: Vec<Waiting>,
    late: Vec<BoxFuture<'static, ()>>,
    time: Duration,
    /// Whom the driver lets wait, and how many steps more.
    frozen: Option<(usize, u32)>,
    crashed: Vec<usize>,
    dead: HashSet<usize>,
    /// When objects were written, by the store's clock.
    written: HashMap<Path, Duration>,
}

/// The world that all actors share.
#[derive(Clone)]
pub(super) struct World {
    pub(super) objects: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

impl World {
    pub(super) fn new(seed: u64, weather: Weather) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            weather,
            waiting: Vec::new(),
            late: Vec::new(),
            time: Duration::ZERO,
            frozen: None,
            crashed: Vec::new(),
            dead: HashSet::new(),
            written: HashMap::new(),
        };
        Self {
            objects: Arc::new(InMemory::new()),
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A number below `limit`.
    pub(super) fn draw(&self, limit: u32) -> u32 {
        self.state().random.random_range(0..limit)
    }

    /// The store as an actor sees it, whose clock is wrong by as much as it likes.
    pub(super) fn store(&self, actor: usize) -> Store {
        let skew = TimeDelta::seconds(i64::from(self.draw(200_000)) - 100_000);
        let clock = WorldClock::new(self.clone(), actor, skew);
        let objects = WorldStore {
            world: self.clone(),
            actor,
        };
        Store::over(
            "world",
            Arc::new(objects),
            Abilities::FULL,
            Arc::new(Metrics::default()),
            Arc::new(clock),
        )
    }

    /// The store as it is when all is over.
    pub(super) fn calm_store(&self) -> Store {
        Store::over(
            "calm",
            Arc::clone(&self.objects) as _,
            Abilities::FULL,
            Arc::new(Metrics::default()),
            Arc::new(SystemClock),
        )
    }

    /// The time that has passed.
    pub(super) fn time(&self) -> Duration {
        self.state().time
    }

    /// Waits until the driver lets so much time pass; false for the dead.
    pub(super) async fn pass(&self, actor: usize, duration: Duration) -> bool {
        let (go, told) = oneshot::channel();
        {
            let mut state = self.state();
            let until = state.time + duration;
            state.wait(Waiting::Sleep { actor, until, go });
        }
        told.await.is_ok()
    }

    /// A number that no other is like.
    pub(super) fn new_id(&self) -> u128 {
        self.state().random.random()
    }

    /// Gives an object the time at which it was written, by the store's clock.
    fn date(&self, meta: &mut ObjectMeta) {
        let written = self.state().written.get(&meta.location).copied();
        let begin = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
        meta.last_modified = begin + TimeDelta::from_std(written.unwrap_or_default()).unwrap();
    }

    /// Actors that crashed since this was asked last.
    pub(super) fn take_crashed(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().crashed)
    }

    /// Waits until all of `living` actors wait for the driver. Who computes for long is left behind.
    pub(super) async fn rest(&self, living: usize) {
        let mut before = usize::MAX;
        loop {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let (waiting, actors) = {
                let state = self.state();
                let actors: HashSet<usize> = state.waiting.iter().map(Waiting::actor).collect();
                (state.waiting.len(), actors.len())
            };
            if actors == living || waiting == before {
                return;
            }
            before = waiting;
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets one request or sleep go on, or one late request arrive; false when nobody waits.
    pub(super) fn step(&self) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.late.is_empty() && (state.waiting.is_empty() || state.random.random_ratio(1, 40))
        {
            let count = state.late.len();
            let index = state.random.random_range(0..count);
            let late = state.late.swap_remove(index);
            drop(guard);
            futures::executor::block_on(late);
            return true;
        }
        let Some(waiting) = state.choose() else {
            return false;
        };
        match waiting {
            Waiting::Sleep { until, go, .. } => {
                state.time = state.time.max(until);
                let _ = go.send(());
            }
            Waiting::Request { actor, effect, go } => {
                state.time += Duration::from_millis(1);
                let verdict = state.verdict(effect);
                if matches!(verdict, Verdict::CrashBefore | Verdict::CrashAfter) {
                    state.crashed.push(actor);
                    // Whatever else it was doing ends too.
                    state.dead.insert(actor);
                    state.waiting.retain(|w| w.actor() != actor);
                }
                let _ = go.send(verdict);
            }
        }
        true
    }

    /// Waits for the driver, then does, fails or forgets `work`.
    async fn request<T: Send + 'static>(
        &self,
        actor: usize,
        effect: Effect,
        path: &Path,
        work: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let (go, told) = oneshot::channel();
        let request = Waiting::Request { actor, effect, go };
        self.state().wait(request);
        let verdict = told.await.unwrap_or(Verdict::CrashBefore);
        let conditional = effect == Effect::WritesIf;
        let answer = if conditional { self.draw(6) } else { 5 };
        let lost = || {
            let source = format!("injected: {verdict:?} at {path}").into();
            let path = path.to_string();
            // Retries below turn a lost answer into these.
            match answer {
                0 => Error::AlreadyExists { path, source },
                1 => Error::Precondition { path, source },
                // What was denied was not done, and never is.
                2 if verdict == Verdict::FailBefore => Error::PermissionDenied { path, source },
                _ => Error::Generic {
                    store: "world",
                    source,
                },
            }
        };
        match verdict {
            Verdict::Done => work.await,
            Verdict::FailBefore => Err(lost()),
            Verdict::FailAfter => {
                let _ = work.await;
                Err(lost())
            }
            Verdict::FailAndArriveLate => {
                self.state().late.push(work.map(drop).boxed());
                Err(lost())
            }
            Verdict::CrashBefore => futures::future::pending().await,
            Verdict::CrashAfter => {
                let _ = work.await;
                futures::future::pending().await
            }
        }
    }
}

impl State {
    /// The dead wait for ever.
    fn wait(&mut self, waiting: Waiting) {
        if !self.dead.contains(&waiting.actor()) {
            self.waiting.push(waiting);
        }
    }

    fn choose(&mut self) -> Option<Waiting> {
        // Now and then somebody is left waiting for a long time, as if stopped.
        self.frozen = match self.frozen {
            Some((actor, left)) if left > 0 => Some((actor, left - 1)),
            _ if self.weather.late
                && !self.waiting.is_empty()
                && self.random.random_ratio(1, 50) =>
            {
                let index = self.random.random_range(0..self.waiting.len());
                let steps = self.random.random_range(10..400);
                Some((self.waiting[index].actor(), steps))
            }
            _ => None,
        };
        let frozen = self.frozen.map(|(actor, _)| actor);
        let awake = |w: &Waiting| Some(w.actor()) != frozen;
        let requests: Vec<usize> = (0..self.waiting.len())
            .filter(|&i| {
                matches!(self.waiting[i], Waiting::Request { .. }) && awake(&self.waiting[i])
            })
            .collect();
        if !requests.is_empty() && self.random.random_ratio(9, 10) {
            let index = requests[self.random.random_range(0..requests.len())];
            return Some(self.waiting.swap_remove(index));
        }
        // The sleeper that wakes first; without one, anybody.
        let until = |w: &Waiting| match w {
            Waiting::Sleep { until, .. } => Some(*until),
            Waiting::Request { .. } => None,
        };
        let sleeper = (0..self.waiting.len())
            .filter(|&i| awake(&self.waiting[i]))
            .filter_map(|i| until(&self.waiting[i]).map(|time| (time, i)))
            .min();
        match (sleeper, requests.first(), self.waiting.len()) {
            (Some((_, index)), ..) | (None, Some(&index), _) => {
                Some(self.waiting.swap_remove(index))
            }
            (None, None, 0) => None,
            (None, None, _) => {
                self.frozen = None;
                Some(self.waiting.swap_remove(0))
            }
        }
    }

    fn verdict(&mut self, effect: Effect) -> Verdict {
        let drawn = self.random.random_range(0..1000);
        let after = self.random.random_ratio(1, 2);
        if drawn < self.weather.crashing {
            return if after {
                Verdict::CrashAfter
            } else {
                Verdict::CrashBefore
            };
        }
        if drawn >= self.weather.crashing + self.weather.failing {
            return Verdict::Done;
        }
        match self.random.random_range(0..3) {
            0 => Verdict::FailBefore,
            1 if effect != Effect::Reads && self.weather.late => Verdict::FailAndArriveLate,
            _ => Verdict::FailAfter,
        }
    }
}

/// One actor's store.
struct WorldStore {
    world: World,
    actor: usize,
}

impl fmt::Debug for WorldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorldStore({})", self.actor)
    }
}

impl fmt::Display for WorldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("world")
    }
}

#[async_trait]
impl ObjectStore for WorldStore {
    async fn put_opts(
        &self,
        at: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (world, key) = (self.world.clone(), at.clone());
        let effect = match opts.mode {
            PutMode::Overwrite => Effect::Writes,
            PutMode::Create | PutMode::Update(_) => Effect::WritesIf,
        };
        let work = async move {
            let put = world.objects.put_opts(&key, payload, opts).await?;
            let mut state = world.state();
            let now = state.time;
            state.written.insert(key, now);
            Ok(put)
        };
        self.world
            .request(self.actor, effect, at, work.boxed())
            .await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        unreachable!("small objects are one request")
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        let (objects, key) = (Arc::clone(&self.world.objects), at.clone());
        let work = async move { objects.get_opts(&key, options).await }.boxed();
        let mut found = self
            .world
            .request(self.actor, Effect::Reads, at, work)
            .await?;
        self.world.date(&mut found.meta);
        Ok(found)
    }

    fn delete_stream(
        &self,
        keys: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let (world, actor) = (self.world.clone(), self.actor);
        keys.then(move |key| {
            let world = world.clone();
            async move {
                let key = key?;
                let (objects, gone) = (Arc::clone(&world.objects), key.clone());
                let work = async move { objects.delete(&gone).await }.boxed();
                world.request(actor, Effect::Writes, &key, work).await?;
                Ok(key)
            }
        })
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (world, actor, prefix) = (self.world.clone(), self.actor, prefix.cloned());
        let dated = world.clone();
        let found = async move {
            let objects = Arc::clone(&world.objects);
            let at = prefix.clone().unwrap_or_default();
            let work = async move { objects.list(prefix.as_ref()).try_collect::<Vec<_>>().await };
            world.request(actor, Effect::Reads, &at, work.boxed()).await
        };
        found
            .map(move |found| match found {
                Ok(mut all) => {
                    for meta in &mut all {
                        dated.date(meta);
                    }
                    stream::iter(all.into_iter().map(Ok)).boxed()
                }
                Err(e) => stream::iter([Err(e)]).boxed(),
            })
            .flatten_stream()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (objects, at) = (Arc::clone(&self.world.objects), prefix.cloned());
        let path = at.clone().unwrap_or_default();
        let work = async move { objects.list_with_delimiter(at.as_ref()).await }.boxed();
        self.world
            .request(self.actor, Effect::Reads, &path, work)
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (objects, from, to) = (Arc::clone(&self.world.objects), from.clone(), to.clone());
        let at = to.clone();
        let work = async move { objects.copy_opts(&from, &to, options).await }.boxed();
        self.world
            .request(self.actor, Effect::Writes, &at, work)
            .await
    }
}
