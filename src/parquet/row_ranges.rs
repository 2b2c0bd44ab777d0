//! Ranges of a row group's rows.

use std::ops::Range;

/// Ranges that are closer than so many rows become one: a few rows more cost less than another range.
const MIN_GAP_ROWS: usize = 1024;

/// Rows of a row group, as ascending ranges with gaps of at least [`MIN_GAP_ROWS`] rows between them.
///
/// The rows are numbered twice: by their number in the row group, and by their position among the rows of the ranges,
/// which is their index in arrays of these rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RowRanges(Vec<Range<usize>>);

impl RowRanges {
    /// All rows of a row group.
    pub(crate) fn all(rows: usize) -> Self {
        Self::single(0..rows)
    }

    /// One range.
    pub(crate) fn single(rows: Range<usize>) -> Self {
        Self::covering(std::iter::once(rows))
    }

    /// The rows of ascending ranges, and those of small gaps between them.
    pub(crate) fn covering(ranges: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut merged: Vec<Range<usize>> = Vec::new();
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            match merged.last_mut() {
                Some(last) if range.start < last.end + MIN_GAP_ROWS => {
                    last.end = last.end.max(range.end);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    pub(crate) fn as_slice(&self) -> &[Range<usize>] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of rows.
    pub(crate) fn num_rows(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// The range from the first row to the last one.
    pub(crate) fn bounds(&self) -> Range<usize> {
        let start = self.0.first().map_or(0, |range| range.start);
        start..self.0.last().map_or(start, |range| range.end)
    }

    /// How many blocks of `block_rows` rows hold some of the rows.
    pub(crate) fn num_blocks(&self, block_rows: usize) -> usize {
        let mut next = 0;
        let blocks = self.0.iter().map(|range| {
            let first = (range.start / block_rows).max(next);
            next = range.end.div_ceil(block_rows).max(first);
            next - first
        });
        blocks.sum()
    }

    /// Whether a row of `range` is among the rows.
    pub(crate) fn overlaps(&self, range: &Range<usize>) -> bool {
        let after = self.0.partition_point(|own| own.end <= range.start);
        self.0.get(after).is_some_and(|own| own.start < range.end)
    }

    /// The rows at some ranges of positions, and those of small gaps between them.
    pub(crate) fn at_positions(&self, positions: impl IntoIterator<Item = Range<usize>>) -> Self {
        let mut rows = Vec::new();
        let (mut index, mut begin) = (0, 0);
        for range in positions {
            let mut from = range.start;
            while from < range.end
                && let Some(own) = self.0.get(index)
            {
                let end = begin + own.len();
                if from < end {
                    let to = range.end.min(end);
                    rows.push(own.start + (from - begin)..own.start + (to - begin));
                    from = to;
                }
                if from >= end {
                    (index, begin) = (index + 1, end);
                }
            }
        }
        Self::covering(rows)
    }

    /// The positions, among these rows, of `rows`, all of which are among these.
    pub(crate) fn positions_of(&self, rows: &Self) -> Vec<Range<usize>> {
        let mut positions = Vec::with_capacity(rows.0.len());
        let (mut index, mut begin) = (0, 0);
        for range in &rows.0 {
            while let Some(own) = self.0.get(index)
                && own.end <= range.start
            {
                (index, begin) = (index + 1, begin + own.len());
            }
            if let Some(own) = self.0.get(index) {
                let start = begin + (range.start - own.start);
                positions.push(start..start + range.len());
            }
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(ranges: &RowRanges) -> Vec<usize> {
        ranges.as_slice().iter().flat_map(Clone::clone).collect()
    }

    #[test]
    fn near_ranges_become_one() {
        let near = RowRanges::covering([3..5, 4..6, 6..6, 1000..1001, 5000..5001]);
        assert_eq!(near.as_slice(), [3..1001, 5000..5001]);
        assert_eq!((near.num_rows(), near.bounds()), (999, 3..5001));
        assert!(near.overlaps(&(0..4)) && near.overlaps(&(1000..9000)));
        assert!(!near.overlaps(&(0..3)) && !near.overlaps(&(1001..5000)));
        assert!(!near.overlaps(&(5001..9000)));
        assert!(RowRanges::single(7..7).is_empty());
        let blocks = |rows| near.num_blocks(rows);
        assert_eq!(
            (blocks(1), blocks(4), blocks(1000), blocks(6000)),
            (999, 252, 3, 1)
        );
    }

    #[test]
    fn positions_are_those_of_the_rows() {
        let own = RowRanges::covering([10..20, 3000..3010, 9000..9010]);
        let all = rows(&own);
        for (from, to) in [(0, 30), (0, 1), (9, 11), (10, 20), (5, 25), (29, 30)] {
            let selected = own.at_positions(std::iter::once(from..to));
            assert_eq!(rows(&selected), all[from..to], "{from}..{to}");
            let positions: Vec<usize> = own.positions_of(&selected).into_iter().flatten().collect();
            assert_eq!(positions, (from..to).collect::<Vec<_>>());
        }
        let two = own.at_positions([2..3, 12..14]);
        assert_eq!(two.as_slice(), [12..13, 3002..3004]);
        assert_eq!(own.positions_of(&two), [2..3, 12..14]);
    }
}
