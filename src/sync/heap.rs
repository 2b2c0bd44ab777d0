//! Releases memory that was freed to the system.
//!
//! glibc keeps freed memory in arenas, several for each processor. Batches are made by one thread and
//! freed by another, so that in time each arena keeps as much as was ever in use there at once, and a process has many
//! times the memory that it uses. Code that passes on many rows counts them with [`count_bytes`], which releases
//! free memory when the process has grown. Other C libraries do so themselves.

use std::sync::atomic::{AtomicUsize, Ordering};

/// So many bytes are passed on between two looks at the size of the process.
const CHECK_BYTES: usize = 8 << 20;
/// Free memory is released when the process has grown by more than this, and by an eighth: a large heap takes long.
const MAX_GROWTH_BYTES: usize = 64 << 20;

static COUNTED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The least memory that the process had since free memory was released.
static LEAST_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Counts bytes of rows that are passed on. A call may take some milliseconds, so only threads that may block make it.
pub(crate) fn count_bytes(bytes: usize) {
    let before = COUNTED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if before / CHECK_BYTES == before.wrapping_add(bytes) / CHECK_BYTES {
        return;
    }
    let grew = anonymous_bytes().is_some_and(|bytes| has_grown(&LEAST_BYTES, bytes));
    if !grew {
        return;
    }
    // Meanwhile other threads go on.
    LEAST_BYTES.store(usize::MAX, Ordering::Relaxed);
    release_free_memory();
    if let Some(bytes) = anonymous_bytes() {
        LEAST_BYTES.store(bytes, Ordering::Relaxed);
    }
}

/// Whether the process, which has `bytes` bytes now, has grown by too much over its least size.
fn has_grown(least_bytes: &AtomicUsize, bytes: usize) -> bool {
    let least = least_bytes.fetch_min(bytes, Ordering::Relaxed).min(bytes);
    bytes - least > MAX_GROWTH_BYTES.max(least / 8)
}

/// The memory of the process without that of files, as Linux counts it.
fn anonymous_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kibibytes: usize = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the standard library has no safe way")]
fn release_free_memory() {
    unsafe extern "C" {
        fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // SAFETY: any thread may call it at any time; it takes pages away that no allocation has.
    unsafe {
        malloc_trim(0);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn release_free_memory() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_counts_from_the_least_size() {
        let least = AtomicUsize::new(usize::MAX);
        let sizes = [500, 564, 400, 464, 465, 300, 364];
        let growths = sizes.map(|mebibytes: usize| has_grown(&least, mebibytes << 20));
        assert_eq!(growths, [false, false, false, false, true, false, false]);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_between_allocations_is_released() {
        const BLOCK_BYTES: usize = 64 << 10;
        let mut blocks: Vec<Vec<u8>> = (0..4096).map(|_| vec![1; BLOCK_BYTES]).collect();
        let before = anonymous_bytes().unwrap();
        // Those that stay keep glibc from releasing the others.
        let mut index = 0;
        blocks.retain(|_| {
            index += 1;
            index % 64 == 0
        });
        release_free_memory();
        let after = anonymous_bytes().unwrap();
        assert!(after + (128 << 20) < before, "{before} {after}");
        assert_eq!(blocks.len(), 64);
    }
}
