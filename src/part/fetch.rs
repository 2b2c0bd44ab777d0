//! Which bytes of a part are fetched for some of its columns, in which requests.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::blocking;
use super::open::{OpenPart, Source};
use crate::error::Result;
use crate::parquet::decode::Chunks;
use crate::store::Store;

/// Ranges closer than this are fetched together: a request costs more than so many bytes…
const MAX_GAP_BYTES: u64 = 256 << 10;
/// …but no more than this share of what is wanted may be fetched in vain.
const MAX_WASTE_PERCENT: u64 = 4;
/// Longer ranges are fetched by several requests at once.
const FETCH_BYTES: u64 = 8 << 20;
/// Requests that are on their way at once.
pub(crate) const CONCURRENT_FETCHES: usize = 8;

/// Some columns of a row group that are fetched together, so that they can be decoded while others
/// are on their way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) roots: Vec<usize>,
    /// What is fetched for them; nothing where the file is a local one.
    runs: Vec<Range<u64>>,
}

impl OpenPart {
    /// The columns `roots` of a row group in pieces.
    pub(crate) fn pieces(&self, group: usize, roots: &[usize]) -> Vec<Piece> {
        let Source::Store { tail, .. } = &self.source else {
            let alone = |root: &usize| Piece {
                roots: vec![*root],
                runs: Vec::new(),
            };
            return roots.iter().map(alone).collect();
        };
        let tail_at = self.file.length - tail.len() as u64;
        let mut wanted = self.file.ranges(group, roots);
        wanted.retain(|r| r.start < tail_at || r.end > self.file.length);
        let extents = roots.iter().map(|root| {
            let ranges = self.file.ranges(group, &[*root]);
            let start = ranges.first().map_or(0, |r| r.start);
            (
                start..ranges.iter().map(|r| r.end).max().unwrap_or(start),
                *root,
            )
        });
        cut(extents.collect(), &coalesce(wanted))
    }

    /// The chunks of a piece; none where the file is a local one.
    pub(crate) async fn fetch_piece(&self, store: &Store, piece: &Piece) -> Result<Chunks> {
        let mut chunks = Chunks::new();
        let Source::Store { e_tag, tail } = &self.source else {
            return Ok(chunks);
        };
        chunks.push(self.file.length - tail.len() as u64, tail.clone());
        let mut requests = Vec::new();
        for range in piece.runs.iter().flat_map(split) {
            let request = store.get_range(&self.path, range, e_tag.as_deref());
            requests.push(request.boxed());
        }
        let mut fetched = stream::iter(requests).buffered(CONCURRENT_FETCHES);
        for run in &piece.runs {
            let mut bytes = Vec::new();
            for _ in split(run) {
                bytes.extend(fetched.try_next().await?);
            }
            chunks.push(run.start, contiguous(bytes));
        }
        Ok(chunks)
    }

    /// The chunks of a row group's columns; none where the file is a local one.
    pub(crate) async fn fetch(
        &self,
        store: &Store,
        group: usize,
        roots: &[usize],
    ) -> Result<Chunks> {
        let pieces = self.pieces(group, roots);
        let mut requests = Vec::new();
        for piece in &pieces {
            requests.push(self.fetch_piece(store, piece).boxed());
        }
        let fetched: Vec<Chunks> = stream::iter(requests)
            .buffered(CONCURRENT_FETCHES)
            .try_collect()
            .await?;
        let mut chunks = Chunks::new();
        for some in fetched {
            chunks.absorb(some);
        }
        Ok(chunks)
    }

    /// The chunks of one column from a local file.
    pub(crate) fn read_local(&self, group: usize, root: usize) -> Option<Result<Chunks>> {
        let Source::Local(file) = &self.source else {
            return None;
        };
        let read = || {
            let mut chunks = Chunks::new();
            for range in self.file.ranges(group, &[root]) {
                chunks.push(range.start, file.read(&range)?);
            }
            Ok(chunks)
        };
        Some(read())
    }

    /// Some bytes of the file.
    pub(crate) async fn read_range(&self, store: &Store, range: Range<u64>) -> Result<Bytes> {
        match &self.source {
            Source::Local(file) => {
                let file = Arc::clone(file);
                blocking(move || file.read(&range)).await
            }
            Source::Store { e_tag, tail } => {
                let mut at_hand = Chunks::new();
                at_hand.push(self.file.length - tail.len() as u64, tail.clone());
                match at_hand.slice(&range) {
                    Some(bytes) => Ok(bytes),
                    None => store.get_range(&self.path, range, e_tag.as_deref()).await,
                }
            }
        }
    }
}

/// Groups columns, each with its extent in the file, into pieces of about one request, and gives
/// each piece its share of `runs`.
fn cut(mut extents: Vec<(Range<u64>, usize)>, runs: &[Range<u64>]) -> Vec<Piece> {
    extents.sort_by_key(|(extent, _)| extent.start);
    let mut cuts: Vec<(Range<u64>, Vec<usize>)> = Vec::new();
    for (extent, root) in extents {
        let joins = |so_far: &Range<u64>| {
            let both = so_far.start..extent.end.max(so_far.end);
            let in_one_run = runs
                .iter()
                .any(|r| r.start <= both.start && both.end <= r.end);
            extent.start < so_far.end || (in_one_run && both.end - both.start <= FETCH_BYTES)
        };
        match cuts.last_mut() {
            Some((so_far, roots)) if joins(so_far) => {
                so_far.end = so_far.end.max(extent.end);
                roots.push(root);
            }
            _ => cuts.push((extent, vec![root])),
        }
    }
    let share = |extent: &Range<u64>| -> Vec<Range<u64>> {
        let both = runs
            .iter()
            .map(|r| r.start.max(extent.start)..r.end.min(extent.end));
        both.filter(|r| r.start < r.end).collect()
    };
    cuts.into_iter()
        .map(|(extent, roots)| Piece {
            roots,
            runs: share(&extent),
        })
        .collect()
}

/// Joins neighbouring ranges, sorted by start, as far as the bytes between them are worth it.
fn coalesce(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let wanted: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    let mut waste_left = wanted * MAX_WASTE_PERCENT / 100;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(run) if range.start <= run.end => run.end = run.end.max(range.end),
            Some(run) if range.start - run.end <= MAX_GAP_BYTES.min(waste_left) => {
                waste_left -= range.start - run.end;
                run.end = range.end;
            }
            _ => runs.push(range),
        }
    }
    runs
}

fn split(run: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (run.start, run.end);
    let pieces = (end - start).div_ceil(FETCH_BYTES).max(1);
    (0..pieces).map(move |i| {
        let from = start + i * FETCH_BYTES;
        from..(from + FETCH_BYTES).min(end)
    })
}

fn contiguous(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_only_what_is_worth_it() {
        let mb = 1 << 20;
        let near = vec![0..10 * mb, 10 * mb + 1000..20 * mb];
        assert_eq!(coalesce(near), vec![0..20 * mb]);
        let far = vec![0..mb, 3 * mb..4 * mb];
        assert_eq!(coalesce(far.clone()), far);
        let small_with_gap = vec![0..1000, 2000..3000];
        assert_eq!(coalesce(small_with_gap.clone()), small_with_gap);
        assert_eq!(coalesce(vec![0..5, 5..9]), vec![0..9]);
    }

    #[test]
    fn splits_without_loss() {
        let run = 5..5 + 2 * FETCH_BYTES + 1;
        let pieces: Vec<_> = split(&run).collect();
        assert_eq!(pieces.len(), 3);
        assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!((pieces[0].start, pieces[2].end), (run.start, run.end));
    }

    #[test]
    fn cuts_between_columns() {
        let run = 0..FETCH_BYTES + 30;
        let small = vec![(10..20, 1), (0..10, 0), (20..FETCH_BYTES, 2)];
        let all: Vec<_> = small
            .into_iter()
            .chain([(FETCH_BYTES..run.end, 3)])
            .collect();
        let pieces = cut(all, std::slice::from_ref(&run));
        assert_eq!(pieces.len(), 2);
        assert_eq!(
            (&pieces[0].roots, &pieces[1].roots),
            (&vec![0, 1, 2], &vec![3])
        );
        let runs: Vec<_> = pieces.iter().flat_map(|p| p.runs.clone()).collect();
        assert_eq!(runs, [0..FETCH_BYTES, FETCH_BYTES..run.end]);
    }

    #[test]
    fn columns_that_overlap_stay_together_and_those_at_hand_are_not_fetched() {
        let runs = [0..5, 8..10];
        let pieces = cut(vec![(0..10, 0), (5..8, 1), (100..200, 2)], &runs);
        assert_eq!(pieces[0].roots, [0, 1]);
        assert_eq!(pieces[0].runs, runs);
        assert_eq!(
            (pieces[1].roots.as_slice(), pieces[1].runs.len()),
            (&[2][..], 0)
        );
    }
}
