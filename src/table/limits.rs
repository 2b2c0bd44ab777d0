//! The limits of the lists of manifests and of those in objects of their own.

use crate::versions::TransactionLimits;

/// The limits of lists.
#[derive(Debug, Clone, Copy)]
pub struct ListingLimits {
    /// The maximum number of files that a manifest lists.
    pub max_inline_files: usize,
    /// The maximum size of the entries of these files, in bytes of JSON.
    pub max_inline_bytes: usize,
    /// The number of columns of which files have statistics, beside the key and the sort columns.
    pub file_statistics: usize,
    /// The number of columns of which segments have statistics, beside the key and the sort columns.
    pub segment_statistics: usize,
    /// The maximum number of files that a segment lists.
    pub max_segment_files: usize,
    /// The maximum size of segments that are merged, in bytes: the commit writes as much.
    pub max_merged_segment_bytes: u64,
    /// The same in a large table: this part of the size of all segments.
    pub max_merged_segment_part: u64,
    /// The maximum number of commits with an idempotency key that a manifest lists.
    pub max_inline_transactions: usize,
    /// The maximum number of older ones in one list.
    pub max_listed_transactions: usize,
    /// The number of neighboring segments, or lists of older commits, that are merged into one.
    pub merge_factor: usize,
}

impl ListingLimits {
    /// Those for idempotency keys.
    pub(crate) fn transactions(&self) -> TransactionLimits {
        TransactionLimits {
            max_inline: self.max_inline_transactions,
            max_listed: self.max_listed_transactions,
            merge_factor: self.merge_factor,
        }
    }
}

impl Default for ListingLimits {
    fn default() -> Self {
        let transactions = TransactionLimits::default();
        Self {
            max_inline_files: 256,
            max_inline_bytes: 16 << 10,
            file_statistics: 32,
            segment_statistics: 8,
            max_segment_files: 4096,
            max_merged_segment_bytes: 64 << 10,
            max_merged_segment_part: 32,
            max_inline_transactions: transactions.max_inline,
            max_listed_transactions: transactions.max_listed,
            merge_factor: transactions.merge_factor,
        }
    }
}
