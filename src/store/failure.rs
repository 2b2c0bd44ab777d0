//! What an error of the layer below means to the caller, and what one of the file system is to that layer.

use std::io::ErrorKind as IoKind;
use std::path::PathBuf;

use object_store::path::Path;

use super::{Store, credentials};
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
            _ if text.contains(credentials::NO_CREDENTIALS) => {
                (ErrorKind::PermissionDenied, "no credentials")
            }
            _ if is_final(&text) => (ErrorKind::Other, "the store refused"),
            // Final: a full disk or a broken one is not mended by sending again.
            _ if self.inner.local.is_some() => file_system_says(io_error(&error)),
            _ => (ErrorKind::Unavailable, "the store did not do it"),
        };
        let shown = self.inner.secrets.mask(&text);
        let masked = shown != text;
        let told =
            Error::new(kind, format!("{says} ({}): {shown}", self.inner.name)).with_path(path);
        if masked {
            // The cause would show what was masked.
            told
        } else {
            told.with_source(error)
        }
    }
}

/// How `object_store` begins the message of an error status; [`status_says`] does too.
const STATUS: &str = "Server returned non-2xx status code: ";

/// The message of an error status.
pub(super) fn status_says(status: http::StatusCode, body: &str) -> String {
    format!("{STATUS}{status}: {body}")
}

/// What servers say with 400 of a request that is wrong however often it is sent. All else may pass: connections that
/// were too slow, throttling, tokens that have expired.
const FINAL_CODES: [&str; 6] = [
    "EntityTooLarge",
    "InvalidArgument",
    "InvalidRequest",
    "KeyTooLongError",
    "MetadataTooLarge",
    "EntityTooSmall",
];

/// Whether a server has refused in a way that sending again does not change.
fn is_final(text: &str) -> bool {
    let status = text.split_once(STATUS).map_or("", |(_, rest)| rest);
    match status.get(..3) {
        Some("405" | "411" | "413" | "414" | "431" | "451") => true,
        Some("400") => FINAL_CODES.iter().any(|code| status.contains(code)),
        _ => false,
    }
}

/// Whether what failed so may go another time, without anybody having changed the store.
pub(crate) fn may_pass(error: &Error) -> bool {
    use rustix::io::Errno;
    let number = || {
        io_error(error)?
            .raw_os_error()
            .map(Errno::from_raw_os_error)
    };
    match error.kind() {
        ErrorKind::Unavailable => true,
        ErrorKind::Other => matches!(
            number(),
            Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE)
        ),
        _ => false,
    }
}

/// An error met while a local file was written.
pub(super) fn disk_error(key: &Path, error: std::io::Error) -> Error {
    let (kind, says) = file_system_says(Some(&error));
    Error::new(kind, format!("{says} (file): {error}"))
        .with_path(key)
        .with_source(error)
}

/// An error of local files that has no kind of its own.
pub(super) fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> object_store::Error {
    object_store::Error::Generic {
        store: "file",
        source,
    }
}

/// There is a file of that name already.
pub(super) fn exists(key: &Path, source: std::io::Error) -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: key.to_string(),
        source: source.into(),
    }
}

/// The file is of another version than the one expected.
pub(super) fn changed(key: &Path) -> object_store::Error {
    object_store::Error::Precondition {
        path: key.to_string(),
        source: "the file's content has changed".into(),
    }
}

/// The path leaves the root, or is the root itself.
pub(super) fn escapes(key: &Path) -> object_store::Error {
    object_store::Error::InvalidPath {
        source: object_store::path::Error::InvalidPath {
            path: PathBuf::from(key.as_ref()),
        },
    }
}

/// What a call of the file system ended with.
pub(super) fn failed(key: &Path, source: std::io::Error) -> object_store::Error {
    let path = key.to_string();
    match source.kind() {
        // A file where a folder is expected holds no object below it.
        IoKind::NotFound | IoKind::NotADirectory => object_store::Error::NotFound {
            path,
            source: source.into(),
        },
        IoKind::AlreadyExists => exists(key, source),
        IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem => {
            object_store::Error::PermissionDenied {
                path,
                source: source.into(),
            }
        }
        _ => generic(source.into()),
    }
}

/// What an error of the file system means.
fn file_system_says(error: Option<&std::io::Error>) -> (ErrorKind, &'static str) {
    use rustix::io::Errno;
    let number = error
        .and_then(std::io::Error::raw_os_error)
        .map(Errno::from_raw_os_error);
    match (error.map(std::io::Error::kind), number) {
        (Some(IoKind::ResourceBusy), None) => (ErrorKind::Locked, "the file is locked"),
        (_, Some(Errno::NOSPC | Errno::DQUOT)) => (
            ErrorKind::Other,
            "the disk is full: make room and try again",
        ),
        (_, Some(Errno::MFILE)) => (
            ErrorKind::Other,
            "this process has too many open files: raise its limit (ulimit -n)",
        ),
        (_, Some(Errno::NFILE)) => (ErrorKind::Other, "this host has too many open files"),
        (_, Some(Errno::IO)) => (
            ErrorKind::Other,
            "the disk failed: look into the kernel's log",
        ),
        _ => (ErrorKind::Other, "the file system refused"),
    }
}

fn io_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let found = error.downcast_ref::<std::io::Error>();
    found.or_else(|| io_error(error.source()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_from_what_passes() {
        use http::StatusCode;
        for (status, body, says) in [
            (
                StatusCode::BAD_REQUEST,
                "InvalidRequest: too large to copy",
                true,
            ),
            (StatusCode::PAYLOAD_TOO_LARGE, "", true),
            (
                StatusCode::BAD_REQUEST,
                "<Code>RequestTimeout</Code>",
                false,
            ),
            (StatusCode::BAD_REQUEST, "<Code>ExpiredToken</Code>", false),
            (StatusCode::TOO_MANY_REQUESTS, "", false),
            (StatusCode::REQUEST_TIMEOUT, "", false),
            (StatusCode::SERVICE_UNAVAILABLE, "400", false),
        ] {
            assert_eq!(
                is_final(&status_says(status, body)),
                says,
                "{status} {body}"
            );
        }
        assert!(!is_final("the connection was closed: 400"));
    }

    #[test]
    fn a_full_disk_may_pass_and_a_broken_one_not() {
        let key = Path::from("x");
        for (number, passes) in [
            (28, true),
            (122, true),
            (24, true),
            (23, true),
            (5, false),
            (21, false),
        ] {
            let error = disk_error(&key, std::io::Error::from_raw_os_error(number));
            assert_eq!(may_pass(&error), passes, "{error}");
        }
    }

    #[test]
    fn errors_of_the_file_system_name_the_cause() {
        let key = Path::from("x");
        for (number, says) in [
            (28, "disk is full"),
            (122, "disk is full"),
            (24, "open files"),
            (5, "disk failed"),
        ] {
            let error = disk_error(&key, std::io::Error::from_raw_os_error(number));
            assert_eq!(error.kind(), ErrorKind::Other, "{error}");
            assert!(error.message().contains(says), "{error}");
        }
    }
}
