//! What can be done to a table, one change a file.

mod append;
mod create;
mod delete;
mod overwrite;
mod replace;
mod restore;
mod tag;

pub use self::append::Append;
pub use self::create::{NewTable, create};
pub use self::delete::Delete;
pub use self::overwrite::Overwrite;
pub use self::replace::Replace;
pub use self::restore::Restore;
pub use self::tag::Tag;
