//! What a delete does under its lease, begun or left behind.

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use super::intent::{Base, Phase};
use super::lease::{Lease, Sent};
use super::steps::{CONCURRENT_PARTS, StepError, Steps, remove_version};
use super::{INTENT, MANIFEST, SUCCESS};
use crate::error::Result;
use crate::store::path;

/// Settles a delete that was left behind.
pub(super) async fn settle_delete(
    lease: &Lease<'_>,
    phase: Phase,
    base: &Base,
) -> Result<(), StepError> {
    let steps = Steps::begin(lease).await?;
    let manifest = steps.base().await?.manifest;
    let is_base = manifest.is_none() || manifest == base.manifest;
    if phase == Phase::Claim || !is_base {
        return Ok(());
    }
    let files = files_below(lease).await?;
    remove_all(&steps, files).await
}

/// Every file below the folder but the intent.
pub(super) async fn files_below(lease: &Lease<'_>) -> Result<Vec<ObjectMeta>> {
    let intent = path::join(lease.key, INTENT);
    let mut files = lease.store.list(lease.key).await?;
    files.retain(|meta| meta.location.as_ref() != intent);
    Ok(files)
}

/// The marker first, then the manifest, so that a marker that is put late finds none; then the rest.
pub(super) async fn remove_all(
    steps: &Steps<'_, '_>,
    files: Vec<ObjectMeta>,
) -> Result<(), StepError> {
    if steps.folder.is_marked() {
        steps.remove_marker().await?;
    }
    let key = steps.lease.key;
    let (first, rest): (Vec<_>, Vec<_>) = files
        .into_iter()
        .filter(|meta| meta.location.as_ref() != path::join(key, SUCCESS))
        .partition(|meta| is_dataset_file(key, meta));
    for files in [first, rest] {
        remove_files(steps, &files).await?;
    }
    Ok(())
}

async fn remove_files(steps: &Steps<'_, '_>, files: &[ObjectMeta]) -> Result<()> {
    let lease = steps.lease;
    if files.is_empty() {
        return Ok(());
    }
    if lease.is_lock() || !lease.conditions.delete {
        let paths: Vec<String> = files.iter().map(|meta| meta.location.to_string()).collect();
        loop {
            let sent = lease.bounded(|store| {
                let paths = paths.clone();
                async move { store.delete_all(&paths).await }
            });
            match sent.await? {
                Sent::Done(()) => return Ok(()),
                Sent::Unknown(_) => lease.drain().await?,
            }
        }
    }
    for chunk in files.chunks(CONCURRENT_PARTS) {
        lease.check().await?;
        let removals = chunk.iter().map(|meta| async move {
            let condition = lease.unchanged(Some(meta.e_tag.as_deref().unwrap_or_default()));
            remove_version(&steps.store, meta.location.as_ref(), &condition).await
        });
        stream::iter(removals)
            .buffer_unordered(CONCURRENT_PARTS)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

/// Whether a file is the dataset's marker or manifest.
pub(super) fn is_dataset_file(key: &str, meta: &ObjectMeta) -> bool {
    let path = meta.location.as_ref();
    path == path::join(key, SUCCESS) || path == path::join(key, MANIFEST)
}
