//! The error of the engine: a kind that the caller can act on, a message, a path and a cause.
//!
//! Every layer returns [`Error`]. An [`ErrorKind`] says what the caller can do, not which layer failed; the Python
//! bindings map each kind to an exception. `Display` writes the message and the path; the cause is its source, and
//! [`format_error_chain`] writes all of them.

use std::error::Error as StdError;
use std::fmt;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object or folder does not exist.
    NotFound,
    /// The object or dataset exists and may not be replaced.
    AlreadyExists,
    /// The store refused the credentials or the access, or there are no credentials.
    PermissionDenied,
    /// The path is malformed, leaves the store's root, or names the wrong type.
    InvalidPath,
    /// An argument has a value that cannot be used.
    InvalidInput,
    /// The store lacks a capability that the call needs; `detail` names it.
    CapabilityNotSupported,
    /// The store cannot be reached, or gave up after retries.
    Unavailable,
    /// A request's deadline passed before it was sent; nothing has happened.
    Expired,
    /// Another live process holds the resource.
    Locked,
    /// The condition of a request did not hold: the object is another version. Nothing was written.
    Conflict,
    /// Another process has taken over what this one began.
    Fenced,
    /// An object has more bytes than the caller allows.
    TooLarge,
    /// The dataset is not complete, so it cannot be read.
    DatasetIncomplete,
    /// The manifest cannot be used; `detail` is the reason.
    ManifestCorrupted,
    /// The bytes of a part differ from those that were written.
    PartCorrupted,
    /// A concurrent commit came first, and this one conflicts with it; `detail` is `if_version` if the caller named a version.
    CommitConflict,
    /// It is unknown whether a commit happened; `detail` is its identity.
    CommitStateUnknown,
    /// The write began too long ago: a vacuum may have removed its files, or what it relies on was changed.
    TransactionExpired,
    /// A vacuum has removed the version.
    VersionExpired,
    /// A stage of a pipeline is declared otherwise than it is stored.
    DefinitionChanged,
    /// The store does not honor the conditions of conditional writes.
    UnsafeStore,
    /// A metadata block or the head of a chain cannot be read, or does not match its hash.
    BlockCorrupted,
    /// A block breaks a rule of the chain; `detail` names the rule.
    InvalidAppend,
    /// Another system, or another table, has written into the metadata that an export keeps.
    ExportConflict,
    /// An object has a newer format than this version of pds reads.
    FormatNotSupported,
    /// The call was cancelled by its caller.
    Cancelled,
    /// Anything else; the message says what.
    Other,
}

impl ErrorKind {
    /// Whether a call that failed so may succeed when it is repeated, without a change of its arguments or of the store.
    ///
    /// A commit in an unknown state is not among them: without an idempotency key, a repetition may commit twice.
    fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::Expired
                | Self::Locked
                | Self::Conflict
                | Self::CommitConflict
                | Self::TransactionExpired
        )
    }
}

/// The detail of a [`ErrorKind::CommitConflict`] with the version that the caller named.
pub(crate) const REQUIRED_VERSION: &str = "if_version";

/// The cause of an error.
pub type Cause = Box<dyn StdError + Send + Sync + 'static>;

/// An error with its kind, message, path and cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    path: Option<Box<str>>,
    detail: Option<Box<str>>,
    hint: Option<Box<str>>,
    source: Option<Cause>,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error without path, detail, hint and cause.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            path: None,
            detail: None,
            hint: None,
            source: None,
        }
    }

    /// Creates an error of the kind [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Creates an error of the kind [`ErrorKind::BlockCorrupted`].
    pub fn block_corrupted(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::BlockCorrupted, message)
    }

    /// Creates an error of the kind [`ErrorKind::Other`].
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Other, message)
    }

    /// Creates an error of the kind [`ErrorKind::Other`] with the message of its cause.
    pub fn from_cause(cause: impl StdError + Send + Sync + 'static) -> Self {
        Self::other(cause.to_string()).with_source(cause)
    }

    /// Sets the path, unless the error has one already; an empty one, that of the store itself, does not count.
    #[must_use]
    pub fn with_path(mut self, path: impl AsRef<str>) -> Self {
        if self.path.as_deref().is_none_or(str::is_empty) {
            self.path = Some(path.as_ref().into());
        }
        self
    }

    /// Sets the detail; the [`ErrorKind`] says what it is.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into().into_boxed_str());
        self
    }

    /// Sets what the user can do next, unless the error says so already.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint
            .get_or_insert_with(|| hint.into().into_boxed_str());
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Cause>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Puts `context: ` before the message.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.message = format!("{context}: {}", self.message);
        self
    }

    /// Replaces the kind and keeps the rest.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// Copies the error for another caller. The causes cannot be copied; their messages go into the message.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        let cause = self
            .source
            .as_ref()
            .map(|cause| format_error_chain(&**cause));
        let message = match cause {
            Some(cause) if !self.message.contains(&cause) => format!("{}: {cause}", self.message),
            _ => self.message.clone(),
        };
        Self {
            kind: self.kind,
            message,
            path: self.path.clone(),
            detail: self.detail.clone(),
            hint: self.hint.clone(),
            source: None,
        }
    }

    /// The kind, which says what the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message, without path and cause.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The path in the store that the error is about, if there is one.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// The detail; the [`ErrorKind`] says what it is.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// Whether the same call may succeed when it is repeated. One that names a version does not: versions go up.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable() && self.detail() != Some(REQUIRED_VERSION)
    }

    /// What the user can do next.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(path) = &self.path {
            write!(f, " | path={path:?}")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// The messages of an error and its causes, outermost first. A message that an outer one contains is left out.
pub fn format_error_chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let line = cause.to_string();
        if !text.contains(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        next = cause.source();
    }
    text
}

/// The error about a manifest, or an object that it describes, that cannot be used.
pub(crate) fn corrupted_error(name: &str, reason: &str) -> Error {
    Error::new(
        ErrorKind::ManifestCorrupted,
        format!("{name} cannot be used: {reason}"),
    )
    .with_detail(reason)
}
