//! Local files as an [`ObjectStore`]: writes appear whole, paths never leave the root.
//!
//! A write goes to a hidden file beside its target and is renamed (replace) or linked (create). A conditional replace
//! holds an advisory lock on the file while it compares and renames, so any number of processes can contend, see
//! `self::lock`. Symbolic links in a path are followed where they end inside the root; a deletion removes the link,
//! not its target. The names of hidden files begin with [`TEMP_PREFIX`](super::temp_name::TEMP_PREFIX); those of interrupted writes stay, and
//! [`crate::dataset`] cleans them up. `self::durability` decides what reaches the disk when, `self::listing` lists,
//! `self::rename` moves files that others may replace.
//!
//! A call that is cancelled changes nothing after that, see `self::caller`.
//!
//! Errors are `object_store`'s: `NotFound` for a folder too, `InvalidPath` for a path outside the root, `Precondition`
//! for a file that is not the expected version. Multipart uploads are not implemented; `super::stage` has its own way.

mod caller;
mod durability;
mod listing;
pub(super) mod lock;
mod rename;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use futures::{TryStreamExt, future};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result,
};

use self::caller::{check_awaited, run_awaited};
pub(crate) use self::durability::defer_name_syncs;
pub use self::durability::{DiskChange, DiskJournal};
use super::condition::Condition;
use super::failure::{
    already_exists_error, generic_error, map_io_error, map_write_error, outside_root_error,
};
use super::process_id::ProcessId;
use super::temp_name::temp_name;
use crate::clock::Clock;
use crate::sync::in_place::is_in_place;

/// The most files that are deleted between two syncs of their folders.
const DELETE_BATCH: usize = 1000;

/// So many bytes are read with the opening of a file, before the caller sees how many there are.
const MAX_BYTES_AT_ONCE: u64 = 256 << 10;
/// The same for a caller that would wait for another thread to read them.
const MAX_BYTES_IN_PLACE: u64 = 8 << 20;

/// A folder of the local file system as an object store.
#[derive(Debug, Clone)]
pub struct LocalStore {
    root: Arc<PathBuf>,
    clock: Arc<dyn Clock>,
    /// Changes are on the disk before they are reported.
    durable: bool,
    /// Those of names, too.
    syncs_names: bool,
    journal: Option<Arc<dyn DiskJournal>>,
}

impl std::fmt::Display for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "file({})", self.root.display())
    }
}

impl LocalStore {
    /// A store below `root`, which is created by the first write.
    pub fn new(root: impl Into<PathBuf>, clock: Arc<dyn Clock>) -> Self {
        Self {
            root: Arc::new(root.into()),
            clock,
            durable: true,
            syncs_names: true,
            journal: None,
        }
    }

    /// The folder of the store.
    pub(super) fn root(&self) -> &FsPath {
        &self.root
    }

    /// Whether changes are on the disk before they are reported.
    pub(super) fn is_durable(&self) -> bool {
        self.durable
    }

    /// The path of a key's file; `InvalidPath` if it leaves the root through a symbolic link.
    pub fn resolve(&self, key: &Path) -> Result<PathBuf> {
        let mut path = self.root.as_ref().clone();
        path.extend(components(key));
        if !self.may_have_links(key) {
            return Ok(path);
        }
        let Ok(root) = fs::canonicalize(self.root.as_ref()) else {
            return Ok(path);
        };
        for ancestor in path.ancestors() {
            match fs::canonicalize(ancestor) {
                Ok(real) if real.starts_with(&root) => return Ok(path),
                Ok(_) => return Err(outside_root_error(key)),
                // A dangling link would be followed by the write that creates its target.
                Err(_) if ancestor.is_symlink() => return Err(outside_root_error(key)),
                Err(_) => {}
            }
        }
        Ok(path)
    }

    /// Whether a component of a key's path may be a symbolic link: a call each is less than to resolve the root, too.
    fn may_have_links(&self, key: &Path) -> bool {
        let mut path = self.root.as_ref().clone();
        for component in components(key) {
            path.push(component);
            match fs::symlink_metadata(&path) {
                Ok(stat) if !stat.is_symlink() => {}
                Err(e) if e.kind() == IoKind::NotFound => return false,
                _ => return true,
            }
        }
        false
    }

    /// The path of a key's directory entry: as [`Self::resolve`], but a link in the last place is not followed.
    fn resolve_entry(&self, key: &Path) -> Result<PathBuf> {
        let (folder, name) = key.as_ref().rsplit_once('/').unwrap_or(("", key.as_ref()));
        if name.is_empty() {
            return Err(outside_root_error(key));
        }
        Ok(self
            .resolve(&Path::parse(folder).map_err(Error::from)?)?
            .join(name))
    }

    /// Creates a hidden file beside `target`, and missing folders; returns the file and its key.
    ///
    /// `tag` names the owner of the file, see [`ProcessId::tag`].
    pub fn create_temp(&self, target: &Path, tag: &str) -> Result<(File, Path)> {
        let folder = target
            .as_ref()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        let name = super::path::join(folder, &temp_name(tag, self.clock.new_id()));
        let key = Path::parse(&name).map_err(Error::from)?;
        let path = self.resolve(&key)?;
        let create = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&path)
        };
        let opened = match create() {
            Err(e) if e.kind() == IoKind::NotFound => {
                self.make_folder_of(&path)
                    .map_err(|e| map_write_error(&key, e))?;
                create()
            }
            other => other,
        };
        let file = opened.map_err(|e| map_write_error(&key, e))?;
        self.record_change(|| DiskChange::Create(path.clone()));
        Ok((file, key))
    }

    /// Removes a hidden file; errors are ignored, since it may have been moved.
    pub(super) fn remove_temp(&self, temp: &Path) {
        let _ = self
            .resolve_entry(temp)
            .and_then(|path| self.unlink_unsynced(temp, &path));
    }

    /// Gives the file `from` the name `to`, or `AlreadyExists` if a file has it. The old name may stay.
    fn link_new(&self, from: &Path, to: &Path) -> Result<()> {
        let (source, target) = (self.resolve(from)?, self.resolve(to)?);
        let linked = fs::hard_link(&source, &target).or_else(|e| match e.kind() {
            IoKind::NotFound if source.exists() => {
                self.make_folder_of(&target)?;
                fs::hard_link(&source, &target)
            }
            _ => Err(e),
        });
        match linked {
            Ok(()) => self.record_change(|| DiskChange::Link(source.clone(), target.clone())),
            Err(e) if e.kind() == IoKind::AlreadyExists => return Err(already_exists_error(to, e)),
            Err(e) if e.kind() == IoKind::NotFound => return Err(map_io_error(from, e)),
            // File systems without hard links have an exclusive rename.
            Err(_) => {
                rename_exclusive(&source, &target, to)?;
                self.record_change(|| DiskChange::Rename(source.clone(), target.clone()));
            }
        }
        self.sync_folder_of(to, &target)
    }

    fn unlink_unsynced(&self, key: &Path, path: &FsPath) -> Result<()> {
        fs::remove_file(path).map_err(|e| map_io_error(key, e))?;
        self.record_change(|| DiskChange::Unlink(path.to_owned()));
        Ok(())
    }

    /// Opens an object for reading; a folder is `NotFound`.
    pub fn open(&self, key: &Path) -> Result<(File, ObjectMeta)> {
        let file = File::open(self.resolve(key)?).map_err(|e| map_io_error(key, e))?;
        let stat = file.metadata().map_err(|e| map_io_error(key, e))?;
        if stat.is_dir() {
            return Err(map_io_error(key, IoKind::NotFound.into()));
        }
        Ok((file, object_meta(key.clone(), &stat)))
    }

    fn put_blocking(&self, key: &Path, payload: &PutPayload, mode: &PutMode) -> Result<PutResult> {
        let (mut file, temp) = self.create_temp(key, &ProcessId::current().tag())?;
        let result = payload
            .iter()
            .try_for_each(|bytes| file.write_all(bytes))
            .map_err(|e| map_io_error(key, e))
            .and_then(|()| {
                let stat = file.metadata().map_err(|e| map_io_error(key, e))?;
                // An empty file is whole with its name.
                if payload.content_length() > 0 {
                    self.sync_file(&temp, &file)?;
                }
                self.move_into_place(&temp, key, mode)?;
                Ok(etag(&stat))
            });
        if result.is_err() || matches!(mode, PutMode::Create) {
            // After a create the link stays, after an error nothing. The hidden name is removed either way.
            self.remove_temp(&temp);
        }
        Ok(PutResult {
            e_tag: Some(result?),
            version: None,
        })
    }

    fn move_into_place(&self, temp: &Path, key: &Path, mode: &PutMode) -> Result<()> {
        check_awaited(key)?;
        match mode {
            PutMode::Overwrite => self.rename_over(temp, key),
            PutMode::Create => self.link_new(temp, key),
            PutMode::Update(expected) => {
                let e_tag = expected.e_tag.as_deref().unwrap_or_default();
                self.rename_over_version(temp, key, e_tag)
            }
        }
    }

    /// Copies a file; returns the ETag of what was read.
    fn copy_blocking(&self, from: &Path, to: &Path, mode: CopyMode) -> Result<Option<String>> {
        let (mut source, meta) = self.open(from)?;
        let (mut file, temp) = self.create_temp(to, &ProcessId::current().tag())?;
        let mode = match mode {
            CopyMode::Create => PutMode::Create,
            CopyMode::Overwrite => PutMode::Overwrite,
        };
        let result = std::io::copy(&mut source, &mut file)
            .map_err(|e| map_io_error(to, e))
            .and_then(|_| self.sync_file(&temp, &file))
            .and_then(|()| self.move_into_place(&temp, to, &mode));
        if result.is_err() || mode == PutMode::Create {
            self.remove_temp(&temp);
        }
        result.map(|()| meta.e_tag)
    }

    fn get_blocking(&self, key: &Path, options: &GetOptions) -> Result<GetResult> {
        let (file, meta) = self.open(key)?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range
                .as_range(meta.size)
                .map_err(|source| generic_error(source.into()))?,
        };
        let max_bytes = if is_in_place() {
            MAX_BYTES_IN_PLACE
        } else {
            MAX_BYTES_AT_ONCE
        };
        let payload = if range.end - range.start <= max_bytes && !options.head {
            let bytes = read_range(key, &file, range.clone())?;
            GetResultPayload::Stream(stream::once(future::ready(Ok(bytes))).boxed())
        } else {
            GetResultPayload::File(file, self.resolve(key)?)
        };
        Ok(GetResult {
            payload,
            attributes: Attributes::default(),
            range,
            meta,
        })
    }

    /// [`Self::delete_version`] in a blocking task.
    pub(super) async fn delete_if(&self, key: &Path, e_tag: Option<&str>) -> Result<()> {
        let (key, e_tag) = (key.clone(), e_tag.map(str::to_owned));
        self.run_blocking(move |s| s.delete_version(&key, e_tag.as_deref()))
            .await
    }

    /// [`Self::move_if`] in a blocking task.
    pub(super) async fn rename_if(
        &self,
        from: &Path,
        to: &Path,
        condition: &Condition,
    ) -> Result<Option<String>> {
        let (from, to, condition) = (from.clone(), to.clone(), condition.clone());
        self.run_blocking(move |s| s.move_if(&from, &to, &condition))
            .await
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = self.for_current_call();
        if is_in_place() {
            return work(&this);
        }
        let lock = lock::current_lock();
        let task = move || {
            let result = work(&this);
            drop(lock);
            result
        };
        run_awaited(task).await
    }
}

#[async_trait]
impl ObjectStore for LocalStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let key = location.clone();
        self.run_blocking(move |s| s.put_blocking(&key, &payload, &opts.mode))
            .await
    }

    async fn put_multipart_opts(
        &self,
        _location: &Path,
        _opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        // Long local writes stream into `create_temp`, see `super::stage`.
        Err(Error::NotImplemented {
            operation: "put_multipart_opts".into(),
            implementer: self.to_string(),
        })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let key = location.clone();
        self.run_blocking(move |s| s.get_blocking(&key, &options))
            .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (location.clone(), ranges.to_vec());
        self.run_blocking(move |s| {
            let (file, _) = s.open(&key)?;
            ranges
                .into_iter()
                .map(|range| read_range(&key, &file, range))
                .collect()
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations
            .try_chunks(DELETE_BATCH)
            .then(move |chunk| {
                let this = this.clone();
                async move {
                    // Keys of a chunk that ends with an error are not deleted: the request is incomplete.
                    let keys = chunk.map_err(|e| e.1)?;
                    this.run_blocking(move |s| Ok(s.delete_many(&keys))).await
                }
            })
            .flat_map(|deleted| match deleted {
                Ok(results) => stream::iter(results).boxed(),
                Err(e) => stream::iter([Err(e)]).boxed(),
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        stream::once(async move {
            this.run_blocking(move |s| s.list_blocking(&prefix, true))
                .await
        })
        .flat_map(|result| match result {
            Ok(listing) => stream::iter(listing.objects).map(Ok).boxed(),
            Err(e) => stream::iter([Err(e)]).boxed(),
        })
        .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        self.run_blocking(move |s| s.list_blocking(&prefix, false))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.run_blocking(move |s| s.copy_blocking(&from, &to, options.mode).map(drop))
            .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.run_blocking(move |s| {
            check_awaited(&to)?;
            if options.target_mode == RenameTargetMode::Create {
                let (source, target) = (s.resolve(&from)?, s.resolve(&to)?);
                s.make_folder_of(&target)
                    .map_err(|e| map_io_error(&to, e))?;
                rename_exclusive(&source, &target, &to)?;
                return s.sync_folder_of(&to, &target);
            }
            s.rename_over(&from, &to)
        })
        .await
    }
}

fn read_range(key: &Path, file: &File, range: Range<u64>) -> Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, range.start)
        .map_err(|e| map_io_error(key, e))?;
    Ok(Bytes::from(bytes))
}

fn components(key: &Path) -> impl Iterator<Item = &str> {
    key.as_ref().split('/').filter(|s| !s.is_empty())
}

fn rename_exclusive(source: &FsPath, target: &FsPath, key: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, source, CWD, target, RenameFlags::NOREPLACE).map_err(|e| match e {
        rustix::io::Errno::EXIST => already_exists_error(key, e.into()),
        e => map_io_error(key, e.into()),
    })
}

fn etag(stat: &fs::Metadata) -> String {
    format!(
        "{:x}-{:x}-{:x}-{:x}",
        stat.ino(),
        stat.mtime(),
        stat.mtime_nsec(),
        stat.size()
    )
}

fn object_meta(location: Path, stat: &fs::Metadata) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: stat.modified().map(Into::into).unwrap_or_default(),
        size: stat.len(),
        e_tag: Some(etag(stat)),
        version: None,
    }
}
