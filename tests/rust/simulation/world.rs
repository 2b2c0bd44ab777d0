//! A store whose requests, and clocks whose sleeps, go on only when a seeded driver says so.
//!
//! Every actor has a store of its own over the same memory. The driver picks, one after another,
//! whose request is answered, and how: carried out; failed before or after its effect; failed now
//! and carried out much later; or never answered, with which the actor has crashed. What is dropped
//! before it was answered may be carried out all the same. One seed gives one history.

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
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use pds::clock::{Clock, SystemClock};
use pds::store::memory::MemoryStore;
use pds::store::metrics::Metrics;
use pds::store::{
    Capabilities, Condition, ConditionSupport, ConditionalStore, OpenUpload, Store, UploadedPart,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::clock::{FreeClock, WorldClock};

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
    /// Names what it changes by a version that never recurs, so that it changes nothing else however late it comes.
    WritesVersion,
    /// The same of an upload, which nothing but its name guards.
    Uploads,
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

/// When a request may arrive that its sender has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// At any time.
    Always,
    /// At any time if it names a version that never recurs, else within so long.
    Within(Duration),
}

/// How unfriendly the world is, in thousandths of all requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) failing: u32,
    pub(super) crashing: u32,
    pub(super) late: Late,
    /// Processes are stopped now and then, and go on much later.
    pub(super) stopping: bool,
}

/// A request that its sender has given up, on its way.
struct LateRequest {
    /// It arrives before this time.
    until: Option<Duration>,
    work: BoxFuture<'static, ()>,
}

struct State {
    random: StdRng,
    weather: Weather,
    waiting: Vec<Waiting>,
    late: Vec<LateRequest>,
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
    pub(super) objects: Arc<MemoryStore>,
    conditions: ConditionSupport,
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
            objects: Arc::new(MemoryStore::new()),
            conditions: ConditionSupport::ALL,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The same world, whose store has these conditions only.
    pub(super) fn with_conditions(self, conditions: ConditionSupport) -> Self {
        Self { conditions, ..self }
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
        self.store_of(Some(actor), Arc::new(clock))
    }

    fn store_of(&self, actor: Option<usize>, clock: Arc<dyn Clock>) -> Store {
        let objects = Arc::new(WorldStore {
            world: self.clone(),
            actor,
        });
        let metrics = Arc::new(Metrics::default());
        let store = Store::from_object_store(
            "world",
            Arc::clone(&objects) as _,
            Capabilities::FULL,
            metrics,
            clock,
        );
        store
            .with_multipart(Arc::clone(&objects) as _)
            .with_conditional_store(objects)
    }

    /// The store as somebody sees it who comes when all others have ended: every request is answered, and time
    /// passes as soon as it is waited for.
    pub(super) fn heir(&self) -> Store {
        self.store_of(None, Arc::new(FreeClock::new(self.clone())))
    }

    /// The store as it is when all is over.
    pub(super) fn calm_store(&self) -> Store {
        Store::from_object_store(
            "calm",
            Arc::clone(&self.objects) as _,
            Capabilities::FULL,
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

    /// Lets time pass at once, and requests arrive that must before that.
    pub(super) async fn skip(&self, duration: Duration) {
        let end = self.time() + duration;
        while let Some(late) = self.take_late(|late| late.until.is_some_and(|until| until <= end)) {
            late.work.await;
        }
        let mut state = self.state();
        state.time = state.time.max(end);
    }

    /// Lets all late requests arrive.
    pub(super) async fn settle(&self) {
        while let Some(late) = self.take_late(|_| true) {
            late.work.await;
        }
    }

    fn take_late(&self, which: impl Fn(&LateRequest) -> bool) -> Option<LateRequest> {
        let mut state = self.state();
        let index = state.late.iter().position(which)?;
        Some(state.late.swap_remove(index))
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
                let mut state = self.state();
                state.forget_dropped();
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
            futures::executor::block_on(late.work);
            return true;
        }
        let Some(waiting) = state.choose() else {
            return false;
        };
        if let Waiting::Sleep { until, .. } = &waiting {
            let is_due = |late: &LateRequest| late.until.is_some_and(|last| last < *until);
            if let Some(index) = state.late.iter().position(is_due) {
                let late = state.late.swap_remove(index);
                state.waiting.push(waiting);
                drop(guard);
                futures::executor::block_on(late.work);
                return true;
            }
        }
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
        actor: Option<usize>,
        effect: Effect,
        path: &Path,
        work: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let Some(actor) = actor else {
            return work.await;
        };
        let (go, told) = oneshot::channel();
        let request = Waiting::Request { actor, effect, go };
        self.state().wait(request);
        let mut sent = Sent {
            world: self,
            effect,
            work: Some(work),
        };
        let verdict = told.await.unwrap_or(Verdict::CrashBefore);
        if verdict == Verdict::CrashBefore {
            drop(sent);
            return futures::future::pending().await;
        }
        let work = sent.work.take().unwrap();
        let conditional = matches!(effect, Effect::WritesIf | Effect::WritesVersion);
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
                self.state().give_up(effect, work.map(drop).boxed());
                Err(lost())
            }
            Verdict::CrashBefore => unreachable!("handled above"),
            Verdict::CrashAfter => {
                let _ = work.await;
                futures::future::pending().await
            }
        }
    }
}

/// A request that was sent; one that is dropped before it was answered may arrive later.
struct Sent<'a, T: 'static> {
    world: &'a World,
    effect: Effect,
    work: Option<BoxFuture<'static, Result<T>>>,
}

impl<T: 'static> Drop for Sent<'_, T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let mut state = self.world.state();
        if self.effect != Effect::Reads && state.random.random_ratio(1, 2) {
            state.give_up(self.effect, work.map(drop).boxed());
        }
    }
}

impl State {
    /// A request goes on without its sender.
    fn give_up(&mut self, effect: Effect, work: BoxFuture<'static, ()>) {
        let until = match self.weather.late {
            Late::Within(window) if matches!(effect, Effect::Writes | Effect::WritesIf) => {
                Some(self.time + window)
            }
            _ => None,
        };
        self.late.push(LateRequest { until, work });
    }

    /// Nobody waits any more for what was cancelled.
    fn forget_dropped(&mut self) {
        self.waiting.retain(|waiting| match waiting {
            Waiting::Request { go, .. } => !go.is_canceled(),
            Waiting::Sleep { go, .. } => !go.is_canceled(),
        });
    }

    /// The dead wait for ever.
    fn wait(&mut self, waiting: Waiting) {
        if !self.dead.contains(&waiting.actor()) {
            self.waiting.push(waiting);
        }
    }

    fn choose(&mut self) -> Option<Waiting> {
        self.forget_dropped();
        // Now and then somebody is left waiting for a long time, as if stopped.
        self.frozen = match self.frozen {
            Some((actor, left)) if left > 0 => Some((actor, left - 1)),
            _ if self.weather.stopping
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
            1 if effect != Effect::Reads => Verdict::FailAndArriveLate,
            _ => Verdict::FailAfter,
        }
    }
}

/// One actor's store; that of none is answered at once.
struct WorldStore {
    world: World,
    actor: Option<usize>,
}

impl WorldStore {
    /// What changes objects, and notes when.
    async fn write<T: Send + 'static>(
        &self,
        at: &Path,
        effect: Effect,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (world, key) = (self.world.clone(), at.clone());
        let work = async move {
            let done = work.await?;
            let mut state = world.state();
            let now = state.time;
            state.written.insert(key, now);
            Ok(done)
        };
        self.world
            .request(self.actor, effect, at, work.boxed())
            .await
    }

    /// The effect of a request under a condition.
    fn effect(at: &Path, condition: &Condition) -> Effect {
        match condition {
            Condition::Always => Effect::Writes,
            // An intent has a nonce, and a claim alone changes nothing. A manifest without a marker is none.
            Condition::Absent if ["_publish.json", "manifest.json"].contains(&name(at)) => {
                Effect::WritesVersion
            }
            Condition::Absent => Effect::WritesIf,
            Condition::Matches(_) => Effect::WritesVersion,
        }
    }
}

fn name(at: &Path) -> &str {
    at.filename().unwrap_or_default()
}

impl fmt::Debug for WorldStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorldStore({:?})", self.actor)
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
        let (objects, key) = (Arc::clone(&self.world.objects), at.clone());
        let effect = match &opts.mode {
            PutMode::Overwrite => Effect::Writes,
            PutMode::Create => Self::effect(at, &Condition::Absent),
            PutMode::Update(_) => Effect::WritesVersion,
        };
        let work = async move { objects.put_opts(&key, payload, opts).await };
        self.write(at, effect, work).await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented {
            operation: "put_multipart_opts".to_owned(),
            implementer: self.to_string(),
        })
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

#[async_trait]
impl MultipartStore for WorldStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let (objects, key) = (Arc::clone(&self.world.objects), path.clone());
        let work = async move { objects.create_multipart(&key).await };
        self.write(path, Effect::Uploads, work).await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        index: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let (objects, key, id) = (Arc::clone(&self.world.objects), path.clone(), id.clone());
        let work = async move { objects.put_part(&key, &id, index, data).await };
        self.write(path, Effect::Uploads, work).await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.complete_if(path, id, parts, &Condition::Always).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        let (objects, key, id) = (Arc::clone(&self.world.objects), path.clone(), id.clone());
        let work = async move { objects.abort_multipart(&key, &id).await };
        self.write(path, Effect::Uploads, work).await
    }
}

#[async_trait]
impl ConditionalStore for WorldStore {
    fn known_condition_support(&self) -> Option<ConditionSupport> {
        Some(self.world.conditions)
    }

    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let (objects, at) = (Arc::clone(&self.world.objects), key.clone());
        let effect = match e_tag {
            None => Effect::Writes,
            Some(_) => Effect::WritesVersion,
        };
        // A store without such conditions does not look at them.
        let e_tag = e_tag
            .filter(|_| self.world.conditions.delete)
            .map(str::to_owned);
        let work = async move { objects.delete_if(&at, e_tag.as_deref()).await };
        self.write(key, effect, work).await
    }

    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> Result<PutResult> {
        let (objects, at, upload) = (
            Arc::clone(&self.world.objects),
            key.clone(),
            upload.to_owned(),
        );
        let held = match condition {
            condition if self.world.conditions.complete => condition.clone(),
            _ => Condition::Always,
        };
        let work = async move { objects.complete_if(&at, &upload, parts, &held).await };
        // An upload is completed once.
        let effect = match condition {
            Condition::Always => Effect::Uploads,
            _ => Effect::WritesVersion,
        };
        self.write(key, effect, work).await
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        let (objects, at, upload) = (
            Arc::clone(&self.world.objects),
            key.clone(),
            upload.to_owned(),
        );
        let work = async move { objects.list_parts(&at, &upload).await }.boxed();
        self.world
            .request(self.actor, Effect::Reads, key, work)
            .await
    }

    async fn list_uploads(&self, folder: &Path) -> Result<Vec<OpenUpload>> {
        let (objects, at) = (Arc::clone(&self.world.objects), folder.clone());
        let work = async move { objects.list_uploads(&at).await }.boxed();
        self.world
            .request(self.actor, Effect::Reads, folder, work)
            .await
    }

    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<Result<()>> {
        let objects = Arc::clone(&self.world.objects);
        let (source, target, held) = (from.clone(), to.clone(), condition.clone());
        let effect = match e_tag {
            Some(_) => Effect::WritesVersion,
            None => Self::effect(to, condition),
        };
        let e_tag = e_tag.map(str::to_owned);
        let work = async move {
            let copied = objects
                .copy_if(&source, e_tag.as_deref(), &target, &held)
                .await;
            copied.unwrap_or_else(|| {
                Err(Error::NotImplemented {
                    operation: "copy_if".to_owned(),
                    implementer: "memory".to_owned(),
                })
            })
        };
        Some(self.write(to, effect, work).await)
    }
}
