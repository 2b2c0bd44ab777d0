//! The folders of local files: what is in them, and the removal of empty ones.
//!
//! A listing shows the links it meets as files and descends into none. What goes while it is listed is left out, as is
//! every name that an object's key cannot hold.

use std::fs;
use std::io::ErrorKind as IoKind;
use std::path::Path as FsPath;

use object_store::path::Path;
use object_store::{ListResult, Result};

use super::failure::map_io_error;
use super::local::{LocalStore, object_meta};

impl LocalStore {
    /// A file as it will be read: a link to a file inside the root has that file's length, any other its own.
    fn stat_entry(&self, key: &Path, entry: &fs::DirEntry) -> Option<fs::Metadata> {
        let stat = entry.metadata().ok()?;
        if !stat.is_symlink() {
            return Some(stat);
        }
        let target = self
            .resolve(key)
            .ok()
            .and_then(|path| fs::metadata(path).ok());
        Some(target.filter(fs::Metadata::is_file).unwrap_or(stat))
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
                // Names an object key cannot hold are not objects of this store.
                let Some(Ok(key)) = entry.file_name().to_str().map(|name| {
                    let joined = super::path::join(folder.as_ref(), name);
                    super::path::parse(&joined)
                }) else {
                    continue;
                };
                match entry.file_type() {
                    Ok(file_type) if file_type.is_dir() && recursive => folders.push(key),
                    Ok(file_type) if file_type.is_dir() => listing.common_prefixes.push(key),
                    Ok(_) => {
                        // None: it is gone since it was listed.
                        let stat = self.stat_entry(&key, &entry);
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

    /// Removes the folder `key` and its empty subfolders.
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
            // A folder that is not empty stays: somebody wrote into it meanwhile.
            let _ = fs::remove_dir(path);
        }
        if let Ok(path) = self.resolve(key) {
            remove(&path);
        }
    }
}
