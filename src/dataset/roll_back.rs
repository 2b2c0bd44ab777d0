//! Restoring the old dataset where a publish cannot be finished.

use super::intent::{IntendedPart, Intent, IntentOperation, Phase};
use super::lease::PublishLease;
use super::part_locations::{PartLocations, is_published};
use super::steps::{Publication, Steps};
use super::{MANIFEST, incomplete_error};
use crate::error::{Error, ErrorKind, Result};

/// Puts the old dataset back after a publish that cannot be finished, if the publish has replaced none of its parts,
/// and removes the intent. False: it has, or the old dataset cannot be put back.
pub(super) async fn restore_base(lease: &PublishLease<'_>, abandoned: &Intent) -> bool {
    let IntentOperation::Write {
        overwrite,
        manifest,
        parts,
    } = &abandoned.operation
    else {
        return false;
    };
    // An inline part could land late over an old part that is still there; an upload that was aborted cannot.
    if abandoned.phase != Phase::Active || parts.iter().any(IntendedPart::is_inline) {
        return false;
    }
    let publication = Publication {
        overwrite: *overwrite,
        manifest: manifest.clone().into(),
        parts: parts.clone(),
    };
    let restore = async {
        let mut steps = Steps::begin(lease).await?;
        // Checked before staged parts are removed: they may still be needed.
        let parts = PartLocations::find(&steps, &publication.parts).await?;
        if parts.published_count > 0 || !is_base_intact(&steps, abandoned).await? {
            return Err(unrecoverable_write_error(
                lease.key,
                parts.missing.as_deref(),
            ));
        }
        roll_back(&mut steps, &publication).await
    };
    match restore.await {
        Ok(()) => {
            lease.release().await;
            true
        }
        Err(e) => {
            log::debug!("cannot put the old dataset at {:?} back: {e}", lease.key);
            false
        }
    }
}

/// After a staged part vanished: puts the marker back where the old dataset is whole, or removes what was
/// published where there was no dataset before. An error: neither is possible, and the intent stays.
pub(super) async fn roll_back(steps: &mut Steps<'_, '_>, publication: &Publication) -> Result<()> {
    let lease = steps.lease;
    let intent = lease.intent().await;
    // After this no part of the write can be published.
    lease.check().await?;
    discard_staged(lease, &publication.parts).await;
    check_discarded(steps, &publication.parts).await?;
    steps.refresh_folder().await?;
    let parts = PartLocations::find(steps, &publication.parts).await?;
    match intent.phase {
        Phase::Claim => remove_published(steps, publication).await,
        _ if parts.published_count > 0 => Err(unrecoverable_write_error(
            lease.key,
            parts.missing.as_deref(),
        )),
        _ if steps.folder.is_marked() => Ok(()),
        _ => {
            if !is_base_intact(steps, &intent).await? {
                return Err(unrecoverable_write_error(
                    lease.key,
                    parts.missing.as_deref(),
                ));
            }
            steps.put_marker().await
        }
    }
}

/// Checks before the marker is put back that all staged parts are removed: one that stays could be published late.
async fn check_discarded(steps: &Steps<'_, '_>, parts: &[IntendedPart]) -> Result<()> {
    for part in parts.iter().filter(|part| !part.is_inline()) {
        if part.staged.is_intact(&steps.store, part.bytes).await? {
            let message = format!("staged part {:?} could not be removed", part.name);
            return Err(Error::new(ErrorKind::Unavailable, message).with_path(steps.lease.key));
        }
    }
    Ok(())
}

/// Whether the manifest and the parts that the intent replaces are unchanged.
async fn is_base_intact(steps: &Steps<'_, '_>, intent: &Intent) -> Result<bool> {
    let (current, base) = (steps.read_base().await?, &intent.base);
    let mut parts = base.parts.iter();
    Ok(current.manifest == base.manifest
        && parts.all(|(name, tag)| current.parts.get(name) == Some(tag)))
}

/// Removes the parts and the manifest that a write published where there was no dataset before.
pub(super) async fn remove_published(
    steps: &Steps<'_, '_>,
    publication: &Publication,
) -> Result<()> {
    let mut names = Vec::new();
    for part in &publication.parts {
        if is_published(steps, part).await? {
            names.push(part.name.clone());
        }
    }
    if publication.has_manifest(steps.lease).await? {
        names.insert(0, MANIFEST.to_owned());
    }
    steps.remove_listed(&names).await
}

pub(super) async fn discard_staged(lease: &PublishLease<'_>, parts: &[IntendedPart]) {
    for part in parts {
        if let Err(e) = part.staged.discard(lease.store).await {
            log::warn!(
                "could not remove staged part {:?} of {:?}: {e}",
                part.name,
                lease.key
            );
        }
    }
}

pub(super) fn unrecoverable_write_error(key: &str, missing: Option<&str>) -> Error {
    let missing = missing.map_or_else(String::new, |name| {
        format!(", and part {name:?} of that write is missing")
    });
    incomplete_error(
        key,
        &format!(
            "its last write was interrupted and can neither be finished nor rolled back{missing}; \
             write the dataset again with overwrite=True, or delete it"
        ),
    )
}
