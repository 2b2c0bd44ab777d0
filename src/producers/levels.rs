//! How many runs a table has: which of them an update merges with what it writes.
//!
//! A run is a merge of the newest ones, as in a binomial counter: beside the oldest run there are [`NEWER_RUNS`], and what
//! is merged into the deepest of them grows with it. So `n` updates of one size write each row about as often as the
//! fourth root of `24 n` says, and no schedule of so few runs does it much more seldom. After many updates, or where
//! their sizes differ, runs wait until what comes is a twelfth of them: then there are more, and their number grows with
//! the logarithm of the data. The oldest run is left to compactions, unless the update is large beside it, or the newer
//! runs together are as large.

/// A run of these bytes costs as much as a smaller one: the footer and the indexes of a file have about as many.
const UNIT_BYTES: u64 = 2 << 10;
/// The runs beside the oldest one.
const NEWER_RUNS: usize = 4;
/// A run is merged with what has at least this part of its bytes, as one in so many.
const MAX_ROUNDS: u64 = 12;
/// An update of this part of the oldest run, as one in so many, is merged with it.
const RATIO: u64 = 8;
/// The most runs of a table, at which an update merges whatever it has to.
pub(super) const MAX_RUNS: usize = 12;

/// How many of a table's runs, newest first and of these sizes in bytes, are merged with a new run of `new_bytes`.
pub(super) fn runs_to_merge(runs: &[u64], new_bytes: u64) -> usize {
    let Some((oldest, newer)) = runs.split_last() else {
        return 0;
    };
    let unit = new_bytes.max(UNIT_BYTES);
    let (mut size, mut count) = (new_bytes, 0);
    for (at, run) in newer.iter().enumerate() {
        // How many runs there may be from here to the newest.
        let depth = (NEWER_RUNS + at + 1).saturating_sub(newer.len()).max(1) as u64;
        let is_due = size.saturating_mul(rounds(run / unit, depth)) >= run.saturating_mul(depth);
        if *run <= UNIT_BYTES || is_due {
            count = at + 1;
        }
        size += run;
    }
    let has_many = newer.len() >= NEWER_RUNS;
    if count == 0 && has_many && newer[0] <= unit.saturating_mul(MAX_ROUNDS) {
        count = 1;
    }
    let merged: u64 = new_bytes + newer[..count].iter().sum::<u64>();
    let is_small = *oldest <= merged.max(RATIO.saturating_mul(new_bytes)).max(UNIT_BYTES);
    if count == newer.len() && is_small {
        count += 1;
    }
    if runs.len() >= MAX_RUNS {
        count = count.max(1);
    }
    count
}

/// How often rows of a run of so many updates have been written, if it is the deepest of `depth`: such runs have
/// `depth + rounds` over `depth` updates.
fn rounds(updates: u64, depth: u64) -> u64 {
    let (mut rounds, mut most) = (1, depth + 1);
    while most <= updates && rounds < MAX_ROUNDS {
        rounds += 1;
        most = most * (depth + rounds) / rounds;
    }
    rounds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies updates of these bytes to a base; returns the most runs, and how many times the bytes were written.
    fn simulate(base: u64, updates: impl IntoIterator<Item = u64>) -> (usize, u64) {
        let mut runs = vec![base];
        let (mut most, mut written, mut changed) = (0, 0, 0);
        for new_bytes in updates {
            let count = runs_to_merge(&runs, new_bytes);
            let merged: u64 = runs.drain(..count).sum::<u64>() + new_bytes;
            runs.insert(0, merged);
            written += merged;
            changed += new_bytes;
            most = most.max(runs.len());
        }
        (most, written / changed)
    }

    #[test]
    fn runs_stay_few_and_writes_are_bounded() {
        for base in [0, 1 << 20, 200 << 20] {
            for (new_bytes, most_times) in [
                (600, 11),
                (6_000, 8),
                (60_000, 8),
                (600_000, 8),
                (6_000_000, 8),
            ] {
                let (runs, times) = simulate(base, [new_bytes; 1000]);
                assert!(runs <= 5, "{runs} runs of {new_bytes} over {base}");
                assert!(times <= most_times, "{times} times {new_bytes} over {base}");
            }
        }
    }

    #[test]
    fn many_updates_have_few_more_runs() {
        for (new_bytes, most_times) in [(600, 29), (6_000, 22)] {
            let (runs, times) = simulate(200 << 20, std::iter::repeat_n(new_bytes, 50_000));
            assert!(runs <= 7, "{runs} runs");
            assert!(times <= most_times, "{times} times {new_bytes}");
        }
    }

    #[test]
    fn small_updates_leave_large_runs() {
        let large = [100 << 20; 4].into_iter();
        let updates = large.chain(std::iter::repeat_n(2_000, 3000));
        let (runs, times) = simulate(10 << 30, updates);
        assert!((runs, times) <= (6, 3), "{runs} runs, {times} times");
        let updates = (0..3000).map(|n| if n % 50 == 0 { 5 << 20 } else { 3_000 });
        let (runs, times) = simulate(10 << 30, updates);
        assert!((runs, times) <= (6, 7), "{runs} runs, {times} times");
    }

    #[test]
    fn a_small_update_leaves_the_base() {
        assert_eq!(runs_to_merge(&[1 << 30], 1000), 0);
        assert_eq!(runs_to_merge(&[1000, 1 << 30], 1000), 1);
        assert_eq!(runs_to_merge(&[], 1000), 0);
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let runs: Vec<u64> = (0..12).map(|n| 1 << (17 + 4 * n)).collect();
        assert!(runs_to_merge(&runs, 10) > 0);
        assert_eq!(runs_to_merge(&runs[1..], 10), 0);
    }
}
