//! Requests with a condition: writes, deletions, completions, copies and moves that happen only if the object at a path
//! is as expected.
//!
//! A [`Condition`] says what must be at a path. [`ConditionalStore`] has the requests that `object_store` lacks, and
//! [`ConditionSupport`] says which of their conditions a store honors: known, or probed once per handle. Where a store
//! does not honor a condition, a HEAD checks it before the request is sent without it.
//!
//! Errors: [`ErrorKind::Conflict`] or [`ErrorKind::AlreadyExists`] where the condition does not hold. A store that
//! ignores the conditions of PUTs is refused with [`ErrorKind::UnsafeStore`].

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
use super::probe::{Probe, ProbeOutcome};
use crate::error::{Error, ErrorKind, Result};

/// What must be at a path for a request to change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// Any object or none.
    Always,
    /// No object.
    Absent,
    /// The version with this ETag, as the store listed or returned it.
    Matches(String),
}

/// The conditions that a store honors beyond those of PUTs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConditionSupport {
    /// A DELETE with If-Match deletes that version only.
    pub delete: bool,
    /// The completion of a multipart upload honors a condition.
    pub complete: bool,
    /// An empty object that is written again gets another ETag.
    pub marker_versions: bool,
}

impl ConditionSupport {
    /// All of them.
    pub const ALL: Self = Self {
        delete: true,
        complete: true,
        marker_versions: true,
    };
    /// Only those of PUTs.
    pub const NONE: Self = Self {
        delete: false,
        complete: false,
        marker_versions: false,
    };
}

/// A part of a multipart upload that is not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadedPart {
    /// The part's ETag.
    pub e_tag: String,
    /// The part's length in bytes.
    pub bytes: u64,
}

/// A multipart upload that was begun and neither completed nor aborted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenUpload {
    /// The object that it becomes.
    pub path: Path,
    /// The store's id of the upload.
    pub id: MultipartId,
    /// When it was begun, by the store's clock.
    pub initiated_at: DateTime<Utc>,
}

impl OpenUpload {
    /// Whether the object that it becomes is directly in `folder`.
    pub fn is_in(&self, folder: &Path) -> bool {
        let inside = self.path.prefix_match(folder).map(Iterator::count);
        inside == Some(1)
    }
}

/// Requests on one version of an object, for which `object_store` has no methods.
///
/// Errors are `object_store`'s: `NotFound`, and `Precondition` where the condition does not hold.
#[async_trait]
pub trait ConditionalStore: Debug + Send + Sync + 'static {
    /// The conditions that the store is known to honor; None if they must be probed.
    fn known_condition_support(&self) -> Option<ConditionSupport>;

    /// Fetches beforehand what requests need, such as credentials.
    async fn warm_up(&self) -> object_store::Result<()> {
        Ok(())
    }

    /// Deletes an object, or only its version `e_tag`, by one request. A missing object is `NotFound` or no error.
    async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> object_store::Result<()>;

    /// Completes an upload if the object it becomes meets the condition.
    async fn complete_if(
        &self,
        key: &Path,
        upload: &MultipartId,
        parts: Vec<PartId>,
        condition: &Condition,
    ) -> object_store::Result<PutResult>;

    /// Lists the parts of an upload, in order.
    async fn list_parts(
        &self,
        key: &Path,
        upload: &MultipartId,
    ) -> object_store::Result<Vec<UploadedPart>>;

    /// Lists the uploads of objects directly in `folder` that are neither completed nor aborted.
    async fn list_uploads(&self, folder: &Path) -> object_store::Result<Vec<OpenUpload>>;

    /// Copies an object, or only its version `e_tag`, by one request if `to` meets the condition; None where the
    /// store has no such request. S3 and GCS check the version only, not the condition.
    async fn copy_if(
        &self,
        from: &Path,
        e_tag: Option<&str>,
        to: &Path,
        condition: &Condition,
    ) -> Option<object_store::Result<()>>;
}

/// How often a store is probed while its answers get lost.
const MAX_PROBES: u32 = 3;

impl Store {
    /// Writes an object in one request if `condition` holds.
    ///
    /// [`ErrorKind::Conflict`] (or [`ErrorKind::AlreadyExists`] for [`Condition::Absent`]) if it does not hold. A retry
    /// after a lost answer fails so too: then the object may be the one that this call wrote.
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

    /// The version `e_tag` in the form that the store's conditional PUTs take.
    pub(super) async fn update_version(&self, path: &str, e_tag: &str) -> Result<UpdateVersion> {
        let mut version = None;
        if self.inner.name == "gs" {
            // Conditions name the generation there, which listings do not contain.
            version = self.head_version(path, e_tag).await?.version;
        }
        Ok(UpdateVersion {
            e_tag: Some(e_tag.to_owned()),
            version,
        })
    }

    /// The metadata of version `e_tag`; [`ErrorKind::Conflict`] if the object is another version or missing.
    async fn head_version(&self, path: &str, e_tag: &str) -> Result<object_store::ObjectMeta> {
        match self.head(path).await {
            Ok(meta) if is_same_e_tag(meta.e_tag.as_deref(), e_tag) => Ok(meta),
            Ok(_) => Err(version_conflict(path)),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(version_conflict(path)),
            Err(e) => Err(e),
        }
    }

    /// Deletes an object by one request if `condition` holds. Returns false if it did not exist, where the store
    /// reports that.
    ///
    /// [`ErrorKind::Conflict`] if it is another version. Without [`ConditionSupport::delete`] a HEAD checks the version
    /// before the deletion.
    pub async fn delete_if(&self, path: &str, condition: &Condition) -> Result<bool> {
        let e_tag = match condition {
            Condition::Always => None,
            Condition::Absent => {
                return Err(
                    Error::invalid("a deletion cannot have the condition Absent").with_path(path),
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
            // Some stores answer Conflict for an object that does not exist. NotFound for an object that exists
            // means that the request did not reach it.
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

    /// Moves an object if `to` meets the condition. Returns the new ETag where it is known.
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

    /// Copies the version `e_tag` of an object if `to` meets the condition, which is checked before the request. Where
    /// the store has conditions on the source of a copy, a request that arrives late copies that version or nothing.
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

    /// Checks by a HEAD that the condition holds now, for requests that cannot carry it.
    async fn check_condition(&self, path: &str, condition: &Condition) -> Result<()> {
        match condition {
            Condition::Absent if self.is_file(path).await? => {
                let message = "the object already exists";
                Err(Error::new(ErrorKind::AlreadyExists, message).with_path(path))
            }
            Condition::Always | Condition::Absent => Ok(()),
            Condition::Matches(e_tag) => self.head_version(path, e_tag).await.map(drop),
        }
    }

    /// Completes an upload if the object it becomes meets the condition. Returns the new ETag where it is known.
    pub(super) async fn complete_if(
        &self,
        path: &str,
        upload: &str,
        upload_parts: &[String],
        condition: &Condition,
    ) -> Result<Option<String>> {
        let multipart = self.multipart().ok_or_else(|| {
            let message = "staged multipart upload does not belong to this store";
            Error::other(message).with_path(path)
        })?;
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
            // The object to be replaced is missing, not the upload.
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

    /// Lists the parts of an upload; [`ErrorKind::CapabilityNotSupported`] where the store cannot list them.
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

    /// Lists the uploads of objects directly in `folder` that are neither completed nor aborted, with paths relative to
    /// the store. Returns none where the store has no uploads or no request that lists them.
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

    /// Aborts an upload. An upload that does not exist is no error.
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

    /// The conditions that the store honors: known, or probed once with hidden objects in `folder` that are removed.
    ///
    /// [`ErrorKind::UnsafeStore`] or [`ErrorKind::CapabilityNotSupported`] if it does not honor even those of PUTs.
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
            // Inode numbers and times recur, so an empty file may have the ETag of the one it replaced.
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
            match Probe::new(&store, folder, probes_left == 0).run().await? {
                ProbeOutcome::Conditions(conditions) => break conditions,
                ProbeOutcome::AnswerLost(e) if probes_left == 0 => return Err(e),
                // The next probe uses other objects.
                ProbeOutcome::AnswerLost(_) => {}
            }
        };
        *cached() = Some(conditions);
        Ok(conditions)
    }
}

/// Whether two spellings are the same ETag; servers differ in the quotes.
pub(super) fn is_same_e_tag(actual: Option<&str>, expected: &str) -> bool {
    actual.is_some_and(|actual| actual.trim_matches('"') == expected.trim_matches('"'))
}

pub(super) fn version_conflict(path: &str) -> Error {
    let message = "precondition failed: the object is missing or not the expected version";
    Error::new(ErrorKind::Conflict, message).with_path(path)
}
