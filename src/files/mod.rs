//! Parquet files in a store: staged from a stream of batches, opened, fetched by ranges, decoded and verified.

mod fetch;
mod local;
mod open;
mod read;
mod scan;
mod stage;
mod verify;

pub(crate) use self::open::{OpenPart, open};
pub(crate) use self::read::{RowGroupReader, RowGroupSelection, read_groups};
pub(crate) use self::scan::BatchSender;
pub use self::scan::BatchStream;
pub(crate) use self::stage::{StagedFile, discard, stage, stage_with_hasher};
use crate::error::{Error, Result};

/// Runs blocking work off the async threads; a panic of it becomes an error.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| Error::other(format!("worker thread failed: {e}")).with_source(e))?
}
