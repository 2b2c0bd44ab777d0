//! The folder of something that has versions: its pointer, its manifests and its other objects, as they are in the store.
//!
//! [`Folder`] is a store and a path; [`Snapshot`] is a manifest with the pointer that named it. What is read here is
//! what a request answers; which snapshot is the newest is in [`super::snapshot`].

use std::collections::BTreeMap;
use std::sync::Arc;

use object_store::{GetOptions, ObjectMeta};

use super::manifest::{MAX_MANIFEST_BYTES, Versioned};
use super::names;
use super::pointer::{MAX_POINTER_BYTES, Pointer};
use crate::error::{Error, ErrorKind, Result, corrupted_error};
use crate::store::cas::{Register, VersionedValue};
use crate::store::{Store, path};

/// A folder of a store with versions of one kind, or in which they can be created.
#[derive(Debug, Clone)]
pub struct Folder<M: Versioned> {
    pub(crate) store: Store,
    root: String,
    /// The limits of its lists; only tests change the default.
    pub limits: M::Limits,
}

/// The newest snapshot and the pointer that named it.
#[derive(Debug, Clone)]
pub struct Snapshot<M> {
    /// The manifest of the version.
    pub manifest: Arc<M>,
    pub(crate) pointer: VersionedValue,
}

impl<M: Versioned> Folder<M> {
    /// The folder at `root`; sends no request. Refuses a path with a component that is the pointer's name.
    pub fn new(store: Store, root: &str) -> Result<Self> {
        check_root(root, M::NOUN)?;
        Ok(Self {
            store,
            root: root.to_owned(),
            limits: M::Limits::default(),
        })
    }

    /// The path in the store of an object whose path is `relative` to the folder.
    pub fn path(&self, relative: &str) -> String {
        path::join(&self.root, relative)
    }

    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The store of the folder.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Reads the pointer, if there is one.
    pub(crate) async fn read_pointer(&self) -> Result<Option<(VersionedValue, Pointer)>> {
        let path = self.path(names::POINTER);
        let register = Register::new(&self.store, &path);
        match register.read_at_most(MAX_POINTER_BYTES).await {
            Ok(None) => Ok(None),
            Ok(Some(stored)) => match Pointer::parse(&stored.bytes, M::FORMAT) {
                Ok(parsed) => Ok(Some((stored, parsed))),
                Err(e) if e.kind() == ErrorKind::FormatNotSupported => {
                    Err(self.newer_format_error(e, &stored.bytes).await)
                }
                Err(e) => Err(e),
            }
            .map_err(|e| e.with_path(&path)),
            Err(e) if e.kind() == ErrorKind::TooLarge => {
                Err(corrupted_error(names::POINTER, "it has too many bytes").with_path(&path))
            }
            Err(e) => Err(e),
        }
    }

    /// The error for a pointer of a newer format, which may be that of something else.
    async fn newer_format_error(&self, error: Error, pointer: &[u8]) -> Error {
        let Ok(pointer) = Pointer::parse(pointer, u32::MAX) else {
            return error;
        };
        match self.read_manifest(pointer.version).await {
            Err(e) if e.kind() == ErrorKind::InvalidPath => e,
            _ => error,
        }
    }

    /// Reads the manifest of a version, if it exists.
    pub(crate) async fn read_manifest(&self, version: u64) -> Result<Option<M>> {
        let read = self.read_sized_manifest(version).await?;
        Ok(read.map(|(manifest, _)| manifest))
    }

    /// As [`Self::read_manifest`], with the length of the object.
    pub(super) async fn read_sized_manifest(&self, version: u64) -> Result<Option<(M, u64)>> {
        let name = names::manifest(version);
        let path = self.path(&name);
        let read = self
            .store
            .get_at_most(&path, GetOptions::default(), MAX_MANIFEST_BYTES);
        match read.await {
            Ok((bytes, _)) => M::parse(&bytes, version)
                .map(|manifest| Some((manifest, bytes.len() as u64)))
                .map_err(|e| e.with_path(&path)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == ErrorKind::TooLarge => {
                Err(corrupted_error(&name, "it has too many bytes").with_path(&path))
            }
            Err(e) => Err(e),
        }
    }
}

/// Refuses the path of a folder with a component that is the pointer's name. The folder is one of a `noun`.
pub(crate) fn check_root(root: &str, noun: &str) -> Result<()> {
    path::parse(root)?;
    if root.split('/').any(|part| part == names::POINTER) {
        let message = format!(
            "invalid {noun} path {root:?}: the name {:?} is reserved for an object of {noun}s",
            names::POINTER,
        );
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(root));
    }
    Ok(())
}

/// Lists the objects below a path that is relative to the folder, as the keys are.
pub(crate) async fn list_objects<M: Versioned>(
    folder: &Folder<M>,
    below: &str,
) -> Result<BTreeMap<String, ObjectMeta>> {
    list_below(&folder.store, folder.root(), below).await
}

/// As [`list_objects`], of a folder that need not have versions.
pub(crate) async fn list_below(
    store: &Store,
    root: &str,
    below: &str,
) -> Result<BTreeMap<String, ObjectMeta>> {
    let objects = store.list(&path::join(root, below)).await?;
    Ok(by_relative_path(root, objects))
}

/// Lists the objects that are directly in a folder, by their names.
pub(crate) async fn list_root(store: &Store, root: &str) -> Result<BTreeMap<String, ObjectMeta>> {
    let listed = store.list_folder(root).await?;
    Ok(by_relative_path(root, listed.files))
}

fn by_relative_path(root: &str, objects: Vec<ObjectMeta>) -> BTreeMap<String, ObjectMeta> {
    let prefix = path::join(root, "");
    let entries = objects.into_iter().filter_map(|meta| {
        let relative = meta.location.as_ref().strip_prefix(&prefix)?;
        Some((relative.trim_start_matches('/').to_owned(), meta))
    });
    entries.collect()
}
