//! Merge: updates, deletes and inserts rows of a table by matching them with the rows of a source.
//!
//! Rows match by key ([`KeySet`]); clauses ([`Clause`]) say what happens to matched rows and to those
//! without a match. The source is held in memory as one batch. Of the table only row groups that may
//! hold a key of the source are read, unless a clause is about rows that the source does not have.
//! A changed row is deleted by a tombstone and written again in a new file.
//!
//! All changes are one commit. If it conflicts with another, the merge is planned again on the newest
//! snapshot, until the timeout. Refused with [`ErrorKind::InvalidInput`]: no clause, a source
//! without a key column, and types that do not fit; those of [`super::commit`] come in addition.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, UInt32Array,
};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use arrow_select::take::take_arrays;
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;

use super::actions::{Delete, RowDelta};
use super::clauses::{Clause, ClauseKind, ClauseOutput, Clauses};
use super::commit::{Committed, commit_onto};
use super::delete::{
    CONCURRENT_FILES, CONCURRENT_GROUPS, DeletePlan, MatchedRows, plan_file, write_tombstones,
};
use super::format::{DataFile, TableManifest};
use super::keys::resolve_match_columns;
use super::row_group::RowGroupScan;
use super::snapshot::{Snapshot, Table};
use super::snapshot_reader::SnapshotReader;
use super::write::{TableWriteOptions, align_to_schema, check_idempotency_key, remove, upload};
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::files::expr::Filter;
use crate::files::expr::KeySet;
use crate::files::run_blocking;
use crate::files::types::keeps_values;
use crate::parquet::types::convert;

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
    let clock = table.store().clock();
    let deadline = clock.monotonic() + options.timeout;
    let source = run_blocking(move || collect_source(input)).await?;
    loop {
        let newest = table.newest().await?;
        let manifest = Arc::clone(&newest.manifest);
        let key = options.idempotency_key.as_ref();
        let is_replay = key.is_some_and(|key| manifest.transactions.contains_key(key));
        let context = MergeContext::new(table, &manifest, source.clone(), on, clauses)?;
        let plan_result = if is_replay {
            Ok(MergePlan::default())
        } else {
            context.plan(table, &manifest).await
        };
        let plan = match plan_result {
            // A vacuum has removed this snapshot since it was read.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            plan => plan?,
        };
        if plan.is_empty() && key.is_none() {
            return Ok(MergeResult {
                committed: None,
                snapshot: newest,
                added: Vec::new(),
            });
        }
        let (row_delta, written_paths) = plan.write(table, &newest, options).await?;
        let remaining = deadline.saturating_sub(clock.monotonic());
        let result = commit_onto(table, &row_delta, Some(newest), remaining).await;
        let unused = match &result {
            Ok(committed) => committed.replayed,
            Err(e) => e.allows_removal(),
        };
        if unused {
            remove(table, &written_paths).await;
        }
        match result {
            Ok(committed) => return Ok(MergeResult::from_commit(committed, row_delta.added)),
            Err(e) if e.is_conflict() && clock.monotonic() < deadline => {}
            Err(e) => return Err(e.into()),
        }
    }
}

impl MergeResult {
    fn from_commit(committed: Committed, added: Vec<DataFile>) -> Self {
        Self {
            snapshot: committed.snapshot.clone(),
            added: if committed.replayed {
                Vec::new()
            } else {
                added
            },
            committed: Some(committed),
        }
    }
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

/// The changes of a merge to one snapshot.
#[derive(Default)]
struct MergePlan {
    /// The rows to delete, those to update included.
    deletes: DeletePlan,
    /// The new rows: updated and inserted ones.
    batches: Vec<RecordBatch>,
    updated: u64,
    inserted: u64,
    schema: Option<SchemaRef>,
}

impl MergePlan {
    fn is_empty(&self) -> bool {
        self.deletes.is_empty() && self.batches.is_empty()
    }

    /// Uploads the new rows and the tombstones. Returns the change, and the paths of the uploaded objects.
    async fn write(
        self,
        table: &Table,
        newest: &Snapshot,
        options: &TableWriteOptions,
    ) -> Result<(RowDelta, Vec<String>)> {
        let manifest = &newest.manifest;
        let mut added = Vec::new();
        if let Some(schema) = self.schema.filter(|_| !self.batches.is_empty()) {
            let reader = RecordBatchIterator::new(self.batches.into_iter().map(Ok), schema);
            let input = align_to_schema(
                Box::new(reader),
                &TableColumns::from_manifest(manifest)?.schema,
            )?;
            added = upload(table, manifest, input, options).await?;
        }
        let mut written_paths: Vec<String> = added.iter().map(|f| f.path.clone()).collect();
        let tombstones = match write_tombstones(table, newest, &self.deletes).await {
            Ok(tombstones) => tombstones,
            Err(e) => {
                remove(table, &written_paths).await;
                return Err(e);
            }
        };
        written_paths.extend(tombstones.iter().map(|t| t.path.clone()));
        let deleted_rows = self.deletes.rows.unwrap_or_default();
        let row_delta = RowDelta {
            operation: "merge",
            deletes: Delete {
                filter: String::new(),
                tombstones,
                scanned_files: self.deletes.scanned_files,
                removed: self.deletes.removed,
                base_tombstones: manifest.tombstone_paths(),
                rows: Some(deleted_rows.saturating_sub(self.updated)),
                base_version: manifest.version,
            },
            is_derived: true,
            counts: vec![
                ("rows_updated", self.updated),
                ("rows_inserted", self.inserted),
            ],
            added,
            base_version: manifest.version,
            idempotency_key: options.idempotency_key.clone(),
        };
        Ok((row_delta, written_paths))
    }
}

/// What a merge into one snapshot reads by.
struct MergeContext {
    /// Selects the rows with a key of the source; None if all rows of the table must be read.
    key_filter: Option<Arc<Filter>>,
    keys: Arc<KeySet>,
    /// The indices of the key columns in the table's schema.
    key_columns: Vec<usize>,
    source: RecordBatch,
    columns: TableColumns,
    matched: Clauses,
    not_matched: Clauses,
    not_matched_by_source: Clauses,
}

/// The changes to one row group.
#[derive(Default)]
struct RowGroupOutput {
    deleted_rows: RoaringBitmap,
    batches: Vec<RecordBatch>,
    updated: u64,
    /// The rows of the source that matched a row of the row group.
    matched_source_rows: RoaringBitmap,
}

impl MergeContext {
    fn new(
        table: &Table,
        manifest: &TableManifest,
        source: RecordBatch,
        on: Option<&[String]>,
        clauses: &[Clause],
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(manifest)?;
        let key_columns = resolve_match_columns(on, manifest, &columns)?;
        let mut keys = KeySet::new(&columns, &key_columns)?;
        let key_arrays = key_columns.iter().map(|index| {
            let field = columns.schema.field(*index);
            let name = field.name();
            let Some(array) = source.column_by_name(name) else {
                let message =
                    format!("missing key column {name:?} in the source; rows are matched by it");
                return Err(Error::invalid(message));
            };
            if !keeps_values(array.data_type(), field.data_type()) {
                let message = format!(
                    "type mismatch for key column {name:?}: expected {}, got {}; cast it first",
                    field.data_type(),
                    array.data_type()
                );
                return Err(Error::invalid(message));
            }
            convert(array, field.data_type(), name)
        });
        keys.add(&key_arrays.collect::<Result<Vec<_>>>()?)?;
        let clock = &**table.store().clock();
        let schemas = (source.schema_ref().as_ref(), &columns.schema);
        let plan = |kind| Clauses::plan(clauses, kind, schemas, clock);
        let (matched, not_matched) = (plan(ClauseKind::Matched)?, plan(ClauseKind::NotMatched)?);
        let not_matched_by_source = plan(ClauseKind::NotMatchedBySource)?;
        let keys = Arc::new(keys);
        let use_key_filter = not_matched_by_source.is_empty();
        let key_filter = use_key_filter.then(|| Filter::from_keys(Arc::clone(&keys), &columns));
        Ok(Self {
            key_filter: key_filter.transpose()?.map(Arc::new),
            keys,
            key_columns,
            columns,
            matched,
            not_matched,
            not_matched_by_source,
            source,
        })
    }

    async fn plan(self, table: &Table, manifest: &Arc<TableManifest>) -> Result<MergePlan> {
        let matches_nothing = self.key_filter.is_some() && self.keys.is_empty();
        let reader =
            SnapshotReader::new(table, Arc::clone(manifest), self.key_filter.clone()).await?;
        let count = if matches_nothing {
            0
        } else {
            reader.files.len()
        };
        let (reader, context) = (Arc::new(reader), Arc::new(self));
        // A Vec, because the future of the iterator itself would not be Send.
        let tasks: Vec<_> = (0..count)
            .map(|file| merge_file(&context, &reader, file))
            .collect();
        let file_outputs: Vec<(DeletePlan, Vec<RowGroupOutput>)> = stream::iter(tasks)
            .buffered(CONCURRENT_FILES)
            .try_collect()
            .await?;
        let mut plan = MergePlan::default();
        plan.deletes.rows = Some(0);
        let mut matched_source_rows = RoaringBitmap::new();
        for (deletes, outputs) in file_outputs {
            plan.deletes.add(deletes);
            for output in outputs {
                plan.batches.extend(output.batches);
                plan.updated += output.updated;
                matched_source_rows |= output.matched_source_rows;
            }
        }
        let inserted = run_blocking(move || context.insert_unmatched(&matched_source_rows)).await?;
        plan.inserted = inserted.written_rows;
        plan.batches.extend(inserted.batches);
        plan.schema = plan.batches.first().map(RecordBatch::schema);
        Ok(plan)
    }

    /// Applies the clauses to the rows of the source that matched no row of the table.
    fn insert_unmatched(&self, matched_source_rows: &RoaringBitmap) -> Result<ClauseOutput> {
        let row_count = u32::try_from(self.source.num_rows()).unwrap_or(u32::MAX);
        let unmatched_rows: UInt32Array = (0..row_count)
            .filter(|row| !matched_source_rows.contains(*row))
            .collect();
        if self.not_matched.is_empty() || unmatched_rows.is_empty() {
            return Ok(ClauseOutput::default());
        }
        let columns = take_rows(self.source.columns(), &unmatched_rows)?;
        self.not_matched.apply(columns, unmatched_rows.len())
    }

    /// Applies the clauses to a batch of rows of the table; `row_numbers` are their positions in the row
    /// group.
    fn apply_clauses(
        &self,
        batch: &RecordBatch,
        row_numbers: &[u32],
        output: &mut RowGroupOutput,
    ) -> Result<()> {
        let keys = self
            .key_columns
            .iter()
            .map(|column| Arc::clone(batch.column(*column)));
        let source_rows = self.keys.find(&keys.collect::<Vec<_>>())?;
        let numbered = (0..).zip(&source_rows);
        let matched: UInt32Array = numbered
            .clone()
            .filter(|(_, f)| f.is_some())
            .map(|(n, _)| n)
            .collect();
        let unmatched: UInt32Array = numbered
            .filter(|(_, f)| f.is_none())
            .map(|(n, _)| n)
            .collect();
        let source_indices: UInt32Array = source_rows.iter().flatten().copied().collect();
        output
            .matched_source_rows
            .extend(source_indices.values().iter().copied());
        let mut columns = take_rows(self.source.columns(), &source_indices)?;
        columns.extend(take_rows(batch.columns(), &matched)?);
        let inputs = [
            (&self.matched, matched, columns),
            (
                &self.not_matched_by_source,
                unmatched.clone(),
                take_rows(batch.columns(), &unmatched)?,
            ),
        ];
        for (clauses, rows, columns) in inputs {
            if clauses.is_empty() || rows.is_empty() {
                continue;
            }
            let clause_output = clauses.apply(columns, rows.len())?;
            let flagged = rows.values().iter().zip(&clause_output.decided);
            let decided_rows = flagged.filter(|(_, is_decided)| **is_decided);
            let positions = decided_rows.filter_map(|(row, _)| usize::try_from(*row).ok());
            output
                .deleted_rows
                .extend(positions.map(|position| row_numbers[position]));
            output.updated += clause_output.written_rows;
            output.batches.extend(clause_output.batches);
        }
        Ok(())
    }
}

fn take_rows(columns: &[ArrayRef], rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
    take_arrays(columns, rows, None).map_err(|e| Error::other(e.to_string()).with_source(e))
}

async fn merge_file(
    context: &Arc<MergeContext>,
    reader: &Arc<SnapshotReader>,
    file: usize,
) -> Result<(DeletePlan, Vec<RowGroupOutput>)> {
    let row_groups = reader.open_row_groups(file).await?;
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = row_groups
        .iter()
        .map(|row_group| merge_row_group(context, reader, row_group))
        .collect();
    let results: Vec<(MatchedRows, RowGroupOutput)> = stream::iter(tasks)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    let (matches, outputs): (Vec<MatchedRows>, Vec<RowGroupOutput>) = results.into_iter().unzip();
    Ok((plan_file(reader, file, matches), outputs))
}

async fn merge_row_group(
    context: &Arc<MergeContext>,
    reader: &Arc<SnapshotReader>,
    row_group: &RowGroupScan,
) -> Result<(MatchedRows, RowGroupOutput)> {
    let selection = reader.select(row_group).await?;
    let all_rows = || vec![true; row_group.num_rows()].into();
    let mask = selection.mask.unwrap_or_else(all_rows);
    let mut output = RowGroupOutput::default();
    if mask.true_count() > 0 {
        let row_numbers: Vec<u32> = mask.values().set_indices_u32().collect();
        let batches = reader
            .read_selected(row_group, mask, &context.columns.schema)
            .await?;
        let context = Arc::clone(context);
        output = run_blocking(move || {
            let mut output = RowGroupOutput::default();
            let mut start = 0;
            for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
                let end = start + batch.num_rows();
                context.apply_clauses(batch, &row_numbers[start..end], &mut output)?;
                start = end;
            }
            Ok(output)
        })
        .await?;
    }
    let matched = MatchedRows {
        row_group: row_group.clone(),
        covers_group: output.deleted_rows.len() == selection.live_rows as u64,
        rows: std::mem::take(&mut output.deleted_rows),
    };
    Ok((matched, output))
}
