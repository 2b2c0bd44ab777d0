//! What else there is to do with datasets: exists, list, verify, delete, clean.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::intent::{Action, Held, Intent};
use super::publish::{acquire, carry_out_ours, recover};
use super::read::consistently;
use super::{INTENT, MANIFEST, SUCCESS, check_key};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::decode::{Chunks, decode_column};
use crate::part::{OpenPart, Source, blocking};
use crate::store::local::{TEMP_PREFIX, is_abandoned};
use crate::store::{Store, path};

/// Parts verified at once.
const CONCURRENT_PARTS: usize = 2;

/// Whether a complete dataset is there (PDS-007).
pub async fn exists(store: &Store, key: &str) -> Result<bool> {
    check_key(key)?;
    store.is_file(&path::join(key, SUCCESS)).await
}

/// The keys of the complete datasets below a folder.
pub async fn list(store: &Store, folder: &str) -> Result<Vec<String>> {
    let found = store.list(folder).await?;
    let keys = found.iter().filter_map(|meta| {
        let (key, name) = meta.location.as_ref().rsplit_once('/')?;
        (name == SUCCESS).then(|| key.to_owned())
    });
    let mut keys: Vec<String> = keys.collect();
    keys.sort();
    Ok(keys)
}

/// Removes the whole folder (PDS-010).
pub async fn delete(store: &Store, key: &str) -> Result<()> {
    check_key(key)?;
    if !store.abilities().delete {
        let message = format!("delete_dataset requires the DELETE capability for {key:?}");
        return Err(Error::new(ErrorKind::CapabilityNotSupported, message)
            .with_detail("delete")
            .at(key));
    }
    if store.list(key).await?.is_empty() {
        if let Some(local) = store.local() {
            let folder = local.resolve(&store.key(key)?);
            if folder.is_ok_and(|f| f.is_dir()) {
                return store.remove_empty_folder(key).await;
            }
        }
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("there is no dataset at {key:?}"),
        )
        .at(key));
    }
    let intent = Intent::new(store.clock().new_id(), Action::Delete);
    let held = acquire(store, key, &intent).await?;
    carry_out_ours(held).await?;
    store.remove_empty_folder(key).await
}

/// The marker first, then the rest; the intent stays until all is gone.
pub(super) async fn carry_out_delete(held: &mut Held<'_>) -> Result<()> {
    let (store, key) = (held.store, held.key);
    store.delete(&path::join(key, SUCCESS)).await?;
    held.confirm().await?;
    store.delete(&path::join(key, MANIFEST)).await?;
    let intent = path::join(key, INTENT);
    let rest: Vec<String> = store
        .list(key)
        .await?
        .iter()
        .map(|meta| meta.location.to_string())
        .filter(|path| *path != intent)
        .collect();
    held.confirm().await?;
    store.delete_all(&rest).await
}

/// What [`verify`] looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Rows of all parts.
    pub rows: u64,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Parts.
    pub parts: usize,
    /// Parts that carry checksums.
    pub checksummed_parts: usize,
}

/// Reads every byte of every part: identity, order, row counts, all checksums; decodes all columns.
pub async fn verify(store: &Store, key: &str) -> Result<Verified> {
    consistently(store, key, |manifest, parts| async move {
        let checks = parts.iter().map(|part| verify_part(store, part));
        stream::iter(checks)
            .buffer_unordered(CONCURRENT_PARTS)
            .try_collect::<()>()
            .await?;
        Ok(Verified {
            rows: manifest.row_count,
            bytes: parts.iter().map(|p| p.file.length).sum(),
            parts: parts.len(),
            checksummed_parts: parts.iter().filter(|p| p.file.seal.is_some()).count(),
        })
    })
    .await
}

async fn verify_part(store: &Store, part: &OpenPart) -> Result<()> {
    let whole = match &part.source {
        Source::File(_) => None,
        Source::Store { e_tag, .. } => {
            let options = GetOptions::new().with_if_match(e_tag.as_deref());
            Some(store.get(&part.path, options).await?.0)
        }
    };
    let part = part.clone();
    blocking(move || {
        let named = |e: Error| e.context(format!("part {:?}", part.path)).at(&part.path);
        let whole = match whole {
            Some(bytes) => bytes,
            None => part.read_whole()?,
        };
        if whole.len() as u64 != part.file.length {
            return Err(named(Error::new(
                ErrorKind::PartCorrupted,
                "its length has changed",
            )));
        }
        part.file.check_indexes(&whole).map_err(named)?;
        let mut chunks = Chunks::new();
        chunks.push(0, whole);
        for group in 0..part.file.metadata().num_row_groups() {
            for root in 0..part.file.schema.fields().len() {
                decode_column(&part.file, group, root, &chunks).map_err(named)?;
            }
        }
        Ok(())
    })
    .await
}

/// What [`clean`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleaned {
    /// Hidden files removed.
    pub files: usize,
}

/// Finishes an interrupted publish and removes what killed writers left: hidden files of processes
/// that are gone, and those older than `older_than`.
pub async fn clean(store: &Store, key: &str, older_than: Duration) -> Result<Cleaned> {
    check_key(key)?;
    recover(store, key).await?;
    let now = store.clock().now();
    let folder = store.list_folder(key).await?;
    let stale: Vec<String> = folder
        .files
        .iter()
        .filter(|meta| {
            let name = meta.location.filename().unwrap_or_default();
            let age = (now - meta.last_modified).to_std().unwrap_or_default();
            name.starts_with(TEMP_PREFIX) && (is_abandoned(name) || age > older_than)
        })
        .map(|meta| meta.location.to_string())
        .collect();
    store.delete_all(&stale).await?;
    Ok(Cleaned { files: stale.len() })
}
