//! What can be done to a table, one change a file.

mod add_files;
mod alter;
mod append;
mod create;
mod delete;
mod exchange;
mod overwrite;
mod replace;
mod restore;
mod tag;

pub use self::add_files::AddFiles;
pub use self::alter::Alter;
pub use self::append::Append;
pub use self::create::{NewTable, create};
pub use self::delete::Delete;
pub use self::exchange::RowDelta;
pub use self::overwrite::Overwrite;
pub use self::replace::{MergedTombstones, Replace};
pub use self::restore::Restore;
pub use self::tag::Tag;
