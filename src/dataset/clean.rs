//! Removing what killed writers left in a dataset's folder.
//!
//! [`clean`] recovers an interrupted publish first. If a first look shows hidden files, uncompleted uploads or unlisted
//! parts, it removes those that are stale under a lease of its own. Ages are by the store's clock: the time of the
//! intent that [`clean`] has just written is now. Stores without conditional writes have no intents; there it removes
//! hidden files only, by this machine's clock.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::acquire::ClaimStatus;
use super::check_key;
use super::folder::{FolderState, is_part_name, is_sealed, read_listed_parts};
use super::intent::{Intent, IntentOperation};
use super::recover::{acquire, recover};
use super::steps::Steps;
use super::{INTENT, MANIFEST};
use crate::error::{ErrorKind, Result};
use crate::store::process_id::ProcessId;
use crate::store::temp_name::{TEMP_PREFIX, is_abandoned};
use crate::store::{OpenUpload, Store, path};

/// What [`clean`] removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DatasetCleanup {
    /// Number of files that were removed.
    pub files: usize,
    /// Number of uploads that were aborted.
    pub uploads: usize,
}

/// Recovers an interrupted publish and removes what killed writers left: hidden files of processes that
/// have ended, hidden files and uploads that are older than `older_than` by the store's clock, and parts
/// that the complete dataset in the folder does not list.
pub async fn clean(store: &Store, key: &str, older_than: Duration) -> Result<DatasetCleanup> {
    check_key(key)?;
    if !store.capabilities().conditional {
        return clean_without_cas(store, key, older_than).await;
    }
    recover(store, key).await?;
    let folder = FolderState::list(store, key).await?;
    // A first look without a lease, whatever the age: only an object that is written now shows the store's clock.
    let has_hidden_files = folder
        .files
        .keys()
        .any(|name| name.starts_with(TEMP_PREFIX));
    let open_uploads = list_open_uploads(store, key).await?;
    if !has_hidden_files
        && open_uploads.is_empty()
        && find_unlisted_parts(store, key, &folder).await?.is_empty()
    {
        return Ok(DatasetCleanup::default());
    }
    let claim = Intent::claim(store.clock().new_id(), IntentOperation::Heal);
    let claim_status = ClaimStatus::default();
    let acquired = acquire(store, key, &claim, &claim_status).await?;
    let lease = &acquired.lease;
    let work = lease.run_with_heartbeat(async {
        let steps = Steps::begin(lease).await?;
        let now = steps.folder.files.get(INTENT).map(|intent| intent.modified);
        let mut names = find_stale_files(&steps.folder, now, older_than);
        names.extend(find_unlisted_parts(store, key, &steps.folder).await?);
        steps.remove_listed(&names).await?;
        // Under the claim no intent names an upload, and no other intent can be created.
        let uploads: Vec<_> = open_uploads
            .iter()
            .filter(|upload| is_old(upload.initiated_at, now, older_than))
            .collect();
        for upload in &uploads {
            store.abort_upload(upload.path.as_ref(), &upload.id).await?;
        }
        Ok(DatasetCleanup {
            files: names.len(),
            uploads: uploads.len(),
        })
    });
    let result = work.await;
    lease.release().await;
    result
}

/// The uncompleted uploads of objects in the folder; none where the store cannot list them or does not permit it.
async fn list_open_uploads(store: &Store, key: &str) -> Result<Vec<OpenUpload>> {
    match store.list_uploads(key).await {
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::PermissionDenied | ErrorKind::CapabilityNotSupported
            ) =>
        {
            log::warn!("cannot list the uploads that killed writers left in {key:?}: {e}");
            Ok(Vec::new())
        }
        listed => listed,
    }
}

/// Whether something of the time `timestamp` is older than `older_than` at `now`; always for zero.
fn is_old(timestamp: DateTime<Utc>, now: Option<DateTime<Utc>>, older_than: Duration) -> bool {
    let age = now.and_then(|now| (now - timestamp).to_std().ok());
    older_than.is_zero() || age.is_some_and(|age| age > older_than)
}

/// The hidden files whose process has ended, and those that are too old, unless they are of another process of this
/// host that may be alive.
fn find_stale_files(
    folder: &FolderState,
    now: Option<DateTime<Utc>>,
    older_than: Duration,
) -> Vec<String> {
    let is_stale = |(name, file): &(&String, &super::folder::FolderFile)| {
        let is_old = is_old(file.modified, now, older_than);
        let tag = name.strip_prefix(TEMP_PREFIX);
        tag.is_some_and(|tag| {
            is_abandoned(name) || is_old && !ProcessId::is_tag_of_other_process(tag)
        })
    };
    let files = folder.files.iter().filter(is_stale);
    files.map(|(name, _)| name.clone()).collect()
}

/// The sealed parts that the complete dataset in the folder does not list: an interrupted or late write of pds left
/// them. None where the manifest cannot be read.
async fn find_unlisted_parts(
    store: &Store,
    key: &str,
    folder: &FolderState,
) -> Result<Vec<String>> {
    if !folder.is_marked() || !folder.files.contains_key(MANIFEST) {
        return Ok(Vec::new());
    }
    let mut unlisted = Vec::new();
    let mut listed_names: Option<HashSet<String>> = None;
    for name in folder.files.keys().filter(|name| is_part_name(name)) {
        if listed_names.is_none() {
            listed_names = Some(read_listed_parts(store, key).await?.into_iter().collect());
        }
        let is_listed = listed_names
            .as_ref()
            .is_none_or(|l| l.is_empty() || l.contains(name));
        if !is_listed && is_sealed(store, &path::join(key, name)).await? {
            unlisted.push(name.clone());
        }
    }
    Ok(unlisted)
}

async fn clean_without_cas(
    store: &Store,
    key: &str,
    older_than: Duration,
) -> Result<DatasetCleanup> {
    if !store.capabilities().list {
        return Ok(DatasetCleanup::default());
    }
    let folder = FolderState::list(store, key).await?;
    let names = find_stale_files(&folder, Some(store.clock().now()), older_than);
    let paths: Vec<String> = names.iter().map(|name| path::join(key, name)).collect();
    store.delete_all(&paths).await?;
    Ok(DatasetCleanup {
        files: names.len(),
        uploads: 0,
    })
}
