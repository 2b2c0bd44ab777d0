//! Opening a Parquet file: its footer is read and its version remembered.
//!
//! An [`OpenPart`] reads one version of a file. Requests name the ETag with which an object was opened; a local file is
//! read by the descriptor that is open, or is refused if it was replaced. [`open`] fetches the end of an
//! object, and once more where the footer is longer than that.
//!
//! [`ErrorKind::NotFound`] for a missing file, [`ErrorKind::PartCorrupted`] for one that is not a Parquet file.

use std::sync::Arc;

use arrow_array::ArrayRef;
use bytes::Bytes;
use object_store::{GetOptions, GetRange};

use super::local::LocalFile;
use super::{run_blocking, run_short};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::{Chunks, decode_rows};
use crate::parquet::file::{FileOpenResult, ParquetFile, TAIL_BYTES};
use crate::parquet::page_selection::RowSelection;
use crate::store::Store;

/// One version of a part.
#[derive(Debug, Clone)]
pub(crate) struct OpenPart {
    pub(crate) path: String,
    pub(crate) file: ParquetFile,
    pub(crate) source: PartSource,
}

/// Where a part's bytes come from.
#[derive(Debug, Clone)]
pub(crate) enum PartSource {
    /// A file on this machine.
    Local(Arc<LocalFile>),
    /// Requests for the version `e_tag`. `tail` is the end of the object if that holds column chunks, or page indexes
    /// that were asked for, else empty.
    Store { e_tag: Option<String>, tail: Bytes },
}

/// Opens the file at `path`. The last `tail_bytes` are read first, of a local file at least [`TAIL_BYTES`].
pub(crate) async fn open(store: &Store, path: &str, tail_bytes: u64) -> Result<OpenPart> {
    open_with_indexes(store, path, tail_bytes, 0).await
}

/// As [`open`], and of an object fetches `index_bytes` more, in which page indexes are expected.
pub(crate) async fn open_with_indexes(
    store: &Store,
    path: &str,
    tail_bytes: u64,
    index_bytes: u64,
) -> Result<OpenPart> {
    match store.local() {
        Some(_) => open_local(store, path, tail_bytes).await,
        None => open_remote(store, path, tail_bytes, index_bytes).await,
    }
}

/// Opens an object of which all bytes are at hand: none of them is requested.
pub(crate) async fn open_bytes(path: &str, bytes: Bytes) -> Result<OpenPart> {
    let (tail, length) = (bytes.clone(), bytes.len() as u64);
    match run_blocking(move || ParquetFile::open(&tail, length)).await? {
        FileOpenResult::NeedTail(_) => {
            Err(Error::new(ErrorKind::PartCorrupted, "the footer is incomplete").with_path(path))
        }
        FileOpenResult::Ready(file) => Ok(OpenPart {
            path: path.to_owned(),
            file: *file,
            source: PartSource::Store {
                e_tag: None,
                tail: bytes,
            },
        }),
    }
}

impl OpenPart {
    /// The same part with `file` as its description, such as one with other columns.
    pub(crate) fn with_file(&self, file: ParquetFile) -> Self {
        Self {
            path: self.path.clone(),
            file,
            source: self.source.clone(),
        }
    }

    /// The same part, to be kept: without the descriptor of a local file.
    pub(crate) fn without_descriptor(self: &Arc<Self>) -> Arc<Self> {
        match &self.source {
            PartSource::Store { .. } => Arc::clone(self),
            PartSource::Local(file) => Arc::new(Self {
                source: PartSource::Local(Arc::new(file.without_descriptor())),
                ..self.as_ref().clone()
            }),
        }
    }

    /// Opens the local file of the part once more; `None` if another one is there now, or the part is in an object store.
    pub(crate) async fn reopen(&self, store: &Store) -> Result<Option<Self>> {
        let PartSource::Local(known) = &self.source else {
            return Ok(None);
        };
        let (store, path, known) = (store.clone(), self.path.clone(), Arc::clone(known));
        let opened = run_blocking(move || {
            let (file, _) = LocalFile::open(&store, &path)?;
            Ok(file.is_version_of(&known).then_some(file))
        });
        let opened = opened.await?;
        Ok(opened.map(|file| Self {
            source: PartSource::Local(Arc::new(file)),
            ..self.clone()
        }))
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tail = match &self.source {
            PartSource::Local(_) => 0,
            PartSource::Store { tail, .. } => tail.len(),
        };
        tail + self.file.memory_bytes()
    }

    /// Decodes one column of a row group, all of it or some rows. The chunks of a local file are read here, on
    /// the decoding thread; those of an object are in `fetched`.
    pub(crate) fn decode(
        &self,
        group: usize,
        root: usize,
        fetched: &Chunks,
        rows: Option<&RowSelection>,
    ) -> Result<Vec<ArrayRef>> {
        let with_part_context = |e: Error| {
            e.context(format!("part {:?}", self.path))
                .with_path(&self.path)
        };
        match self.read_local(group, root, rows) {
            None => decode_rows(&self.file, group, root, fetched, rows).map_err(with_part_context),
            Some(chunks) => {
                decode_rows(&self.file, group, root, &chunks?, rows).map_err(with_part_context)
            }
        }
    }
}

async fn open_local(store: &Store, path: &str, tail_bytes: u64) -> Result<OpenPart> {
    let (store, path) = (store.clone(), path.to_owned());
    run_short(move || {
        let (file, length) = LocalFile::open(&store, &path)?;
        let mut tail_bytes = tail_bytes.max(TAIL_BYTES).min(length);
        loop {
            let tail = file.read(&(length - tail_bytes..length))?;
            match ParquetFile::open(&tail, length)? {
                FileOpenResult::NeedTail(more) if more > tail_bytes => tail_bytes = more,
                FileOpenResult::NeedTail(_) => {
                    return Err(
                        Error::new(ErrorKind::PartCorrupted, "the footer is incomplete")
                            .with_path(&path),
                    );
                }
                FileOpenResult::Ready(opened) => {
                    return Ok(OpenPart {
                        path,
                        file: *opened,
                        source: PartSource::Local(Arc::new(file)),
                    });
                }
            }
        }
    })
    .await
}

async fn open_remote(
    store: &Store,
    path: &str,
    tail_bytes: u64,
    index_bytes: u64,
) -> Result<OpenPart> {
    let mut requested_bytes = tail_bytes + index_bytes;
    let mut e_tag: Option<String> = None;
    loop {
        let (tail, length, current_e_tag) =
            read_tail(store, path, requested_bytes, e_tag.as_deref()).await?;
        let tail_clone = tail.clone();
        let opened = run_blocking(move || ParquetFile::open(&tail_clone, length)).await?;
        e_tag = current_e_tag;
        match opened {
            FileOpenResult::NeedTail(more) if more > tail.len() as u64 => requested_bytes = more,
            FileOpenResult::NeedTail(_) => {
                return Err(
                    Error::new(ErrorKind::PartCorrupted, "the footer is incomplete")
                        .with_path(path),
                );
            }
            FileOpenResult::Ready(file) => {
                let tail_start = length - tail.len() as u64;
                let has_chunks = file.chunks_end() > tail_start;
                let is_kept = has_chunks || index_bytes > 0;
                let tail = if is_kept { tail } else { Bytes::new() };
                return Ok(OpenPart {
                    path: path.to_owned(),
                    file: *file,
                    source: PartSource::Store { e_tag, tail },
                });
            }
        }
    }
}

/// The last `requested_bytes`, the object's length and its ETag.
async fn read_tail(
    store: &Store,
    path: &str,
    requested_bytes: u64,
    e_tag: Option<&str>,
) -> Result<(Bytes, u64, Option<String>)> {
    let range = if store.capabilities().suffix_ranges {
        GetRange::Suffix(requested_bytes)
    } else {
        let size = store.head(path).await?.size;
        GetRange::Offset(size.saturating_sub(requested_bytes))
    };
    let options = GetOptions::new()
        .with_range(Some(range))
        .with_if_match(e_tag);
    match store.get(path, options).await {
        Ok((bytes, meta)) => Ok((bytes, meta.size, meta.e_tag)),
        // Stores refuse any range of an empty object.
        Err(e) if e.kind() == ErrorKind::Unavailable || e.kind() == ErrorKind::Other => {
            match store.head(path).await {
                Ok(meta) if meta.size == 0 => Err(Error::new(
                    ErrorKind::PartCorrupted,
                    "not a Parquet file: the file is empty",
                )
                .with_path(path)),
                _ => Err(e),
            }
        }
        Err(e) => Err(e),
    }
}
