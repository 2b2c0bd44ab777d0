//! Looking for datasets and verifying them.

use futures::{StreamExt, TryStreamExt, stream};

use super::open::DatasetParts;
use super::read::with_snapshot;
use super::{SUCCESS, check_key};
use crate::error::Result;
use crate::store::{Store, path};
use crate::sync::progress::{self, Progress};

/// Parts verified at once.
const CONCURRENT_PARTS: usize = 2;

/// Whether a complete dataset exists at `key` (PDS-007), by its marker.
pub async fn exists(store: &Store, key: &str) -> Result<bool> {
    check_key(key)?;
    store.is_file(&path::join(key, SUCCESS)).await
}

/// The keys of the complete datasets below a folder, sorted.
pub async fn list(store: &Store, folder: &str) -> Result<Vec<String>> {
    let files = store.list(folder).await?;
    let marked_keys = files.iter().filter_map(|meta| {
        let (key, name) = meta.location.as_ref().rsplit_once('/')?;
        (name == SUCCESS).then(|| key.to_owned())
    });
    let mut keys: Vec<String> = marked_keys.collect();
    keys.sort();
    Ok(keys)
}

/// What [`verify`] checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatasetVerification {
    /// Rows of all parts.
    pub rows: u64,
    /// Bytes of all parts.
    pub bytes: u64,
    /// Number of parts.
    pub parts: usize,
    /// Number of parts that carry checksums.
    pub checksummed_parts: usize,
}

/// Reads every byte of every part: checks identity, order, row counts and all checksums, and decodes all
/// columns, some of them at a time.
pub async fn verify(store: &Store, key: &str) -> Result<DatasetVerification> {
    with_snapshot(store, key, |manifest, parts| async move {
        let progress = progress::current();
        if let Some(progress) = &progress {
            progress.begin_phase("parts");
            progress.expect_files(parts.len() as u64);
            progress.expect_rows(manifest.row_count);
        }
        let checks =
            (0..parts.len()).map(|index| verify_part(store, &parts, index, progress.as_deref()));
        stream::iter(checks)
            .buffer_unordered(CONCURRENT_PARTS)
            .try_collect::<()>()
            .await?;
        Ok(DatasetVerification {
            rows: manifest.row_count,
            bytes: parts.entries.iter().map(|part| part.bytes).sum(),
            parts: parts.len(),
            checksummed_parts: parts.sealed_count(),
        })
    })
    .await
}

async fn verify_part(
    store: &Store,
    parts: &DatasetParts,
    index: usize,
    progress: Option<&Progress>,
) -> Result<()> {
    let part = parts.get(index).await?;
    part.verify(store).await.map_err(|e| {
        e.context(format!("part {:?}", part.path))
            .with_path(&part.path)
    })?;
    if let Some(progress) = progress {
        let entry = &parts.entries[index];
        progress.add_file(entry.rows, entry.bytes);
    }
    Ok(())
}
