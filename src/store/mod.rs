//! The one way to bytes: memory, local files, S3, Azure Blob and Google Cloud Storage.
//!
//! [`Store`] is a set of objects below a URL, with metrics and the few operations datasets need.
//! [`builder`] makes one from a URL and options, [`cas`] holds the conditional writes, [`stage`]
//! the uploads that no reader can see until they are published. Paths are checked by [`path`].
//!
//! Errors: [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`] (403 and missing credentials,
//! told apart in the message), [`ErrorKind::Unavailable`] (transport and server errors after
//! retries), [`ErrorKind::Conflict`] (a condition did not hold).

mod abilities;
pub mod builder;
pub mod cas;
mod counted;
mod failure;
mod http;
pub mod local;
pub mod metrics;
pub mod owner;
pub mod path;
mod profile;
pub mod stage;
mod upload;

use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, PutResult, RenameOptions,
};

pub use self::abilities::Abilities;
pub use self::builder::StoreBuilder;
use self::local::LocalStore;
use self::metrics::Metrics;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// How often an idempotent request is sent in all, beyond the retries of the layer below…
const MAX_SENT: u32 = 4;
/// …as long as they have not taken this long already.
const AGAIN_WITHIN: Duration = Duration::from_mins(1);
const AGAIN_PAUSE: Duration = Duration::from_millis(50);

struct Inner {
    name: &'static str,
    objects: Arc<dyn ObjectStore>,
    multipart: Option<Arc<dyn MultipartStore>>,
    local: Option<LocalStore>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    abilities: Abilities,
    /// Nobody below counts the bytes of answers.
    counts_reads: bool,
    /// What its users share, by name.
    shared: Mutex<HashMap<String, Arc<dyn Any + Send + Sync>>>,
}

/// Objects below a root, with paths relative to it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
    prefix: String,
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
    pub fn over(
        name: &'static str,
        objects: Arc<dyn ObjectStore>,
        abilities: Abilities,
        metrics: Arc<Metrics>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let inner = Inner {
            name,
            objects,
            multipart: None,
            local: None,
            metrics,
            clock,
            abilities,
            counts_reads: true,
            shared: Mutex::default(),
        };
        Self {
            inner: Arc::new(inner),
            prefix: String::new(),
        }
    }

    /// The same store, staging long writes as multipart uploads of `multipart`.
    #[must_use]
    pub fn with_multipart(self, multipart: Arc<dyn MultipartStore>) -> Self {
        self.edit(|inner| inner.multipart = Some(multipart))
    }

    /// The same store, whose answers are counted where they arrive.
    fn counted_below(self) -> Self {
        self.edit(|inner| inner.counts_reads = false)
    }

    fn with_local(self, local: LocalStore) -> Self {
        self.edit(|inner| {
            inner.local = Some(local);
            inner.abilities.versions = false;
        })
    }

    fn edit(self, change: impl FnOnce(&mut Inner)) -> Self {
        let old = &self.inner;
        let mut inner = Inner {
            name: old.name,
            objects: Arc::clone(&old.objects),
            multipart: old.multipart.clone(),
            local: old.local.clone(),
            metrics: Arc::clone(&old.metrics),
            clock: Arc::clone(&old.clock),
            abilities: old.abilities,
            counts_reads: old.counts_reads,
            shared: Mutex::default(),
        };
        change(&mut inner);
        Self {
            inner: Arc::new(inner),
            prefix: self.prefix,
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

    /// Something that all who use this store under this path have in common.
    pub fn shared<T: Any + Default + Send + Sync>(&self, path: &str) -> Arc<T> {
        // A forked child has the parent's memory, and none of its threads.
        let (kind, process) = (std::any::type_name::<T>(), std::process::id());
        let name = format!("{kind} {process} {}/{path}", self.prefix);
        let shared = self.inner.shared.lock();
        let mut shared = shared.unwrap_or_else(PoisonError::into_inner);
        let found = Arc::clone(shared.entry(name).or_insert_with(|| Arc::new(T::default())));
        found.downcast().unwrap_or_default()
    }

    /// What the store can do.
    pub fn abilities(&self) -> Abilities {
        self.inner.abilities
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

    fn relative(&self, key: &Path) -> String {
        let key = key.as_ref();
        match self.prefix.as_str() {
            "" => key.to_owned(),
            prefix => key
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix('/'))
                .unwrap_or(key)
                .to_owned(),
        }
    }

    /// Reads an object, or the range the options name.
    pub async fn get(&self, path: &str, options: GetOptions) -> Result<(Bytes, ObjectMeta)> {
        self.get_at_most(path, options, u64::MAX).await
    }

    /// As [`Store::get`], and [`ErrorKind::TooLarge`] before the first byte where there are more than `limit`.
    pub async fn get_at_most(
        &self,
        path: &str,
        options: GetOptions,
        limit: u64,
    ) -> Result<(Bytes, ObjectMeta)> {
        let key = self.key(path)?;
        let read = self.again(path, || async {
            let found = self.inner.objects.get_opts(&key, options.clone()).await?;
            let meta = found.meta.clone();
            if found.range.end - found.range.start > limit {
                return Ok(None);
            }
            let bytes = found.bytes().await?;
            if self.inner.counts_reads {
                self.inner.metrics.received(bytes.len() as u64);
            }
            Ok(Some((bytes, meta)))
        });
        read.await?.ok_or_else(|| {
            let message = format!("{path:?} has more than the {limit} bytes expected");
            Error::new(ErrorKind::TooLarge, message).at(path)
        })
    }

    /// Sends an idempotent request again where the layer below does not: after a body that was cut,
    /// a stall, or a conflict that a condition-less request cannot have.
    async fn again<T, F>(&self, path: &str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let began = self.inner.clock.monotonic();
        let mut sent = 1;
        loop {
            let error = match request().await {
                Ok(done) => return Ok(done),
                Err(e) => self.error(e, path),
            };
            let waited = self.inner.clock.monotonic().saturating_sub(began);
            if error.kind() != ErrorKind::Unavailable || sent == MAX_SENT || waited > AGAIN_WITHIN {
                return Err(error);
            }
            self.inner.clock.sleep(AGAIN_PAUSE * sent).await;
            sent += 1;
        }
    }

    /// Reads one range of the version `e_tag` of an object.
    pub async fn get_range(
        &self,
        path: &str,
        range: Range<u64>,
        e_tag: Option<&str>,
    ) -> Result<Bytes> {
        let wanted = range.end - range.start;
        let options = GetOptions::new()
            .with_range(Some(GetRange::Bounded(range)))
            .with_if_match(e_tag);
        let (bytes, _) = self.get(path, options).await?;
        if bytes.len() as u64 != wanted {
            let message = format!("asked for {wanted} bytes, the store sent {}", bytes.len());
            return Err(Error::new(ErrorKind::Unavailable, message).at(path));
        }
        Ok(bytes)
    }

    /// Size and version of an object.
    pub async fn head(&self, path: &str) -> Result<ObjectMeta> {
        let key = self.key(path)?;
        self.inner
            .objects
            .head(&key)
            .await
            .map_err(|e| self.error(e, path))
    }

    /// Whether there is an object at `path`.
    pub async fn is_file(&self, path: &str) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Writes an object in one request.
    pub async fn put(&self, path: &str, bytes: Bytes, mode: PutMode) -> Result<PutResult> {
        self.put_payload(path, PutPayload::from_bytes(bytes), mode)
            .await
    }

    async fn put_payload(
        &self,
        path: &str,
        payload: PutPayload,
        mode: PutMode,
    ) -> Result<PutResult> {
        let key = self.key(path)?;
        let put = |mode| {
            self.inner
                .objects
                .put_opts(&key, payload.clone(), PutOptions::from(mode))
        };
        if mode != PutMode::Overwrite {
            return put(mode).await.map_err(|e| self.error(e, path));
        }
        self.again(path, || async {
            put(PutMode::Overwrite).await.map_err(|e| match e {
                // Stores answer so to concurrent writers; there is no condition to fail.
                object_store::Error::AlreadyExists { source, .. }
                | object_store::Error::Precondition { source, .. } => {
                    object_store::Error::Generic {
                        store: "put",
                        source,
                    }
                }
                e => e,
            })
        })
        .await
    }

    /// Deletes an object; says whether it was there, where the store tells.
    pub async fn delete(&self, path: &str) -> Result<bool> {
        let key = self.key(path)?;
        match self.again(path, || self.inner.objects.delete(&key)).await {
            Ok(()) => Ok(true),
            // The request may be what was not found.
            Err(e) if e.kind() == ErrorKind::NotFound && !self.is_file(path).await? => Ok(false),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let deleted = self.again(path, || self.inner.objects.delete(&key)).await;
                deleted
                    .map(|()| true)
                    .map_err(|e| e.with_kind(ErrorKind::Unavailable))
            }
            Err(e) => Err(e),
        }
    }

    /// Deletes an object, and asks once only: after a lost answer the path may be another's already.
    pub async fn delete_once(&self, path: &str) -> Result<()> {
        let key = self.key(path)?;
        let deleted = self.inner.objects.delete(&key).await;
        deleted.map_err(|e| self.error(e, path))
    }

    /// Deletes many objects, in bulk where the store can.
    pub async fn delete_all(&self, paths: &[String]) -> Result<()> {
        let keys = paths
            .iter()
            .map(|p| self.key(p))
            .collect::<Result<Vec<_>>>()?;
        let bulk = self.again("", || async {
            let keys = futures::stream::iter(keys.clone().into_iter().map(Ok));
            let mut done = self.inner.objects.delete_stream(Box::pin(keys));
            while done.try_next().await?.is_some() {}
            Ok(())
        });
        match bulk.await {
            // Of many at once it is not told which was missing, or whether the request itself was.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                for path in paths {
                    self.delete(path).await?;
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Every object below `folder`, in any depth.
    pub async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>> {
        let key = self.folder_key(folder)?;
        let prefix = (!key.is_root()).then_some(&key);
        let found: Vec<ObjectMeta> = self
            .again(folder, || self.inner.objects.list(prefix).try_collect())
            .await?;
        Ok(found.into_iter().map(|meta| self.relocate(meta)).collect())
    }

    /// What `folder` holds directly.
    pub async fn list_folder(&self, folder: &str) -> Result<Folder> {
        let key = self.folder_key(folder)?;
        let prefix = (!key.is_root()).then_some(&key);
        let found = self
            .again(folder, || self.inner.objects.list_with_delimiter(prefix))
            .await?;
        Ok(Folder {
            files: found
                .objects
                .into_iter()
                .map(|meta| self.relocate(meta))
                .collect(),
            folders: found
                .common_prefixes
                .iter()
                .map(|key| self.relative(key))
                .collect(),
        })
    }

    fn relocate(&self, meta: ObjectMeta) -> ObjectMeta {
        let location =
            Path::parse(self.relative(&meta.location)).unwrap_or_else(|_| meta.location.clone());
        ObjectMeta { location, ..meta }
    }

    /// Copies an object inside the store.
    pub async fn copy(&self, from: &str, to: &str, mode: CopyMode) -> Result<()> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        let options = CopyOptions::new().with_mode(mode);
        self.inner
            .objects
            .copy_opts(&source, &target, options)
            .await
            .map_err(|e| self.error(e, from))
    }

    /// Moves an object over `to`; one step where the store has it, else copy and delete.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        self.inner
            .objects
            .rename_opts(&source, &target, RenameOptions::default())
            .await
            .map_err(|e| self.error(e, from))
    }

    /// Removes the folder and its empty subfolders, where folders exist of their own.
    pub async fn remove_empty_folder(&self, folder: &str) -> Result<()> {
        let key = self.folder_key(folder)?;
        if let Some(local) = self.inner.local.clone() {
            tokio::task::spawn_blocking(move || local.remove_empty_tree(&key))
                .await
                .map_err(|e| Error::other("a worker stopped").caused_by(e))?;
        }
        Ok(())
    }
}
