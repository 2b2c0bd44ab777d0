//! The second step of a write: publishes staged parts as the dataset.
//!
//! [`publish`] acquires the lease on the folder ([`super::lease`]) and lists the folder. Where a marker will be
//! removed, it looks for every staged part. Only then it changes something, in an order in which a crash at any point
//! leaves the old or the new dataset ([`super::recover`] goes on from there):
//!
//! - no marker (a new dataset): parts, strays, manifest, marker;
//! - one file replaces one file of the same name: the file, the manifest; the marker stays;
//! - else: the intent becomes active and names what is replaced; the marker is removed; then as for a new dataset.
//!
//! It refuses, without a change: a dataset or a foreign file in the way of a write without `overwrite`
//! ([`ErrorKind::AlreadyExists`]), and a write that was published before and has been replaced since
//! ([`ErrorKind::Fenced`]).
//!
//! The protocol, its crash points and late requests are in `docs/publish.md`; `tests/model` checks it.

use std::collections::BTreeMap;

use super::acquire::{ClaimStatus, wait_until_intent_removed};
use super::activity::{ReplacedManifest, record_replaced_manifest, replaced_manifest};
use super::folder::{FolderState, is_part_name, is_sealed, read_listed_parts};
use super::intent::{IntendedPart, Intent, IntentOperation, Phase};
use super::lease::PublishLease;
use super::part_locations::find_unavailable_part;
use super::recover::{acquire, heal, publish_in_order};
use super::roll_back::{discard_staged, roll_back};
use super::steps::{Publication, StepError, Steps};
use super::{
    DatasetManifest, DatasetWrite, MANIFEST, StagedPart, already_exists_error, holds_table_error,
    name_file_in_place, prepare, without_cas,
};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Store, path};
use crate::sync::in_place::in_place;
use crate::versions::names::{CHAIN_HEAD, POINTER};

/// Publishes the parts of a write as its dataset, ordered by task and sequence.
///
/// After an error that leaves the folder as it was, the staged parts are removed. Where the outcome is open, they and
/// the intent stay, and the next call that may write recovers the publish. A write that was published before and has
/// been replaced since is [`ErrorKind::Fenced`].
pub async fn publish(
    store: &Store,
    write: &DatasetWrite,
    mut parts: Vec<StagedPart>,
    schema_hash: &str,
) -> Result<DatasetManifest> {
    parts.sort_by_key(|p| (p.task, p.sequence));
    if let Err(error) = check_parts(write, &parts) {
        parts.retain(|part| part.write_id == write.write_id);
        prepare::abort(store, write, &parts).await;
        return Err(error);
    }
    let (manifest, publication) = plan_publication(write, &parts, schema_hash);
    if !store.capabilities().delete || !store.capabilities().conditional {
        without_cas::publish(store, &write.key, &publication).await?;
        return Ok(manifest);
    }
    let claim = Intent::claim(
        write.write_id,
        IntentOperation::Write {
            overwrite: write.overwrite,
            manifest: manifest.to_json(),
            parts: publication.parts.clone(),
        },
    );
    let claim_status = ClaimStatus::default();
    let staged = StagedPartsGuard::new(store, parts, &claim_status);
    let lease = in_place(acquire_for(staged, &write.key, &claim)).await?;
    let work = Box::pin(publish_with_lease(&lease, &publication));
    let published = lease.run_with_heartbeat(work);
    if publication.has_few_writes() {
        in_place(published).await?;
    } else {
        published.await?;
    }
    Ok(manifest)
}

/// Acquires the lease for the claim of a write. Without it the staged parts are removed, unless an intent that names
/// them may exist.
async fn acquire_for<'a>(
    staged: StagedPartsGuard<'a>,
    key: &'a str,
    claim: &Intent,
) -> Result<PublishLease<'a>> {
    let store = staged.store;
    match Box::pin(acquire(store, key, claim, staged.claim_status)).await {
        Ok(acquired) => {
            staged.disarm();
            Ok(acquired.lease)
        }
        Err(error) => {
            staged.abort_unless_claimed().await;
            Err(name_file_in_place(store, key, error).await)
        }
    }
}

/// The manifest of a write, and what is published with it.
fn plan_publication(
    write: &DatasetWrite,
    parts: &[StagedPart],
    schema_hash: &str,
) -> (DatasetManifest, Publication) {
    let names: Vec<String> = (0..parts.len())
        .map(|i| write.layout.part_name(i))
        .collect();
    let manifest = DatasetManifest {
        dataset_key: write.key.clone(),
        parts: names.clone(),
        row_count: parts.iter().map(|p| p.rows).sum(),
        schema_hash: schema_hash.to_owned(),
        compression: write.options.codec.clone(),
        created_at_utc: write.created_at.clone(),
        run_id: write.run_id.clone(),
        metadata: write.metadata.clone(),
    };
    let to_intended_part = |(name, part): (String, &StagedPart)| IntendedPart {
        name,
        bytes: part.bytes,
        task: part.task,
        sequence: part.sequence,
        staged: part.staged.clone(),
    };
    let publication = Publication {
        overwrite: write.overwrite,
        manifest: manifest.to_json().into(),
        parts: names.into_iter().zip(parts).map(to_intended_part).collect(),
    };
    (manifest, publication)
}

/// The staged parts of a call that has no lease yet. Dropped, as by a cancelled call, it removes them unless an intent
/// that names them may exist.
struct StagedPartsGuard<'a> {
    store: &'a Store,
    parts: Vec<StagedPart>,
    claim_status: &'a ClaimStatus,
}

impl<'a> StagedPartsGuard<'a> {
    fn new(store: &'a Store, parts: Vec<StagedPart>, claim_status: &'a ClaimStatus) -> Self {
        Self {
            store,
            parts,
            claim_status,
        }
    }

    async fn abort_unless_claimed(mut self) {
        let parts = std::mem::take(&mut self.parts);
        if !self.claim_status.may_exist() {
            prepare::discard_parts(self.store, &parts).await;
        }
    }

    fn disarm(mut self) {
        self.parts.clear();
    }
}

impl Drop for StagedPartsGuard<'_> {
    fn drop(&mut self) {
        if self.parts.is_empty() || self.claim_status.may_exist() {
            return;
        }
        let (store, parts) = (self.store.clone(), std::mem::take(&mut self.parts));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { prepare::discard_parts(&store, &parts).await });
        }
    }
}

/// Checks that there are parts, that all are of this write and have the same columns, that those of every task are
/// complete, from its first to its last, and that none occurs twice.
fn check_parts(write: &DatasetWrite, parts: &[StagedPart]) -> Result<()> {
    let key = &write.key;
    let refuse = |reason: String| Err(Error::invalid(reason).with_path(key));
    let Some(first) = parts.first() else {
        return refuse("a dataset needs a part; prepare_empty makes one of a schema, for a dataset without rows".to_owned());
    };
    let mut tasks: BTreeMap<u64, &StagedPart> = BTreeMap::new();
    for part in parts {
        let (task, sequence) = (part.task, part.sequence);
        if part.write_id != write.write_id {
            return refuse(format!(
                "part {sequence} of task {task} belongs to another write; pass the parts that this one prepared"
            ));
        }
        if part.columns_hash != first.columns_hash {
            return refuse(format!(
                "the columns of task {task} differ from those of task {}; all tasks need one schema",
                first.task
            ));
        }
        match tasks.insert(task, part) {
            Some(previous) if previous.sequence == sequence => {
                return refuse(format!(
                    "part {sequence} of task {task} occurs twice; pass each part once"
                ));
            }
            Some(previous) if previous.last || previous.sequence + 1 != sequence => {
                return refuse(format!(
                    "part {sequence} of task {task} does not follow part {}; pass all parts of one attempt",
                    previous.sequence
                ));
            }
            None if sequence != 0 => {
                return refuse(format!("part 0 of task {task} is missing"));
            }
            _ => {}
        }
    }
    match tasks.values().find(|part| !part.last) {
        Some(part) => Err(Error::invalid(format!(
            "the parts of task {} after part {} are missing; pass all parts of one attempt",
            part.task, part.sequence
        ))
        .with_path(key)),
        None => Ok(()),
    }
}

/// How a publish under its lease ended.
enum PublishOutcome {
    Published,
    /// The write may not be published; the old dataset, if any, is as it was.
    Refused(Error),
}

async fn publish_with_lease(lease: &PublishLease<'_>, publication: &Publication) -> Result<()> {
    let mut changed = false;
    let outcome = publish_own(lease, publication, &mut changed).await;
    let is_lost = lease.is_lost_by(outcome.as_ref().err()).await;
    match outcome {
        Ok(PublishOutcome::Published) => {
            lease.release().await;
            Ok(())
        }
        Ok(PublishOutcome::Refused(error)) => {
            discard(lease, &publication.parts).await;
            lease.release().await;
            Err(error)
        }
        Err(error) if is_lost => resolve_lost_lease(lease, publication, error).await,
        Err(error) if !changed => {
            // Nothing was changed, so the claim and the staged parts need not stay for the next call.
            discard(lease, &publication.parts).await;
            lease.release().await;
            Err(error)
        }
        Err(error) => Err(error.context(
            "the publish was interrupted; the next call that may write finishes it or puts the old dataset back",
        )),
    }
}

/// Removes the staged parts if the lease still holds.
async fn discard(lease: &PublishLease<'_>, parts: &[IntendedPart]) {
    if lease.check().await.is_ok() {
        discard_staged(lease, parts).await;
    }
}

async fn publish_own(
    lease: &PublishLease<'_>,
    publication: &Publication,
    changed: &mut bool,
) -> Result<PublishOutcome> {
    let mut steps = Steps::begin(lease).await?;
    let is_ours = is_manifest_of(&steps, publication).await?;
    let marked = steps.folder.is_marked();
    if marked && is_ours {
        // Who put the marker may have ended before it was on the disk.
        steps.sync_names().await?;
        return Ok(PublishOutcome::Published);
    }
    if marked && !publication.overwrite {
        return Ok(PublishOutcome::Refused(already_exists_error(lease.key)));
    }
    let manifest_e_tag = steps.folder.e_tag(MANIFEST);
    if !is_ours && replaced_manifest(&lease.id).is_outdated(manifest_e_tag) {
        let message = "this write was published before, and another dataset has replaced it since";
        return Ok(PublishOutcome::Refused(
            Error::new(ErrorKind::Fenced, message).with_path(lease.key),
        ));
    }
    if let Some(error) = find_foreign_file(&steps, publication).await? {
        return Ok(PublishOutcome::Refused(error));
    }
    let is_single = is_single_file_replacement(&steps, publication);
    if marked
        && !is_single
        && let Some(error) = find_unavailable_part(&steps, &publication.parts).await?
    {
        return Ok(PublishOutcome::Refused(error));
    }
    record_replaced_manifest(&lease.id, manifest_e_tag);
    *changed = true;
    if marked {
        let base = steps.read_base().await?;
        let phase = if is_single {
            Phase::Single
        } else {
            Phase::Active
        };
        lease
            .rewrite(|intent| {
                intent.phase = phase;
                intent.base = base;
            })
            .await?;
    }
    match publish_in_order(&mut steps, publication, is_single).await {
        Ok(()) => Ok(PublishOutcome::Published),
        Err(StepError::PartMissing(error)) => {
            roll_back(&mut steps, publication).await?;
            Ok(PublishOutcome::Refused(error))
        }
        Err(StepError::MarkerInDoubt(error)) => {
            if let Err(e) = heal(lease.store, lease.key).await {
                log::warn!("could not heal {:?} after a late request: {e}", lease.key);
            }
            Err(error)
        }
        Err(StepError::Other(error)) => Err(error),
    }
}

/// Whether the folder's manifest is this write's. It is read only where it may be: if the publish was begun
/// before, by this process or, with staged parts, by another one.
async fn is_manifest_of(steps: &Steps<'_, '_>, publication: &Publication) -> Result<bool> {
    let lease = steps.lease;
    let is_staged = publication.parts.iter().any(|part| !part.is_inline());
    let may_match = (is_staged && !publication.overwrite)
        || lease.was_resent
        || replaced_manifest(&lease.id) != ReplacedManifest::NotYet;
    let manifest_file = steps.folder.files.get(MANIFEST);
    if !may_match
        || manifest_file.is_none_or(|file| file.bytes != publication.manifest.len() as u64)
    {
        return Ok(false);
    }
    publication.has_manifest(lease).await
}

/// Whether one file replaces one file of the same name and nothing else is to be removed.
fn is_single_file_replacement(steps: &Steps<'_, '_>, publication: &Publication) -> bool {
    let [part] = publication.parts.as_slice() else {
        return false;
    };
    let folder = &steps.folder;
    let mut parts = folder.files.keys().filter(|name| is_part_name(name));
    folder.is_marked()
        && part.moved_upload_target(steps.lease.key).is_none()
        && folder.e_tag(MANIFEST).is_some()
        && !folder.has_foreign_parts()
        && parts.next() == Some(&part.name)
        && parts.next().is_none()
}

/// The error for a table or a chain in the folder, or for a file under a part's name that no dataset left: without
/// `overwrite` it is not replaced.
async fn find_foreign_file(
    steps: &Steps<'_, '_>,
    publication: &Publication,
) -> Result<Option<Error>> {
    let key = steps.lease.key;
    if steps.folder.files.contains_key(POINTER) {
        return Ok(Some(holds_table_error(key)));
    }
    if steps.folder.may_be_chain && steps.store.is_file(&path::join(key, CHAIN_HEAD)).await? {
        let message = format!("{key:?} holds a chain; a dataset needs a folder of its own");
        return Ok(Some(
            Error::new(ErrorKind::InvalidPath, message).with_path(key),
        ));
    }
    if publication.overwrite {
        return Ok(None);
    }
    let names = publication.parts.iter().map(|part| &part.name);
    let mut listed_names = None;
    for name in names.filter(|name| steps.folder.files.contains_key(*name)) {
        if is_sealed(&steps.store, &path::join(key, name)).await? {
            continue;
        }
        if listed_names.is_none() {
            listed_names = Some(read_listed_parts(&steps.store, key).await?);
        }
        if listed_names
            .as_ref()
            .is_some_and(|listed_names| listed_names.contains(name))
        {
            continue;
        }
        let message = format!(
            "file {name:?} in {key:?} does not belong to a dataset; overwrite=True replaces it, or use another key"
        );
        return Ok(Some(
            Error::new(ErrorKind::AlreadyExists, message).with_path(key),
        ));
    }
    Ok(None)
}

/// After the lease was lost another process recovers this publish. Once the folder has no intent of the write, the
/// publish is acknowledged if its dataset is there; otherwise `error` is returned.
async fn resolve_lost_lease(
    lease: &PublishLease<'_>,
    publication: &Publication,
    error: Error,
) -> Result<()> {
    wait_until_intent_removed(lease).await?;
    let folder = FolderState::list(lease.store, lease.key).await?;
    if folder.is_marked() && publication.has_manifest(lease).await? {
        let manifest = path::join(lease.key, MANIFEST);
        return lease.store.sync_names(&[manifest]).await;
    }
    Err(error.context(
        "another write replaced this one, or the process that took over could not finish it",
    ))
}
