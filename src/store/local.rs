//! Local files as an [`ObjectStore`]: writes appear whole, paths never leave the root.
//!
//! A write goes to a hidden file beside its target and is renamed (replace) or linked (create).
//! A conditional replace holds an advisory lock on the folder while it compares and renames, so
//! any number of processes of one host can contend. Symbolic links are followed only where they
//! end inside the root. Hidden files of interrupted writes start with [`TEMP_PREFIX`]; listings
//! show them only to [`crate::dataset`], which cleans them up.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind as IoKind, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, RenameOptions, RenameTargetMode, Result,
};

use super::cas::content_tag;
use super::owner::Owner;
use crate::clock::Clock;

/// Names of files that are being written begin so.
pub const TEMP_PREFIX: &str = ".pds-";

const STORE: &str = "file";

/// A folder of the local file system as an object store.
#[derive(Debug, Clone)]
pub struct LocalStore {
    root: Arc<PathBuf>,
    clock: Arc<dyn Clock>,
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
        }
    }

    /// The file behind a key, checked not to leave the root through a symbolic link.
    pub fn resolve(&self, key: &Path) -> Result<PathBuf> {
        let mut path = self.root.as_ref().clone();
        path.extend(key.as_ref().split('/').filter(|s| !s.is_empty()));
        let Ok(root) = fs::canonicalize(self.root.as_ref()) else {
            return Ok(path);
        };
        for ancestor in path.ancestors() {
            match fs::canonicalize(ancestor) {
                Ok(real) if real.starts_with(&root) => return Ok(path),
                Ok(_) => return Err(escapes(key)),
                // A dangling link would be followed by the write that creates its target.
                Err(_) if ancestor.is_symlink() => return Err(escapes(key)),
                Err(_) => {}
            }
        }
        Ok(path)
    }

    /// Opens a new hidden file beside `target`; gives it and its key.
    ///
    /// `tag` tells whose it is, see [`Owner::tag`].
    pub fn create_temp(&self, target: &Path, tag: &str) -> Result<(File, Path)> {
        let folder = target
            .as_ref()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        let name = super::path::join(folder, &temp_name(tag, self.clock.new_id()));
        let key = Path::parse(&name).map_err(Error::from)?;
        let path = self.resolve(&key)?;
        let create = || OpenOptions::new().write(true).create_new(true).open(&path);
        let opened = match create() {
            Err(e) if e.kind() == IoKind::NotFound => {
                make_parent(&path).map_err(|e| failed(&key, e))?;
                create()
            }
            other => other,
        };
        Ok((opened.map_err(|e| failed(&key, e))?, key))
    }

    /// Moves a file over `to`, atomically.
    pub fn rename_over(&self, from: &Path, to: &Path) -> Result<()> {
        let (source, target) = (self.resolve(from)?, self.resolve(to)?);
        match fs::rename(&source, &target) {
            Err(e) if e.kind() == IoKind::NotFound && source.exists() => {
                make_parent(&target).map_err(|e| failed(to, e))?;
                fs::rename(&source, &target).map_err(|e| failed(to, e))
            }
            other => other.map_err(|e| failed(from, e)),
        }
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

    /// Opens an object for reading; a folder is not an object.
    pub fn open(&self, key: &Path) -> Result<(File, ObjectMeta)> {
        let file = File::open(self.resolve(key)?).map_err(|e| failed(key, e))?;
        let stat = file.metadata().map_err(|e| failed(key, e))?;
        if stat.is_dir() {
            return Err(failed(key, IoKind::NotFound.into()));
        }
        Ok((file, meta(key.clone(), &stat)))
    }

    fn put_blocking(&self, key: &Path, payload: &PutPayload, mode: &PutMode) -> Result<PutResult> {
        let (mut file, temp) = self.create_temp(key, &Owner::me().tag())?;
        let written = payload
            .iter()
            .try_for_each(|bytes| file.write_all(bytes))
            .map_err(|e| failed(key, e))
            .and_then(|()| {
                let stat = file.metadata().map_err(|e| failed(key, e))?;
                self.place(&temp, key, mode)?;
                Ok(etag(&stat))
            });
        if written.is_err() || matches!(mode, PutMode::Create) {
            // The link (or nothing) is what stays; the temporary name goes either way.
            if let Ok(path) = self.resolve(&temp) {
                let _ = fs::remove_file(path);
            }
        }
        Ok(PutResult {
            e_tag: Some(written?),
            version: None,
        })
    }

    fn place(&self, temp: &Path, key: &Path, mode: &PutMode) -> Result<()> {
        match mode {
            PutMode::Overwrite => self.rename_over(temp, key),
            PutMode::Create => {
                let (source, target) = (self.resolve(temp)?, self.resolve(key)?);
                fs::hard_link(&source, &target).or_else(|e| match e.kind() {
                    IoKind::AlreadyExists => Err(exists(key, e)),
                    // File systems without links still have an exclusive rename.
                    _ => rename_exclusive(&source, &target, key),
                })
            }
            PutMode::Update(expected) => {
                let target = self.resolve(key)?;
                let folder =
                    File::open(target.parent().unwrap_or(&target)).map_err(|e| failed(key, e))?;
                rustix::fs::flock(&folder, rustix::fs::FlockOperation::LockExclusive)
                    .map_err(|e| failed(key, e.into()))?;
                let current = fs::read(&target).map(|bytes| content_tag(&bytes));
                if current.ok() != expected.e_tag {
                    return Err(changed(key));
                }
                self.rename_over(temp, key)
            }
        }
    }

    fn get_blocking(&self, key: &Path, options: &GetOptions) -> Result<GetResult> {
        let (file, meta) = self.open(key)?;
        options.check_preconditions(&meta)?;
        let range = match &options.range {
            None => 0..meta.size,
            Some(range) => range
                .as_range(meta.size)
                .map_err(|source| generic(source.into()))?,
        };
        Ok(GetResult {
            payload: GetResultPayload::File(file, self.resolve(key)?),
            attributes: Attributes::default(),
            range,
            meta,
        })
    }

    fn list_blocking(&self, prefix: &Path, recursive: bool) -> Result<ListResult> {
        let mut found = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
        };
        let mut folders = vec![prefix.clone()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.resolve(&folder)?) {
                Ok(entries) => entries,
                Err(e) if matches!(e.kind(), IoKind::NotFound | IoKind::NotADirectory) => continue,
                Err(e) => return Err(failed(&folder, e)),
            };
            for entry in entries {
                let entry = entry.map_err(|e| failed(&folder, e))?;
                // Names an object key cannot hold are not objects of this store.
                let Some(Ok(key)) = entry.file_name().to_str().map(|name| {
                    let joined = super::path::join(folder.as_ref(), name);
                    super::path::parse(&joined)
                }) else {
                    continue;
                };
                // Gone since it was listed, a dangling link, or a link that leaves the root.
                let Ok(stat) = self
                    .resolve(&key)
                    .and_then(|p| fs::metadata(p).map_err(|e| failed(&key, e)))
                else {
                    continue;
                };
                match (stat.is_dir(), recursive) {
                    (true, true) => folders.push(key),
                    (true, false) => found.common_prefixes.push(key),
                    (false, _) => found.objects.push(meta(key, &stat)),
                }
            }
        }
        found.objects.sort_by(|a, b| a.location.cmp(&b.location));
        found.common_prefixes.sort();
        Ok(found)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let this = self.clone();
        tokio::task::spawn_blocking(move || work(&this)).await?
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
        self.blocking(move |s| s.put_blocking(&key, &payload, &opts.mode))
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
        self.blocking(move |s| s.get_blocking(&key, &options)).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (location.clone(), ranges.to_vec());
        self.blocking(move |s| {
            let (file, _) = s.open(&key)?;
            ranges
                .into_iter()
                .map(|range| {
                    let mut bytes =
                        vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
                    file.read_exact_at(&mut bytes, range.start)
                        .map_err(|e| failed(&key, e))?;
                    Ok(Bytes::from(bytes))
                })
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
            .then(move |key| {
                let this = this.clone();
                async move {
                    let key = key?;
                    let done = key.clone();
                    this.blocking(move |s| {
                        fs::remove_file(s.resolve(&key)?).map_err(|e| failed(&key, e))
                    })
                    .await?;
                    Ok(done)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        stream::once(async move { this.blocking(move |s| s.list_blocking(&prefix, true)).await })
            .flat_map(|found| match found {
                Ok(found) => stream::iter(found.objects).map(Ok).boxed(),
                Err(e) => stream::iter([Err(e)]).boxed(),
            })
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        self.blocking(move |s| s.list_blocking(&prefix, false))
            .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.blocking(move |s| {
            let (mut source, _) = s.open(&from)?;
            let (mut file, temp) = s.create_temp(&to, &Owner::me().tag())?;
            let mode = match options.mode {
                CopyMode::Create => PutMode::Create,
                CopyMode::Overwrite => PutMode::Overwrite,
            };
            let placed = std::io::copy(&mut source, &mut file)
                .map_err(|e| failed(&to, e))
                .and_then(|_| s.place(&temp, &to, &mode));
            if placed.is_err() || mode == PutMode::Create {
                let _ = s.resolve(&temp).map(fs::remove_file);
            }
            placed
        })
        .await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let (from, to) = (from.clone(), to.clone());
        self.blocking(move |s| {
            if options.target_mode == RenameTargetMode::Create {
                let (source, target) = (s.resolve(&from)?, s.resolve(&to)?);
                make_parent(&target).map_err(|e| failed(&to, e))?;
                return rename_exclusive(&source, &target, &to);
            }
            s.rename_over(&from, &to)
        })
        .await
    }
}

/// The name of a hidden file.
pub(super) fn temp_name(tag: &str, id: u128) -> String {
    format!("{TEMP_PREFIX}{tag}-{id:032x}.tmp")
}

/// Whether a file name is that of a hidden file whose process is certainly gone.
pub fn is_abandoned(name: &str) -> bool {
    name.strip_prefix(TEMP_PREFIX)
        .is_some_and(Owner::tag_is_dead)
}

fn rename_exclusive(source: &FsPath, target: &FsPath, key: &Path) -> Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, source, CWD, target, RenameFlags::NOREPLACE).map_err(|e| match e {
        rustix::io::Errno::EXIST => exists(key, e.into()),
        e => failed(key, e.into()),
    })
}

fn make_parent(path: &FsPath) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
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

fn meta(location: Path, stat: &fs::Metadata) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: stat.modified().map(Into::into).unwrap_or_default(),
        size: stat.len(),
        e_tag: Some(etag(stat)),
        version: None,
    }
}

fn generic(source: Box<dyn std::error::Error + Send + Sync>) -> Error {
    Error::Generic {
        store: STORE,
        source,
    }
}

fn exists(key: &Path, source: std::io::Error) -> Error {
    Error::AlreadyExists {
        path: key.to_string(),
        source: source.into(),
    }
}

fn changed(key: &Path) -> Error {
    Error::Precondition {
        path: key.to_string(),
        source: "the file's content has changed".into(),
    }
}

fn escapes(key: &Path) -> Error {
    Error::InvalidPath {
        source: object_store::path::Error::InvalidPath {
            path: PathBuf::from(key.as_ref()),
        },
    }
}

fn failed(key: &Path, source: std::io::Error) -> Error {
    let path = key.to_string();
    match source.kind() {
        // A file where a folder is expected holds no object below it.
        IoKind::NotFound | IoKind::NotADirectory => Error::NotFound {
            path,
            source: source.into(),
        },
        IoKind::AlreadyExists => exists(key, source),
        IoKind::PermissionDenied | IoKind::ReadOnlyFilesystem => Error::PermissionDenied {
            path,
            source: source.into(),
        },
        _ => generic(source.into()),
    }
}
