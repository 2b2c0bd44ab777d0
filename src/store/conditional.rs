//! Requests with a condition: writes, deletions and completions that happen only if the object at a path is as
//! expected. `super::copy` has the copies and moves.
//!
//! [`Store::condition_support`] says which conditions a store honors: known, or probed once per handle, unless another
//! handle of this process has just probed the same server (`super::probe_memory`). Where a store does not honor a
//! condition, a HEAD checks it before the request is sent without it.
//!
//! Errors: [`ErrorKind::Conflict`] or [`ErrorKind::AlreadyExists`] where the condition does not hold. A store that
//! ignores the conditions of PUTs is refused with [`ErrorKind::UnsafeStore`].

use std::time::Duration;

use bytes::Bytes;
use object_store::multipart::PartId;
use object_store::{MultipartId, PutMode, PutResult, UpdateVersion};

use super::Store;
use super::condition::{Condition, ConditionSupport, OpenUpload, UploadedPart, is_same_e_tag};
use super::limit::SendLimit;
use super::metrics::RequestKind;
use super::probe::{Probe, ProbeOutcome, ProbedConditions};
use super::probe_memory::{self, LearnedConditions};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::begun::run_to_end;
use crate::sync::fork;

/// How often a store is probed while its answers get lost.
const MAX_PROBES: u32 = 3;
/// How often a conditional deletion is sent whose answer was lost.
const MAX_DELETIONS: u32 = 5;
const DELETION_DELAY: Duration = Duration::from_millis(100);
const UNANSWERED: &str = "an earlier attempt got no answer";
/// How many conditional deletions are sent at once.
const CONCURRENT_DELETIONS: usize = 16;

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

    /// Creates an object. [`ErrorKind::AlreadyExists`] if there is one: after a lost answer it may be the one that this call
    /// wrote. [`ErrorKind::Unavailable`] if the outcome is unknown; after any other error the object was not created.
    pub async fn create(&self, path: &str, bytes: Bytes) -> Result<PutResult> {
        let may_exist = |e: Error, reason| {
            let unknown = e.with_kind(ErrorKind::Unavailable);
            unknown.context(format!("the object may have been created: {reason}"))
        };
        let mut is_unanswered = false;
        let (mut sends, begun_at) = (0, self.inner.clock.monotonic());
        loop {
            sends += 1;
            match self.put(path, bytes.clone(), PutMode::Create).await {
                Err(e) if e.kind() == ErrorKind::Unavailable => {
                    is_unanswered = true;
                    if !self.wait_before_resend(sends, begun_at).await {
                        return Err(e.context(format!("gave up after {sends} attempts")));
                    }
                }
                // S3 answers 409 while another request for the name is under way, which may come to nothing.
                Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::Conflict) => {
                    let ended = match self.is_file(path).await {
                        Ok(true) => return Err(e.with_kind(ErrorKind::AlreadyExists)),
                        Ok(false) if self.wait_before_resend(sends, begun_at).await => continue,
                        Ok(false) => {
                            self.forget_conditions();
                            e
                        }
                        Err(unread) => unread,
                    };
                    if is_unanswered {
                        return Err(may_exist(ended, UNANSWERED));
                    }
                    return Err(ended);
                }
                // What failed may have been the sync of the folder.
                Err(e) if self.local().is_some() && self.is_file(path).await? => {
                    return Err(may_exist(e, "it may be missing after a loss of power"));
                }
                Err(e) if is_unanswered => return Err(may_exist(e, UNANSWERED)),
                result => return result,
            }
        }
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
    pub(super) async fn head_version(
        &self,
        path: &str,
        e_tag: &str,
    ) -> Result<object_store::ObjectMeta> {
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
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_honored = e_tag.is_none() || self.condition_support(folder).await?.delete;
        self.delete_checked(path, e_tag, is_honored).await
    }

    /// As [`Self::delete_if`]; `is_honored` says whether the store checks the ETag itself.
    async fn delete_checked(
        &self,
        path: &str,
        e_tag: Option<&str>,
        is_honored: bool,
    ) -> Result<bool> {
        if let Some(e_tag) = e_tag.filter(|_| !is_honored) {
            match self.head(path).await {
                Ok(meta) if is_same_e_tag(meta.e_tag.as_deref(), e_tag) => {}
                Ok(_) => return Err(version_conflict(path)),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        let sent_tag = e_tag.filter(|_| is_honored);
        let deleted = self.delete_version(path, sent_tag).await;
        if let (Err(e), Some(_)) = (&deleted, sent_tag) {
            self.forget_if_contradicted(e);
        }
        match deleted {
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

    /// Deletes an object if it still has this ETag; without an ETag, in any case. Returns false if another version is in its
    /// place, which stays even if the request is late, or is repeated after a lost answer.
    pub async fn delete_unchanged(&self, path: &str, e_tag: Option<&str>) -> Result<bool> {
        let condition = e_tag.map_or(Condition::Always, |e_tag| {
            Condition::Matches(e_tag.to_owned())
        });
        self.repeat_deletion(|| self.delete_if(path, &condition))
            .await
    }

    /// Deletes objects that were listed with these ETags, as [`Self::delete_unchanged`] does, several at once.
    /// Whether the store honors the condition is not probed for this: where it is not known, a HEAD comes before
    /// each, and what is late may hit another version.
    pub async fn delete_listed(&self, objects: Vec<(String, Option<String>)>) -> Result<()> {
        let is_honored = self.known_support().is_some_and(|support| support.delete);
        let deletions = objects.into_iter().map(|(path, e_tag)| async move {
            let delete = || self.delete_checked(&path, e_tag.as_deref(), is_honored);
            self.repeat_deletion(delete).await.map(drop)
        });
        // A Vec, because the future of the iterator itself would not be Send.
        run_to_end(deletions.collect(), CONCURRENT_DELETIONS).await
    }

    /// Repeats a deletion whose answer was lost; false if another version is in the place.
    async fn repeat_deletion<F>(&self, delete: impl Fn() -> F) -> Result<bool>
    where
        F: Future<Output = Result<bool>>,
    {
        // S3 answers 409 while another request for the name is under way.
        let is_transient =
            |e: &Error| matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::AlreadyExists);
        let mut sent = 1;
        loop {
            match delete().await {
                Ok(_) => return Ok(true),
                Err(e) if e.kind() == ErrorKind::Conflict => return Ok(false),
                Err(e) if is_transient(&e) && sent < MAX_DELETIONS => {}
                Err(e) if is_transient(&e) => return Err(e.with_kind(ErrorKind::Unavailable)),
                Err(e) => return Err(e),
            }
            sent += 1;
            self.clock().sleep(DELETION_DELAY).await;
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
    pub(super) fn count_request(&self, kind: RequestKind) {
        if !self.inner.is_http {
            self.inner.metrics.count_request(kind, 0);
        }
    }

    /// Checks by a HEAD that the condition holds now, for requests that cannot carry it.
    pub(super) async fn check_condition(&self, path: &str, condition: &Condition) -> Result<()> {
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
                let completed = self.send_once(path, complete).await;
                if let Err(e) = &completed {
                    self.forget_if_contradicted(e);
                }
                completed
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

    /// The conditions that the store honors: known, remembered from another handle, or probed once with hidden objects
    /// in `folder` that are removed.
    ///
    /// [`ErrorKind::UnsafeStore`] or [`ErrorKind::CapabilityNotSupported`] if it does not honor even those of PUTs.
    pub async fn condition_support(&self, folder: &str) -> Result<ConditionSupport> {
        if let Some(known) = self.known_support() {
            return Ok(known);
        }
        let key = match &self.inner.conditional_store {
            Some(conditional_store) => conditional_store.probe_key().await,
            None => None,
        };
        let begun_at = self.inner.clock.monotonic();
        let recalled = key
            .as_deref()
            .and_then(|key| probe_memory::recall(key, begun_at));
        let support = match recalled {
            Some(support) => support,
            None => self.probe(folder, key.as_deref(), begun_at).await?,
        };
        *fork::lock(&self.inner.condition_support) = Some(LearnedConditions {
            support,
            key,
            is_remembered: recalled.is_some(),
        });
        Ok(support)
    }

    /// Probes the store, and has others remember under `key` what is proved. `begun_at` is the monotonic time.
    async fn probe(
        &self,
        folder: &str,
        key: Option<&str>,
        begun_at: Duration,
    ) -> Result<ConditionSupport> {
        let probed = self.probe_until_answered(folder).await;
        let Some(key) = key else {
            return Ok(probed?.support);
        };
        match probed {
            Ok(conditions) => {
                if conditions.is_definite {
                    probe_memory::remember(key.to_owned(), conditions.support, begun_at);
                }
                Ok(conditions.support)
            }
            Err(e) => {
                probe_memory::forget(key, self.inner.clock.monotonic());
                Err(e)
            }
        }
    }

    async fn probe_until_answered(&self, folder: &str) -> Result<ProbedConditions> {
        let store = self.with_send_limit(SendLimit::default());
        let mut probes_left = MAX_PROBES;
        loop {
            probes_left -= 1;
            match Probe::new(&store, folder, probes_left == 0).run().await? {
                ProbeOutcome::Conditions(conditions) => return Ok(conditions),
                ProbeOutcome::AnswerLost(e) if probes_left == 0 => return Err(e),
                // The next probe uses other objects.
                ProbeOutcome::AnswerLost(_) => {}
            }
        }
    }

    /// Forgets what is remembered of the store, after an answer that a store which honors conditions does not give.
    pub(super) fn forget_conditions(&self) {
        let mut learned = fork::lock(&self.inner.condition_support);
        let key = learned.as_ref().and_then(|learned| learned.key.clone());
        if learned
            .as_ref()
            .is_some_and(|learned| learned.is_remembered)
        {
            *learned = None;
        }
        // The next lock may be taken only without this one.
        drop(learned);
        if let Some(key) = key {
            probe_memory::forget(&key, self.inner.clock.monotonic());
        }
    }

    /// As [`Self::forget_conditions`], also where this handle has not asked which conditions hold.
    pub(super) async fn forget_probe(&self) {
        self.forget_conditions();
        if let Some(conditional_store) = &self.inner.conditional_store
            && let Some(key) = conditional_store.probe_key().await
        {
            probe_memory::forget(&key, self.inner.clock.monotonic());
        }
    }

    /// [`Self::forget_conditions`] if `error`, of a request with a condition that the store honors, says that the store
    /// does not know it.
    pub(super) fn forget_if_contradicted(&self, error: &Error) {
        if matches!(
            error.kind(),
            ErrorKind::CapabilityNotSupported | ErrorKind::Other
        ) {
            self.forget_conditions();
        }
    }

    /// Has [`Self::delete_listed`] know which conditions the store honors, by a probe in `folder` if need be. Where that
    /// fails, they are not known.
    pub(crate) async fn learn_conditions(&self, folder: &str) {
        if let Err(e) = self.condition_support(folder).await {
            log::debug!("the conditions that the store honors are not known: {e}");
        }
    }

    /// The conditions that the store is known to honor, or was probed for.
    fn known_support(&self) -> Option<ConditionSupport> {
        let conditional_store = self.inner.conditional_store.as_ref();
        if let Some(known) = conditional_store.and_then(|v| v.known_condition_support()) {
            return Some(known);
        }
        if self.inner.local.is_some() {
            // Inode numbers and times recur, so an empty file may have the ETag of the one it replaced.
            return Some(ConditionSupport {
                marker_versions: false,
                ..ConditionSupport::ALL
            });
        }
        let learned = fork::lock(&self.inner.condition_support);
        learned.as_ref().map(|learned| learned.support)
    }
}

fn version_conflict(path: &str) -> Error {
    let message = "precondition failed: the object is missing or not the expected version";
    Error::new(ErrorKind::Conflict, message).with_path(path)
}
