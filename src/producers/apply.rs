//! Applying instructions to a stage's content: the run that it adds, and the target keys that it changes.
//!
//! An instruction is about a pair of target key and source key: its rows are replaced by those of the instruction, of
//! which there may be none. Only pairs with instructions are read, and of target keys that may have gained their first row
//! or lost their last whether they have others. Where the next stages take all rows of target keys, those with few rows are
//! read as a whole, once ([`super::old_rows`]).

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::types::Int32Type;
use arrow_schema::ArrowError;

use super::cursor::{Cursor, Picker};
use super::diff::{
    CHANGED, ChangeType, Delta, HAD, HAS, KeyWriter, delta, diff, distinct, flags_of, keys_only,
    select_keys,
};
use super::key_rows::SplitKeys;
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::old_rows::{OldRows, OldRowsReader, OldRowsUse, WholeLookup};
use super::tables::TableShape;
use crate::error::Result;
use crate::files::{BATCH_ROWS, Merge, SortedBatches, Spill, SpillWriter};
use crate::run::RunEnd;

/// What an update changes in the content of a stage.
#[derive(Debug, Clone)]
pub(super) struct Applied {
    pub(super) content: Delta,
    /// The changed target keys, with the columns of [`super::tables::KeyAndValue::update`].
    pub(super) update: Spill,
    /// Rows that it has read and that the next stages take.
    pub(super) old: Option<OldRows>,
}

/// Instructions: the pairs of which the rows go, and the rows that come, both in the order of the content.
pub(super) struct Instructions<'a> {
    pub(super) deletes: &'a Spill,
    pub(super) upserts: &'a Spill,
}

/// What becomes of instructions, beside a new content.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ApplyOptions {
    /// Whether target keys whose rows stay the same are left out of the update.
    pub(super) skip_unchanged: bool,
    /// What is set aside of the rows that are read.
    pub(super) old: OldRowsUse,
}

/// Compares instructions with the stored content.
pub(super) fn apply(
    content: &StoredTable,
    update: &TableShape,
    instructions: &Instructions<'_>,
    options: ApplyOptions,
    memory_bytes: usize,
) -> Result<Applied> {
    let shape = &content.shape;
    let skip_unchanged = options.skip_unchanged;
    let new = || instructions.upserts.read().map_err(to_error);
    if content.runs.is_empty() {
        let targets = distinct(new()?, shape, 1, HAS | CHANGED, memory_bytes)?;
        return Ok(Applied {
            content: Delta {
                rows: instructions.upserts.clone(),
                has_deletes: false,
            },
            update: to_update(&targets, None, update, skip_unchanged, memory_bytes)?,
            old: None,
        });
    }
    let pairs = all_pairs(instructions, shape, memory_bytes)?;
    let (changes, whole) = if options.old.groups || options.old.pairs {
        let (old, reader) = OldRowsReader::open(content, &pairs, options.old, memory_bytes)?;
        let changes = diff(old, new()?, shape, memory_bytes)?;
        (changes, Some(reader.finish()?))
    } else {
        let old = content.read(Keys::Of(&pairs), shape.schema.fields().len())?;
        (diff(old, new()?, shape, memory_bytes)?, None)
    };
    let (targets, uncertain) = targets_of(&changes, shape, memory_bytes)?;
    let others = targets_with_others(content, &uncertain, &changes, whole.as_ref(), memory_bytes)?;
    Ok(Applied {
        content: delta(&changes, new()?, shape, memory_bytes)?,
        update: to_update(
            &targets,
            others.as_ref(),
            update,
            skip_unchanged,
            memory_bytes,
        )?,
        old: whole.map(|whole| whole.rows),
    })
}

/// The pairs with instructions, each once.
fn all_pairs(
    instructions: &Instructions<'_>,
    shape: &TableShape,
    memory_bytes: usize,
) -> Result<Spill> {
    let upserts = instructions.upserts.read().map_err(to_error)?;
    let upserts = upserts.map(|batch| batch?.project(&[0, 1]));
    let streams: [SortedBatches; 2] = [keys_only(instructions.deletes)?, Box::new(upserts)];
    let merge = Merge::new(streams, &shape.keys(2)?, BATCH_ROWS).map_err(to_error)?;
    distinct(Box::new(merge), shape, 2, 0, memory_bytes)
}

/// The target keys of changes, with what these say together, and those of them of which other rows decide.
fn targets_of(changes: &Spill, shape: &TableShape, memory_bytes: usize) -> Result<(Spill, Spill)> {
    let keys = shape.keys(1)?;
    let walk = || -> Result<(Spill, Spill), ArrowError> {
        let mut changes = Cursor::new(changes.read()?, &keys)?;
        let mut all = KeyWriter::new(shape, 1, memory_bytes);
        let mut uncertain = KeyWriter::new(shape, 1, memory_bytes);
        while let (Some(key), Some((batch, row))) =
            (changes.key().map(<[u8]>::to_vec), changes.row())
        {
            let batch = Arc::clone(batch);
            let mut flags = 0;
            while let (true, Some(row)) = (changes.is_at(&key), changes.row()) {
                flags |= flags_of(row);
                changes.advance()?;
            }
            all.add((&batch, row), flags)?;
            if flags & (HAD | HAS) != HAD | HAS {
                uncertain.add((&batch, row), flags)?;
            }
        }
        Ok((all.finish()?, uncertain.finish()?))
    };
    walk().map_err(to_error)
}

/// Those of some target keys that have rows of pairs without instructions, and maybe other such keys: what is known from
/// `whole`, and the rest from another lookup.
fn targets_with_others(
    content: &StoredTable,
    targets: &Spill,
    changes: &Spill,
    whole: Option<&WholeLookup>,
    memory_bytes: usize,
) -> Result<Option<Spill>> {
    if targets.rows() == 0 {
        return Ok(None);
    }
    let Some(whole) = whole else {
        return find_others(content, targets, changes, memory_bytes).map(Some);
    };
    let shape = &content.shape;
    let known = keys_only(&whole.targets)?;
    let unknown = select_keys(targets, known, false, shape, 1, memory_bytes)?;
    if unknown.rows() == 0 {
        return Ok(Some(whole.with_others.clone()));
    }
    let others = find_others(content, &unknown, changes, memory_bytes)?;
    let streams = [keys_only(&whole.with_others)?, keys_only(&others)?];
    let merge = Merge::new(streams, &shape.keys(1)?, BATCH_ROWS).map_err(to_error)?;
    distinct(Box::new(merge), shape, 1, 0, memory_bytes).map(Some)
}

/// Looks up which of some target keys have rows of pairs without instructions. One row of a key is enough: of keys with
/// many rows no more are read than it takes to find one.
fn find_others(
    content: &StoredTable,
    targets: &Spill,
    changes: &Spill,
    memory_bytes: usize,
) -> Result<Spill> {
    let shape = &content.shape;
    let pairs = shape.keys(2)?;
    let SplitKeys { few, many } = content.split_keys(targets, memory_bytes)?;
    let find = || -> Result<OtherPairs> {
        Ok(OtherPairs {
            changes: Cursor::new(changes.read().map_err(to_error)?, &pairs).map_err(to_error)?,
            with_others: KeyWriter::new(shape, 1, memory_bytes),
        })
    };
    let mut others = find()?;
    let stored = Cursor::new(content.read(Keys::Of(&few), 2)?, &pairs).map_err(to_error)?;
    others.find(stored, false).map_err(to_error)?;
    let of_few = others.with_others.finish().map_err(to_error)?;

    let mut others = find()?;
    for keys in keys_only(&many)? {
        let keys = keys.map_err(to_error)?;
        for row in 0..keys.num_rows() {
            let stored = content.read_key(None, &keys.column(0).slice(row, 1), 2, RunEnd::First)?;
            let stored = Cursor::new(stored, &pairs).map_err(to_error)?;
            others.find(stored, true).map_err(to_error)?;
        }
    }
    let of_many = others.with_others.finish().map_err(to_error)?;
    let streams = [keys_only(&of_few)?, keys_only(&of_many)?];
    let merge = Merge::new(streams, &shape.keys(1)?, BATCH_ROWS).map_err(to_error)?;
    distinct(Box::new(merge), shape, 1, 0, memory_bytes)
}

/// Finds target keys that have pairs without instructions.
struct OtherPairs {
    changes: Cursor,
    with_others: KeyWriter,
}

impl OtherPairs {
    /// Finds those of stored rows, or the first one. It comes after those of earlier calls.
    fn find(&mut self, mut stored: Cursor, first_only: bool) -> Result<(), ArrowError> {
        while let (Some(pair), Some(row)) = (stored.key(), stored.row()) {
            self.changes.seek(pair)?;
            if !self.changes.is_at(pair) {
                self.with_others.add(row, 0)?;
                if first_only {
                    break;
                }
            }
            stored.advance()?;
        }
        Ok(())
    }
}

/// The changed target keys and how they changed; `others` have rows besides those that changed.
fn to_update(
    targets: &Spill,
    others: Option<&Spill>,
    update: &TableShape,
    skip_unchanged: bool,
    memory_bytes: usize,
) -> Result<Spill> {
    let keys = update.keys(1)?;
    let walk = || -> Result<Spill, ArrowError> {
        let others = others.map_or_else(
            || Ok(Box::new(std::iter::empty()) as SortedBatches),
            Spill::read,
        )?;
        let (mut targets, mut others) = (
            Cursor::new(targets.read()?, &keys)?,
            Cursor::new(others, &keys)?,
        );
        let mut writer = UpdateWriter::new(update, memory_bytes);
        while let (Some(key), Some(row)) = (targets.key(), targets.row()) {
            let mut flags = flags_of(row);
            others.seek(key)?;
            if others.is_at(key) {
                flags |= HAD | HAS;
            }
            if flags & CHANGED != 0 || !skip_unchanged {
                writer.add(row, change_type(flags))?;
            }
            targets.advance()?;
        }
        writer.finish()
    };
    walk().map_err(to_error)
}

/// The changed keys of a table whose rows are all replaced: `old` are the keys that had rows, `new` those that have, both
/// in the order of `update`.
pub(super) fn replaced_keys(
    old: SortedBatches,
    new: &Spill,
    update: &TableShape,
    memory_bytes: usize,
) -> Result<Spill> {
    let keys = update.keys(1)?;
    let walk = || -> Result<Spill, ArrowError> {
        let new = new.read()?.map(|batch| batch?.project(&[0]));
        let (mut old, mut new) = (Cursor::new(old, &keys)?, Cursor::new(Box::new(new), &keys)?);
        let mut writer = UpdateWriter::new(update, memory_bytes);
        loop {
            let (had, has) = match (old.key(), new.key()) {
                (None, None) => return writer.finish(),
                (a, b) => (
                    b.is_none_or(|b| a.is_some_and(|a| a <= b)),
                    a.is_none_or(|a| b.is_some_and(|b| b <= a)),
                ),
            };
            let flags = if had { HAD } else { 0 } | if has { HAS } else { 0 };
            if let Some(row) = if had { old.row() } else { new.row() } {
                writer.add(row, change_type(flags))?;
            }
            if had {
                old.advance()?;
            }
            if has {
                new.advance()?;
            }
        }
    };
    walk().map_err(to_error)
}

pub(super) fn change_type(flags: u8) -> ChangeType {
    match (flags & HAD != 0, flags & HAS != 0) {
        (_, false) => ChangeType::Delete,
        (false, true) => ChangeType::Add,
        (true, true) => ChangeType::Update,
    }
}

/// Sets aside the keys of an update.
pub(super) struct UpdateWriter {
    shape: TableShape,
    picker: Picker,
    types: Vec<i32>,
    spill: SpillWriter,
}

impl UpdateWriter {
    pub(super) fn new(shape: &TableShape, memory_bytes: usize) -> Self {
        Self {
            spill: SpillWriter::new(&shape.schema, memory_bytes),
            shape: shape.clone(),
            picker: Picker::default(),
            types: Vec::new(),
        }
    }

    /// Adds the key of a row, which is its first column.
    pub(super) fn add(
        &mut self,
        row: (&Arc<RecordBatch>, usize),
        change: ChangeType,
    ) -> Result<(), ArrowError> {
        self.picker.pick(row.0, row.1);
        self.types.push(change as i32);
        if self.picker.is_full() {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ArrowError> {
        for (rows, types) in self.picker.take_with::<Int32Type>(&mut self.types)? {
            let columns = vec![Arc::clone(rows.column(0)), types];
            let schema = Arc::clone(&self.shape.schema);
            self.spill.push(RecordBatch::try_new(schema, columns)?)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Spill, ArrowError> {
        self.flush()?;
        self.spill.finish()
    }
}
