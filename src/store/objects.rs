//! Requests for objects: read, write, delete and list, with paths relative to the [`Store`].
//!
//! Idempotent requests are retried here where the layer below does not retry: after a response body that was cut off,
//! a stall, or a conflict that a request without a condition cannot have. All others are sent once by this layer;
//! `super::conditional` has those with a condition, `super::copy` copies and moves.
//!
//! Errors are those of [`Store`]. A request that is still [`ErrorKind::Unavailable`] after its retries fails with the
//! number of attempts and the time that they took.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, ListResult, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    PutResult,
};

use super::condition::KeyListing;
use super::failure::failed_deletion;
use super::metrics::RequestKind;
use super::{FolderListing, Store, limit};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::blocking::{BlockingError, run_blocking};

/// The attempts of an idempotent request in all; the layer below has its own retries in each.
const MAX_ATTEMPTS: u32 = 4;
/// No attempt is repeated when the request has already taken longer than this.
const RETRY_TIMEOUT: Duration = Duration::from_mins(1);
/// The pause after the first attempt; it grows by this much with each further one.
const RETRY_DELAY: Duration = Duration::from_millis(50);

impl Store {
    /// Reads an object, or the range that `options` name.
    pub async fn get(&self, path: &str, options: GetOptions) -> Result<(Bytes, ObjectMeta)> {
        self.get_at_most(path, options, u64::MAX).await
    }

    /// As [`Store::get`]; [`ErrorKind::TooLarge`], before the body is read, if that has more than `max_bytes` bytes.
    pub async fn get_at_most(
        &self,
        path: &str,
        options: GetOptions,
        max_bytes: u64,
    ) -> Result<(Bytes, ObjectMeta)> {
        let key = self.key(path)?;
        let read = self.retry_idempotent(path, || async {
            self.count_read_request();
            let result = self.inner.objects.get_opts(&key, options.clone()).await?;
            let meta = result.meta.clone();
            if result.range.end - result.range.start > max_bytes {
                return Ok(None);
            }
            let bytes = result.bytes().await?;
            self.count_read_bytes(bytes.len() as u64);
            if self.inner.counts_reads {
                self.inner
                    .metrics
                    .count_received_bytes(RequestKind::Get, bytes.len() as u64);
            }
            Ok(Some((bytes, meta)))
        });
        read.await?.ok_or_else(|| {
            let message = format!("{path:?} is longer than the limit of {max_bytes} bytes");
            Error::new(ErrorKind::TooLarge, message).with_path(path)
        })
    }

    /// Reads one range of an object, of its version `e_tag` if that is given: [`ErrorKind::Conflict`] if the object is
    /// another version. A response of another length is [`ErrorKind::Unavailable`].
    pub async fn get_range(
        &self,
        path: &str,
        range: Range<u64>,
        e_tag: Option<&str>,
    ) -> Result<Bytes> {
        let expected_bytes = range.end - range.start;
        let options = GetOptions::new()
            .with_range(Some(GetRange::Bounded(range)))
            .with_if_match(e_tag);
        let (bytes, _) = self.get(path, options).await?;
        if bytes.len() as u64 != expected_bytes {
            let message = format!(
                "the store returned {} bytes for a range of {expected_bytes} bytes",
                bytes.len()
            );
            return Err(Error::new(ErrorKind::Unavailable, message).with_path(path));
        }
        Ok(bytes)
    }

    /// The metadata of an object: its size, time and ETag.
    pub async fn head(&self, path: &str) -> Result<ObjectMeta> {
        let key = self.key(path)?;
        self.count_read_request();
        self.send_once(path, self.inner.objects.head(&key)).await
    }

    /// Whether there is an object at `path`.
    pub async fn is_file(&self, path: &str) -> Result<bool> {
        match self.head(path).await {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Writes an object in one request. With [`PutMode::Overwrite`] it is retried; with any other mode it is sent once,
    /// since the answer to a second send would say nothing about the first: after [`ErrorKind::Unavailable`] the write
    /// may land, now or later, and after any other error it does not.
    pub async fn put(&self, path: &str, bytes: Bytes, mode: PutMode) -> Result<PutResult> {
        self.put_payload(path, PutPayload::from_bytes(bytes), mode)
            .await
    }

    pub(super) async fn put_payload(
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
            let sent = self.sending_once().send_once(path, put(mode)).await;
            if let Err(e) = &sent {
                self.forget_if_contradicted(e);
            }
            return sent;
        }
        self.retry_idempotent(path, || async {
            put(PutMode::Overwrite).await.map_err(|e| match e {
                // Stores answer concurrent writers with this. No condition was sent, so a retry is safe.
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

    /// Deletes an object. False if it did not exist; a store that does not report this gives true.
    pub async fn delete(&self, path: &str) -> Result<bool> {
        let key = self.key(path)?;
        match self
            .retry_idempotent(path, || self.inner.objects.delete(&key))
            .await
        {
            Ok(()) => Ok(true),
            // A request that did not reach the object can be answered so too: look for the object.
            Err(e) if e.kind() == ErrorKind::NotFound && !self.is_file(path).await? => Ok(false),
            Err(e) if e.kind() == ErrorKind::NotFound && self.may_retry() => {
                let deleted = self
                    .retry_idempotent(path, || self.inner.objects.delete(&key))
                    .await;
                deleted
                    .map(|()| true)
                    .map_err(|e| e.with_kind(ErrorKind::Unavailable))
            }
            Err(e) => Err(e),
        }
    }

    /// Deletes an object by a request that this layer sends once: after a lost answer the path may already hold an
    /// object of another writer.
    pub async fn delete_once(&self, path: &str) -> Result<()> {
        let key = self.key(path)?;
        self.send_once(path, self.inner.objects.delete(&key)).await
    }

    /// Deletes many objects, in bulk where the store can. Missing ones are no error.
    pub async fn delete_all(&self, paths: &[String]) -> Result<()> {
        let keys = paths
            .iter()
            .map(|p| self.key(p))
            .collect::<Result<Vec<_>>>()?;
        let bulk = self.retry_idempotent("", || async {
            let key_stream = futures::stream::iter(keys.clone().into_iter().map(Ok));
            let mut deletions = self.inner.objects.delete_stream(Box::pin(key_stream));
            while deletions.try_next().await?.is_some() {}
            Ok(())
        });
        match bulk.await {
            // A bulk deletion does not say which object was missing, or whether the request reached them at all.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                for path in paths {
                    self.delete(path).await?;
                }
                Ok(())
            }
            Err(e) => {
                // A bulk deletion names the object that it failed at.
                let is_named = |key: &Path| e.message().contains(&failed_deletion(key.as_ref()));
                let failed = keys.iter().zip(paths).find(|(key, _)| is_named(key));
                Err(match failed {
                    Some((_, path)) => e.with_path(path),
                    None => e,
                })
            }
            Ok(()) => Ok(()),
        }
    }

    /// The objects below `folder` at any depth. Keys that are not valid paths, and the objects of folders themselves, are left
    /// out, see [`Store::remove_folder_objects`].
    pub async fn list(&self, folder: &str) -> Result<Vec<ObjectMeta>> {
        let listing = self.list_keys(folder, true).await?;
        Ok(listing
            .objects
            .into_iter()
            .map(|meta| self.relocate(meta))
            .collect())
    }

    /// The files and subfolders directly in `folder`; leaves out the same as [`Store::list`].
    pub async fn list_folder(&self, folder: &str) -> Result<FolderListing> {
        let listing = self.list_keys(folder, false).await?;
        Ok(FolderListing {
            files: listing
                .objects
                .into_iter()
                .map(|meta| self.relocate(meta))
                .collect(),
            folders: listing
                .common_prefixes
                .iter()
                .map(|key| self.strip_prefix(key))
                .collect(),
        })
    }

    /// Lists a folder by the keys of the store.
    async fn list_keys(&self, folder: &str, recursive: bool) -> Result<ListResult> {
        let key = self.folder_key(folder)?;
        let list = || self.send_listing(&key, recursive);
        let listed = self.retry_idempotent(folder, list).await;
        let KeyListing {
            mut listing,
            unnamed,
            ..
        } = listed.map_err(|e| match e.kind() {
            ErrorKind::InvalidPath if self.is_http() => e.with_hint(
                "the key of an object is not a valid path: remove the object by the tools of the store",
            ),
            _ => e,
        })?;
        if let Some(example) = unnamed.first() {
            let count = unnamed.len();
            log::warn!(
                "the listing of {folder:?} leaves out {count} keys that are not valid paths, such as {example:?}"
            );
        }
        // `object_store` takes the key `a/` of a folder's own object for that of the file `a`.
        listing
            .objects
            .retain(|meta| is_below(&key, &meta.location));
        Ok(listing)
    }

    async fn send_listing(&self, key: &Path, recursive: bool) -> object_store::Result<KeyListing> {
        if let Some(conditional_store) = &self.inner.conditional_store
            && let Some(listing) = conditional_store.list_keys(key, recursive).await
        {
            return listing;
        }
        let prefix = (!key.is_root()).then_some(key);
        let objects = &self.inner.objects;
        let listing = if recursive {
            ListResult {
                common_prefixes: Vec::new(),
                objects: objects.list(prefix).try_collect().await?,
            }
        } else {
            objects.list_with_delimiter(prefix).await?
        };
        Ok(KeyListing {
            listing,
            ..KeyListing::default()
        })
    }

    /// Deletes the objects of `folder` and of the folders below themselves, which consoles create and listings leave
    /// out. Returns their number.
    ///
    /// [`ErrorKind::InvalidPath`] if there are objects below whose keys are not valid paths: no call can delete them.
    pub async fn remove_folder_objects(&self, folder: &str) -> Result<usize> {
        let Some(conditional_store) = &self.inner.conditional_store else {
            return Ok(0);
        };
        let key = self.folder_key(folder)?;
        let list = || async {
            let listing = conditional_store.list_keys(&key, true).await;
            listing.unwrap_or_else(|| Ok(KeyListing::default()))
        };
        let listing = self.retry_idempotent(folder, list).await?;
        for folder_key in &listing.folder_objects {
            let delete = || conditional_store.delete_folder_object(folder_key);
            self.retry_idempotent(folder, delete).await?;
        }
        let Some(example) = listing.unnamed.first() else {
            return Ok(listing.folder_objects.len());
        };
        let count = listing.unnamed.len();
        let message = format!(
            "{count} objects stay in {folder:?}, since their keys are not valid paths, such as {example:?}"
        );
        Err(Error::new(ErrorKind::InvalidPath, message)
            .with_path(folder)
            .with_hint("remove them by the tools of the store"))
    }

    pub(super) fn relative_path(&self, key: &Path) -> Path {
        Path::parse(self.strip_prefix(key)).unwrap_or_else(|_| key.clone())
    }

    fn relocate(&self, meta: ObjectMeta) -> ObjectMeta {
        let location = self.relative_path(&meta.location);
        // Azure's listings omit the quotes that ETags have in its other responses.
        let e_tag = meta.e_tag.map(|e_tag| {
            if self.inner.is_http && !e_tag.starts_with(['"', 'W']) {
                format!("\"{e_tag}\"")
            } else {
                e_tag
            }
        });
        ObjectMeta {
            location,
            e_tag,
            ..meta
        }
    }

    /// Whether `folder` is a folder of local files, with or without files; other stores have folders only as parts of
    /// keys.
    pub async fn is_local_folder(&self, folder: &str) -> Result<bool> {
        let key = self.folder_key(folder)?;
        match &self.inner.local {
            Some(local) => self.send_once(folder, local.is_folder(&key)).await,
            None => Ok(false),
        }
    }

    /// Waits until the names of objects are on a local disk, as after [`super::defer_name_syncs`]. Other stores have
    /// nothing to wait for.
    pub(crate) async fn sync_names(&self, paths: &[String]) -> Result<()> {
        let local = self.inner.local.as_ref().filter(|l| l.is_durable());
        let (Some(local), Some(first)) = (local, paths.first()) else {
            return Ok(());
        };
        let keys = paths.iter().map(|path| self.key(path));
        let synced = local.sync_names(keys.collect::<Result<Vec<_>>>()?);
        self.send_once(first, synced).await
    }

    /// Refuses a folder that is to be deleted and is a symbolic link of local files ([`ErrorKind::InvalidPath`]): the
    /// folder where the link leads would be emptied.
    pub async fn refuse_link(&self, folder: &str) -> Result<()> {
        if !self.is_link(folder).await? {
            return Ok(());
        }
        let message = format!(
            "{folder:?} is a symbolic link, which a deletion does not follow; delete the folder where it leads by the \
             path of that folder, or remove the link by the tools of the file system"
        );
        Err(Error::new(ErrorKind::InvalidPath, message).with_path(folder))
    }

    /// Refuses folders, below which unused objects are to be removed, if one is a symbolic link of local files
    /// ([`ErrorKind::InvalidPath`]): where the link leads, they may be in use.
    pub(crate) async fn refuse_links(&self, folders: &[String]) -> Result<()> {
        for folder in folders {
            if self.is_link(folder).await? {
                let message = format!(
                    "{folder:?} is a symbolic link, and what is removed below it may be another's; nothing was \
                     removed; move the folder where it leads to the place of the link"
                );
                return Err(Error::new(ErrorKind::InvalidPath, message).with_path(folder));
            }
        }
        Ok(())
    }

    async fn is_link(&self, folder: &str) -> Result<bool> {
        let key = self.folder_key(folder)?;
        match &self.inner.local {
            Some(local) if !key.is_root() => self.send_once(folder, local.is_link(&key)).await,
            _ => Ok(false),
        }
    }

    /// Removes `folder` and its empty subfolders from local files; in other stores folders are only parts of keys.
    pub async fn remove_empty_folder(&self, folder: &str) -> Result<()> {
        let key = self.folder_key(folder)?;
        if let Some(local) = self.inner.local.clone() {
            let removed = run_blocking(move || local.remove_empty_tree(&key)).await;
            removed.map_err(BlockingError::into_error)?;
        }
        Ok(())
    }

    /// Sends an idempotent request, with the retries of this layer.
    pub(super) async fn retry_idempotent<T, F>(
        &self,
        path: &str,
        request: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        self.run_limited(path, self.send_with_retries(path, request))
            .await
    }

    /// Sends one request, without retries of this layer.
    pub(super) async fn send_once<T>(
        &self,
        path: &str,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let send = async {
            self.send(request)
                .await
                .map_err(|e| self.map_error(e, path))
        };
        self.run_limited(path, send).await
    }

    async fn send_with_retries<T, F>(&self, path: &str, request: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let start = self.inner.clock.monotonic();
        let mut attempts = 1;
        loop {
            let error = match self.send(request()).await {
                Ok(value) => return Ok(value),
                Err(e) => self.map_error(e, path),
            };
            let elapsed = self.inner.clock.monotonic().saturating_sub(start);
            let is_last =
                attempts == MAX_ATTEMPTS || elapsed > RETRY_TIMEOUT || limit::is_refused();
            if error.kind() != ErrorKind::Unavailable {
                return Err(error);
            }
            if is_last {
                let seconds = elapsed.as_secs_f32();
                return Err(error.context(format!(
                    "gave up after {attempts} rounds of attempts in {seconds:.1} s"
                )));
            }
            self.inner.clock.sleep(RETRY_DELAY * attempts).await;
            attempts += 1;
        }
    }
}

/// Whether an object is below a folder.
fn is_below(folder: &Path, location: &Path) -> bool {
    folder.is_root()
        || (location.as_ref().strip_prefix(folder.as_ref()))
            .is_some_and(|rest| rest.starts_with('/'))
}
