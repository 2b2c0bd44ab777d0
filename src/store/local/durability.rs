//! Durability of local files: a change that was reported survives a loss of power.
//!
//! Unless durability is switched off, every change is on the disk before it is reported: the content of a file before
//! its name, a name by a sync of its folder. A caller that changes several names before it reports any of them waits
//! for all at once ([`defer_name_syncs`]). A [`DiskJournal`] records each change and each sync in order, from which
//! tests build what a disk may hold after a loss of power.
//!
//! Not waited for: the removal of a hidden file, and of the locked file of a lease. Back after a loss of power, they are
//! what a writer leaves that was killed before the removal.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind as IoKind;
use std::path::{Path as FsPath, PathBuf};

use object_store::Result;
use object_store::path::Path;

use super::LocalStore;
use crate::store::failure::map_io_error;

/// A change of the file system, or a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskChange {
    /// The file was created.
    Create(PathBuf),
    /// The folder was created.
    MakeFolder(PathBuf),
    /// The file was synced with this content.
    SyncFile(PathBuf, Vec<u8>),
    /// The folder was synced, with the names in it.
    SyncFolder(PathBuf),
    /// The file of the first name got the second name too.
    Link(PathBuf, PathBuf),
    /// The file of the first name got the second name instead.
    Rename(PathBuf, PathBuf),
    /// The name was removed.
    Unlink(PathBuf),
}

/// Records every change of the file system, for tests of what a loss of power leaves.
pub trait DiskJournal: std::fmt::Debug + Send + Sync + 'static {
    /// Records a change that was made.
    fn record(&self, change: DiskChange);

    /// Called before a file or a folder is synced; an error is the sync's.
    fn before_sync(&self, _path: &FsPath) -> std::io::Result<()> {
        Ok(())
    }
}

tokio::task_local! {
    static DEFERS_NAMES: ();
}

/// Runs `work`, which does not wait until the names that it changes are on a local disk: its caller does so before it
/// goes on to what relies on them, once for all of a folder.
pub(crate) fn defer_name_syncs<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    DEFERS_NAMES.scope((), work)
}

impl LocalStore {
    /// The store as this call uses it, see [`defer_name_syncs`].
    pub(super) fn for_current_call(&self) -> Self {
        Self {
            syncs_names: DEFERS_NAMES.try_with(|()| ()).is_err(),
            ..self.clone()
        }
    }

    /// The same store, which reports changes before they are on the disk.
    #[must_use]
    pub fn without_durability(mut self) -> Self {
        self.durable = false;
        self
    }

    /// The same store, which records its changes in `journal`.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn with_journal(mut self, journal: std::sync::Arc<dyn DiskJournal>) -> Self {
        self.journal = Some(journal);
        self
    }

    /// Creates the folder of a file and the missing folders above, and syncs their names.
    pub(super) fn make_folder_of(&self, path: &FsPath) -> std::io::Result<()> {
        let Some(folder) = path.parent() else {
            return Ok(());
        };
        let missing: Vec<&FsPath> = folder
            .ancestors()
            .take_while(|f| !f.as_os_str().is_empty() && !f.exists())
            .collect();
        fs::create_dir_all(folder)?;
        if self.durable {
            for created in missing.iter().rev() {
                let parent = created.parent().unwrap_or(created);
                self.sync(|| parent.to_owned(), &File::open(parent)?)?;
                self.record_change(|| DiskChange::MakeFolder(created.to_path_buf()));
                self.record_change(|| DiskChange::SyncFolder(parent.to_owned()));
            }
        }
        Ok(())
    }

    /// Waits until a file's content is on the disk.
    pub(in crate::store) fn sync_file(&self, key: &Path, file: &File) -> Result<()> {
        if self.durable {
            let synced = self.sync(|| self.resolve(key).unwrap_or_default(), file);
            synced.map_err(|e| map_io_error(key, e))?;
            if self.journal.is_some() {
                let path = self.resolve(key)?;
                let content = fs::read(&path).map_err(|e| map_io_error(key, e))?;
                self.record_change(|| DiskChange::SyncFile(path, content));
            }
        }
        Ok(())
    }

    fn sync(&self, path: impl FnOnce() -> PathBuf, file: &File) -> std::io::Result<()> {
        if let Some(journal) = &self.journal {
            journal.before_sync(&path())?;
        }
        file.sync_all()
    }

    pub(super) fn record_change(&self, change: impl FnOnce() -> DiskChange) {
        if let Some(journal) = &self.journal {
            journal.record(change());
        }
    }

    /// Waits until the names in the folder of `path` are on the disk.
    pub(super) fn sync_folder_of(&self, key: &Path, path: &FsPath) -> Result<()> {
        if self.durable
            && self.syncs_names
            && let Some(folder) = path.parent()
        {
            let synced = File::open(folder).and_then(|file| self.sync(|| folder.to_owned(), &file));
            match synced {
                // The folder was removed with all that was in it.
                Err(e) if e.kind() == IoKind::NotFound => {}
                synced => synced.map_err(|e| map_io_error(key, e))?,
            }
            self.record_change(|| DiskChange::SyncFolder(folder.to_owned()));
        }
        Ok(())
    }

    /// Waits until the names of files are on the disk: for each of their folders once.
    pub(in crate::store) async fn sync_names(&self, keys: Vec<Path>) -> Result<()> {
        self.run_blocking(move |s| {
            let folders: BTreeMap<&str, &Path> =
                keys.iter().map(|key| (folder_of(key), key)).collect();
            for key in folders.into_values() {
                s.sync_folder_of(key, &s.resolve_entry(key)?)?;
            }
            Ok(())
        })
        .await
    }

    /// Deletes files, and syncs each of their folders once.
    pub(super) fn delete_many(&self, keys: &[Path]) -> Vec<Result<Path>> {
        let mut folders = BTreeMap::new();
        let delete = |key: &Path| {
            self.delete_unsynced(key, None)?;
            folders.insert(folder_of(key).to_owned(), key.clone());
            Ok(key.clone())
        };
        let mut deleted: Vec<Result<Path>> = keys.iter().map(delete).collect();
        for key in folders.values() {
            let synced = self
                .resolve_entry(key)
                .and_then(|path| self.sync_folder_of(key, &path));
            deleted.extend(synced.err().map(Err));
        }
        deleted
    }
}

fn folder_of(key: &Path) -> &str {
    let folder = key.as_ref().rsplit_once('/');
    folder.map_or("", |(folder, _)| folder)
}
