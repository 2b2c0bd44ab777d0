//! The rows of changed target keys as they were, read once.
//!
//! An update asks the content of a stage for the old rows of the pairs that change, whether their target keys have other
//! rows, and for all rows of these keys, to feed the next stages. Of keys with few rows one lookup by target key answers
//! all: the rows of the pairs go on to be compared, and all of them are set aside, up to a number of bytes. The next stages
//! take them from here; they look up only keys that are not among [`OldRows::whole`].
//!
//! They are rows of the version that an update is planned on, and nothing of what it adds: of this plan alone, and of keys
//! and pairs as the newest of all stored runs have them.

use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::ArrowError;
use arrow_select::filter::filter_record_batch;

use super::cursor::Cursor;
use super::diff::{KeyWriter, distinct, keys_only, select_keys};
use super::key_rows::SplitKeys;
use super::layers::to_error;
use super::lookup::{Keys, StoredTable};
use super::tables::TableShape;
use crate::error::{Error, Result};
use crate::files::{BATCH_ROWS, Merge, SortKeys, SortedBatches, Spill, SpillWriter, row_bytes};
use crate::sync::mutex::lock;

/// More keys are not looked up as a whole, because the rows of most of them would be too many to be set aside.
const MAX_KEYS: u64 = 1 << 16;
/// The rows of a key are not set aside if they have, about, more bytes.
const MAX_KEY_BYTES: usize = 64 << 10;
/// How many times the bytes that it keeps in memory an update sets aside of a stage.
const MEMORY_MULTIPLE: usize = 4;

/// What the stages behind one take of its rows as they were.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OldRowsUse {
    /// All rows of changed target keys.
    pub(super) groups: bool,
    /// The rows of changed pairs.
    pub(super) pairs: bool,
}

/// Rows as they were, with the columns that readers see, in the order of the content.
#[derive(Debug, Clone)]
pub(super) struct OldRows {
    /// The target keys of which `groups` has all rows. Some of them may have none.
    pub(super) whole: Spill,
    /// Rows of these keys, and maybe of others.
    pub(super) groups: Spill,
    /// Whether all rows of `groups` are of these keys.
    pub(super) is_exact: bool,
    /// The rows of the changed pairs of all other keys, unless they are too many.
    pub(super) pairs: Option<Spill>,
}

/// What was learned of the target keys that were looked up as a whole.
pub(super) struct WholeLookup {
    pub(super) targets: Spill,
    /// Those that have rows of pairs that do not change.
    pub(super) with_others: Spill,
    pub(super) rows: OldRows,
}

/// Reads the old rows of changed pairs, and records what else is asked for.
pub(super) struct OldRowsReader {
    targets: Spill,
    recorder: Arc<Mutex<Recorder>>,
}

impl OldRowsReader {
    /// The rows of `pairs`, with all columns, and their reader, which is finished when they have been read.
    pub(super) fn open(
        content: &StoredTable,
        pairs: &Spill,
        for_use: OldRowsUse,
        memory_bytes: usize,
    ) -> Result<(SortedBatches, Self)> {
        let shape = &content.shape;
        let targets = distinct(keys_only(pairs)?, shape, 1, 0, memory_bytes)?;
        let SplitKeys { few, many } = if for_use.groups && targets.rows() <= MAX_KEYS {
            content.split_by_runs(&targets, memory_bytes)?
        } else {
            let none = KeyWriter::new(shape, 1, memory_bytes).finish();
            SplitKeys {
                few: none.map_err(to_error)?,
                many: targets,
            }
        };
        let recorder = Recorder::new(shape, pairs, &few, for_use.pairs, memory_bytes)?;
        let recorder = Arc::new(Mutex::new(recorder));
        let columns = shape.schema.fields().len();
        let pass = |keys: &Spill, take: Take| -> Result<SortedBatches> {
            lock(&recorder).streams += 1;
            Ok(Box::new(RecordedBatches {
                batches: content.read(Keys::Of(keys), columns)?,
                recorder: Some(Arc::clone(&recorder)),
                take,
            }))
        };
        let rows: SortedBatches = if few.rows() == 0 {
            pass(pairs, Recorder::take_pairs)?
        } else if many.rows() == 0 {
            pass(&few, Recorder::take_groups)?
        } else {
            let of_many = select_keys(pairs, keys_only(&many)?, true, shape, 2, memory_bytes)?;
            let streams = [
                pass(&few, Recorder::take_groups)?,
                pass(&of_many, Recorder::take_pairs)?,
            ];
            Box::new(Merge::new(streams, &shape.keys(2)?, BATCH_ROWS).map_err(to_error)?)
        };
        let targets = few;
        Ok((rows, Self { targets, recorder }))
    }

    /// What it recorded of all rows.
    pub(super) fn finish(self) -> Result<WholeLookup> {
        let recorder = Arc::into_inner(self.recorder).map(|recorder| {
            recorder
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
        });
        match recorder {
            Some(recorder) if recorder.streams == 0 => {
                recorder.finish(self.targets).map_err(to_error)
            }
            _ => Err(Error::other(
                "internal error: old rows that have not been read",
            )),
        }
    }
}

type Take = fn(&mut Recorder, RecordBatch) -> Result<RecordBatch, ArrowError>;

/// Batches that pass a recorder.
struct RecordedBatches {
    batches: SortedBatches,
    /// `None` when they have ended.
    recorder: Option<Arc<Mutex<Recorder>>>,
    take: Take,
}

impl Iterator for RecordedBatches {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let recorder = self.recorder.as_ref()?;
        if let Some(batch) = self.batches.next() {
            return Some(batch.and_then(|batch| (self.take)(&mut lock(recorder), batch)));
        }
        lock(recorder).streams -= 1;
        self.recorder = None;
        None
    }
}

/// Sets old rows aside as they pass.
struct Recorder {
    /// How many streams have not ended.
    streams: usize,
    visible: Vec<usize>,
    pair_order: Arc<SortKeys>,
    /// All pairs that change.
    changed: Cursor,
    /// The target keys that are looked up as a whole, from the one on whose rows come.
    targets: Cursor,
    /// What is known of that key: about how many bytes its rows have, whether one is of a pair that does not change, and
    /// whether all are set aside.
    key_bytes: usize,
    has_others: bool,
    is_whole: bool,
    with_others: KeyWriter,
    whole: KeyWriter,
    is_exact: bool,
    groups: SpillWriter,
    /// The rows of pairs of other keys; None if they are too many or nobody takes them.
    pairs: Option<SpillWriter>,
    bytes: usize,
    max_bytes: usize,
}

impl Recorder {
    fn new(
        shape: &TableShape,
        pairs: &Spill,
        targets: &Spill,
        keeps_pairs: bool,
        memory_bytes: usize,
    ) -> Result<Self> {
        let visible: Vec<usize> = (0..shape.visible).collect();
        let schema = Arc::new(shape.schema.project(&visible).map_err(to_error)?);
        let pair_order = shape.keys(2)?;
        let targets = Cursor::new(keys_only(targets)?, &shape.keys(1)?);
        Ok(Self {
            streams: 0,
            changed: Cursor::new(keys_only(pairs)?, &pair_order).map_err(to_error)?,
            targets: targets.map_err(to_error)?,
            key_bytes: 0,
            has_others: false,
            is_whole: true,
            with_others: KeyWriter::new(shape, 1, memory_bytes),
            whole: KeyWriter::new(shape, 1, memory_bytes),
            is_exact: true,
            groups: SpillWriter::new(&schema, memory_bytes),
            pairs: keeps_pairs.then(|| SpillWriter::new(&schema, memory_bytes)),
            bytes: 0,
            max_bytes: memory_bytes.saturating_mul(MEMORY_MULTIPLE),
            visible,
            pair_order,
        })
    }

    /// Takes all rows of the next target keys; gives those of pairs that change.
    fn take_groups(&mut self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        let rows = batch.project(&self.visible)?;
        self.bytes += rows.get_array_memory_size();
        let is_full = self.bytes > self.max_bytes;
        let bytes_of_row = row_bytes(&rows);
        let count = batch.num_rows();
        let (mut is_changed, mut is_kept) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for pair in &self.pair_order.convert_batch(&batch)? {
            let pair = pair.data();
            while self.targets.key().is_some_and(|key| !pair.starts_with(key)) {
                self.end_target()?;
            }
            self.changed.seek(pair)?;
            is_changed.push(self.changed.is_at(pair));
            if !self.changed.is_at(pair)
                && !self.has_others
                && let Some(target) = self.targets.row()
            {
                self.with_others.add(target, 0)?;
                self.has_others = true;
            }
            self.key_bytes += bytes_of_row;
            self.is_whole &= !is_full && self.key_bytes <= MAX_KEY_BYTES;
            is_kept.push(self.is_whole);
        }
        self.groups.push(select_rows(rows, is_kept)?)?;
        select_rows(batch, is_changed)
    }

    /// The rows of the key have all been there.
    fn end_target(&mut self) -> Result<(), ArrowError> {
        if let (true, Some(target)) = (self.is_whole, self.targets.row()) {
            self.whole.add(target, 0)?;
        }
        self.is_exact &= self.is_whole;
        (self.key_bytes, self.has_others, self.is_whole) = (0, false, true);
        self.targets.advance()
    }

    /// Takes rows of changed pairs of other keys.
    fn take_pairs(&mut self, batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
        if let Some(mut pairs) = self.pairs.take() {
            let rows = batch.project(&self.visible)?;
            self.bytes += rows.get_array_memory_size();
            if self.bytes <= self.max_bytes {
                pairs.push(rows)?;
                self.pairs = Some(pairs);
            }
        }
        Ok(batch)
    }

    fn finish(mut self, targets: Spill) -> Result<WholeLookup, ArrowError> {
        while self.targets.key().is_some() {
            self.end_target()?;
        }
        let pairs = match self.pairs {
            // The pairs of keys that were not set aside are missing.
            Some(_) if !self.is_exact => None,
            pairs => pairs.map(SpillWriter::finish).transpose()?,
        };
        let rows = OldRows {
            whole: self.whole.finish()?,
            groups: self.groups.finish()?,
            is_exact: self.is_exact,
            pairs,
        };
        Ok(WholeLookup {
            targets,
            with_others: self.with_others.finish()?,
            rows,
        })
    }
}

fn select_rows(batch: RecordBatch, is_selected: Vec<bool>) -> Result<RecordBatch, ArrowError> {
    if is_selected.iter().all(|selected| *selected) {
        return Ok(batch);
    }
    filter_record_batch(&batch, &BooleanArray::from(is_selected))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field};

    use super::super::tables::KeyAndValue;
    use super::*;

    /// Target key, source key and value.
    type Row = [i64; 3];

    fn shape() -> TableShape {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        let columns = KeyAndValue {
            key: field("key"),
            value: field("value"),
            descending: false,
            has_state: false,
            source_key: None,
            order_by: None,
        };
        columns.content(&columns.source_keys(&columns))
    }

    fn to_batch(rows: &[Row]) -> RecordBatch {
        let columns = [0, 1, 2].map(|at| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row[at])))
        });
        RecordBatch::try_new(shape().schema, columns.into()).unwrap()
    }

    fn to_keys(rows: &[Row], columns: usize) -> Spill {
        let mut keys = KeyWriter::new(&shape(), columns, 1 << 20);
        let batch = Arc::new(to_batch(rows));
        (0..rows.len()).for_each(|row| keys.add((&batch, row), 0).unwrap());
        keys.finish().unwrap()
    }

    /// The rows of batches; a column that they do not have is 0.
    fn to_rows(batches: impl IntoIterator<Item = RecordBatch>) -> Vec<Row> {
        let batches = batches.into_iter().flat_map(|batch| {
            let value = |at: usize, row: usize| {
                let column = batch.columns().get(at)?;
                Some(column.as_primitive::<Int64Type>().value(row))
            };
            let rows = (0..batch.num_rows())
                .map(|row| [0, 1, 2].map(|at| value(at, row).unwrap_or_default()));
            rows.collect::<Vec<Row>>()
        });
        batches.collect()
    }

    fn read(spill: &Spill) -> Vec<Row> {
        to_rows(spill.read().unwrap().map(Result::unwrap))
    }

    fn read_keys(keys: &Spill) -> BTreeSet<i64> {
        let keys = to_rows(keys_only(keys).unwrap().map(Result::unwrap));
        keys.iter().map(|key| key[0]).collect()
    }

    /// Rows of keys 0, 3, 6 and so on: each has one pair more than the one before it, every fifth pair has two rows.
    fn stored_rows() -> Vec<Row> {
        let pairs = (0..12).flat_map(|key| (0..=key).map(move |source| (key * 3, source * 2)));
        let rows = pairs.flat_map(|(key, source)| {
            let rows = if (key + source) % 5 == 0 { 2 } else { 1 };
            (0..rows).map(move |value| [key, source, value])
        });
        rows.collect()
    }

    #[test]
    fn keys_are_whole_with_all_of_their_rows_however_many_are_set_aside() {
        let stored = stored_rows();
        let all_keys: BTreeSet<i64> = stored.iter().map(|row| row[0]).collect();
        // Among the pairs, and the keys, are some without rows.
        let pairs: Vec<Row> = (0..40)
            .flat_map(|key| [0, 2, 7].map(|source| [key, source, 0]))
            .filter(|pair| (pair[0] + pair[1]) % 4 != 0)
            .collect();
        let targets: Vec<Row> = (0..40).map(|key| [key, 0, 0]).collect();
        let is_changed = |row: &Row| pairs.iter().any(|pair| pair[..2] == row[..2]);
        let with_others: BTreeSet<i64> = stored
            .iter()
            .filter(|row| !is_changed(row))
            .map(|row| row[0])
            .collect();
        let mut some_are_whole = false;
        for memory_bytes in [0, 300, 600, 1200, 1 << 20] {
            for batch_rows in [1, 3, 7, 1000] {
                let (pairs, targets) = (to_keys(&pairs, 2), to_keys(&targets, 1));
                let mut recorder =
                    Recorder::new(&shape(), &pairs, &targets, true, memory_bytes).unwrap();
                let passed = stored
                    .chunks(batch_rows)
                    .map(|rows| recorder.take_groups(to_batch(rows)).unwrap());
                let passed = to_rows(passed.collect::<Vec<_>>());
                let changed: Vec<Row> = stored.iter().copied().filter(is_changed).collect();
                assert_eq!(passed, changed);
                let lookup = recorder.finish(targets).unwrap();
                assert_eq!(read_keys(&lookup.with_others), with_others);
                let (whole, groups) = (read_keys(&lookup.rows.whole), read(&lookup.rows.groups));
                let of_whole = |rows: &[Row]| -> Vec<Row> {
                    let rows = rows.iter().copied();
                    rows.filter(|row| whole.contains(&row[0])).collect()
                };
                assert_eq!(of_whole(&groups), of_whole(&stored));
                assert!((0..40).all(|key| whole.contains(&key) || all_keys.contains(&key)));
                let has_all = whole.len() == 40;
                some_are_whole |= !has_all && all_keys.iter().any(|key| whole.contains(key));
                assert!(has_all || memory_bytes < 1 << 20, "{batch_rows}");
                assert!(!has_all || memory_bytes > 0, "{batch_rows}");
                assert_eq!(lookup.rows.is_exact, has_all);
                assert_eq!(lookup.rows.pairs.is_some(), has_all);
                assert!(!has_all || groups == stored);
            }
        }
        assert!(some_are_whole);
    }

    #[test]
    fn a_key_with_many_bytes_is_not_set_aside() {
        let rows_of = |key: i64, rows: i64| (0..rows).map(move |source| [key, source, 0]);
        let many = i64::try_from(MAX_KEY_BYTES / 8).unwrap();
        let stored: Vec<Row> = rows_of(1, 3)
            .chain(rows_of(2, many))
            .chain(rows_of(3, 3))
            .collect();
        let changed = [[1, 0, 0], [2, 5, 0], [3, 9, 0]];
        let (pairs, targets) = (to_keys(&changed, 2), to_keys(&changed, 1));
        let mut recorder = Recorder::new(&shape(), &pairs, &targets, true, 1 << 30).unwrap();
        for rows in stored.chunks(1000) {
            recorder.take_groups(to_batch(rows)).unwrap();
        }
        let lookup = recorder.finish(targets).unwrap();
        assert_eq!(read_keys(&lookup.rows.whole), BTreeSet::from([1, 3]));
        assert_eq!(read_keys(&lookup.with_others), BTreeSet::from([1, 2, 3]));
        assert!(!lookup.rows.is_exact && lookup.rows.pairs.is_none());
    }

    #[test]
    fn pairs_are_set_aside_unless_they_are_too_many() {
        let stored = stored_rows();
        let (pairs, no_targets) = (to_keys(&stored, 2), to_keys(&[], 1));
        for (memory_bytes, keeps_pairs) in [(1 << 20, true), (1 << 20, false), (600, true)] {
            let recorder = Recorder::new(&shape(), &pairs, &no_targets, keeps_pairs, memory_bytes);
            let mut recorder = recorder.unwrap();
            for rows in stored.chunks(10) {
                let passed = recorder.take_pairs(to_batch(rows)).unwrap();
                assert_eq!(to_rows([passed]), rows);
            }
            let rows = recorder.finish(no_targets.clone()).unwrap().rows;
            let expected = (memory_bytes == 1 << 20 && keeps_pairs).then_some(&stored);
            assert_eq!(rows.pairs.as_ref().map(read).as_ref(), expected);
            assert_eq!((rows.whole.rows(), rows.is_exact), (0, true));
        }
    }
}
