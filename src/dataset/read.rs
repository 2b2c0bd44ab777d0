//! A whole dataset, or some of its columns, into memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use object_store::GetOptions;

use super::open::{all_sealed, open_parts};
use super::publish::recover;
use super::{INTENT, MANIFEST, Manifest, SUCCESS, incomplete};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::types::batch_of;
use crate::part::{Group, OpenPart, read_groups};
use crate::store::{Store, path};

/// How often a read starts over because the dataset was replaced meanwhile.
const MAX_RESTARTS: u32 = 20;
const RESTART_PAUSE: Duration = Duration::from_millis(20);
/// A manifest above this is not one.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// Columns in memory.
#[derive(Debug, Clone)]
pub struct Table {
    /// The schema as it was written, projected.
    pub schema: SchemaRef,
    /// One batch for each row group, in order.
    pub batches: Vec<RecordBatch>,
}

/// A manifest and the bytes it was read from, to be compared later.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) manifest: Manifest,
    bytes: Bytes,
}

/// Reads `manifest.json`.
pub async fn read_manifest(store: &Store, key: &str) -> Result<Manifest> {
    super::check_key(key)?;
    load_manifest(store, key).await.map(|seen| seen.manifest)
}

async fn load_manifest(store: &Store, key: &str) -> Result<Seen> {
    let path = path::join(key, MANIFEST);
    let read = store.get_at_most(&path, GetOptions::default(), MAX_MANIFEST_BYTES);
    let (bytes, _) = read.await.map_err(|e| match e.kind() {
        ErrorKind::TooLarge => {
            let reason = "too many bytes for a manifest";
            Error::new(ErrorKind::ManifestCorrupted, reason)
                .with_detail(reason)
                .at(&path)
        }
        _ => e,
    })?;
    let parsed = Manifest::from_json(&bytes).and_then(|m| m.check_parts().map(|()| m));
    let manifest = parsed.map_err(|e| e.at(&path).context(format!("dataset {key:?}")))?;
    Ok(Seen { manifest, bytes })
}

/// The dataset as it is now: marker and manifest. Waits for a publish that is under way, and
/// finishes one that a crash cut off.
pub(super) async fn settle(store: &Store, key: &str) -> Result<Seen> {
    for _ in 0..MAX_RESTARTS {
        let success = path::join(key, SUCCESS);
        let (marked, loaded) = futures::join!(store.is_file(&success), load_manifest(store, key));
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
        } else if !store.is_file(&path::join(key, INTENT)).await?
            && !store.is_file(&success).await?
        {
            return Err(incomplete(key, "its _SUCCESS marker is missing"));
        }
        recover(store, key).await.map_err(|e| match e.kind() {
            ErrorKind::PermissionDenied | ErrorKind::CapabilityNotSupported => incomplete(
                key,
                "its last write was interrupted and this store may not finish it",
            )
            .caused_by(e),
            _ => e,
        })?;
    }
    Err(incomplete(key, "it is replaced again and again"))
}

/// Whether marker and manifest are still those that were seen.
pub(super) async fn unchanged(store: &Store, key: &str, seen: &Seen) -> Result<bool> {
    // One after the other: whoever has met a part of a newer write finds its marker only after its
    // manifest was placed. Asked at once, an old manifest and a new marker could be the answers.
    if !store.is_file(&path::join(key, SUCCESS)).await? {
        return Ok(false);
    }
    let manifest = path::join(key, MANIFEST);
    match store.get(&manifest, GetOptions::default()).await {
        Ok((bytes, _)) => Ok(bytes == seen.bytes),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Runs `work` on the dataset's parts until what it gives is of one write.
pub(super) async fn consistently<T, F>(
    store: &Store,
    key: &str,
    mut work: impl FnMut(Manifest, Vec<OpenPart>) -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    super::check_key(key)?;
    for _ in 0..MAX_RESTARTS {
        let seen = settle(store, key).await?;
        let mut sealed = false;
        let done = async {
            let parts = open_parts(store, key, &seen.manifest).await?;
            sealed = all_sealed(&parts);
            work(seen.manifest.clone(), parts).await
        };
        let done = done.await;
        if done.is_ok() && sealed || unchanged(store, key, &seen).await? {
            return done;
        }
        log::debug!("the dataset at {key} was replaced while it was read; starting over");
        store.clock().sleep(RESTART_PAUSE).await;
    }
    Err(incomplete(key, "it is replaced faster than it can be read"))
}

/// Reads the dataset; `columns` in the order asked for.
pub async fn read(store: &Store, key: &str, columns: Option<&[String]>) -> Result<Table> {
    if let Some(names) = columns {
        let mut seen = HashSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(Error::invalid(format!(
                "column {twice:?} is asked for twice"
            )));
        }
    }
    consistently(store, key, |_, parts| {
        read_parts(store, key, parts, columns)
    })
    .await
}

async fn read_parts(
    store: &Store,
    key: &str,
    parts: Vec<OpenPart>,
    columns: Option<&[String]>,
) -> Result<Table> {
    let Some(first) = parts.first() else {
        return Err(incomplete(key, "its manifest lists no parts"));
    };
    let roots: Arc<[usize]> = first.file.project(columns)?.into();
    let schema = Arc::new(
        first
            .file
            .schema
            .project(&roots)
            .map_err(|e| Error::other(e.to_string()).caused_by(e))?,
    );
    let groups = parts.into_iter().map(Arc::new).flat_map(|part| {
        let roots = Arc::clone(&roots);
        (0..part.file.metadata().num_row_groups()).map(move |index| Group {
            part: Arc::clone(&part),
            index,
            roots: Arc::clone(&roots),
            rows: None,
        })
    });
    let groups: Vec<Group> = groups.collect();
    let mut batches = Vec::new();
    for aligned in read_groups(store.clone(), &groups).await? {
        for (rows, arrays) in aligned {
            batches.push(batch_of(&schema, arrays, rows)?);
        }
    }
    Ok(Table { schema, batches })
}
