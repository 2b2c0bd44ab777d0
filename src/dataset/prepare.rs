//! The first step of a write: encodes parts and stages them where no reader sees them.

use std::hash::{DefaultHasher, Hash, Hasher};

use arrow_array::RecordBatchReader;
use arrow_schema::Schema;

use super::intent::Intent;
use super::register::read_intent;
use super::{DatasetWrite, Layout, StagedPart, name_file_in_place};
use crate::error::Result;
use crate::files::{FileHooks, StagedFile, count_rows, discard, stage};
use crate::parquet::seal::PartIdentity;
use crate::parquet::writer::WritePlan;
use crate::store::stage::Staging;
use crate::store::staged_write::StagedWrite;
use crate::store::temp_name::TEMP_PREFIX;
use crate::store::temp_name::temp_path_in;
use crate::store::{Store, path};

/// One task of a write: a producer of parts.
#[derive(Debug, Clone, Copy)]
pub struct WriteTask {
    /// The number of the task, which orders the parts of different tasks.
    pub number: u64,
    /// Number of threads that encode.
    pub threads: usize,
    /// Whether the caller holds the whole input in memory.
    pub input_in_memory: bool,
    /// Whether an input without rows makes a part.
    pub keep_empty: bool,
    /// Whether another process publishes the parts.
    pub shared: bool,
}

/// Encodes `input` into staged parts. After an error nothing stays staged.
pub async fn prepare(
    store: &Store,
    write: &DatasetWrite,
    task: WriteTask,
    input: Box<dyn RecordBatchReader + Send>,
) -> Result<Vec<StagedPart>> {
    let tag = task.shared.then(|| write.shared_tag());
    let staging = Staging::new(store, tag, write.options.memory_limit_bytes);
    let plan = build_write_plan(write, task, &*input, staging.memory_bytes())?;
    let columns_hash = hash_columns(&input.schema());
    let (target_write, target_store) = (write.clone(), store.clone());
    let targets = Box::new(move |index| target_path(&target_store, &target_write, task, index));
    let (rows, hooks) = (count_rows(input, "write"), FileHooks::new(targets));
    let staged = stage(store, staging, plan, rows, hooks).await;
    let files = match staged {
        Ok(files) => files,
        Err(e) => return Err(name_file_in_place(store, &write.key, e).await),
    };
    let count = files.len() as u64;
    let sequenced_files = files.into_iter().zip(0..);
    let to_staged_part = |(file, sequence): (StagedFile, u64)| StagedPart {
        staged: file.staged,
        rows: file.stats.rows,
        bytes: file.stats.bytes,
        task: task.number,
        sequence,
        last: sequence + 1 == count,
        write_id: write.write_id,
        columns_hash,
    };
    Ok(sequenced_files.map(to_staged_part).collect())
}

fn hash_columns(schema: &Schema) -> u64 {
    let mut hasher = DefaultHasher::new();
    schema.fields().hash(&mut hasher);
    hasher.finish()
}

/// The final path of a part where it is known already, since an upload can become only what it was begun for; else a
/// hidden path.
fn target_path(store: &Store, write: &DatasetWrite, task: WriteTask, index: usize) -> String {
    let has_one_file_per_task = write.options.rows_per_file.is_none();
    let number = match (write.layout, task.shared) {
        (Layout::Single, _) | (Layout::Numbered, false) => Some(index),
        (Layout::Numbered, true) if has_one_file_per_task => usize::try_from(task.number).ok(),
        (Layout::Numbered, true) if task.number == 0 => Some(index),
        (Layout::Numbered, true) => None,
    };
    match number {
        Some(number) => path::join(&write.key, &write.layout.part_name(number)),
        None => temp_path_in(store, &write.key, &write.shared_tag()),
    }
}

fn build_write_plan(
    write: &DatasetWrite,
    task: WriteTask,
    input: &dyn RecordBatchReader,
    upload_buffer_bytes: usize,
) -> Result<WritePlan> {
    let identity = PartIdentity {
        write_id: write.write_id,
        created_at: write.created_at.clone(),
        task: task.number,
        sequence: 0,
        last: false,
    };
    let mut plan = WritePlan::new(input.schema(), write.options.clone(), identity)?;
    plan.threads = task.threads;
    plan.input_in_memory = task.input_in_memory;
    plan.keep_empty = task.keep_empty;
    plan.upload_buffer_bytes = upload_buffer_bytes;
    Ok(plan)
}

/// Removes the staged parts of a write that will not be published. Where an interrupted publish of the write may still
/// need them they stay, and the call that recovers it removes those it does not use. Failures are logged.
pub async fn abort(store: &Store, write: &DatasetWrite, parts: &[StagedPart]) {
    match has_intent(store, write).await {
        Ok(false) => discard_parts(store, parts).await,
        Ok(true) => log::info!(
            "the staged parts in {:?} stay: an interrupted publish of the write may need them",
            write.key
        ),
        Err(e) => log::warn!(
            "the staged parts in {:?} stay, since the intent could not be read: {e}",
            write.key
        ),
    }
}

/// Whether the folder's intent is the write's.
async fn has_intent(store: &Store, write: &DatasetWrite) -> Result<bool> {
    if !store.capabilities().conditional {
        return Ok(false);
    }
    let Some(stored) = read_intent(store, &write.key).await? else {
        return Ok(false);
    };
    let intent = Intent::parse(&write.key, &stored.bytes)?;
    Ok(intent.id == format!("{:032x}", write.write_id))
}

/// Removes staged parts, which no intent may name.
pub(super) async fn discard_parts(store: &Store, parts: &[StagedPart]) {
    let staged: Vec<StagedWrite> = parts.iter().map(|p| p.staged.clone()).collect();
    discard(store, &staged).await;
}

/// Removes the hidden objects of all tasks of a write, unless an interrupted publish of the write may need them.
/// Uncompleted uploads stay until a clean or the bucket's lifecycle rule aborts them.
pub async fn abort_all(store: &Store, write: &DatasetWrite) -> Result<()> {
    if has_intent(store, write).await? {
        return Ok(());
    }
    let prefix = format!("{TEMP_PREFIX}{}-", write.shared_tag());
    let folder = store.list_folder(&write.key).await?;
    let ours = folder.files.iter().filter(|meta| {
        let name = meta.location.filename();
        name.is_some_and(|name| name.starts_with(&prefix))
    });
    let paths: Vec<String> = ours.map(|meta| meta.location.to_string()).collect();
    store.delete_all(&paths).await
}
