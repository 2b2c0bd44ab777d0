//! How a commit ended: whether one that did not succeed may still have happened is in the type.
//!
//! There is no conversion from [`Error`]: whoever makes a [`CommitError`] says which of both it is.
//! [`CommitError::NotCommitted`] is made only where no conditional write was sent, or where the store
//! was read after it and showed another commit in its place.

use std::time::Duration;

use super::commit_id::CommitId;
use super::folder::Snapshot;
use super::manifest::Transaction;
use crate::error::{Error, ErrorKind};

/// A commit that happened.
#[derive(Debug, Clone)]
pub struct Committed<M> {
    /// The version that the commit created.
    pub version: u64,
    /// The random id of the commit.
    pub commit_id: CommitId,
    /// The snapshot that the commit created; for a replay the newest snapshot.
    pub snapshot: Snapshot<M>,
    /// The number of attempts, the successful one included.
    pub attempts: u32,
    /// The time spent in delays between attempts and in the queue of a group commit.
    pub waited: Duration,
    /// An earlier commit had the same idempotency key; this one changed nothing.
    pub replayed: bool,
}

impl<M> Committed<M> {
    /// The same, after so much time in the queue of a group commit.
    pub(crate) fn after(mut self, queue_time: Duration) -> Self {
        self.waited += queue_time;
        self
    }
}

impl<M: Clone> Committed<M> {
    /// The commit that a transaction recorded; `newest` is the newest snapshot.
    pub(crate) fn replay(transaction: Transaction, newest: &Snapshot<M>) -> Self {
        Self {
            version: transaction.version,
            commit_id: transaction.commit_id,
            snapshot: newest.clone(),
            attempts: 1,
            waited: Duration::ZERO,
            replayed: true,
        }
    }
}

/// How an operation ended that did not fail.
pub(crate) enum RunResult<M, C> {
    /// It was committed, as this change.
    Committed(Committed<M>, C),
    /// An earlier commit had the same idempotency key.
    Replayed(Committed<M>),
    /// There was nothing to change in this snapshot.
    Unchanged(Snapshot<M>),
}

impl<M, C> RunResult<M, C> {
    /// The commit of a change that needs no plan.
    pub(super) fn into_committed(self) -> CommitOutcome<Committed<M>> {
        match self {
            Self::Committed(committed, _) | Self::Replayed(committed) => Ok(committed),
            Self::Unchanged(_) => Err(CommitError::NotCommitted(Error::other(
                "internal error: a change without a plan changed nothing",
            ))),
        }
    }
}

/// Why a commit did not succeed.
#[derive(Debug)]
pub(crate) enum CommitError {
    /// Nothing was committed, and nothing will be.
    NotCommitted(Error),
    /// It may have been committed, or may still be. Nothing that it references may be removed.
    Unknown {
        /// The id to ask for later.
        id: CommitId,
        /// Why the outcome is unknown.
        cause: Error,
    },
}

/// The result of a commit.
pub(crate) type CommitOutcome<T> = Result<T, CommitError>;

impl CommitError {
    /// An error of a conditional write that was sent ([`crate::store::cas`]): unknown if it may still land.
    pub(crate) fn from_write(id: &CommitId, error: Error) -> Self {
        match error.kind() {
            ErrorKind::Unavailable => Self::Unknown {
                id: id.clone(),
                cause: error,
            },
            _ => Self::NotCommitted(error),
        }
    }

    /// Whether the objects that were written for the commit are to be removed before the call ends. While the store is
    /// unavailable, that is left to a vacuum; a caller who has been cancelled does not wait for it.
    pub(crate) fn allows_removal(&self) -> bool {
        match self {
            Self::NotCommitted(error) => {
                !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Cancelled)
            }
            Self::Unknown { .. } => false,
        }
    }

    /// Whether nothing was committed because the caller has been cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self, Self::NotCommitted(error) if error.kind() == ErrorKind::Cancelled)
    }

    /// Whether a change that was planned from a snapshot alone can be planned again on a newer one.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::NotCommitted(error) if is_conflict(error))
    }

    /// Copies the error for another caller of the same commit.
    pub(super) fn duplicate(&self) -> Self {
        match self {
            Self::NotCommitted(error) => Self::NotCommitted(error.duplicate()),
            Self::Unknown { id, cause } => Self::Unknown {
                id: id.clone(),
                cause: cause.duplicate(),
            },
        }
    }
}

/// Whether a change does not apply to a snapshot, but may after it was planned again.
pub(crate) fn is_conflict(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::CommitConflict | ErrorKind::TransactionExpired
    )
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        let (id, cause) = match error {
            CommitError::NotCommitted(error) => return error,
            CommitError::Unknown { id, cause } => (id, cause),
        };
        let message = format!(
            "commit {} is in an unknown state; check later with was_committed({:?})",
            id.as_str(),
            id.as_str()
        );
        Self::new(ErrorKind::CommitStateUnknown, message)
            .with_detail(id.as_str())
            .with_source(cause)
    }
}
