//! The parts of a dataset, opened: footers read, identities compared.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, GetRange};

use super::{Manifest, blocking, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::Chunks;
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

/// Ranges closer than this are fetched together: a request costs more than so many bytes…
const MAX_GAP_BYTES: u64 = 256 << 10;
/// …but no more than this share of what is wanted may be fetched in vain.
const MAX_WASTE_PERCENT: u64 = 4;
/// Longer ranges are fetched in pieces, several at once.
const FETCH_BYTES: u64 = 8 << 20;
const CONCURRENT_FETCHES: usize = 8;

/// Row groups that are fetched and decoded at once.
pub(super) fn groups_ahead(store: &Store) -> usize {
    // Files are read where they are decoded; requests are worth being ahead of the decoders.
    if store.local().is_some() { 2 } else { 4 }
}

impl OpenPart {
    /// The chunks of a row group's columns; none where the file itself is open.
    pub(super) async fn fetch(
        &self,
        store: &Store,
        group: usize,
        roots: &[usize],
    ) -> Result<Chunks> {
        let mut chunks = Chunks::new();
        let Source::Store { e_tag, tail } = &self.source else {
            return Ok(chunks);
        };
        let tail_at = self.file.length - tail.len() as u64;
        chunks.push(tail_at, tail.clone());
        let wanted = self.file.ranges(group, roots);
        let missing = wanted
            .into_iter()
            .filter(|r| r.start < tail_at || r.end > self.file.length)
            .collect();
        for run in coalesce(missing) {
            let pieces = split(&run).map(|piece| async move {
                store.get_range(&self.path, piece, e_tag.as_deref()).await
            });
            let pieces: Vec<Bytes> = stream::iter(pieces)
                .buffered(CONCURRENT_FETCHES)
                .try_collect()
                .await?;
            chunks.push(run.start, contiguous(pieces));
        }
        Ok(chunks)
    }

    /// The chunks of one column from an open file.
    pub(super) fn read_local(&self, group: usize, root: usize) -> Option<Result<Chunks>> {
        let Source::File(file) = &self.source else {
            return None;
        };
        let mut chunks = Chunks::new();
        for range in self.file.ranges(group, &[root]) {
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
            if let Err(e) = file.read_exact_at(&mut bytes, range.start) {
                let message = format!("the file cannot be read: {e}");
                return Some(Err(
                    Error::new(ErrorKind::PartCorrupted, message).caused_by(e)
                ));
            }
            chunks.push(range.start, bytes.into());
        }
        Some(Ok(chunks))
    }
}

/// Joins neighbouring ranges, sorted by start, as far as the bytes between them are worth it.
fn coalesce(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let wanted: u64 = ranges.iter().map(|r| r.end - r.start).sum();
    let mut waste_left = wanted * MAX_WASTE_PERCENT / 100;
    let mut runs: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(run) if range.start <= run.end => run.end = run.end.max(range.end),
            Some(run) if range.start - run.end <= MAX_GAP_BYTES.min(waste_left) => {
                waste_left -= range.start - run.end;
                run.end = range.end;
            }
            _ => runs.push(range),
        }
    }
    runs
}

fn split(run: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let (start, end) = (run.start, run.end);
    let pieces = (end - start).div_ceil(FETCH_BYTES).max(1);
    (0..pieces).map(move |i| {
        let from = start + i * FETCH_BYTES;
        from..(from + FETCH_BYTES).min(end)
    })
}

fn contiguous(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        1 => pieces.swap_remove(0),
        _ => pieces.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_only_what_is_worth_it() {
        let mb = 1 << 20;
        let near = vec![0..10 * mb, 10 * mb + 1000..20 * mb];
        assert_eq!(coalesce(near), vec![0..20 * mb]);
        let far = vec![0..mb, 3 * mb..4 * mb];
        assert_eq!(coalesce(far.clone()), far);
        let small_with_gap = vec![0..1000, 2000..3000];
        assert_eq!(coalesce(small_with_gap.clone()), small_with_gap);
        assert_eq!(coalesce(vec![0..5, 5..9]), vec![0..9]);
    }

    #[test]
    fn splits_without_loss() {
        let run = 5..5 + 2 * FETCH_BYTES + 1;
        let pieces: Vec<_> = split(&run).collect();
        assert_eq!(pieces.len(), 3);
        assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
        assert_eq!((pieces[0].start, pieces[2].end), (run.start, run.end));
    }
}
