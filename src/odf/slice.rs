//! Slices: the data files of a chain, named by the hash of their bytes.
//!
//! [`write_slice`] writes rows to a hidden file and publishes it under
//! its hash as an [`UncommittedSlice`], which a block may then name; [`remove_slice`] removes one that no block will
//! name. [`scan_slices`] streams the rows of slices, [`read_columns`] reads the columns of
//! one; [`ErrorKind::PartCorrupted`] if it is missing.
//!
//! If publishing fails or is cancelled, the staged file is discarded, and the file that may have been published is removed.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::{Schema, SchemaRef};
use futures::future::BoxFuture;

use super::chain::Chain;
use super::event::Slice;
use super::multihash::{Multihash, SHA3_256};
use super::rows::SliceStats;
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{
    BatchStream, DataFile, ExternalFile, ExternalFiles, FileHooks, FileScanner, FileShare,
    FileSource, ScanOptions, StagedFile, count_rows, discard, open, publish_files, run_blocking,
    stage, stream_all,
};
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::PartIdentity;
use crate::parquet::writer::WritePlan;
use crate::store::Store;
use crate::store::stage::Staging;
use crate::store::temp_name::temp_path_in;
use crate::sync::hash::SharedHasher;
use crate::sync::mutex::lock;
use crate::versions::missing_slice_error;

/// The most bytes of a file that wait to be hashed.
const MAX_WAITING_BYTES: usize = 32 << 20;

/// How a slice is written.
#[derive(Clone, Copy)]
pub(super) struct SliceOptions<'a> {
    pub(super) write_options: &'a WriteOptions,
    /// The number of threads that encode. Defaults to that of the processors.
    pub(super) threads: Option<usize>,
}

/// A slice that was published and is not in a block yet.
pub(super) struct UncommittedSlice {
    pub(super) slice: Slice,
    /// The latest event time, in microseconds.
    pub(super) latest_event_time_micros: Option<i64>,
}

/// Removes a slice that no block names. An error is logged only.
pub(super) async fn remove_slice(chain: &Chain, slice: &Slice) {
    let path = chain.data_path(&slice.physical_hash.to_string());
    if let Err(e) = chain.store().delete(&path).await {
        log::warn!("the slice {path}, which no block names, could not be removed: {e}");
    }
}

/// Writes rows as a slice whose first offset is `start`; None if there are no rows. `stats` must count the rows as
/// they pass.
pub(super) async fn write_slice(
    chain: &Chain,
    rows: Box<dyn RecordBatchReader + Send>,
    stats: Arc<Mutex<SliceStats>>,
    start: u64,
    options: SliceOptions<'_>,
) -> Result<Option<UncommittedSlice>> {
    let store = chain.store();
    let (options, threads) = (options.write_options, options.threads);
    let staging = Staging::new(store, None, options.memory_limit_bytes);
    let identity = PartIdentity::new(&**store.clock());
    let waiting_bytes = MAX_WAITING_BYTES.min(options.memory_limit_bytes / 16);
    let options = WriteOptions {
        rows_per_file: None,
        ..options.clone()
    };
    let mut write_plan = WritePlan::new(rows.schema(), options, identity)?;
    write_plan.keep_empty = false;
    write_plan.threads = threads.unwrap_or(write_plan.threads);
    // The bytes of the file are hashed beside the columns of the rows that come after.
    let file_hasher = SharedHasher::new(waiting_bytes);
    write_plan.upload_buffer_bytes = staging.memory_bytes() + 2 * waiting_bytes;
    lock(&stats).share_lanes(file_hasher.clone());
    let rows = call_at_end(rows, {
        let file_hasher = file_hasher.clone();
        move || file_hasher.finish_pending()
    });
    // The name is known only when the file is complete.
    let hidden = temp_path_in(store, &chain.path("data"), "slice");
    let hooks = FileHooks {
        hasher: Some(file_hasher),
        ..FileHooks::new(Box::new(move |_| hidden.clone()))
    };
    let files = stage(store, staging, write_plan, count_rows(rows, "write"), hooks).await?;
    let Some(file) = files.first() else {
        return Ok(None);
    };
    let final_stats = std::mem::take(&mut *lock(&stats));
    let (logical_hash, latest_event_time_micros, physical_hash) =
        match finish_hashes(file, final_stats).await {
            Ok(hashes) => hashes,
            Err(e) => {
                discard(store, std::slice::from_ref(&file.staged)).await;
                return Err(e);
            }
        };
    let target = chain.data_path(&physical_hash.to_string());
    publish_files(store, std::slice::from_ref(file), vec![target]).await?;
    let slice = Slice {
        logical_hash,
        physical_hash,
        start,
        end: start + file.stats.rows - 1,
        size: file.stats.bytes,
    };
    Ok(Some(UncommittedSlice {
        slice,
        latest_event_time_micros,
    }))
}

/// Returns the logical hash of a file, its latest event time in microseconds, and its physical hash.
async fn finish_hashes(
    file: &StagedFile,
    stats: SliceStats,
) -> Result<(Multihash, Option<i64>, Multihash)> {
    let (logical_hash, latest_event_time_micros) = run_blocking(move || stats.finish()).await?;
    let digest = file
        .sha3
        .ok_or_else(|| Error::other("internal error: the slice was not hashed"))?;
    let physical_hash = Multihash::new(SHA3_256, &digest);
    Ok((logical_hash, latest_event_time_micros, physical_hash))
}

/// Returns the rows, and calls `on_end` after the last of them.
fn call_at_end(
    rows: Box<dyn RecordBatchReader + Send>,
    on_end: impl FnOnce() + Send + 'static,
) -> Box<dyn RecordBatchReader + Send> {
    let schema = rows.schema();
    let mut on_end = Some(on_end);
    let ending = std::iter::from_fn(move || {
        if let Some(on_end) = on_end.take() {
            on_end();
        }
        None
    });
    Box::new(RecordBatchIterator::new(rows.chain(ending), schema))
}

/// Reads the columns of a slice from its file.
pub(super) async fn read_columns(chain: &Chain, slice: &Slice) -> Result<Schema> {
    let path = chain.data_path(&slice.physical_hash.to_string());
    let opened = open(chain.store(), &path, TAIL_BYTES).await;
    let part = opened.map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let error = Error::new(ErrorKind::PartCorrupted, "the slice is missing");
            error.with_path(&path).with_source(e)
        }
        _ => e,
    })?;
    let fields: Vec<_> = part.file.schema.fields().iter().cloned().collect();
    Ok(Schema::new(fields))
}

/// The files of a chain, by their paths in its folder.
#[derive(Debug)]
struct ChainFiles {
    chain: Chain,
}

impl FileSource for ChainFiles {
    type Listed = DataFile;

    fn entry(file: &DataFile) -> &DataFile {
        file
    }

    fn store(&self) -> &Store {
        self.chain.store()
    }

    fn path(&self, relative: &str) -> String {
        self.chain.path(relative)
    }

    fn share_of(&self, _: &str) -> Option<FileShare> {
        None
    }

    fn missing_object_error<'a>(&'a self, path: &'a str, error: Error) -> BoxFuture<'a, Error> {
        let error = match error.kind() {
            ErrorKind::NotFound => missing_slice_error(path, &self.chain.path(path), error),
            _ => error,
        };
        Box::pin(std::future::ready(error))
    }
}

/// Streams the rows of slices.
pub(super) async fn scan_slices(
    chain: &Chain,
    slices: &ExternalFiles,
    options: &ScanOptions,
) -> Result<BatchStream> {
    let source = ChainFiles {
        chain: chain.clone(),
    };
    let columns = slices.columns()?;
    let files = slices.entries(&columns.names_by_id());
    let mut scanner = FileScanner::from_source(source, columns, options.filter.clone(), None);
    scanner.files = scanner.select_files(files).await?;
    stream_all(scanner, options)
}

/// Describes the files of slices of one vocabulary, whose rows have these columns.
pub(super) fn slice_files(
    schema: &SchemaRef,
    vocabulary: &Vocabulary,
    slices: &[Slice],
) -> ExternalFiles {
    let files = slices.iter().map(|slice| slice_file(slice, vocabulary));
    ExternalFiles {
        schema: Arc::clone(schema),
        files: files.collect(),
    }
}

/// Describes the file of a slice. `vocabulary` is that of the block of the slice.
pub(super) fn slice_file(slice: &Slice, vocabulary: &Vocabulary) -> ExternalFile {
    ExternalFile {
        path: format!("data/{}", slice.physical_hash),
        size_bytes: slice.size,
        rows: slice.rows(),
        bounds: Some((vocabulary.offset.clone(), slice.start, slice.end)),
    }
}
