//! Merge: updates, deletes and inserts rows of a table by matching them with the rows of a source.
//!
//! Rows match by key ([`KeySet`]); clauses ([`Clause`]) say what happens to matched rows and to those
//! without a match. The source is held in memory as one batch. Of the table only row groups that may
//! hold a key of the source are read, unless a clause is about rows that the source does not have.
//! A changed row is deleted by a tombstone and written again in a new file.
//!
//! All changes are one commit. If it conflicts with another, the merge is planned again on the newest
//! snapshot, until the timeout. What files were merged to is kept: a file is read again only if rows of it
//! were deleted meanwhile, and rows are uploaded again only if they differ. Names are those of the columns that the
//! caller has read ([`super::opened_columns`]): if one was dropped by then, it fails with
//! [`crate::ErrorKind::CommitConflict`]. Refused with [`crate::ErrorKind::InvalidInput`]: no clause, a source without a
//! key column, and types that do not fit; those of [`crate::versions::commit`] come in addition.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;

use super::actions::{Delete, RowDelta};
use super::clauses::{Clause, MergeRules};
use super::delete::StagedTombstones;
use super::file_matches::DeletePlan;
use super::findings::{Basis, Bound, CONCURRENT_FILES};
use super::format::{DataFile, TableManifest};
use super::merge_rows::{FileOutput, MergeContext, merge_file};
use super::object_cache::ObjectCache;
use super::opened_columns::OpenedColumns;
use super::snapshot_file::FileRef;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::Deletions;
use super::write::{TableWriteOptions, upload};
use super::{Committed, Snapshot, Staged, Table};
use crate::error::{Error, Result};
use crate::files::{TableColumns, align_to_schema, run_blocking};
use crate::sync::progress;
use crate::versions::commit::{RunResult, run};
use crate::versions::{Operation, RequiredVersion, check_idempotency_key};

/// The result of a merge.
#[derive(Debug)]
pub struct MergeResult {
    /// The commit; None if nothing changed.
    pub committed: Option<Committed>,
    /// The snapshot after the merge.
    pub snapshot: Snapshot,
    /// The data files that the commit added.
    pub added: Vec<DataFile>,
}

/// Merges `input` into the table. Rows match by the columns `on`, which default to the table's key.
pub async fn merge(
    table: &Table,
    input: Box<dyn RecordBatchReader + Send>,
    on: Option<&[String]>,
    clauses: &[Clause],
    options: &TableWriteOptions,
) -> Result<MergeResult> {
    check_idempotency_key(options.idempotency_key.as_deref())?;
    if clauses.is_empty() {
        return Err(Error::invalid(
            "a merge needs a clause; add at least one when_… clause",
        ));
    }
    let source = run_blocking(move || collect_source(input)).await?;
    let mut operation = Merge {
        table,
        source,
        rules: MergeRules {
            on,
            clauses,
            now: table.store().clock().now(),
        },
        options,
        context: Bound::none(),
        opened: options.opened.clone(),
        basis: None,
        files: HashMap::new(),
        cache: Arc::default(),
        written: None,
        tombstones: StagedTombstones::default(),
    };
    let result = run(table, &mut operation, Staged::new(table), options.timeout).await?;
    Ok(match result {
        RunResult::Committed(committed, row_delta) => MergeResult {
            snapshot: committed.snapshot.clone(),
            committed: Some(committed),
            added: row_delta.added,
        },
        RunResult::Replayed(committed) => MergeResult {
            snapshot: committed.snapshot.clone(),
            committed: Some(committed),
            added: Vec::new(),
        },
        RunResult::Unchanged(snapshot) => MergeResult {
            committed: None,
            snapshot,
            added: Vec::new(),
        },
    })
}

/// Reads the source into one batch.
fn collect_source(input: Box<dyn RecordBatchReader + Send>) -> Result<RecordBatch> {
    let schema = input.schema();
    let batches = input
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(crate::parquet::writer::input_error)?;
    concat_batches(&schema, &batches).map_err(|e| {
        let message = format!(
            "the source of the merge does not fit in one batch: {e}; merge it in smaller pieces"
        );
        Error::invalid(message).with_source(e)
    })
}

/// New rows that were uploaded, and what they were made of.
struct WrittenRows {
    context: Arc<MergeContext>,
    /// The outputs of files with new rows, and the rows of the source that matched.
    made_of: (Vec<Arc<FileOutput>>, RoaringBitmap),
    base_version: u64,
    files: Vec<DataFile>,
}

impl WrittenRows {
    fn is_made_of(
        &self,
        context: &Arc<MergeContext>,
        (outputs, matched_source_rows): &(Vec<Arc<FileOutput>>, RoaringBitmap),
    ) -> bool {
        let (made_of, matched) = &self.made_of;
        Arc::ptr_eq(context, &self.context)
            && matched == matched_source_rows
            && made_of.len() == outputs.len()
            && made_of.iter().zip(outputs).all(|(a, b)| Arc::ptr_eq(a, b))
    }
}

/// What all files of a snapshot give.
#[derive(Default)]
struct MergeTotals {
    deletes: DeletePlan,
    /// The outputs with rows to write.
    outputs: Vec<Arc<FileOutput>>,
    updated: u64,
    matched_source_rows: RoaringBitmap,
    /// Files with rows that matched and stay as they are: without them the source's rows would be inserted.
    matched_files: Vec<FileRef>,
}

/// A merge.
struct Merge<'a> {
    table: &'a Table,
    source: RecordBatch,
    rules: MergeRules<'a>,
    options: &'a TableWriteOptions,
    context: Bound<Arc<MergeContext>>,
    /// The columns of the rules.
    opened: OpenedColumns,
    /// What the outputs depend on.
    basis: Option<Basis>,
    /// The output of each file that was read, by its path.
    files: HashMap<String, Arc<FileOutput>>,
    cache: Arc<ObjectCache>,
    written: Option<WrittenRows>,
    tombstones: StagedTombstones,
}

impl Operation<TableManifest> for Merge<'_> {
    type Change = RowDelta;

    async fn plan(&mut self, base: &Snapshot, staged: &mut Staged) -> Result<Option<RowDelta>> {
        let manifest = &self.opened.rename(self.table, &base.manifest).await?;
        let context = self.context.get(manifest, || {
            let context = self.opened.bind(manifest, |manifest| {
                MergeContext::new(manifest, &self.source, self.rules)
            })?;
            let computed_with = context.find_columns_of_expressions();
            self.opened.check_types(&computed_with, manifest)?;
            Ok(Arc::new(context))
        })?;
        let reader = self.read_files(manifest, &context).await?;
        let totals = self.total(&reader);
        let (deletes, updated) = (totals.deletes, totals.updated);
        let (source_context, matched) = (Arc::clone(&context), totals.matched_source_rows.clone());
        let inserted = run_blocking(move || source_context.insert_unmatched(&matched)).await?;
        let has_rows = !totals.outputs.is_empty() || !inserted.batches.is_empty();
        if deletes.is_empty() && !has_rows && self.options.idempotency_key.is_none() {
            return Ok(None);
        }
        let inserted_rows = inserted.written_rows;
        let made_of = (totals.outputs, totals.matched_source_rows);
        let (added, base_version) = self
            .write_rows(manifest, &context, made_of, inserted.batches, staged)
            .await?;
        let tombstones = self
            .tombstones
            .write(self.table, manifest, &deletes, staged)
            .await?;
        let deleted_rows = deletes.rows.unwrap_or_default();
        Ok(Some(RowDelta {
            operation: "merge",
            deletes: Delete {
                filter: String::new(),
                tombstones,
                scanned_files: [deletes.scanned_files, totals.matched_files].concat(),
                removed: deletes.removed,
                base_tombstones: manifest.tombstone_paths(),
                rows: Some(deleted_rows.saturating_sub(updated)),
                base_version: manifest.version,
            },
            is_derived: true,
            counts: vec![("rows_updated", updated), ("rows_inserted", inserted_rows)],
            added,
            base_version,
            idempotency_key: self.options.idempotency_key.clone(),
        }))
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.options.idempotency_key.as_deref()
    }

    fn required_version(&self) -> Option<&RequiredVersion> {
        self.options.if_version.as_ref()
    }
}

impl Merge<'_> {
    /// Adds up what was found in the files of a reader.
    fn total(&self, reader: &SnapshotReader) -> MergeTotals {
        let mut totals = MergeTotals::default();
        totals.deletes.rows = Some(0);
        for (index, listed) in reader.files.iter().enumerate() {
            let Some(output) = self.find(reader, index) else {
                continue;
            };
            let file_deletes = output.matches.to_plan(listed);
            if file_deletes.is_empty() && !output.matched_source_rows.is_empty() {
                totals.matched_files.push(listed.to_file_ref());
            }
            totals.deletes.add(file_deletes);
            totals.updated += output.updated;
            totals.matched_source_rows |= &output.matched_source_rows;
            if !output.batches.is_empty() {
                totals.outputs.push(Arc::clone(output));
            }
        }
        totals
    }

    /// Merges the files of a snapshot that may have rows to merge and are not known.
    async fn read_files(
        &mut self,
        manifest: &Arc<TableManifest>,
        context: &Arc<MergeContext>,
    ) -> Result<Arc<SnapshotReader>> {
        if !self.basis.as_ref().is_some_and(|b| b.holds_in(manifest)) {
            self.files.clear();
        }
        self.basis = Some(Basis::new(manifest));
        let filter = context.key_filter.clone();
        let cache = Some(Arc::clone(&self.cache));
        let manifest = Arc::clone(manifest);
        let mut reader = SnapshotReader::with_cache(self.table, manifest, filter, cache).await?;
        if context.key_filter.is_some() && context.keys.is_empty() {
            reader.files.clear();
        }
        let reader = Arc::new(reader);
        let is_unknown = |file: &usize| self.find(&reader, *file).is_none();
        let unknown: Vec<usize> = (0..reader.files.len()).filter(is_unknown).collect();
        // A Vec, because the future of the iterator itself would not be Send.
        let tasks: Vec<_> = unknown
            .iter()
            .map(|file| merge_file(context, &reader, *file))
            .collect();
        progress::begin_phase("match");
        let mut merged = stream::iter(tasks).buffered(CONCURRENT_FILES);
        for file in &unknown {
            if let Some(output) = merged.try_next().await? {
                let path = reader.files[*file].file.path.clone();
                self.files.insert(path, Arc::new(output));
            }
        }
        drop(merged);
        Ok(reader)
    }

    /// The output of a file of the reader, if it is known.
    fn find(&self, reader: &SnapshotReader, file: usize) -> Option<&Arc<FileOutput>> {
        let output = self.files.get(&reader.files[file].file.path)?;
        let none = Deletions::default();
        let deletions = reader.deletions_of(file).unwrap_or(&none);
        output.matches.is_of(deletions).then_some(output)
    }

    /// Uploads the new rows, unless the same ones were uploaded for the last plan. Returns their files, and
    /// the version at which the upload began.
    async fn write_rows(
        &mut self,
        manifest: &TableManifest,
        context: &Arc<MergeContext>,
        made_of: (Vec<Arc<FileOutput>>, RoaringBitmap),
        inserted: Vec<RecordBatch>,
        staged: &mut Staged,
    ) -> Result<(Vec<DataFile>, u64)> {
        if let Some(written) = &self.written
            && written.base_version >= manifest.gc_floor
            && manifest
                .schema_conflict_since(written.base_version)
                .is_none()
            && written.is_made_of(context, &made_of)
        {
            return Ok((written.files.clone(), written.base_version));
        }
        if let Some(unused) = self.written.take() {
            staged.retire(unused.files.iter().map(|f| &f.path));
        }
        let outputs = made_of.0.iter().flat_map(|output| output.batches.clone());
        let batches: Vec<RecordBatch> = outputs.chain(inserted).collect();
        let mut files = Vec::new();
        if let Some(schema) = batches.first().map(RecordBatch::schema) {
            let reader = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
            let file_schema = TableColumns::from_manifest(manifest)?.schema;
            let input = align_to_schema(Box::new(reader), &file_schema)?;
            files = upload(self.table, manifest, input, self.options).await?;
            staged.add(files.iter().map(|f| f.path.clone()));
        }
        self.written = Some(WrittenRows {
            context: Arc::clone(context),
            made_of,
            base_version: manifest.version,
            files: files.clone(),
        });
        Ok((files, manifest.version))
    }
}
