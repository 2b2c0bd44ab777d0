//! Counters of requests and bytes by kind of request, counted where they leave the process.

use std::iter::Sum;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The kind of a request to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read an object or a range of it.
    Get,
    /// Write an object or an upload part.
    Put,
    /// Ask for an object's size and version.
    Head,
    /// List keys.
    List,
    /// Delete an object, or abort an upload.
    Delete,
    /// Copy an object inside the store.
    Copy,
    /// Begin or complete a multipart upload, and bulk deletes.
    Post,
}

/// The kinds in the order of [`RequestKind`], with the names of their counters of requests and of bytes.
const KINDS: [(RequestKind, &str, &str); 7] = [
    (RequestKind::Get, "get", "get_bytes"),
    (RequestKind::Put, "put", "put_bytes"),
    (RequestKind::Head, "head", "head_bytes"),
    (RequestKind::List, "list", "list_bytes"),
    (RequestKind::Delete, "delete", "delete_bytes"),
    (RequestKind::Copy, "copy", "copy_bytes"),
    (RequestKind::Post, "post", "post_bytes"),
];

/// The counters of one kind.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// The counters of one store, shared with its children.
#[derive(Debug, Default)]
pub struct Metrics {
    kinds: [Counters; KINDS.len()],
    retries: AtomicU64,
}

impl Metrics {
    /// Counts one request with a body of `body_bytes` bytes.
    pub fn count_request(&self, kind: RequestKind, body_bytes: u64) {
        let counters = self.counters(kind);
        counters.requests.fetch_add(1, Ordering::Relaxed);
        counters
            .bytes_written
            .fetch_add(body_bytes, Ordering::Relaxed);
    }

    /// Counts `bytes` of the body of a response.
    pub fn count_received_bytes(&self, kind: RequestKind, bytes: u64) {
        let bytes_read = &self.counters(kind).bytes_read;
        bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an attempt that failed in a way that is retried.
    pub fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns every counter by name. `requests`, `bytes_read` and `bytes_written` are sums over the kinds; the
    /// bytes of a kind are those of the bodies of its requests and responses together.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let sum =
            |cell: fn(&Counters) -> &AtomicU64| self.kinds.iter().map(|c| load(cell(c))).sum();
        let mut totals = vec![
            ("requests", sum(|c| &c.requests)),
            ("bytes_read", sum(|c| &c.bytes_read)),
            ("bytes_written", sum(|c| &c.bytes_written)),
            ("retries", load(&self.retries)),
        ];
        for (kind, requests, bytes) in KINDS {
            let counters = self.counters(kind);
            totals.push((requests, load(&counters.requests)));
            let total_bytes = load(&counters.bytes_read) + load(&counters.bytes_written);
            totals.push((bytes, total_bytes));
        }
        totals
    }

    /// Sets every counter to zero.
    pub fn reset(&self) {
        self.retries.store(0, Ordering::Relaxed);
        for counters in &self.kinds {
            for cell in [
                &counters.requests,
                &counters.bytes_read,
                &counters.bytes_written,
            ] {
                cell.store(0, Ordering::Relaxed);
            }
        }
    }

    fn counters(&self, kind: RequestKind) -> &Counters {
        &self.kinds[kind as usize]
    }
}

/// Counts what a part of an operation reads, by a store of its own
/// ([`Store::with_read_counter`](super::Store::with_read_counter)). Unlike [`Metrics`], it counts local files that are read
/// by their descriptors, and a request that the layer below repeats once.
#[derive(Debug, Default)]
pub struct ReadCounter {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// The values of a [`ReadCounter`] at a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadCounts {
    /// The requests for objects, for ranges of them, and for their sizes.
    pub requests: u64,
    /// The bytes that were read.
    pub bytes: u64,
}

impl ReadCounter {
    /// Counts a request.
    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes that were read.
    pub(super) fn count_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The values now.
    pub fn counts(&self) -> ReadCounts {
        ReadCounts {
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

impl AddAssign for ReadCounts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
    }
}

impl Sum for ReadCounts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        let mut total = Self::default();
        counts.for_each(|counts| total += counts);
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_kind() {
        let metrics = Metrics::default();
        for (number, (kind, ..)) in (1..).zip(KINDS) {
            for _ in 0..number {
                metrics.count_request(kind, 10);
                metrics.count_received_bytes(kind, 1);
            }
        }
        let counted: std::collections::HashMap<_, _> = metrics.snapshot().into_iter().collect();
        for (number, (_, requests, bytes)) in (1..).zip(KINDS) {
            assert_eq!((counted[requests], counted[bytes]), (number, 11 * number));
        }
        assert_eq!(counted["requests"], 28);
        assert_eq!((counted["bytes_read"], counted["bytes_written"]), (28, 280));
        metrics.reset();
        assert!(metrics.snapshot().iter().all(|(_, count)| *count == 0));
    }
}
