//! Compare-and-swap: a [`Register`] is one object that is created once and replaced only if it is unchanged.
//!
//! A conditional PUT is not idempotent, so each is sent once by the layers below. Any answer that is not a plain success
//! is resolved here, by reading the value and comparing it with the written one, before the value is sent again. That
//! needs values that never recur: every value must hold a random identity.
//!
//! A lost race is a [`CasResult`], not an error. [`ErrorKind::Unavailable`] means that the outcome is unknown, because
//! a request may still land; any other kind, that none does. A store that ignores conditions is refused by [`probe_conditional_writes`].

use bytes::Bytes;
use object_store::{GetOptions, PutMode, PutResult, UpdateVersion};

use super::Store;
use super::content_tag::content_tag;
use super::local::LocalStore;
use super::temp_name::probe_path;
use crate::error::{Error, ErrorKind, Result};

/// The longest value that is read. This library writes no longer ones.
const MAX_VALUE_BYTES: u64 = 256 << 20;

/// A value and the version of the object that holds it.
#[derive(Debug, Clone)]
pub struct VersionedValue {
    /// The value.
    pub bytes: Bytes,
    version: UpdateVersion,
}

impl VersionedValue {
    /// The ETag of the object that holds the value, if the store has ETags.
    pub fn e_tag(&self) -> Option<&str> {
        self.version.e_tag.as_deref()
    }
}

/// The outcome of a conditional write.
#[derive(Debug)]
pub enum CasResult {
    /// The register holds the value of this call.
    Won(VersionedValue),
    /// The register holds another value. The value of this call was not written and will not be.
    Conflict(VersionedValue),
    /// The register holds no value, so there was nothing to replace.
    Missing,
}

/// One object that is read, created and replaced by compare-and-swap.
#[derive(Debug)]
pub struct Register<'a> {
    store: &'a Store,
    path: &'a str,
    /// No one reads its value, so it does not matter which one it holds after an error.
    is_probe: bool,
}

impl<'a> Register<'a> {
    /// The register at `path`. Sends no request.
    pub fn new(store: &'a Store, path: &'a str) -> Self {
        Self {
            store,
            path,
            is_probe: false,
        }
    }

    /// A register that is removed whatever its value is: a refusal is told as one, also where a write was not answered.
    fn for_probe(store: &'a Store, path: &'a str) -> Self {
        Self {
            is_probe: true,
            ..Self::new(store, path)
        }
    }

    /// Reads the value; None if the object does not exist.
    pub async fn read(&self) -> Result<Option<VersionedValue>> {
        self.read_at_most(MAX_VALUE_BYTES).await
    }

    /// As [`Register::read`]; [`ErrorKind::TooLarge`] for a value of more than `max_bytes` bytes.
    pub async fn read_at_most(&self, max_bytes: u64) -> Result<Option<VersionedValue>> {
        let read = self
            .store
            .get_at_most(self.path, GetOptions::default(), max_bytes);
        let (bytes, meta) = match read.await {
            Ok(object) => object,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let version = if self.store.capabilities().versions {
            UpdateVersion {
                e_tag: meta.e_tag,
                version: meta.version,
            }
        } else {
            content_version(&bytes)
        };
        Ok(Some(VersionedValue { bytes, version }))
    }

    /// Writes `value` if the register holds none.
    pub async fn create(&self, value: Bytes) -> Result<CasResult> {
        self.put_and_verify(&value, &PutMode::Create, None).await
    }

    /// Writes `value` if the register still holds `expected`.
    pub async fn replace(&self, expected: &VersionedValue, value: Bytes) -> Result<CasResult> {
        let mode = PutMode::Update(expected.version.clone());
        self.put_and_verify(&value, &mode, Some(expected)).await
    }

    async fn put_and_verify(
        &self,
        value: &Bytes,
        mode: &PutMode,
        expected: Option<&VersionedValue>,
    ) -> Result<CasResult> {
        // Whether a send of this call may still land.
        let mut may_land = false;
        let mut was_missing = false;
        let mut last_error = None;
        let (mut sends, begun_at) = (0, self.store.clock().monotonic());
        loop {
            sends += 1;
            let result = self.store.put(self.path, value.clone(), mode.clone()).await;
            let failure = match result {
                Ok(put) => match self.written_version(put, value) {
                    Some(version) => {
                        let bytes = value.clone();
                        return Ok(CasResult::Won(VersionedValue { bytes, version }));
                    }
                    None => None,
                },
                Err(e) if !may_land && is_rejected_locally(e.kind()) => return Err(e),
                Err(e) => Some(e),
            };
            let is_refused = failure.as_ref().is_some_and(|e| self.is_refusal(e));
            let is_not_found = failure
                .as_ref()
                .is_some_and(|e| e.kind() == ErrorKind::NotFound);
            // After an error of the file system nothing is on its way, and a retry fails alike. But the value may be
            // there: what failed may have been the sync of its folder.
            let is_final = is_refused || failure.as_ref().is_some_and(|e| self.is_file_error(e));
            may_land |= !is_final;
            match (self.read().await, expected) {
                (Err(e), _) if is_refused && !may_land => return Err(failure.unwrap_or(e)),
                (Err(e), _) => {
                    let cause = failure.filter(|f| self.is_file_error(f)).unwrap_or(e);
                    return Err(self.unknown_outcome(cause));
                }
                (Ok(Some(current)), _) if current.bytes == *value => {
                    if failure.is_some() {
                        self.sync_name().await?;
                    }
                    return Ok(CasResult::Won(current));
                }
                // The old value is still there: the write did not land, whatever the answer was.
                (Ok(Some(current)), Some(old)) if current.bytes == old.bytes => {}
                (Ok(Some(current)), _) => return Ok(CasResult::Conflict(current)),
                // One answer may be wrong, and would have a value that landed taken for one that did not.
                (Ok(None), Some(_)) if was_missing || is_not_found => {
                    return Ok(CasResult::Missing);
                }
                (Ok(None), Some(_)) => was_missing = true,
                (Ok(None), None) => {}
            }
            match failure {
                Some(failure) if is_final && !may_land => return Err(failure),
                Some(failure) if is_final => return Err(self.unknown_outcome(failure)),
                Some(failure) => last_error = Some(failure),
                None => {}
            }
            if !self.store.wait_before_resend(sends, begun_at).await {
                break;
            }
        }
        Err(self.unknown_outcome(last_error.unwrap_or_else(|| {
            Error::other("conditional write was acknowledged but is not visible")
        })))
    }

    /// The version of a value that was written, by the answer; None if only a read tells.
    fn written_version(&self, put: PutResult, value: &Bytes) -> Option<UpdateVersion> {
        if self.store.capabilities().versions && put.e_tag.is_some() {
            return Some(put.into());
        }
        // What is on the disk is done; other stores may answer what they like, and a network's file system reports a
        // full quota when a file is synced.
        let is_on_disk = self.store.local().is_some_and(LocalStore::is_durable);
        is_on_disk.then(|| content_version(value))
    }

    /// Waits until the name of a local file is on the disk; an error leaves the outcome unknown.
    async fn sync_name(&self) -> Result<()> {
        let Some(local) = self.store.local() else {
            return Ok(());
        };
        let synced = local.sync_names(vec![self.store.key(self.path)?]).await;
        let mapped = synced.map_err(|e| self.store.map_error(e, self.path));
        mapped.map_err(|e| self.unknown_outcome(e))
    }

    /// Whether an error is the answer to a send that did not land, and that would be answered so again.
    fn is_refusal(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::Locked => true,
            // An answer of a server; a store that is not ours may mean anything by it.
            ErrorKind::Other => self.store.is_http(),
            _ => false,
        }
    }

    fn is_file_error(&self, error: &Error) -> bool {
        self.store.local().is_some() && error.kind() == ErrorKind::Other
    }

    /// The error of a write that may still land, whatever the last answer was.
    fn unknown_outcome(&self, error: Error) -> Error {
        if self.is_probe && self.is_refusal(&error) {
            return error;
        }
        error
            .with_kind(ErrorKind::Unavailable)
            .context("the outcome of a conditional write is unknown")
            .with_path(self.path)
    }
}

/// The version of a value in a store that gives none.
fn content_version(value: &[u8]) -> UpdateVersion {
    UpdateVersion {
        e_tag: Some(content_tag(value)),
        version: None,
    }
}

/// Checks that the store honors the conditions of conditional writes; [`ErrorKind::UnsafeStore`] if it does not.
/// Writes one hidden object in `folder` and removes it.
pub async fn probe_conditional_writes(store: &Store, folder: &str) -> Result<()> {
    let path = probe_path(store, folder);
    let honored = honors_conditions(store, &path).await;
    if let Err(e) = store.delete(&path).await {
        log::warn!("the probe object {path} could not be removed: {e}");
    }
    if honored? {
        return Ok(());
    }
    store.forget_probe().await;
    let message = "the store ignores the conditions of conditional writes, so concurrent writers \
                   would overwrite one another; use a store that honors If-None-Match and If-Match";
    Err(Error::new(ErrorKind::UnsafeStore, message).with_path(folder))
}

async fn honors_conditions(store: &Store, path: &str) -> Result<bool> {
    let register = Register::for_probe(store, path);
    let CasResult::Won(first) = register.create(Bytes::from_static(b"1")).await? else {
        return Ok(false);
    };
    if !is_denied(store, path, PutMode::Create).await? {
        return Ok(false);
    }
    let CasResult::Won(_) = register.replace(&first, Bytes::from_static(b"2")).await? else {
        return Ok(false);
    };
    is_denied(store, path, PutMode::Update(first.version)).await
}

/// Whether a write whose condition does not hold is denied.
async fn is_denied(store: &Store, path: &str, mode: PutMode) -> Result<bool> {
    let (mut sends, begun_at) = (0, store.clock().monotonic());
    loop {
        sends += 1;
        let value = Bytes::from_static(b"3");
        match store.put(path, value, mode.clone()).await {
            Ok(_) => return Ok(false),
            Err(e) if matches!(e.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists) => {
                return Ok(true);
            }
            // A write whose condition does not hold changes nothing, however often it is sent.
            Err(e) if e.kind() == ErrorKind::Unavailable => {
                if !store.wait_before_resend(sends, begun_at).await {
                    return Err(e);
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// Whether errors of this kind are raised before anything is sent.
fn is_rejected_locally(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidPath
            | ErrorKind::InvalidInput
            | ErrorKind::CapabilityNotSupported
            | ErrorKind::Cancelled
            | ErrorKind::Expired
    )
}
