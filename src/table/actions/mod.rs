//! What can be done to a table, one change a file.

mod append;
mod create;
mod replace;

pub use self::append::Append;
pub use self::create::{NewTable, create};
pub use self::replace::Replace;
