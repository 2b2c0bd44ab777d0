//! A table's place, its newest snapshot, and any other it keeps.

use std::sync::Arc;

use object_store::GetOptions;

use super::format::{
    MAX_MANIFEST_BYTES, MAX_POINTER_BYTES, Pointer, TableManifest, corrupted_error,
};
use super::listing::Limits;
use super::names;
use super::recover::{Recovered, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::store::cas::{Register, VersionedValue};
use crate::store::{Store, path};

/// How often a snapshot that goes while it is opened is looked for again.
const MAX_RESTARTS: u32 = 20;

/// A folder that is or becomes a table.
#[derive(Debug, Clone)]
pub struct Table {
    pub(super) store: Store,
    root: String,
    /// How long its lists become; another number than the usual one is for tests.
    pub limits: Limits,
}

/// The newest snapshot and the pointer that named it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// What it holds.
    pub manifest: Arc<TableManifest>,
    pub(super) pointer: VersionedValue,
}

impl Table {
    /// The table at `root`; nothing is read.
    pub fn new(store: Store, root: &str) -> Result<Self> {
        path::parse(root)?;
        if root.split('/').any(|part| part == names::POINTER) {
            let message = format!(
                "{root:?} holds {:?}, a name of a table's own",
                names::POINTER
            );
            return Err(Error::new(ErrorKind::InvalidPath, message).with_path(root));
        }
        Ok(Self {
            store,
            root: root.to_owned(),
            limits: Limits::default(),
        })
    }

    /// The path of an object that is named relative to the table.
    pub fn path(&self, relative: &str) -> String {
        path::join(&self.root, relative)
    }

    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Its store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The newest snapshot.
    pub async fn newest(&self) -> Result<Snapshot> {
        self.find().await?.ok_or_else(|| {
            let message = format!("there is no table at {:?}", self.root);
            Error::new(ErrorKind::NotFound, message).with_path(&self.root)
        })
    }

    /// The newest snapshot, if there is a table. It is never older than one that was seen before.
    pub(super) async fn find(&self) -> Result<Option<Snapshot>> {
        let mut last = None;
        for _ in 0..MAX_RESTARTS {
            let pointer = self.pointer().await?;
            let recovered = match &pointer {
                None => self.recover(None).await?,
                Some((pointer, parsed)) => match self.standing(parsed).await? {
                    Standing::Newest => Recovered::Nothing,
                    Standing::Behind(manifest) => self.place(Some(pointer), *manifest).await?,
                    Standing::Unknown => self.recover_from(pointer).await?,
                },
            };
            match recovered {
                Recovered::Snapshot(snapshot) => return Ok(Some(snapshot)),
                Recovered::Changed => continue,
                Recovered::Nothing => {}
            }
            let Some((pointer, parsed)) = pointer else {
                return Ok(None);
            };
            let found = self.manifest(parsed.version).await?;
            if let Some(manifest) = found.filter(|m| Pointer::for_manifest(m) == parsed) {
                self.observe(manifest.version, &manifest.commit_id);
                let manifest = Arc::new(manifest);
                return Ok(Some(Snapshot { manifest, pointer }));
            }
            // Vacuumed since the pointer was read, unless the pointer still says the same.
            if last.replace(parsed.version) == Some(parsed.version) {
                return match self.recover_from(&pointer).await? {
                    Recovered::Snapshot(snapshot) => Ok(Some(snapshot)),
                    Recovered::Nothing | Recovered::Changed => Err(self.dangling(&parsed)),
                };
            }
        }
        let message = "the table changes faster than it can be opened";
        Err(Error::new(ErrorKind::Unavailable, message).with_path(&self.root))
    }

    /// What the manifests say where a pointer may be old; nothing where they say no more than it does.
    async fn recover_from(&self, pointer: &VersionedValue) -> Result<Recovered> {
        match self.recover(Some(pointer)).await {
            Err(e) if e.kind() == ErrorKind::ManifestCorrupted => Ok(Recovered::Nothing),
            recovered => recovered,
        }
    }

    /// The pointer, if there is one.
    pub(super) async fn pointer(&self) -> Result<Option<(VersionedValue, Pointer)>> {
        let path = self.path(names::POINTER);
        let register = Register::new(&self.store, &path);
        match register.read_at_most(MAX_POINTER_BYTES).await {
            Ok(None) => Ok(None),
            Ok(Some(found)) => {
                let parsed = Pointer::parse(&found.bytes).map_err(|e| e.with_path(&path))?;
                Ok(Some((found, parsed)))
            }
            Err(e) if e.kind() == ErrorKind::TooLarge => {
                Err(corrupted_error(names::POINTER, "it has too many bytes").with_path(&path))
            }
            Err(e) => Err(e),
        }
    }

    /// The manifest of a version, if it is there.
    pub(super) async fn manifest(&self, version: u64) -> Result<Option<TableManifest>> {
        let name = names::manifest(version);
        let path = self.path(&name);
        let read = self
            .store
            .get_at_most(&path, GetOptions::default(), MAX_MANIFEST_BYTES);
        match read.await {
            Ok((bytes, _)) => TableManifest::parse(&bytes, version)
                .map(Some)
                .map_err(|e| e.with_path(&path)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == ErrorKind::TooLarge => {
                Err(corrupted_error(&name, "it has too many bytes").with_path(&path))
            }
            Err(e) => Err(e),
        }
    }

    /// The snapshot of a version.
    pub async fn at(&self, version: u64) -> Result<Arc<TableManifest>> {
        let newest = self.newest().await?.manifest;
        if newest.version == version {
            return Ok(newest);
        }
        let found = if newest.retains(version) {
            self.manifest(version).await?
        } else {
            None
        };
        // It may have been vacuumed between the two requests, and its place taken by a late one.
        let newest = self.newest().await?.manifest;
        if let Some(manifest) = found.filter(|_| newest.retains(version)) {
            return Ok(Arc::new(manifest));
        }
        if version > newest.version || version == 0 {
            let message = format!(
                "there is no version {version}; the newest is {}",
                newest.version
            );
            return Err(Error::invalid(message).with_path(&self.root));
        }
        if newest.retains(version) {
            return Err(
                corrupted_error(&names::manifest(version), "it is not there").with_path(&self.root),
            );
        }
        Err(self.expired(version, &newest))
    }

    /// Why an object that a version names is not there; another error is given back.
    pub(super) async fn gone(&self, version: u64, path: &str, error: Error) -> Error {
        if error.kind() != ErrorKind::NotFound {
            return error;
        }
        match self.newest().await {
            Ok(now) if !now.manifest.retains(version) => self.expired(version, &now.manifest),
            Ok(_) => {
                let message = format!("version {version} names {path:?}, which is not there");
                let found = Error::new(ErrorKind::PartCorrupted, message);
                found.with_path(self.path(path)).with_source(error)
            }
            Err(_) => error,
        }
    }

    pub(super) fn expired(&self, version: u64, newest: &TableManifest) -> Error {
        let message = format!(
            "version {version} has been vacuumed; the oldest there is is {}",
            newest.oldest_version
        );
        Error::new(ErrorKind::VersionExpired, message).with_path(&self.root)
    }
}
