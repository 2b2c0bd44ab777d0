//! Parquet files in a store: staged from a stream of batches, opened, fetched by ranges, decoded and verified.
//!
//! [`expr`] has the predicates over their columns, with pruning by statistics. Nothing here knows of commits.

mod align;
mod base64_bytes;
mod batch_stream;
mod columns;
mod encoded_schema;
mod entry;
pub(crate) mod expr;
mod external;
mod fetch;
mod field_ids;
pub(crate) mod key_ranges;
mod local;
mod merge;
mod open;
mod publish;
mod read;
mod row_counter;
pub mod run;
mod scan;
mod share;
mod sort;
mod spill;
mod stage;
pub(crate) mod types;
mod verify;
mod write;

use arrow_array::RecordBatchReader;
use tokio::task::JoinSet;

pub(crate) use self::align::align_to_schema;
pub use self::base64_bytes::Base64;
pub(crate) use self::batch_stream::BatchSender;
pub use self::batch_stream::BatchStream;
pub use self::columns::TableColumns;
pub(crate) use self::columns::{
    StoredField, field_indices, field_indices_by_id, field_indices_by_name,
};
pub use self::encoded_schema::EncodedSchema;
pub use self::entry::{DataFile, FileChecksum};
pub use self::external::{ExternalFile, ExternalFiles};
pub(crate) use self::fetch::MAX_GAP_BYTES;
pub(crate) use self::field_ids::{assign_nested_ids, field_id};
pub(crate) use self::merge::{
    BATCH_ROWS, Merge, SortColumn, SortKeys, SortedBatches, interleave_rows, row_bytes,
};
pub(crate) use self::open::{OpenPart, open, open_bytes, open_with_indexes};
pub(crate) use self::publish::publish_files;
pub(crate) use self::read::{RowGroupReader, RowGroupSelection, read_groups};
pub(crate) use self::row_counter::count_rows;
pub use self::scan::{Deletions, ScanOptions};
pub(crate) use self::scan::{
    FileScanner, FileSource, RowGroupScan, stream_all, stream_files, with_types_of,
};
pub use self::share::FileShare;
pub(crate) use self::sort::sort_batches;
pub(crate) use self::spill::{Spill, SpillWriter};
pub(crate) use self::stage::{FileHooks, StagedFile, discard, stage};
pub(crate) use self::write::{FileName, WrittenFile, write_files};
use crate::error::{Error, Result};
use crate::sync::blocking::{self, BlockingError};
use crate::sync::in_place::is_in_place;

/// A stream of batches that any thread can read.
pub(crate) type BoxedReader = Box<dyn RecordBatchReader + Send>;

/// Runs work as a task of its own, which goes on while nobody polls the result and ends when the result is dropped.
pub(crate) async fn run_ahead<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let mut task = JoinSet::new();
    task.spawn(work);
    let finished = task.join_next().await;
    finished
        .ok_or_else(|| Error::other("internal error: a task has no result"))?
        .map_err(|e| Error::other(format!("reader task failed: {e}")).with_source(e))?
}

/// Runs blocking work off the async threads; a panic of it becomes an error.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = blocking::run_blocking(work).await;
    done.map_err(BlockingError::into_error)?
}

/// As [`run_blocking`], for work that waits for nothing but a disk: a call that works in place does it itself.
pub(crate) async fn run_short<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    if is_in_place() {
        return blocking::run_here(work).map_err(BlockingError::into_error)?;
    }
    run_blocking(work).await
}
