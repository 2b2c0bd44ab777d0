//! Tables: append, delete, scan and time travel, committed by compare-and-swap on one object.
//!
//! A table is a folder with versions ([`crate::versions`]), whose manifests ([`format::TableManifest`]) list data files
//! and tombstones. Older files are listed in segments, deleted rows in tombstone files. What changes a table plans a
//! change of its manifest ([`actions`]) from a snapshot and commits it.
//!
//! Where to look:
//!
//! | what | modules |
//! | --- | --- |
//! | manifests and lists of files | `format`, `schema`, `column_entries`, `listing`, `segment`, `snapshot_file` |
//! | deleted rows | `tombstone`, `tombstone_reader`, `tombstone_merge`, `targets` |
//! | objects that an operation has read | `object_cache` |
//! | reads by many processes | `scan_tasks`, `packed_task` |
//! | reads | `scan`, `snapshot_reader`, `count`, `changes` |
//! | new rows | `write`, `staged`, `create_with_rows` |
//! | changed rows | `delete`, `upsert`, `merge`, `merge_rows`, `clauses`, `keys`, `findings`, `file_matches`, `conflicts` |
//! | names of columns in writes | `opened_columns` |
//! | the same, by many processes | `task_changes`, `change_targets`, `task_commit` |
//! | rewritten files | `compact`, `rewrite_group`, `rewrite_tasks`, `sort_tasks`, `sort_ranges` |
//! | files of other systems | `add_files`, `import_files`, `foreign_files`, `partitions`, `spark_fields` |
//! | exports to Delta and Iceberg | `exports`, `export_upkeep`, `export`, `delta_log`, `iceberg` |
//!
//! Errors: those of [`crate::versions`], and [`crate::ErrorKind::UnsafeStore`] (the store does not honor conditional
//! writes).

pub mod actions;
mod add_files;
mod change_targets;
mod changes;
mod check;
mod clauses;
mod column_entries;
mod compact;
mod conflicts;
mod count;
mod create_with_rows;
mod delete;
mod delta_log;
mod explain;
mod export;
mod export_upkeep;
mod exports;
mod external;
mod file_matches;
mod findings;
mod foreign_files;
pub mod format;
mod iceberg;
mod import_files;
mod keys;
mod limits;
mod listing;
mod merge;
mod merge_rows;
mod names;
mod object_cache;
mod opened_columns;
mod packed_task;
mod partitions;
mod position_bitmap;
mod references;
mod rewrite_group;
mod rewrite_tasks;
mod scan;
mod scan_tasks;
mod schema;
mod schema_extensions;
mod segment;
mod snapshot_file;
mod snapshot_reader;
mod sort_ranges;
mod sort_tasks;
mod spark_fields;
mod staged;
mod targets;
mod task_changes;
mod task_commit;
pub mod tombstone;
mod tombstone_merge;
mod tombstone_reader;
mod upsert;
mod verify;
mod write;

pub use self::add_files::add_files;
pub use self::change_targets::{StagedSource, TargetTasks, split_targets};
pub use self::changes::{before_first, scan_changes};
pub use self::check::{CheckReport, check};
pub use self::clauses::{Clause, ClauseAction, ClauseKind, MergeRules};
pub use self::compact::{Compaction, compact, sort};
pub use self::count::count;
pub use self::create_with_rows::create_with_rows;
pub use self::delete::{DeleteResult, delete, is_key_range};
pub use self::delta_log::{DeltaExport, DeltaOptions, export_delta};
pub use self::explain::{ScanPlan, explain};
pub use self::export_upkeep::{begin_vacuum, drop_exported, end_vacuum, vacuum_exported};
pub use self::exports::SetExports;
pub use self::external::external_snapshot;
use self::format::TableManifest;
pub use self::iceberg::{
    IcebergExport, IcebergOptions, Location, check_iceberg_location, export_iceberg,
};
pub use self::import_files::{
    ImportColumn, ImportFile, ImportSource, PreparedImport, prepare_import,
};
pub use self::limits::ListingLimits;
pub use self::listing::all_files;
pub use self::merge::{MergeResult, merge};
pub use self::names::{data_file as data_file_name, tombstones as tombstones_name};
pub use self::opened_columns::OpenedColumns;
pub use self::packed_task::{parse_scan_task, parse_task};
pub use self::rewrite_tasks::{RewrittenGroup, commit_rewrites, plan_rewrites, rewrite_task};
pub use self::scan::scan;
pub use self::scan_tasks::{TaskSizes, split_scan, split_scan_of_files, with_columns_of};
#[cfg(feature = "testing")]
pub(crate) use self::segment::decode_untrusted as decode_segment;
pub use self::snapshot_file::{FileRef, SnapshotFile};
pub use self::sort_tasks::{
    RangeTasks, SortTaskResult, SortTasks, WrittenRange, commit_sort, plan_ranges, plan_sort,
    range_task, sort_task,
};
pub use self::staged::{
    begin_staged, commit_staged, discard_staged, stage, writer_task, writer_task_with_columns,
};
pub use self::task_changes::{
    MatchedTableRows, TaskChange, check_merge, find_deletes, find_upserts, insert_task,
    matched_source_rows, matched_table_rows, merge_task, source_task, unmatched_task,
};
pub use self::task_commit::{TaskOperation, TasksCommitted, commit_changes};
pub use self::upsert::{ReplaceTarget, ReplacedRows, replace_rows};
pub use self::verify::{VerificationTasks, VerifyReport, split_verification, verify};
pub use self::write::{TableWriteOptions, write};
pub use crate::files::expr::{Bounds, Filter, ForeignPredicate, Predicate};
pub use crate::files::{BatchStream, ExternalFile, ExternalFiles, ScanOptions, TableColumns};
pub use crate::versions::{
    HistoryEntry, Versioned, at_time, history, pack_message, unpack_message, unpack_messages,
};

/// A table: a folder of versions of a [`TableManifest`], or one in which a table can be created.
pub type Table = crate::versions::Folder<TableManifest>;
/// A snapshot of a table and the pointer that named it.
pub type Snapshot = crate::versions::Snapshot<TableManifest>;
/// A commit to a table.
pub type Committed = crate::versions::Committed<TableManifest>;
type Staged = crate::versions::Staged<TableManifest>;
