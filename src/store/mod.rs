//! The one way to bytes: memory, local files, S3, Azure Blob and Google Cloud Storage.
//!
//! [`Store`] is a set of objects below a URL, with metrics and the few operations datasets need.
//! [`builder`] makes one from a URL and options, [`cas`] holds the conditional writes, [`stage`]
//! the uploads that no reader can see until they are published. Paths are checked by [`path`].
//!
//! Errors: [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`] (403 and missing credentials,
//! told apart in the message), [`ErrorKind::Unavailable`] (transport and server errors after
//! retries), [`ErrorKind::Conflict`] (a condition did not hold).
//!
//! [`ErrorKind::NotFound`]: crate::error::ErrorKind::NotFound
//! [`ErrorKind::PermissionDenied`]: crate::error::ErrorKind::PermissionDenied
//! [`ErrorKind::Unavailable`]: crate::error::ErrorKind::Unavailable
//! [`ErrorKind::Conflict`]: crate::error::ErrorKind::Conflict

pub mod builder;
mod capabilities;
pub mod cas;
mod cloud;
mod condition;
mod counting_store;
mod credentials;
mod durability;
mod failure;
mod gcs;
mod http;
mod limit;
mod listing;
pub mod local;
mod lock;
pub mod memory;
pub mod metrics;
mod objects;
pub mod path;
mod probe;
pub mod process_id;
mod profile;
mod requests;
pub mod secrets;
pub mod stage;
mod upload;
pub mod work_guard;
mod xml;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

pub use self::builder::StoreBuilder;
pub use self::capabilities::Capabilities;
pub use self::condition::{
    Condition, ConditionSupport, ConditionalStore, OpenUpload, UploadedPart,
};
pub(crate) use self::failure::is_transient;
pub use self::limit::SendLimit;
use self::local::LocalStore;
pub use self::lock::{FileLock, LockCell};
use self::metrics::Metrics;
use self::secrets::Secrets;
use crate::clock::Clock;
use crate::error::Result;

/// How long a publish of a dataset may show no sign of life before others take it over.
pub const DEFAULT_PUBLISH_LEASE: Duration = Duration::from_secs(30);

struct Inner {
    name: &'static str,
    objects: Arc<dyn ObjectStore>,
    multipart: Option<Arc<dyn MultipartStore>>,
    local: Option<LocalStore>,
    conditional_store: Option<Arc<dyn ConditionalStore>>,
    /// What [`Store::condition_support`] found out.
    condition_support: Mutex<Option<ConditionSupport>>,
    /// Requests pass the HTTP service, which checks limits.
    is_http: bool,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    secrets: Arc<Secrets>,
    publish_lease: Duration,
    /// Nobody below counts the bytes of answers.
    counts_reads: bool,
    /// Tells what is below from what is below other stores of this process.
    identity: Option<usize>,
    /// What its users share, by name.
    shared_state: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
}

/// Objects below a root, with paths relative to it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    prefix: String,
    limit: SendLimit,
    /// Kept until work on local files has ended, cancelled or not.
    lock: Option<Arc<LockCell>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, {:?})", self.inner.name, self.prefix)
    }
}

/// What a folder holds, without descending.
#[derive(Debug, Default)]
pub struct Folder {
    /// The files in it, with paths relative to the store.
    pub files: Vec<ObjectMeta>,
    /// The names of its subfolders, as paths relative to the store.
    pub folders: Vec<String>,
}

impl Store {
    /// A store over any [`ObjectStore`]; long writes are staged as objects and renamed.
    pub fn from_object_store(
        name: &'static str,
        objects: Arc<dyn ObjectStore>,
        capabilities: Capabilities,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inner = Inner {
            name,
            objects,
            multipart: None,
            local: None,
            conditional_store: None,
            condition_support: Mutex::default(),
            is_http: false,
            metrics,
            clock,
            capabilities,
            secrets: Arc::default(),
            publish_lease: DEFAULT_PUBLISH_LEASE,
            counts_reads: true,
            identity: None,
            shared_state: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            prefix: String::new(),
            limit: SendLimit::default(),
            lock: None,
        }
    }

    /// The same store, staging long writes as multipart uploads of `multipart`.
    #[must_use]
    pub fn with_multipart(self, multipart: Arc<dyn MultipartStore>) -> Self {
        self.with_inner(|inner| inner.multipart = Some(multipart))
    }

    /// The same store, which can do what `versions` offers.
    #[must_use]
    pub fn with_conditional_store(self, conditional_store: Arc<dyn ConditionalStore>) -> Self {
        self.with_inner(|inner| inner.conditional_store = Some(conditional_store))
    }

    /// The same store, on which the lease of a publish lasts so long.
    #[must_use]
    pub fn with_publish_lease(self, lease: Duration) -> Self {
        self.with_inner(|inner| inner.publish_lease = lease)
    }

    /// How long the lease of a publish lasts.
    pub fn publish_lease(&self) -> Duration {
        self.inner.publish_lease
    }

    /// The same store, whose work on local files keeps a lock until it has ended, cancelled or not.
    #[must_use]
    pub fn with_lock(&self, lock: &Arc<LockCell>) -> Self {
        Self {
            lock: Some(Arc::clone(lock)),
            ..self.clone()
        }
    }

    /// The same store, whose requests are counted and limited by the HTTP service.
    fn with_http_service(self) -> Self {
        self.with_inner(|inner| {
            inner.counts_reads = false;
            inner.is_http = true;
        })
    }

    /// The same store, whose errors do not show these.
    fn with_secrets(self, secrets: Secrets) -> Self {
        self.with_inner(|inner| inner.secrets = Arc::new(secrets))
    }

    /// The same store, which is `local` files.
    #[must_use]
    pub fn with_local(self, local: LocalStore) -> Self {
        self.with_inner(|inner| {
            inner.local = Some(local);
            inner.capabilities.versions = false;
        })
    }

    fn with_inner(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &self.inner;
        let mut inner = Inner {
            name: old.name,
            objects: Arc::clone(&old.objects),
            multipart: old.multipart.clone(),
            local: old.local.clone(),
            conditional_store: old.conditional_store.clone(),
            condition_support: Mutex::default(),
            is_http: old.is_http,
            metrics: Arc::clone(&old.metrics),
            clock: Arc::clone(&old.clock),
            capabilities: old.capabilities,
            secrets: Arc::clone(&old.secrets),
            publish_lease: old.publish_lease,
            counts_reads: old.counts_reads,
            identity: old.identity,
            shared_state: Mutex::default(),
        };
        change(&mut inner);
        Self {
            inner: Arc::new(inner),
            prefix: self.prefix,
            limit: self.limit,
            lock: self.lock,
        }
    }

    /// The store below `folder`.
    pub fn child(&self, folder: &str) -> Result<Self> {
        path::parse_folder(folder)?;
        let prefix = match (self.prefix.as_str(), folder) {
            (prefix, "") => prefix.to_owned(),
            (prefix, folder) => path::join(prefix, folder),
        };
        Ok(Self {
            inner: Arc::clone(&self.inner),
            prefix,
            limit: self.limit,
            lock: self.lock.clone(),
        })
    }

    /// The kind of store: `memory`, `file`, `s3`, `az`, `gs` or a foreign store's name.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// Request and byte counters, shared with children.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// The store's clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// The same store; all that are made over one thing have its address for their identity.
    #[must_use]
    pub fn with_identity(self, identity: usize) -> Self {
        self.with_inner(|inner| inner.identity = Some(identity))
    }

    /// What tells it from the other stores that there are in this process, a forked child's from its parent's.
    pub(crate) fn identity(&self) -> (u32, usize) {
        let address = Arc::as_ptr(&self.inner.objects).cast::<()>().addr();
        (std::process::id(), self.inner.identity.unwrap_or(address))
    }

    /// Something that all who use this store under this path have in common.
    pub fn shared_state<T: Any + Default + Send + Sync>(&self, path: &str) -> Arc<T> {
        // A forked child has the parent's memory, and none of its threads.
        let (type_name, process_id) = (std::any::type_name::<T>(), std::process::id());
        let name = format!("{type_name} {process_id} {}/{path}", self.prefix);
        let lock_result = self.inner.shared_state.lock();
        let mut states = lock_result.unwrap_or_else(PoisonError::into_inner);
        let state = Arc::clone(states.entry(name).or_insert_with(|| Arc::new(T::default())));
        state.downcast().unwrap_or_default()
    }

    /// What the store can do.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// The local file system behind it, if it is one.
    pub fn local(&self) -> Option<&LocalStore> {
        self.inner.local.as_ref()
    }

    fn multipart(&self) -> Option<&Arc<dyn MultipartStore>> {
        self.inner.multipart.as_ref()
    }

    /// The object key of a path.
    pub fn key(&self, path: &str) -> Result<Path> {
        path::parse(path)?;
        path::parse(&path::join(&self.prefix, path))
    }

    fn folder_key(&self, path: &str) -> Result<Path> {
        path::parse_folder(path)?;
        match path {
            "" => path::parse_folder(&self.prefix),
            path => path::parse(&path::join(&self.prefix, path)),
        }
    }

    fn strip_prefix(&self, key: &Path) -> String {
        let full_key = key.as_ref();
        match self.prefix.as_str() {
            "" => full_key.to_owned(),
            prefix => full_key
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('/'))
                .unwrap_or(full_key)
                .to_owned(),
        }
    }
}
