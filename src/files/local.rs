//! One version of a local file, whose descriptor is kept open while few others are.

use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use object_store::ObjectMeta;

use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// Descriptors that the process keeps open at most; it may be allowed as few as 256.
const MAX_CACHED_FILES: usize = 64;

static CACHED_FILES: AtomicUsize = AtomicUsize::new(0);

/// One version of a file.
#[derive(Debug)]
pub(crate) struct LocalFile {
    store: Store,
    path: String,
    version: Option<String>,
    cached: Option<CachedFile>,
}

impl LocalFile {
    /// Opens the file as it is now; gives it and its length.
    pub(super) fn open(store: &Store, path: &str) -> Result<(Self, u64)> {
        let (file, meta) = open_file(store, path)?;
        let opened = Self {
            store: store.clone(),
            path: path.to_owned(),
            version: meta.e_tag,
            cached: CachedFile::try_new(file),
        };
        Ok((opened, meta.size))
    }

    /// The same version of the file without a descriptor.
    pub(super) fn without_descriptor(&self) -> Self {
        Self {
            store: self.store.clone(),
            path: self.path.clone(),
            version: self.version.clone(),
            cached: None,
        }
    }

    /// Whether both are one version of a file.
    pub(super) fn is_version_of(&self, other: &Self) -> bool {
        self.version.is_some() && self.version == other.version
    }

    /// Reads a range of bytes; [`ErrorKind::Conflict`] if the file was replaced and its descriptor was not kept.
    pub(super) fn read(&self, range: &Range<u64>) -> Result<Bytes> {
        self.with_file(|file| self.read_from(file, range))
    }

    /// As [`Self::read`], of several ranges; the file is opened once.
    pub(super) fn read_all(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.with_file(|file| {
            let read = ranges.iter().map(|range| self.read_from(file, range));
            read.collect()
        })
    }

    fn with_file<T>(&self, read: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        if let Some(cached) = &self.cached {
            return read(&cached.0);
        }
        let (file, meta) = open_file(&self.store, &self.path)?;
        if meta.e_tag != self.version {
            let message = format!("{:?} was replaced while it was read", self.path);
            return Err(Error::new(ErrorKind::Conflict, message).with_path(&self.path));
        }
        read(&file)
    }

    fn read_from(&self, file: &File, range: &Range<u64>) -> Result<Bytes> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, range.start).map_err(|e| {
            let message = format!("cannot read bytes {range:?} of the file: {e}");
            // A file that is too short is damaged; the disk may be at fault for the rest.
            let kind = match e.kind() {
                IoKind::UnexpectedEof => ErrorKind::PartCorrupted,
                _ => ErrorKind::Other,
            };
            Error::new(kind, message)
                .with_path(&self.path)
                .with_source(e)
        })?;
        self.store.count_read_bytes(range.end - range.start);
        Ok(bytes.into())
    }
}

fn open_file(store: &Store, path: &str) -> Result<(File, ObjectMeta)> {
    let key = store.key(path)?;
    let local = store
        .local()
        .ok_or_else(|| Error::other("internal error: not a local store"))?;
    local.open(&key).map_err(|e| store.map_error(e, path))
}

/// An open descriptor, counted in [`CACHED_FILES`].
#[derive(Debug)]
struct CachedFile(File);

impl CachedFile {
    fn try_new(file: File) -> Option<Self> {
        let increment = |count: usize| (count < MAX_CACHED_FILES).then_some(count + 1);
        CACHED_FILES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment)
            .ok()
            .map(|_before| Self(file))
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        CACHED_FILES.fetch_sub(1, Ordering::Relaxed);
    }
}
