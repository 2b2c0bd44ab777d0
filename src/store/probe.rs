//! Probes which conditions an unknown S3-compatible store honors.
//!
//! [`Probe`] writes hidden objects, sends requests whose conditions do not hold, and removes the objects again. A store
//! that ignores the condition of a PUT is refused with [`ErrorKind::UnsafeStore`], one without ETags with
//! [`ErrorKind::CapabilityNotSupported`]. The conditions of completions and deletions are optional:
//! [`ConditionSupport`] says which of them hold. After a lost answer of a write the probe reads the object back.
//!
//! Requests for one key are sent one after another: a store may deny a write only because another one for that key is
//! under way, which says nothing about conditions. PUTs, completions and missing objects have keys of their own, and are
//! probed at once.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join3;
use object_store::GetOptions;
use object_store::path::Path;

use super::Store;
use super::condition::{Condition, ConditionSupport};
use super::temp_name::probe_path;
use crate::error::{Error, ErrorKind, Result};

/// The outcome of a probe of a store that answers.
pub(super) enum ProbeOutcome {
    /// What holds.
    Conditions(ProbedConditions),
    /// The answer of a request was lost, which says nothing about the store.
    AnswerLost(Error),
}

/// The conditions that hold by the answers of a store.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbedConditions {
    pub(super) support: ConditionSupport,
    /// Whether each that does not hold was ignored or not known. Otherwise it was not answered, or not allowed, which
    /// may be so for this caller in this folder only.
    pub(super) is_definite: bool,
}

/// What the answers say about a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProbeVerdict {
    Honored,
    /// Ignored, or not known.
    Ignored,
    /// The store did not say.
    Unclear,
}

impl ProbeVerdict {
    /// What an error means that is not the denial which was expected.
    fn of_error(error: &Error) -> Self {
        match error.kind() {
            // A conflict: another request for the name was under way.
            ErrorKind::PermissionDenied
            | ErrorKind::Locked
            | ErrorKind::Unavailable
            | ErrorKind::Conflict
            | ErrorKind::AlreadyExists => Self::Unclear,
            _ => Self::Ignored,
        }
    }
}

/// One probe of a store, with objects of its own.
pub(super) struct Probe {
    store: Store,
    folder: String,
    path: String,
    /// The object that completions replace.
    upload_path: String,
    is_last: bool,
}

impl Probe {
    /// A probe with objects in `folder`. If it is the last one, a completion that is not answered counts as
    /// not honored.
    pub(super) fn new(store: &Store, folder: &str, is_last: bool) -> Self {
        Self {
            is_last,
            store: store.clone(),
            folder: folder.to_owned(),
            path: probe_path(store, folder),
            upload_path: probe_path(store, folder),
        }
    }

    /// [`ErrorKind::Unavailable`] if the store does not answer.
    pub(super) async fn run(&self) -> Result<ProbeOutcome> {
        let probed = self.probe_conditions().await;
        let mut paths = vec![self.path.clone()];
        if self.has_completions() {
            paths.push(self.upload_path.clone());
        }
        let removed = self.store.delete_all(&paths).await;
        match probed {
            // A store that does not answer at all is not asked once more, timeout by timeout.
            Err(e) if e.kind() == ErrorKind::Unavailable && removed.is_ok() => {
                Ok(ProbeOutcome::AnswerLost(e))
            }
            probed => {
                let conditions = probed?;
                if let Err(e) = removed {
                    log::warn!("the probe objects {paths:?} could not be removed: {e}");
                }
                Ok(ProbeOutcome::Conditions(conditions))
            }
        }
    }

    /// Whether the store has completions with conditions.
    fn has_completions(&self) -> bool {
        self.store.multipart().is_some() && self.store.inner.conditional_store.is_some()
    }

    async fn probe_conditions(&self) -> Result<ProbedConditions> {
        let first = self.write(&self.path, "1", &Condition::Absent).await?;
        let old = Condition::Matches(first);
        // All of them end: a request that is dropped may have its effect after its object was removed.
        let (delete, missing, complete) = join3(
            self.probe_object(&old).boxed(),
            self.probe_missing(&old).boxed(),
            self.probe_completions(&old).boxed(),
        )
        .await;
        let delete = delete?;
        missing?;
        let complete = match complete {
            // A store that answers all but this in every probe is one that cannot do it.
            Err(e) if e.kind() == ErrorKind::Unavailable && self.is_last => ProbeVerdict::Unclear,
            complete => complete?,
        };
        Ok(ProbedConditions {
            support: ConditionSupport {
                complete: complete == ProbeVerdict::Honored,
                delete: delete == ProbeVerdict::Honored,
                marker_versions: false,
            },
            is_definite: ![complete, delete].contains(&ProbeVerdict::Unclear),
        })
    }

    /// Whether deletions honor their condition; an error if PUTs do not. The object must hold the version `old`.
    async fn probe_object(&self, old: &Condition) -> Result<ProbeVerdict> {
        self.expect_denied(&self.path, &Condition::Absent).await?;
        let current = self.write(&self.path, "2", old).await?;
        self.expect_denied(&self.path, old).await?;
        if self.store.inner.conditional_store.is_none() {
            return Ok(ProbeVerdict::Ignored);
        }
        self.probe_deletions(old, &Condition::Matches(current))
            .await
    }

    /// An error if an If-Match holds where there is no object.
    async fn probe_missing(&self, old: &Condition) -> Result<()> {
        let missing = probe_path(&self.store, &self.folder);
        let denied = self.expect_denied(&missing, old).await;
        if denied.is_err() {
            self.store.delete(&missing).await?;
        }
        denied
    }

    async fn write(&self, path: &str, text: &'static str, condition: &Condition) -> Result<String> {
        let bytes = Bytes::from_static(text.as_bytes());
        let (mut sends, begun_at) = (0, self.store.clock().monotonic());
        let e_tag = loop {
            sends += 1;
            let error = match self.store.put_if(path, bytes.clone(), condition).await {
                Ok(put) => break put.e_tag,
                Err(e) => e,
            };
            // An attempt whose answer was lost may have landed, so read the object back.
            match self.store.get(path, GetOptions::default()).await {
                Ok((content, meta)) if content == bytes => break meta.e_tag,
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                _ if !may_pass(&error) => return Err(error),
                _ if !self.store.wait_before_resend(sends, begun_at).await => return Err(error),
                _ => {}
            }
        };
        match e_tag {
            Some(e_tag) => Ok(e_tag),
            None => self.store.head(path).await?.e_tag.ok_or_else(|| {
                let message = "the store returns no ETags, so writes cannot be conditional; use a store that returns ETags";
                Error::new(ErrorKind::CapabilityNotSupported, message).with_detail("CONDITIONAL_WRITE")
            }),
        }
    }

    async fn expect_denied(&self, path: &str, condition: &Condition) -> Result<()> {
        let (mut sends, begun_at) = (0, self.store.clock().monotonic());
        loop {
            sends += 1;
            let bytes = Bytes::from_static(b"3");
            match self.store.put_if(path, bytes, condition).await {
                Err(e) if is_denied(&e) => return Ok(()),
                // A write whose condition does not hold changes nothing, however often it is sent.
                Err(e) if e.kind() == ErrorKind::Unavailable => {
                    if !self.store.wait_before_resend(sends, begun_at).await {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
                Ok(_) => break,
            }
        }
        let message = format!(
            "the store ignores the condition of a PUT ({condition:?}), so two writers would overwrite each other; \
             use a store that honors If-None-Match and If-Match"
        );
        Err(Error::new(ErrorKind::UnsafeStore, message).with_path(path))
    }

    /// Whether completions are denied when their condition does not hold.
    async fn probe_completions(&self, old: &Condition) -> Result<ProbeVerdict> {
        let Some(multipart) = self.store.multipart().filter(|_| self.has_completions()) else {
            return Ok(ProbeVerdict::Ignored);
        };
        let path = &self.upload_path;
        self.write(path, "2", &Condition::Absent).await?;
        let key = self.store.key(path)?;
        let created = multipart.create_multipart(&key).await;
        let upload = created.map_err(|e| self.store.map_error(e, path))?;
        let honored = self.denies_completions(&key, &upload, old).await;
        // The abort may fail: the upload may be completed by now, or ended by the denial.
        let _ = multipart.abort_multipart(&key, &upload).await;
        if honored.is_ok() {
            // Should this be refused, it is removed with the other object in the end.
            let _ = self.store.delete(path).await;
        }
        honored
    }

    /// Whether the completion of an upload is denied under each condition that does not hold.
    async fn denies_completions(
        &self,
        key: &Path,
        upload: &str,
        old: &Condition,
    ) -> Result<ProbeVerdict> {
        let (Some(multipart), Some(conditional_store)) =
            (self.store.multipart(), &self.store.inner.conditional_store)
        else {
            return Ok(ProbeVerdict::Ignored);
        };
        let (path, upload) = (&self.upload_path, upload.to_owned());
        let uploaded = multipart
            .put_part(key, &upload, 0, Bytes::from_static(b"4").into())
            .await;
        let part = match uploaded.map_err(|e| self.store.map_error(e, path)) {
            Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
            Err(e) => return Ok(ProbeVerdict::of_error(&e)),
            Ok(part) => part,
        };
        for condition in [&Condition::Absent, old] {
            let completed = conditional_store
                .complete_if(key, &upload, vec![part.clone()], condition)
                .await;
            match completed.map_err(|e| self.store.map_error(e, path)) {
                Err(e) if is_denied(&e) => {}
                // The store did not answer the question: it is asked again by the next caller.
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                Err(e) => return Ok(ProbeVerdict::of_error(&e)),
                Ok(_) => return Ok(ProbeVerdict::Ignored),
            }
        }
        Ok(ProbeVerdict::Honored)
    }

    /// Whether a deletion is denied for the version `old` and removes the current one.
    async fn probe_deletions(&self, old: &Condition, current: &Condition) -> Result<ProbeVerdict> {
        for (condition, stays) in [(old, true), (current, false)] {
            let Condition::Matches(e_tag) = condition else {
                return Ok(ProbeVerdict::Ignored);
            };
            let deleted = self.store.delete_version(&self.path, Some(e_tag)).await;
            match deleted {
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                Err(e) if is_denied(&e) && stays => {}
                Err(e) if stays || is_denied(&e) => return Ok(ProbeVerdict::of_error(&e)),
                Err(e) if ProbeVerdict::of_error(&e) == ProbeVerdict::Unclear => {
                    return Ok(ProbeVerdict::Unclear);
                }
                Ok(()) | Err(_) => {}
            }
            if self.store.is_file(&self.path).await? != stays {
                return Ok(ProbeVerdict::Ignored);
            }
        }
        Ok(ProbeVerdict::Honored)
    }
}

/// Whether a write that failed so may succeed when it is sent again.
fn may_pass(error: &Error) -> bool {
    is_denied(error) || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound)
}

fn is_denied(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}
