//! What an error of the layer below means to the caller.

use super::{Store, profile};
use crate::error::{Error, ErrorKind, chain};

impl Store {
    /// The engine's error for one of `object_store`, told by what the caller can do.
    pub(crate) fn error(&self, error: object_store::Error, path: &str) -> Error {
        let text = chain(&error);
        let (kind, says) = match &error {
            object_store::Error::NotFound { .. } => (ErrorKind::NotFound, "not found"),
            object_store::Error::AlreadyExists { .. } => {
                (ErrorKind::AlreadyExists, "already exists")
            }
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
                (ErrorKind::Conflict, "changed meanwhile")
            }
            object_store::Error::PermissionDenied { .. } => {
                (ErrorKind::PermissionDenied, "access denied")
            }
            object_store::Error::Unauthenticated { .. } => (
                ErrorKind::PermissionDenied,
                "credentials missing or not accepted",
            ),
            object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. } => (
                ErrorKind::CapabilityNotSupported,
                "not supported by the store",
            ),
            object_store::Error::InvalidPath { .. } => (
                ErrorKind::InvalidPath,
                "path leaves the store or is malformed",
            ),
            object_store::Error::UnknownConfigurationKey { .. } => {
                (ErrorKind::InvalidInput, "unknown option")
            }
            // The memory store has no error of its own for an upload that is gone.
            _ if text.contains("MultipartUpload not found") => (ErrorKind::NotFound, "not found"),
            _ if text.contains(profile::NO_CREDENTIALS) => {
                (ErrorKind::PermissionDenied, "no credentials")
            }
            _ if self.inner.local.is_some() => (ErrorKind::Other, "the file system refused"),
            _ => (ErrorKind::Unavailable, "the store did not do it"),
        };
        Error::new(kind, format!("{says} ({}): {text}", self.inner.name))
            .at(path)
            .caused_by(error)
    }
}
