//! One attempt to commit: create the next manifest, then advance the pointer.
//!
//! 1. Read the pointer (version N) and its manifest.
//! 2. Create `manifest/v(N+1).json` on condition that it does not exist. This is the commit; only one
//!    writer succeeds.
//! 3. Advance the pointer from N to N+1.
//!
//! A writer that finds v(N+1) while the pointer is at N advances the pointer on behalf of that commit's
//! writer. Then it applies its own change to the newer snapshot and tries again; that snapshot is the one
//! that the pointer named after the loss, so it is not asked for once more. An ambiguous answer
//! is resolved by reading back ([`Register`]). If that fails too, the outcome is
//! [`CommitError::Unknown`], and no uploaded object is removed.
//!
//! A create can land in a slot that a vacuum has emptied, if its writer was suspended for many versions.
//! Such a manifest is no commit: the pointer is already past it. So a commit is reported only after the
//! pointer was read at or beyond its version, with an `oldest_version` at or before it. If the version
//! has been vacuumed, the create may still have been a commit to which another writer advanced the
//! pointer: the newest manifest lists the commits before it and decides.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::ancestor::{Ancestor, recreated_error};
use super::commit_id::CommitId;
use super::folder::{Folder, Snapshot};
use super::lists::{ListWriter, RollLists};
use super::manifest::{MAX_MANIFEST_BYTES, Versioned};
use super::names;
use super::outcome::{CommitError, CommitOutcome};
use super::pointer::Pointer;
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::store::cas::{CasResult, Register, VersionedValue};
use crate::sync::progress;

/// The delay between retries while the store is unavailable.
const UNAVAILABLE_RETRY_DELAY: Duration = Duration::from_secs(1);

/// How one attempt ended.
pub(super) enum CommitAttempt<M> {
    Committed(Snapshot<M>),
    /// Another commit has the version. Holds the newest snapshot if it is known.
    Conflict(Option<Snapshot<M>>),
    /// A list of the snapshot is missing, as one that is no longer the newest may be; nothing was sent.
    NotSent(Error),
}

/// Tries to create `next`, with its lists within their limits, as the version after `base`. Where others went
/// on from the winner, their snapshot is read only for a retry without a delay (`is_eager`).
pub(super) async fn attempt<M: RollLists>(
    folder: &Folder<M>,
    base: &Snapshot<M>,
    mut next: M,
    lists: &mut ListWriter,
    deadline: Duration,
    is_eager: bool,
) -> CommitOutcome<CommitAttempt<M>> {
    progress::begin_phase("commit");
    match next.roll_lists(lists, folder, &base.manifest).await {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(CommitAttempt::NotSent(e)),
        Err(e) => return Err(CommitError::NotCommitted(e)),
    }
    let bytes = next.to_bytes();
    check_readable(folder, &bytes, &next).map_err(CommitError::NotCommitted)?;
    let (version, id) = (next.header().version, next.header().commit_id.clone());
    let length = bytes.len() as u64;
    let (own, winner) = match create_manifest(folder, base, &next, bytes, deadline).await? {
        Slot::Own(created) => (Some(created), None),
        Slot::Taken(winner) => (None, Some(*winner)),
    };
    // The winner may have crashed before it advanced the pointer, so this is done for it, too.
    let target = Pointer::for_manifest(winner.as_ref().unwrap_or(&next));
    let is_lost = winner.is_some();
    let advanced = retry_until(folder, deadline, || {
        ensure_advanced(folder, &base.pointer, &target, is_lost)
    })
    .await;
    let unknown = |cause| CommitError::Unknown {
        id: id.clone(),
        cause,
    };
    // Once our manifest exists, the next writer advances the pointer to it. And where another's is in its
    // place, ours may have been committed and vacuumed before, which only the pointer tells.
    let (pointer, current_pointer) = match advanced.map_err(unknown)? {
        Advance::At(pointer, parsed) => (pointer, parsed),
        Advance::Replaced(current) => {
            let error = replaced_error(folder);
            let Some(created) = own else {
                return Err(CommitError::NotCommitted(error));
            };
            let removed = Box::pin(remove_stray(folder, &next, &created, current)).await;
            return Err(removed.map_or_else(|| unknown(error), CommitError::NotCommitted));
        }
    };
    let is_committed = if version < current_pointer.oldest_version {
        is_own_commit(folder, &next).await?
    } else {
        winner.is_none()
    };
    let is_newest = current_pointer.commit_id == target.commit_id;
    let snapshot = |manifest, pointer| Snapshot { manifest, pointer };
    Ok(match winner {
        _ if is_committed => {
            let committed = snapshot(Arc::new(next), pointer);
            folder.cache_manifest(&committed.manifest, length);
            CommitAttempt::Committed(committed)
        }
        Some(winner) if is_newest => {
            CommitAttempt::Conflict(Some(snapshot(Arc::new(winner), pointer)))
        }
        Some(_) if is_eager => {
            let named = Box::pin(read_named(folder, &current_pointer)).await;
            CommitAttempt::Conflict(named.map(|manifest| snapshot(manifest, pointer)))
        }
        _ => CommitAttempt::Conflict(None),
    })
}

/// The manifest that a pointer names, which was just read; None where [`Folder::find_newest`] has to look.
async fn read_named<M: Versioned>(folder: &Folder<M>, pointer: &Pointer) -> Option<Arc<M>> {
    if !folder.is_newest_known(pointer) {
        return None;
    }
    // Whatever an error is, the read of the newest snapshot meets it again.
    let manifest = folder.read_for_cache(pointer.version).await.ok()??;
    if Pointer::for_manifest(&*manifest) != *pointer {
        return None;
    }
    folder.observe(pointer.version, &pointer.commit_id);
    Some(manifest)
}

/// The manifest of a version.
enum Slot<M> {
    /// This writer created it.
    Own(VersionedValue),
    /// Another writer was first.
    Taken(Box<M>),
}

/// Removes a manifest that was created for versions which were removed meanwhile: others are in their place, and could never
/// create a version of this number. Returns the error of a commit that was certainly not made. The manifest stays if the
/// pointer was only set back.
async fn remove_stray<M: Versioned>(
    folder: &Folder<M>,
    next: &M,
    created: &VersionedValue,
    current: Option<Pointer>,
) -> Option<Error> {
    let header = next.header();
    let current = current?;
    let own = header.commit_id_of(current.version)?;
    if *own == current.commit_id {
        return None;
    }
    let e_tag = Some(created.e_tag()?);
    let path = folder.path(&names::manifest(header.version));
    match folder.store.delete_unchanged(&path, e_tag).await {
        Ok(true) => Some(recreated_error(folder)),
        Ok(false) => None,
        Err(e) => {
            log::warn!("{path} is of no version, and could not be removed: {e}");
            None
        }
    }
}

/// Checks that the newest version descends from that of a snapshot.
async fn check_newest<M: Versioned>(folder: &Folder<M>, snapshot: &M) -> Result<()> {
    let newest = folder.newest().await?;
    let begun = Ancestor::of(snapshot);
    begun.check_descends(folder, &*newest.manifest).await
}

/// Creates the manifest of a version.
async fn create_manifest<M: Versioned>(
    folder: &Folder<M>,
    base: &Snapshot<M>,
    next: &M,
    bytes: Bytes,
    deadline: Duration,
) -> CommitOutcome<Slot<M>> {
    let next = next.header();
    let path = folder.path(&names::manifest(next.version));
    let register = Register::new(&folder.store, &path);
    // Every retry sends the same bytes on the same condition, so they land at most once.
    let created = retry_until(folder, deadline, || register.create(bytes.clone())).await;
    match created.map_err(|e| CommitError::from_write(next.commit_id, e))? {
        CasResult::Won(created) => Ok(Slot::Own(created)),
        CasResult::Conflict(stored) => {
            folder.forget_before(next.version);
            let parsed = M::parse(&stored.bytes, next.version)
                .map_err(|e| e.with_path(&path))
                .and_then(|manifest| verify_successor(base, manifest));
            if parsed.is_err() {
                // It may be of what was created where the snapshot was removed.
                let checked = Box::pin(check_newest(folder, &base.manifest)).await;
                checked.map_err(CommitError::NotCommitted)?;
            }
            let taken = parsed.map(|manifest| Slot::Taken(Box::new(manifest)));
            taken.map_err(CommitError::NotCommitted)
        }
        CasResult::Missing => {
            let message = "the manifest of a new version was neither created nor found";
            Err(CommitError::Unknown {
                id: next.commit_id.clone(),
                cause: Error::other(message),
            })
        }
    }
}

/// Refuses a manifest that readers would refuse: committing it would make the table unusable.
pub(super) fn check_readable<M: Versioned>(
    folder: &Folder<M>,
    bytes: &Bytes,
    next: &M,
) -> Result<()> {
    let length = bytes.len() as u64;
    if length > MAX_MANIFEST_BYTES {
        let message = format!(
            "the new manifest has {length} bytes, more than the maximum of {MAX_MANIFEST_BYTES}; compact \
             the {}",
            M::NOUN
        );
        return Err(Error::invalid(message).with_path(folder.root()));
    }
    M::parse(bytes, next.header().version).map_err(|e| {
        let message = format!("the new manifest is invalid: {}", e.message());
        Error::invalid(message).with_path(folder.root())
    })?;
    Ok(())
}

/// Checks that another writer created `manifest` from `base`.
fn verify_successor<M: Versioned>(base: &Snapshot<M>, manifest: M) -> Result<M> {
    let header = manifest.header();
    // Otherwise an older one in this folder left it behind. A slot that a vacuum emptied and a late
    // create took is detected by the pointer instead.
    if header.recent_commits.first() == Some(base.manifest.header().commit_id) {
        return Ok(manifest);
    }
    let reason = "it was not created from the version before it";
    Err(corrupted_error(&names::manifest(header.version), reason))
}

/// Whether the commit of a version that has been vacuumed was this one. If not, the manifest landed in
/// the slot after the vacuum had emptied it, and is no commit.
async fn is_own_commit<M: Versioned>(folder: &Folder<M>, next: &M) -> CommitOutcome<bool> {
    let next = next.header();
    match commit_id_at(folder, next.version).await {
        Ok(commit_id) => Ok(commit_id == *next.commit_id),
        Err(cause) => Err(CommitError::Unknown {
            id: next.commit_id.clone(),
            cause,
        }),
    }
}

/// The commit that created a version up to the newest. A vacuumed one is listed by the oldest retained manifest, unless
/// [`ErrorKind::VersionExpired`] tells that too many commits came after it.
pub(super) async fn commit_id_at<M: Versioned>(
    folder: &Folder<M>,
    version: u64,
) -> Result<CommitId> {
    loop {
        let newest = folder.newest().await?.manifest;
        let newest = newest.header();
        if let Some(commit_id) = newest.commit_id_of(version) {
            return Ok(commit_id.clone());
        }
        match folder.manifest_at(version.max(newest.oldest_version)).await {
            Ok(manifest) => {
                let commit_id = manifest.header().commit_id_of(version).cloned();
                return commit_id.ok_or_else(|| folder.version_expired_error(version, newest));
            }
            // It was vacuumed after the newest was read.
            Err(e) if e.kind() == ErrorKind::VersionExpired => {}
            Err(e) => return Err(e),
        }
    }
}

/// Returns the version that a commit created, or None if it created none. A commit whose outcome was
/// unknown can still land while the last requests of its writer are in flight.
///
/// Fails with [`ErrorKind::VersionExpired`] if no manifest lists the commit, and some that could have been vacuumed.
pub async fn was_committed<M: Versioned>(
    folder: &Folder<M>,
    commit_id: &CommitId,
) -> Result<Option<u64>> {
    let mut newest = folder.newest().await?;
    // A manifest beyond the pointer is a commit already.
    while let Some(candidate) = folder
        .read_manifest(newest.manifest.header().version + 1)
        .await?
    {
        let next = verify_successor(&newest, candidate)?;
        let target = Pointer::for_manifest(&next);
        if let Advance::Replaced(_) = advance_pointer(folder, &newest.pointer, &target).await? {
            return Err(replaced_error(folder));
        }
        newest = folder.newest().await?;
    }
    let mut manifest = Arc::clone(&newest.manifest);
    loop {
        let header = manifest.header();
        let oldest = header.oldest_known_version();
        let mut versions = (oldest..=header.version).rev();
        if let Some(version) = versions.find(|v| header.commit_id_of(*v) == Some(commit_id)) {
            return Ok(Some(version));
        }
        if oldest == 1 {
            return Ok(None);
        }
        let next = oldest.max(newest.manifest.header().oldest_version);
        if next == header.version {
            return Err(unlisted_error(folder, commit_id, next));
        }
        manifest = match folder.manifest_at(next).await {
            // It was vacuumed meanwhile; the oldest that is left may list it.
            Err(e) if e.kind() == ErrorKind::VersionExpired => {
                newest = folder.newest().await?;
                Arc::clone(&newest.manifest)
            }
            read => read?,
        };
    }
}

fn unlisted_error<M: Versioned>(folder: &Folder<M>, commit_id: &CommitId, oldest: u64) -> Error {
    let message = format!(
        "commit {} made none of the versions since {oldest}; those before have been vacuumed, and may hold it",
        commit_id.as_str()
    );
    Error::new(ErrorKind::VersionExpired, message).with_path(folder.root())
}

/// Repeats a conditional write until `deadline` while the store is unavailable. After the first request
/// without an answer every error has the kind [`ErrorKind::Unavailable`]: that request may still land.
async fn retry_until<M: Versioned, T, F>(
    folder: &Folder<M>,
    deadline: Duration,
    operation: impl Fn() -> F,
) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let clock = folder.store.clock();
    let mut may_have_landed = false;
    loop {
        match operation().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                may_have_landed = true;
                clock.sleep(UNAVAILABLE_RETRY_DELAY).await;
            }
            Err(e) if may_have_landed => return Err(e.with_kind(ErrorKind::Unavailable)),
            result => return result,
        }
    }
}

/// Reads the newest snapshot; retries until `deadline` while the store is unavailable.
pub(super) async fn read_newest<M: Versioned>(
    folder: &Folder<M>,
    deadline: Duration,
) -> Result<Snapshot<M>> {
    let clock = folder.store.clock();
    loop {
        match folder.newest().await {
            Err(e) if e.kind() == ErrorKind::Unavailable && clock.monotonic() < deadline => {
                clock.sleep(UNAVAILABLE_RETRY_DELAY).await;
            }
            result => return result,
        }
    }
}

/// Where the pointer is after a commit.
enum Advance {
    /// At the commit's version or a later one.
    At(VersionedValue, Pointer),
    /// At an older version than the commit's, or nowhere: all versions were removed, or set back.
    Replaced(Option<Pointer>),
}

/// As [`advance_pointer`]. The pointer is read first after a lost race: the winner has mostly advanced it by then.
async fn ensure_advanced<M: Versioned>(
    folder: &Folder<M>,
    from: &VersionedValue,
    target: &Pointer,
    is_lost: bool,
) -> Result<Advance> {
    if is_lost
        && let Some((current, parsed)) = folder.read_pointer().await?
        && parsed.version >= target.version
    {
        return Ok(Advance::At(current, parsed));
    }
    advance_pointer(folder, from, target).await
}

/// Advances the pointer to `target`, unless it is at that version or a later one already.
async fn advance_pointer<M: Versioned>(
    folder: &Folder<M>,
    from: &VersionedValue,
    target: &Pointer,
) -> Result<Advance> {
    let path = folder.path(names::POINTER);
    let register = Register::new(&folder.store, &path);
    let parse = |value: &VersionedValue| {
        Pointer::parse(&value.bytes, M::FORMAT).map_err(|e| e.with_path(&path))
    };
    // A snapshot can have a later pointer than its version's: others went on from there.
    let outcome = if parse(from)?.version >= target.version {
        match register.read().await? {
            Some(current) => CasResult::Conflict(current),
            None => CasResult::Missing,
        }
    } else {
        match register.replace(from, target.to_bytes()).await {
            // A pointer that was written again with the same bytes has another ETag.
            Err(e) if e.kind() == ErrorKind::Unavailable => match register.read().await? {
                Some(current) if current.bytes == from.bytes => {
                    register.replace(&current, target.to_bytes()).await?
                }
                _ => return Err(e),
            },
            outcome => outcome?,
        }
    };
    match outcome {
        CasResult::Won(pointer) => Ok(Advance::At(pointer, target.clone())),
        CasResult::Conflict(current) => {
            let pointer = parse(&current)?;
            if pointer.version >= target.version {
                return Ok(Advance::At(current, pointer));
            }
            Ok(Advance::Replaced(Some(pointer)))
        }
        // The pointer was removed. Recovery by the manifests finds that of `target` or a later one.
        CasResult::Missing => match folder.find_newest().await? {
            Some(newest) if newest.manifest.header().version >= target.version => {
                let pointer = Pointer::for_manifest(&*newest.manifest);
                Ok(Advance::At(newest.pointer, pointer))
            }
            _ => Ok(Advance::Replaced(None)),
        },
    }
}

fn replaced_error<M: Versioned>(folder: &Folder<M>) -> Error {
    let message = format!(
        "the {} was removed or set back to an older state during the commit",
        M::NOUN
    );
    Error::new(ErrorKind::CommitConflict, message).with_path(folder.root())
}
