//! Replaces rows in one commit: an upsert replaces the rows with the same key as a new row, an overwrite
//! with a predicate those that match it.
//!
//! The new rows are uploaded first; an upsert collects their keys ([`KeySet`]) on the way. Then
//! the rows to replace are searched in the newest snapshot and deleted by tombstones. If a concurrent
//! commit has added rows, files that are new are searched ([`super::findings`]); nothing is uploaded again. Names are
//! those of the columns that the caller has read ([`super::opened_columns`]).
//!
//! Errors: [`crate::ErrorKind::InvalidInput`] for input without the key columns, or with a row that does not
//! satisfy the predicate; those of [`crate::versions::commit`]. After an error that leaves the outcome unknown no
//! file is removed.

use std::sync::{Arc, Mutex};

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::{ArrowError, Schema};

use super::actions::{Delete, RowDelta};
use super::delete::StagedTombstones;
use super::file_matches::DeletePlan;
use super::findings::{Bound, RowFinder};
use super::format::{DataFile, TableManifest};
use super::keys::resolve_match_columns;
use super::object_cache::ObjectCache;
use super::opened_columns::OpenedColumns;
use super::snapshot_reader::SnapshotReader;
use super::task_changes::{TaskChange, count_searches};
use super::write::{TableWriteOptions, upload};
use super::{Committed, Snapshot, Staged, Table};
use crate::error::{Error, Result};
use crate::files::expr::Filter;
use crate::files::expr::KeySet;
use crate::files::expr::Predicate;
use crate::files::{BoxedReader, TableColumns, align_to_schema};
use crate::sync::mutex::lock;
use crate::sync::progress::{self, with_progress};
use crate::versions::commit::{RunResult, run};
use crate::versions::{
    Ancestor, Operation, RequiredVersion, check_idempotency_key, check_required_version,
    find_replay,
};

/// Which rows are replaced.
#[derive(Debug, Clone)]
pub enum ReplaceTarget {
    /// The rows that have the values of a new row in these columns. Defaults to the table's key.
    MatchingKeys(Option<Vec<String>>),
    /// The rows that satisfy a predicate. Every new row must satisfy it, too.
    Predicate(Predicate),
}

/// Writes `input` and deletes the rows of `target` in one commit. Returns the commit and the files that it
/// added.
pub async fn replace_rows(
    table: &Table,
    input: BoxedReader,
    target: &ReplaceTarget,
    options: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    let (snapshot, replay) = find_replay(table, options.idempotency_key.as_deref()).await?;
    if let Some(committed) = replay {
        return Ok((committed, Vec::new()));
    }
    check_required_version(table, options.if_version.as_ref(), &*snapshot.manifest)?;
    let mut opened = options.opened.clone();
    let base = opened.rename(table, &snapshot.manifest).await?;
    let input_schema = input.schema();
    let names = input_schema.fields().iter().map(|field| field.name());
    opened.check_names(names, &base, &snapshot.manifest)?;
    let mut operation = Replacement::new(table, target, options, (&*base, opened));
    operation.upload(&base, input).await?;
    let mut staged = Staged::new(table);
    staged.add(operation.files.iter().map(|f| f.path.clone()));
    operation.commit(staged).await
}

/// The rows that satisfy a predicate, as tasks found them in all files of a version that may have some.
#[derive(Debug)]
pub struct ReplacedRows {
    /// The version.
    pub searched: Arc<TableManifest>,
    /// What each task found.
    pub changes: Vec<TaskChange>,
}

/// Commits files with the columns of `base` in place of the rows that satisfy a predicate, as do those of the files. The
/// files are never removed. Files are searched for such rows unless tasks have found them.
pub(super) async fn replace_with_files(
    table: &Table,
    (base, ancestor): (&TableManifest, Ancestor),
    files: Vec<DataFile>,
    (predicate, replaced): (Predicate, Option<ReplacedRows>),
    options: &TableWriteOptions,
) -> Result<(Committed, Vec<DataFile>)> {
    let target = ReplaceTarget::Predicate(predicate);
    let opened = OpenedColumns::of(&Arc::new(base.clone()));
    let mut operation = Replacement::new(table, &target, options, (base, opened));
    operation.files = files;
    operation.ancestor = ancestor;
    if let ReplaceTarget::Predicate(predicate) = &target {
        operation.bind_target(base, predicate)?;
    }
    if let Some(replaced) = replaced {
        operation.take_over(replaced).await?;
    }
    operation.commit(Staged::new(table)).await
}

/// Writes new rows and deletes those of the target.
struct Replacement<'a> {
    table: &'a Table,
    target: &'a ReplaceTarget,
    options: &'a TableWriteOptions,
    /// The keys of the new rows.
    keys: Option<Arc<KeySet>>,
    /// The filter of the rows to delete.
    filter: Bound<Arc<Filter>>,
    /// The columns of the predicate.
    opened: OpenedColumns,
    /// The new rows, and the version whose columns they have.
    files: Vec<DataFile>,
    files_version: u64,
    finder: RowFinder,
    cache: Arc<ObjectCache>,
    tombstones: StagedTombstones,
    /// What the versions to change have to descend from.
    ancestor: Ancestor,
}

impl Operation<TableManifest> for Replacement<'_> {
    type Change = RowDelta;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<RowDelta>> {
        let manifest = &self.opened.rename(self.table, &base.manifest).await?;
        let deletes = self.plan_deletes(manifest).await?;
        let tombstones = self
            .tombstones
            .write(self.table, manifest, &deletes, staged)
            .await?;
        let (operation, filter) = match self.target {
            ReplaceTarget::MatchingKeys(_) => ("upsert", String::new()),
            ReplaceTarget::Predicate(predicate) => ("overwrite", predicate.to_string()),
        };
        Ok(Some(RowDelta {
            operation,
            deletes: Delete {
                filter,
                tombstones,
                scanned_files: deletes.scanned_files,
                removed: deletes.removed,
                base_tombstones: manifest.tombstone_paths(),
                rows: deletes.rows,
                base_version: manifest.version,
            },
            added: self.files.clone(),
            is_derived: false,
            counts: Vec::new(),
            base_version: self.files_version,
            idempotency_key: self.options.idempotency_key.clone(),
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.options.idempotency_key.as_deref()
    }

    fn required_version(&self) -> Option<&RequiredVersion> {
        self.options.if_version.as_ref()
    }

    fn ancestor(&self) -> Option<&Ancestor> {
        Some(&self.ancestor)
    }
}

impl<'a> Replacement<'a> {
    fn new(
        table: &'a Table,
        target: &'a ReplaceTarget,
        options: &'a TableWriteOptions,
        (base, opened): (&TableManifest, OpenedColumns),
    ) -> Self {
        Self {
            table,
            target,
            options,
            keys: None,
            filter: Bound::none(),
            opened,
            files: Vec::new(),
            files_version: base.version,
            finder: RowFinder::default(),
            cache: Arc::default(),
            tombstones: StagedTombstones::default(),
            ancestor: Ancestor::of(base),
        }
    }

    /// `staged` are the files that are removed if nothing was committed for certain.
    async fn commit(mut self, staged: Staged) -> Result<(Committed, Vec<DataFile>)> {
        let (table, timeout) = (self.table, self.options.timeout);
        match Box::pin(run(table, &mut self, staged, timeout)).await? {
            RunResult::Committed(committed, row_delta) => Ok((committed, row_delta.added)),
            RunResult::Replayed(committed) => Ok((committed, Vec::new())),
            RunResult::Unchanged(_) => Err(Error::other(
                "internal error: an upsert or overwrite without a change",
            )),
        }
    }

    /// Binds the predicate to the columns that the new rows have.
    fn bind_target(&mut self, base: &TableManifest, predicate: &Predicate) -> Result<Arc<Filter>> {
        let clock = self.table.store().clock();
        let filter = Arc::new(self.opened.bind_filter(predicate, base, &**clock)?);
        self.filter = Bound::new(base, Arc::clone(&filter));
        Ok(filter)
    }

    /// Uploads the new rows, and collects their keys or checks them by the predicate.
    async fn upload(&mut self, base: &TableManifest, input: BoxedReader) -> Result<()> {
        let columns = TableColumns::from_manifest(base)?;
        let input_schema = input.schema();
        let aligned = align_to_schema(input, &columns.schema)?;
        let collected_keys = Arc::new(Mutex::new(None));
        let checked_input = match self.target {
            ReplaceTarget::MatchingKeys(on) => {
                let key_columns = self.opened.bind(base, |base| {
                    let columns = TableColumns::from_manifest(base)?;
                    resolve_match_columns(on.as_deref(), base, &columns)
                })?;
                check_key_columns(&input_schema, &columns, &key_columns)?;
                let keys = KeySet::new(&columns, &key_columns)?;
                *lock(&collected_keys) = Some(keys);
                collect_keys(aligned, &collected_keys, key_columns)
            }
            ReplaceTarget::Predicate(predicate) => {
                assert_predicate(aligned, self.bind_target(base, predicate)?)
            }
        };
        self.files = upload(self.table, base, checked_input, self.options).await?;
        self.keys = lock(&collected_keys).take().map(Arc::new);
        Ok(())
    }

    /// Takes over what tasks found, so that only files that came since are searched.
    async fn take_over(&mut self, replaced: ReplacedRows) -> Result<()> {
        let Some(filter) = self.bind_filter(&replaced.searched)? else {
            return Ok(());
        };
        let reader = self.open_reader(&replaced.searched, filter).await?;
        let changes = replaced.changes;
        let searched = count_searches(&changes);
        if searched != reader.files.len() {
            let message = format!(
                "internal error: {} files were to be searched, and {searched} were",
                reader.files.len()
            );
            return Err(Error::other(message));
        }
        let rows = changes.into_iter().flat_map(|change| change.deletes);
        self.finder.take_over(&reader, rows.collect());
        Ok(())
    }

    async fn open_reader(
        &self,
        manifest: &Arc<TableManifest>,
        filter: Arc<Filter>,
    ) -> Result<SnapshotReader> {
        let cache = Some(Arc::clone(&self.cache));
        let manifest = Arc::clone(manifest);
        SnapshotReader::with_cache(self.table, manifest, Some(filter), cache).await
    }

    async fn plan_deletes(&mut self, manifest: &Arc<TableManifest>) -> Result<DeletePlan> {
        let Some(filter) = self.bind_filter(manifest)? else {
            return Ok(DeletePlan {
                rows: Some(0),
                ..DeletePlan::default()
            });
        };
        let reader = self.open_reader(manifest, filter).await?;
        progress::begin_phase("match");
        // The files of the result are those that are written.
        Box::pin(with_progress(None, self.finder.plan(&reader))).await
    }

    /// The filter of the rows to delete, bound to the columns of a snapshot; None without keys.
    fn bind_filter(&mut self, manifest: &TableManifest) -> Result<Option<Arc<Filter>>> {
        let columns = TableColumns::from_manifest(manifest)?;
        let filter = match (self.target, &self.keys) {
            (ReplaceTarget::Predicate(predicate), _) => self.filter.get(manifest, || {
                let clock = self.table.store().clock();
                let filter = self.opened.bind_filter(predicate, manifest, &**clock);
                filter.map(Arc::new)
            })?,
            (ReplaceTarget::MatchingKeys(_), Some(keys)) if !keys.is_empty() => {
                self.filter.get(manifest, || {
                    Filter::from_keys(Arc::clone(keys), &columns).map(Arc::new)
                })?
            }
            (ReplaceTarget::MatchingKeys(_), _) => return Ok(None),
        };
        Ok(Some(filter))
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

/// Returns the stream, whose keys are added to the set while it is read.
fn collect_keys(
    input: BoxedReader,
    keys: &Arc<Mutex<Option<KeySet>>>,
    key_columns: Vec<usize>,
) -> BoxedReader {
    let keys = Arc::clone(keys);
    inspect_batches(input, move |batch| {
        let key_arrays: Vec<_> = key_columns
            .iter()
            .map(|p| Arc::clone(batch.column(*p)))
            .collect();
        lock(&keys)
            .as_mut()
            .map_or(Ok(()), |key_set| key_set.add(&key_arrays))
    })
}

/// Returns the stream, which fails at a batch with a row that does not satisfy the filter.
pub(super) fn assert_predicate(input: BoxedReader, filter: Arc<Filter>) -> BoxedReader {
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
    input: BoxedReader,
    mut check: impl FnMut(&RecordBatch) -> Result<()> + Send + 'static,
) -> BoxedReader {
    let schema = input.schema();
    let batches = input.map(move |batch| {
        let batch = batch?;
        check(&batch).map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        Ok(batch)
    });
    Box::new(RecordBatchIterator::new(batches, schema))
}
