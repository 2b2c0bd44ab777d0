//! How far an operation is: counters that it adds to, and that another thread reads meanwhile.
//!
//! The operation and all that its task awaits see the [`Progress`] of [`with_progress`] by `current`; tasks and threads
//! that it starts see it only if it is passed to them. Without one, nothing is counted. Counters only grow. Work that is
//! repeated, such as after a conflict, counts again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::mutex;

/// A total that is not known.
const UNKNOWN: u64 = u64::MAX;

tokio::task_local! {
    static CURRENT: Option<Arc<Progress>>;
}

/// The counters of an operation.
#[derive(Debug)]
pub struct Progress {
    phase: Mutex<String>,
    files: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    expected_files: AtomicU64,
    expected_rows: AtomicU64,
}

/// The values of a [`Progress`] at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgressCounts {
    /// What the operation does; empty before it says so.
    pub phase: String,
    /// Number of files that are done.
    pub files: u64,
    /// How many files are to be done, as far as known.
    pub expected_files: Option<u64>,
    /// Number of rows that are done.
    pub rows: u64,
    /// How many rows are to be done, as far as known.
    pub expected_rows: Option<u64>,
    /// Number of bytes that are done.
    pub bytes: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            phase: Mutex::default(),
            files: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            expected_files: AtomicU64::new(UNKNOWN),
            expected_rows: AtomicU64::new(UNKNOWN),
        }
    }
}

impl Progress {
    /// Says what the operation does now.
    pub fn begin_phase(&self, name: &str) {
        let mut phase = self.lock_phase();
        if *phase != name {
            name.clone_into(&mut phase);
        }
    }

    /// Adds a file that is done with its rows and bytes.
    pub fn add_file(&self, rows: u64, bytes: u64) {
        self.add_files(1);
        self.add_rows(rows);
        self.add_bytes(bytes);
    }

    /// Adds files that are done.
    pub fn add_files(&self, count: u64) {
        self.files.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds rows that are done.
    pub fn add_rows(&self, count: u64) {
        self.rows.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds bytes that are done.
    pub fn add_bytes(&self, count: u64) {
        self.bytes.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds files that are to be done.
    pub fn expect_files(&self, count: u64) {
        expect(&self.expected_files, count);
    }

    /// Adds rows that are to be done.
    pub fn expect_rows(&self, count: u64) {
        expect(&self.expected_rows, count);
    }

    /// The values now. A total is never less than what is done.
    pub fn counts(&self) -> ProgressCounts {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let total = |cell: &AtomicU64, done: u64| {
            let expected = load(cell);
            (expected != UNKNOWN).then_some(expected.max(done))
        };
        let (files, rows) = (load(&self.files), load(&self.rows));
        ProgressCounts {
            phase: self.lock_phase().clone(),
            files,
            expected_files: total(&self.expected_files, files),
            rows,
            expected_rows: total(&self.expected_rows, rows),
            bytes: load(&self.bytes),
        }
    }

    fn lock_phase(&self) -> MutexGuard<'_, String> {
        mutex::lock(&self.phase)
    }
}

fn expect(cell: &AtomicU64, count: u64) {
    let add = |before| {
        Some(if before == UNKNOWN {
            count
        } else {
            before + count
        })
    };
    // The closure never gives None.
    let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
}

/// Runs `work`, which sees `progress` by `current`; with None it counts nothing.
pub async fn with_progress<T>(progress: Option<Arc<Progress>>, work: impl Future<Output = T>) -> T {
    CURRENT.scope(progress, work).await
}

/// The progress of the operation that runs, if somebody reads it.
pub(crate) fn current() -> Option<Arc<Progress>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Adds bytes that the operation that runs has written.
pub(crate) fn add_bytes(count: u64) {
    if let Some(progress) = current() {
        progress.add_bytes(count);
    }
}

/// Says what the operation that runs does now.
pub(crate) fn begin_phase(name: &str) {
    if let Some(progress) = current() {
        progress.begin_phase(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_task_of_an_operation_counts() {
        let progress = Arc::new(Progress::default());
        assert!(current().is_none());
        let work = async {
            begin_phase("write");
            let seen = current().expect("the progress of the scope");
            seen.add_files(2);
            seen.add_rows(7);
            seen.add_bytes(9);
            assert!(with_progress(None, async { current() }).await.is_none());
            let mut tasks = tokio::task::JoinSet::new();
            tasks.spawn(async { current().is_none() });
            assert_eq!(tasks.join_all().await, [true]);
        };
        with_progress(Some(Arc::clone(&progress)), work).await;
        let counts = progress.counts();
        assert_eq!(counts.phase, "write");
        assert_eq!((counts.files, counts.rows, counts.bytes), (2, 7, 9));
        assert_eq!((counts.expected_files, counts.expected_rows), (None, None));
    }

    #[test]
    fn totals_are_never_less_than_what_is_done() {
        let progress = Progress::default();
        progress.expect_files(0);
        assert_eq!(progress.counts().expected_files, Some(0));
        progress.expect_files(2);
        progress.add_files(1);
        assert_eq!(progress.counts().expected_files, Some(2));
        progress.add_files(2);
        assert_eq!(progress.counts().expected_files, Some(3));
    }
}
