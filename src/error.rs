//! The one error of the engine: a kind the caller can act on, a sentence, and where it happened.

use std::error::Error as StdError;
use std::fmt;

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object or folder does not exist.
    NotFound,
    /// It exists and may not be replaced.
    AlreadyExists,
    /// The store refused the credentials, or there are none.
    PermissionDenied,
    /// The path is malformed, leaves the store's root, or names the wrong type.
    InvalidPath,
    /// An argument has a value that cannot be used.
    InvalidInput,
    /// An argument has a type that cannot be used.
    InvalidType,
    /// The store cannot do what was asked; `detail` names the capability.
    CapabilityNotSupported,
    /// A folder has content and `recursive` was not given.
    DirectoryNotEmpty,
    /// The store cannot be reached, or gave up after retries.
    Unavailable,
    /// A request's deadline passed before it was sent; nothing has happened.
    Expired,
    /// Another live process holds the resource.
    Locked,
    /// A conditional write found another version; nothing was written.
    Conflict,
    /// Another process finishes what this one began.
    Fenced,
    /// An object has more bytes than the caller allows.
    TooLarge,
    /// The dataset is not in a readable state.
    DatasetIncomplete,
    /// The manifest cannot be used; `detail` is the reason.
    ManifestCorrupted,
    /// A part's bytes are not what was written.
    PartCorrupted,
    /// Another commit came first, and this one does not fit what it left.
    CommitConflict,
    /// Whether a commit happened cannot be found out now; `detail` is its identity.
    CommitStateUnknown,
    /// A vacuum removed what had begun before this write ended.
    TransactionExpired,
    /// A vacuum removed the version.
    VersionExpired,
    /// The store does not keep the conditions of conditional writes.
    UnsafeStore,
    /// A block of metadata cannot be read, or is not what its name says.
    BlockCorrupted,
    /// A chain does not take this block; `detail` is the rule.
    InvalidAppend,
    /// An object has a newer format than this version knows.
    FormatNotSupported,
    /// The call was cancelled by its caller.
    Cancelled,
    /// Anything else; the message says what.
    Other,
}

/// A boxed cause.
pub type Cause = Box<dyn StdError + Send + Sync + 'static>;

/// An error with its kind, message, path and cause.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    path: Option<String>,
    detail: Option<String>,
    source: Option<Cause>,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            path: None,
            detail: None,
            source: None,
        }
    }

    /// Shorthand for [`ErrorKind::InvalidInput`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message)
    }

    /// Shorthand for [`ErrorKind::Other`].
    pub fn other(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Other, message)
    }

    /// Names the path, unless one is named already.
    #[must_use]
    pub fn with_path(mut self, path: impl AsRef<str>) -> Self {
        self.path.get_or_insert_with(|| path.as_ref().to_owned());
        self
    }

    /// Sets the detail: a capability's name or a manifest's fault.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Keeps the cause.
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

    /// The same error for somebody else; causes are told in the message.
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
            source: None,
        }
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence, without path and cause.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The store-relative path, if one is concerned.
    pub fn path(&self) -> Option<&str> {
        self.path.as_deref()
    }

    /// A capability's name or a manifest's fault.
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }

    /// The cause given with [`Error::caused_by`], taken out.
    pub fn into_source(self) -> Option<Cause> {
        self.source
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

/// Every message of a chain of causes, outermost first, repeats left out.
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
