//! A stream of batches into data files, before a commit names them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use futures::{StreamExt, TryStreamExt, stream};

use super::actions::{Append, Overwrite};
use super::commit::{Committed, commit_onto};
use super::format::{DataFile, Manifest};
use super::group::commit_together;
use super::schema::TableColumns;
use super::statistics::Statistics;
use super::types::keeps_values;
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::options::WriteOptions;
use crate::parquet::seal::PartIdentity;
use crate::parquet::types::{batch_with_row_count, convert, storage_schema};
use crate::parquet::writer::WritePlan;
use crate::part::{StagedFile, discard, stage};
use crate::sort::sort_batches;
use crate::store::stage::{StagedWrite, Staging};

/// A snapshot read longer ago is read again before the first attempt.
const FRESH: Duration = Duration::from_secs(2);
/// Files made visible at once.
const CONCURRENT_FILES: usize = 16;
const MAX_KEY_BYTES: usize = 1024;

/// How rows are written.
#[derive(Debug, Clone)]
pub struct Upload {
    /// Codec, sizes, memory.
    pub options: WriteOptions,
    /// The caller holds the whole input in memory.
    pub resident: bool,
    /// They take the place of all others.
    pub overwrite: bool,
    /// A second write with the same key changes nothing.
    pub idempotency_key: Option<String>,
    /// How long the commit is tried.
    pub timeout: Duration,
    /// The identities of the columns that files are sorted by; None is the table's order.
    pub order: Option<Vec<u32>>,
}

/// Writes `input` to the newest snapshot; gives the commit and its files.
pub async fn write(
    table: &Table,
    input: Box<dyn RecordBatchReader + Send>,
    how: &Upload,
) -> Result<(Committed, Vec<DataFile>)> {
    let clock = table.store().clock();
    check_key(how.idempotency_key.as_deref())?;
    let newest = table.newest().await?;
    let (base, read_at) = (Arc::clone(&newest.manifest), clock.monotonic());
    let key = how.idempotency_key.clone();
    let known = key
        .as_ref()
        .is_some_and(|key| base.transactions.contains_key(key));
    let files = if known {
        Vec::new()
    } else {
        let input = conform(input, &TableColumns::from_manifest(&base)?.file_schema())?;
        upload(table, &base, input, how).await?
    };
    // After a long upload it is hardly the newest any more.
    let fresh = clock.monotonic() < read_at + FRESH;
    let newest = fresh.then_some(newest);
    let began_at = base.version;
    let (files_now, timeout) = (files.clone(), how.timeout);
    let done = if how.overwrite {
        let change = Overwrite {
            files: files_now,
            began_at,
            idempotency_key: key,
        };
        commit_onto(table, &change, newest, timeout).await
    } else {
        let append = Append {
            files: files_now,
            began_at,
            idempotency_key: key,
        };
        match &append.idempotency_key {
            Some(_) => commit_onto(table, &append, newest, timeout).await,
            None => commit_together(table, append, newest, timeout).await,
        }
    };
    // With the outcome unknown nothing is removed: that is for vacuum.
    let unused = match &done {
        Ok(done) => done.replayed,
        Err(e) => is_certain(e.kind()),
    };
    if unused {
        let named: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
        remove(table, &named).await;
    }
    done.map(|done| {
        let files = if done.replayed { Vec::new() } else { files };
        (done, files)
    })
}

/// Manifests hold it.
pub(super) fn check_key(key: Option<&str>) -> Result<()> {
    let bytes = key.map_or(1, str::len);
    if (1..=MAX_KEY_BYTES).contains(&bytes) {
        return Ok(());
    }
    let message = format!("an idempotency key has 1 to {MAX_KEY_BYTES} bytes, not {bytes}");
    Err(Error::invalid(message))
}

/// Whether an error of a commit says that nothing was committed, now and later, and the store can
/// be asked to remove what was uploaded for it.
pub(super) fn is_certain(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::CommitStateUnknown | ErrorKind::Unavailable | ErrorKind::Cancelled
    )
}

/// Encodes and uploads `input`, which has the columns of `base`, as files for it or a later snapshot.
/// After an error nothing is left.
pub(super) async fn upload(
    table: &Table,
    base: &Manifest,
    input: Box<dyn RecordBatchReader + Send>,
    how: &Upload,
) -> Result<Vec<DataFile>> {
    let columns = TableColumns::from_manifest(base)?;
    let store = table.store();
    let staging = Staging::new(store, None, how.options.memory_limit_bytes);
    let identity = PartIdentity {
        write_id: store.clock().new_id(),
        created_at: store.clock().now().to_rfc3339(),
        task: 0,
        sequence: 0,
        last: false,
    };
    let file_schema = columns.file_schema();
    let mut plan = WritePlan::new(file_schema, how.options.clone(), identity)?;
    let order = how.order.as_ref().unwrap_or(&base.sort_by);
    let input = if order.is_empty() {
        plan.input_in_memory = how.resident;
        input
    } else {
        let place = |id: &u32| columns.ids.iter().position(|known| known == id);
        let places: Vec<usize> = order.iter().filter_map(place).collect();
        sort_batches(input, &places, how.options.memory_limit_bytes / 2)?
    };
    plan.keep_empty = false;
    plan.upload_buffer_bytes = staging.memory_bytes();
    let named: Arc<Mutex<Vec<String>>> = Arc::default();
    let targets = {
        let (named, table, base) = (Arc::clone(&named), table.clone(), base.version);
        Box::new(move |_| {
            let clock = table.store().clock();
            let name = names::data_file(clock.now(), base, clock.new_id());
            let path = table.path(&name);
            named
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(name);
            path
        })
    };
    let files = stage(store, staging, plan, input, targets).await?;
    let named = std::mem::take(&mut *named.lock().unwrap_or_else(PoisonError::into_inner));
    show(table, &files, &named).await?;
    let stored = storage_schema(&columns.schema)?;
    let described = files.iter().zip(named);
    Ok(described
        .map(|(file, name)| describe(file, name, &stored, &columns.ids))
        .collect())
}

/// Gives the files their names.
async fn show(table: &Table, files: &[StagedFile], named: &[String]) -> Result<()> {
    let store = table.store();
    let shown = files.iter().zip(named).map(|(file, name)| async move {
        let path = table.path(name);
        file.staged.publish(store, &path).await
    });
    let shown = stream::iter(shown)
        .buffer_unordered(CONCURRENT_FILES)
        .try_collect::<()>();
    if let Err(error) = shown.await {
        let staged: Vec<StagedWrite> = files.iter().map(|f| f.staged.clone()).collect();
        discard(store, &staged).await;
        remove(table, named).await;
        return Err(error);
    }
    Ok(())
}

/// Removes files that no commit names or will name; what cannot be removed is for vacuum.
pub(super) async fn remove(table: &Table, named: &[String]) {
    let paths: Vec<String> = named.iter().map(|name| table.path(name)).collect();
    if let Err(e) = table.store().delete_all(&paths).await {
        log::warn!("data files of a write that failed could not be removed: {e}");
    }
}

fn describe(file: &StagedFile, path: String, stored: &SchemaRef, ids: &[u32]) -> DataFile {
    let stats = &file.stats;
    let bounds = Statistics::from_footer(&stats.footer, stored, ids);
    DataFile {
        path,
        size_bytes: stats.bytes,
        footer_size: stats.tail_bytes,
        row_group_count: stats.footer.num_row_groups() as u64,
        total_rows: stats.rows,
        min: bounds.min,
        max: bounds.max,
        null_counts: bounds.null_counts,
        columns: None,
    }
}

/// `input` with the columns of the table: by name, in their order, of their types; columns that are
/// not there are null. Refused are columns the table does not have, and types that could lose.
pub(crate) fn conform(
    input: Box<dyn RecordBatchReader + Send>,
    wanted: &SchemaRef,
) -> Result<Box<dyn RecordBatchReader + Send>> {
    let given = input.schema();
    let mut places = Vec::new();
    for field in given.fields() {
        if wanted.index_of(field.name()).is_err() {
            let names: Vec<&String> = wanted.fields().iter().map(|f| f.name()).collect();
            let message = format!(
                "column {:?} is not one of those there are, which are {names:?}; add it to the schema \
                 or leave it out",
                field.name()
            );
            return Err(Error::invalid(message));
        }
    }
    for field in wanted.fields() {
        let mut found = given.fields().iter().enumerate();
        let mut found = found
            .by_ref()
            .filter(|(_, f)| f.name() == field.name())
            .collect::<Vec<_>>();
        let place = found.pop();
        if !found.is_empty() {
            let message = format!("column {:?} occurs twice", field.name());
            return Err(Error::invalid(message));
        }
        match place {
            Some((place, found)) => {
                if !keeps_values(found.data_type(), field.data_type()) {
                    let message = format!(
                        "column {:?} is {} in the schema and {} in the data; cast it first",
                        field.name(),
                        field.data_type(),
                        found.data_type()
                    );
                    return Err(Error::invalid(message));
                }
                places.push(Some(place));
            }
            None if field.is_nullable() => places.push(None),
            None => {
                let message = format!("column {:?} is missing and cannot be null", field.name());
                return Err(Error::invalid(message));
            }
        }
    }
    let (schema, target) = (Arc::clone(wanted), Arc::clone(wanted));
    let batches = input.map(move |batch| {
        fit(&batch?, &places, &target).map_err(|e| ArrowError::ExternalError(Box::new(e)))
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

fn fit(batch: &RecordBatch, places: &[Option<usize>], schema: &SchemaRef) -> Result<RecordBatch> {
    let fields = schema.fields().iter().zip(places);
    let columns = fields.map(|(field, place)| {
        let Some(place) = place else {
            let nulls = arrow_array::new_null_array(field.data_type(), batch.num_rows());
            return Ok(nulls);
        };
        let column = batch
            .columns()
            .get(*place)
            .ok_or_else(|| Error::invalid("a batch does not have the columns of its schema"))?;
        if !field.is_nullable() && column.logical_null_count() > 0 {
            let message = format!("column {:?} holds a null and may not", field.name());
            return Err(Error::invalid(message));
        }
        convert(column, field.data_type(), field.name())
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    batch_with_row_count(schema, columns, batch.num_rows())
}
