//! Deleting a dataset: the marker, the manifest, then everything else that is listed.

use object_store::ObjectMeta;

use super::acquire::{ClaimStatus, wait_until_intent_removed};
use super::intent::{Intent, IntentOperation, Phase};
use super::lease::PublishLease;
use super::recover::{acquire, heal};
use super::removal::{NestedPolicy, Removal, find_others, is_dataset_file, list_files_below};
use super::steps::{StepError, Steps};
use super::{check_key, file_in_place_error, without_cas};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Store;

/// Deletes the whole folder (PDS-010): everything that is listed in it under the lease.
///
/// [`ErrorKind::NotFound`] if the folder is empty, [`ErrorKind::Fenced`] if another write took over and
/// has published. An empty directory of a local store is removed; [`ErrorKind::Other`] if that is not possible.
/// [`ErrorKind::InvalidPath`] if something else than datasets, such as a table, is in the folder, if the folder is a
/// symbolic link, and if a file is in its place.
pub async fn delete(store: &Store, key: &str) -> Result<()> {
    check_key(key)?;
    if !store.capabilities().delete {
        let message = format!("delete_dataset requires the DELETE capability for {key:?}");
        return Err(Error::new(ErrorKind::CapabilityNotSupported, message)
            .with_detail("delete")
            .with_path(key));
    }
    store.refuse_link(key).await?;
    let files = store.list(key).await?;
    refuse_others(key, &files)?;
    if files.is_empty() {
        return delete_empty(store, key).await;
    }
    if !store.capabilities().conditional {
        without_cas::delete(store, key).await?;
        return store.remove_empty_folder(key).await;
    }
    let claim = Intent::claim(store.clock().new_id(), IntentOperation::Delete);
    let claim_status = ClaimStatus::default();
    let acquired = Box::pin(acquire(store, key, &claim, &claim_status)).await?;
    let lease = &acquired.lease;
    let deleted =
        lease.run_with_heartbeat(Box::pin(delete_with_lease(lease, acquired.after_recovery)));
    let deleted = deleted.await;
    let is_lost = lease.is_lost_by(deleted.as_ref().err()).await;
    match deleted {
        Ok(()) => {}
        Err(e) if is_lost => {
            wait_until_intent_removed(lease).await?;
            let remaining = store.list(key).await?;
            if remaining.iter().any(|meta| is_dataset_file(key, meta)) {
                return Err(e.context("another write took over before the deletion was complete"));
            }
        }
        Err(e) => return Err(e),
    }
    store.remove_empty_folder(key).await
}

/// Removes a folder in which nothing is listed, where folders exist without files; an error if it stays without a
/// reason that is listed.
async fn delete_empty(store: &Store, key: &str) -> Result<()> {
    if !store.is_local_folder(key).await? {
        // The error of a store that cannot look at a folder as at a file says nothing about the dataset.
        return Err(match store.is_file(key).await {
            Ok(true) => file_in_place_error(key, key),
            _ => not_found_error(key),
        });
    }
    store.remove_empty_folder(key).await?;
    if !store.is_local_folder(key).await? || !store.list(key).await?.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the folder {key:?} cannot be removed: access is denied, or it holds files whose names no path can have"
    );
    Err(Error::other(message).with_path(key))
}

/// Refuses to delete tables, pipelines and chains, which have ways of their own to be removed.
fn refuse_others(key: &str, files: &[ObjectMeta]) -> Result<()> {
    let Some(folder) = find_others(files).into_iter().next() else {
        return Ok(());
    };
    let message = format!(
        "{folder:?} holds a table, a pipeline or a chain, which delete_dataset does not delete; drop a table with \
         Table.drop, or delete the folder with Store.delete_folder"
    );
    Err(Error::new(ErrorKind::InvalidPath, message).with_path(key))
}

fn not_found_error(key: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no dataset at {key:?}"),
    )
    .with_path(key)
}

async fn delete_with_lease(lease: &PublishLease<'_>, after_recovery: bool) -> Result<()> {
    let steps = Steps::begin(lease).await?;
    let files = list_files_below(lease).await?;
    if files.is_empty() && !after_recovery {
        lease.release().await;
        return Err(not_found_error(lease.key));
    }
    let base = steps.read_base().await?;
    lease
        .rewrite(|intent| {
            intent.phase = Phase::Active;
            intent.base = base;
        })
        .await?;
    let error = match remove_with_nested(&steps).await {
        Ok(()) => {
            lease.release().await;
            // Back after a loss of power, the intent would delete what others put into the folder since.
            return steps.sync_names().await;
        }
        Err(StepError::MarkerInDoubt(error)) => {
            if let Err(e) = heal(lease.store, lease.key).await {
                log::warn!("could not heal {:?} after a late request: {e}", lease.key);
            }
            error
        }
        Err(StepError::PartMissing(error) | StepError::Other(error)) => error,
    };
    Err(match error.kind() {
        ErrorKind::Fenced => error,
        _ => {
            error.context("the deletion was interrupted; the next call that may write finishes it")
        }
    })
}

/// Removes everything in the folder, and the datasets in folders below, each under a lease of its own.
async fn remove_with_nested(steps: &Steps<'_, '_>) -> Result<(), StepError> {
    let mut removal = Removal::begin(steps, NestedPolicy::Delete).await?;
    while let Some(nested) = removal.run_round().await? {
        for folder in &nested {
            match Box::pin(delete(&steps.store, folder)).await {
                // Another process deleted it or is writing it; the next listing shows which.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => {}
                deleted => deleted?,
            }
        }
    }
    Ok(())
}
