//! The changes that can be committed to a table ([`crate::versions::Change`]), one in each file.

mod add_files;
mod alter;
mod append;
mod append_columns;
mod create;
mod delete;
mod overwrite;
mod replace;
mod restore;
mod row_delta;

pub use self::add_files::AddFiles;
pub use self::alter::{Alter, AlterOpened};
pub use self::append::Append;
pub use self::append_columns::{AppendWithColumns, NewColumns};
pub use self::create::{NewTable, create};
pub use self::delete::Delete;
pub use self::overwrite::Overwrite;
pub use self::replace::{MergedTombstones, Replace};
pub use self::restore::{Restore, restore, tag};
pub use self::row_delta::RowDelta;
