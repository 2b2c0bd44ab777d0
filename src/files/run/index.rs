//! The key index of a file of a run: where the rows of some keys can be.

use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_row::Rows;
use parquet::file::metadata::ParquetMetaData;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::KEY_INDEX;
use super::keys::CutKeys;
use super::selection::{KeyRange, KeySelection};
use crate::error::{Error, ErrorKind, Result};
use crate::files::merge::SortKeys;

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

    /// The rows that can have one of the keys, as ascending ranges.
    pub(super) fn rows_of(&self, intervals: &KeyIntervals) -> Vec<Range<u64>> {
        let blocks = self.first_keys.num_rows();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut first = 0;
        for interval in &intervals.intervals {
            first = gallop(first, blocks, |at| interval.begins_after(self.high(at)));
            let end = gallop(first, blocks, |at| !interval.ends_before(self.low(at)));
            if first == end {
                continue;
            }
            let begin = first as u64 * self.every;
            let end = (end as u64 * self.every).min(self.rows);
            match ranges.last_mut() {
                Some(last) if last.end >= begin => last.end = last.end.max(end),
                _ => ranges.push(begin..end),
            }
        }
        ranges
    }

    /// The number of blocks that a key can be in.
    pub(super) fn count(&self, key: &[u8]) -> usize {
        let blocks = self.first_keys.num_rows();
        let first = gallop(0, blocks, |at| self.high(at) < key);
        gallop(first, blocks, |at| self.low(at) <= key) - first
    }
}

/// Keys to read, in comparable form: ascending, disjoint intervals.
#[derive(Debug)]
pub(super) struct KeyIntervals {
    intervals: Vec<KeyInterval>,
}

#[derive(Debug)]
struct KeyInterval {
    /// The smallest key; `None` for no bound.
    from: Option<Box<[u8]>>,
    /// The largest key; `None` for no bound.
    to: Option<Box<[u8]>>,
    /// Whether `to` itself is left out.
    excludes_end: bool,
}

impl KeyIntervals {
    /// The keys of a selection as they are.
    pub(super) fn exact(selection: &KeySelection, keys: &SortKeys) -> Result<Self> {
        Self::new(
            selection,
            |columns| keys.convert_columns(columns).map_err(Error::from_cause),
            true,
        )
    }

    /// The cut keys among which those of a selection are.
    pub(super) fn cut(selection: &KeySelection, keys: &CutKeys) -> Result<Self> {
        Self::new(selection, |columns| keys.cut(columns), false)
    }

    fn new(
        selection: &KeySelection,
        to_rows: impl Fn(&[ArrayRef]) -> Result<Rows>,
        excludes_end: bool,
    ) -> Result<Self> {
        let all = || KeyInterval {
            from: None,
            to: None,
            excludes_end: false,
        };
        let intervals = match selection {
            KeySelection::All => vec![all()],
            KeySelection::Keys(columns) => {
                let rows = to_rows(columns)?;
                let mut keys: Vec<Box<[u8]>> = rows.iter().map(|row| row.as_ref().into()).collect();
                keys.sort_unstable();
                keys.dedup();
                let interval = |key: Box<[u8]>| KeyInterval {
                    from: Some(key.clone()),
                    to: Some(key),
                    excludes_end: false,
                };
                keys.into_iter().map(interval).collect()
            }
            KeySelection::Ranges(ranges) => {
                let bound = |columns: &Option<Vec<ArrayRef>>| -> Result<Option<Box<[u8]>>> {
                    let Some(columns) = columns else {
                        return Ok(None);
                    };
                    let rows = to_rows(columns)?;
                    if rows.num_rows() != 1 {
                        return Err(Error::invalid("a bound of a range of keys is one key"));
                    }
                    Ok(Some(rows.row(0).as_ref().into()))
                };
                let interval = |range: &KeyRange| {
                    Ok(KeyInterval {
                        from: bound(&range.from)?,
                        to: bound(&range.to)?,
                        excludes_end,
                    })
                };
                ranges.iter().map(interval).collect::<Result<_>>()?
            }
        };
        Ok(Self { intervals })
    }

    /// Whether a key between two others, both included, is in an interval.
    pub(super) fn overlap(&self, low: &[u8], high: &[u8]) -> bool {
        let after = self
            .intervals
            .partition_point(|interval| interval.ends_before(low));
        let next = self.intervals.get(after);
        next.is_some_and(|interval| interval.from.as_deref().is_none_or(|from| from <= high))
    }

    /// Which of these keys, in their order, are in an interval.
    pub(super) fn select(&self, keys: &Rows) -> Vec<bool> {
        let rows = keys.num_rows();
        let mut is_selected = vec![false; rows];
        let mut row = 0;
        let begin = self
            .intervals
            .partition_point(|interval| rows > 0 && interval.ends_before(keys.row(0).data()));
        for interval in &self.intervals[begin..] {
            row = gallop(row, rows, |at| interval.begins_after(keys.row(at).data()));
            if row == rows {
                break;
            }
            let end = gallop(row, rows, |at| !interval.ends_before(keys.row(at).data()));
            is_selected[row..end].fill(true);
            row = end;
        }
        is_selected
    }
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

impl KeyInterval {
    fn begins_after(&self, key: &[u8]) -> bool {
        self.from.as_deref().is_some_and(|from| from > key)
    }

    fn ends_before(&self, key: &[u8]) -> bool {
        let Some(to) = &self.to else { return false };
        if self.excludes_end {
            to.as_ref() <= key
        } else {
            to.as_ref() < key
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
