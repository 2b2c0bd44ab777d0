//! Creating the first version: its manifest, then the pointer.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use futures::join;

use super::attempt::{check_readable, commit_id_at};
use super::commit_id::CommitId;
use super::folder::{Folder, Snapshot};
use super::lists::{ListWriter, RollLists};
use super::manifest::Versioned;
use super::names;
use super::outcome::CommitError;
use super::pointer::Pointer;
use super::staged::remove;
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{CasResult, Register, probe_conditional_writes};

/// Creates version 1, made by `first` of a commit id and the time. Fails with [`ErrorKind::AlreadyExists`] if there are
/// versions, also if their pointer was lost; with [`ErrorKind::ManifestCorrupted`] if manifests of removed versions are
/// left, whose slots the new ones would reach; with [`ErrorKind::UnsafeStore`], before anything is created, on a store that does
/// not honor conditional writes.
///
/// Crash point: between the manifest and the pointer. The next process that opens the folder puts the pointer.
/// Late requests: a manifest that lands after another writer's was vacuumed is no commit, which the newest manifest
/// shows; a pointer that lands late is behind, and writers advance it. A removal between the manifest and the pointer
/// leaves the pointer without what it names, so this process takes it back ([`ErrorKind::CommitConflict`]).
pub(crate) async fn create_first<M: RollLists>(
    folder: &Folder<M>,
    first: impl FnOnce(u128, DateTime<Utc>) -> M,
) -> Result<Snapshot<M>> {
    check_creatable(folder).await?;
    create_checked(folder, first).await
}

/// As [`create_first`], after [`check_creatable`].
pub(crate) async fn create_checked<M: RollLists>(
    folder: &Folder<M>,
    first: impl FnOnce(u128, DateTime<Utc>) -> M,
) -> Result<Snapshot<M>> {
    let clock = folder.store.clock();
    let mut manifest = first(clock.new_id(), clock.now());
    let (base, mut lists) = (manifest.clone(), ListWriter::default());
    let rolled = manifest.roll_lists(&mut lists, folder, &base).await;
    let created = match rolled {
        Ok(()) => create_manifest(folder, manifest).await,
        Err(e) => Err(e),
    };
    if created.as_ref().is_err_and(is_not_created) {
        remove(folder, &lists.unused_paths::<M>(None)).await;
    }
    created
}

/// Refuses a folder that has versions, a chain or a dataset, and a store that does not honor conditional writes.
pub(crate) async fn check_creatable<M: Versioned>(folder: &Folder<M>) -> Result<()> {
    let head = folder.path(names::CHAIN_HEAD);
    let marker = folder.path(names::DATASET_MARKER);
    let (newest, has_chain, has_dataset) = join!(
        folder.find_newest(),
        folder.store.is_file(&head),
        folder.store.is_file(&marker)
    );
    if newest?.is_some() {
        return Err(already_exists_error(folder));
    }
    let others = [(has_chain?, "chain"), (has_dataset?, "dataset")];
    if let Some((_, other)) = others.iter().find(|(is_there, _)| *is_there) {
        let message = format!(
            "{:?} holds a {other}; a {} needs a folder of its own",
            folder.root(),
            M::NOUN
        );
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(folder.root()));
    }
    probe_conditional_writes(&folder.store, folder.root()).await
}

/// Whether it is certain that the first version was not created, and what was written for it can be removed now.
pub(crate) fn is_not_created(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::CommitStateUnknown | ErrorKind::Unavailable | ErrorKind::Cancelled
    )
}

async fn create_manifest<M: Versioned>(folder: &Folder<M>, manifest: M) -> Result<Snapshot<M>> {
    let id = manifest.header().commit_id.clone();
    let path = folder.path(&names::manifest(1));
    let bytes = manifest.to_bytes();
    check_readable(folder, &bytes, &manifest)?;
    match Register::new(&folder.store, &path)
        .create(bytes)
        .await
        .map_err(|e| CommitError::from_write(&id, e))?
    {
        CasResult::Won(_) => {}
        CasResult::Conflict(_) | CasResult::Missing => return Err(already_exists_error(folder)),
    }
    let path = folder.path(names::POINTER);
    let pointer_bytes = Pointer::for_manifest(&manifest).to_bytes();
    let pointer_created = Register::new(&folder.store, &path)
        .create(pointer_bytes)
        .await;
    let unknown = |cause| CommitError::Unknown {
        id: id.clone(),
        cause,
    };
    // Once the manifest exists, the next process that opens the folder puts the pointer: no error is definite.
    match pointer_created.map_err(unknown)? {
        CasResult::Won(pointer) => {
            // Where that cannot be read, the pointer stands.
            if let Ok(false) = folder.is_pointed_at(&pointer.bytes).await {
                folder.take_back(&pointer.bytes).await.map_err(unknown)?;
                return find_created(folder, &id).await;
            }
            folder.observe(1, &id);
            Ok(Snapshot {
                manifest: Arc::new(manifest),
                pointer,
            })
        }
        // Another process opened the folder, put the pointer and may have committed already; or the
        // manifest landed in a slot that a vacuum of another writer's versions had emptied.
        CasResult::Conflict(_) | CasResult::Missing => {
            let newest = folder.newest().await.map_err(unknown)?;
            if commit_id_at(folder, 1).await.map_err(unknown)? != id {
                return Err(already_exists_error(folder));
            }
            Ok(newest)
        }
    }
}

/// The newest version where the first one, which this process created, is missing: others have vacuumed it, or
/// removed all.
async fn find_created<M: Versioned>(folder: &Folder<M>, id: &CommitId) -> Result<Snapshot<M>> {
    let unknown = |cause| CommitError::Unknown {
        id: id.clone(),
        cause,
    };
    if let Some(newest) = folder.find_newest().await.map_err(unknown)?
        && commit_id_at(folder, 1).await.map_err(unknown)? == *id
    {
        return Ok(newest);
    }
    let message = format!(
        "another process removed the {noun} at {:?} while it was created; create it again",
        folder.root(),
        noun = M::NOUN
    );
    Err(Error::new(ErrorKind::CommitConflict, message).with_path(folder.root()))
}

fn already_exists_error<M: Versioned>(folder: &Folder<M>) -> Error {
    let message = format!("a {} already exists at {:?}", M::NOUN, folder.root());
    Error::new(ErrorKind::AlreadyExists, message).with_path(folder.root())
}
