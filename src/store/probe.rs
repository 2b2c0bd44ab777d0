//! Probes which conditions an unknown S3-compatible store honors.
//!
//! [`Probe`] writes a hidden object, sends requests whose conditions do not hold, and removes the object again. A store
//! that ignores the condition of a PUT is refused with [`ErrorKind::UnsafeStore`], one without ETags with
//! [`ErrorKind::CapabilityNotSupported`]. The conditions of completions and deletions are optional:
//! [`ConditionSupport`] says which of them hold. After a lost answer of a write the probe reads the object back.

use bytes::Bytes;
use object_store::GetOptions;
use object_store::path::Path;

use super::Store;
use super::condition::{Condition, ConditionSupport};
use super::temp_name::probe_path;
use crate::error::{Error, ErrorKind, Result};

/// The outcome of a probe of a store that answers.
pub(super) enum ProbeOutcome {
    /// The conditions that hold.
    Conditions(ConditionSupport),
    /// The answer of a request was lost, which says nothing about the store.
    AnswerLost(Error),
}

/// One probe of a store, with an object of its own.
pub(super) struct Probe {
    store: Store,
    path: String,
    is_last: bool,
}

impl Probe {
    /// A probe with an object in `folder`. If it is the last one, a completion that is not answered counts as
    /// not honored.
    pub(super) fn new(store: &Store, folder: &str, is_last: bool) -> Self {
        Self {
            is_last,
            store: store.clone(),
            path: probe_path(store, folder),
        }
    }

    /// [`ErrorKind::Unavailable`] if the store does not answer.
    pub(super) async fn run(&self) -> Result<ProbeOutcome> {
        let probed = self.probe_conditions().await;
        let removed = self.store.delete(&self.path).await;
        match probed {
            // A store that does not answer at all is not asked once more, timeout by timeout.
            Err(e) if e.kind() == ErrorKind::Unavailable && removed.is_ok() => {
                Ok(ProbeOutcome::AnswerLost(e))
            }
            probed => {
                let conditions = probed?;
                if let Err(e) = removed {
                    log::warn!("the probe object {} could not be removed: {e}", self.path);
                }
                Ok(ProbeOutcome::Conditions(conditions))
            }
        }
    }

    async fn probe_conditions(&self) -> Result<ConditionSupport> {
        let first = self.write("1", &Condition::Absent).await?;
        self.expect_denied(&self.path, &Condition::Absent).await?;
        let second = self.write("2", &Condition::Matches(first.clone())).await?;
        let old = Condition::Matches(first);
        self.expect_denied(&self.path, &old).await?;
        // An If-Match must not hold where there is no object.
        let missing = probe_path(
            &self.store,
            self.path.rsplit_once('/').map_or("", |(folder, _)| folder),
        );
        let denied = self.expect_denied(&missing, &old).await;
        if denied.is_err() {
            self.store.delete(&missing).await?;
        }
        denied?;
        if self.store.inner.conditional_store.is_none() {
            return Ok(ConditionSupport::NONE);
        }
        Ok(ConditionSupport {
            complete: match self.honors_complete_condition(&old).await {
                // A store that answers all but this in every probe is one that cannot do it.
                Err(e) if e.kind() == ErrorKind::Unavailable && self.is_last => false,
                honored => honored?,
            },
            delete: self
                .honors_delete_condition(&old, Condition::Matches(second))
                .await?,
            marker_versions: false,
        })
    }

    async fn write(&self, text: &'static str, condition: &Condition) -> Result<String> {
        let bytes = Bytes::from_static(text.as_bytes());
        let (mut sends, begun_at) = (0, self.store.clock().monotonic());
        let e_tag = loop {
            sends += 1;
            let error = match self
                .store
                .put_if(&self.path, bytes.clone(), condition)
                .await
            {
                Ok(put) => break put.e_tag,
                Err(e) => e,
            };
            // An attempt whose answer was lost may have landed, so read the object back.
            match self.store.get(&self.path, GetOptions::default()).await {
                Ok((content, meta)) if content == bytes => break meta.e_tag,
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                _ if !may_pass(&error) => return Err(error),
                _ if !self.store.wait_before_resend(sends, begun_at).await => return Err(error),
                _ => {}
            }
        };
        match e_tag {
            Some(e_tag) => Ok(e_tag),
            None => self.store.head(&self.path).await?.e_tag.ok_or_else(|| {
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

    /// Whether completions are denied when their condition does not hold. The object must exist.
    async fn honors_complete_condition(&self, old: &Condition) -> Result<bool> {
        let Some(multipart) = self.store.multipart() else {
            return Ok(false);
        };
        let key = self.store.key(&self.path)?;
        let created = multipart.create_multipart(&key).await;
        let upload = created.map_err(|e| self.store.map_error(e, &self.path))?;
        let honored = self.denies_completions(&key, &upload, old).await;
        // The abort may fail: the upload may be completed by now, or ended by the denial.
        let _ = multipart.abort_multipart(&key, &upload).await;
        honored
    }

    /// Whether the completion of an upload is denied under each condition that does not hold.
    async fn denies_completions(&self, key: &Path, upload: &str, old: &Condition) -> Result<bool> {
        let (Some(multipart), Some(conditional_store)) =
            (self.store.multipart(), &self.store.inner.conditional_store)
        else {
            return Ok(false);
        };
        let upload = upload.to_owned();
        let uploaded = multipart
            .put_part(key, &upload, 0, Bytes::from_static(b"4").into())
            .await;
        let part = match uploaded.map_err(|e| self.store.map_error(e, &self.path)) {
            Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
            Err(_) => return Ok(false),
            Ok(part) => part,
        };
        for condition in [&Condition::Absent, old] {
            let completed = conditional_store
                .complete_if(key, &upload, vec![part.clone()], condition)
                .await;
            match completed.map_err(|e| self.store.map_error(e, &self.path)) {
                Err(e) if is_denied(&e) => {}
                // The store did not answer the question: it is asked again by the next caller.
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether a deletion is denied for the version `old` and removes the current one.
    async fn honors_delete_condition(&self, old: &Condition, current: Condition) -> Result<bool> {
        let mut current_version = current;
        // A completion that was not denied has replaced the object.
        if let Ok(meta) = self.store.head(&self.path).await
            && let Some(e_tag) = meta.e_tag
        {
            current_version = Condition::Matches(e_tag);
        }
        for (condition, stays) in [(old, true), (&current_version, false)] {
            let Condition::Matches(e_tag) = condition else {
                return Ok(false);
            };
            let deleted = self.store.delete_version(&self.path, Some(e_tag)).await;
            match deleted {
                Err(e) if e.kind() == ErrorKind::Unavailable => return Err(e),
                Err(e) if is_denied(&e) != stays => return Ok(false),
                Ok(()) | Err(_) => {}
            }
            if self.store.is_file(&self.path).await? != stays {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a write that failed so may succeed when it is sent again.
fn may_pass(error: &Error) -> bool {
    is_denied(error) || matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound)
}

fn is_denied(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}
