//! Tables as Apache Iceberg tables: metadata of format version 2 beside the table's own, over the same data files.
//!
//! The metadata `v124.metadata.json` is version 124 of the table. What it says of files follows from the manifest of that
//! version alone, so exports that run at once, or end early, do no harm. The protocol is in
//! `docs/design/2026-11-27-export-iceberg.md`.
//!
//! Errors: those of [`crate::versions`]; [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for columns and files
//! that readers of Iceberg would read wrongly; [`ErrorKind::ExportConflict`](crate::ErrorKind::ExportConflict) if another
//! system has written metadata.

mod avro;
mod bounds;
mod export;
mod file_check;
mod folder;
mod manifests;
mod metadata;
mod position_deletes;
mod prune;
mod schema;
mod snapshot_writer;
mod types;

pub use self::export::{
    IcebergExport, IcebergOptions, Location, check_iceberg_location, export_iceberg,
};
pub(super) use self::folder::{exists as is_exported, last_exported, list_objects, remove};
pub(super) use self::prune::prune;
pub(super) use self::schema::check_columns;

/// The folders of metadata and of what they name, relative to the table.
pub(super) const FOLDERS: [&str; 2] = [folder::FOLDER, folder::OBJECTS];
