//! The rows of a merge: which rows of a data file and of the source match, and what the clauses make of them.
//!
//! `MergeContext` has the source, its keys and the clauses. A file of the table is read by row groups; each row is
//! joined with the row of the source that has its key, and the first clause that holds decides whether it stays, goes,
//! or is written anew. Rows of the source that match none are inserted at the end (`insert_unmatched`). What a file
//! gives (`FileOutput`) is right as long as the same rows of it are deleted. `merge` commits it; tasks do the same
//! (`task_changes`).

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, UInt32Array};
use arrow_select::take::take_arrays;
use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;

use super::clauses::{ClauseKind, ClauseOutput, Clauses, MergeRules};
use super::file_matches::{FileMatches, FileRows, MatchedRows};
use super::findings::CONCURRENT_GROUPS;
use super::format::TableManifest;
use super::keys::resolve_match_columns;
use super::snapshot_reader::SnapshotReader;
use crate::error::{Error, Result};
use crate::files::expr::Filter;
use crate::files::expr::KeySet;
use crate::files::run_blocking;
use crate::files::types::keeps_values;
use crate::files::{RowGroupScan, TableColumns};
use crate::parquet::types::convert;

/// What the rows of a file are merged to. It is right as long as the same rows of the file are deleted.
pub(super) struct FileOutput {
    pub(super) matches: FileMatches,
    /// The new rows: updated ones.
    pub(super) batches: Vec<RecordBatch>,
    pub(super) updated: u64,
    /// The rows of the source that matched a row of the file, whether or not that is changed.
    pub(super) matched_source_rows: RoaringBitmap,
    /// By row group the rows that these are, if the context reports them.
    pub(super) matched_rows: BTreeMap<u32, RoaringBitmap>,
}

/// What a merge into one snapshot reads by.
pub(super) struct MergeContext {
    /// Selects the rows with a key of the source; None if all rows of the table must be read.
    pub(super) key_filter: Option<Arc<Filter>>,
    pub(super) keys: Arc<KeySet>,
    /// The indices of the key columns in the table's schema.
    key_columns: Vec<usize>,
    source: RecordBatch,
    pub(super) columns: TableColumns,
    matched: Clauses,
    not_matched: Clauses,
    not_matched_by_source: Clauses,
    /// Whether the rows of the table that match are reported.
    pub(super) reports_matches: bool,
    /// Rows of the table that match rows of other sources, by the path of their file.
    pub(super) others: BTreeMap<String, FileRows>,
}

/// The changes to one row group.
#[derive(Default)]
struct RowGroupOutput {
    deleted_rows: RoaringBitmap,
    batches: Vec<RecordBatch>,
    updated: u64,
    /// The rows of the source that matched a row of the row group.
    matched_source_rows: RoaringBitmap,
    /// The rows that these are, if they are reported.
    matched_rows: RoaringBitmap,
}

impl MergeContext {
    pub(super) fn new(
        manifest: &TableManifest,
        source: &RecordBatch,
        rules: MergeRules<'_>,
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(manifest)?;
        let key_columns = resolve_match_columns(rules.on, manifest, &columns)?;
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
        let schemas = (source.schema_ref().as_ref(), &columns.schema);
        let plan = |kind| Clauses::plan(rules.clauses, kind, schemas, rules.now);
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
            source: source.clone(),
            reports_matches: false,
            others: BTreeMap::new(),
        })
    }

    /// The positions of the table's columns that predicates and values of clauses are computed with.
    pub(super) fn find_columns_of_expressions(&self) -> Vec<usize> {
        let clauses = [&self.matched, &self.not_matched_by_source];
        let mut positions: Vec<usize> = clauses
            .into_iter()
            .flat_map(Clauses::find_table_columns)
            .collect();
        positions.sort_unstable();
        positions.dedup();
        positions
    }

    /// Applies the clauses to the rows of the source that matched no row of the table.
    pub(super) fn insert_unmatched(
        &self,
        matched_source_rows: &RoaringBitmap,
    ) -> Result<ClauseOutput> {
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

    /// Whether all rows are deleted that are read, whatever their values are.
    fn deletes_all(&self) -> bool {
        self.keys.is_empty() && self.not_matched_by_source.deletes_all()
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
        if self.reports_matches {
            let positions = matched.values().iter().copied();
            let positions = positions.filter_map(|row| usize::try_from(row).ok());
            output
                .matched_rows
                .extend(positions.map(|position| row_numbers[position]));
        }
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
    take_arrays(columns, rows, None).map_err(Error::from_cause)
}

/// Merges the rows of a file of the reader.
pub(super) async fn merge_file(
    context: &Arc<MergeContext>,
    reader: &Arc<SnapshotReader>,
    file: usize,
) -> Result<FileOutput> {
    let row_groups = reader.open_row_groups(file).await?;
    let others = context.others.get(&reader.files[file].file.path);
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = row_groups
        .iter()
        .map(|row_group| {
            let others = others.and_then(|rows| rows.of_group(row_group.group));
            merge_row_group(context, reader, row_group, others)
        })
        .collect();
    let results: Vec<(MatchedRows, RowGroupOutput)> = stream::iter(tasks)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    let (matches, outputs): (Vec<MatchedRows>, Vec<RowGroupOutput>) = results.into_iter().unzip();
    let mut file_output = FileOutput {
        matches: FileMatches::new(reader.deletions_of(file), matches),
        batches: Vec::new(),
        updated: 0,
        matched_source_rows: RoaringBitmap::new(),
        matched_rows: BTreeMap::new(),
    };
    for (row_group, output) in row_groups.iter().zip(outputs) {
        if !output.matched_rows.is_empty() {
            let number = u32::try_from(row_group.group).unwrap_or(u32::MAX);
            file_output.matched_rows.insert(number, output.matched_rows);
        }
        file_output.batches.extend(output.batches);
        file_output.updated += output.updated;
        file_output.matched_source_rows |= output.matched_source_rows;
    }
    Ok(file_output)
}

async fn merge_row_group(
    context: &Arc<MergeContext>,
    reader: &Arc<SnapshotReader>,
    row_group: &RowGroupScan,
    others: Option<&RoaringBitmap>,
) -> Result<(MatchedRows, RowGroupOutput)> {
    let selection = reader.select(row_group).await?;
    let all_rows = || vec![true; row_group.num_rows()].into();
    let mut mask: BooleanArray = selection.mask.unwrap_or_else(all_rows);
    if let Some(others) = others {
        mask = without_rows(&mask, others);
    }
    let mut output = RowGroupOutput::default();
    if mask.true_count() > 0 && context.deletes_all() {
        output.deleted_rows = mask.values().set_indices_u32().collect();
    } else if mask.true_count() > 0 {
        let row_numbers: Vec<u32> = mask.values().set_indices_u32().collect();
        let schema = &context.columns.schema;
        let all = (0..schema.fields().len()).collect();
        let batches = reader.read_selected(row_group, mask, all, schema).await?;
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
        rows: std::mem::take(&mut output.deleted_rows),
        live_rows: selection.live_rows as u64,
    };
    Ok((matched, output))
}

/// The rows of a mask that are not among others.
fn without_rows(mask: &BooleanArray, others: &RoaringBitmap) -> BooleanArray {
    let numbered = (0_u32..).zip(mask.values().iter());
    let rows: Vec<bool> = numbered
        .map(|(row, is_selected)| is_selected && !others.contains(row))
        .collect();
    rows.into()
}
