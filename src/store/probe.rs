//! What an unknown S3-compatible store does with conditions, found out with objects of its own that
//! are removed again.

use bytes::Bytes;
use object_store::GetOptions;

use super::condition::{Condition, ConditionSupport};
use super::{Store, cas};
use crate::error::{Error, ErrorKind, Result};

/// How often the probe writes something whose answer was lost.
const MAX_ATTEMPTS: u32 = 4;

/// Asks a store whether it keeps conditions, with an object of its own.
pub(super) struct Probe {
    store: Store,
    path: String,
}

impl Probe {
    pub(super) fn new(store: &Store, folder: &str) -> Self {
        Self {
            store: store.clone(),
            path: cas::probe_path(store, folder),
        }
    }

    pub(super) async fn run(&self) -> Result<ConditionSupport> {
        let probed = self.probe_conditions().await;
        let removed = self.store.delete(&self.path).await;
        let conditions = probed?;
        removed?;
        Ok(conditions)
    }

    async fn probe_conditions(&self) -> Result<ConditionSupport> {
        let first = self.write("1", &Condition::Absent).await?;
        self.expect_denied(&self.path, &Condition::Absent).await?;
        let second = self.write("2", &Condition::Matches(first.clone())).await?;
        let old = Condition::Matches(first);
        self.expect_denied(&self.path, &old).await?;
        let missing = cas::probe_path(
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
            complete: self.honors_complete_condition(&old).await?,
            delete: self
                .honors_delete_condition(&old, Condition::Matches(second))
                .await?,
            marker_versions: false,
        })
    }

    async fn write(&self, text: &'static str, condition: &Condition) -> Result<String> {
        let bytes = Bytes::from_static(text.as_bytes());
        let mut attempts = 0;
        let e_tag = loop {
            attempts += 1;
            let error = match self
                .store
                .put_if(&self.path, bytes.clone(), condition)
                .await
            {
                Ok(put) => break put.e_tag,
                Err(e) => e,
            };
            // The answer to an earlier send may be lost: what is there tells.
            match self.store.get(&self.path, GetOptions::default()).await {
                Ok((content, meta)) if content == bytes => break meta.e_tag,
                _ if attempts == MAX_ATTEMPTS || error.kind() == ErrorKind::PermissionDenied => {
                    return Err(error);
                }
                _ => {}
            }
        };
        match e_tag {
            Some(e_tag) => Ok(e_tag),
            None => self.store.head(&self.path).await?.e_tag.ok_or_else(|| {
                let message = "the store gives objects no ETag, so nothing can be replaced only if it is unchanged";
                Error::new(ErrorKind::CapabilityNotSupported, message).with_detail("CONDITIONAL_WRITE")
            }),
        }
    }

    async fn expect_denied(&self, path: &str, condition: &Condition) -> Result<()> {
        match self
            .store
            .put_if(path, Bytes::from_static(b"3"), condition)
            .await
        {
            Err(e) if is_denied(&e) => Ok(()),
            Err(e) => Err(e),
            Ok(_) => {
                let message = format!(
                    "the store ignores the condition of a PUT ({condition:?}), so two writers would overwrite each other"
                );
                Err(Error::new(ErrorKind::UnsafeStore, message).with_path(path))
            }
        }
    }

    /// Whether a completion is denied where it should be. The object is there.
    async fn honors_complete_condition(&self, old: &Condition) -> Result<bool> {
        let (Some(multipart), Some(versions)) =
            (self.store.multipart(), &self.store.inner.conditional_store)
        else {
            return Ok(false);
        };
        let key = self.store.key(&self.path)?;
        let created = multipart.create_multipart(&key).await;
        let upload = created.map_err(|e| self.store.map_error(e, &self.path))?;
        let uploaded = multipart
            .put_part(&key, &upload, 0, Bytes::from_static(b"4").into())
            .await;
        let mut is_honored = uploaded.is_ok();
        if let Ok(part) = uploaded {
            for condition in [&Condition::Absent, old] {
                let parts = vec![part.clone()];
                let completed = versions.complete_if(&key, &upload, parts, condition).await;
                let result = completed.map_err(|e| self.store.map_error(e, &self.path));
                is_honored &= matches!(result, Err(e) if is_denied(&e));
            }
        }
        // It may be completed by now, or ended by the denial.
        let _ = multipart.abort_multipart(&key, &upload).await;
        Ok(is_honored)
    }

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

fn is_denied(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists)
}
