//! Publishing and deleting on stores without conditional writes: in the order of RFC-0008, and nothing more.
//!
//! The caller has to make sure that there is one writer at a time. Within this process a call waits for the one before
//! it, also for a cancelled one, whose work in a thread goes on.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use tokio::sync::Mutex;

use super::folder::is_part_name;
use super::lease::LeaseTiming;
use super::steps::Publication;
use super::{INTENT, MANIFEST, SUCCESS, already_exists_error, incomplete_error};
use crate::error::{Error, ErrorKind, Result};
use crate::store::temp_name::TEMP_PREFIX;
use crate::store::{Store, path};
use crate::sync::fork;
use crate::sync::work_guard::with_guard;

/// Publishes staged parts: looks for all of them, removes the marker, publishes the parts, removes strays, puts the
/// manifest and the marker.
pub(super) async fn publish(store: &Store, key: &str, publication: &Publication) -> Result<()> {
    run_exclusively(store, key, publish_locked(store, key, publication)).await
}

/// Removes the marker, the manifest and an intent, and then everything else that was listed before.
pub(super) async fn delete(store: &Store, key: &str) -> Result<()> {
    run_exclusively(store, key, delete_locked(store, key)).await
}

/// Runs `work` when no other work of this process on the folder goes on, threads of cancelled calls included.
async fn run_exclusively<T>(
    store: &Store,
    key: &str,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let lock = folder_lock(store, &store.key(key)?);
    let timeout = LeaseTiming::for_store(store).acquire_timeout();
    let guard = tokio::select! {
        biased;
        guard = lock.lock_owned() => guard,
        () = store.clock().sleep(timeout) => {
            let message = format!("timed out waiting for another call of this process that still changes {key:?}");
            return Err(Error::new(ErrorKind::Locked, message).with_path(key));
        }
    };
    with_guard(guard, work).await
}

/// The lock of a folder, which exists as long as a call holds it or waits for it.
fn folder_lock(store: &Store, key: &Path) -> Arc<Mutex<()>> {
    type Locks = HashMap<((u32, usize), Path), Weak<Mutex<()>>>;
    static LOCKS: LazyLock<std::sync::Mutex<Locks>> = LazyLock::new(std::sync::Mutex::default);
    let mut locks = fork::lock(&LOCKS);
    locks.retain(|_, lock| lock.strong_count() > 0);
    let location = (store.identity(), key.clone());
    if let Some(lock) = locks.get(&location).and_then(Weak::upgrade) {
        return lock;
    }
    let lock = Arc::new(Mutex::new(()));
    locks.insert(location, Arc::downgrade(&lock));
    lock
}

async fn publish_locked(store: &Store, key: &str, publication: &Publication) -> Result<()> {
    let success = path::join(key, SUCCESS);
    let marked = store.is_file(&success).await?;
    if marked && !publication.overwrite {
        for part in &publication.parts {
            part.staged.discard(store).await?;
        }
        return Err(already_exists_error(key));
    }
    for part in &publication.parts {
        if !part.is_inline() && !part.staged.is_intact(store, part.bytes).await? {
            let reason = format!(
                "part {:?} of the write is not staged; prepare it again",
                part.name
            );
            return Err(incomplete_error(key, &reason));
        }
    }
    let strays = find_strays(store, key, publication, marked).await?;
    if marked {
        store.delete(&success).await?;
    }
    for part in &publication.parts {
        part.staged
            .publish(store, &path::join(key, &part.name))
            .await?;
    }
    store.delete_all(&strays).await?;
    let manifest = publication.manifest.clone();
    store
        .put(&path::join(key, MANIFEST), manifest, PutMode::Overwrite)
        .await?;
    store
        .put(&success, Bytes::new(), PutMode::Overwrite)
        .await?;
    Ok(())
}

/// The paths of the old dataset's parts that the new one does not have; none where the store cannot list or delete.
async fn find_strays(
    store: &Store,
    key: &str,
    publication: &Publication,
    marked: bool,
) -> Result<Vec<String>> {
    if !(store.capabilities().list && store.capabilities().delete)
        || !(marked || publication.overwrite)
    {
        return Ok(Vec::new());
    }
    let old = super::folder::read_listed_parts(store, key).await?;
    let is_stray = |name: &str| {
        let is_kept = publication.parts.iter().any(|part| part.name == name);
        let is_old = is_part_name(name) || old.iter().any(|old| old == name);
        is_old && !is_kept && !super::is_reserved(name) && !name.starts_with(TEMP_PREFIX)
    };
    let listing = store.list_folder(key).await?;
    Ok(listing
        .files
        .iter()
        .filter(|meta| meta.location.filename().is_some_and(is_stray))
        .map(|meta| meta.location.to_string())
        .collect())
}

async fn delete_locked(store: &Store, key: &str) -> Result<()> {
    let files = store.list(key).await?;
    for name in [SUCCESS, MANIFEST, INTENT] {
        let path = path::join(key, name);
        if files.iter().any(|meta| meta.location.as_ref() == path) {
            store.delete(&path).await?;
        }
    }
    let is_own_file = |path: &str| {
        let name = path.strip_prefix(key).and_then(|p| p.strip_prefix('/'));
        name.is_some_and(super::is_reserved)
    };
    let other_paths: Vec<String> = files
        .iter()
        .map(|meta| meta.location.to_string())
        .filter(|path| !is_own_file(path))
        .collect();
    store.delete_all(&other_paths).await
}
