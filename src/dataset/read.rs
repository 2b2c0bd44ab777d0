//! Reading a whole dataset, or some of its columns, into memory.
//!
//! [`with_snapshot`] is the loop that reading and verifying share: [`resolve_current`] waits for a publish that is
//! under way, or recovers an abandoned one, and reads marker and manifest; the parts are opened and compared with the
//! manifest; the result counts if it is of one write. For parts without a seal, and after an error, marker and manifest
//! are compared once more ([`is_unchanged`], [`was_stable`]), and the read starts over if they changed.
//!
//! [`ErrorKind::DatasetIncomplete`]: there is no marker, a part is missing, the dataset was replaced in every attempt,
//! or its last write was interrupted and cannot be finished. [`ErrorKind::NotFound`]: a marker without a manifest.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;

use super::open::{DatasetParts, open_parts};
use super::recover::recover;
use super::{DatasetManifest, INTENT, MANIFEST, MAX_MANIFEST_BYTES, SUCCESS, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::files::{OpenPart, RowGroupSelection, read_groups};
use crate::parquet::projection::Projection;
use crate::store::{Store, path};
use crate::sync::in_place::in_place;

/// Attempts of a read; it starts over when the dataset was replaced during one.
pub(super) const MAX_RESTARTS: u32 = 20;
/// Parts that are open at once where the footers of all parts are too large to be kept.
const MAX_OPEN_PARTS: usize = 64;
/// Footers read at once.
const CONCURRENT_OPENS: usize = 32;
pub(super) const RESTART_DELAY: Duration = Duration::from_millis(20);

/// The rows of a dataset in memory.
#[derive(Debug, Clone)]
pub struct DatasetBatches {
    /// The dataset's schema, with the selected columns.
    pub schema: SchemaRef,
    /// One batch for each row group, in order.
    pub batches: Vec<RecordBatch>,
}

/// A manifest and the bytes it was read from, which are compared with the folder's manifest later.
#[derive(Debug)]
pub(super) struct ObservedManifest {
    pub(super) manifest: DatasetManifest,
    bytes: Bytes,
}

/// Reads `manifest.json`; [`ErrorKind::ManifestCorrupted`] if it is invalid.
pub async fn read_manifest(store: &Store, key: &str) -> Result<DatasetManifest> {
    super::check_key(key)?;
    load_manifest(store, key)
        .await
        .map(|observed| observed.manifest)
}

async fn load_manifest(store: &Store, key: &str) -> Result<ObservedManifest> {
    let path = path::join(key, MANIFEST);
    let read = store.get_at_most(&path, GetOptions::default(), MAX_MANIFEST_BYTES);
    let (bytes, _) = read.await.map_err(|e| match e.kind() {
        ErrorKind::TooLarge => {
            let reason = format!("the manifest is longer than {MAX_MANIFEST_BYTES} bytes");
            Error::new(ErrorKind::ManifestCorrupted, reason.as_str())
                .with_detail(reason.as_str())
                .with_path(&path)
        }
        _ => e,
    })?;
    let parsed = DatasetManifest::from_json(&bytes).and_then(|m| m.check_parts().map(|()| m));
    let manifest = parsed.map_err(|e| e.with_path(&path).context(format!("dataset {key:?}")))?;
    Ok(ObservedManifest { manifest, bytes })
}

/// The manifest of the dataset as it is now, whose marker must exist. Waits for a publish that is under way, and
/// recovers one that a crash interrupted.
pub(super) async fn resolve_current(store: &Store, key: &str) -> Result<ObservedManifest> {
    for _ in 0..MAX_RESTARTS {
        let success = path::join(key, SUCCESS);
        let reads = async { futures::join!(store.is_file(&success), load_manifest(store, key)) };
        let (marked, loaded) = in_place(reads).await;
        if marked? {
            match loaded {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    // Between two requests of a publish, or a marker without its manifest.
                    if !store.is_file(&path::join(key, INTENT)).await? {
                        return Err(e);
                    }
                }
                loaded => return loaded,
            }
        } else if !is_published_or_claimed(store, key).await? {
            return Err(incomplete_error(key, "its _SUCCESS marker is missing"));
        }
        wait_or_finish(store, key).await?;
    }
    Err(incomplete_error(
        key,
        &format!("it was replaced during each of {MAX_RESTARTS} attempts to read its manifest"),
    ))
}

/// Whether there is a marker or an intent. Both are asked for twice: a publish may end before the look at its intent, and
/// the next one begin before the look at its marker.
async fn is_published_or_claimed(store: &Store, key: &str) -> Result<bool> {
    for name in [INTENT, SUCCESS, INTENT, SUCCESS] {
        if store.is_file(&path::join(key, name)).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Waits for a publish that is under way, or recovers an abandoned one.
async fn wait_or_finish(store: &Store, key: &str) -> Result<()> {
    recover(store, key).await.map_err(|e| match e.kind() {
        ErrorKind::PermissionDenied | ErrorKind::CapabilityNotSupported => incomplete_error(
            key,
            "its last write was interrupted, and this store may not finish it; read it through a store that may write",
        )
        .with_source(e),
        _ => e,
    })
}

/// Whether the dataset was not replaced since `observed`, so that an error of reading is its own. A publish that was
/// under way has ended when this returns false.
///
/// While one file replaces one file the marker stays, and the manifest comes after the file: the old manifest alone
/// does not prove that the file is its own. So the intent is looked for, before the manifest.
pub(super) async fn was_stable(
    store: &Store,
    key: &str,
    observed: &ObservedManifest,
) -> Result<bool> {
    if store.is_file(&path::join(key, INTENT)).await? {
        wait_or_finish(store, key).await?;
        return Ok(false);
    }
    is_unchanged(store, key, observed).await
}

/// Whether the marker exists and the manifest is still the observed one.
pub(super) async fn is_unchanged(
    store: &Store,
    key: &str,
    observed: &ObservedManifest,
) -> Result<bool> {
    // One after the other: a reader that met a part of a newer write finds that write's marker only after its
    // manifest was put. Two requests at once could be answered by the old manifest and the new marker.
    if !store.is_file(&path::join(key, SUCCESS)).await? {
        return Ok(false);
    }
    let manifest = path::join(key, MANIFEST);
    match store.get(&manifest, GetOptions::default()).await {
        Ok((bytes, _)) => Ok(bytes == observed.bytes),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Runs `work` on the dataset's parts, and again if the dataset was replaced, until its result is of one write.
pub(super) async fn with_snapshot<T, F>(
    store: &Store,
    key: &str,
    mut work: impl FnMut(DatasetManifest, DatasetParts) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    super::check_key(key)?;
    for _ in 0..MAX_RESTARTS {
        let observed = resolve_current(store, key).await?;
        let mut is_sealed = false;
        let attempt = async {
            let opened = Box::pin(open_parts(store, key, &observed.manifest));
            let parts = if observed.manifest.parts.len() == 1 {
                in_place(opened).await?
            } else {
                opened.await?
            };
            is_sealed = parts.all_sealed();
            work(observed.manifest.clone(), parts).await
        };
        let result = attempt.await;
        let is_consistent = match &result {
            Ok(_) if is_sealed => true,
            Ok(_) => is_unchanged(store, key, &observed).await?,
            // The parts are of one write, so what they lack they lack.
            Err(e) if is_sealed && e.kind() == ErrorKind::InvalidInput => true,
            Err(_) => was_stable(store, key, &observed).await?,
        };
        if is_consistent {
            return result;
        }
        log::debug!("the dataset at {key} was replaced while it was read; starting over");
        store.clock().sleep(RESTART_DELAY).await;
    }
    Err(incomplete_error(
        key,
        &format!("it was replaced during each of {MAX_RESTARTS} attempts to read it"),
    ))
}

/// Reads the dataset, or only `columns`, in their order; a dot selects a field of a struct.
pub async fn read(store: &Store, key: &str, columns: Option<&[String]>) -> Result<DatasetBatches> {
    with_snapshot(store, key, |_, parts| read_parts(store, parts, columns)).await
}

async fn read_parts(
    store: &Store,
    parts: DatasetParts,
    columns: Option<&[String]>,
) -> Result<DatasetBatches> {
    let projection = Projection::new(&parts.first.file, columns)?;
    let window = if parts.is_fully_cached() {
        parts.len()
    } else {
        MAX_OPEN_PARTS
    };
    let mut batches = Vec::new();
    let mut begin = 0;
    while begin < parts.len() {
        let end = (begin + window).min(parts.len());
        let opens = (begin..end).map(|index| parts.get(index));
        let opened: Vec<Arc<OpenPart>> = stream::iter(opens)
            .buffered(CONCURRENT_OPENS)
            .try_collect()
            .await?;
        let groups: Vec<RowGroupSelection> = opened
            .into_iter()
            .flat_map(|part| select_row_groups(&part, &projection))
            .collect();
        for row_group in read_groups(store.clone(), &groups).await? {
            for (rows, arrays) in row_group {
                batches.push(projection.build_batch(&arrays, rows)?);
            }
        }
        begin = end;
    }
    Ok(DatasetBatches {
        schema: projection.schema,
        batches,
    })
}

fn select_row_groups(part: &OpenPart, projection: &Projection) -> Vec<RowGroupSelection> {
    let part = Arc::new(part.with_file(projection.select(&part.file)));
    let groups = 0..part.file.metadata().num_row_groups();
    let group = |index| RowGroupSelection {
        part: Arc::clone(&part),
        index,
        projection: Arc::clone(&projection.indices),
        rows: None,
    };
    groups.map(group).collect()
}
