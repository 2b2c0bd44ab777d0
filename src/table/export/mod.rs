//! What exports of tables to other formats share: the columns and files of a version, deleted rows by position,
//! types as trees, and what an export may be of.

mod columns;
mod deletions;
mod format;
mod leave_out;
mod ownership;
mod paths;
mod types;
mod version;

pub(super) use self::columns::{ExportColumn, export_columns};
pub(super) use self::deletions::{DeletionKey, deleted_positions, to_uuid};
pub(super) use self::format::ExportFormat;
pub(super) use self::leave_out::{
    keep_left_out, read_identity, resolve_leave_out, resolve_rebuild,
};
pub(super) use self::ownership::{ExportOwner, find_owner, is_of_table};
pub(super) use self::paths::{encode_path, needs_encoding};
pub(super) use self::types::{ExportField, ExportType, check_decimal, is_wider_decimal};
pub(super) use self::version::LoadedVersion;
