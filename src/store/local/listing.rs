//! Listings of the folders of local files, and the removal of empty ones.
//!
//! A listing shows symbolic links as files and descends into none. It leaves out files that are removed while it runs,
//! and names that an object key cannot hold. It fails where it may not look at a file: what it left out would count as
//! missing.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::Path as FsPath;

use object_store::path::Path;
use object_store::{ListResult, Result};

use super::{LocalStore, object_meta};
use crate::store::failure::map_io_error;
use crate::store::path;

impl LocalStore {
    /// The metadata of a file as a read finds it: a link to a file inside the root has that file's, any other its own.
    /// None if the file was removed after it was listed.
    fn stat_entry(&self, key: &Path, entry: &fs::DirEntry) -> Result<Option<fs::Metadata>> {
        let stat = match entry.metadata() {
            Ok(stat) => stat,
            Err(e) if e.kind() == IoKind::NotFound => return Ok(None),
            Err(e) => return Err(map_io_error(key, e)),
        };
        if !stat.is_symlink() {
            return Ok(Some(stat));
        }
        let target = self
            .resolve(key)
            .ok()
            .and_then(|path| fs::metadata(path).ok());
        Ok(Some(target.filter(fs::Metadata::is_file).unwrap_or(stat)))
    }

    pub(super) fn list_blocking(&self, prefix: &Path, recursive: bool) -> Result<ListResult> {
        let mut listing = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
        };
        let mut folders = vec![prefix.clone()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.resolve(&folder)?) {
                Ok(entries) => entries,
                Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::NotADirectory) => continue,
                Err(e) => return Err(map_io_error(&folder, e)),
            };
            for entry_result in entries {
                let entry = entry_result.map_err(|e| map_io_error(&folder, e))?;
                // A name that an object key cannot hold is no object of this store.
                let Some(Ok(key)) = entry.file_name().to_str().map(|name| {
                    let joined = path::join(folder.as_ref(), name);
                    path::parse(&joined)
                }) else {
                    continue;
                };
                match entry.file_type() {
                    Ok(file_type) if file_type.is_dir() && recursive => folders.push(key),
                    Ok(file_type) if file_type.is_dir() => listing.common_prefixes.push(key),
                    Ok(_) => {
                        let stat = self.stat_entry(&key, &entry)?;
                        listing
                            .objects
                            .extend(stat.map(|stat| object_meta(key, &stat)));
                    }
                    Err(e) if e.kind() == IoKind::NotFound => {}
                    Err(e) => return Err(map_io_error(&key, e)),
                }
            }
        }
        listing.objects.sort_by(|a, b| a.location.cmp(&b.location));
        listing.common_prefixes.sort();
        Ok(listing)
    }

    /// Whether the name of `key` is that of a symbolic link, whether or not there is anything where it leads.
    pub(in crate::store) async fn is_link(&self, key: &Path) -> Result<bool> {
        let key = key.clone();
        self.run_blocking(move |s| Ok(s.resolve_entry(&key)?.is_symlink()))
            .await
    }

    /// Whether there is a folder `key` inside the root.
    pub(in crate::store) async fn is_folder(&self, key: &Path) -> Result<bool> {
        let key = key.clone();
        self.run_blocking(move |s| Ok(s.resolve(&key).is_ok_and(|path| path.is_dir())))
            .await
    }

    /// Removes the folder `key` and its subfolders as far as they are empty; errors are ignored. A symbolic link stays,
    /// and so does the folder where it leads.
    pub fn remove_empty_tree(&self, key: &Path) {
        fn remove(path: &FsPath) {
            let Ok(entries) = fs::read_dir(path) else {
                return;
            };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    remove(&entry.path());
                }
            }
            // A folder that is not empty stays: another writer may have put a file there.
            let _ = fs::remove_dir(path);
        }
        if let Ok(path) = self.resolve(key)
            && !path.is_symlink()
        {
            remove(&path);
        }
    }
}
