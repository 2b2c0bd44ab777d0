//! Versions: whatever is committed by compare-and-swap on one pointer, such as a table.
//!
//! A folder ([`Folder`]) has immutable objects and one pointer ([`Pointer`]). A commit creates `manifest/v(N+1).json`, which
//! only one writer can do, and then advances the pointer. A later writer advances a pointer that is behind, so a
//! crashed writer blocks no other ([`commit`]). A reader reads the manifest that the pointer names and keeps that
//! snapshot ([`Snapshot`]). [`vacuum`] removes the objects that no retained version
//! references. What else a manifest lists is up to its type ([`Versioned`]).
//!
//! Errors: [`crate::ErrorKind::CommitConflict`] (another commit came first, and the change does not apply
//! to its snapshot), [`crate::ErrorKind::CommitStateUnknown`] (the store's answer was lost, and reading
//! back did not resolve it), [`crate::ErrorKind::TransactionExpired`] (a vacuum has invalidated the uploaded files;
//! write again), [`crate::ErrorKind::VersionExpired`] (the version has been vacuumed).

mod ancestor;
mod attempt;
mod backoff;
mod change;
pub mod commit;
mod commit_id;
mod create;
mod expired;
mod finalize;
mod folder;
mod group_commit;
mod history;
mod list_versioned;
mod lists;
mod manifest;
mod messages;
pub(crate) mod names;
mod outcome;
mod pointer;
mod recover;
mod removal;
mod snapshot;
mod snapshot_cache;
mod staged;
mod tag;
mod transactions;
pub mod vacuum;

pub use self::ancestor::Ancestor;
pub use self::attempt::was_committed;
pub use self::change::{Change, RequiredVersion};
pub(crate) use self::change::{OnVersion, Operation, check_required_version};
pub use self::commit_id::{CommitId, TimestampMicros};
pub(crate) use self::create::{check_creatable, create_checked, create_first, is_not_created};
pub use self::folder::{Folder, Snapshot};
pub(crate) use self::folder::{check_root, list_below, list_objects, list_root};
pub(crate) use self::group_commit::{GroupChange, commit_batched};
pub(crate) use self::history::map_versions;
pub use self::history::{HistoryEntry, at_time, history};
pub use self::list_versioned::list_versioned;
pub(crate) use self::lists::find_mergeable;
pub use self::lists::{ListWriter, RollLists};
pub(crate) use self::manifest::header_by_fields;
pub use self::manifest::{
    CommitOperation, ManifestHeader, ManifestHeaderMut, Transaction, TransactionLimits,
    TransactionList, Versioned,
};
pub use self::messages::{pack_message, unpack_message, unpack_messages};
pub use self::outcome::Committed;
pub(crate) use self::outcome::{CommitError, CommitOutcome};
pub use self::pointer::Pointer;
pub use self::removal::remove_versions;
pub(crate) use self::snapshot::missing_slice_error;
pub(crate) use self::staged::{Staged, remove};
pub use self::tag::Tag;
pub(crate) use self::transactions::{
    check_idempotency_key, find_replay, roll_transactions, verify_list as verify_transactions,
};
pub use self::vacuum::Vacuumable;
