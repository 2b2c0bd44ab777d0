//! Replaces rows in one commit: an upsert replaces the rows with the same key as a new row, an overwrite
//! with a predicate those that match it.
//!
//! The new rows are uploaded first; an upsert collects their keys ([`KeySet`]) on the way. Then
//! the rows to replace are searched in the newest snapshot and deleted by tombstones. If a concurrent
//! commit has added rows, they are searched again; nothing is uploaded again.
//!
//! Errors: [`ErrorKind::InvalidInput`] for input without the key columns, or with a row that does not
//! satisfy the predicate; those of [`super::commit`]. After an error that leaves the outcome unknown no
//! file is removed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};

use super::actions::{Delete, RowDelta};
use super::commit::{Committed, commit_onto};
use super::delete::{DeletePlan, plan_by_row, write_tombstones};
use super::format::{DataFile, TableManifest};
use super::keys::resolve_match_columns;
use super::outcome::{CommitError, CommitOutcome};
use super::snapshot::Table;
use super::snapshot_reader::SnapshotReader;
use super::write::{TableWriteOptions, align_to_schema, check_idempotency_key, remove, upload};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::files::expr::Filter;
use crate::files::expr::KeySet;
use crate::files::expr::Predicate;

/// Which rows are replaced.
#[derive(Debug, Clone)]
pub enum ReplaceTarget {
    /// The rows that have the values of a new row in these columns. Defaults to the table's key.
    MatchingKeys(Option<Vec<String>>),
    /// The rows that satisfy a predicate. Every new row must satisfy it, too.
    Predicate(Predicate),
}

type BoxedBatchReader = Box<dyn RecordBatchReader + Send>;

/// Writes `input` and deletes the rows of `target` in one commit. Returns the commit and the files that it
/// added.
pub async fn replace_rows(
    table: &Table,
    input: BoxedBatchReader,
    target: &ReplaceTarget,
    options: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let newest = table.newest().await?;
    let base = Arc::clone(&newest.manifest);
    let idempotency_key = options.idempotency_key.as_ref();
    if idempotency_key.is_some_and(|key| base.transactions.contains_key(key)) {
        let empty_delta = build_row_delta(target, options, &base, Vec::new());
        let committed = commit_onto(table, &empty_delta, Some(newest), options.timeout).await?;
        return Ok((committed, Vec::new()));
    }
    let columns = TableColumns::from_manifest(&base)?;
    let input_schema = input.schema();
    let aligned = align_to_schema(input, &columns.schema)?;
    let (checked_input, pending_deletes) = match target {
        ReplaceTarget::MatchingKeys(on) => {
            let key_columns = resolve_match_columns(on.as_deref(), &base, &columns)?;
            check_key_columns(&input_schema, &columns, &key_columns)?;
            collect_keys(aligned, &columns, &key_columns)?
        }
        ReplaceTarget::Predicate(predicate) => {
            let filter = predicate.bind(&columns, &**table.store().clock())?;
            let column_ids = filter.column_ids(&columns);
            (
                assert_predicate(aligned, filter),
                PendingDeletes::Predicate(predicate.clone(), column_ids),
            )
        }
    };
    let files = upload(table, &base, checked_input, options).await?;
    let mut row_delta = build_row_delta(target, options, &base, files.clone());
    let result = commit_row_delta(table, &mut row_delta, &pending_deletes, options.timeout).await;
    let unused = match &result {
        Ok(committed) => committed.replayed,
        Err(e) => e.allows_removal(),
    };
    if unused {
        let paths: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
        remove(table, &paths).await;
    }
    let committed = result?;
    let files = if committed.replayed {
        Vec::new()
    } else {
        files
    };
    Ok((committed, files))
}

fn build_row_delta(
    target: &ReplaceTarget,
    options: &TableWriteOptions,
    base: &TableManifest,
    added: Vec<DataFile>,
) -> RowDelta {
    let (operation, filter) = match target {
        ReplaceTarget::MatchingKeys(_) => ("upsert", String::new()),
        ReplaceTarget::Predicate(predicate) => ("overwrite", predicate.to_string()),
    };
    RowDelta {
        operation,
        deletes: Delete {
            filter,
            tombstones: None,
            scanned_files: Vec::new(),
            removed: Vec::new(),
            base_tombstones: base.tombstone_paths(),
            rows: Some(0),
            base_version: base.version,
        },
        added,
        is_derived: false,
        counts: Vec::new(),
        base_version: base.version,
        idempotency_key: options.idempotency_key.clone(),
    }
}

/// Refuses input without a key column.
fn check_key_columns(
    input_schema: &Schema,
    columns: &TableColumns,
    key_columns: &[usize],
) -> Result<()> {
    let mut names = key_columns
        .iter()
        .map(|column| columns.schema.field(*column).name());
    match names.find(|name| input_schema.index_of(name).is_err()) {
        None => Ok(()),
        Some(name) => {
            let message =
                format!("missing key column {name:?} in the data; rows are matched by it");
            Err(Error::invalid(message))
        }
    }
}

/// How the rows to delete are identified once the new rows are uploaded.
enum PendingDeletes {
    /// The keys of the new rows, complete when the stream has ended.
    Keys(Arc<Mutex<Option<KeySet>>>),
    /// The predicate, and the identities by name of its columns when the new rows were checked.
    Predicate(Predicate, BTreeMap<String, u32>),
}

/// Returns the stream, and the set to which its keys are added while it is read.
fn collect_keys(
    input: BoxedBatchReader,
    columns: &TableColumns,
    key_columns: &[usize],
) -> Result<(BoxedBatchReader, PendingDeletes)> {
    let keys = Arc::new(Mutex::new(Some(KeySet::new(columns, key_columns)?)));
    let (shared_keys, key_columns) = (Arc::clone(&keys), key_columns.to_vec());
    let add_keys = move |batch: &RecordBatch| {
        let key_arrays: Vec<_> = key_columns
            .iter()
            .map(|p| Arc::clone(batch.column(*p)))
            .collect();
        let mut guard = shared_keys.lock().unwrap_or_else(PoisonError::into_inner);
        guard
            .as_mut()
            .map_or(Ok(()), |key_set| key_set.add(&key_arrays))
    };
    Ok((inspect_batches(input, add_keys), PendingDeletes::Keys(keys)))
}

/// Returns the stream, which fails at a batch with a row that does not satisfy the filter.
fn assert_predicate(input: BoxedBatchReader, filter: Filter) -> BoxedBatchReader {
    inspect_batches(input, move |batch| {
        let columns = filter
            .columns()
            .iter()
            .map(|p| Arc::clone(batch.column(*p)));
        let mask = filter.evaluate(columns.collect(), batch.num_rows())?;
        if mask.true_count() == batch.num_rows() {
            return Ok(());
        }
        Err(Error::invalid(
            "an input row does not satisfy the overwrite predicate (where)",
        ))
    })
}

fn inspect_batches(
    input: BoxedBatchReader,
    mut check: impl FnMut(&RecordBatch) -> Result<()> + Send + 'static,
) -> BoxedBatchReader {
    let schema = input.schema();
    let batches = input.map(move |batch| {
        let batch = batch?;
        check(&batch).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        Ok(batch)
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// Finds the rows to delete and commits; repeats both while concurrent commits add rows.
async fn commit_row_delta(
    table: &Table,
    row_delta: &mut RowDelta,
    pending_deletes: &PendingDeletes,
    timeout: Duration,
) -> CommitOutcome<Committed> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + timeout;
    let collected_keys = match pending_deletes {
        PendingDeletes::Keys(keys) => keys.lock().unwrap_or_else(PoisonError::into_inner).take(),
        PendingDeletes::Predicate(..) => None,
    };
    let keys = collected_keys.map(Arc::new);
    loop {
        let newest = table.newest().await.map_err(CommitError::NotCommitted)?;
        let manifest = Arc::clone(&newest.manifest);
        let planned = plan_deletes(table, &manifest, pending_deletes, keys.as_ref()).await;
        let deletes = match planned {
            // A vacuum has removed this snapshot since it was read.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            deletes => deletes.map_err(CommitError::NotCommitted)?,
        };
        let written = write_tombstones(table, &newest, &deletes).await;
        row_delta.deletes.tombstones = written.map_err(CommitError::NotCommitted)?;
        row_delta.deletes.scanned_files = deletes.scanned_files;
        row_delta.deletes.removed = deletes.removed;
        row_delta.deletes.base_tombstones = manifest.tombstone_paths();
        row_delta.deletes.rows = deletes.rows;
        row_delta.deletes.base_version = manifest.version;
        let remaining = deadline.saturating_sub(clock.monotonic());
        let result = commit_onto(table, &*row_delta, Some(newest), remaining).await;
        let is_unused = match &result {
            Ok(committed) => committed.replayed,
            Err(e) => e.allows_removal(),
        };
        if let Some(tombstones) = row_delta.deletes.tombstones.take_if(|_| is_unused) {
            remove(table, &[tombstones.path]).await;
        }
        let error = match result {
            Ok(committed) => return Ok(committed),
            Err(e) => e,
        };
        // Not a TransactionExpired: a new plan would use the same files.
        let is_retryable =
            matches!(&error, CommitError::NotCommitted(e) if e.kind() == ErrorKind::CommitConflict);
        if !is_retryable || clock.monotonic() >= deadline {
            return Err(error);
        }
    }
}

/// The filter of the rows to delete, bound to the columns of a snapshot; None without keys.
fn bind_deletes(
    pending_deletes: &PendingDeletes,
    keys: Option<&Arc<KeySet>>,
    columns: &TableColumns,
    clock: &dyn Clock,
) -> Result<Option<Filter>> {
    match (pending_deletes, keys) {
        (PendingDeletes::Predicate(predicate, column_ids), _) => {
            let filter = predicate.bind(columns, clock)?;
            if filter.column_ids(columns) != *column_ids {
                let message = format!(
                    "a concurrent commit gave a column name in {predicate} to another column; write again"
                );
                return Err(Error::new(ErrorKind::CommitConflict, message));
            }
            Ok(Some(filter))
        }
        (PendingDeletes::Keys(_), Some(keys)) if !keys.is_empty() => {
            Filter::from_keys(Arc::clone(keys), columns).map(Some)
        }
        _ => Ok(None),
    }
}

async fn plan_deletes(
    table: &Table,
    manifest: &Arc<TableManifest>,
    pending_deletes: &PendingDeletes,
    keys: Option<&Arc<KeySet>>,
) -> Result<DeletePlan> {
    let columns = TableColumns::from_manifest(manifest)?;
    let clock = &**table.store().clock();
    let Some(filter) = bind_deletes(pending_deletes, keys, &columns, clock)? else {
        return Ok(DeletePlan::default());
    };
    let reader = SnapshotReader::new(table, Arc::clone(manifest), Some(Arc::new(filter))).await?;
    plan_by_row(&reader).await
}
