//! Writing runs, under names of their own.
//!
//! A `RunWriter` belongs to one plan. It names files after the version that the plan began with, so that a vacuum knows
//! the oldest writer of each, and remembers what it wrote: when the plan is not committed, or a run is merged into
//! another, the caller removes these files. Small runs are written at once; permits limit how many large ones are
//! encoded at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatchIterator;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::format::StoredRun;
use super::tables::TableShape;
use super::{Pipeline, names};
use crate::error::Result;
use crate::files::SortedBatches;
use crate::parquet::options::{MIN_MEMORY_LIMIT_BYTES, WriteOptions};
use crate::run::{RunOptions, write_run};
use crate::sync::mutex::lock;

/// A run with more bytes in memory than this is a large one.
const LARGE_RUN_BYTES: u64 = 1 << 20;

/// Writes the runs of one plan.
#[derive(Debug)]
pub(super) struct RunWriter {
    pipeline: Pipeline,
    /// The version in the names of the files.
    base_version: u64,
    options: RunOptions,
    /// A permit for each large run that may be written at the same time.
    large_runs: Semaphore,
    /// The files that it has written.
    written: Mutex<Vec<String>>,
    /// Those of them that the version will not name.
    temporary: Mutex<Vec<String>>,
}

/// A run that was written, and some of the keys in its first column, at about equal distances.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SampledRun {
    pub(super) run: StoredRun,
    pub(super) sample: Vec<Value>,
}

/// The sizes of runs; None for the defaults.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct RunSizes {
    /// The rows of a page.
    pub page_rows: Option<usize>,
    /// The most rows of a file.
    pub file_rows: Option<u64>,
}

impl RunWriter {
    /// About a quarter of `memory_bytes` is taken by each large run that is written, and no less than
    /// [`MIN_MEMORY_LIMIT_BYTES`].
    pub(super) fn new(
        pipeline: &Pipeline,
        base_version: u64,
        sizes: RunSizes,
        memory_bytes: usize,
    ) -> Result<Self> {
        let memory = (memory_bytes / 4).max(MIN_MEMORY_LIMIT_BYTES);
        let options = WriteOptions::new("zstd", None, None, None, i64::try_from(memory).ok())?;
        let mut options = RunOptions::new(options);
        options.page_rows = sizes.page_rows.unwrap_or(options.page_rows);
        options.file_rows = sizes.file_rows.unwrap_or(options.file_rows);
        Ok(Self {
            pipeline: pipeline.clone(),
            base_version,
            options,
            large_runs: Semaphore::new((memory_bytes / memory).max(1)),
            written: Mutex::default(),
            temporary: Mutex::default(),
        })
    }

    /// The process keeps small files: its next update looks up keys in them, or merges them with what it adds.
    pub(super) fn with_cached_files(mut self) -> Self {
        self.options.caches_small_files = true;
        self
    }

    /// Encodes by so many threads; None for one per processor.
    pub(super) fn with_threads(mut self, threads: Option<usize>) -> Self {
        self.options.threads = threads;
        self
    }

    /// Waits until a run of about `bytes` bytes may be written: a small one at once, of large ones as many as the
    /// memory is enough for. The permit is held until the run is written.
    pub(super) async fn acquire_permit(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        if bytes <= LARGE_RUN_BYTES {
            return None;
        }
        self.large_runs.acquire().await.ok()
    }

    /// The names, relative to the folder, of the files that were written since the last call.
    pub(super) fn take_written(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.written))
    }

    /// The names of those files that were set aside since the last call. They are not among the written ones any more.
    pub(super) fn take_temporary(&self) -> Vec<String> {
        let temporary = std::mem::take(&mut *lock(&self.temporary));
        let names: HashSet<&String> = temporary.iter().collect();
        lock(&self.written).retain(|name| !names.contains(name));
        temporary
    }

    /// Takes note that the version will not name a run.
    pub(super) fn set_aside(&self, run: &StoredRun) {
        lock(&self.temporary).extend(run.file_names());
    }

    /// Writes a run; None if there is no row.
    pub(super) async fn write(
        &self,
        rows: SortedBatches,
        shape: &TableShape,
        has_deletes: bool,
    ) -> Result<Option<SampledRun>> {
        let schema = if has_deletes {
            shape.schema_with_op()
        } else {
            Arc::clone(&shape.schema)
        };
        let (pipeline, base) = (self.pipeline.clone(), self.base_version);
        let new_name = move || {
            let name = names::run_file(base, pipeline.store().clock().new_id());
            let path = pipeline.path(&name);
            (name, path)
        };
        let input = Box::new(RecordBatchIterator::new(rows, schema));
        let store = self.pipeline.store();
        let written = write_run(store, input, &shape.order, &self.options, new_name).await?;
        let sample = written.sample.into_iter();
        let sample = sample.filter_map(|key| key.into_iter().next()).collect();
        let run = StoredRun {
            id: self.new_id(),
            has_deletes,
            files: written.run,
        };
        self.add_written(&run);
        Ok((!run.files.files.is_empty()).then_some(SampledRun { run, sample }))
    }

    /// The id of a run.
    pub(super) fn new_id(&self) -> String {
        format!("{:032x}", self.pipeline.store().clock().new_id())
    }

    /// Takes note of the files of a run, which a task may have written.
    pub(super) fn add_written(&self, run: &StoredRun) {
        lock(&self.written).extend(run.file_names());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::testing::{faulty_memory, test_store};

    #[test]
    fn as_many_large_runs_are_written_at_once_as_the_memory_is_enough_for() {
        let pipeline = Pipeline::new(test_store(&faulty_memory(), true), "p").unwrap();
        for (memory_mib, expected) in [(32_usize, 1), (64, 2), (100, 3), (256, 4), (4096, 4)] {
            let memory_bytes = memory_mib << 20;
            let writer = RunWriter::new(&pipeline, 0, RunSizes::default(), memory_bytes).unwrap();
            let acquire = |bytes| writer.acquire_permit(bytes).now_or_never();
            let mut permits: Vec<_> = (0..expected)
                .map(|_| acquire(LARGE_RUN_BYTES + 1).unwrap())
                .collect();
            assert!(permits.iter().all(Option::is_some));
            assert!(acquire(LARGE_RUN_BYTES + 1).is_none());
            assert!(acquire(LARGE_RUN_BYTES).is_some());
            drop(permits.pop());
            assert!(acquire(LARGE_RUN_BYTES + 1).is_some());
        }
    }
}
