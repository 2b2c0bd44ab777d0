//! Requests and bytes by kind, counted where they leave the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// The kinds of request that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Read an object or a range of it.
    Get,
    /// Write an object or a piece of a multipart upload.
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

/// Counters of one store; its children share them.
#[derive(Debug, Default)]
pub struct Metrics {
    get: AtomicU64,
    put: AtomicU64,
    head: AtomicU64,
    list: AtomicU64,
    delete: AtomicU64,
    copy: AtomicU64,
    post: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    retries: AtomicU64,
}

impl Metrics {
    /// Counts one request that sends `sent` bytes of body.
    pub fn request(&self, kind: Request, sent: u64) {
        self.cell(kind).fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(sent, Ordering::Relaxed);
    }

    /// Counts bytes of answers' bodies.
    pub fn received(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an attempt that failed in a way that is tried again.
    pub fn failed_attempt(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Every counter by name; `requests` is the sum of the kinds.
    pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
        let kinds = [
            ("get", &self.get),
            ("put", &self.put),
            ("head", &self.head),
            ("list", &self.list),
            ("delete", &self.delete),
            ("copy", &self.copy),
            ("post", &self.post),
        ];
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let mut all = vec![("requests", kinds.iter().map(|(_, c)| read(c)).sum())];
        all.extend(kinds.iter().map(|(name, c)| (*name, read(c))));
        all.push(("bytes_read", read(&self.bytes_read)));
        all.push(("bytes_written", read(&self.bytes_written)));
        all.push(("retries", read(&self.retries)));
        all
    }

    /// Sets every counter to zero.
    pub fn reset(&self) {
        for cell in [
            &self.get,
            &self.put,
            &self.head,
            &self.list,
            &self.delete,
            &self.copy,
            &self.post,
            &self.bytes_read,
            &self.bytes_written,
            &self.retries,
        ] {
            cell.store(0, Ordering::Relaxed);
        }
    }

    fn cell(&self, kind: Request) -> &AtomicU64 {
        match kind {
            Request::Get => &self.get,
            Request::Put => &self.put,
            Request::Head => &self.head,
            Request::List => &self.list,
            Request::Delete => &self.delete,
            Request::Copy => &self.copy,
            Request::Post => &self.post,
        }
    }
}
