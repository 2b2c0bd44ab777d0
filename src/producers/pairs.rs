//! Joins by pairs of rows: what a change of one row costs is that row times the rows of the other side.
//!
//! The plan is in `docs/design/2026-11-25-joins.md`. Of each changed key and side there are the identities that changed, the
//! rows that these have now (`added`), and, only where they are needed, the rows of the others. What is emitted are
//! instructions: upserts of the pairs as they are, and deletes of all pairs that may have been.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::{ArrowError, SchemaRef};

use super::cursor::Cursor;
use super::diff::{KeyWriter, keys_only};
use super::feeders::FeederTable;
use super::graph::StageNode;
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::operators::JoinPlan;
use super::pair_writer::PairWriter;
use super::row_list::RowList;
use crate::error::{Error, Result};
use crate::files::{SortKeys, SortedBatches, Spill};

/// The rows that are joined, and the pairs that may have been, both in no order.
pub(super) struct Pairs {
    pub(super) upserts: Spill,
    pub(super) deletes: Spill,
}

/// Joins the rows of some keys.
pub(super) fn join_rows(
    stage: &StageNode,
    join: &JoinPlan,
    content: &StoredTable,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    memory_bytes: usize,
) -> Result<Pairs> {
    let (keys, [left, right]) = open_sides(join, feeders, keys, memory_bytes)?;
    let has_deletes = keys.is_some() && !content.runs.is_empty();
    let writer = |with_values| {
        PairWriter::new(
            stage,
            join,
            content,
            [&left.schema, &right.schema],
            with_values,
            memory_bytes,
        )
    };
    let mut joiner = Joiner {
        join,
        upserts: writer(true).map_err(to_error)?,
        deletes: has_deletes
            .then(|| writer(false))
            .transpose()
            .map_err(to_error)?,
        left,
        right,
    };
    joiner.walk(keys).map_err(to_error)?;
    let deletes = match joiner.deletes {
        Some(deletes) => deletes.finish(),
        None => Spill::collect(&PairWriter::schema(content, false), [], 0),
    };
    Ok(Pairs {
        upserts: joiner.upserts.finish().map_err(to_error)?,
        deletes: deletes.map_err(to_error)?,
    })
}

/// The changed keys, None for all of them or of a range, and the rows of both sides.
fn open_sides(
    join: &JoinPlan,
    feeders: &[FeederTable<'_>],
    keys: Keys<'_>,
    memory_bytes: usize,
) -> Result<(Option<Cursor>, [SideRows; 2])> {
    let [left, right] = feeders else {
        return Err(Error::other("internal error: a join has two feeders"));
    };
    let order = left.columns.source().keys(1)?;
    let Keys::Of(changed) = keys else {
        let side = |feeder: &FeederTable<'_>| {
            let rows = feeder.identified_rows(keys)?;
            SideRows::new(feeder, &order, rows, no_rows(), no_rows(), memory_bytes)
        };
        return Ok((None, [side(left)?, side(right)?]));
    };
    let pairs = [
        left.changed_pairs(memory_bytes)?,
        right.changed_pairs(memory_bytes)?,
    ];
    let needed = needed_keys(join, changed, feeders, &pairs, &order, memory_bytes)?;
    let side = |feeder: &FeederTable<'_>, pairs: &Spill, needed: &Spill| {
        let added = feeder.added_rows()?;
        let others = feeder.identified_rows(Keys::Of(needed))?;
        let changed = keys_only(pairs)?;
        SideRows::new(feeder, &order, added, changed, others, memory_bytes)
    };
    let sides = [
        side(left, &pairs[0], &needed[0])?,
        side(right, &pairs[1], &needed[1])?,
    ];
    let keys = Cursor::new(keys_only(changed)?, &order).map_err(to_error)?;
    Ok((Some(keys), sides))
}

fn no_rows() -> SortedBatches {
    Box::new(std::iter::empty())
}

/// The keys of which each side needs the rows that did not change.
fn needed_keys(
    join: &JoinPlan,
    changed: &Spill,
    feeders: &[FeederTable<'_>],
    pairs: &[Spill; 2],
    order: &Arc<SortKeys>,
    memory_bytes: usize,
) -> Result<[Spill; 2]> {
    let shape = feeders[0].columns.source();
    let [left_pairs, right_pairs] = [keys_only(&pairs[0])?, keys_only(&pairs[1])?];
    let [left_added, right_added] = [feeders[0].added_rows()?, feeders[1].added_rows()?];
    let keys = keys_only(changed)?;
    let kind = join.kind;
    let walk = || -> Result<[Spill; 2], ArrowError> {
        let mut keys = Cursor::new(keys, order)?;
        let mut of_pairs = [
            Cursor::new(left_pairs, order)?,
            Cursor::new(right_pairs, order)?,
        ];
        let mut added = [
            Cursor::new(left_added, order)?,
            Cursor::new(right_added, order)?,
        ];
        let writer = || KeyWriter::new(&shape, 1, memory_bytes);
        let (mut left, mut right) = (writer(), writer());
        while let (Some(key), Some((batch, row))) = (keys.key(), keys.row()) {
            let has = |cursors: &mut [Cursor; 2]| -> Result<[bool; 2], ArrowError> {
                for cursor in cursors.iter_mut() {
                    cursor.seek(key)?;
                }
                Ok([cursors[0].is_at(key), cursors[1].is_at(key)])
            };
            let ([left_changed, right_changed], [left_added, right_added]) =
                (has(&mut of_pairs)?, has(&mut added)?);
            if equals_some(batch.column(0), row) {
                if right_changed || (kind.may_have_right() && left_changed && !left_added) {
                    left.add((batch, row), 0)?;
                }
                if left_changed || (kind.may_have_left() && right_changed && !right_added) {
                    right.add((batch, row), 0)?;
                }
            }
            keys.advance()?;
        }
        Ok([left.finish()?, right.finish()?])
    };
    walk().map_err(to_error)
}

/// Whether a key equals itself: none that is null, or has a null in it, does.
fn equals_some(keys: &ArrayRef, row: usize) -> bool {
    keys.is_valid(row)
        && keys
            .as_struct_opt()
            .is_none_or(|keys| keys.columns().iter().all(|field| equals_some(field, row)))
}

/// The rows of a side in the order of the key, and those of the key that is joined.
struct SideRows {
    schema: SchemaRef,
    /// The identities that changed, by key and identity.
    changed_stream: Cursor,
    /// The rows that these have now, by key.
    added_stream: Cursor,
    /// Rows of keys that need them, by key and identity.
    others_stream: Cursor,
    changed: RowList,
    added: RowList,
    others: RowList,
}

impl SideRows {
    fn new(
        feeder: &FeederTable<'_>,
        order: &Arc<SortKeys>,
        added: SortedBatches,
        changed: SortedBatches,
        others: SortedBatches,
        memory_bytes: usize,
    ) -> Result<Self> {
        let shape = feeder.identified();
        let (schema, identities) = (Arc::clone(&shape.schema), shape.keys(2)?);
        let list = || RowList::new(&schema, memory_bytes);
        let ids = Arc::new(schema.project(&[0, 1]).map_err(to_error)?);
        Ok(Self {
            changed_stream: Cursor::new(changed, &identities).map_err(to_error)?,
            added_stream: Cursor::new(added, order).map_err(to_error)?,
            others_stream: Cursor::new(others, &identities).map_err(to_error)?,
            changed: RowList::new(&ids, memory_bytes),
            added: list(),
            others: list(),
            schema,
        })
    }

    /// Takes the rows of a key.
    fn take(&mut self, key: &[u8]) -> Result<(), ArrowError> {
        self.changed.clear();
        self.added.clear();
        self.others.clear();
        self.added_stream.seek(key)?;
        while let (true, Some(row)) = (self.added_stream.is_at(key), self.added_stream.row()) {
            self.added.push(row)?;
            self.added_stream.advance()?;
        }
        self.changed_stream.seek(key)?;
        self.others_stream.seek(key)?;
        while let Some(identity) = self.others_stream.key_from(key) {
            while let Some(changed) = self.changed_stream.key_from(key)
                && changed < identity
                && let Some(row) = self.changed_stream.row()
            {
                self.changed.push(row)?;
                self.changed_stream.advance()?;
            }
            // Those that changed are among the added ones.
            if !self.changed_stream.is_at(identity)
                && let Some(row) = self.others_stream.row()
            {
                self.others.push(row)?;
            }
            self.others_stream.advance()?;
        }
        while let (Some(_), Some(row)) =
            (self.changed_stream.key_from(key), self.changed_stream.row())
        {
            self.changed.push(row)?;
            self.changed_stream.advance()?;
        }
        self.changed.finish()?;
        self.added.finish()?;
        self.others.finish()
    }

    fn has_rows(&self) -> bool {
        !self.added.is_empty() || !self.others.is_empty()
    }
}

struct Joiner<'a> {
    join: &'a JoinPlan,
    left: SideRows,
    right: SideRows,
    upserts: PairWriter<'a>,
    deletes: Option<PairWriter<'a>>,
}

impl Joiner<'_> {
    /// Joins key by key; without keys, those that a side has.
    fn walk(&mut self, mut keys: Option<Cursor>) -> Result<(), ArrowError> {
        loop {
            let sides = [&self.left.added_stream, &self.right.added_stream];
            let first = if let Some(keys) = &keys {
                keys.key().zip(keys.row())
            } else {
                let heads = sides.map(|side| side.key().zip(side.row()));
                heads.into_iter().flatten().min_by_key(|(key, _)| *key)
            };
            let Some((key, (batch, row))) = first else {
                return Ok(());
            };
            let (key, can_match) = (key.to_vec(), equals_some(batch.column(0), row));
            self.left.take(&key)?;
            self.right.take(&key)?;
            self.join_key(can_match)?;
            if let Some(keys) = &mut keys {
                keys.advance()?;
            }
        }
    }

    fn join_key(&mut self, can_match: bool) -> Result<(), ArrowError> {
        let kind = self.join.kind;
        let (left, right) = (&self.left, &self.right);
        let (left_changed, right_changed) = (!left.changed.is_empty(), !right.changed.is_empty());
        let upserts = &mut self.upserts;
        if can_match && kind.has_pairs() {
            left.added.for_each(|l| {
                right.others.for_each(|r| upserts.pair(Some(l), Some(r)))?;
                right.added.for_each(|r| upserts.pair(Some(l), Some(r)))
            })?;
            if !right.added.is_empty() {
                left.others
                    .for_each(|l| right.added.for_each(|r| upserts.pair(Some(l), Some(r))))?;
            }
        }
        if kind.has_left(can_match && right.has_rows()) {
            left.added.for_each(|l| upserts.pair(Some(l), None))?;
            if right_changed {
                left.others.for_each(|l| upserts.pair(Some(l), None))?;
            }
        }
        if kind.may_have_right() && !(can_match && left.has_rows()) {
            right.added.for_each(|r| upserts.pair(None, Some(r)))?;
            if left_changed {
                right.others.for_each(|r| upserts.pair(None, Some(r)))?;
            }
        }
        let Some(deletes) = &mut self.deletes else {
            return Ok(());
        };
        if can_match && kind.has_pairs() {
            left.changed.for_each(|l| {
                right.others.for_each(|r| deletes.pair(Some(l), Some(r)))?;
                right.changed.for_each(|r| deletes.pair(Some(l), Some(r)))
            })?;
            if right_changed {
                left.others
                    .for_each(|l| right.changed.for_each(|r| deletes.pair(Some(l), Some(r))))?;
            }
        }
        if kind.may_have_left() {
            left.changed.for_each(|l| deletes.pair(Some(l), None))?;
            if right_changed {
                left.others.for_each(|l| deletes.pair(Some(l), None))?;
            }
        }
        if kind.may_have_right() {
            right.changed.for_each(|r| deletes.pair(None, Some(r)))?;
            if left_changed {
                right.others.for_each(|r| deletes.pair(None, Some(r)))?;
            }
        }
        Ok(())
    }
}
