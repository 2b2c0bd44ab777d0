//! Tables as Delta tables: a Delta log beside the table's own metadata, over the same data files.
//!
//! Version V of the log is version V of the table. What a version of the log says follows from manifests alone, so
//! exports that run at once, or end early, do no harm. The protocol is in `docs/design/2026-11-27-export-delta.md`.
//!
//! Errors: those of [`crate::versions`]; [`ErrorKind::InvalidInput`] for columns and files that readers of Delta would read
//! wrongly; [`ErrorKind::ExportConflict`] if another system has written into the log.

mod actions;
mod checkpoint;
mod export;
mod exporter;
mod file_check;
mod log_files;
mod protocol;
mod prune;
mod rebuild;
mod schema;
mod statistics;
mod types;
mod vectors;
mod version;

pub use self::export::{DeltaExport, DeltaOptions, export_delta};
pub(super) use self::log_files::{exists as is_exported, last_exported, remove};
pub(super) use self::prune::prune;
pub(super) use self::schema::check_columns;
pub(super) use self::vectors::list_objects;

/// The folders of a log and of its deletion vectors, relative to the table.
pub(super) const FOLDERS: [&str; 2] = [log_files::FOLDER, vectors::FOLDER];
