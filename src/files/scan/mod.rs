//! Scans of listed files: the rows that are not deleted and that match a filter.
//!
//! A [`FileScanner`] reads the files that a [`FileSource`] lists, one row group at a time; [`stream_all`] and
//! [`stream_files`] read many of them ahead of a consumer. Deleted rows are [`Deletions`], whoever has recorded them.

mod deletions;
mod file_scanner;
mod index_size;
mod page_reads;
mod row_group;
mod row_reads;
mod stored_types;
mod stream;

pub use self::deletions::Deletions;
pub(crate) use self::file_scanner::{FileScanner, FileSource};
pub(crate) use self::row_group::RowGroupScan;
pub(crate) use self::stored_types::with_types_of;
pub use self::stream::ScanOptions;
pub(crate) use self::stream::{stream_all, stream_files};
