//! Advisory locks of local files, and the changes that are made under them.
//!
//! A [`FileLock`] is on the open file itself (`flock`), which works on local file systems and, because the file is
//! open for writing, on NFS. After a file is locked, its name is checked: if another file was renamed over it
//! meanwhile, that file must be locked instead. A lock ends with its owner, however the owner ends: a forked child
//! does not have it ([`OwnFile`]). A [`LockCell`] shares a lock with blocking tasks that outlive a cancelled future.
//!
//! Errors are `object_store`'s: `Precondition` where a file is not the expected version, or is no longer the one that
//! was locked. A change waits for another lock of its file for 5 s, then it fails, which becomes `ErrorKind::Locked`.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind as IoKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path as FsPath;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, Result};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::caller::check_awaited;
use super::{DiskChange, LocalStore, etag};
use crate::store::condition::Condition;
use crate::store::content_tag::content_tag;
use crate::store::failure::{map_io_error, map_write_error, precondition_error};
use crate::store::process_id::ProcessId;
use crate::sync::fork::OwnFile;
use crate::sync::mutex;

/// How often and how long a change waits for another change of the same file. Changes take microseconds; a lock that
/// is held for longer is held on purpose.
const LOCK_ATTEMPTS: u32 = 500;
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(10);

/// A locked file. Dropping it unlocks.
#[derive(Debug)]
pub struct FileLock {
    file: OwnFile,
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Closing the file does not suffice: a child whose fork was not announced has it open too.
        let unlock = FlockOperation::Unlock;
        let _ = self
            .file
            .with(|file| flock(&*file, unlock).map_err(io::Error::from));
    }
}

/// A lock with several holders; it is released when the last of them ends.
#[derive(Debug)]
pub struct LockCell(Mutex<Option<FileLock>>);

impl LockCell {
    /// A cell that holds a lock.
    pub fn new(lock: FileLock) -> Self {
        Self(Mutex::new(Some(lock)))
    }

    /// Takes the lock out, to release it.
    pub fn take(&self) -> Option<FileLock> {
        mutex::lock(&self.0).take()
    }

    /// Runs `change` on the lock, which stays in the cell whatever comes of it; None if the lock was taken out.
    pub fn change<T>(&self, change: impl FnOnce(&mut FileLock) -> T) -> Option<T> {
        let mut lock = mutex::lock(&self.0);
        lock.as_mut().map(change)
    }
}

tokio::task_local! {
    static CURRENT_LOCK: Option<Arc<LockCell>>;
}

/// Runs `work`, whose blocking tasks hold `lock` until they have ended, also when `work` is cancelled.
pub(in crate::store) async fn with_lock<T>(
    lock: Option<Arc<LockCell>>,
    work: impl Future<Output = T>,
) -> T {
    CURRENT_LOCK.scope(lock, work).await
}

/// The lock that a blocking task of this call must hold until it has ended.
pub(super) fn current_lock() -> Option<Arc<LockCell>> {
    CURRENT_LOCK.try_with(Clone::clone).ok().flatten()
}

enum LockAttempt {
    Acquired(FileLock),
    /// Another owner holds the lock.
    Busy,
    /// The name is that of another file now, or of none.
    Moved,
}

impl FileLock {
    fn read_content(&mut self) -> io::Result<Bytes> {
        let content = self.file.with(|file| {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        })?;
        Ok(content.unwrap_or_default().into())
    }

    fn matches_e_tag(&mut self, e_tag: &str) -> io::Result<bool> {
        let Some(own) = self.metadata()? else {
            return Ok(false);
        };
        Ok(etag(&own) == e_tag || content_tag(&self.read_content()?) == e_tag)
    }

    /// None in a child of the process that locked the file.
    fn metadata(&self) -> io::Result<Option<fs::Metadata>> {
        self.file.with(|file| file.metadata())
    }

    fn is_at(&self, path: &FsPath) -> io::Result<bool> {
        let Some(own) = self.metadata()? else {
            return Ok(false);
        };
        match fs::symlink_metadata(path) {
            Ok(current) => Ok((current.dev(), current.ino()) == (own.dev(), own.ino())),
            Err(e) if e.kind() == IoKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }
}

fn try_lock(path: &FsPath, create: bool) -> io::Result<LockAttempt> {
    let open = |write| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .create(create && write)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(path)
    };
    let open_any = || {
        open(true).or_else(|e| match e.kind() {
            // Another user's file, whose folder may be writable all the same. Only NFS needs write access for a lock.
            IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem => {
                open(false).map_err(|second| match second.kind() {
                    IoKind::NotFound if create => e,
                    _ => second,
                })
            }
            _ => Err(e),
        })
    };
    let file = OwnFile::open(open_any)?;
    match file.with(|file| Ok(flock(&*file, FlockOperation::NonBlockingLockExclusive)))? {
        Some(Ok(())) => {}
        None | Some(Err(rustix::io::Errno::WOULDBLOCK)) => return Ok(LockAttempt::Busy),
        Some(Err(e)) => return Err(e.into()),
    }
    let lock = FileLock { file };
    Ok(if lock.is_at(path)? {
        LockAttempt::Acquired(lock)
    } else {
        LockAttempt::Moved
    })
}

/// Waits for the lock of a file; None if the file does not exist.
#[expect(
    clippy::disallowed_methods,
    reason = "file work has threads of its own, which may wait"
)]
fn wait_for_lock(key: &Path, path: &FsPath) -> Result<Option<FileLock>> {
    for _ in 0..LOCK_ATTEMPTS {
        match try_lock(path, false) {
            Ok(LockAttempt::Acquired(lock)) => return Ok(Some(lock)),
            Ok(LockAttempt::Moved) => {}
            Ok(LockAttempt::Busy) => {
                check_awaited(key)?;
                std::thread::sleep(LOCK_RETRY_DELAY);
            }
            Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::NotADirectory) => {
                return Ok(None);
            }
            Err(e) => return Err(map_io_error(key, e)),
        }
    }
    let busy = io::Error::new(
        IoKind::ResourceBusy,
        "timed out waiting for the lock of the file, which another process holds",
    );
    Err(map_io_error(key, busy))
}

impl LocalStore {
    /// Locks the file `key` and reads it; None if another owner holds the lock. A missing file is created empty with
    /// `create`, else it is `NotFound`.
    pub fn lock_file(&self, key: &Path, create: bool) -> Result<Option<(FileLock, Bytes)>> {
        let path = self.resolve_entry(key)?;
        loop {
            let is_new = create && !path.exists();
            let result = try_lock(&path, create).or_else(|e| match e.kind() {
                IoKind::NotFound if create => {
                    self.make_folder_of(&path)?;
                    try_lock(&path, create)
                }
                _ => Err(e),
            });
            if is_new && result.is_ok() {
                self.record_change(|| DiskChange::Create(path.clone()));
            }
            let map_error = if create {
                map_write_error
            } else {
                map_io_error
            };
            match result.map_err(|e| map_error(key, e))? {
                LockAttempt::Busy => return Ok(None),
                LockAttempt::Moved => {}
                LockAttempt::Acquired(mut lock) => {
                    let content = lock.read_content().map_err(|e| map_io_error(key, e))?;
                    return Ok(Some((lock, content)));
                }
            }
        }
    }

    /// Replaces a locked file by a new version, which is locked before it is visible. After an error `lock` is on the
    /// file that is at `key`: the old one, or the new one if only the sync of its name failed. `Precondition` if the
    /// locked file is no longer at `key`.
    pub fn replace_locked(&self, lock: &mut FileLock, key: &Path, bytes: &[u8]) -> Result<()> {
        let path = self.resolve_entry(key)?;
        check_is_current(lock, key, &path)?;
        let (mut file, temp) = self.create_temp(key, &ProcessId::current().tag())?;
        let result = file
            .write_all(bytes)
            .map_err(|e| map_io_error(key, e))
            .and_then(|()| self.sync_file(&temp, &file))
            .and_then(|()| self.lock_temp(&temp))
            .and_then(|new_lock| Ok((new_lock, self.rename_over_unsynced(&temp, key)?)));
        match result {
            Ok((new_lock, target)) => {
                *lock = new_lock;
                self.sync_folder_of(key, &target)
            }
            Err(e) => {
                self.remove_temp(&temp);
                Err(e)
            }
        }
    }

    /// Locks a hidden file of this call.
    fn lock_temp(&self, temp: &Path) -> Result<FileLock> {
        let locked = try_lock(&self.resolve_entry(temp)?, false);
        match locked.map_err(|e| map_io_error(temp, e))? {
            LockAttempt::Acquired(lock) => Ok(lock),
            LockAttempt::Busy | LockAttempt::Moved => Err(precondition_error(temp)),
        }
    }

    /// Removes a locked file, without a wait for the disk. `Precondition` if it is no longer at `key`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the lock ends with the file it is on"
    )]
    pub fn unlink_locked(&self, lock: FileLock, key: &Path) -> Result<()> {
        let path = self.resolve_entry(key)?;
        check_is_current(&lock, key, &path)?;
        self.unlink_unsynced(key, &path)
    }

    /// [`Self::lock_file`] in a blocking task.
    pub(crate) async fn open_locked(
        &self,
        key: &Path,
        create: bool,
    ) -> Result<Option<(FileLock, Bytes)>> {
        let key = key.clone();
        self.run_blocking(move |s| s.lock_file(&key, create)).await
    }

    /// [`Self::replace_locked`] in a blocking task, which keeps the lock until it has ended. False for an empty cell.
    pub(crate) async fn rewrite_locked(
        &self,
        cell: &Arc<LockCell>,
        key: &Path,
        bytes: Bytes,
    ) -> Result<bool> {
        let (cell, key) = (Arc::clone(cell), key.clone());
        self.run_blocking(move |s| {
            let replaced = cell.change(|lock| s.replace_locked(lock, &key, &bytes));
            replaced.map_or(Ok(false), |result| result.map(|()| true))
        })
        .await
    }

    /// [`Self::unlink_locked`] in a blocking task, which takes the lock out of its cell. False for an empty cell.
    pub(crate) async fn remove_locked(&self, cell: Arc<LockCell>, key: &Path) -> Result<bool> {
        let key = key.clone();
        self.run_blocking(move |s| match cell.take() {
            Some(lock) => s.unlink_locked(lock, &key).map(|()| true),
            None => Ok(false),
        })
        .await
    }

    /// Removes a file, or only its version `e_tag`. Of a symbolic link the link is removed, not its target.
    pub(super) fn delete_version(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        self.delete_unsynced(key, e_tag)?;
        self.sync_folder_of(key, &self.resolve_entry(key)?)
    }

    /// As [`Self::delete_version`]; the caller syncs the folder.
    pub(super) fn delete_unsynced(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let path = self.resolve_entry(key)?;
        let stat = fs::symlink_metadata(&path).map_err(|e| map_io_error(key, e))?;
        if stat.is_dir() {
            return Err(map_io_error(key, IoKind::NotFound.into()));
        }
        if !stat.is_file() && e_tag.is_none() {
            return self.unlink_unsynced(key, &path);
        }
        // It is held until the file is gone: what looks at the file's version under the lock must not be overtaken.
        let mut file_lock = match (wait_for_lock(key, &path), e_tag) {
            // The file may be deletable all the same: that depends on the permissions of its folder.
            (Err(Error::PermissionDenied { .. }), None) => None,
            (Ok(None), _) => return Err(map_io_error(key, IoKind::NotFound.into())),
            (result, _) => result?,
        };
        if let (Some(lock), Some(e_tag)) = (&mut file_lock, e_tag)
            && !lock
                .matches_e_tag(e_tag)
                .map_err(|e| map_io_error(key, e))?
        {
            return Err(precondition_error(key));
        }
        check_awaited(key)?;
        self.unlink_unsynced(key, &path)
    }

    /// Moves a file to `to` if the file there meets the condition; returns the ETag at `to`.
    pub(super) fn move_if(
        &self,
        from: &Path,
        to: &Path,
        condition: &Condition,
    ) -> Result<Option<String>> {
        check_awaited(to)?;
        match condition {
            Condition::Always => self.rename_over(from, to)?,
            Condition::Absent => {
                self.link_new(from, to)?;
                let source = self.resolve(from)?;
                if source.exists() {
                    self.unlink_unsynced(from, &source)?;
                }
            }
            Condition::Matches(e_tag) => self.rename_over_version(from, to, e_tag)?,
        }
        let stat = fs::metadata(self.resolve(to)?).map_err(|e| map_io_error(to, e))?;
        Ok(Some(etag(&stat)))
    }

    /// Moves a file over version `e_tag` of another; `Precondition` if that is not the version.
    pub(super) fn rename_over_version(&self, from: &Path, to: &Path, e_tag: &str) -> Result<()> {
        let target = self.resolve(to)?;
        let Some(mut lock) = wait_for_lock(to, &target)? else {
            return Err(precondition_error(to));
        };
        if !lock.matches_e_tag(e_tag).map_err(|e| map_io_error(to, e))? {
            return Err(precondition_error(to));
        }
        self.rename_over(from, to)
    }
}

fn check_is_current(lock: &FileLock, key: &Path, path: &FsPath) -> Result<()> {
    if lock.is_at(path).map_err(|e| map_io_error(key, e))? {
        return Ok(());
    }
    Err(precondition_error(key))
}
