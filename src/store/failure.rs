//! Maps the errors of `object_store` to the engine's [`Error`], and those of the file system to `object_store`'s.
//!
//! The [`ErrorKind`] says what the caller can do. [`ErrorKind::Unavailable`] stands for failures that may pass, whose
//! request may have been carried out; [`ErrorKind::Other`] for requests that a server rejects however often they are
//! sent, and for failures of a local disk. A message names the kind of store and masks its secrets; where it masked
//! one, the cause is left out.

use std::io::ErrorKind as IoKind;
use std::path::PathBuf;

use object_store::path::Path;

use super::Store;
use super::credentials::CredentialError;
use crate::error::{Error, ErrorKind, format_error_chain};
use crate::sync::blocking::BlockingError;

impl From<BlockingError> for object_store::Error {
    fn from(error: BlockingError) -> Self {
        Self::Generic {
            store: "thread",
            source: error.into(),
        }
    }
}

impl Store {
    /// Maps an error of `object_store` to the engine's, with a kind that says what the caller can do.
    pub(crate) fn map_error(&self, error: object_store::Error, path: &str) -> Error {
        let text = match find_cause::<CredentialError>(&error) {
            Some(cause) => format_error_chain(cause),
            None => format_error_chain(&error),
        };
        let (kind, reason) = self.classify(&error, &text);
        let masked_text = self.inner.secrets.mask(&text);
        let is_masked = masked_text != text;
        let mut message = format!("{reason} ({}): {masked_text}", self.inner.name);
        if let Some(local) = self.inner.local.as_ref().filter(|_| path.is_empty()) {
            message = format!("{message}: {}", local.root().display());
        }
        let mapped = Error::new(kind, message).with_path(path);
        let mapped = match hint(&error, &text) {
            Some(hint) => mapped.with_hint(hint),
            None => mapped,
        };
        match error {
            // The cause would show what the message masks.
            _ if is_masked => mapped,
            // Its message names `object_store`'s way to carry it.
            object_store::Error::Generic { source, .. } if source.is::<CredentialError>() => {
                mapped.with_source(source)
            }
            error => mapped.with_source(error),
        }
    }

    /// The kind and the reason of an error of `object_store` with this text.
    fn classify(&self, error: &object_store::Error, text: &str) -> (ErrorKind, &'static str) {
        match error {
            object_store::Error::NotFound { .. } => (ErrorKind::NotFound, "not found"),
            object_store::Error::AlreadyExists { .. } => {
                (ErrorKind::AlreadyExists, "already exists")
            }
            object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => (
                ErrorKind::Conflict,
                "precondition failed: object was modified",
            ),
            object_store::Error::PermissionDenied { .. } => {
                (ErrorKind::PermissionDenied, "access denied")
            }
            object_store::Error::Unauthenticated { .. } => (
                ErrorKind::PermissionDenied,
                "missing or rejected credentials",
            ),
            object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. } => (
                ErrorKind::CapabilityNotSupported,
                "not supported by the store",
            ),
            object_store::Error::InvalidPath { .. } => (
                ErrorKind::InvalidPath,
                "path is malformed or leaves the store",
            ),
            object_store::Error::UnknownConfigurationKey { .. } => {
                (ErrorKind::InvalidInput, "unknown option")
            }
            // The memory store has no error kind of its own for an upload that does not exist.
            _ if text.contains("MultipartUpload not found") => (ErrorKind::NotFound, "not found"),
            _ if let Some(cause) = find_cause::<CredentialError>(error) => {
                (cause.kind(), cause.reason())
            }
            _ if let Some(BlockingError::NoThread(_)) = find_cause(error) => {
                (ErrorKind::Other, "the request was not begun")
            }
            _ if let Some(refusal) = classify_deletion(text) => refusal,
            // `object_store` has kinds for the answers to requests for objects, and none for those to listings.
            _ if error_answer(text).starts_with("403") => {
                (ErrorKind::PermissionDenied, "access denied")
            }
            _ if error_answer(text).starts_with("401") => (
                ErrorKind::PermissionDenied,
                "missing or rejected credentials",
            ),
            _ if error_answer(text).starts_with("423") => {
                (ErrorKind::Locked, "the object is locked")
            }
            _ if text.contains("redirect without LOCATION") => {
                (ErrorKind::Other, "the bucket is in another region")
            }
            _ if is_permanent(text) => (ErrorKind::Other, "request rejected by the object store"),
            // Final: a retry mends neither a full nor a broken disk.
            _ if self.inner.local.is_some() => describe_io_error(find_cause(error)),
            _ => (ErrorKind::Unavailable, "request to the object store failed"),
        }
    }
}

/// `object_store`'s words for an object that a bulk deletion did not delete.
const FAILED_DELETION: &str = "DeleteObjects request failed for key ";

/// What the message of a bulk deletion has that failed at this key.
pub(super) fn failed_deletion(key: &str) -> String {
    format!("{FAILED_DELETION}{key}: ")
}

/// The kind and the reason of a bulk deletion that S3 answered with an error for an object, whose status is 200; None
/// for other errors, and where a retry may help.
fn classify_deletion(text: &str) -> Option<(ErrorKind, &'static str)> {
    let (_, answer) = text.split_once(FAILED_DELETION)?;
    let (_, code) = answer.rsplit_once("(code: ")?;
    match code.split(')').next()? {
        "AccessDenied" => Some((ErrorKind::PermissionDenied, "access denied")),
        "InternalError" | "ServiceUnavailable" => None,
        code if code.starts_with("SlowDown") => None,
        _ => Some((ErrorKind::Other, "request rejected by the object store")),
    }
}

/// What the user can do about failures that newcomers meet: by a part of the text, as servers and `reqwest` word it.
const HINTS: [(&str, &str); 12] = [
    (
        "NoSuchBucket",
        "create the bucket, or correct its name in the URL",
    ),
    (
        "ContainerNotFound",
        "create the container, or correct its name in the URL",
    ),
    (
        "redirect without LOCATION",
        "set aws_region to the region of the bucket",
    ),
    (
        "AuthorizationHeaderMalformed",
        "set aws_region to the region of the bucket",
    ),
    (
        "InvalidAccessKeyId",
        "the store does not know this access key: aws_access_key_id or AWS_ACCESS_KEY_ID",
    ),
    (
        "SignatureDoesNotMatch",
        "the secret key does not belong to the access key",
    ),
    (
        "RequestTimeTooSkewed",
        "the clock of this machine is wrong: set it by NTP",
    ),
    (
        "ExpiredToken",
        "the session has expired: log in again, or open the store again",
    ),
    (
        "dns error",
        "the name of the host is unknown: check the endpoint, the region and the network",
    ),
    (
        "Connection refused",
        "nothing listens there: check the host and the port of the endpoint",
    ),
    (
        "invalid peer certificate",
        "the certificate is not trusted: use the store's real name, or http:// for a server without TLS",
    ),
    (
        "corrupt message",
        "the server does not speak TLS: use http:// in the endpoint",
    ),
];

/// The hint for an error of `object_store` with this text.
fn hint(error: &object_store::Error, text: &str) -> Option<String> {
    if let Some(CredentialError::NotInChain(e) | CredentialError::SourceFailed(e)) =
        find_cause(error)
    {
        return e.hint().map(ToOwned::to_owned);
    }
    if let Some(e) = find_cause::<BlockingError>(error) {
        return e.hint().map(ToOwned::to_owned);
    }
    let known = HINTS.iter().find(|(part, _)| text.contains(part));
    known.map(|(_, hint)| (*hint).to_owned())
}

/// The beginning of `object_store`'s message of an error status, and of [`status_message`]'s.
const STATUS_PREFIX: &str = "Server returned non-2xx status code: ";

/// The message of an error status.
pub(super) fn status_message(status: http::StatusCode, body: &str) -> String {
    format!("{STATUS_PREFIX}{status}: {body}")
}

/// The error codes of a status 400 that a retry does not change. All others may pass: connections that were too slow,
/// throttling, tokens that have expired.
const PERMANENT_ERROR_CODES: [&str; 7] = [
    "AuthorizationHeaderMalformed",
    "EntityTooLarge",
    "InvalidArgument",
    "InvalidRequest",
    "KeyTooLongError",
    "MetadataTooLarge",
    "EntityTooSmall",
];

/// Whether a server rejected a request in a way that a retry does not change.
fn is_permanent(text: &str) -> bool {
    let answer = error_answer(text);
    match answer.get(..3) {
        // Of a listing; that of an object is `NotFound`.
        Some("404") => answer.contains("NoSuchBucket") || answer.contains("ContainerNotFound"),
        Some("405" | "411" | "413" | "414" | "431" | "451" | "501") => true,
        Some("400") => PERMANENT_ERROR_CODES
            .iter()
            .any(|code| answer.contains(code)),
        _ => false,
    }
}

/// Whether a server refused to copy an object by one request because of its size.
pub(super) fn is_too_large_to_copy(error: &Error) -> bool {
    let text = format_error_chain(error);
    let answer = error_answer(&text);
    answer.starts_with("400")
        && (answer.contains("EntityTooLarge") || answer.contains("maximum allowable size"))
}

/// The answer of a server in an error's text: its status, beginning with three digits, and its body.
fn error_answer(text: &str) -> &str {
    text.split_once(STATUS_PREFIX)
        .map_or("", |(_, answer)| answer)
}

/// Whether the same operation may succeed later: the store is unavailable, a disk full, or too many files are open.
pub(crate) fn is_transient(error: &Error) -> bool {
    use rustix::io::Errno;
    let errno = || {
        find_cause::<std::io::Error>(error)?
            .raw_os_error()
            .map(Errno::from_raw_os_error)
    };
    match error.kind() {
        ErrorKind::Unavailable => true,
        ErrorKind::Other => matches!(
            errno(),
            Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE)
        ),
        _ => false,
    }
}

/// The engine's error for a failed write to a local file.
pub(super) fn disk_error(key: &Path, error: std::io::Error) -> Error {
    let (kind, reason) = describe_io_error(Some(&error));
    Error::new(kind, format!("{reason} (file): {error}"))
        .with_path(key)
        .with_source(error)
}

/// `object_store`'s error for a failure of local files that has no kind of its own.
pub(super) fn generic_error(
    source: Box<dyn std::error::Error + Send + Sync>,
) -> object_store::Error {
    object_store::Error::Generic {
        store: "file",
        source,
    }
}

/// `object_store`'s error for a file name that exists already.
pub(super) fn already_exists_error(key: &Path, source: std::io::Error) -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: key.to_string(),
        source: source.into(),
    }
}

/// `object_store`'s error for a file that is missing or not the expected version.
pub(super) fn precondition_error(key: &Path) -> object_store::Error {
    object_store::Error::Precondition {
        path: key.to_string(),
        source: "the file is missing or not the expected version".into(),
    }
}

/// `object_store`'s error for a path that leaves the root or is the root itself.
pub(super) fn outside_root_error(key: &Path) -> object_store::Error {
    object_store::Error::InvalidPath {
        source: object_store::path::Error::InvalidPath {
            path: PathBuf::from(key.as_ref()),
        },
    }
}

/// Maps an error of the file system to `object_store`'s.
pub(super) fn map_io_error(key: &Path, source: std::io::Error) -> object_store::Error {
    let path = key.to_string();
    match source.kind() {
        // A file in the place of a folder has no objects below it.
        IoKind::NotFound | IoKind::NotADirectory => object_store::Error::NotFound {
            path,
            source: source.into(),
        },
        IoKind::AlreadyExists => already_exists_error(key, source),
        IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem => {
            object_store::Error::PermissionDenied {
                path,
                source: source.into(),
            }
        }
        _ => generic_error(source.into()),
    }
}

/// Maps an error of a write to `object_store`'s: a file in the place of a folder is nothing that is missing.
pub(super) fn map_write_error(key: &Path, source: std::io::Error) -> object_store::Error {
    match source.kind() {
        IoKind::NotADirectory | IoKind::AlreadyExists => generic_error(source.into()),
        _ => map_io_error(key, source),
    }
}

/// The kind and the reason of an error of the file system.
fn describe_io_error(error: Option<&std::io::Error>) -> (ErrorKind, &'static str) {
    use rustix::io::Errno;
    let errno = error
        .and_then(std::io::Error::raw_os_error)
        .map(Errno::from_raw_os_error);
    match (error.map(std::io::Error::kind), errno) {
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
        (_, Some(Errno::NOTDIR | Errno::EXIST)) => (
            ErrorKind::InvalidPath,
            "a file is in the place of a folder of this path",
        ),
        (_, Some(Errno::NAMETOOLONG)) => (
            ErrorKind::InvalidPath,
            "a name of this path is too long for the file system",
        ),
        (_, Some(Errno::IO)) => (ErrorKind::Other, "the disk failed: see the kernel's log"),
        _ => (ErrorKind::Other, "file system error"),
    }
}

/// The error of this type that an error is or was caused by.
pub(super) fn find_cause<'a, T: std::error::Error + 'static>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a T> {
    let direct = error.downcast_ref::<T>();
    direct.or_else(|| find_cause(error.source()?))
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn permanent_and_transient_statuses_are_distinguished() {
        use http::StatusCode;
        for (status, body, permanent) in [
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
            (StatusCode::NOT_IMPLEMENTED, "", true),
        ] {
            assert_eq!(
                is_permanent(&status_message(status, body)),
                permanent,
                "{status} {body}"
            );
        }
        assert!(!is_permanent("the connection was closed: 400"));
    }

    #[test]
    fn what_a_store_refuses_is_told_from_an_unavailable_store() {
        let objects = std::sync::Arc::new(object_store::memory::InMemory::new());
        let clock = std::sync::Arc::new(crate::clock::SystemClock);
        let capabilities = crate::store::Capabilities::FULL;
        let store = Store::from_object_store("s3", objects, capabilities, <_>::default(), clock);
        for (status, kind) in [
            (http::StatusCode::LOCKED, ErrorKind::Locked),
            (http::StatusCode::FORBIDDEN, ErrorKind::PermissionDenied),
            (http::StatusCode::UNAUTHORIZED, ErrorKind::PermissionDenied),
            (http::StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::Other),
            (http::StatusCode::TOO_MANY_REQUESTS, ErrorKind::Unavailable),
        ] {
            let error = generic_error(status_message(status, "").into());
            assert_eq!(store.map_error(error, "x").kind(), kind, "{status}");
        }
    }

    #[test]
    fn a_deletion_that_is_refused_is_told_from_one_that_may_pass() {
        let text = |code| format!("{}(denied) Denied (code: {code})", failed_deletion("a/(b)"));
        let kind = |code| classify_deletion(&text(code)).map(|(kind, _)| kind);
        assert_eq!(kind("AccessDenied"), Some(ErrorKind::PermissionDenied));
        assert_eq!(kind("MethodNotAllowed"), Some(ErrorKind::Other));
        for code in [
            "InternalError",
            "SlowDown",
            "SlowDownWrite",
            "ServiceUnavailable",
        ] {
            assert_eq!(kind(code), None, "{code}");
        }
        assert_eq!(
            classify_deletion("AccessDenied (code: AccessDenied)").map(|(kind, _)| kind),
            None
        );
    }

    #[test]
    fn a_full_disk_is_transient_and_a_broken_one_permanent() {
        let key = Path::from("x");
        for (errno, transient) in [
            (Errno::NOSPC, true),
            (Errno::DQUOT, true),
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::IO, false),
            (Errno::ISDIR, false),
        ] {
            let error = disk_error(&key, errno.into());
            assert_eq!(is_transient(&error), transient, "{error}");
        }
    }

    #[test]
    fn file_system_errors_name_the_cause() {
        let key = Path::from("x");
        for (errno, reason) in [
            (Errno::NOSPC, "disk is full"),
            (Errno::DQUOT, "disk is full"),
            (Errno::MFILE, "open files"),
            (Errno::IO, "disk failed"),
        ] {
            let error = disk_error(&key, errno.into());
            assert_eq!(error.kind(), ErrorKind::Other, "{error}");
            assert!(error.message().contains(reason), "{error}");
        }
    }
}
