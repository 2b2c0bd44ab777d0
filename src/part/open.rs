//! One Parquet file opened: its footer read, its version held on to.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use arrow_array::ArrayRef;
use bytes::Bytes;
use object_store::{GetOptions, GetRange};

use super::blocking;
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
    /// An open file: it stays the same version when its name is given to another.
    File(Arc<File>),
    /// Requests for this version; the end of the object is here already.
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
    /// All bytes of an open file.
    pub(crate) fn read_whole(&self) -> Result<Bytes> {
        let Source::File(file) = &self.source else {
            return Err(Error::other("not a local file"));
        };
        let mut bytes = vec![0; usize::try_from(self.file.length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0).map_err(|e| {
            let message = format!("the file cannot be read: {e}");
            Error::new(ErrorKind::PartCorrupted, message)
                .at(&self.path)
                .caused_by(e)
        })?;
        Ok(bytes.into())
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
        let named = |e: Error| e.context(format!("part {:?}", self.path)).at(&self.path);
        match self.read_local(group, root) {
            None => decode_rows(&self.file, group, root, fetched, rows).map_err(named),
            Some(chunks) => decode_rows(&self.file, group, root, &chunks?, rows).map_err(named),
        }
    }
}

async fn open_local(store: &Store, path: &str) -> Result<OpenPart> {
    let (store, path) = (store.clone(), path.to_owned());
    blocking(move || {
        let key = store.key(&path)?;
        let local = store
            .local()
            .ok_or_else(|| Error::other("not a local store"))?;
        let (file, meta) = local.open(&key).map_err(|e| store.error(e, &path))?;
        let mut wanted = TAIL_BYTES.min(meta.size);
        loop {
            let mut tail = vec![0; usize::try_from(wanted).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut tail, meta.size - wanted)
                .map_err(|e| {
                    Error::other(format!("the file cannot be read: {e}"))
                        .at(&path)
                        .caused_by(e)
                })?;
            match PartFile::open(&tail.into(), meta.size)? {
                Opened::NeedTail(more) if more > wanted => wanted = more,
                Opened::NeedTail(_) => {
                    return Err(
                        Error::new(ErrorKind::PartCorrupted, "the footer is incomplete").at(&path),
                    );
                }
                Opened::Ready(opened) => {
                    return Ok(OpenPart {
                        path,
                        file: *opened,
                        source: Source::File(Arc::new(file)),
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
                    Error::new(ErrorKind::PartCorrupted, "the footer is incomplete").at(path),
                );
            }
            Opened::Ready(file) => {
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
    let range = if store.abilities().suffix_ranges {
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
        Err(e) if e.kind() == ErrorKind::Unavailable || e.kind() == ErrorKind::Other => match store
            .head(path)
            .await
        {
            Ok(meta) if meta.size == 0 => {
                Err(Error::new(ErrorKind::PartCorrupted, "0 bytes are no Parquet file").at(path))
            }
            _ => Err(e),
        },
        Err(e) => Err(e),
    }
}
