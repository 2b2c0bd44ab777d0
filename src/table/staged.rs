//! Writes of which many processes stage the rows and one commits them.
//!
//! A process that has a [`writer_task`] writes rows as data files that no version names ([`stage`]), and sends a list
//! of them to the one that commits the lists it chooses as one version ([`commit_staged`]). What is never committed is
//! removed by a vacuum, or by [`discard_staged`]: a commit removes none, because the same lists may have been committed
//! before, with an outcome that the caller does not know.

use std::sync::Arc;

use arrow_array::RecordBatchReader;
use arrow_schema::Schema;

use super::actions::{Append, AppendWithColumns, NewColumns, Overwrite};
use super::format::{DataFile, TableManifest};
use super::packed_task::pack;
use super::scan_tasks::without_files;
use super::upsert::{ReplacedRows, assert_predicate, replace_with_files};
use super::write::{check_typed, upload};
use super::{Committed, Predicate, Snapshot, Table, TableColumns, TableWriteOptions};
use crate::error::{Error, Result};
use crate::files::align_to_schema;
use crate::versions::commit::commit_onto;
use crate::versions::{
    Ancestor, Change, OnVersion, check_idempotency_key, check_required_version, find_replay, remove,
};

/// What a process needs to stage rows: a scan task without files.
pub fn writer_task(manifest: &TableManifest) -> Result<Vec<u8>> {
    pack(&without_files(manifest))
}

/// As [`writer_task`], to stage rows with columns that the task's version does not have. With [`commit_staged`] they
/// are added to the table, as nullable ones, together with the rows.
pub fn writer_task_with_columns(task: &TableManifest, rows: &Schema) -> Result<Vec<u8>> {
    let known = TableColumns::from_manifest(task)?.schema;
    for field in rows.fields() {
        if known.index_of(field.name()).is_err() {
            check_typed(field)?;
        }
    }
    match NewColumns::find(rows, task)? {
        None => writer_task(task),
        Some(columns) => writer_task(&columns.draft),
    }
}

/// The newest snapshot, from which [`writer_task`] is made, and the commit with the idempotency key if there is one.
/// Refuses a predicate that is not deterministic, because each process evaluates it again.
pub async fn begin_staged(
    table: &Table,
    predicate: Option<&Predicate>,
    options: &TableWriteOptions,
) -> Result<(Snapshot, Option<Committed>)> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let (newest, replay) = find_replay(table, options.idempotency_key.as_deref()).await?;
    if replay.is_none() {
        check_required_version(table, options.if_version.as_ref(), &*newest.manifest)?;
        if let Some(predicate) = predicate {
            let mut opened = options.opened.clone();
            let named = opened.rename(table, &newest.manifest).await?;
            opened.bind_filter(predicate, &named, &**table.store().clock())?;
            predicate.check_deterministic(&TableColumns::from_manifest(&named)?)?;
        }
    }
    Ok((newest, replay))
}

/// Writes `input` as data files for the columns and the sort order of `base`. Every row has to satisfy the predicate.
/// After an error it removes the files. [`crate::ErrorKind::TransactionExpired`] if `base` is not there any more, or
/// not for this process.
pub async fn stage(
    table: &Table,
    base: &TableManifest,
    input: Box<dyn RecordBatchReader + Send>,
    predicate: Option<&Predicate>,
    options: &TableWriteOptions,
) -> Result<Vec<DataFile>> {
    let columns = TableColumns::from_manifest(base)?;
    let mut rows = align_to_schema(input, &columns.schema)?;
    if let Some(predicate) = predicate {
        let filter = predicate.bind(&columns, &**table.store().clock())?;
        rows = assert_predicate(rows, Arc::new(filter));
    }
    Ancestor::of(base).check_exists(table).await?;
    upload(table, base, rows, options).await
}

/// Commits files that were staged for `base`, in this order; with a predicate in the place of the rows that satisfy it,
/// which tasks may have found. An append adds the columns of `base` whose names are in `new_columns`, if the table does
/// not have them yet.
///
/// [`crate::ErrorKind::TransactionExpired`] if `base` has been vacuumed, or the table dropped and created again since
/// then.
pub async fn commit_staged(
    table: &Table,
    base: &TableManifest,
    files: Vec<DataFile>,
    (predicate, replaced): (Option<Predicate>, Option<ReplacedRows>),
    new_columns: &[String],
    options: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    if !new_columns.is_empty() && (options.overwrite || predicate.is_some()) {
        return Err(Error::invalid("columns are added by appends only"));
    }
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let (newest, replay) = find_replay(table, options.idempotency_key.as_deref()).await?;
    if let Some(committed) = replay {
        return Ok((committed, Vec::new()));
    }
    let begun = Ancestor::of(base);
    begun.check_descends(table, &newest.manifest).await?;
    let ancestor = Ancestor::of(&*newest.manifest);
    if let Some(predicate) = predicate {
        if let Some(replaced) = &replaced {
            let searched = Ancestor::of(&*replaced.searched);
            searched.check_descends(table, &newest.manifest).await?;
        }
        let target = (predicate, replaced);
        return replace_with_files(table, (base, ancestor), files, target, options).await;
    }
    let (base_version, idempotency_key) = (base.version, options.idempotency_key.clone());
    let change: Box<dyn Change<TableManifest>> = if options.overwrite {
        Box::new(Overwrite {
            files: files.clone(),
            base_version,
            idempotency_key,
        })
    } else {
        let append = Append {
            files: files.clone(),
            base_version,
            idempotency_key,
        };
        if new_columns.is_empty() {
            Box::new(append)
        } else {
            let columns = NewColumns::of_draft(Arc::new(base.clone()), new_columns)?;
            Box::new(AppendWithColumns { append, columns })
        }
    };
    let change = OnVersion {
        change: &*change,
        version: options.if_version.as_ref(),
        ancestor,
    };
    let committed = commit_onto(table, &change, Some(newest), options.timeout).await?;
    let added = if committed.replayed {
        Vec::new()
    } else {
        files
    };
    Ok((committed, added))
}

/// Removes staged files that are not to be committed.
pub async fn discard_staged(table: &Table, files: &[DataFile]) {
    let paths: Vec<String> = files.iter().map(|f| f.path.clone()).collect();
    remove(table, &paths).await;
}
