//! Writing: aligns a stream of batches to the table's schema, uploads it as data files and commits them.
//!
//! [`write()`] appends or overwrites; upserts, merges and compactions use [`upload`]. Columns are matched by name, and
//! what does not fit the table is refused, as [`align_to_schema`] says. Names are those of the columns that the caller has
//! read ([`super::opened_columns`]).
//!
//! No commit names the files before they are complete. If nothing was committed for certain
//! ([`crate::versions::Committed`]) the files are removed; if the outcome is unknown they stay for a vacuum.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{RecordBatchIterator, RecordBatchReader};
use arrow_schema::{DataType, Field, FieldRef, SchemaRef};

use super::actions::{Append, AppendWithColumns, NewColumns, Overwrite};
use super::format::{DataFile, FileChecksum, TableManifest};
use super::opened_columns::OpenedColumns;
use super::spark_fields::describe_stored;
use super::{Committed, Snapshot, Staged, Table, names};
use crate::error::{Error, Result};
use crate::files::expr::Statistics;
use crate::files::{
    FileName, SortColumn, TableColumns, WrittenFile, align_to_schema, count_rows, sort_batches,
    write_files,
};
use crate::parquet::nested::contains_type;
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::PartIdentity;
use crate::parquet::writer::WritePlan;
use crate::store::stage::Staging;
use crate::sync::in_place::in_place;
use crate::versions::commit::commit_written;
use crate::versions::{
    Ancestor, Change, CommitError, CommitOutcome, OnVersion, RequiredVersion,
    check_idempotency_key, check_required_version, commit_batched, find_replay,
};

/// After this time the snapshot that was read before the upload is read again for the commit.
const MAX_SNAPSHOT_AGE: Duration = Duration::from_secs(2);

/// The options of a write to a table.
#[derive(Debug, Clone)]
pub struct TableWriteOptions {
    /// The options of the Parquet files: codec, sizes, memory limit.
    pub write_options: WriteOptions,
    /// The caller holds the whole input in memory.
    pub input_in_memory: bool,
    /// The rows replace all rows of the table instead of being appended.
    pub overwrite: bool,
    /// A second write with the same key changes nothing; 1 to 1024 bytes.
    pub idempotency_key: Option<String>,
    /// The version that has to be the newest when the write is committed; None for any.
    pub if_version: Option<RequiredVersion>,
    /// Columns that the table does not have are added to it, as nullable ones, by an append.
    pub merge_schema: bool,
    /// For how long the commit is retried.
    pub timeout: Duration,
    /// The ids of the columns that files are sorted by. Defaults to the table's sort order.
    pub sort_by: Option<Vec<u32>>,
    /// The number of threads that encode. Defaults to that of the processors.
    pub threads: Option<usize>,
    /// The columns that the caller has read, by whose names those of the rows, of a key and of a filter are found.
    pub opened: OpenedColumns,
}

/// Writes `input` to the newest snapshot. Returns the commit and the files that it added.
pub async fn write(
    table: &Table,
    input: Box<dyn RecordBatchReader + Send>,
    options: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    let clock = table.store().clock();
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let lookup = find_replay(table, options.idempotency_key.as_deref());
    let (snapshot, replay) = in_place(lookup).await?;
    if let Some(committed) = replay {
        return Ok((committed, Vec::new()));
    }
    let read_at = clock.monotonic();
    check_required_version(table, options.if_version.as_ref(), &*snapshot.manifest)?;
    let mut base = find_base(table, &snapshot, &input.schema(), options).await?;
    let (mut input, mut new_columns) = (input, None);
    if options.merge_schema {
        input = without_untyped(input, &TableColumns::from_manifest(&base)?.schema)?;
        new_columns = NewColumns::find(&input.schema(), &base)?;
    }
    if let Some(columns) = &new_columns {
        base = Arc::clone(&columns.draft);
    }
    let aligned = align_to_schema(input, &TableColumns::from_manifest(&base)?.schema)?;
    let files = upload(table, &base, aligned, options).await?;
    let mut staged = Staged::new(table);
    staged.add(files.iter().map(|f| f.path.clone()));
    staged.remove_on_drop();
    // After a long upload the snapshot is hardly the newest any more.
    let is_fresh = clock.monotonic() < read_at + MAX_SNAPSHOT_AGE;
    let current = if is_fresh {
        Ok(snapshot)
    } else {
        Box::pin(newest_after(table, &base)).await
    };
    let current = match current {
        Ok(current) => current,
        Err(e) => {
            let error = CommitError::NotCommitted(e);
            staged.end(&error).await;
            return Err(error.into());
        }
    };
    let versions = (base.version, current);
    let committed = commit_files(table, (&files, staged), versions, new_columns, options).await?;
    let added = if committed.replayed {
        Vec::new()
    } else {
        files
    };
    Ok((committed, added))
}

/// The snapshot with the names by which the caller knows its columns. Refuses rows with columns that it has not any more.
async fn find_base(
    table: &Table,
    snapshot: &Snapshot,
    rows: &SchemaRef,
    options: &TableWriteOptions,
) -> Result<Arc<TableManifest>> {
    let mut opened = options.opened.clone();
    let base = opened.rename(table, &snapshot.manifest).await?;
    let names = rows.fields().iter().map(|field| field.name());
    opened.check_names(names, &base, &snapshot.manifest)?;
    Ok(base)
}

/// The newest snapshot, which has to descend from `base`: days may lie between them.
async fn newest_after(table: &Table, base: &TableManifest) -> Result<Snapshot> {
    let newest = table.newest().await?;
    let begun = Ancestor::of(base);
    begun.check_descends(table, &*newest.manifest).await?;
    Ok(newest)
}

/// Commits uploaded files, written for the columns of `base_version` and `new_columns`. The snapshot is that of this
/// version or of a later one. The files, which are staged, are removed if no commit names them.
async fn commit_files(
    table: &Table,
    (files, staged): (&[DataFile], Staged),
    (base_version, snapshot): (u64, Snapshot),
    new_columns: Option<NewColumns>,
    options: &TableWriteOptions,
) -> CommitOutcome<Committed> {
    let ancestor = Ancestor::of(&*snapshot.manifest);
    let commit_change = async |change: &dyn Change<TableManifest>, staged, snapshot, ancestor| {
        let version = options.if_version.as_ref();
        let change = OnVersion {
            change,
            version,
            ancestor,
        };
        commit_written(table, &change, staged, Some(snapshot), options.timeout).await
    };
    let (files, idempotency_key) = (files.to_vec(), options.idempotency_key.clone());
    if options.overwrite {
        let change = Overwrite {
            files,
            base_version,
            idempotency_key,
        };
        return commit_change(&change, staged, snapshot, ancestor).await;
    }
    let append = Append {
        files,
        base_version,
        idempotency_key,
    };
    let is_alone = append.idempotency_key.is_some() || options.if_version.is_some();
    match new_columns {
        Some(columns) => {
            let change = AppendWithColumns { append, columns };
            commit_change(&change, staged, snapshot, ancestor).await
        }
        None if is_alone => commit_change(&append, staged, snapshot, ancestor).await,
        None => {
            let (change, timeout) = ((append, ancestor), options.timeout);
            commit_batched(table, change, staged, Some(snapshot), timeout).await
        }
    }
}

/// Leaves out columns that are not in `schema` and have the type null: they say nothing of the type that a later stream
/// may have.
fn without_untyped(
    input: Box<dyn RecordBatchReader + Send>,
    schema: &SchemaRef,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let input_schema = input.schema();
    let is_new = |field: &FieldRef| schema.index_of(field.name()).is_err();
    let is_kept = |field: &FieldRef| *field.data_type() != DataType::Null || !is_new(field);
    let kept_fields = input_schema.fields().iter().filter(|field| is_kept(field));
    for field in kept_fields.filter(|field| is_new(field)) {
        check_typed(field)?;
    }
    let numbered = input_schema.fields().iter().enumerate();
    let kept: Vec<usize> = numbered
        .filter(|(_, field)| is_kept(field))
        .map(|(index, _)| index)
        .collect();
    if kept.len() == input_schema.fields().len() {
        return Ok(input);
    }
    let projected = input_schema.project(&kept);
    let projected = projected.map_err(Error::from_cause)?;
    let batches = input.map(move |batch| batch?.project(&kept));
    Ok(Box::new(RecordBatchIterator::new(
        batches,
        Arc::new(projected),
    )))
}

/// Refuses a new column with values whose type is not known.
pub(super) fn check_typed(field: &Field) -> Result<()> {
    if !contains_type(field.data_type(), DataType::is_null) {
        return Ok(());
    }
    let message = format!(
        "the new column {:?} is of type {}, of which the type of some values is not known; cast it",
        field.name(),
        field.data_type()
    );
    Err(Error::invalid(message))
}

/// Encodes `input`, which has the columns of `base`, and uploads it as data files. After an error it
/// removes the files that it uploaded.
pub(super) async fn upload(
    table: &Table,
    base: &TableManifest,
    input: Box<dyn RecordBatchReader + Send>,
    options: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    let columns = TableColumns::from_manifest(base)?;
    let store = table.store();
    let staging = Staging::new(store, None, options.write_options.memory_limit_bytes);
    let identity = PartIdentity::new(&**store.clock());
    let schemas = columns.file_schemas()?;
    let described = describe_stored(&schemas.arrow, &base.schema);
    let mut plan = WritePlan::new(described, options.write_options.clone(), identity)?
        .with_parquet_fields(schemas.parquet)?;
    let sort_by = options.sort_by.as_ref().unwrap_or(&base.sort_by);
    let sorted_input = if sort_by.is_empty() {
        plan.input_in_memory = options.input_in_memory;
        input
    } else {
        let column_index = |id: &u32| columns.ids.iter().position(|column_id| column_id == id);
        let indices = sort_by.iter().filter_map(column_index);
        let sort_columns: Vec<SortColumn> = indices.map(SortColumn::of_table).collect();
        sort_batches(
            input,
            &sort_columns,
            options.write_options.memory_limit_bytes / 2,
        )?
    };
    plan.keep_empty = false;
    plan.threads = options.threads.unwrap_or(plan.threads);
    plan.upload_buffer_bytes = staging.memory_bytes();
    let new_name = {
        let (table, base) = (table.clone(), base.version);
        move || {
            let clock = table.store().clock();
            let name = names::data_file(clock.now(), base, clock.new_id());
            let path = table.path(&name);
            FileName { name, path }
        }
    };
    let phase = if sort_by.is_empty() { "write" } else { "sort" };
    let counted_input = count_rows(sorted_input, phase);
    let files = write_files(store, staging, plan, counted_input, new_name).await?;
    let data_files = files
        .into_iter()
        .map(|file| build_data_file(file, &schemas.storage, &columns.ids));
    Ok(data_files.collect())
}

fn build_data_file(file: WrittenFile, stored_schema: &SchemaRef, ids: &[u32]) -> DataFile {
    let WrittenFile { name, stats, .. } = file;
    let bounds = Statistics::from_footer(&stats.footer, stored_schema, ids);
    DataFile {
        path: name.name,
        size_bytes: stats.bytes,
        footer_size: stats.tail_bytes,
        row_group_count: stats.footer.num_row_groups() as u64,
        total_rows: stats.rows,
        min: bounds.min,
        max: bounds.max,
        null_counts: bounds.null_counts,
        columns: None,
        constants: BTreeMap::new(),
        checksum: Some(FileChecksum(stats.checksum)),
    }
}
