//! A store in memory that fails at a chosen request, once or from then on.
//!
//! [`FaultyStore`] numbers its requests. A [`Fault`] names the request that fails, whether it fails before or after its
//! effect, and the error that the client sees; its errors contain `injected`. A hook can run between the effect of a
//! request and its answer ([`FaultyStore::interrupt`]). A store that ignores some conditions is built with
//! [`FaultyStore::with_conditions`].

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, UploadPart,
};

use crate::store::memory::MemoryStore;
use crate::store::{Condition, ConditionSupport, ConditionalStore, OpenUpload, UploadedPart};
use crate::sync::mutex::lock;

/// When a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultTiming {
    /// Before its effect: the request never arrived.
    Before,
    /// After its effect: the request was carried out and the answer was lost.
    After,
}

/// The error that the client sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A transport or server error, after the client's own retries.
    Unavailable,
    /// 403.
    Denied,
    /// 404.
    NotFound,
    /// 409 or 412 on a conditional write; a transport error elsewhere.
    Conflict,
}

/// A request that fails, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// The number of the request, counted from 0.
    pub request: usize,
    /// Whether it fails before or after its effect.
    pub timing: FaultTiming,
    /// The error that the client sees.
    pub kind: FaultKind,
    /// Whether every later request fails too, before its effect, as after a crash.
    pub is_persistent: bool,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct FaultState {
    requests: usize,
    fault: Option<Fault>,
    hook: Option<(usize, Hook)>,
}

impl fmt::Debug for FaultState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, fault) = (&self.requests, &self.fault);
        write!(f, "FaultState {{ requests: {requests}, fault: {fault:?} }}")
    }
}

/// A store in memory that fails on command.
#[derive(Debug, Clone)]
pub struct FaultyStore {
    inner: Arc<MemoryStore>,
    state: Arc<Mutex<FaultState>>,
    /// The conditions that the store honors; it ignores others.
    conditions: ConditionSupport,
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

impl FaultyStore {
    /// Creates a store over `inner` that does not fail yet and honors all conditions.
    pub fn new(inner: Arc<MemoryStore>) -> Self {
        Self {
            inner,
            state: Arc::default(),
            conditions: ConditionSupport::ALL,
        }
    }

    /// Returns the store with the conditions that it honors; it ignores others.
    #[must_use]
    pub fn with_conditions(self, conditions: ConditionSupport) -> Self {
        Self { conditions, ..self }
    }

    /// The store below, which never fails.
    pub fn inner(&self) -> &Arc<MemoryStore> {
        &self.inner
    }

    /// Sets the fault, or removes it, and counts requests from 0 again. Removes a hook.
    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut state = lock(&self.state);
        *state = FaultState {
            fault,
            ..FaultState::default()
        };
    }

    /// Calls `hook` between the effect of the request with number `request`, counted from 0 from now on, and its answer.
    /// Removes a fault.
    pub fn interrupt(&self, request: usize, hook: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        *state = FaultState {
            hook: Some((request, Box::new(hook))),
            ..FaultState::default()
        };
    }

    /// As [`Self::interrupt`], and the answer is lost: the client sees the error `kind` instead.
    pub fn interrupt_and_drop_response(
        &self,
        request: usize,
        kind: FaultKind,
        hook: impl FnOnce() + Send + 'static,
    ) {
        let mut state = lock(&self.state);
        *state = FaultState {
            hook: Some((request, Box::new(hook))),
            fault: Some(Fault {
                request,
                timing: FaultTiming::After,
                kind,
                is_persistent: false,
            }),
            ..FaultState::default()
        };
    }

    /// The number of requests since a fault or a hook was last set.
    pub fn requests(&self) -> usize {
        lock(&self.state).requests
    }

    /// Counts a request and returns its fault and its hook.
    fn next_fault(&self) -> (Option<Fault>, Option<Hook>) {
        let mut state = lock(&self.state);
        let number = state.requests;
        state.requests += 1;
        let hook = state.hook.take_if(|(at, _)| *at == number);
        (
            Self::fault_at(state.fault, number),
            hook.map(|(_, hook)| hook),
        )
    }

    fn fault_at(fault: Option<Fault>, number: usize) -> Option<Fault> {
        let fault = fault?;
        match number.cmp(&fault.request) {
            std::cmp::Ordering::Less => None,
            std::cmp::Ordering::Equal => Some(fault),
            std::cmp::Ordering::Greater => fault.is_persistent.then_some(Fault {
                timing: FaultTiming::Before,
                ..fault
            }),
        }
    }

    async fn run_with_fault<T>(
        &self,
        path: &Path,
        conditional: bool,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (fault, hook) = self.next_fault();
        let Some(fault) = fault else {
            let result = work.await;
            if let Some(hook) = hook {
                hook();
            }
            return result;
        };
        if fault.timing == FaultTiming::After {
            work.await?;
        }
        if let Some(hook) = hook {
            hook();
        }
        let (path, source) = (path.to_string(), format!("injected: {fault:?}").into());
        Err(match fault.kind {
            FaultKind::Denied => Error::PermissionDenied { path, source },
            FaultKind::NotFound => Error::NotFound { path, source },
            FaultKind::Conflict if conditional => Error::Precondition { path, source },
            FaultKind::Conflict | FaultKind::Unavailable => Error::Generic {
                store: "test",
                source,
            },
        })
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let conditional = opts.mode != object_store::PutMode::Overwrite;
        self.run_with_fault(
            location,
            conditional,
            self.inner.put_opts(location, payload, opts),
        )
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let creation = self.inner.put_multipart_opts(location, opts);
        let upload = self.run_with_fault(location, false, creation).await?;
        Ok(Box::new(FaultyUpload {
            store: self.clone(),
            path: location.clone(),
            upload,
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.run_with_fault(location, false, self.inner.get_opts(location, options))
            .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        // The stream counts as one request, when it is created; its fault and hook are those of the first deletion.
        let inner = Arc::clone(&self.inner);
        let (fault, hook) = self.next_fault();
        let mut first_fault = Some(FaultState {
            requests: 0,
            fault: fault.map(|f| Fault { request: 0, ..f }),
            hook: hook.map(|hook| (0, hook)),
        });
        locations
            .then(move |location| {
                let store = Self {
                    inner: Arc::clone(&inner),
                    state: Arc::new(Mutex::new(first_fault.take().unwrap_or_default())),
                    conditions: ConditionSupport::ALL,
                };
                async move {
                    let key = location?;
                    store
                        .run_with_fault(&key, false, store.inner.delete(&key))
                        .await?;
                    Ok(key)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (fault, hook) = self.next_fault();
        let objects = match fault {
            Some(fault) => {
                let source = format!("injected: {fault:?}").into();
                stream::iter([Err(Error::Generic {
                    store: "test",
                    source,
                })])
                .boxed()
            }
            None => self.inner.list(prefix),
        };
        // The hook runs between the request and its answer's end.
        let end = stream::once(async move { hook.map(|hook| hook()) });
        objects.chain(end.filter_map(async |_| None)).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let path = prefix.cloned().unwrap_or_default();
        self.run_with_fault(&path, false, self.inner.list_with_delimiter(prefix))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run_with_fault(from, false, self.inner.copy_opts(from, to, options))
            .await
    }
}

/// An upload of which every upload part is a request.
#[derive(Debug)]
struct FaultyUpload {
    store: FaultyStore,
    path: Path,
    upload: Box<dyn MultipartUpload>,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (store, path) = (self.store.clone(), self.path.clone());
        let part = self.upload.put_part(data);
        async move { store.run_with_fault(&path, false, part).await }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.store
            .run_with_fault(&self.path, false, self.upload.complete())
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        self.store
            .run_with_fault(&self.path, false, self.upload.abort())
            .await
    }
}

#[async_trait]
impl MultipartStore for FaultyStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.run_with_fault(path, false, self.inner.create_multipart(path))
            .await
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        self.run_with_fault(path, false, self.inner.put_part(path, id, part_idx, data))
            .await
    }

    async fn complete_multipart(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: Vec<PartId>,
    ) -> Result<PutResult> {
        self.run_with_fault(path, false, self.inner.complete_multipart(path, id, parts))
            .await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.run_with_fault(path, false, self.inner.abort_multipart(path, id))
            .await
    }
}

#[async_trait]
impl ConditionalStore for FaultyStore {
    fn known_condition_support(&self) -> Option<ConditionSupport> {
        Some(self.conditions)
    }

    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let e_tag = e_tag.filter(|_| self.conditions.delete);
        self.run_with_fault(key, e_tag.is_some(), self.inner.delete_if(key, e_tag))
            .await
    }

    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> Result<PutResult> {
        let condition = if self.conditions.complete {
            condition
        } else {
            &Condition::Always
        };
        let conditional = *condition != Condition::Always;
        self.run_with_fault(
            key,
            conditional,
            self.inner.complete_if(key, upload, parts, condition),
        )
        .await
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        self.run_with_fault(key, false, self.inner.list_parts(key, upload))
            .await
    }

    async fn list_uploads(&self, folder: &Path) -> Result<Vec<OpenUpload>> {
        self.run_with_fault(folder, false, self.inner.list_uploads(folder))
            .await
    }

    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<Result<()>> {
        let copy = async {
            let result = self.inner.copy_if(from, e_tag, to, condition).await;
            result.unwrap_or_else(|| unreachable!("a store in memory has copy_if"))
        };
        Some(
            self.run_with_fault(from, *condition != Condition::Always, copy)
                .await,
        )
    }
}
