//! The object store of `memory:` URLs and of tests, with every condition that a cloud store offers.
//!
//! [`MemoryStore`] adds to `object_store`'s [`InMemory`] what that lacks: multipart uploads that can be listed, and
//! conditional deletions, completions and copies. It checks a condition and makes the change under one lock. ETags
//! are never reused.
//!
//! Errors are `object_store`'s: `NotFound` for a missing object or upload (`NoSuchUpload`, as S3 says),
//! `AlreadyExists` or `Precondition` for a condition that does not hold, `Generic` for a completion with other parts
//! than those that were uploaded (`InvalidPart`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, Result, UpdateVersion, UploadPart,
};

use super::condition::{Condition, ConditionSupport, ConditionalStore, OpenUpload, UploadedPart};
use crate::clock::{Clock, SystemClock};
use crate::sync::fork::{self, ForkSafeGuard, delay_forks};

/// An object store in memory, whose ETags are never reused.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: InMemory,
    /// The open uploads. A check of a condition and its change of objects hold this lock.
    uploads: Mutex<Uploads>,
}

#[derive(Debug, Default)]
struct Uploads {
    created: u64,
    open: HashMap<MultipartId, Upload>,
}

#[derive(Debug)]
struct Upload {
    path: Path,
    initiated_at: DateTime<Utc>,
    parts: BTreeMap<usize, (String, Bytes)>,
}

impl std::fmt::Display for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("memory")
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// The uploads that are neither completed nor aborted, by path and id.
    pub fn open_uploads(&self) -> Vec<OpenUpload> {
        let uploads = self.lock_uploads();
        let mut all: Vec<_> = uploads
            .open
            .iter()
            .map(|(id, upload)| OpenUpload {
                path: upload.path.clone(),
                id: id.clone(),
                initiated_at: upload.initiated_at,
            })
            .collect();
        all.sort_by(|a, b| (&a.path, &a.id).cmp(&(&b.path, &b.id)));
        all
    }

    fn lock_uploads(&self) -> ForkSafeGuard<'_, Uploads> {
        fork::lock(&self.uploads)
    }

    /// Runs a change of objects under the lock.
    fn run_exclusive<T>(&self, change: impl Future<Output = Result<T>>) -> Result<T> {
        let _guard = self.lock_uploads();
        poll_once(change)
    }

    fn delete_version(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let _guard = self.lock_uploads();
        if let Some(e_tag) = e_tag {
            let options = GetOptions::new().with_head(true);
            let current_e_tag = poll_once(self.objects.get_opts(key, options))?.meta.e_tag;
            if current_e_tag.as_deref() != Some(e_tag) {
                return Err(precondition_failed(key));
            }
        }
        let keys = stream::iter([Ok(key.clone())]).boxed();
        poll_once(
            self.objects
                .delete_stream(keys)
                .map(|result| result.map(drop))
                .collect::<Vec<_>>()
                .map(Ok),
        )?
        .into_iter()
        .collect()
    }
}

/// The result of an operation of [`InMemory`], which completes when it is first polled.
fn poll_once<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    work.now_or_never().unwrap_or_else(|| {
        Err(Error::Generic {
            store: "memory",
            source: "internal error: an operation in memory did not complete at once".into(),
        })
    })
}

fn precondition_failed(key: &Path) -> Error {
    Error::Precondition {
        path: key.to_string(),
        source: "the object's ETag does not match".into(),
    }
}

fn no_such_upload(key: &Path, id: &str) -> Error {
    Error::NotFound {
        path: key.to_string(),
        source: format!("no multipart upload {id:?} (NoSuchUpload)").into(),
    }
}

#[async_trait]
impl ObjectStore for MemoryStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.run_exclusive(self.objects.put_opts(location, payload, opts))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.objects.put_multipart_opts(location, opts).await?;
        Ok(Box::new(MemoryUpload(upload)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let _delay = delay_forks();
        poll_once(self.objects.get_opts(location, options))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        // A deletion without a condition needs no lock: it is one change of the map.
        let objects = self.objects.clone();
        locations
            .map(move |location| {
                let key = location?;
                let _delay = delay_forks();
                poll_once(objects.delete(&key)).map(|()| key)
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let _delay = delay_forks();
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let _delay = delay_forks();
        poll_once(self.objects.list_with_delimiter(prefix))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run_exclusive(self.objects.copy_opts(from, to, options))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.run_exclusive(self.objects.rename_opts(from, to, options))
    }
}

/// An upload that makes its object under no fork.
#[derive(Debug)]
struct MemoryUpload(Box<dyn MultipartUpload>);

#[async_trait]
impl MultipartUpload for MemoryUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.0.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let _delay = delay_forks();
        poll_once(self.0.complete())
    }

    async fn abort(&mut self) -> Result<()> {
        self.0.abort().await
    }
}

#[async_trait]
impl MultipartStore for MemoryStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        let mut uploads = self.lock_uploads();
        uploads.created += 1;
        let id = format!("upload-{}", uploads.created);
        let upload = Upload {
            path: path.clone(),
            initiated_at: SystemClock.now(),
            parts: BTreeMap::new(),
        };
        uploads.open.insert(id.clone(), upload);
        Ok(id)
    }

    async fn put_part(
        &self,
        path: &Path,
        id: &MultipartId,
        part_idx: usize,
        data: PutPayload,
    ) -> Result<PartId> {
        let mut uploads = self.lock_uploads();
        let candidate = uploads
            .open
            .get_mut(id)
            .filter(|upload| upload.path == *path);
        let upload = candidate.ok_or_else(|| no_such_upload(path, id))?;
        let bytes = Bytes::from(data);
        let content_id = super::content_tag::content_tag(&bytes);
        upload.parts.insert(part_idx, (content_id.clone(), bytes));
        Ok(PartId { content_id })
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
        let aborted = self.lock_uploads().open.remove(id);
        aborted.map(drop).ok_or_else(|| no_such_upload(path, id))
    }
}

#[async_trait]
impl ConditionalStore for MemoryStore {
    fn known_condition_support(&self) -> Option<ConditionSupport> {
        Some(ConditionSupport::ALL)
    }

    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        self.delete_version(key, e_tag)
    }

    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> Result<PutResult> {
        let mut uploads = self.lock_uploads();
        let candidate = uploads
            .open
            .get(upload)
            .filter(|upload| upload.path == *key);
        let open_upload = candidate.ok_or_else(|| no_such_upload(key, upload))?;
        let part_ids = parts.iter().map(|part| &part.content_id);
        if !part_ids.eq(open_upload.parts.values().map(|(id, _)| id)) {
            return Err(Error::Generic {
                store: "memory",
                source: "the parts differ from those that were uploaded (InvalidPart)".into(),
            });
        }
        let bytes: Vec<Bytes> = open_upload
            .parts
            .values()
            .map(|(_, bytes)| bytes.clone())
            .collect();
        let payload = Bytes::from(bytes.concat()).into();
        let result = poll_once(
            self.objects
                .put_opts(key, payload, put_mode(condition).into()),
        )?;
        uploads.open.remove(upload);
        Ok(result)
    }

    async fn list_parts(&self, key: &Path, upload: &MultipartId) -> Result<Vec<UploadedPart>> {
        let uploads = self.lock_uploads();
        let candidate = uploads
            .open
            .get(upload)
            .filter(|upload| upload.path == *key);
        let open_upload = candidate.ok_or_else(|| no_such_upload(key, upload))?;
        let parts = open_upload
            .parts
            .values()
            .map(|(e_tag, bytes)| UploadedPart {
                e_tag: e_tag.clone(),
                bytes: bytes.len() as u64,
            });
        Ok(parts.collect())
    }

    async fn list_uploads(&self, folder: &Path) -> Result<Vec<OpenUpload>> {
        let mut uploads = self.open_uploads();
        uploads.retain(|upload| upload.is_in(folder));
        Ok(uploads)
    }

    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<Result<()>> {
        let _guard = self.lock_uploads();
        let copied = poll_once(async {
            let source = self.objects.get_opts(from, GetOptions::default()).await?;
            if e_tag.is_some_and(|e_tag| source.meta.e_tag.as_deref() != Some(e_tag)) {
                return Err(precondition_failed(from));
            }
            let bytes = source.bytes().await?;
            self.objects
                .put_opts(to, bytes.into(), put_mode(condition).into())
                .await
        });
        Some(copied.map(drop))
    }
}

fn put_mode(condition: &Condition) -> PutMode {
    match condition {
        Condition::Always => PutMode::Overwrite,
        Condition::Absent => PutMode::Create,
        Condition::Matches(e_tag) => PutMode::Update(UpdateVersion {
            e_tag: Some(e_tag.clone()),
            version: None,
        }),
    }
}
