//! Slices: the data files of a chain, named by the hash of their bytes.
//!
//! [`write_slice`] writes rows to a hidden file and publishes it under
//! its hash as an [`UncommittedSlice`], which a block may then name; [`remove_slice`] removes one that no block will
//! name. [`build_slice_snapshot`] makes slices readable as a snapshot of a table, [`read_columns`] reads the columns of
//! one; [`ErrorKind::PartCorrupted`] if it is missing.
//!
//! If publishing fails or is cancelled, the staged file is discarded, and the file that may have been published is removed.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::{Schema, SchemaRef};

use super::chain::Chain;
use super::event::Slice;
use super::multihash::{Multihash, SHA3_256};
use super::rows::SliceStats;
use super::vocabulary::Vocabulary;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{
    FileHooks, StagedFile, count_rows, discard, open, publish_files, run_blocking, stage,
};
use crate::parquet::file::TAIL_BYTES;
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::PartIdentity;
use crate::parquet::writer::WritePlan;
use crate::store::stage::Staging;
use crate::store::temp_name::temp_path_in;
use crate::sync::hash::SharedHasher;
use crate::sync::mutex::lock;
use crate::table::format::TableManifest;
use crate::table::{ExternalFile, Table, external_snapshot};

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

/// Returns slices as a snapshot of a table, which can be scanned.
pub(super) fn build_slice_snapshot(
    chain: &Chain,
    schema: &SchemaRef,
    vocabulary: &Vocabulary,
    slices: &[Slice],
) -> Result<(Table, TableManifest)> {
    let files = slices.iter().map(|slice| slice_file(slice, vocabulary));
    build_snapshot(chain, schema, files.collect())
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

/// Returns the files of slices as a snapshot of a table.
pub(super) fn build_snapshot(
    chain: &Chain,
    schema: &SchemaRef,
    files: Vec<ExternalFile>,
) -> Result<(Table, TableManifest)> {
    let table = Table::new(chain.store().clone(), chain.root())?;
    let manifest = external_snapshot(schema, files)?;
    Ok((table, manifest))
}
