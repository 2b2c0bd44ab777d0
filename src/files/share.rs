//! Shares of a file: its row groups, parted among several readers.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::parquet::file::ParquetFile;

/// One of some shares of a file: the row groups whose middle lies in it, if the sizes of row groups are added up in
/// their order. Each row group is in exactly one share, however many there are; a share may have none.
///
/// To part a file its length is enough. Who reads a share finds its row groups by the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileShare {
    /// The number of the share, from 0.
    pub index: u32,
    /// How many shares the file has.
    pub count: u32,
}

impl FileShare {
    /// Whether the file has such a share. The shares of a file that has others would miss rows.
    pub fn is_valid(self) -> bool {
        self.index < self.count
    }

    /// The row groups of the share.
    pub(crate) fn row_groups(self, file: &ParquetFile) -> Range<usize> {
        let groups = file.metadata().row_groups().iter();
        let sizes = groups.map(|group| {
            let chunks = group.columns().iter();
            let sizes = chunks.map(|chunk| chunk.compressed_size().unsigned_abs());
            sizes.fold(0, u64::saturating_add)
        });
        self.select(sizes.collect())
    }

    /// The positions of the row groups of the share, of all row groups by their sizes.
    fn select(self, sizes: Vec<u64>) -> Range<usize> {
        // One byte more for each, so that their sum is not 0.
        let sizes = sizes.into_iter().map(|size| u128::from(size) + 1);
        let total: u128 = sizes.clone().sum();
        let last = u128::from(self.count.saturating_sub(1));
        let mut before = 0_u128;
        let shares = sizes.map(|size| {
            let twice_middle = 2 * before + size;
            before += size;
            let share = twice_middle.saturating_mul(u128::from(self.count)) / (2 * total);
            share.min(last)
        });
        let shares: Vec<u128> = shares.collect();
        let index = u128::from(self.index);
        let begin = shares.partition_point(|share| *share < index);
        begin..shares.partition_point(|share| *share <= index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_shares(sizes: &[u64], count: u32) -> Vec<Range<usize>> {
        let share = |index| FileShare { index, count }.select(sizes.to_vec());
        (0..count).map(share).collect()
    }

    #[test]
    fn each_row_group_is_in_one_share_in_order() {
        let large = u64::MAX / 2;
        for groups in [0_u64, 1, 2, 7, 100] {
            let examples: [Vec<u64>; 5] = [
                vec![1 << 20; usize::try_from(groups).unwrap()],
                vec![0; usize::try_from(groups).unwrap()],
                (0..groups).map(|group| group * group * 977).collect(),
                (0..groups).map(|group| 1_000_000 / (group + 1)).collect(),
                (0..groups)
                    .map(|group| if group == 0 { large } else { 1 })
                    .collect(),
            ];
            for sizes in examples {
                for count in [1, 2, 3, 7, 8, 99, 100, 101, 1000] {
                    let shares = all_shares(&sizes, count);
                    let read: Vec<usize> = shares.into_iter().flatten().collect();
                    let all: Vec<usize> = (0..sizes.len()).collect();
                    assert_eq!(read, all, "{count} shares of {sizes:?}");
                }
            }
        }
    }

    #[test]
    fn row_groups_of_one_size_are_parted_evenly() {
        let lengths = |groups: usize, count| -> Vec<usize> {
            let shares = all_shares(&vec![1 << 20; groups], count).into_iter();
            shares.map(|groups| groups.len()).collect()
        };
        assert_eq!(lengths(100, 4), [25; 4]);
        assert_eq!(lengths(7, 7), [1; 7]);
        assert_eq!(lengths(8, 2), [4, 4]);
        // A row group that lies in two shares is in that of its middle.
        assert_eq!(lengths(1, 3), [0, 1, 0]);
    }

    #[test]
    fn a_large_row_group_has_a_share_of_its_own() {
        let shares = all_shares(&[1, 1, 1000, 1, 1], 3);
        assert_eq!(shares, [0..2, 2..3, 3..5]);
    }

    #[test]
    fn a_share_beyond_the_last_is_not_valid() {
        let is_valid = |index, count| FileShare { index, count }.is_valid();
        assert!(is_valid(0, 1) && is_valid(6, 7));
        assert!(!is_valid(0, 0) && !is_valid(7, 7));
    }
}
