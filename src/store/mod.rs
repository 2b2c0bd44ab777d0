//! Access to objects in memory, in local files, on S3, Azure Blob Storage and Google Cloud Storage.
//!
//! A [`Store`] reads, writes, lists and deletes the objects below a URL, and counts its requests ([`metrics`]). All
//! other modules reach bytes only through it; it knows nothing of Parquet. [`builder`] creates a store from a URL and
//! options, [`cas`] has the conditional writes, [`stage`] the uploads that no reader sees until they are published.
//! [`path`] refuses paths that could leave the root of a store.
//!
//! Errors: [`ErrorKind::NotFound`], [`ErrorKind::InvalidPath`], [`ErrorKind::PermissionDenied`] (403 and missing
//! credentials, which differ in the message), [`ErrorKind::Unavailable`] (transport and server errors after retries),
//! [`ErrorKind::Conflict`] and [`ErrorKind::AlreadyExists`] (a condition did not hold),
//! [`ErrorKind::CapabilityNotSupported`] and [`ErrorKind::UnsafeStore`] (the store cannot do what the call needs).
//!
//! [`ErrorKind::NotFound`]: crate::error::ErrorKind::NotFound
//! [`ErrorKind::InvalidPath`]: crate::error::ErrorKind::InvalidPath
//! [`ErrorKind::PermissionDenied`]: crate::error::ErrorKind::PermissionDenied
//! [`ErrorKind::Unavailable`]: crate::error::ErrorKind::Unavailable
//! [`ErrorKind::Conflict`]: crate::error::ErrorKind::Conflict
//! [`ErrorKind::AlreadyExists`]: crate::error::ErrorKind::AlreadyExists
//! [`ErrorKind::CapabilityNotSupported`]: crate::error::ErrorKind::CapabilityNotSupported
//! [`ErrorKind::UnsafeStore`]: crate::error::ErrorKind::UnsafeStore

mod aws;
pub mod builder;
mod capabilities;
pub mod cas;
mod cloud;
mod cloud_copy;
mod condition;
mod conditional;
pub mod content_tag;
pub mod contract;
mod copy;
mod counting_store;
mod credentials;
mod failure;
mod gcs;
mod http;
mod limit;
pub mod local;
pub mod memory;
pub mod metrics;
mod objects;
pub mod path;
mod probe;
mod probe_memory;
pub mod process_id;
mod range_copy;
mod requests;
pub mod secrets;
pub mod stage;
pub mod staged_write;
pub mod temp_name;
mod upload;
mod url;
mod xml;

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

pub use self::builder::StoreBuilder;
pub use self::capabilities::Capabilities;
pub use self::condition::{
    Condition, ConditionSupport, ConditionalStore, KeyListing, OpenUpload, UploadedPart,
};
pub(crate) use self::failure::is_transient;
use self::limit::Resends;
pub use self::limit::SendLimit;
use self::local::LocalStore;
pub(crate) use self::local::defer_name_syncs;
pub use self::local::lock::{FileLock, LockCell};
use self::metrics::{Metrics, ReadCounter};
use self::probe_memory::LearnedConditions;
use self::secrets::Secrets;
pub(crate) use self::url::percent_decode;
use crate::clock::Clock;
use crate::error::Result;
use crate::sync::fork;

/// The default of [`Store::publish_lease`].
pub const DEFAULT_PUBLISH_LEASE: Duration = Duration::from_secs(30);

struct Inner {
    name: &'static str,
    objects: Arc<dyn ObjectStore>,
    multipart: Option<Arc<dyn MultipartStore>>,
    local: Option<LocalStore>,
    conditional_store: Option<Arc<dyn ConditionalStore>>,
    /// The cached result of [`Store::condition_support`].
    condition_support: Mutex<Option<LearnedConditions>>,
    /// Whether requests pass the HTTP service, which counts them and checks send limits.
    is_http: bool,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    secrets: Arc<Secrets>,
    publish_lease: Duration,
    resends: Resends,
    /// Whether [`Store::get`] counts the bytes it reads, because no layer below does.
    counts_reads: bool,
    /// Identifies the underlying store within this process; defaults to the address of `objects`.
    identity: Option<usize>,
    /// The values of [`Store::shared_state`], by type, process and path.
    shared_state: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
}

/// The objects below a root folder. Paths are relative to the root. Clones and children share counters and state.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    prefix: String,
    limit: SendLimit,
    /// A lock that blocking work on local files keeps until it has ended, even if its call was cancelled.
    lock: Option<Arc<LockCell>>,
    /// Counts what is read through this clone and its children.
    reads: Option<Arc<ReadCounter>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, {:?})", self.inner.name, self.prefix)
    }
}

/// The direct content of a folder.
#[derive(Debug, Default)]
pub struct FolderListing {
    /// Its files, with paths relative to the store.
    pub files: Vec<ObjectMeta>,
    /// Its subfolders, as paths relative to the store.
    pub folders: Vec<String>,
}

impl Store {
    /// Creates a store over any [`ObjectStore`]. Long writes are staged as hidden objects and renamed.
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
            resends: Resends::default(),
            counts_reads: true,
            identity: None,
            shared_state: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            prefix: String::new(),
            limit: SendLimit::default(),
            lock: None,
            reads: None,
        }
    }

    /// Returns the store with long writes staged as multipart uploads of `multipart`.
    #[must_use]
    pub fn with_multipart(self, multipart: Arc<dyn MultipartStore>) -> Self {
        self.with_inner(|inner| inner.multipart = Some(multipart))
    }

    /// Returns the store with the conditional requests of `conditional_store`.
    #[must_use]
    pub fn with_conditional_store(self, conditional_store: Arc<dyn ConditionalStore>) -> Self {
        self.with_inner(|inner| inner.conditional_store = Some(conditional_store))
    }

    /// Returns the store with another duration of publish leases.
    #[must_use]
    pub fn with_publish_lease(self, lease: Duration) -> Self {
        self.with_inner(|inner| inner.publish_lease = lease)
    }

    /// How long a publish of a dataset may go unrenewed before other processes take it over.
    pub fn publish_lease(&self) -> Duration {
        self.inner.publish_lease
    }

    /// Returns the store with `lock` held by its work on local files until that has ended, even if its call was
    /// cancelled.
    #[must_use]
    pub fn with_lock(&self, lock: &Arc<LockCell>) -> Self {
        Self {
            lock: Some(Arc::clone(lock)),
            ..self.clone()
        }
    }

    /// Returns the store with what is read through it, whichever task does it, counted by `counter` too.
    #[must_use]
    pub fn with_read_counter(&self, counter: &Arc<ReadCounter>) -> Self {
        Self {
            reads: Some(Arc::clone(counter)),
            ..self.clone()
        }
    }

    fn count_read_request(&self) {
        if let Some(reads) = &self.reads {
            reads.count_request();
        }
    }

    /// Counts bytes that were read, also of a local file by its descriptor.
    pub(crate) fn count_read_bytes(&self, bytes: u64) {
        if let Some(reads) = &self.reads {
            reads.count_bytes(bytes);
        }
    }

    /// Returns the store marked as one whose requests are counted and limited by the HTTP service.
    fn with_http_service(self, resends: Resends) -> Self {
        self.with_inner(|inner| {
            inner.counts_reads = false;
            inner.is_http = true;
            inner.resends = resends;
        })
    }

    /// Returns the store with `secrets` masked in its errors.
    fn with_secrets(self, secrets: Secrets) -> Self {
        self.with_inner(|inner| inner.secrets = Arc::new(secrets))
    }

    /// Returns the store marked as one of local files, whose ETags may recur and so are no versions.
    #[must_use]
    pub fn with_local(self, local: LocalStore) -> Self {
        self.with_inner(|inner| {
            inner.local = Some(local);
            inner.capabilities.versions = false;
        })
    }

    /// Returns the store with `change` applied to a copy of its settings; probe result and shared state start empty.
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
            resends: old.resends,
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
            reads: self.reads,
        }
    }

    /// The store below `folder`; [`ErrorKind::InvalidPath`](crate::ErrorKind::InvalidPath) if that is not a valid path.
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
            reads: self.reads.clone(),
        })
    }

    /// The kind of store: `memory`, `file`, `s3`, `az`, `gs`, or the name of a foreign store.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// The counters of requests and bytes, shared with children.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.inner.metrics
    }

    /// The clock that gives the store time, waiting and new ids.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.inner.clock
    }

    /// Returns the store with the identity of what it wraps, such as its address: several stores over one object count
    /// as the same store.
    #[must_use]
    pub fn with_identity(self, identity: usize) -> Self {
        self.with_inner(|inner| inner.identity = Some(identity))
    }

    /// Identifies the underlying store among those of this process. A forked child's store differs from its parent's.
    pub(crate) fn identity(&self) -> (u32, usize) {
        let address = Arc::as_ptr(&self.inner.objects).cast::<()>().addr();
        (std::process::id(), self.inner.identity.unwrap_or(address))
    }

    /// The state of type `T` that all users of this store under `path` share; created by the first use.
    pub fn shared_state<T: Any + Default + Send + Sync>(&self, path: &str) -> Arc<T> {
        // A forked child has its parent's memory and none of its threads, so it gets state of its own.
        let (type_name, process_id) = (std::any::type_name::<T>(), std::process::id());
        let name = format!("{type_name} {process_id} {}/{path}", self.prefix);
        let mut states = fork::lock(&self.inner.shared_state);
        let state = Arc::clone(states.entry(name).or_insert_with(|| Arc::new(T::default())));
        state.downcast().unwrap_or_default()
    }

    /// What the store can do beyond reading and atomic writes.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }

    /// The local files, if the store is one of local files.
    pub fn local(&self) -> Option<&LocalStore> {
        self.inner.local.as_ref()
    }

    /// Whether the store speaks HTTP by this library's own client.
    fn is_http(&self) -> bool {
        self.inner.is_http
    }

    fn multipart(&self) -> Option<&Arc<dyn MultipartStore>> {
        self.inner.multipart.as_ref()
    }

    /// The object key of `path`; [`ErrorKind::InvalidPath`](crate::ErrorKind::InvalidPath) if it is not a valid path.
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
