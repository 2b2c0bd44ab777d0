//! Streams the rows of files, in their order.
//!
//! Files are opened and row groups are read ahead of the consumer. Their number is limited, and so is the memory of the
//! row groups that were not sent yet. What was begun goes on while the consumer works, so that no request waits for it
//! longer than the store does.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::Semaphore;

use super::file_scanner::{FileScanner, FileSource};
use super::row_group::RowGroupScan;
use crate::error::{Error, Result};
use crate::files::expr::Filter;
use crate::files::{BatchSender, BatchStream, DataFile, run_ahead};
use crate::parquet::Cancel;

/// The maximum number of files opened and of row groups read ahead: enough to hide the latency of a store.
const MAX_AHEAD: usize = 32;
/// Number of files opened ahead of a scan with a limit.
const LIMITED_FILES_AHEAD: usize = 8;
/// Number of row groups read ahead of a scan with a limit.
const LIMITED_ROW_GROUPS_AHEAD: usize = 2;
/// The maximum size of the footers of the files that are being opened.
const MAX_TAILS_BYTES: u64 = 16 << 20;
/// The unit in which the memory of row groups is counted.
const MEMORY_BLOCK_BYTES: u64 = 64 << 10;
/// The memory of the row groups that are read ahead: 256 MiB.
const MEMORY_BLOCKS: usize = 4096;
/// A row group counts as half of that at most, so that two are always read at once.
const MAX_ROW_GROUP_BLOCKS: u32 = 2048;

/// What to read of a list of files, such as a version of a table.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// Names of columns, in the order of the output. Defaults to all.
    pub columns: Option<Vec<String>>,
    /// Selects rows. Defaults to all.
    pub filter: Option<Arc<Filter>>,
    /// Maximum number of rows. Defaults to no limit.
    pub limit: Option<u64>,
    /// Row groups are read as a whole and without page indexes, also where the limit needs fewer rows of them. A filter
    /// that uses no statistics says so itself.
    pub without_statistics: bool,
}

/// Streams the rows of a scanner, whose filter is that of `options`. Files and row groups are read ahead of the consumer.
///
/// Fails if a column of `options` does not exist.
pub(crate) fn stream_all<S: FileSource>(
    mut scanner: FileScanner<S>,
    options: &ScanOptions,
) -> Result<BatchStream> {
    if let Some(limit) = options.limit.filter(|_| !options.without_statistics) {
        scanner.row_limit = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    let columns = scanner.columns.project(options.columns.as_deref())?;
    let files = (0..scanner.files.len()).collect();
    stream_files(Arc::new(scanner), files, columns, options.limit)
}

/// Streams rows of some files, by position in [`FileScanner::files`].
pub(crate) fn stream_files<S: FileSource>(
    scanner: Arc<FileScanner<S>>,
    files: Vec<usize>,
    columns: Vec<usize>,
    limit: Option<u64>,
) -> Result<BatchStream> {
    let projected = scanner.columns.schema.project(&columns);
    let projected_schema = projected.map_err(Error::from_cause)?;
    let schema = Arc::new(projected_schema);
    let file_scan = FileScan {
        scanner,
        files,
        columns,
        schema: Arc::clone(&schema),
    };
    let limit = limit.unwrap_or(u64::MAX);
    let cancel = Cancel::default();
    Ok(BatchStream::spawn(schema, &cancel, |sender| async move {
        Arc::new(file_scan).run(limit, &sender).await
    }))
}

struct FileScan<S: FileSource> {
    scanner: Arc<FileScanner<S>>,
    files: Vec<usize>,
    /// Positions among the scanner's columns.
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl<S: FileSource> FileScan<S> {
    async fn run(self: Arc<Self>, limit: u64, sender: &BatchSender) -> Result<()> {
        let ahead = self.read_ahead(limit);
        let file_scan = Arc::clone(&self);
        let files = stream::iter(self.files_within(limit))
            .map(move |file| {
                let scanner = Arc::clone(&file_scan.scanner);
                run_ahead(async move { scanner.open_row_groups(file).await })
            })
            .buffered(ahead.files);
        let memory = Arc::new(Semaphore::new(MEMORY_BLOCKS));
        let file_scan = Arc::clone(&self);
        let mut batch_stream = files
            .map_ok(|row_groups| stream::iter(row_groups.into_iter().map(Ok)))
            .try_flatten()
            .and_then(move |row_group| {
                let (memory, blocks) = (Arc::clone(&memory), self.memory_blocks(&row_group));
                // The first row group always has its permits: those of earlier ones return when they are sent.
                async move { Ok((row_group, memory.acquire_many_owned(blocks).await)) }
            })
            .map_ok(move |(row_group, permits)| {
                let file_scan = Arc::clone(&file_scan);
                run_ahead(async move {
                    let Self {
                        columns, schema, ..
                    } = file_scan.as_ref();
                    let read = file_scan.scanner.read(&row_group, columns, schema).await;
                    read.map(|batches| (batches, permits))
                })
            })
            .try_buffered(ahead.row_groups)
            .boxed();
        let mut remaining = limit;
        while remaining > 0 {
            let Some((batches, _permits)) = batch_stream.try_next().await? else {
                break;
            };
            for batch in batches {
                let max_rows = usize::try_from(remaining).unwrap_or(usize::MAX);
                let batch = batch.slice(0, batch.num_rows().min(max_rows));
                remaining -= batch.num_rows() as u64;
                if batch.num_rows() > 0 && sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The first files, as many as certainly have `limit` rows to send.
    fn files_within(&self, limit: u64) -> Vec<usize> {
        let mut missing_rows = limit;
        let is_needed = |file: &usize| {
            let is_needed = missing_rows > 0;
            let has_all_rows = !self.scanner.has_filter()
                && self.scanner.deletions_of(*file).is_none()
                && self.scanner.share_of(*file).is_none();
            if has_all_rows {
                missing_rows =
                    missing_rows.saturating_sub(self.scanner.data_file(*file).total_rows);
            }
            is_needed
        };
        self.files.iter().copied().take_while(is_needed).collect()
    }

    /// How much is read before it is asked for. With a limit this is little, for most of it may be in vain.
    fn read_ahead(&self, limit: u64) -> ReadAhead {
        if limit < u64::MAX {
            return ReadAhead {
                files: LIMITED_FILES_AHEAD,
                row_groups: LIMITED_ROW_GROUPS_AHEAD,
            };
        }
        let listed_files = self.files.iter().map(|file| self.scanner.data_file(*file));
        let largest_tail = listed_files
            .map(DataFile::tail_bytes)
            .max()
            .unwrap_or(1)
            .max(1);
        let files = usize::try_from(MAX_TAILS_BYTES / largest_tail).unwrap_or(MAX_AHEAD);
        ReadAhead {
            files: files.clamp(LIMITED_FILES_AHEAD, MAX_AHEAD),
            row_groups: MAX_AHEAD,
        }
    }

    /// The memory that a row group takes while it is read and until it is sent, in blocks.
    fn memory_blocks(&self, row_group: &RowGroupScan) -> u32 {
        let bytes = self.scanner.memory_bytes(row_group, &self.columns);
        let blocks = u32::try_from(bytes / MEMORY_BLOCK_BYTES).unwrap_or(u32::MAX);
        blocks.clamp(1, MAX_ROW_GROUP_BLOCKS)
    }
}

struct ReadAhead {
    files: usize,
    row_groups: usize,
}
