//! The parts of a dataset, opened: footers read, identities compared.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange};

use super::{Manifest, blocking, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::file::{Opened, PartFile, TAIL_BYTES};
use crate::store::{Store, path};

/// Footers read at once.
const CONCURRENT_OPENS: usize = 32;

/// One version of a part.
#[derive(Debug, Clone)]
pub(super) struct OpenPart {
    pub(super) path: String,
    pub(super) file: PartFile,
    pub(super) source: Source,
}

/// Where a part's bytes come from.
#[derive(Debug, Clone)]
pub(super) enum Source {
    /// An open file: it stays the same version when its name is given to another.
    File(Arc<File>),
    /// Requests for this version; the end of the object is here already.
    Store { e_tag: Option<String>, tail: Bytes },
}

/// Opens every part of a manifest and checks that together they are its dataset.
pub(super) async fn open_parts(
    store: &Store,
    key: &str,
    manifest: &Manifest,
) -> Result<Vec<OpenPart>> {
    let opens = manifest
        .parts
        .iter()
        .map(|name| open_part(store, key, name));
    let parts: Vec<OpenPart> = stream::iter(opens)
        .buffered(CONCURRENT_OPENS)
        .try_collect()
        .await?;
    check_identities(key, manifest, &parts)?;
    let found: u64 = parts.iter().map(|p| p.file.rows()).sum();
    if found != manifest.row_count {
        return Err(incomplete(
            key,
            &format!(
                "its parts hold {found} rows, the manifest says {}",
                manifest.row_count
            ),
        ));
    }
    check_schemas(key, &parts)?;
    Ok(parts)
}

/// Whether every part carries checksums. They were compared with the manifest then, and so is every
/// chunk that is read: whatever has been published since, this is one write's.
pub(super) fn all_sealed(parts: &[OpenPart]) -> bool {
    parts.iter().all(|part| part.file.seal.is_some())
}

/// Opens one part of a dataset's folder.
pub(super) async fn open_part(store: &Store, key: &str, name: &str) -> Result<OpenPart> {
    let path = path::join(key, name);
    let opened = match store.local() {
        Some(_) => open_local(store, &path).await,
        None => open_remote(store, &path, None).await,
    };
    opened.map_err(|e| match e.kind() {
        ErrorKind::NotFound => incomplete(key, &format!("part {name:?} is missing")).caused_by(e),
        ErrorKind::PartCorrupted => e.context(format!("part {name:?}")).at(&path),
        _ => e,
    })
}

/// Every part is of the write the manifest tells of, and stands where it was written.
fn check_identities(key: &str, manifest: &Manifest, parts: &[OpenPart]) -> Result<()> {
    let refuse = |part: &OpenPart, why: &str| {
        let message = format!("part {:?} {why}", part.path);
        Err(Error::new(ErrorKind::PartCorrupted, message).at(key))
    };
    let mut before: Option<(u128, u64, u64, bool)> = None;
    for part in parts {
        let Some(seal) = &part.file.seal else {
            // All or none: a foreign file among ours has replaced one of them.
            if before.is_some() {
                return refuse(part, "has no checksums, unlike the parts before it");
            }
            continue;
        };
        let id = &seal.identity;
        if id.created_at != manifest.created_at_utc {
            return refuse(part, "belongs to another write than the manifest");
        }
        let (begins, follows) = match before {
            None => (
                id.sequence == 0 && std::ptr::eq(part, &raw const parts[0]),
                false,
            ),
            Some((write_id, task, sequence, last)) if write_id == id.write_id => (
                last && id.task > task && id.sequence == 0,
                !last && id.task == task && id.sequence == sequence + 1,
            ),
            Some(_) => (false, false),
        };
        if !begins && !follows {
            return refuse(
                part,
                "is not the part that was written here: parts were swapped, repeated or left out",
            );
        }
        before = Some((id.write_id, id.task, id.sequence, id.last));
    }
    match (before, parts.last()) {
        (Some((_, _, _, false)), Some(part)) => refuse(
            part,
            "is not the last part that was written: parts were left out",
        ),
        _ => Ok(()),
    }
}

fn check_schemas(key: &str, parts: &[OpenPart]) -> Result<()> {
    let Some((first, others)) = parts.split_first() else {
        return Ok(());
    };
    for part in others {
        if part.file.schema.fields() != first.file.schema.fields() {
            let message = format!(
                "part {:?} has another schema than {:?}",
                part.path, first.path
            );
            return Err(Error::new(ErrorKind::DatasetIncomplete, message).at(key));
        }
    }
    Ok(())
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

/// Opens an object by its last bytes, of the version `e_tag` if given.
pub(super) async fn open_remote(
    store: &Store,
    path: &str,
    e_tag: Option<&str>,
) -> Result<OpenPart> {
    let mut wanted = TAIL_BYTES;
    let mut e_tag = e_tag.map(str::to_owned);
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
