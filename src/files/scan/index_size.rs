//! About how long the page indexes of a data file are, before its footer is read.

use crate::files::MAX_GAP_BYTES;

/// The rows of a page that pds writes, by which the length of the indexes is estimated.
pub(super) const PAGE_ROWS: usize = 8 << 10;
/// About how many bytes the indexes and the checksum of a page take.
const PAGE_INDEX_BYTES: u64 = 64;

/// About how many bytes before the seal hold the page indexes of a file, if they are worth reading with its footer.
pub(super) fn estimate_index_bytes(rows: u64, row_groups: u64, columns: usize) -> u64 {
    let page_rows = PAGE_ROWS as u64;
    if rows / row_groups.max(1) <= page_rows {
        return 0;
    }
    let pages = rows.div_ceil(page_rows) + row_groups;
    let bytes = pages.saturating_mul(PAGE_INDEX_BYTES * columns as u64);
    if bytes > MAX_GAP_BYTES { 0 } else { bytes }
}
