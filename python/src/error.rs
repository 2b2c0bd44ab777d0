//! Maps the engine's errors to the exceptions of `pds.errors`; Python's own pass through the engine unchanged.

use std::error::Error as StdError;
use std::fmt;

use pds::error::format_error_chain;
use pds::store::secrets::mask_urls;
use pds::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A Python exception that is the cause of an engine error.
#[derive(Debug)]
pub(crate) struct PyCause(pub(crate) PyErr);

impl fmt::Display for PyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for PyCause {}

/// An exception of a user's callable. The engine's error says what failed by it, so it becomes the `__cause__` of that.
#[derive(Debug)]
pub(crate) struct CallableFailure(pub(crate) PyErr);

impl fmt::Display for CallableFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for CallableFailure {}

/// The error of the engine for an exception, which is raised itself in the end.
pub(crate) fn from_python(exception: PyErr) -> Error {
    Error::other(exception.to_string()).with_source(PyCause(exception))
}

fn exception_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "NotFound",
        ErrorKind::AlreadyExists => "AlreadyExists",
        ErrorKind::PermissionDenied => "PermissionDenied",
        ErrorKind::InvalidPath => "InvalidPath",
        ErrorKind::InvalidInput => "InvalidInput",
        ErrorKind::CapabilityNotSupported => "CapabilityNotSupported",
        ErrorKind::Unavailable | ErrorKind::Expired => "BackendUnavailable",
        ErrorKind::Locked => "ResourceLocked",
        ErrorKind::Conflict => "FileChanged",
        ErrorKind::DatasetIncomplete => "DatasetIncomplete",
        ErrorKind::ManifestCorrupted => "ManifestCorrupted",
        ErrorKind::PartCorrupted => "PartCorrupted",
        ErrorKind::CommitConflict => "CommitConflict",
        ErrorKind::CommitStateUnknown => "CommitStateUnknown",
        ErrorKind::TransactionExpired => "TransactionExpired",
        ErrorKind::VersionExpired => "VersionExpired",
        ErrorKind::DefinitionChanged => "DefinitionChanged",
        ErrorKind::UnsafeStore => "UnsafeStore",
        ErrorKind::ExportConflict => "ExportConflict",
        ErrorKind::FormatNotSupported => "FormatNotSupported",
        ErrorKind::BlockCorrupted => "BlockCorrupted",
        ErrorKind::InvalidAppend => "InvalidAppend",
        _ => "RemoteStoreError",
    }
}

/// Whether an error of this kind says more than the Python exception that caused it, and is raised in its place.
fn engine_error_wins(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DatasetIncomplete
            | ErrorKind::ManifestCorrupted
            | ErrorKind::PartCorrupted
            | ErrorKind::Locked
            | ErrorKind::CommitConflict
            | ErrorKind::CommitStateUnknown
            | ErrorKind::TransactionExpired
            | ErrorKind::VersionExpired
            | ErrorKind::DefinitionChanged
            | ErrorKind::UnsafeStore
            | ErrorKind::ExportConflict
            | ErrorKind::FormatNotSupported
            | ErrorKind::BlockCorrupted
            | ErrorKind::InvalidAppend
    )
}

/// The exception for an error. A Python exception that caused the error is returned itself, or becomes the
/// `__cause__` of the engine's, if the engine's says more.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let (mut original, mut is_callable) = (None, false);
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(raised) = current.downcast_ref::<PyCause>() {
            original = Some(raised.0.clone_ref(py));
        }
        if let Some(raised) = current.downcast_ref::<CallableFailure>() {
            (original, is_callable) = (Some(raised.0.clone_ref(py)), true);
        }
        cause = current.source();
    }
    match original {
        Some(original) if !is_callable && !engine_error_wins(error.kind()) => original,
        original => {
            let exception = build_exception(py, error).unwrap_or_else(|failure| failure);
            exception.set_cause(py, original);
            exception
        }
    }
}

fn build_exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let kwargs = PyDict::new(py);
    if let Some(path) = error.path() {
        kwargs.set_item("path", path)?;
    }
    match (error.kind(), error.detail()) {
        (ErrorKind::ManifestCorrupted, Some(reason)) => kwargs.set_item("reason", reason)?,
        (ErrorKind::InvalidAppend, Some(rule)) => kwargs.set_item("rule", rule)?,
        (ErrorKind::CommitStateUnknown, Some(id)) => kwargs.set_item("commit_id", id)?,
        (ErrorKind::CapabilityNotSupported, Some(name)) => kwargs.set_item("capability", name)?,
        _ => {}
    }
    let mut message = error.message().to_owned();
    if let Some(cause) = error.source() {
        let text = format_error_chain(cause);
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
    }
    if let Some(hint) = error.hint() {
        message = format!("{message}; hint: {hint}");
    }
    let message = mask_urls(&message);
    let class = py
        .import("pds.errors")?
        .getattr(exception_name(error.kind()))?;
    let exception = class.call((message,), Some(&kwargs))?;
    exception.setattr("hint", error.hint().map(mask_urls))?;
    exception.setattr("retryable", error.is_retryable())?;
    Ok(PyErr::from_value(exception))
}
