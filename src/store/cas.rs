//! The one place for conditional writes: a named value that is created once and replaced only if
//! unchanged, with lost answers resolved by reading back.
//!
//! A conditional PUT is not idempotent, and the HTTP layer below may have sent it more than once:
//! whatever answer is not a plain success is settled by reading the value and comparing it with
//! ours. That needs values that never recur, so every value must hold a random identity.

use std::time::Duration;

use bytes::Bytes;
use object_store::{GetOptions, PutMode, UpdateVersion};
use twox_hash::XxHash3_64;

use super::Store;
use crate::error::{Error, ErrorKind, Result};

/// How often a write whose outcome is open is sent again.
const RESENDS: u32 = 4;
const RESEND_PAUSE: Duration = Duration::from_millis(50);

/// A value and what identifies this writing of it.
#[derive(Debug, Clone)]
pub struct Versioned {
    /// The value.
    pub bytes: Bytes,
    version: UpdateVersion,
}

/// How a conditional write ended.
#[derive(Debug)]
pub enum Outcome {
    /// Our value is there.
    Written(Versioned),
    /// Another value is there; ours is not and will not be.
    Lost(Versioned),
    /// There is no value (any more), so there was nothing to replace.
    Gone,
}

/// A value under one path.
#[derive(Debug)]
pub struct Register<'a> {
    store: &'a Store,
    path: &'a str,
}

impl<'a> Register<'a> {
    /// The register at `path`; nothing is read yet.
    pub fn new(store: &'a Store, path: &'a str) -> Self {
        Self { store, path }
    }

    /// The value, or None if there is none.
    pub async fn read(&self) -> Result<Option<Versioned>> {
        let (bytes, meta) = match self.store.get(self.path, GetOptions::default()).await {
            Ok(found) => found,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let e_tag = if self.store.abilities().versions {
            meta.e_tag
        } else {
            Some(content_tag(&bytes))
        };
        let version = UpdateVersion {
            e_tag,
            version: meta.version,
        };
        Ok(Some(Versioned { bytes, version }))
    }

    /// Writes `value` if there is none.
    pub async fn create(&self, value: Bytes) -> Result<Outcome> {
        self.settle(&value, &PutMode::Create, None).await
    }

    /// Writes `value` if the register still holds `expected`.
    pub async fn replace(&self, expected: &Versioned, value: Bytes) -> Result<Outcome> {
        let mode = PutMode::Update(expected.version.clone());
        self.settle(&value, &mode, Some(expected)).await
    }

    async fn settle(
        &self,
        value: &Bytes,
        mode: &PutMode,
        expected: Option<&Versioned>,
    ) -> Result<Outcome> {
        let mut last = None;
        for attempt in 0..=RESENDS {
            if attempt > 0 {
                self.store
                    .clock()
                    .sleep(RESEND_PAUSE * 2_u32.pow(attempt))
                    .await;
            }
            let sent = self.store.put(self.path, value.clone(), mode.clone()).await;
            let mut failure = match sent {
                Ok(put) if self.store.abilities().versions && put.e_tag.is_some() => {
                    return Ok(Outcome::Written(Versioned {
                        bytes: value.clone(),
                        version: put.into(),
                    }));
                }
                Ok(_) => None,
                Err(e) if is_refused(e.kind()) => return Err(e),
                Err(e) => Some(e),
            };
            match (self.read().await?, expected) {
                (Some(found), _) if found.bytes == *value => return Ok(Outcome::Written(found)),
                // Still the old value: the write did not land, whatever was answered.
                (Some(found), Some(old)) if found.bytes == old.bytes => {}
                (Some(found), _) => return Ok(Outcome::Lost(found)),
                (None, Some(_)) => return Ok(Outcome::Gone),
                (None, None) => {}
            }
            if let Some(denied) = failure.take_if(|e| e.kind() == ErrorKind::PermissionDenied) {
                return Err(denied);
            }
            last = failure;
        }
        Err(last
            .unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    "the store accepted a conditional write it does not show",
                )
            })
            .context("a conditional write did not land")
            .at(self.path))
    }
}

/// Errors that were found before anything was sent.
fn is_refused(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidPath
            | ErrorKind::InvalidInput
            | ErrorKind::CapabilityNotSupported
            | ErrorKind::Cancelled
    )
}

/// Identifies a file's content where the file system gives no version.
pub fn content_tag(bytes: &[u8]) -> String {
    format!(
        "content-{:016x}-{}",
        XxHash3_64::oneshot(bytes),
        bytes.len()
    )
}
