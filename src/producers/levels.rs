//! How many runs a table has: which of them an update merges with what it writes.
//!
//! Runs have levels: up to [`TAIL_BYTES`] level 0, then one level for each [`RATIO`] times. There is one run a level, so
//! the number of runs grows with the logarithm of the data, and a row is written anew about `RATIO / 2` times a level.
//! The oldest run is left to compactions, unless the update is large beside it, or the newer runs together are as large.

/// A run below this is merged with whatever comes next.
const TAIL_BYTES: u64 = 16 << 10;
/// How many times the bytes of a level are those of the one below.
const RATIO: u64 = 8;
/// The most runs of a table, at which an update merges whatever it has to.
pub(super) const MAX_RUNS: usize = 12;

/// How many of a table's runs, newest first and of these sizes in bytes, are merged with a new run of `new_bytes`.
pub(super) fn runs_to_merge(runs: &[u64], new_bytes: u64) -> usize {
    let (mut size, mut count) = (new_bytes, 0);
    for run in runs {
        let has_too_many = runs.len() - count >= MAX_RUNS;
        let is_oldest = count + 1 == runs.len();
        let is_small = *run <= TAIL_BYTES.max(size).max(RATIO * new_bytes);
        let fits = level(*run) <= level(size) && (is_small || !is_oldest);
        if !fits && !has_too_many {
            break;
        }
        size += run;
        count += 1;
    }
    count
}

fn level(bytes: u64) -> u32 {
    let mut level = 0;
    let mut limit = TAIL_BYTES;
    while bytes > limit {
        limit = limit.saturating_mul(RATIO);
        level += 1;
    }
    level
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies updates of `new_bytes` to a base; returns the most runs and the bytes that were written.
    fn simulate(base: u64, new_bytes: u64, updates: usize) -> (usize, u64) {
        let mut runs = vec![base];
        let (mut most, mut written) = (0, 0);
        for _ in 0..updates {
            let count = runs_to_merge(&runs, new_bytes);
            let merged: u64 = runs.drain(..count).sum::<u64>() + new_bytes;
            runs.insert(0, merged);
            written += merged;
            most = most.max(runs.len());
        }
        (most, written)
    }

    #[test]
    fn runs_stay_few_and_writes_are_bounded() {
        for base in [0, 1 << 20, 200 << 20] {
            for (new_bytes, most_times) in [
                (600, 19),
                (6_000, 11),
                (60_000, 11),
                (600_000, 11),
                (6_000_000, 11),
            ] {
                let (runs, written) = simulate(base, new_bytes, 1000);
                assert!(runs <= 5, "{runs} runs of {new_bytes} over {base}");
                let times = written / (new_bytes * 1000);
                assert!(times <= most_times, "{times} times {new_bytes} over {base}");
            }
        }
    }

    #[test]
    fn a_small_update_leaves_the_base() {
        assert_eq!(runs_to_merge(&[1 << 30], 1000), 0);
        assert_eq!(runs_to_merge(&[1000, 1 << 30], 1000), 1);
        assert_eq!(runs_to_merge(&[], 1000), 0);
    }

    #[test]
    fn the_number_of_runs_is_bounded() {
        let runs: Vec<u64> = (0..12).map(|n| (1 << 20) << n).collect();
        assert!(runs_to_merge(&runs, 10) > 0);
        assert_eq!(runs_to_merge(&runs[1..], 10), 0);
    }
}
