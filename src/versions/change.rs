//! What is committed: changes, and operations that plan them.
//!
//! A [`Change`] is a pure function from a snapshot to the next manifest: it can be applied to a newer snapshot after a
//! lost race. What cannot be, because it reads data, is an `Operation`, which plans a change for each snapshot that it
//! is asked for. `commit` runs both. Conditions travel with a change: an idempotency key, a version that has to be the
//! newest, an ancestor, and the lowest version in the names of its uploaded objects.

use std::time::Duration;

use super::ancestor::Ancestor;
use super::commit_id::CommitId;
use super::folder::{Folder, Snapshot};
use super::manifest::{CommitOperation, Versioned};
use super::staged::Staged;
use crate::error::{Error, ErrorKind, REQUIRED_VERSION, Result};

/// A change of a manifest: a pure function of the snapshot it is applied to, the same for every attempt.
pub trait Change<M>: Send + Sync {
    /// Returns the manifest after the change of `base`, and the operation for the history. The commit
    /// sets the version, the commit id and the time.
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)>;

    /// The lowest version in the names of the change's uploaded objects, if it has any. A vacuum may have
    /// removed them if `gc_floor` is above it.
    fn base_version(&self) -> Option<u64>;

    /// The key under which the change is committed at most once: a second commit with the same key
    /// returns the first one.
    fn idempotency_key(&self) -> Option<&str> {
        None
    }

    /// The version that has to be the newest when the change is committed; None for any.
    fn required_version(&self) -> Option<&RequiredVersion> {
        None
    }

    /// What the versions that it is applied to have to descend from; None for any.
    fn ancestor(&self) -> Option<&Ancestor> {
        None
    }
}

/// A version that has to be the newest when a change is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequiredVersion {
    /// The number of the version.
    pub version: u64,
    /// The commit that created it, where the caller has read it: what was removed and created anew may have reached the
    /// same number.
    pub commit_id: Option<CommitId>,
}

impl<M> Change<M> for &dyn Change<M> {
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)> {
        (**self).apply(base)
    }

    fn base_version(&self) -> Option<u64> {
        (**self).base_version()
    }

    fn idempotency_key(&self) -> Option<&str> {
        (**self).idempotency_key()
    }

    fn required_version(&self) -> Option<&RequiredVersion> {
        (**self).required_version()
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        (**self).ancestor()
    }
}

/// A change that is committed on one version or on descendants of one, or not at all.
pub(crate) struct OnVersion<'a, M> {
    pub(crate) change: &'a dyn Change<M>,
    pub(crate) version: Option<&'a RequiredVersion>,
    pub(crate) ancestor: Ancestor,
}

impl<M> Change<M> for OnVersion<'_, M> {
    fn apply(&self, base: &M) -> Result<(M, CommitOperation)> {
        self.change.apply(base)
    }

    fn base_version(&self) -> Option<u64> {
        self.change.base_version()
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.change.idempotency_key()
    }

    fn required_version(&self) -> Option<&RequiredVersion> {
        self.version
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        Some(&self.ancestor)
    }
}

/// Plans a change from a snapshot, and again from a newer one to which it does not apply.
pub(crate) trait Operation<M: Versioned>: Send {
    /// What it plans.
    type Change: Change<M>;

    /// Plans the change of `base`, and writes the objects that it needs; they are noted in `staged`. None if
    /// there is nothing to change. A later plan may use what an earlier one found and wrote, as long as it
    /// is right for `base`.
    fn plan(
        &mut self,
        base: &Snapshot<M>,
        staged: &mut Staged<M>,
    ) -> impl Future<Output = Result<Option<Self::Change>>> + Send;

    /// Waits before it is planned again, because others came first; until `deadline` at most, by the clock of the store.
    /// Returns whether it waited, so that the newest snapshot is not `base` any more.
    fn before_replan(
        &mut self,
        _base: &Snapshot<M>,
        _deadline: Duration,
    ) -> impl Future<Output = Result<bool>> + Send {
        std::future::ready(Ok(false))
    }

    /// As [`Change::idempotency_key`]; known before the first plan.
    fn idempotency_key(&self) -> Option<&str>;

    /// As [`Change::required_version`].
    fn required_version(&self) -> Option<&RequiredVersion> {
        None
    }

    /// As [`Change::base_version`], if it is known before the first plan.
    fn base_version(&self) -> Option<u64> {
        None
    }

    /// As [`Change::ancestor`], if it is known before the first plan.
    fn ancestor(&self) -> Option<&Ancestor> {
        None
    }
}

/// A change that needs no plan.
pub(super) struct Unplanned<'a, M>(pub(super) &'a dyn Change<M>);

impl<'a, M: Versioned> Operation<M> for Unplanned<'a, M> {
    type Change = &'a dyn Change<M>;

    async fn plan(
        &mut self,
        _: &Snapshot<M>,
        _: &mut Staged<M>,
    ) -> Result<Option<&'a dyn Change<M>>> {
        Ok(Some(self.0))
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.0.idempotency_key()
    }

    fn required_version(&self) -> Option<&RequiredVersion> {
        self.0.required_version()
    }

    fn base_version(&self) -> Option<u64> {
        self.0.base_version()
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        self.0.ancestor()
    }
}

/// Applies a change to a snapshot, unless a vacuum may have removed its objects.
pub(super) fn apply<M: Versioned>(
    folder: &Folder<M>,
    change: &impl Change<M>,
    base: &M,
) -> Result<(M, CommitOperation)> {
    check_gc_floor(folder, change, base)?;
    change.apply(base)
}

/// Fails with [`ErrorKind::TransactionExpired`] if a vacuum may have removed the change's objects.
pub(super) fn check_gc_floor<M: Versioned>(
    folder: &Folder<M>,
    change: &dyn Change<M>,
    base: &M,
) -> Result<()> {
    let gc_floor = base.header().gc_floor;
    match change.base_version() {
        Some(base_version) if base_version < gc_floor => {
            let message = format!(
                "the write started at version {base_version}, and a vacuum has since removed the files \
                 of writes that started before version {gc_floor}; write again, or vacuum with a longer \
                 retention"
            );
            Err(Error::new(ErrorKind::TransactionExpired, message).with_path(folder.root()))
        }
        _ => Ok(()),
    }
}

/// Fails with [`ErrorKind::CommitConflict`] if a change requires another version than the newest.
pub(crate) fn check_required_version<M: Versioned>(
    folder: &Folder<M>,
    required: Option<&RequiredVersion>,
    newest: &M,
) -> Result<()> {
    let Some(RequiredVersion { version, commit_id }) = required else {
        return Ok(());
    };
    let newest = newest.header();
    let noun = M::NOUN;
    let message = if *version != newest.version {
        format!(
            "the {noun} is at version {}, not at {version} as if_version says; nothing was committed: read it again",
            newest.version
        )
    } else if commit_id.as_ref().is_some_and(|id| id != newest.commit_id) {
        format!(
            "the {noun} was removed and created again since version {version} was read; nothing was committed: open it \
             again"
        )
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::CommitConflict, message)
        .with_path(folder.root())
        .with_detail(REQUIRED_VERSION))
}
