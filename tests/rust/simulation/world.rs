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
enum RequestEffect {
    Read,
    Write,
    ConditionalWrite,
    /// Names what it changes by a version that never recurs, so that it changes nothing else however late it comes.
    VersionedWrite,
    /// The same of an upload, which nothing but its name guards.
    Upload,
}

/// What an actor waits for.
enum PendingEvent {
    Request {
        actor: usize,
        effect: RequestEffect,
        go: oneshot::Sender<Verdict>,
    },
    Sleep {
        actor: usize,
        until: Duration,
        go: oneshot::Sender<()>,
    },
}

impl PendingEvent {
    fn actor(&self) -> usize {
        match self {
            Self::Request { actor, .. } | Self::Sleep { actor, .. } => *actor,
        }
    }
}

/// When a request may arrive that its sender has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LateArrival {
    /// At any time.
    AnyTime,
    /// At any time if it names a version that never recurs, else within so long.
    Within(Duration),
}

/// How unfriendly the world is, in thousandths of all requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultRates {
    pub(super) failures_per_mille: u32,
    pub(super) crashes_per_mille: u32,
    pub(super) late_arrival: LateArrival,
    /// Processes are stopped now and then, and go on much later.
    pub(super) has_pauses: bool,
}

/// A request that its sender has given up, on its way.
struct LateRequest {
    /// It arrives before this time.
    until: Option<Duration>,
    work: BoxFuture<'static, ()>,
}

struct WorldState {
    random: StdRng,
    rates: FaultRates,
    pending: Vec<PendingEvent>,
    late_requests: Vec<LateRequest>,
    time: Duration,
    /// Whom the driver lets wait, and how many steps more.
    paused: Option<(usize, u32)>,
    crashed: Vec<usize>,
    all_crashed: HashSet<usize>,
    /// When objects were written, by the store's clock.
    written_at: HashMap<Path, Duration>,
}

/// The world that all actors share.
#[derive(Clone)]
pub(super) struct World {
    pub(super) objects: Arc<MemoryStore>,
    conditions: ConditionSupport,
    state: Arc<Mutex<WorldState>>,
}

impl World {
    pub(super) fn new(seed: u64, rates: FaultRates) -> Self {
        let state = WorldState {
            random: StdRng::seed_from_u64(seed),
            rates,
            pending: Vec::new(),
            late_requests: Vec::new(),
            time: Duration::ZERO,
            paused: None,
            crashed: Vec::new(),
            all_crashed: HashSet::new(),
            written_at: HashMap::new(),
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

    fn state(&self) -> MutexGuard<'_, WorldState> {
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
        self.build_store(Some(actor), Arc::new(clock))
    }

    fn build_store(&self, actor: Option<usize>, clock: Arc<dyn Clock>) -> Store {
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
    pub(super) fn recovery_store(&self) -> Store {
        self.build_store(None, Arc::new(FreeClock::new(self.clone())))
    }

    /// The store as it is when all is over.
    pub(super) fn direct_store(&self) -> Store {
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
    pub(super) async fn sleep(&self, actor: usize, duration: Duration) -> bool {
        let (go, resumed) = oneshot::channel();
        {
            let mut state = self.state();
            let until = state.time + duration;
            state.enqueue(PendingEvent::Sleep { actor, until, go });
        }
        resumed.await.is_ok()
    }

    /// Lets time pass at once, and requests arrive that must before that.
    pub(super) async fn advance(&self, duration: Duration) {
        let end = self.time() + duration;
        while let Some(late) =
            self.take_late_request(|late| late.until.is_some_and(|until| until <= end))
        {
            late.work.await;
        }
        let mut state = self.state();
        state.time = state.time.max(end);
    }

    /// Lets all late requests arrive.
    pub(super) async fn deliver_late_requests(&self) {
        while let Some(late) = self.take_late_request(|_| true) {
            late.work.await;
        }
    }

    fn take_late_request(&self, predicate: impl Fn(&LateRequest) -> bool) -> Option<LateRequest> {
        let mut state = self.state();
        let index = state.late_requests.iter().position(predicate)?;
        Some(state.late_requests.swap_remove(index))
    }

    /// A number that no other is like.
    pub(super) fn new_id(&self) -> u128 {
        self.state().random.random()
    }

    /// Gives an object the time at which it was written, by the store's clock.
    fn set_last_modified(&self, meta: &mut ObjectMeta) {
        let written_at = self.state().written_at.get(&meta.location).copied();
        let epoch = DateTime::from_timestamp(1_600_000_000, 0).unwrap();
        meta.last_modified = epoch + TimeDelta::from_std(written_at.unwrap_or_default()).unwrap();
    }

    /// Actors that crashed since this was asked last.
    pub(super) fn take_crashed(&self) -> Vec<usize> {
        std::mem::take(&mut self.state().crashed)
    }

    /// Waits until all of `living` actors wait for the driver. Who computes for long is left behind.
    pub(super) async fn wait_until_idle(&self, active_actors: usize) {
        let mut before = usize::MAX;
        loop {
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let (pending, actors) = {
                let mut state = self.state();
                state.remove_cancelled();
                let actors: HashSet<usize> =
                    state.pending.iter().map(PendingEvent::actor).collect();
                (state.pending.len(), actors.len())
            };
            if actors == active_actors || pending == before {
                return;
            }
            before = pending;
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Lets one request or sleep go on, or one late request arrive; false when nobody waits.
    pub(super) fn step(&self) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        if !state.late_requests.is_empty()
            && (state.pending.is_empty() || state.random.random_ratio(1, 40))
        {
            let count = state.late_requests.len();
            let index = state.random.random_range(0..count);
            let late = state.late_requests.swap_remove(index);
            drop(guard);
            futures::executor::block_on(late.work);
            return true;
        }
        let Some(event) = state.choose_event() else {
            return false;
        };
        if let PendingEvent::Sleep { until, .. } = &event {
            let is_due = |late: &LateRequest| late.until.is_some_and(|last| last < *until);
            if let Some(index) = state.late_requests.iter().position(is_due) {
                let late = state.late_requests.swap_remove(index);
                state.pending.push(event);
                drop(guard);
                futures::executor::block_on(late.work);
                return true;
            }
        }
        match event {
            PendingEvent::Sleep { until, go, .. } => {
                state.time = state.time.max(until);
                let _ = go.send(());
            }
            PendingEvent::Request { actor, effect, go } => {
                state.time += Duration::from_millis(1);
                let verdict = state.verdict(effect);
                if matches!(verdict, Verdict::CrashBefore | Verdict::CrashAfter) {
                    state.crashed.push(actor);
                    // Whatever else it was doing ends too.
                    state.all_crashed.insert(actor);
                    state.pending.retain(|w| w.actor() != actor);
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
        effect: RequestEffect,
        path: &Path,
        work: BoxFuture<'static, Result<T>>,
    ) -> Result<T> {
        let Some(actor) = actor else {
            return work.await;
        };
        let (go, resumed) = oneshot::channel();
        let request = PendingEvent::Request { actor, effect, go };
        self.state().enqueue(request);
        let mut guard = SentRequest {
            world: self,
            effect,
            work: Some(work),
        };
        let verdict = resumed.await.unwrap_or(Verdict::CrashBefore);
        if verdict == Verdict::CrashBefore {
            drop(guard);
            return futures::future::pending().await;
        }
        let work = guard.work.take().unwrap();
        let conditional = matches!(
            effect,
            RequestEffect::ConditionalWrite | RequestEffect::VersionedWrite
        );
        let error_choice = if conditional { self.draw(6) } else { 5 };
        let injected_error = || {
            let source = format!("injected: {verdict:?} at {path}").into();
            let path = path.to_string();
            // Retries below turn a lost answer into these.
            match error_choice {
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
            Verdict::FailBefore => Err(injected_error()),
            Verdict::FailAfter => {
                let _ = work.await;
                Err(injected_error())
            }
            Verdict::FailAndArriveLate => {
                self.state().abandon(effect, work.map(drop).boxed());
                Err(injected_error())
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
struct SentRequest<'a, T: 'static> {
    world: &'a World,
    effect: RequestEffect,
    work: Option<BoxFuture<'static, Result<T>>>,
}

impl<T: 'static> Drop for SentRequest<'_, T> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        let mut state = self.world.state();
        if self.effect != RequestEffect::Read && state.random.random_ratio(1, 2) {
            state.abandon(self.effect, work.map(drop).boxed());
        }
    }
}

impl WorldState {
    /// A request goes on without its sender.
    fn abandon(&mut self, effect: RequestEffect, work: BoxFuture<'static, ()>) {
        let until = match self.rates.late_arrival {
            LateArrival::Within(window)
                if matches!(
                    effect,
                    RequestEffect::Write | RequestEffect::ConditionalWrite
                ) =>
            {
                Some(self.time + window)
            }
            _ => None,
        };
        self.late_requests.push(LateRequest { until, work });
    }

    /// Nobody waits any more for what was cancelled.
    fn remove_cancelled(&mut self) {
        self.pending.retain(|event| match event {
            PendingEvent::Request { go, .. } => !go.is_canceled(),
            PendingEvent::Sleep { go, .. } => !go.is_canceled(),
        });
    }

    /// The dead wait for ever.
    fn enqueue(&mut self, event: PendingEvent) {
        if !self.all_crashed.contains(&event.actor()) {
            self.pending.push(event);
        }
    }

    fn choose_event(&mut self) -> Option<PendingEvent> {
        self.remove_cancelled();
        // Now and then somebody is left waiting for a long time, as if stopped.
        self.paused = match self.paused {
            Some((actor, steps_left)) if steps_left > 0 => Some((actor, steps_left - 1)),
            _ if self.rates.has_pauses
                && !self.pending.is_empty()
                && self.random.random_ratio(1, 50) =>
            {
                let index = self.random.random_range(0..self.pending.len());
                let steps = self.random.random_range(10..400);
                Some((self.pending[index].actor(), steps))
            }
            _ => None,
        };
        let frozen = self.paused.map(|(actor, _)| actor);
        let is_awake = |w: &PendingEvent| Some(w.actor()) != frozen;
        let requests: Vec<usize> = (0..self.pending.len())
            .filter(|&i| {
                matches!(self.pending[i], PendingEvent::Request { .. })
                    && is_awake(&self.pending[i])
            })
            .collect();
        if !requests.is_empty() && self.random.random_ratio(9, 10) {
            let index = requests[self.random.random_range(0..requests.len())];
            return Some(self.pending.swap_remove(index));
        }
        // The sleeper that wakes first; without one, anybody.
        let wake_time = |w: &PendingEvent| match w {
            PendingEvent::Sleep { until, .. } => Some(*until),
            PendingEvent::Request { .. } => None,
        };
        let sleeper = (0..self.pending.len())
            .filter(|&i| is_awake(&self.pending[i]))
            .filter_map(|i| wake_time(&self.pending[i]).map(|time| (time, i)))
            .min();
        match (sleeper, requests.first(), self.pending.len()) {
            (Some((_, index)), ..) | (None, Some(&index), _) => {
                Some(self.pending.swap_remove(index))
            }
            (None, None, 0) => None,
            (None, None, _) => {
                self.paused = None;
                Some(self.pending.swap_remove(0))
            }
        }
    }

    fn verdict(&mut self, effect: RequestEffect) -> Verdict {
        let drawn = self.random.random_range(0..1000);
        let after = self.random.random_ratio(1, 2);
        if drawn < self.rates.crashes_per_mille {
            return if after {
                Verdict::CrashAfter
            } else {
                Verdict::CrashBefore
            };
        }
        if drawn >= self.rates.crashes_per_mille + self.rates.failures_per_mille {
            return Verdict::Done;
        }
        match self.random.random_range(0..3) {
            0 => Verdict::FailBefore,
            1 if effect != RequestEffect::Read => Verdict::FailAndArriveLate,
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
        location: &Path,
        effect: RequestEffect,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (world, key) = (self.world.clone(), location.clone());
        let work = async move {
            let result = work.await?;
            let mut state = world.state();
            let now = state.time;
            state.written_at.insert(key, now);
            Ok(result)
        };
        self.world
            .request(self.actor, effect, location, work.boxed())
            .await
    }

    /// The effect of a request under a condition.
    fn effect(location: &Path, condition: &Condition) -> RequestEffect {
        match condition {
            Condition::Always => RequestEffect::Write,
            // An intent has a nonce, and a claim alone changes nothing. A manifest without a marker is none.
            Condition::Absent
                if ["_publish.json", "manifest.json"].contains(&file_name(location)) =>
            {
                RequestEffect::VersionedWrite
            }
            Condition::Absent => RequestEffect::ConditionalWrite,
            Condition::Matches(_) => RequestEffect::VersionedWrite,
        }
    }
}

fn file_name(location: &Path) -> &str {
    location.filename().unwrap_or_default()
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
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let (objects, key) = (Arc::clone(&self.world.objects), location.clone());
        let effect = match &opts.mode {
            PutMode::Overwrite => RequestEffect::Write,
            PutMode::Create => Self::effect(location, &Condition::Absent),
            PutMode::Update(_) => RequestEffect::VersionedWrite,
        };
        let work = async move { objects.put_opts(&key, payload, opts).await };
        self.write(location, effect, work).await
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

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (objects, key) = (Arc::clone(&self.world.objects), location.clone());
        let work = async move { objects.get_opts(&key, options).await }.boxed();
        let mut result = self
            .world
            .request(self.actor, RequestEffect::Read, location, work)
            .await?;
        self.world.set_last_modified(&mut result.meta);
        Ok(result)
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
                let (objects, owned_key) = (Arc::clone(&world.objects), key.clone());
                let work = async move { objects.delete(&owned_key).await }.boxed();
                world
                    .request(actor, RequestEffect::Write, &key, work)
                    .await?;
                Ok(key)
            }
        })
        .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (world, actor, prefix) = (self.world.clone(), self.actor, prefix.cloned());
        let dated = world.clone();
        let listing = async move {
            let objects = Arc::clone(&world.objects);
            let location = prefix.clone().unwrap_or_default();
            let work = async move { objects.list(prefix.as_ref()).try_collect::<Vec<_>>().await };
            world
                .request(actor, RequestEffect::Read, &location, work.boxed())
                .await
        };
        listing
            .map(move |result| match result {
                Ok(mut all) => {
                    for meta in &mut all {
                        dated.set_last_modified(meta);
                    }
                    stream::iter(all.into_iter().map(Ok)).boxed()
                }
                Err(e) => stream::iter([Err(e)]).boxed(),
            })
            .flatten_stream()
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (objects, folder) = (Arc::clone(&self.world.objects), prefix.cloned());
        let path = folder.clone().unwrap_or_default();
        let work = async move { objects.list_with_delimiter(folder.as_ref()).await }.boxed();
        self.world
            .request(self.actor, RequestEffect::Read, &path, work)
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (objects, from, to) = (Arc::clone(&self.world.objects), from.clone(), to.clone());
        let location = to.clone();
        let work = async move { objects.copy_opts(&from, &to, options).await }.boxed();
        self.world
            .request(self.actor, RequestEffect::Write, &location, work)
            .await
    }
}

#[async_trait]
impl MultipartStore for WorldStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let (objects, key) = (Arc::clone(&self.world.objects), path.clone());
        let work = async move { objects.create_multipart(&key).await };
        self.write(path, RequestEffect::Upload, work).await
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
        self.write(path, RequestEffect::Upload, work).await
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
        self.write(path, RequestEffect::Upload, work).await
    }
}

#[async_trait]
impl ConditionalStore for WorldStore {
    fn known_condition_support(&self) -> Option<ConditionSupport> {
        Some(self.world.conditions)
    }

    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let (objects, owned_key) = (Arc::clone(&self.world.objects), key.clone());
        let effect = match e_tag {
            None => RequestEffect::Write,
            Some(_) => RequestEffect::VersionedWrite,
        };
        // A store without such conditions does not look at them.
        let e_tag = e_tag
            .filter(|_| self.world.conditions.delete)
            .map(str::to_owned);
        let work = async move { objects.delete_if(&owned_key, e_tag.as_deref()).await };
        self.write(key, effect, work).await
    }

    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> Result<PutResult> {
        let (objects, owned_key, upload) = (
            Arc::clone(&self.world.objects),
            key.clone(),
            upload.to_owned(),
        );
        let effective_condition = match condition {
            condition if self.world.conditions.complete => condition.clone(),
            _ => Condition::Always,
        };
        let work = async move {
            objects
                .complete_if(&owned_key, &upload, parts, &effective_condition)
                .await
        };
        // An upload is completed once.
        let effect = match condition {
            Condition::Always => RequestEffect::Upload,
            _ => RequestEffect::VersionedWrite,
        };
        self.write(key, effect, work).await
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        let (objects, owned_key, upload) = (
            Arc::clone(&self.world.objects),
            key.clone(),
            upload.to_owned(),
        );
        let work = async move { objects.list_parts(&owned_key, &upload).await }.boxed();
        self.world
            .request(self.actor, RequestEffect::Read, key, work)
            .await
    }

    async fn list_uploads(&self, folder: &Path) -> Result<Vec<OpenUpload>> {
        let (objects, owned_folder) = (Arc::clone(&self.world.objects), folder.clone());
        let work = async move { objects.list_uploads(&owned_folder).await }.boxed();
        self.world
            .request(self.actor, RequestEffect::Read, folder, work)
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
        let (source, target, owned_condition) = (from.clone(), to.clone(), condition.clone());
        let effect = match e_tag {
            Some(_) => RequestEffect::VersionedWrite,
            None => Self::effect(to, condition),
        };
        let e_tag = e_tag.map(str::to_owned);
        let work = async move {
            let result = objects
                .copy_if(&source, e_tag.as_deref(), &target, &owned_condition)
                .await;
            result.unwrap_or_else(|| {
                Err(Error::NotImplemented {
                    operation: "copy_if".to_owned(),
                    implementer: "memory".to_owned(),
                })
            })
        };
        Some(self.write(to, effect, work).await)
    }
}
