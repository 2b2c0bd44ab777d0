//! Writing runs, under names of their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::RecordBatchIterator;

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
}

/// The sizes of runs; None for the defaults.
#[derive(Debug, Clone, Copy, Default)]
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
        })
    }

    /// The names, relative to the folder, of the files that were written since the last call.
    pub(super) fn take_written(&self) -> Vec<String> {
        std::mem::take(&mut *self.written())
    }

    fn written(&self) -> MutexGuard<'_, Vec<String>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a run; None if there is no row.
    pub(super) async fn write(
        &self,
        rows: SortedBatches,
        shape: &TableShape,
        has_deletes: bool,
    ) -> Result<Option<StoredRun>> {
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
        let files = write_run(store, input, &shape.order, &self.options, new_name).await?;
        self.written()
            .extend(files.files.iter().map(|file| file.name.clone()));
        let id = store.clock().new_id();
        Ok((!files.files.is_empty()).then(|| StoredRun {
            id: format!("{id:032x}"),
            has_deletes,
            files,
        }))
    }
}
