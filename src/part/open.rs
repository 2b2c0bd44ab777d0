//! One Parquet file opened: its footer read, its version held on to.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;
use bytes::Bytes;
use object_store::{GetOptions, GetRange};

use super::blocking;
use super::local::LocalFile;
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::{Chunks, decode_rows};
use crate::parquet::file::{Opened, PartFile, TAIL_BYTES};
use crate::store::Store;

/// One version of a part.
#[derive(Debug, Clone)]
pub(crate) struct OpenPart {
    pub(crate) path: String,
    pub(crate) file: PartFile,
    pub(crate) source: Source,
}

/// Where a part's bytes come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A file on this machine.
    Local(Arc<LocalFile>),
    /// Requests for this version; the end of the object is here already, if it holds column chunks.
    Store { e_tag: Option<String>, tail: Bytes },
}

/// Opens the file at `path`; `tail_bytes` of its end are fetched at first.
pub(crate) async fn open(store: &Store, path: &str, tail_bytes: u64) -> Result<OpenPart> {
    match store.local() {
        Some(_) => open_local(store, path).await,
        None => open_remote(store, path, tail_bytes).await,
    }
}

impl OpenPart {
    /// The same part, of which other columns are read.
    pub(crate) fn with_file(&self, file: PartFile) -> Self {
        Self {
            path: self.path.clone(),
            file,
            source: self.source.clone(),
        }
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        let tail = match &self.source {
            Source::Local(_) => 0,
            Source::Store { tail, .. } => tail.len(),
        };
        tail + self.file.memory_bytes()
    }

    /// Decodes one column of a row group, all of it or some rows; a file's chunks are read here, on the
    /// decoding thread.
    pub(crate) fn decode(
        &self,
        group: usize,
        root: usize,
        fetched: &Chunks,
        rows: Option<&Range<usize>>,
    ) -> Result<Vec<ArrayRef>> {
        let named = |e: Error| {
            e.context(format!("part {:?}", self.path))
                .with_path(&self.path)
        };
        match self.read_local(group, root) {
            None => decode_rows(&self.file, group, root, fetched, rows).map_err(named),
            Some(chunks) => decode_rows(&self.file, group, root, &chunks?, rows).map_err(named),
        }
    }
}

async fn open_local(store: &Store, path: &str) -> Result<OpenPart> {
    let (store, path) = (store.clone(), path.to_owned());
    blocking(move || {
        let (file, length) = LocalFile::open(&store, &path)?;
        let mut wanted = TAIL_BYTES.min(length);
        loop {
            let tail = file.read(&(length - wanted..length))?;
            match PartFile::open(&tail, length)? {
                Opened::NeedTail(more) if more > wanted => wanted = more,
                Opened::NeedTail(_) => {
                    return Err(
                        Error::new(ErrorKind::PartCorrupted, "the footer is incomplete")
                            .with_path(&path),
                    );
                }
                Opened::Ready(opened) => {
                    return Ok(OpenPart {
                        path,
                        file: *opened,
                        source: Source::Local(Arc::new(file)),
                    });
                }
            }
        }
    })
    .await
}

async fn open_remote(store: &Store, path: &str, tail_bytes: u64) -> Result<OpenPart> {
    let mut wanted = tail_bytes;
    let mut e_tag: Option<String> = None;
    loop {
        let (tail, length, found) = read_tail(store, path, wanted, e_tag.as_deref()).await?;
        let asked = tail.clone();
        let opened = blocking(move || PartFile::open(&asked, length)).await?;
        e_tag = found;
        match opened {
            Opened::NeedTail(more) if more > tail.len() as u64 => wanted = more,
            Opened::NeedTail(_) => {
                return Err(
                    Error::new(ErrorKind::PartCorrupted, "the footer is incomplete")
                        .with_path(path),
                );
            }
            Opened::Ready(file) => {
                let tail_at = length - tail.len() as u64;
                let has_chunks = file.chunks_end() > tail_at;
                let tail = if has_chunks { tail } else { Bytes::new() };
                return Ok(OpenPart {
                    path: path.to_owned(),
                    file: *file,
                    source: Source::Store { e_tag, tail },
                });
            }
        }
    }
}

/// The last `wanted` bytes, the object's length and version.
async fn read_tail(
    store: &Store,
    path: &str,
    wanted: u64,
    e_tag: Option<&str>,
) -> Result<(Bytes, u64, Option<String>)> {
    let range = if store.capabilities().suffix_ranges {
        GetRange::Suffix(wanted)
    } else {
        let size = store.head(path).await?.size;
        GetRange::Offset(size.saturating_sub(wanted))
    };
    let options = GetOptions::new()
        .with_range(Some(range))
        .with_if_match(e_tag);
    match store.get(path, options).await {
        Ok((bytes, meta)) => Ok((bytes, meta.size, meta.e_tag)),
        // An empty object has no range.
        Err(e) if e.kind() == ErrorKind::Unavailable || e.kind() == ErrorKind::Other => {
            match store.head(path).await {
                Ok(meta) if meta.size == 0 => Err(Error::new(
                    ErrorKind::PartCorrupted,
                    "0 bytes are no Parquet file",
                )
                .with_path(path)),
                _ => Err(e),
            }
        }
        Err(e) => Err(e),
    }
}
