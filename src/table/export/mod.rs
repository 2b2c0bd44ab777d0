//! What exports of tables to other formats share: the files of a version, their deleted rows by position, types as
//! trees, and what an export may be of.

mod deletions;
mod leave_out;
mod ownership;
mod paths;
mod types;
mod version;

pub(super) use self::deletions::{DeletionKey, deleted_positions, to_uuid};
pub(super) use self::leave_out::{first_ambiguous, identity, left_out_after, resolve};
pub(super) use self::ownership::is_of_table;
pub(super) use self::paths::{encode_path, needs_encoding};
pub(super) use self::types::{ExportField, ExportType, check_decimal, is_wider_decimal};
pub(super) use self::version::Version;
