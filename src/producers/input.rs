//! What callers push to a source, or read from a table that feeds it: checked, sorted and set aside, before anything is
//! planned. A plan that lost a race is made again from there, not from the caller's stream.
//!
//! Rows that are many may have been sorted in parts before, by other processes: as runs in the store that nothing names
//! ([`super::stage_rows`]).

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_cast::display::array_value_to_string;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use serde::{Deserialize, Serialize};

use super::cursor::{Cursor, Picker};
use super::diff::{CHANGED, Delta, DeltaWriter, HAD, HAS, KeyWriter, delta, diff, flags_of};
use super::format::ConsumedInput;
use super::functions::Rows;
use super::graph::SourceNode;
use super::keys::{normalize, retype};
use super::layers::{to_arrow, to_error};
use super::lookup::{Keys, StoredTable, cancellable};
use super::tables::{KeyAndValue, TableShape};
use crate::error::{Error, Result};
use crate::files::{SortColumn, Spill, SpillWriter, align_to_schema, sort_batches};
use crate::parquet::Cancel;
use crate::parquet::plain_values::plain_values;
use crate::parquet::required::check_nulls;

/// Which keys of a source are changed, and to what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeScope {
    /// Keys of upserts get their rows, keys of deletes none. No key is both.
    #[default]
    Named,
    /// All keys: those without upserts are deleted, those whose rows stay the same are no change. There are no deletes.
    All,
    /// The keys of deletes, which may be there more than once, get their rows among the upserts, or none. Upserts of other
    /// keys are left out. Keys whose rows stay the same are no change.
    Listed,
}

/// Rows that are pushed to a source.
pub enum PushedRows {
    /// A stream, in any order.
    Stream(Rows),
    /// What [`super::stage_rows`] returned for each part of them.
    Staged(Vec<Vec<u8>>),
}

impl std::fmt::Debug for PushedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stream(_) => f.write_str("Stream"),
            Self::Staged(messages) => write!(f, "Staged({} parts)", messages.len()),
        }
    }
}

/// The changes of a source: rows that replace those of their keys, and keys. Both are staged if one is.
#[derive(Default)]
pub struct Changes {
    /// Rows with the columns `key` and `value`.
    pub upserts: Option<PushedRows>,
    /// Rows with the column `key`.
    pub deletes: Option<PushedRows>,
    /// Which keys are changed.
    pub scope: ChangeScope,
    /// Whether the rows of a key are sorted by their values. Otherwise they are kept in their order.
    pub is_canonical: bool,
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (upserts, deletes) = (self.upserts.is_some(), self.deletes.is_some());
        write!(
            f,
            "Changes(upserts={upserts}, deletes={deletes}, scope={:?})",
            self.scope
        )
    }
}

/// How far a source has read a table, before an update and after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumedStep {
    /// As the changes were computed from; None if it had read nothing.
    pub before: Option<ConsumedInput>,
    /// As the update leaves it.
    pub after: ConsumedInput,
}

/// Changes that were checked.
#[derive(Debug, Clone)]
pub(super) struct SourceChanges {
    shape: TableShape,
    /// Rows `key` and `value`, sorted.
    upserts: Spill,
    /// The keys that change, each with [`HAS`] if it has rows.
    keys: Spill,
    is_replaced: bool,
    skip_unchanged: bool,
}

/// What an update changes in a source.
#[derive(Debug, Clone)]
pub(super) struct SourceUpdate {
    pub(super) rows: Delta,
    /// The changed keys.
    pub(super) keys: Spill,
}

/// Checks rows that are pushed to a source, and sorts them. `is_canonical` also by their values.
pub(super) fn sort_rows(
    source: &SourceNode,
    rows: Rows,
    columns: usize,
    is_canonical: bool,
    memory_bytes: usize,
    cancel: &Cancel,
) -> Result<Spill> {
    let shape = shape_of(source);
    let kept: Vec<usize> = (0..columns).collect();
    let stored = Arc::new(shape.schema.project(&kept).map_err(to_error)?);
    let declared = [
        source.key.clone().with_name("key"),
        source.value.clone().with_name("value"),
    ];
    let declared = Arc::new(Schema::new(declared[..columns].to_vec()));
    check_columns(&declared, &rows.schema())?;
    let aligned = align_to_schema(rows, &declared)?;
    let normal = as_stored(aligned, &declared, &stored);
    let normal = cancellable(normal, cancel);
    let normal = Box::new(RecordBatchIterator::new(normal, Arc::clone(&stored)));
    let order = order_of_rows(&shape, is_canonical && columns > 1);
    let sorted = sort_batches(normal, &order, memory_bytes / 4)?;
    Spill::collect(&stored, sorted, memory_bytes / 16).map_err(to_error)
}

pub(super) fn shape_of(source: &SourceNode) -> TableShape {
    let columns = KeyAndValue {
        key: source.key.clone(),
        value: source.value.clone(),
        descending: source.descending,
        has_state: false,
        source_key: None,
        order_by: None,
    };
    columns.source()
}

pub(super) fn order_of_rows(shape: &TableShape, is_canonical: bool) -> Vec<SortColumn> {
    let mut order = shape.sort_columns(1);
    if is_canonical {
        order.push(SortColumn::ascending(1));
    }
    order
}

pub(super) fn of_source(source: &SourceNode, e: Error) -> Error {
    e.context(format!("source {:?}", source.name))
}

impl SourceChanges {
    /// The changes that sorted rows are. Refuses a key that is deleted twice, and one that is both deleted and upserted.
    pub(super) fn from_sorted(
        source: &SourceNode,
        mut upserts: Spill,
        deletes: &Spill,
        scope: ChangeScope,
        memory_bytes: usize,
    ) -> Result<Self> {
        let shape = shape_of(source);
        let keys = if scope == ChangeScope::Listed {
            let listed = listed_keys(&shape, &upserts, deletes, memory_bytes / 16);
            let (listed, keys) = listed.map_err(to_error).map_err(|e| of_source(source, e))?;
            upserts = listed;
            keys
        } else {
            let keys = changed_keys(&shape, &upserts, deletes, memory_bytes / 16);
            keys.map_err(|e| of_source(source, e))?
        };
        Ok(Self {
            shape,
            upserts,
            keys,
            is_replaced: scope == ChangeScope::All,
            skip_unchanged: source.skip_unchanged || scope != ChangeScope::Named,
        })
    }

    /// Whether nothing is pushed.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.rows() == 0 && !self.is_replaced
    }

    /// What the changes are beside the stored rows. These are all of a table, or all of a range of keys: `all_keys`.
    pub(super) fn plan(
        &self,
        stored: &StoredTable,
        all_keys: Keys<'_>,
        memory_bytes: usize,
    ) -> Result<SourceUpdate> {
        let upserts = || self.upserts.read().map_err(to_error);
        if !self.skip_unchanged {
            return Ok(SourceUpdate {
                rows: self.as_delta(memory_bytes)?,
                keys: self.keys.clone(),
            });
        }
        let keys = if self.is_replaced {
            all_keys
        } else {
            Keys::Of(&self.keys)
        };
        let changes = diff(stored.read(keys, 2)?, upserts()?, &self.shape, memory_bytes)?;
        let keys = only_changed(&changes, &self.shape, memory_bytes)?;
        let rows = delta(&changes, upserts()?, &self.shape, memory_bytes)?;
        Ok(SourceUpdate { rows, keys })
    }

    /// The changes as a run, whatever is stored.
    fn as_delta(&self, memory_bytes: usize) -> Result<Delta> {
        let order = self.shape.keys(1)?;
        let walk = || -> Result<Delta, ArrowError> {
            let mut keys = Cursor::new(self.keys.read()?, &order)?;
            let mut upserts = Cursor::new(self.upserts.read()?, &order)?;
            let mut rows = DeltaWriter::new(&self.shape, memory_bytes);
            while let (Some(key), Some(row)) = (keys.key(), keys.row()) {
                if flags_of(row) & HAS == 0 {
                    rows.delete(row)?;
                }
                while let (true, Some(row)) = (upserts.is_at(key), upserts.row()) {
                    rows.upsert(row)?;
                    upserts.advance()?;
                }
                keys.advance()?;
            }
            rows.finish()
        };
        walk().map_err(to_error)
    }
}

fn check_columns(declared: &Schema, input: &Schema) -> Result<()> {
    let mut names = declared.fields().iter().map(|field| field.name());
    match names.find(|name| input.index_of(name).is_err()) {
        Some(name) => Err(Error::invalid(format!("column {name:?} is missing"))),
        None => Ok(()),
    }
}

/// The rows in the form in which they are stored.
fn as_stored(rows: Rows, declared: &SchemaRef, stored: &SchemaRef) -> Rows {
    let (declared, schema) = (Arc::clone(declared), Arc::clone(stored));
    let batches = rows.map(move |batch| {
        let batch = batch?;
        let columns = batch.columns().iter().zip(schema.fields()).enumerate();
        let columns = columns.map(|(index, (column, field))| {
            let declared = declared.field(index);
            check_nulls(column, declared, declared.name())?;
            let column = plain_values(&retype(column, field.data_type())?, declared.name())?;
            Ok(if index == 0 {
                normalize(&column)
            } else {
                column
            })
        });
        let columns: Result<Vec<ArrayRef>> = columns.collect();
        RecordBatch::try_new(Arc::clone(&schema), columns.map_err(to_arrow)?)
    });
    Box::new(RecordBatchIterator::new(batches, Arc::clone(stored)))
}

/// All keys, in their order, each once.
fn changed_keys(
    shape: &TableShape,
    upserts: &Spill,
    deletes: &Spill,
    memory_bytes: usize,
) -> Result<Spill> {
    let keys = shape.keys(1)?;
    let mut upserts = Cursor::new(upserts.read().map_err(to_error)?, &keys).map_err(to_error)?;
    let mut deletes = Cursor::new(deletes.read().map_err(to_error)?, &keys).map_err(to_error)?;
    let mut writer = KeyWriter::new(shape, 1, memory_bytes);
    let mut key = Vec::new();
    loop {
        let next = match (upserts.key(), deletes.key()) {
            (Some(a), Some(b)) => a.min(b),
            (Some(key), None) | (None, Some(key)) => key,
            (None, None) => break,
        };
        key.clear();
        key.extend_from_slice(next);
        if let (true, Some((batch, row))) = (deletes.is_at(&key), deletes.row()) {
            let text = array_value_to_string(batch.column(0), row).unwrap_or_default();
            writer.add((batch, row), HAD | CHANGED).map_err(to_error)?;
            deletes.advance().map_err(to_error)?;
            if deletes.is_at(&key) {
                let message = format!("key {text} is deleted twice; name it once");
                return Err(Error::invalid(message));
            }
            if upserts.is_at(&key) {
                let message = format!(
                    "key {text} is both deleted and upserted; upserts alone replace all its rows"
                );
                return Err(Error::invalid(message));
            }
            continue;
        }
        if let Some(row) = upserts.row() {
            writer.add(row, HAS | CHANGED).map_err(to_error)?;
        }
        while upserts.is_at(&key) {
            upserts.advance().map_err(to_error)?;
        }
    }
    writer.finish().map_err(to_error)
}

/// The listed keys, each once, and the upserts of these.
fn listed_keys(
    shape: &TableShape,
    upserts: &Spill,
    listed: &Spill,
    memory_bytes: usize,
) -> Result<(Spill, Spill), ArrowError> {
    let order = shape.keys(1).map_err(to_arrow)?;
    let mut listed = Cursor::new(listed.read()?, &order)?;
    let mut rows = Cursor::new(upserts.read()?, &order)?;
    let mut keys = KeyWriter::new(shape, 1, memory_bytes);
    let mut picker = Picker::default();
    let mut listed_rows = SpillWriter::new(&shape.schema, memory_bytes);
    while let (Some(key), Some((batch, row))) = (listed.key().map(<[u8]>::to_vec), listed.row()) {
        rows.seek(&key)?;
        let flags = if rows.is_at(&key) { HAS } else { HAD };
        keys.add((batch, row), flags | CHANGED)?;
        while let (true, Some((batch, row))) = (rows.is_at(&key), rows.row()) {
            picker.pick(batch, row);
            rows.advance()?;
            if picker.is_full() {
                picker
                    .take()?
                    .into_iter()
                    .try_for_each(|b| listed_rows.push(b))?;
            }
        }
        while listed.is_at(&key) {
            listed.advance()?;
        }
    }
    picker
        .take()?
        .into_iter()
        .try_for_each(|b| listed_rows.push(b))?;
    Ok((listed_rows.finish()?, keys.finish()?))
}

/// The keys that changed.
fn only_changed(changes: &Spill, shape: &TableShape, memory_bytes: usize) -> Result<Spill> {
    let keys = shape.keys(1)?;
    let walk = || -> Result<Spill, ArrowError> {
        let mut changes = Cursor::new(changes.read()?, &keys)?;
        let mut writer = KeyWriter::new(shape, 1, memory_bytes);
        while let Some(row) = changes.row() {
            let flags = flags_of(row);
            if flags & CHANGED != 0 {
                writer.add(row, flags)?;
            }
            changes.advance()?;
        }
        writer.finish()
    };
    walk().map_err(to_error)
}
