//! Rows for other rows in one commit: those with the same key, or those for which a predicate holds.
//!
//! The new rows are uploaded first. Then the rows that go are looked for in the newest snapshot; if
//! others have brought rows meanwhile, they are looked for again, and nothing is uploaded again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};

use super::actions::{Delete, RowDelta};
use super::commit::{Committed, commit_onto, is_retryable_conflict};
use super::delete::{DeletePlan, plan_by_row, write_tombstones};
use super::filter::Filter;
use super::format::{DataFile, TableManifest};
use super::keys::{KeySet, resolve_match_columns};
use super::predicate::Predicate;
use super::schema::TableColumns;
use super::snapshot::Table;
use super::snapshot_reader::SnapshotReader;
use super::write::{
    TableWriteOptions, align_to_schema, check_idempotency_key, is_definite_failure, remove, upload,
};
use crate::error::{Error, ErrorKind, Result};

/// Which rows go.
#[derive(Debug, Clone)]
pub enum Instead {
    /// Those that have, in these columns, the values of a new row. None is the table's key.
    Of(Option<Vec<String>>),
    /// Those for which a predicate holds, as it must for the new ones.
    Where(Predicate),
}

type Batches = Box<dyn RecordBatchReader + Send>;

/// Writes rows in the place of others.
pub async fn exchange(
    table: &Table,
    input: Batches,
    instead: &Instead,
    how: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    check_idempotency_key(how.idempotency_key.as_deref())?;
    let newest = table.newest().await?;
    let base = Arc::clone(&newest.manifest);
    let known = how.idempotency_key.as_ref();
    if known.is_some_and(|key| base.transactions.contains_key(key)) {
        let nothing = change(instead, how, &base, Vec::new());
        let done = commit_onto(table, &nothing, Some(newest), how.timeout).await?;
        return Ok((done, Vec::new()));
    }
    let columns = TableColumns::from_manifest(&base)?;
    let given = input.schema();
    let input = align_to_schema(input, &columns.file_schema())?;
    let (input, going) = match instead {
        Instead::Of(on) => {
            let places = resolve_match_columns(on.as_deref(), &base, &columns)?;
            check_given(&given, &columns, &places)?;
            watched(input, &columns, &places)?
        }
        Instead::Where(meant) => {
            let filter = meant.bind(&columns, &**table.store().clock())?;
            (checked(input, filter), Going::Where(meant.clone()))
        }
    };
    let files = upload(table, &base, input, how).await?;
    let mut change = change(instead, how, &base, files.clone());
    let mut open = false;
    let done = carry_out(table, &mut change, &going, how.timeout, &mut open).await;
    let unused = done.as_ref().map_or(!open, |done| done.replayed);
    if unused {
        let named: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
        remove(table, &named).await;
    }
    done.map(|done| {
        let files = if done.replayed { Vec::new() } else { files };
        (done, files)
    })
}

fn change(
    instead: &Instead,
    how: &TableWriteOptions,
    base: &TableManifest,
    added: Vec<DataFile>,
) -> RowDelta {
    let (operation, filter) = match instead {
        Instead::Of(_) => ("upsert", String::new()),
        Instead::Where(meant) => ("overwrite", meant.to_string()),
    };
    RowDelta {
        operation,
        deletes: Delete {
            filter,
            tombstones: None,
            scanned_files: Vec::new(),
            removed: Vec::new(),
            rows: Some(0),
            base_version: base.version,
        },
        added,
        base_tombstones: None,
        counts: Vec::new(),
        base_version: base.version,
        idempotency_key: how.idempotency_key.clone(),
    }
}

/// Refuses data without the columns that rows are matched by.
fn check_given(given: &Schema, columns: &TableColumns, places: &[usize]) -> Result<()> {
    let mut names = places
        .iter()
        .map(|place| columns.schema.field(*place).name());
    match names.find(|name| given.index_of(name).is_err()) {
        None => Ok(()),
        Some(name) => {
            let message = format!("the data has no column {name:?}, and rows are matched by it");
            Err(Error::invalid(message))
        }
    }
}

/// What is known of the rows that go once the new ones are uploaded.
enum Going {
    Keys(Arc<Mutex<Option<KeySet>>>),
    Where(Predicate),
}

/// The stream, and the keys that will have gone by in it.
fn watched(input: Batches, columns: &TableColumns, places: &[usize]) -> Result<(Batches, Going)> {
    let keys = Arc::new(Mutex::new(Some(KeySet::new(columns, places)?)));
    let (seen, places) = (Arc::clone(&keys), places.to_vec());
    let note = move |batch: &RecordBatch| {
        let columns: Vec<_> = places
            .iter()
            .map(|p| Arc::clone(batch.column(*p)))
            .collect();
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_mut().map_or(Ok(()), |seen| seen.add(&columns))
    };
    Ok((with_check(input, note), Going::Keys(keys)))
}

/// The stream, which ends with an error at a row for which the filter does not hold.
fn checked(input: Batches, filter: Filter) -> Batches {
    with_check(input, move |batch| {
        let columns = filter
            .columns()
            .iter()
            .map(|p| Arc::clone(batch.column(*p)));
        let holds = filter.evaluate(columns.collect(), batch.num_rows())?;
        if holds.true_count() == batch.num_rows() {
            return Ok(());
        }
        let message = "a row is not among those that are overwritten: where does not hold for it";
        Err(Error::invalid(message))
    })
}

fn with_check(
    input: Batches,
    mut check: impl FnMut(&RecordBatch) -> Result<()> + Send + 'static,
) -> Batches {
    let schema = input.schema();
    let batches = input.map(move |batch| {
        let batch = batch?;
        check(&batch).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        Ok(batch)
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}

/// Finds the rows that go and commits, again while others bring rows. `open` says after an error
/// whether it may be committed all the same.
async fn carry_out(
    table: &Table,
    change: &mut RowDelta,
    going: &Going,
    timeout: Duration,
    open: &mut bool,
) -> Result<Committed> {
    let clock = table.store().clock();
    let deadline = clock.monotonic() + timeout;
    let keys = match going {
        Going::Keys(keys) => keys.lock().unwrap_or_else(PoisonError::into_inner).take(),
        Going::Where(_) => None,
    };
    let keys = keys.map(Arc::new);
    loop {
        let newest = table.newest().await?;
        let manifest = Arc::clone(&newest.manifest);
        let columns = TableColumns::from_manifest(&manifest)?;
        let filter = match (going, &keys) {
            (Going::Where(meant), _) => Some(meant.bind(&columns, &**clock)?),
            (Going::Keys(_), Some(keys)) if !keys.is_empty() => {
                Some(Filter::from_keys(Arc::clone(keys), &columns)?)
            }
            _ => None,
        };
        let found = match filter {
            Some(filter) => look(table, &manifest, filter).await,
            None => Ok(DeletePlan::default()),
        };
        let found = match found {
            // What was the newest has been vacuumed meanwhile.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            found => found?,
        };
        change.deletes.tombstones = write_tombstones(table, &newest, &found).await?;
        change.deletes.scanned_files = found.scanned_files;
        change.deletes.removed = found.removed;
        change.deletes.rows = found.rows;
        change.deletes.base_version = manifest.version;
        let left = deadline.saturating_sub(clock.monotonic());
        let done = commit_onto(table, &*change, Some(newest), left).await;
        *open = done.as_ref().is_err_and(|e| !is_definite_failure(e.kind()));
        let in_vain = !*open && done.as_ref().map_or(true, |done| done.replayed);
        if let Some(written) = change.deletes.tombstones.take_if(|_| in_vain) {
            remove(table, &[written.path]).await;
        }
        let error = match done {
            Ok(done) => return Ok(done),
            Err(e) => e,
        };
        let again =
            is_retryable_conflict(error.kind()) && error.kind() != ErrorKind::TransactionExpired;
        if !again || clock.monotonic() >= deadline {
            return Err(error);
        }
    }
}

async fn look(table: &Table, manifest: &Arc<TableManifest>, filter: Filter) -> Result<DeletePlan> {
    let rows = SnapshotReader::new(table, Arc::clone(manifest), Some(Arc::new(filter))).await?;
    plan_by_row(&rows).await
}
