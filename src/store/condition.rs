//! Writes and deletions that happen only to the version they were meant for.

use std::fmt::Debug;
use std::sync::PoisonError;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{CopyMode, MultipartId, PutMode, PutResult, UpdateVersion};

use super::Store;
use super::limit::SendLimit;
use super::metrics::RequestKind;
use super::probe::Probe;
use crate::error::{Error, ErrorKind, Result};

/// What must be at a path for a request to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    Always,
    /// Nothing is there.
    Absent,
    /// The version with this ETag, as it was listed or returned.
    Matches(String),
}

/// What a store can do beyond conditional PUTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionSupport {
    /// A DELETE with If-Match deletes that version only.
    pub delete: bool,
    /// The completion of an upload may have a condition.
    pub complete: bool,
    /// An empty object that is put again has another ETag.
    pub marker_versions: bool,
}

impl ConditionSupport {
    /// Everything.
    pub const ALL: Self = Self {
        delete: true,
        complete: true,
        marker_versions: true,
    };
    /// Nothing but conditional PUTs.
    pub const NONE: Self = Self {
        delete: false,
        complete: false,
        marker_versions: false,
    };
}

/// A piece of an upload that is not completed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// The store's name of it.
    pub e_tag: String,
    /// Its length.
    pub bytes: u64,
}

/// An upload that was begun and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// What it is to become.
    pub path: Path,
    /// The store's name of it.
    pub id: MultipartId,
    /// When it was begun, by the store's clock.
    pub initiated_at: DateTime<Utc>,
}

impl OpenUpload {
    /// Whether what it is to become is directly in `folder`.
    pub fn is_in(&self, folder: &Path) -> bool {
        let inside = self.path.prefix_match(folder).map(Iterator::count);
        inside == Some(1)
    }
}

/// What stores can do with one version of an object, and `object_store` has no method for.
///
/// Errors are `object_store`'s: `NotFound`, `Precondition` where the condition does not hold.
#[async_trait]
pub trait ConditionalStore: Debug + Send + Sync + 'static {
    /// What is known of the store; None if it has to be found out.
    fn known_condition_support(&self) -> Option<ConditionSupport>;

    /// Fetches what requests need, such as credentials.
    async fn warm_up(&self) -> object_store::Result<()> {
        Ok(())
    }

    /// Deletes an object by one request, or only its version `e_tag`. One that is missing is `NotFound`, or no error.
    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> object_store::Result<()>;

    /// Completes an upload under a condition on the object it becomes.
    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> object_store::Result<PutResult>;

    /// The pieces of an upload, in order.
    async fn list_parts(
        &self,
        key: &Path,
        upload: &MultipartId,
    ) -> object_store::Result<Vec<UploadedPart>>;

    /// The uploads of objects directly in `folder` that are neither completed nor aborted.
    async fn list_uploads(&self, folder: &Path) -> object_store::Result<Vec<OpenUpload>>;

    /// Copies an object, or only its version `e_tag`, by one request if `to` meets the condition; None where the
    /// store has no such request. S3 and GCS are told of the version only.
    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<object_store::Result<()>>;
}

/// How often a store is probed whose answers get lost.
const MAX_PROBES: u32 = 3;

impl Store {
    /// Writes an object in one request if `condition` holds.
    ///
    /// [`ErrorKind::Conflict`] (or [`ErrorKind::AlreadyExists`] for [`Condition::Absent`]) where it does not, which a
    /// retry of a request whose answer was lost also meets: then the object may be the one this call wrote.
    pub async fn put_if(
        &self,
        path: &str,
        bytes: Bytes,
        condition: &Condition,
    ) -> Result<PutResult> {
        let mode = match condition {
            Condition::Always => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Matches(e_tag) => PutMode::Update(self.update_version(path, e_tag).await?),
        };
        self.put(path, bytes, mode).await
    }

    /// What the store wants to be told of a version.
    pub(super) async fn update_version(&self, path: &str, e_tag: &str) -> Result<UpdateVersion> {
        let mut version = None;
        if self.inner.name == "gs" {
            // Conditions are on the generation there, which listings do not show.
            version = self.head_version(path, e_tag).await?.version;
        }
        Ok(UpdateVersion {
            e_tag: Some(e_tag.to_owned()),
            version,
        })
    }

    /// The metadata of version `e_tag`, [`ErrorKind::Conflict`] if another is there or none.
    async fn head_version(&self, path: &str, e_tag: &str) -> Result<object_store::ObjectMeta> {
        match self.head(path).await {
            Ok(meta) if is_same_e_tag(meta.e_tag.as_deref(), e_tag) => Ok(meta),
            Ok(_) => Err(version_conflict(path)),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(version_conflict(path)),
            Err(e) => Err(e),
        }
    }

    /// Deletes an object if `condition` holds, by one request; false if it was not there, where the store tells.
    ///
    /// [`ErrorKind::Conflict`] if it is another version. Without [`ConditionSupport::delete`] the version is looked at first.
    pub async fn delete_if(&self, path: &str, condition: &Condition) -> Result<bool> {
        let e_tag = match condition {
            Condition::Always => None,
            Condition::Absent => {
                return Err(
                    Error::invalid("nothing can be deleted where nothing may be").with_path(path),
                );
            }
            Condition::Matches(e_tag) => Some(e_tag.as_str()),
        };
        let mut sent_tag = e_tag;
        if let Some(e_tag) = e_tag {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            if !self.condition_support(folder).await?.delete {
                match self.head(path).await {
                    Ok(meta) if is_same_e_tag(meta.e_tag.as_deref(), e_tag) => {}
                    Ok(_) => return Err(version_conflict(path)),
                    Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
                    Err(e) => return Err(e),
                }
                sent_tag = None;
            }
        }
        match self.delete_version(path, sent_tag).await {
            Ok(()) => Ok(true),
            // Of what is not there some stores say that its version is another one; what is there was not found
            // by a request that did not reach it.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => {
                match self.is_file(path).await? {
                    false => Ok(false),
                    true if e.kind() == ErrorKind::NotFound => {
                        Err(e.with_kind(ErrorKind::Unavailable))
                    }
                    true => Err(e),
                }
            }
            Err(e) => Err(e),
        }
    }

    pub(super) async fn delete_version(&self, path: &str, e_tag: Option<&str>) -> Result<()> {
        let key = self.key(path)?;
        if let Some(local) = &self.inner.local {
            self.count_request(RequestKind::Delete);
            return self.send_once(path, local.delete_if(&key, e_tag)).await;
        }
        match &self.inner.conditional_store {
            Some(conditional_store) => {
                self.count_request(RequestKind::Delete);
                self.send_once(path, conditional_store.delete_if(&key, e_tag))
                    .await
            }
            None => self.delete_once(path).await,
        }
    }

    /// Counts a request that passes neither the HTTP service nor the counting store.
    fn count_request(&self, kind: RequestKind) {
        if !self.inner.is_http {
            self.inner.metrics.count_request(kind, 0);
        }
    }

    /// Moves an object if `to` meets the condition; gives the new ETag where it is known.
    pub(super) async fn move_if(
        &self,
        from: &str,
        to: &str,
        condition: &Condition,
    ) -> Result<Option<String>> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        if let Some(local) = &self.inner.local {
            return self
                .send_once(from, local.rename_if(&source, &target, condition))
                .await;
        }
        if let Some(conditional_store) = &self.inner.conditional_store {
            let copy = conditional_store.copy_if(&source, None, &target, condition);
            let unsupported = || object_store::Error::NotImplemented {
                operation: "copy_if".to_owned(),
                implementer: self.inner.name.to_owned(),
            };
            self.count_request(RequestKind::Copy);
            let request = async { copy.await.unwrap_or_else(|| Err(unsupported())) };
            match self.send_once(from, request).await {
                Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
                result => {
                    result?;
                    return self.delete(from).await.map(|_| None);
                }
            }
        }
        self.check_condition(to, condition).await?;
        self.rename_unconditional(from, to).await.map(|()| None)
    }

    /// Copies the version `e_tag` of an object, if `to` meets the condition when it is looked at. However late the
    /// request arrives, it copies that version or nothing, where the store has conditions on the source of a copy.
    pub async fn copy_version(
        &self,
        from: &str,
        e_tag: &str,
        to: &str,
        condition: &Condition,
    ) -> Result<()> {
        let (source, target) = (self.key(from)?, self.key(to)?);
        self.check_condition(to, condition).await?;
        if let Some(conditional_store) = &self.inner.conditional_store {
            self.count_request(RequestKind::Copy);
            let request = async {
                let copy = conditional_store
                    .copy_if(&source, Some(e_tag), &target, condition)
                    .await;
                copy.unwrap_or_else(|| {
                    Err(object_store::Error::NotImplemented {
                        operation: "copy_if".to_owned(),
                        implementer: self.inner.name.to_owned(),
                    })
                })
            };
            match self.send_once(from, request).await {
                Err(e) if e.kind() == ErrorKind::CapabilityNotSupported => {}
                result => return result,
            }
        }
        self.head_version(from, e_tag).await?;
        self.copy(from, to, CopyMode::Overwrite).await
    }

    /// Whether the condition holds at this moment, for stores that cannot be told it.
    async fn check_condition(&self, path: &str, condition: &Condition) -> Result<()> {
        match condition {
            Condition::Absent if self.is_file(path).await? => {
                let message = "there is an object already";
                Err(Error::new(ErrorKind::AlreadyExists, message).with_path(path))
            }
            Condition::Always | Condition::Absent => Ok(()),
            Condition::Matches(e_tag) => self.head_version(path, e_tag).await.map(drop),
        }
    }

    /// Completes an upload if the object it becomes meets the condition.
    pub(super) async fn complete_if(
        &self,
        path: &str,
        upload: &str,
        upload_parts: &[String],
        condition: &Condition,
    ) -> Result<Option<String>> {
        let unsupported = || Error::other("the upload is of another kind of store").with_path(path);
        let multipart = self.multipart().ok_or_else(unsupported)?;
        let (key, upload) = (self.key(path)?, upload.to_owned());
        let parts = upload_parts
            .iter()
            .map(|id| PartId {
                content_id: id.clone(),
            })
            .collect();
        self.count_request(RequestKind::Post);
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut sent_condition = condition;
        if *condition != Condition::Always && !self.condition_support(folder).await?.complete {
            self.check_condition(path, condition).await?;
            sent_condition = &Condition::Always;
        }
        let completed = match &self.inner.conditional_store {
            Some(conditional_store) if *sent_condition != Condition::Always => {
                let complete = conditional_store.complete_if(&key, &upload, parts, sent_condition);
                self.send_once(path, complete).await
            }
            _ => {
                let complete = multipart.complete_multipart(&key, &upload, parts);
                self.send_once(path, complete).await
            }
        };
        match completed {
            // The object that was to be replaced is missing, not the upload.
            Err(e)
                if e.kind() == ErrorKind::NotFound
                    && matches!(condition, Condition::Matches(_))
                    && !e.message().contains("NoSuchUpload") =>
            {
                Err(e.with_kind(ErrorKind::Conflict))
            }
            completed => Ok(completed?.e_tag),
        }
    }

    /// The pieces of an upload; all that is known where the store does not tell is that it cannot.
    pub(super) async fn list_parts(&self, path: &str, upload: &str) -> Result<Vec<UploadedPart>> {
        let Some(conditional_store) = &self.inner.conditional_store else {
            let message = "the store cannot list the parts of an upload";
            return Err(Error::new(ErrorKind::CapabilityNotSupported, message).with_path(path));
        };
        let (key, upload) = (self.key(path)?, upload.to_owned());
        self.count_request(RequestKind::List);
        self.retry_idempotent(path, || conditional_store.list_parts(&key, &upload))
            .await
    }

    /// The uploads of objects directly in `folder` that are neither completed nor aborted, with paths relative to the
    /// store; none where the store has no uploads or cannot list them.
    pub async fn list_uploads(&self, folder: &str) -> Result<Vec<OpenUpload>> {
        let Some(conditional_store) = &self.inner.conditional_store else {
            return Ok(Vec::new());
        };
        let key = self.folder_key(folder)?;
        self.count_request(RequestKind::List);
        let uploads = self
            .retry_idempotent(folder, || conditional_store.list_uploads(&key))
            .await?;
        let relocated = uploads.into_iter().map(|upload| OpenUpload {
            path: self.relative_path(&upload.path),
            ..upload
        });
        Ok(relocated.collect())
    }

    /// Aborts an upload, if it is still there.
    pub async fn abort_upload(&self, path: &str, upload: &MultipartId) -> Result<()> {
        let Some(multipart) = self.multipart() else {
            return Ok(());
        };
        let key = self.key(path)?;
        let abort = || multipart.abort_multipart(&key, upload);
        match self.retry_idempotent(path, abort).await {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// What the store can do, known or found out once with hidden objects in `folder` that are removed again.
    ///
    /// [`ErrorKind::UnsafeStore`] or [`ErrorKind::CapabilityNotSupported`] if even conditional PUTs do not hold.
    pub async fn condition_support(&self, folder: &str) -> Result<ConditionSupport> {
        let known = self
            .inner
            .conditional_store
            .as_ref()
            .and_then(|v| v.known_condition_support());
        if let Some(known) = known {
            return Ok(known);
        }
        if self.inner.local.is_some() {
            // Inode numbers and times recur, so an empty file may look like the one before it.
            return Ok(ConditionSupport {
                marker_versions: false,
                ..ConditionSupport::ALL
            });
        }
        let cached = || {
            self.inner
                .condition_support
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let probed = *cached();
        if let Some(probed) = probed {
            return Ok(probed);
        }
        let store = self.with_send_limit(SendLimit::default());
        let mut probes_left = MAX_PROBES;
        let conditions = loop {
            probes_left -= 1;
            match Probe::new(&store, folder).run().await {
                // A lost answer says nothing of the store; the next probe has objects of its own.
                Err(e) if e.kind() == ErrorKind::Unavailable && probes_left > 0 => {}
                result => break result?,
            }
        };
        *cached() = Some(conditions);
        Ok(conditions)
    }
}

/// Whether two spellings name one ETag; servers differ in the quotes.
pub(super) fn is_same_e_tag(actual: Option<&str>, expected: &str) -> bool {
    actual.is_some_and(|actual| actual.trim_matches('"') == expected.trim_matches('"'))
}

pub(super) fn version_conflict(path: &str) -> Error {
    let message = "the object is not the version that was to be changed";
    Error::new(ErrorKind::Conflict, message).with_path(path)
}
