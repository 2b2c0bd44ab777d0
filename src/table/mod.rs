//! Tables: append, delete, scan and time travel, committed by compare-and-swap on one object.
//!
//! A table is a folder of immutable objects and one pointer ([`format::Pointer`]). The commit is the
//! creation of `manifest/v(N+1).json`, which exactly one writer wins; the pointer follows, and
//! whoever finds it behind moves it on, so a crashed writer blocks nobody ([`commit`]). Readers take
//! the manifest the pointer names and hold that snapshot. [`vacuum`] removes what no retained
//! version references.
//!
//! Errors: [`crate::ErrorKind::CommitConflict`] (another commit came first and this one does not fit
//! any more), [`crate::ErrorKind::CommitStateUnknown`] (the answer was lost and cannot be found out now),
//! [`crate::ErrorKind::TransactionExpired`] (a vacuum ran meanwhile; begin again),
//! [`crate::ErrorKind::VersionExpired`], [`crate::ErrorKind::UnsafeStore`].

pub mod actions;
mod add_files;
mod changes;
mod check;
mod clauses;
pub mod commit;
mod compact;
mod conflicts;
mod delete;
mod desugar;
mod exact_literals;
mod explain;
mod external;
mod filter;
mod floats;
pub mod format;
mod get_field;
mod group_commit;
mod history;
mod key_ranges;
mod keys;
mod listing;
mod lossless_cast;
mod merge;
mod names;
mod predicate;
mod pruning;
mod recover;
mod row_group;
mod scan;
mod schema;
mod segment;
mod semantics;
mod simplify;
mod snapshot;
mod snapshot_reader;
mod sql;
mod statistics;
pub mod tombstone;
mod types;
mod upsert;
pub mod vacuum;
mod values;
mod widen;
mod write;

pub use self::add_files::add_files;
pub use self::changes::scan_changes;
pub use self::check::{CheckReport, check};
pub use self::clauses::{Clause, ClauseAction, ClauseKind};
pub use self::compact::{Compaction, compact, sort};
pub use self::delete::{DeleteResult, delete};
pub use self::explain::{ScanPlan, explain};
pub use self::external::{ExternalFile, external_snapshot};
pub use self::filter::Filter;
pub use self::history::{at_time, history};
pub use self::listing::{FileRef, ListingLimits, SnapshotFile, all_files};
pub use self::merge::{MergeResult, merge};
pub use self::names::{data_file as data_file_name, tombstones as tombstones_name};
pub use self::predicate::{Bounds, ForeignPredicate, Predicate};
pub use self::scan::{ScanOptions, scan};
pub use self::schema::TableColumns;
#[cfg(feature = "testing")]
pub(crate) use self::segment::decode_untrusted as decode_segment;
pub use self::snapshot::{Snapshot, Table};
pub use self::upsert::{ReplaceTarget, replace_rows};
pub(crate) use self::write::align_to_schema;
pub use self::write::{TableWriteOptions, write};
pub use crate::part::BatchStream;
