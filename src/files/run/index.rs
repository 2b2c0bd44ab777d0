//! The key index of a file of a run: where the rows of some keys can be.
//!
//! The index has the key of every so many rows: of each block. Long values are cut, so these keys are bounds only, and
//! a key can be in several blocks; which rows of them have it, `search` finds out by comparing. `Blocks` are the bounds
//! of a file and `KeyIntervals` the selected keys, both cut alike and in the comparable form of arrow-row. Both ascend,
//! and are walked along together (`positions_in`) in steps that double: few keys cost few comparisons, many keys one
//! pass.

use std::ops::Range;

use arrow_row::Rows;
use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::KEY_INDEX;
use super::keys::CutKeys;
use super::selection::{KeyInterval, KeySelection, sort_keys};
use crate::error::{Error, ErrorKind, Result};

/// The keys of some rows of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KeyIndex {
    /// The distance of the rows.
    pub(super) every: u64,
    /// The key of row 0, of row `every`, and so on.
    pub(super) keys: Vec<Vec<Value>>,
    /// The key of the last row.
    pub(super) last: Vec<Value>,
}

impl KeyIndex {
    pub(super) fn from_footer(metadata: &ParquetMetaData) -> Result<Self> {
        let damaged = |reason: &str| {
            let message = format!("the file has no usable key index: {reason}");
            Error::new(ErrorKind::PartCorrupted, message)
        };
        let values = metadata.file_metadata().key_value_metadata();
        let mut entries = values.into_iter().flatten();
        let entry = entries.find(|entry| entry.key == KEY_INDEX);
        let text = entry.and_then(|entry| entry.value.as_ref());
        let text = text.ok_or_else(|| damaged("it is not a file of a sorted run"))?;
        let index: Self =
            serde_json::from_str(text).map_err(|e| damaged(&e.to_string()).with_source(e))?;
        let rows = u64::try_from(metadata.file_metadata().num_rows()).unwrap_or_default();
        let expected = rows
            .checked_div(index.every)
            .map(|full| full + u64::from(!rows.is_multiple_of(index.every)));
        if expected != Some(index.keys.len() as u64) {
            return Err(damaged("it does not have the number of keys that it says"));
        }
        Ok(index)
    }

    /// The blocks of a file with so many rows.
    pub(super) fn blocks(&self, cut: &CutKeys, rows: u64) -> Result<Blocks> {
        Ok(Blocks {
            every: self.every,
            rows,
            first_keys: cut.parse(&self.keys)?,
            last_key: cut.parse(std::slice::from_ref(&self.last))?,
        })
    }
}

/// The blocks of rows of a file, and between which keys they are.
#[derive(Debug)]
pub(super) struct Blocks {
    every: u64,
    rows: u64,
    first_keys: Rows,
    last_key: Rows,
}

impl Blocks {
    fn low(&self, at: usize) -> &[u8] {
        self.first_keys.row(at).data()
    }

    /// A key that the next block begins with can be at the end of this one.
    fn high(&self, at: usize) -> &[u8] {
        if at + 1 < self.first_keys.num_rows() {
            self.low(at + 1)
        } else {
            self.last_key.row(0).data()
        }
    }

    /// The number of rows of each block, except for the last one.
    pub(super) fn block_rows(&self) -> usize {
        usize::try_from(self.every).unwrap_or(usize::MAX)
    }

    /// The rows that can have one of the keys, as ascending ranges.
    pub(super) fn rows_of(&self, intervals: &KeyIntervals) -> Vec<Range<u64>> {
        let blocks = positions_in(
            &intervals.intervals,
            self.first_keys.num_rows(),
            |interval, at| intervals.begins_after(interval, self.high(at)),
            |interval, at| intervals.ends_before(interval, self.low(at)),
        );
        let first_row = |block: usize| (block as u64 * self.every).min(self.rows);
        let rows = blocks.into_iter();
        rows.map(|blocks| first_row(blocks.start)..first_row(blocks.end))
            .collect()
    }

    /// The number of blocks that a key can be in. `first` is where those of a smaller key begin, and then where those of
    /// this one do.
    pub(super) fn count(&self, key: &[u8], first: &mut usize) -> usize {
        let blocks = self.first_keys.num_rows();
        *first = gallop(*first, blocks, |at| self.high(at) < key);
        gallop(*first, blocks, |at| self.low(at) <= key) - *first
    }
}

/// The keys to read as key indexes have them, cut and in comparable form: ascending, disjoint intervals.
#[derive(Debug)]
pub(super) struct KeyIntervals {
    bounds: Rows,
    intervals: Vec<KeyInterval>,
}

impl KeyIntervals {
    /// The cut keys among which those of a selection are.
    pub(super) fn cut(selection: &KeySelection, keys: &CutKeys) -> Result<Self> {
        let (columns, mut intervals) = selection.intervals()?;
        let bounds = if columns.is_empty() {
            keys.parse(&[])?
        } else {
            keys.cut(&columns)?
        };
        if let KeySelection::Keys(_) = selection {
            sort_keys(&bounds, &mut intervals);
        }
        Ok(Self { bounds, intervals })
    }

    /// How many of the intervals have a key between two others, both included.
    pub(super) fn count_between(&self, low: &[u8], high: &[u8]) -> usize {
        let reaching = self.reaching(low);
        reaching.partition_point(|interval| !self.begins_after(interval, high))
    }

    /// The intervals that do not end before a key.
    fn reaching(&self, key: &[u8]) -> &[KeyInterval] {
        let ended = |interval: &KeyInterval| self.ends_before(interval, key);
        &self.intervals[self.intervals.partition_point(ended)..]
    }

    fn begins_after(&self, interval: &KeyInterval, key: &[u8]) -> bool {
        let from = interval.from.map(|row| self.bounds.row(row));
        from.is_some_and(|from| from.data() > key)
    }

    fn ends_before(&self, interval: &KeyInterval, key: &[u8]) -> bool {
        let to = interval.to.map(|row| self.bounds.row(row));
        to.is_some_and(|to| to.data() < key)
    }
}

/// The positions below `count` that are in one of the intervals, as ascending ranges with gaps between them. The keys at
/// these positions and the intervals ascend; a position can have the end of an interval and the begin of the next one.
pub(super) fn positions_in(
    intervals: &[KeyInterval],
    count: usize,
    begins_after: impl Fn(&KeyInterval, usize) -> bool,
    ends_before: impl Fn(&KeyInterval, usize) -> bool,
) -> Vec<Range<usize>> {
    let mut selected: Vec<Range<usize>> = Vec::new();
    if count == 0 {
        return selected;
    }
    let ended = intervals.partition_point(|interval| ends_before(interval, 0));
    let mut end = 0;
    for interval in &intervals[ended..] {
        let first = gallop(end, count, |at| begins_after(interval, at));
        if first == count {
            break;
        }
        end = gallop(first, count, |at| !ends_before(interval, at));
        match selected.last_mut() {
            _ if end == first => {}
            Some(last) if last.end == first => last.end = end,
            _ => selected.push(first..end),
        }
    }
    selected
}

/// The first position from `begin` on of which `holds` is not true, which no later one is; `end` if there is none. Looks
/// at few positions if it is near.
fn gallop(begin: usize, end: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut step) = (begin, 1);
    while low + step <= end && holds(low + step - 1) {
        low += step;
        step *= 2;
    }
    let mut high = end.min(low + step - 1);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array};
    use arrow_schema::{DataType, Field, Schema};

    use super::*;
    use crate::files::run::{KeyColumn, KeyRange};

    /// Blocks of ten rows each, with keys from several to many blocks each.
    #[test]
    fn keys_are_sought_in_the_blocks_that_can_have_them() {
        let schema = Arc::new(Schema::new(vec![Field::new("key", DataType::Int64, true)]));
        let key = [KeyColumn {
            name: "key".to_owned(),
            descending: false,
        }];
        let cut = CutKeys::new(&schema, &key, 1).unwrap();
        let (starts, last) = ([2, 5, 5, 5, 9, 20, 20, 31], 34);
        let index = KeyIndex {
            every: 10,
            keys: starts.map(|key| vec![Value::from(key)]).into(),
            last: vec![Value::from(last)],
        };
        let blocks = index.blocks(&cut, 77).unwrap();
        let ends = starts[1..].iter().chain([&last]);
        let bounds: Vec<(i64, i64)> = starts.into_iter().zip(ends.copied()).collect();
        let column =
            |keys: &[i64]| -> Vec<ArrayRef> { vec![Arc::new(Int64Array::from(keys.to_vec()))] };
        let all: Vec<i64> = (0..40).collect();
        let cut_keys = cut.cut(&column(&all)).unwrap();
        let mut first = 0;
        for (key, cut_key) in all.iter().zip(cut_keys.iter()) {
            let can_have = bounds
                .iter()
                .filter(|(low, high)| low <= key && key <= high);
            let count = blocks.count(cut_key.data(), &mut first);
            assert_eq!(count, can_have.count(), "{key}");
        }
        let rows_of = |selection: &KeySelection| -> Vec<u64> {
            let rows = blocks.rows_of(&KeyIntervals::cut(selection, &cut).unwrap());
            rows.into_iter().flatten().collect()
        };
        let expected = |is_in: &dyn Fn(i64, i64) -> bool| -> Vec<u64> {
            let rows = (0..77).zip(bounds.iter().flat_map(|bounds| [bounds; 10]));
            let selected = rows.filter(|(_, (low, high))| is_in(*low, *high));
            selected.map(|(row, _)| row).collect()
        };
        for keys in [
            vec![],
            vec![1, 35],
            vec![5],
            vec![33, 3, 9],
            vec![20, 12, 20],
            all,
        ] {
            let is_in = |low: i64, high: i64| keys.iter().any(|key| low <= *key && *key <= high);
            let selection = KeySelection::Keys(column(&keys));
            assert_eq!(rows_of(&selection), expected(&is_in), "{keys:?}");
        }
        let bound = |key: i64| Some(column(&[key]));
        let ends = [(None, bound(3)), (bound(6), bound(7)), (bound(25), None)];
        let ranges = ends.map(|(from, to)| KeyRange { from, to });
        let in_ranges = |low: i64, high: i64| low <= 3 || low <= 7 && 6 <= high || 25 <= high;
        assert_eq!(
            rows_of(&KeySelection::Ranges(ranges.to_vec())),
            expected(&in_ranges)
        );
        assert_eq!(rows_of(&KeySelection::All), expected(&|_, _| true));
    }

    #[test]
    fn gallop_finds_the_first_that_does_not_hold() {
        for end in 0..40 {
            for begin in 0..=end {
                for bound in begin..=end {
                    assert_eq!(gallop(begin, end, |at| at < bound), bound, "{begin}..{end}");
                }
            }
        }
    }
}
