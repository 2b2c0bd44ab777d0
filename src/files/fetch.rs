//! Planning and sending the requests for some columns of a part.
//!
//! [`OpenPart::plan_fetches`] groups the columns of a row group into [`ColumnFetch`]es of about one request, so that
//! some are decoded while others are on their way. Chunks that are close to each other are fetched together, within
//! [`MAX_GAP_BYTES`] and [`MAX_WASTE_PERCENT`]; longer ranges than [`FETCH_BYTES`] are split. Every request names the
//! ETag with which the part was opened. Of a local file nothing is fetched: its chunks are read when they are decoded.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::open::{OpenPart, PartSource};
use super::run_blocking;
use crate::error::{Error, Result};
use crate::parquet::decode::Chunks;
use crate::parquet::page_selection::RowSelection;
use crate::store::Store;

/// The widest gap between ranges that are fetched together: a request costs more than so many bytes.
pub(crate) const MAX_GAP_BYTES: u64 = 256 << 10;
/// The share of the needed bytes that may be fetched in vain, in gaps.
const MAX_WASTE_PERCENT: u64 = 4;
/// How much more may be fetched in vain where only pages are read: so little is needed that its share is nothing.
const MAX_PAGE_WASTE_BYTES: u64 = 16 << 10;
/// And how much for each range of a column after a dictionary and a page: scattered pages would be a request each.
const MAX_WASTE_BYTES_PER_RANGE: u64 = 64 << 10;
/// The greatest length of one request. Longer ranges are fetched by several at once.
const FETCH_BYTES: u64 = 8 << 20;
/// The widest gap between ranges of a local file that are read at once: so many bytes cost about as much as a call.
const MAX_LOCAL_GAP_BYTES: u64 = 8 << 10;
/// Number of concurrent requests.
pub(crate) const CONCURRENT_FETCHES: usize = 8;

/// Some columns of a row group that are fetched together, so that they can be decoded while others
/// are on their way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ColumnFetch {
    pub(crate) projection: Vec<usize>,
    /// The byte ranges to fetch; none of a local file.
    ranges: Vec<Range<u64>>,
}

impl OpenPart {
    /// Groups the columns `projection` of a row group into fetches; of a local file each column is one. With `rows`, only
    /// the pages of these rows are fetched of columns that are worth it.
    pub(crate) fn plan_fetches(
        &self,
        group: usize,
        projection: &[usize],
        rows: Option<&RowSelection>,
    ) -> Vec<ColumnFetch> {
        let PartSource::Store { tail, .. } = &self.source else {
            let fetch_alone = |root: &usize| ColumnFetch {
                projection: vec![*root],
                ranges: Vec::new(),
            };
            return projection.iter().map(fetch_alone).collect();
        };
        let tail_start = self.file.length - tail.len() as u64;
        let column_ranges: Vec<Vec<Range<u64>>> = projection
            .iter()
            .map(|root| self.column_ranges(group, *root, rows))
            .collect();
        let mut needed_ranges: Vec<Range<u64>> = column_ranges.iter().flatten().cloned().collect();
        needed_ranges.retain(|r| r.start < tail_start || r.end > self.file.length);
        needed_ranges.sort_by_key(|r| r.start);
        let extents = projection.iter().zip(&column_ranges).map(|(root, ranges)| {
            let start = ranges.first().map_or(0, |r| r.start);
            (
                start..ranges.iter().map(|r| r.end).max().unwrap_or(start),
                *root,
            )
        });
        let further_ranges = column_ranges.iter().map(|r| r.len().saturating_sub(2));
        let waste_budget_bytes = match rows {
            Some(_) => {
                let further_ranges = further_ranges.sum::<usize>() as u64;
                MAX_PAGE_WASTE_BYTES + MAX_WASTE_BYTES_PER_RANGE * further_ranges
            }
            None => 0,
        };
        plan_requests(
            extents.collect(),
            &coalesce(needed_ranges, waste_budget_bytes),
        )
    }

    /// The byte ranges that are needed of a column, in the order of the file.
    fn column_ranges(
        &self,
        group: usize,
        root: usize,
        rows: Option<&RowSelection>,
    ) -> Vec<Range<u64>> {
        let page_ranges = rows.and_then(|rows| rows.page_ranges(&self.file, root));
        let mut ranges = page_ranges.unwrap_or_else(|| self.file.ranges(group, &[root]));
        ranges.sort_by_key(|r| r.start);
        ranges
    }

    /// Fetches the chunks of some columns; none of a local file.
    pub(crate) async fn fetch_columns(
        &self,
        store: &Store,
        column_fetch: &ColumnFetch,
    ) -> Result<Chunks> {
        let mut chunks = Chunks::new();
        let PartSource::Store { e_tag, tail } = &self.source else {
            return Ok(chunks);
        };
        chunks.push(self.file.length - tail.len() as u64, tail.clone());
        let mut requests = Vec::new();
        for range in column_fetch.ranges.iter().flat_map(split_range) {
            let request = store.get_range(&self.path, range, e_tag.as_deref());
            requests.push(request.boxed());
        }
        let mut fetched = stream::iter(requests).buffered(CONCURRENT_FETCHES);
        for range in &column_fetch.ranges {
            let mut bytes = Vec::new();
            for _ in split_range(range) {
                bytes.extend(fetched.try_next().await?);
            }
            chunks.push(range.start, concat_chunks(bytes));
        }
        Ok(chunks)
    }

    /// Fetches the chunks of the columns `projection` of a row group; none of a local file.
    pub(crate) async fn fetch(
        &self,
        store: &Store,
        group: usize,
        projection: &[usize],
    ) -> Result<Chunks> {
        let fetches = self.plan_fetches(group, projection, None);
        let mut requests = Vec::new();
        for column_fetch in &fetches {
            requests.push(self.fetch_columns(store, column_fetch).boxed());
        }
        let chunk_groups: Vec<Chunks> = stream::iter(requests)
            .buffered(CONCURRENT_FETCHES)
            .try_collect()
            .await?;
        let mut chunks = Chunks::new();
        for group_chunks in chunk_groups {
            chunks.absorb(group_chunks);
        }
        Ok(chunks)
    }

    /// Reads the chunks of one column from a local file, or the pages of `rows`; None for an object.
    pub(crate) fn read_local(
        &self,
        group: usize,
        root: usize,
        rows: Option<&RowSelection>,
    ) -> Option<Result<Chunks>> {
        let PartSource::Local(file) = &self.source else {
            return None;
        };
        let ranges = join_near(self.column_ranges(group, root, rows));
        let read = file.read_all(&ranges);
        Some(read.map(|read| {
            let mut chunks = Chunks::new();
            for (range, bytes) in ranges.iter().zip(read) {
                chunks.push(range.start, bytes);
            }
            chunks
        }))
    }

    /// What the requests for these ranges cost, in bytes that could be fetched instead; nothing if they are at hand.
    pub(crate) fn bytes_to_request(&self, ranges: &[Range<u64>]) -> u64 {
        let PartSource::Store { tail, .. } = &self.source else {
            return 0;
        };
        let tail_start = self.file.length - tail.len() as u64;
        let is_at_hand = ranges.iter().all(|range| range.start >= tail_start);
        if is_at_hand { 0 } else { MAX_GAP_BYTES }
    }

    /// Reads ranges of bytes. Ranges that together are within [`MAX_GAP_BYTES`] take one request.
    pub(crate) async fn read_ranges(
        &self,
        store: &Store,
        mut ranges: Vec<Range<u64>>,
    ) -> Result<Chunks> {
        ranges.sort_by_key(|range| range.start);
        let mut requests: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match requests.last_mut() {
                Some(last) if range.end.max(last.end) - last.start <= MAX_GAP_BYTES => {
                    last.end = last.end.max(range.end);
                }
                _ => requests.push(range),
            }
        }
        let reads: Vec<_> = requests
            .into_iter()
            .map(|range| async move {
                let bytes = self.read_range(store, range.clone()).await?;
                Ok::<_, Error>((range.start, bytes))
            })
            .map(FutureExt::boxed)
            .collect();
        let mut fetched = stream::iter(reads).buffered(CONCURRENT_FETCHES);
        let mut chunks = Chunks::new();
        while let Some((start, bytes)) = fetched.try_next().await? {
            chunks.push(start, bytes);
        }
        Ok(chunks)
    }

    /// Reads a range of bytes, from memory where the tail holds it.
    pub(crate) async fn read_range(&self, store: &Store, range: Range<u64>) -> Result<Bytes> {
        match &self.source {
            PartSource::Local(file) => {
                let file = Arc::clone(file);
                run_blocking(move || file.read(&range)).await
            }
            PartSource::Store { e_tag, tail } => {
                let mut tail_chunks = Chunks::new();
                tail_chunks.push(self.file.length - tail.len() as u64, tail.clone());
                match tail_chunks.slice(&range) {
                    Some(bytes) => Ok(bytes),
                    None => store.get_range(&self.path, range, e_tag.as_deref()).await,
                }
            }
        }
    }
}

/// Groups columns, each with its extent in the file, into fetches of about one request, and clips
/// `ranges` to each of them.
fn plan_requests(mut extents: Vec<(Range<u64>, usize)>, ranges: &[Range<u64>]) -> Vec<ColumnFetch> {
    extents.sort_by_key(|(extent, _)| extent.start);
    let mut requests: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
    for (extent, root) in extents {
        let can_join = |request_extent: &Range<u64>| {
            let joined = request_extent.start..extent.end.max(request_extent.end);
            let is_in_one_range = ranges
                .iter()
                .any(|r| r.start <= joined.start && joined.end <= r.end);
            extent.start < request_extent.end
                || (is_in_one_range && joined.end - joined.start <= FETCH_BYTES)
        };
        match requests.last_mut() {
            Some((request_extent, projection)) if can_join(request_extent) => {
                request_extent.end = request_extent.end.max(extent.end);
                projection.push(root);
            }
            _ => requests.push((extent, vec![root])),
        }
    }
    let clip_ranges = |extent: &Range<u64>| -> Vec<Range<u64>> {
        let clipped = ranges
            .iter()
            .map(|r| r.start.max(extent.start)..r.end.min(extent.end));
        clipped.filter(|r| r.start < r.end).collect()
    };
    requests
        .into_iter()
        .map(|(extent, projection)| ColumnFetch {
            projection,
            ranges: clip_ranges(&extent),
        })
        .collect()
}

/// Joins neighbouring ranges, sorted by start, within [`MAX_GAP_BYTES`] and [`MAX_WASTE_PERCENT`] or a budget.
fn coalesce(ranges: Vec<Range<u64>>, min_budget_bytes: u64) -> Vec<Range<u64>> {
    let needed_bytes: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    let mut waste_budget_bytes = (needed_bytes * MAX_WASTE_PERCENT / 100).max(min_budget_bytes);
    let mut coalesced: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match coalesced.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(last) if range.start - last.end <= MAX_GAP_BYTES.min(waste_budget_bytes) => {
                waste_budget_bytes -= range.start - last.end;
                last.end = range.end;
            }
            _ => coalesced.push(range),
        }
    }
    coalesced
}

/// Joins ranges of a local file, sorted by start, within [`MAX_LOCAL_GAP_BYTES`].
fn join_near(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(MAX_LOCAL_GAP_BYTES) => {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range),
        }
    }
    joined
}

fn split_range(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (range.start, range.end);
    let request_count = (end - start).div_ceil(FETCH_BYTES).max(1);
    (0..request_count).map(move |i| {
        let from = start + i * FETCH_BYTES;
        from..(from + FETCH_BYTES).min(end)
    })
}

fn concat_chunks(mut chunks: Vec<Bytes>) -> Bytes {
    match chunks.len() {
        1 => chunks.swap_remove(0),
        _ => chunks.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_only_what_is_worth_it() {
        let mb = 1 << 20;
        let near = vec![0..10 * mb, 10 * mb + 1000..20 * mb];
        assert_eq!(coalesce(near, 0), vec![0..20 * mb]);
        let far = vec![0..mb, 3 * mb..4 * mb];
        assert_eq!(coalesce(far.clone(), 0), far);
        let small_with_gap = vec![0..1000, 2000..3000];
        assert_eq!(coalesce(small_with_gap.clone(), 0), small_with_gap);
        assert_eq!(coalesce(small_with_gap, 1000), vec![0..3000]);
        assert_eq!(coalesce(vec![0..5, 5..9], 0), vec![0..9]);
    }

    #[test]
    fn a_local_file_is_read_across_narrow_gaps() {
        let gap = MAX_LOCAL_GAP_BYTES;
        let ranges = vec![
            0..10,
            10..20,
            20 + gap..30 + gap,
            31 + 2 * gap..40 + 2 * gap,
        ];
        let joined = join_near(ranges);
        assert_eq!(joined, [0..30 + gap, 31 + 2 * gap..40 + 2 * gap]);
        assert!(join_near(Vec::new()).is_empty());
    }

    #[test]
    fn splits_without_loss() {
        let range = 5..5 + 2 * FETCH_BYTES + 1;
        let requests: Vec<_> = split_range(&range).collect();
        assert_eq!(requests.len(), 3);
        assert!(requests.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!(
            (requests[0].start, requests[2].end),
            (range.start, range.end)
        );
    }

    #[test]
    fn cuts_between_columns() {
        let range = 0..FETCH_BYTES + 30;
        let small = vec![(10..20, 1), (0..10, 0), (20..FETCH_BYTES, 2)];
        let all: Vec<_> = small
            .into_iter()
            .chain([(FETCH_BYTES..range.end, 3)])
            .collect();
        let fetches = plan_requests(all, std::slice::from_ref(&range));
        assert_eq!(fetches.len(), 2);
        assert_eq!(
            (&fetches[0].projection, &fetches[1].projection),
            (&vec![0, 1, 2], &vec![3])
        );
        let ranges: Vec<_> = fetches.iter().flat_map(|p| p.ranges.clone()).collect();
        assert_eq!(ranges, [0..FETCH_BYTES, FETCH_BYTES..range.end]);
    }

    #[test]
    fn columns_that_overlap_stay_together_and_those_at_hand_are_not_fetched() {
        let ranges = [0..5, 8..10];
        let fetches = plan_requests(vec![(0..10, 0), (5..8, 1), (100..200, 2)], &ranges);
        assert_eq!(fetches[0].projection, [0, 1]);
        assert_eq!(fetches[0].ranges, ranges);
        assert_eq!(
            (fetches[1].projection.as_slice(), fetches[1].ranges.len()),
            (&[2][..], 0)
        );
    }
}
