//! Merge: rows of a source decide, by a key, which rows of a table are changed, deleted and added.
//!
//! The source is held in memory. Of the table only row groups that may hold its keys are read, unless
//! rows without a counterpart in the source are to go. What comes and what goes is one commit; if
//! others brought rows meanwhile, it is made anew from the newest snapshot.

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
use super::clauses::{Clause, Clauses, Made, When};
use super::commit::{Committed, commit_onto, is_retryable_conflict};
use super::delete::{
    CONCURRENT_FILES, CONCURRENT_GROUPS, DeletePlan, MatchedRows, plan_file, write_tombstones,
};
use super::filter::Filter;
use super::format::{DataFile, TableManifest};
use super::keys::{KeySet, resolve_match_columns};
use super::row_group::RowGroupScan;
use super::schema::TableColumns;
use super::snapshot::{Snapshot, Table};
use super::snapshot_reader::SnapshotReader;
use super::types::keeps_values;
use super::write::{
    TableWriteOptions, align_to_schema, check_idempotency_key, is_definite_failure, remove, upload,
};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::types::convert;
use crate::part::run_blocking;

/// What a merge did.
#[derive(Debug)]
pub struct Merged {
    /// The commit; None where there was nothing to do.
    pub committed: Option<Committed>,
    /// The newest snapshot.
    pub snapshot: Snapshot,
    /// Files that were written.
    pub added: Vec<DataFile>,
}

/// Merges `input` into the table by the columns `on`, or with None by its key.
pub async fn merge(
    table: &Table,
    input: Box<dyn RecordBatchReader + Send>,
    on: Option<&[String]>,
    clauses: &[Clause],
    how: &TableWriteOptions,
) -> Result<Merged> {
    check_idempotency_key(how.idempotency_key.as_deref())?;
    if clauses.is_empty() {
        return Err(Error::invalid(
            "a merge needs a clause that says what to do",
        ));
    }
    let clock = table.store().clock();
    let deadline = clock.monotonic() + how.timeout;
    let source = run_blocking(move || collect(input)).await?;
    loop {
        let newest = table.newest().await?;
        let manifest = Arc::clone(&newest.manifest);
        let key = how.idempotency_key.as_ref();
        let known = key.is_some_and(|key| manifest.transactions.contains_key(key));
        let work = Merging::new(table, &manifest, source.clone(), on, clauses)?;
        let change = if known {
            Ok(Effect::default())
        } else {
            work.change(table, &manifest).await
        };
        let change = match change {
            // What was the newest has been vacuumed meanwhile.
            Err(e) if e.kind() == ErrorKind::VersionExpired && clock.monotonic() < deadline => {
                continue;
            }
            change => change?,
        };
        if change.is_empty() && key.is_none() {
            return Ok(Merged {
                committed: None,
                snapshot: newest,
                added: Vec::new(),
            });
        }
        let (change, written) = change.write(table, &newest, how).await?;
        let left = deadline.saturating_sub(clock.monotonic());
        let done = commit_onto(table, &change, Some(newest), left).await;
        let unused = match &done {
            Ok(done) => done.replayed,
            Err(e) => is_definite_failure(e.kind()),
        };
        if unused {
            remove(table, &written).await;
        }
        match done {
            Ok(done) => return Ok(Merged::of(done, change.added)),
            Err(e) if is_retryable_conflict(e.kind()) && clock.monotonic() < deadline => {}
            Err(e) => return Err(e),
        }
    }
}

impl Merged {
    fn of(done: Committed, added: Vec<DataFile>) -> Self {
        Self {
            snapshot: done.snapshot.clone(),
            added: if done.replayed { Vec::new() } else { added },
            committed: Some(done),
        }
    }
}

/// The source as one batch.
fn collect(input: Box<dyn RecordBatchReader + Send>) -> Result<RecordBatch> {
    let schema = input.schema();
    let batches = input.collect::<std::result::Result<Vec<_>, _>>();
    let batches = batches.map_err(crate::parquet::writer::input_error)?;
    concat_batches(&schema, &batches).map_err(|e| {
        let message = format!("the source does not fit in one batch: {e}; merge it in pieces");
        Error::invalid(message).with_source(e)
    })
}

/// What comes and what goes.
#[derive(Default)]
struct Effect {
    gone: DeletePlan,
    batches: Vec<RecordBatch>,
    updated: u64,
    inserted: u64,
    schema: Option<SchemaRef>,
}

impl Effect {
    fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.batches.is_empty()
    }

    /// Writes the new rows and what says which are gone; gives the change and what was written.
    async fn write(
        self,
        table: &Table,
        newest: &Snapshot,
        how: &TableWriteOptions,
    ) -> Result<(RowDelta, Vec<String>)> {
        let manifest = &newest.manifest;
        let mut added = Vec::new();
        if let Some(schema) = self.schema.filter(|_| !self.batches.is_empty()) {
            let input = RecordBatchIterator::new(self.batches.into_iter().map(Ok), schema);
            let input = align_to_schema(
                Box::new(input),
                &TableColumns::from_manifest(manifest)?.file_schema(),
            )?;
            added = upload(table, manifest, input, how).await?;
        }
        let mut written: Vec<String> = added.iter().map(|f| f.path.clone()).collect();
        let tombstones = match write_tombstones(table, newest, &self.gone).await {
            Ok(tombstones) => tombstones,
            Err(e) => {
                remove(table, &written).await;
                return Err(e);
            }
        };
        written.extend(tombstones.iter().map(|t| t.path.clone()));
        let gone = self.gone.rows.unwrap_or_default();
        let change = RowDelta {
            operation: "merge",
            deletes: Delete {
                filter: String::new(),
                tombstones,
                scanned_files: self.gone.scanned_files,
                removed: self.gone.removed,
                rows: Some(gone.saturating_sub(self.updated)),
                base_version: manifest.version,
            },
            base_tombstones: Some(manifest.tombstones.iter().map(|t| t.path.clone()).collect()),
            counts: vec![
                ("rows_updated", self.updated),
                ("rows_inserted", self.inserted),
            ],
            added,
            base_version: manifest.version,
            idempotency_key: how.idempotency_key.clone(),
        };
        Ok((change, written))
    }
}

/// A merge into one snapshot.
struct Merging {
    rows_of: Option<Arc<Filter>>,
    keys: Arc<KeySet>,
    /// The columns of the key, by position in the table.
    places: Vec<usize>,
    source: RecordBatch,
    columns: TableColumns,
    matched: Clauses,
    not_matched: Clauses,
    not_matched_by_source: Clauses,
}

/// What was made of a row group.
#[derive(Default)]
struct OfUnit {
    gone: RoaringBitmap,
    batches: Vec<RecordBatch>,
    updated: u64,
    /// Rows of the source that had a counterpart.
    met: RoaringBitmap,
}

impl Merging {
    fn new(
        table: &Table,
        manifest: &TableManifest,
        source: RecordBatch,
        on: Option<&[String]>,
        clauses: &[Clause],
    ) -> Result<Self> {
        let columns = TableColumns::from_manifest(manifest)?;
        let places = resolve_match_columns(on, manifest, &columns)?;
        let mut keys = KeySet::new(&columns, &places)?;
        let given = places.iter().map(|place| {
            let field = columns.schema.field(*place);
            let name = field.name();
            let Some(found) = source.column_by_name(name) else {
                let message =
                    format!("the source has no column {name:?}, and rows are matched by it");
                return Err(Error::invalid(message));
            };
            if !keeps_values(found.data_type(), field.data_type()) {
                let message = format!(
                    "column {name:?} is {} in the table and {} in the source; cast it first",
                    field.data_type(),
                    found.data_type()
                );
                return Err(Error::invalid(message));
            }
            convert(found, field.data_type(), name)
        });
        keys.add(&given.collect::<Result<Vec<_>>>()?)?;
        let clock = &**table.store().clock();
        let sides = (source.schema_ref().as_ref(), &columns.schema);
        let plan = |when| Clauses::plan(clauses, when, sides, clock);
        let (matched, not_matched) = (plan(When::Matched)?, plan(When::NotMatched)?);
        let not_matched_by_source = plan(When::NotMatchedBySource)?;
        let keys = Arc::new(keys);
        let by_key = not_matched_by_source.is_empty();
        let by_key = by_key.then(|| Filter::from_keys(Arc::clone(&keys), &columns));
        Ok(Self {
            rows_of: by_key.transpose()?.map(Arc::new),
            keys,
            places,
            columns,
            matched,
            not_matched,
            not_matched_by_source,
            source,
        })
    }

    async fn change(self, table: &Table, manifest: &Arc<TableManifest>) -> Result<Effect> {
        let nothing_to_meet = self.rows_of.is_some() && self.keys.is_empty();
        let rows = SnapshotReader::new(table, Arc::clone(manifest), self.rows_of.clone()).await?;
        let count = if nothing_to_meet { 0 } else { rows.files.len() };
        let (rows, work) = (Arc::new(rows), Arc::new(self));
        let files = (0..count).map(|file| of_file(&work, &rows, file));
        let files: Vec<_> = files.collect();
        let files: Vec<(DeletePlan, Vec<OfUnit>)> = stream::iter(files)
            .buffered(CONCURRENT_FILES)
            .try_collect()
            .await?;
        let mut change = Effect::default();
        change.gone.rows = Some(0);
        let mut met = RoaringBitmap::new();
        for (found, units) in files {
            change.gone.add(found);
            for unit in units {
                change.batches.extend(unit.batches);
                change.updated += unit.updated;
                met |= unit.met;
            }
        }
        let inserted = run_blocking(move || work.inserted(&met)).await?;
        change.inserted = inserted.rows;
        change.batches.extend(inserted.written);
        change.schema = change.batches.first().map(RecordBatch::schema);
        Ok(change)
    }

    /// What comes of the rows of the source that have no counterpart.
    fn inserted(&self, met: &RoaringBitmap) -> Result<Made> {
        let rows = u32::try_from(self.source.num_rows()).unwrap_or(u32::MAX);
        let new = (0..rows).filter(|row| !met.contains(*row));
        let new: UInt32Array = new.collect();
        if self.not_matched.is_empty() || new.is_empty() {
            return Ok(Made::default());
        }
        let columns = taken(self.source.columns(), &new)?;
        self.not_matched.apply(columns, new.len())
    }

    /// Decides on rows of the table, which have these numbers in their row group.
    fn decide(&self, batch: &RecordBatch, numbers: &[u32], made: &mut OfUnit) -> Result<()> {
        let keys = self
            .places
            .iter()
            .map(|place| Arc::clone(batch.column(*place)));
        let found = self.keys.find(&keys.collect::<Vec<_>>())?;
        let all = (0..).zip(&found);
        let met: UInt32Array = all
            .clone()
            .filter(|(_, f)| f.is_some())
            .map(|(n, _)| n)
            .collect();
        let alone: UInt32Array = all.filter(|(_, f)| f.is_none()).map(|(n, _)| n).collect();
        let of_source: UInt32Array = found.iter().flatten().copied().collect();
        made.met.extend(of_source.values().iter().copied());
        let mut columns = taken(self.source.columns(), &of_source)?;
        columns.extend(taken(batch.columns(), &met)?);
        let pairs = [
            (&self.matched, met, columns),
            (
                &self.not_matched_by_source,
                alone.clone(),
                taken(batch.columns(), &alone)?,
            ),
        ];
        for (clauses, rows, columns) in pairs {
            if clauses.is_empty() || rows.is_empty() {
                continue;
            }
            let done = clauses.apply(columns, rows.len())?;
            let decided = rows.values().iter().zip(&done.decided);
            let decided = decided.filter(|(_, decided)| **decided);
            let places = decided.filter_map(|(row, _)| usize::try_from(*row).ok());
            made.gone.extend(places.map(|place| numbers[place]));
            made.updated += done.rows;
            made.batches.extend(done.written);
        }
        Ok(())
    }
}

fn taken(columns: &[ArrayRef], rows: &UInt32Array) -> Result<Vec<ArrayRef>> {
    take_arrays(columns, rows, None).map_err(|e| Error::other(e.to_string()).with_source(e))
}

async fn of_file(
    work: &Arc<Merging>,
    rows: &Arc<SnapshotReader>,
    file: usize,
) -> Result<(DeletePlan, Vec<OfUnit>)> {
    let units = rows.open_row_groups(file).await?;
    let looked = units.iter().map(|unit| of_unit(work, rows, unit));
    let looked: Vec<_> = looked.collect();
    let looked: Vec<(MatchedRows, OfUnit)> = stream::iter(looked)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    let (hits, made): (Vec<MatchedRows>, Vec<OfUnit>) = looked.into_iter().unzip();
    Ok((plan_file(rows, file, hits), made))
}

async fn of_unit(
    work: &Arc<Merging>,
    rows: &Arc<SnapshotReader>,
    unit: &RowGroupScan,
) -> Result<(MatchedRows, OfUnit)> {
    let selection = rows.select(unit).await?;
    let all = || vec![true; unit.num_rows()].into();
    let kept = selection.mask.unwrap_or_else(all);
    let mut made = OfUnit::default();
    if kept.true_count() > 0 {
        let numbers: Vec<u32> = kept.values().set_indices_u32().collect();
        let batches = rows.read_selected(unit, kept, &work.columns.schema).await?;
        let work = Arc::clone(work);
        made = run_blocking(move || {
            let mut made = OfUnit::default();
            let mut at = 0;
            for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
                let end = at + batch.num_rows();
                work.decide(batch, &numbers[at..end], &mut made)?;
                at = end;
            }
            Ok(made)
        })
        .await?;
    }
    let hit = MatchedRows {
        row_group: unit.clone(),
        covers_group: made.gone.len() == selection.live_rows as u64,
        rows: std::mem::take(&mut made.gone),
    };
    Ok((hit, made))
}
