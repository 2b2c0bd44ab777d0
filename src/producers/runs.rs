//! Writing runs, under names of their own.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatchIterator;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::format::StoredRun;
use super::tables::TableShape;
use super::{Pipeline, names};
use crate::error::Result;
use crate::files::SortedBatches;
use crate::parquet::options::{MIN_MEMORY_LIMIT_BYTES, WriteOptions};
use crate::run::{RunOptions, write_run};

/// Writes the runs of one plan.
#[derive(Debug)]
pub(super) struct RunWriter {
    pipeline: Pipeline,
    /// The version in the names of the files.
    base_version: u64,
    options: RunOptions,
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
    /// About a quarter of `memory_bytes` is taken by each run that is written.
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
            written: Mutex::default(),
            temporary: Mutex::default(),
        })
    }

    /// Encodes by so many threads; None for one per processor.
    pub(super) fn with_threads(mut self, threads: Option<usize>) -> Self {
        self.options.threads = threads;
        self
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

fn lock(names: &Mutex<Vec<String>>) -> MutexGuard<'_, Vec<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}
