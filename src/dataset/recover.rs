//! Recovering an abandoned intent: it is finished (forward), rolled back, or dropped.
//!
//! | phase | marker | manifest | parts of the write | staged parts | action |
//! | --- | --- | --- | --- | --- | --- |
//! | any | yes | the write's | any | – | released: it is complete |
//! | claim | yes | another's | any | – | dropped: nothing was changed |
//! | claim | no | any | none | – | dropped: nothing was begun |
//! | claim | no | any | some | there | forward |
//! | claim | no | any | some | missing | dropped, and the write's parts removed: nothing was there before |
//! | active, single | any | base's or the write's | any | there | forward |
//! | active | no | base's, its parts whole | none | missing | back: the marker is put again |
//! | active, single | yes | base's | none | missing | dropped |
//! | active, single | no | base's or the write's | some | missing | cannot be finished |
//! | active, single | any | another's | any | – | dropped, nothing is touched |
//!
//! An intent that cannot be finished stays: readers get [`ErrorKind::DatasetIncomplete`], and the next overwrite or
//! delete replaces it. [`acquire`] recovers for a call with a claim of its own, [`recover`] for a reader; [`heal`]
//! repairs a folder that a late request may have damaged.

use super::acquire::{ClaimStatus, LeaseState, LeaseWaiter};
use super::folder::read_manifest_bytes;
use super::intent::{Intent, IntentOperation, Phase};
use super::lease::PublishLease;
use super::open::open_parts;
use super::part_locations::PartLocations;
use super::removal::recover_delete;
use super::roll_back::{
    discard_staged, remove_published, restore_base, roll_back, unrecoverable_write_error,
};
use super::steps::{Publication, StepError, Steps};
use super::{DatasetManifest, SUCCESS, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Store, defer_name_syncs, is_transient};
use crate::sync::in_place::end_if_cancelled;

/// The lease on the folder for the caller's claim.
#[derive(Debug)]
pub(super) struct Acquired<'a> {
    pub(super) lease: PublishLease<'a>,
    /// Whether another call's intent was recovered first.
    pub(super) after_recovery: bool,
}

/// Acquires the lease for `claim`, after abandoned intents are recovered. An intent that cannot be recovered is
/// replaced by an overwrite or a delete, and is the error of other calls.
pub(super) async fn acquire<'a>(
    store: &'a Store,
    key: &'a str,
    claim: &Intent,
    claim_status: &'a ClaimStatus,
) -> Result<Acquired<'a>> {
    let mut waiter = LeaseWaiter::new(store, key, claim_status);
    let mut after_recovery = false;
    loop {
        let lease = match waiter.acquire_lease(Some(claim)).await? {
            LeaseState::Acquired(lease) => {
                return Ok(Acquired {
                    lease,
                    after_recovery,
                });
            }
            LeaseState::Abandoned(lease) => lease,
            LeaseState::Vacant => continue,
        };
        let error = match lease
            .run_with_heartbeat(Box::pin(recover_intent(&lease)))
            .await
        {
            Ok(RecoveryOutcome::Stuck(error)) => error,
            Ok(RecoveryOutcome::Resolved) => {
                after_recovery = true;
                continue;
            }
            Err(e) if e.kind() == ErrorKind::Fenced => continue,
            Err(e) if is_transient(&e) => return Err(e),
            Err(e) => unfinished_write_error(key, e),
        };
        let replaces = match &claim.operation {
            IntentOperation::Write { overwrite, .. } => *overwrite,
            IntentOperation::Delete => true,
            IntentOperation::Heal => false,
        };
        let abandoned = lease.intent().await;
        // A claim of the same write replaces nothing: the earlier publish has come further.
        if !replaces || abandoned.id == claim.id {
            return Err(error);
        }
        if lease
            .run_with_heartbeat(Box::pin(restore_base(&lease, &abandoned)))
            .await
        {
            after_recovery = true;
            continue;
        }
        log::warn!("replacing the intent of an interrupted write: {error}");
        if let IntentOperation::Write { parts, .. } = &abandoned.operation {
            discard_staged(&lease, parts).await;
        }
        match lease.replace(claim).await {
            Ok(lease) => {
                return Ok(Acquired {
                    lease,
                    after_recovery: true,
                });
            }
            Err(e) if e.kind() == ErrorKind::Fenced => {}
            Err(e) => return Err(e),
        }
    }
}

/// Recovers an abandoned publish, if there is one; waits for one that is under way.
pub(super) async fn recover(store: &Store, key: &str) -> Result<()> {
    let claim_status = ClaimStatus::default();
    let mut waiter = LeaseWaiter::new(store, key, &claim_status);
    if !store.capabilities().conditional {
        if waiter.wait_until_settled().await? {
            return Ok(());
        }
        let message =
            "an interrupted publish cannot be finished through a store without conditional writes";
        return Err(Error::new(ErrorKind::CapabilityNotSupported, message).with_path(key));
    }
    let lease_state = waiter.acquire_lease(None).await?;
    let LeaseState::Abandoned(lease) = lease_state else {
        return Ok(());
    };
    match lease
        .run_with_heartbeat(Box::pin(recover_intent(&lease)))
        .await
    {
        Ok(RecoveryOutcome::Resolved) => Ok(()),
        Ok(RecoveryOutcome::Stuck(error)) => Err(error),
        // Another process recovers it.
        Err(e) if e.kind() == ErrorKind::Fenced => Ok(()),
        Err(e) if is_transient(&e) || e.kind() == ErrorKind::PermissionDenied => Err(e),
        Err(e) => {
            let abandoned = lease.intent().await;
            if lease
                .run_with_heartbeat(Box::pin(restore_base(&lease, &abandoned)))
                .await
            {
                return Ok(());
            }
            Err(unfinished_write_error(key, e))
        }
    }
}

fn unfinished_write_error(key: &str, cause: Error) -> Error {
    incomplete_error(
        key,
        &format!(
            "its last write was interrupted and cannot be finished ({cause}); \
             write the dataset again with overwrite=True, or delete it"
        ),
    )
    .with_source(cause)
}

/// The outcome of a recovery.
#[derive(Debug)]
pub(super) enum RecoveryOutcome {
    /// The intent was finished, rolled back or dropped.
    Resolved,
    /// The intent cannot be finished, and stays.
    Stuck(Error),
}

/// Recovers the intent that the lease is for, and removes it unless it is stuck.
pub(super) async fn recover_intent(lease: &PublishLease<'_>) -> Result<RecoveryOutcome> {
    let intent = lease.intent().await;
    let outcome = match intent.operation {
        IntentOperation::Heal => RecoveryOutcome::Resolved,
        IntentOperation::Delete => {
            let result = recover_delete(lease, intent.phase, &intent.base).await;
            heal_if_in_doubt(lease, result).await?;
            RecoveryOutcome::Resolved
        }
        IntentOperation::Write {
            overwrite,
            ref manifest,
            ref parts,
        } => {
            let publication = Publication {
                overwrite,
                manifest: manifest.clone().into(),
                parts: parts.clone(),
            };
            Box::pin(recover_write(lease, &intent, &publication)).await?
        }
    };
    if matches!(outcome, RecoveryOutcome::Resolved) {
        lease.release().await;
    }
    Ok(outcome)
}

async fn recover_write(
    lease: &PublishLease<'_>,
    intent: &Intent,
    publication: &Publication,
) -> Result<RecoveryOutcome> {
    let mut steps = Steps::begin(lease).await?;
    let marked = steps.folder.is_marked();
    let is_ours = publication.has_manifest(lease).await?;
    if marked && is_ours {
        return Ok(RecoveryOutcome::Resolved);
    }
    let is_base = steps.read_base().await?.manifest == intent.base.manifest;
    let parts = PartLocations::find(&steps, &publication.parts).await?;
    let has_begun = parts.published_count > 0 || is_ours;
    match intent.phase {
        Phase::Claim if marked || !has_begun => drop_write(lease, publication).await,
        Phase::Claim if parts.missing.is_some() => {
            discard_staged(lease, &publication.parts).await;
            remove_published(&steps, publication).await?;
            Ok(RecoveryOutcome::Resolved)
        }
        Phase::Active | Phase::Single if !is_ours && !is_base => {
            drop_write(lease, publication).await
        }
        phase if parts.missing.is_none() => {
            let keeps_marker = phase == Phase::Single && marked;
            match publish_in_order(&mut steps, publication, keeps_marker).await {
                Ok(()) => Ok(RecoveryOutcome::Resolved),
                Err(StepError::PartMissing(error)) => {
                    roll_back(&mut steps, publication).await?;
                    log::warn!("rolled an interrupted publish back: {error}");
                    Ok(RecoveryOutcome::Resolved)
                }
                result => heal_if_in_doubt(lease, result)
                    .await
                    .map(|()| RecoveryOutcome::Resolved),
            }
        }
        phase if marked && is_base && parts.published_count == 0 => {
            if phase == Phase::Active && lease.conditions.marker_versions && !lease.is_lock() {
                // A late deletion of the marker then names an older version.
                steps.renew_marker().await?;
            }
            drop_write(lease, publication).await
        }
        Phase::Active if is_base && parts.published_count == 0 => {
            roll_back(&mut steps, publication).await?;
            Ok(RecoveryOutcome::Resolved)
        }
        _ => Ok(RecoveryOutcome::Stuck(unrecoverable_write_error(
            lease.key,
            parts.missing.as_deref(),
        ))),
    }
}

/// The error of a step, after a folder that a late request of this process may have hit was healed.
async fn heal_if_in_doubt(lease: &PublishLease<'_>, result: Result<(), StepError>) -> Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(StepError::MarkerInDoubt(error)) => {
            if let Err(e) = Box::pin(heal(lease.store, lease.key)).await {
                log::warn!("could not heal {:?} after a late request: {e}", lease.key);
            }
            Err(error)
        }
        Err(StepError::PartMissing(error) | StepError::Other(error)) => Err(error),
    }
}

/// Removes the staged parts. The caller releases the intent after that, so that no upload is completed late.
async fn drop_write(
    lease: &PublishLease<'_>,
    publication: &Publication,
) -> Result<RecoveryOutcome> {
    discard_staged(lease, &publication.parts).await;
    Ok(RecoveryOutcome::Resolved)
}

/// Carries out the steps of a publish from the state of the folder on. `keeps_marker`: the marker stays all the time.
///
/// On a local disk, names are there before what comes after them may be: that of the removed marker before those of
/// parts, all others before the marker's. Where a dataset is replaced, those of the parts are there before the
/// manifest's, too: a manifest of this write without its parts would be taken for another write's.
pub(super) async fn publish_in_order(
    steps: &mut Steps<'_, '_>,
    publication: &Publication,
    keeps_marker: bool,
) -> Result<(), StepError> {
    let marked = steps.folder.is_marked();
    if marked && !keeps_marker {
        steps.remove_marker(steps.folder.e_tag(SUCCESS)).await?;
        end_if_cancelled().await;
    }
    defer_name_syncs(steps.publish_parts(&publication.parts)).await?;
    if steps.lease.intent().await.phase != Phase::Claim {
        steps.sync_names().await?;
    }
    end_if_cancelled().await;
    let removal = steps.remove_strays(&publication.parts, marked, publication.overwrite);
    defer_name_syncs(removal).await?;
    end_if_cancelled().await;
    steps
        .put_manifest(&publication.manifest, keeps_marker)
        .await?;
    if !keeps_marker {
        end_if_cancelled().await;
        steps.put_marker().await?;
    }
    Ok(())
}

/// Repairs a folder in which a request of this process may have landed too late: puts back the marker of a
/// whole dataset of one write, and removes a marker without a manifest.
pub(super) async fn heal(store: &Store, key: &str) -> Result<()> {
    let claim = Intent::claim(store.clock().new_id(), IntentOperation::Heal);
    let claim_status = ClaimStatus::default();
    let acquired = acquire(store, key, &claim, &claim_status).await?;
    let lease = &acquired.lease;
    let work = lease.run_with_heartbeat(async {
        let steps = Steps::begin(lease).await?;
        let manifest = read_manifest_bytes(store, key).await?;
        match (steps.folder.is_marked(), manifest) {
            (false, Some(bytes)) => {
                let Ok(manifest) = DatasetManifest::from_json(&bytes) else {
                    return Ok(());
                };
                let parts = open_parts(store, key, &manifest).await;
                if parts.is_ok_and(|parts| parts.all_sealed()) {
                    log::warn!("putting back the marker of {key:?}, which a late request removed");
                    steps.put_marker().await?;
                }
            }
            (true, None) => match steps.remove_marker(steps.folder.e_tag(SUCCESS)).await {
                Ok(()) | Err(StepError::MarkerInDoubt(_) | StepError::PartMissing(_)) => {}
                Err(StepError::Other(e)) => return Err(e),
            },
            _ => {}
        }
        Ok(())
    });
    let result = work.await;
    lease.release().await;
    result
}
