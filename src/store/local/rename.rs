//! Moves of files that any process may replace: what is written under the old name meanwhile stays there.
//!
//! A rename takes the file that has the name at that moment. On a file system without an exclusive rename the file gets
//! its new name first and loses the old one after; to another device it is copied first.
//!
//! Errors: `AlreadyExists` for a new name that must not be replaced, `Precondition` if the file was replaced between
//! the two steps, `NotImplemented` for a symbolic link.

use std::fs;
use std::io::{self, ErrorKind as IoKind};
use std::path::PathBuf;

use object_store::path::Path;
use object_store::{CopyMode, Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::caller::check_awaited;
use super::{DiskChange, LocalStore, etag};
use crate::store::failure::{already_exists_error, find_cause, map_io_error, map_write_error};

impl LocalStore {
    /// Moves a file over `to`, atomically.
    pub fn rename_over(&self, from: &Path, to: &Path) -> Result<()> {
        let target = self.rename_over_unsynced(from, to)?;
        self.sync_folder_of(to, &target)
    }

    /// As [`Self::rename_over`]; the caller syncs the folder of the path that is returned. After an error the file has
    /// its old name.
    pub(super) fn rename_over_unsynced(&self, from: &Path, to: &Path) -> Result<PathBuf> {
        let (source, target) = (self.resolve(from)?, self.resolve(to)?);
        match fs::rename(&source, &target) {
            Err(e) if e.kind() == IoKind::NotFound && source.exists() => {
                self.make_folder_of(&target)
                    .map_err(|e| map_io_error(to, e))?;
                fs::rename(&source, &target).map_err(|e| map_io_error(to, e))?;
            }
            other => other.map_err(|e| map_io_error(from, e))?,
        }
        self.record_change(|| DiskChange::Rename(source.clone(), target.clone()));
        Ok(target)
    }

    /// Moves a file; its old name is gone from the disk, too, once this returns.
    pub(in crate::store) async fn rename_file(
        &self,
        from: &Path,
        to: &Path,
        mode: CopyMode,
    ) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.run_blocking(move |s| s.rename_file_blocking(&from, &to, mode))
            .await
    }

    fn rename_file_blocking(&self, from: &Path, to: &Path, mode: CopyMode) -> Result<()> {
        let source = self.resolve(from)?;
        let stat = fs::symlink_metadata(&source).map_err(|e| map_io_error(from, e))?;
        if stat.is_dir() {
            return Err(map_io_error(from, IoKind::NotFound.into()));
        }
        if stat.is_symlink() {
            return Err(Error::NotImplemented {
                operation: "move of a symbolic link".to_owned(),
                implementer: self.to_string(),
            });
        }
        check_awaited(from)?;
        let renamed = match mode {
            CopyMode::Overwrite => self.rename_over(from, to),
            CopyMode::Create => self.rename_new(from, to),
        };
        match renamed {
            // Another device is mounted below the root.
            Err(e)
                if find_cause::<io::Error>(&e)
                    .is_some_and(|cause| cause.kind() == IoKind::CrossesDevices) =>
            {
                let e_tag = self.copy_blocking(from, to, mode)?;
                return self.delete_version(from, e_tag.as_deref());
            }
            renamed => renamed?,
        }
        if source.parent() == self.resolve(to)?.parent() {
            return Ok(());
        }
        self.sync_folder_of(from, &source)
    }

    /// Moves a file to a name that no file has.
    fn rename_new(&self, from: &Path, to: &Path) -> Result<()> {
        let (source, target) = (self.resolve(from)?, self.resolve(to)?);
        let rename = || {
            let (old, new) = (source.as_path(), target.as_path());
            renameat_with(CWD, old, CWD, new, RenameFlags::NOREPLACE)
        };
        let renamed = match rename() {
            Err(Errno::NOENT) if source.exists() => {
                self.make_folder_of(&target)
                    .map_err(|e| map_io_error(to, e))?;
                rename()
            }
            renamed => renamed,
        };
        match renamed {
            Ok(()) => {
                self.record_change(|| DiskChange::Rename(source.clone(), target.clone()));
                self.sync_folder_of(to, &target)
            }
            Err(Errno::EXIST) => Err(already_exists_error(to, Errno::EXIST.into())),
            // Not every file system has an exclusive rename.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => self.link_and_unlink(from, to),
            Err(Errno::NOENT) => Err(map_io_error(from, Errno::NOENT.into())),
            Err(e) => Err(map_write_error(to, e.into())),
        }
    }

    /// Gives a file its new name, then removes the old one if it is still that of the same file.
    fn link_and_unlink(&self, from: &Path, to: &Path) -> Result<()> {
        self.link_new(from, to)?;
        let target = self.resolve(to)?;
        let stat = fs::symlink_metadata(&target).map_err(|e| map_io_error(to, e))?;
        self.delete_version(from, Some(&etag(&stat)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn a_move_in_two_steps_keeps_a_file_in_the_place_of_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalStore::new(folder.path(), Arc::new(SystemClock));
        let (from, to) = (Path::from("from"), Path::from("to"));
        let write =
            |name: &str, content: &str| fs::write(folder.path().join(name), content).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        write("from", "old");
        store.link_and_unlink(&from, &to).unwrap();
        assert_eq!((read("from"), read("to").as_deref()), (None, Some("old")));
        write("from", "new");
        let refused = store.link_and_unlink(&from, &to).unwrap_err();
        assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused}");
        let refused = store.rename_new(&from, &to).unwrap_err();
        assert!(matches!(refused, Error::AlreadyExists { .. }), "{refused}");
        assert_eq!(read("from").as_deref(), Some("new"));
        assert_eq!(read("to").as_deref(), Some("old"));
    }

    #[test]
    fn a_file_moves_into_a_folder_that_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let store = LocalStore::new(folder.path(), Arc::new(SystemClock));
        for (mode, target) in [(CopyMode::Create, "a/b/x"), (CopyMode::Overwrite, "c/x")] {
            fs::write(folder.path().join("x"), target).unwrap();
            store
                .rename_file_blocking(&Path::from("x"), &Path::from(target), mode)
                .unwrap();
            let moved = fs::read_to_string(folder.path().join(target)).unwrap();
            assert_eq!(moved, target);
            assert!(!folder.path().join("x").exists());
        }
        let missing = store.rename_file_blocking(
            &Path::from("x"),
            &Path::from("nowhere/x"),
            CopyMode::Create,
        );
        assert!(matches!(missing, Err(Error::NotFound { .. })));
        let of_a_folder =
            store.rename_file_blocking(&Path::from("a"), &Path::from("d"), CopyMode::Overwrite);
        assert!(matches!(of_a_folder, Err(Error::NotFound { .. })));
        assert!(folder.path().join("a/b/x").exists());
    }
}
