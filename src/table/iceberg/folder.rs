//! The folder of the metadata: listed, read, created, and removed.
//!
//! Late requests: names of metadata recur where a table is dropped and created again, so metadata are removed by the
//! ETags with which they were listed, and what is removed follows from a version that was read after that. On a store
//! of which it is not known that it honors the conditions of deletions, a HEAD comes before each instead. Two
//! versions of the hint with the same number have the same ETag on S3, so a late request for one can hit a later one.
//! The next export names the newest again; until then, readers list the metadata where the hint is gone.

use std::collections::HashMap;
use std::fmt::Write as _;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::{GetOptions, ObjectMeta};

use super::metadata::{IcebergExportState, IcebergMetadata, MAX_SNAPSHOTS};
use crate::error::{Error, ErrorKind, Result};
use crate::store::Condition;
use crate::sync::hash::Sha3;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::versions::CommitId;

/// The folder, relative to the table.
pub(super) const FOLDER: &str = "metadata";
/// The folder of all that metadata name, relative to the table: not listed to find the newest.
pub(super) const OBJECTS: &str = "metadata/manifests";
const HINT_NAME: &str = "version-hint.text";
const METADATA: &str = ".metadata.json";
/// How often is tried what other exports undo.
const MAX_ROUNDS: u32 = 20;

/// What is in the folder.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The versions with metadata, in order.
    versions: Vec<u64>,
    /// The name of metadata that no export gives.
    foreign: Option<String>,
    has_hint: bool,
    /// The ETags of the objects by name.
    e_tags: HashMap<String, String>,
}

impl Listing {
    pub(super) async fn list(table: &Table) -> Result<Self> {
        let listed = table.store().list_folder(&table.path(FOLDER)).await?;
        let mut listing = Self::default();
        for object in listed.files {
            let name = object.location.filename().unwrap_or_default();
            listing.has_hint |= name == HINT_NAME;
            match parse(name) {
                Some(version) => listing.versions.push(version),
                // Also `.metadata.json.gz`.
                None if name.contains(METADATA) => listing.foreign = Some(name.to_owned()),
                None => {}
            }
            let e_tag = object.e_tag.map(|e_tag| (name.to_owned(), e_tag));
            listing.e_tags.extend(e_tag);
        }
        listing.versions.sort_unstable();
        Ok(listing)
    }

    /// The metadata of the newest export, which may be of another table that was here before; None without an export.
    /// Refuses metadata that another system wrote.
    pub(super) async fn last(
        &self,
        table: &Table,
    ) -> Result<Option<(IcebergMetadata, IcebergExportState)>> {
        if let Some(name) = &self.foreign {
            return Err(foreign_error(table, name));
        }
        let Some(version) = self.versions.last() else {
            return Ok(None);
        };
        let bytes = read(table, *version).await?;
        let last = IcebergMetadata::parse(&bytes).filter(|(_, state)| state.version == *version);
        last.ok_or_else(|| foreign_error(table, &name(*version)))
            .map(Some)
    }

    /// The versions with metadata, in order.
    pub(super) fn versions(&self) -> &[u64] {
        &self.versions
    }

    /// Whether an export wrote any of the versions.
    async fn has_ours(&self, table: &Table) -> Result<bool> {
        for version in self.versions.iter().rev() {
            if IcebergMetadata::parse(&read(table, *version).await?).is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_empty(&self) -> bool {
        self.versions.is_empty() && !self.has_hint
    }

    fn e_tag(&self, name: &str) -> Option<&str> {
        self.e_tags.get(name).map(String::as_str)
    }
}

fn hint_path() -> String {
    format!("{FOLDER}/{HINT_NAME}")
}

/// The path of the metadata of a version, relative to the table.
fn metadata_path(version: u64) -> String {
    format!("{FOLDER}/{}", name(version))
}

/// Whether there is metadata that exports wrote. Fails where another system has written beside it: a catalog in which an
/// export was registered names files of the table, and no export can take away those that a vacuum removes.
pub(in crate::table) async fn exists(table: &Table) -> Result<bool> {
    let listing = Listing::list(table).await?;
    match listing.last(table).await {
        Err(e) if e.kind() == ErrorKind::ExportConflict && !listing.has_ours(table).await? => {
            log::warn!("the Iceberg metadata is not kept up to date: {e}");
            Ok(false)
        }
        Err(e) => Err(e),
        Ok(last) => Ok(last.is_some()),
    }
}

/// The newest exported version and its commit; None without an export.
pub(in crate::table) async fn last_exported(table: &Table) -> Result<Option<(u64, CommitId)>> {
    let last = Listing::list(table).await?.last(table).await?;
    Ok(last.map(|(_, state)| (state.version, state.commit_id)))
}

async fn read(table: &Table, version: u64) -> Result<Bytes> {
    let path = table.path(&metadata_path(version));
    let (bytes, _) = table.store().get(&path, GetOptions::new()).await?;
    Ok(bytes)
}

/// The metadata of a version; `None` if they have been removed, or another system wrote them.
pub(super) async fn read_ours(table: &Table, version: u64) -> Result<Option<IcebergMetadata>> {
    match read(table, version).await {
        Ok(bytes) => Ok(IcebergMetadata::parse(&bytes).map(|(metadata, _)| metadata)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

pub(super) fn other_table_error(table: &Table, version: u64) -> Error {
    let message = format!(
        "version {version} of the Iceberg metadata is of another table that was here before; export_iceberg(rebuild=True) \
         removes the metadata and writes new metadata"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.path(FOLDER))
}

fn foreign_error(table: &Table, name: &str) -> Error {
    let message = format!(
        "another system wrote the Iceberg metadata {name:?}; nothing was written or removed: move the folder {FOLDER} away \
         and export again"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.path(FOLDER))
}

/// Creates the metadata of a version. If another export has, returns its metadata, which have to be of the same commit.
pub(super) async fn create(
    table: &Table,
    manifest: &TableManifest,
    metadata: &IcebergMetadata,
) -> Result<Option<(IcebergMetadata, IcebergExportState)>> {
    let version = manifest.version;
    let path = table.path(&metadata_path(version));
    for _ in 0..MAX_ROUNDS {
        match table.store().create(&path, metadata.to_bytes()).await {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|_| None),
        }
        let bytes = match read(table, version).await {
            // A rebuild removes it.
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            bytes => bytes?,
        };
        let present = IcebergMetadata::parse(&bytes).filter(|(_, state)| state.version == version);
        let (present, state) = present.ok_or_else(|| foreign_error(table, &name(version)))?;
        if state.commit_id != manifest.commit_id {
            return Err(other_table_error(table, version));
        }
        return Ok(Some((present, state)));
    }
    let message = "gave up: other processes remove the Iceberg metadata; try again";
    Err(Error::new(ErrorKind::Unavailable, message).with_path(path))
}

/// Names the version as the newest, unless a newer one is named. A request that comes late finds that the hint has
/// changed, and leaves it.
pub(super) async fn name_newest(table: &Table, version: u64) -> Result<()> {
    let (store, path) = (table.store(), table.path(&hint_path()));
    for _ in 0..MAX_ROUNDS {
        let condition = match store.get(&path, GetOptions::new()).await {
            Ok((bytes, meta)) => {
                let named: Option<u64> = std::str::from_utf8(&bytes)
                    .ok()
                    .and_then(|text| text.trim().parse().ok());
                match named {
                    Some(named) if named == version => return Ok(()),
                    // Unless it is of a table that was here before.
                    Some(named) if named > version && is_there(table, named).await? => {
                        return Ok(());
                    }
                    _ => meta.e_tag.map_or(Condition::Always, Condition::Matches),
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Condition::Absent,
            Err(e) => return Err(e),
        };
        let hint = version.to_string();
        match store.put_if(&path, hint.into(), &condition).await {
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Conflict | ErrorKind::AlreadyExists | ErrorKind::NotFound
                ) => {}
            result => return result.map(drop),
        }
    }
    let message = "gave up: other exports replace the version hint; try again";
    Err(Error::new(ErrorKind::Unavailable, message).with_path(path))
}

async fn is_there(table: &Table, version: u64) -> Result<bool> {
    let path = table.path(&metadata_path(version));
    table.store().is_file(&path).await
}

/// Removes the metadata of versions that a vacuum removed: their files may be gone. And those of which the newest metadata
/// have no snapshot because there are too many. `newest` is read after the listing.
pub(super) async fn remove_expired(
    table: &Table,
    listing: &Listing,
    newest: &TableManifest,
) -> Result<()> {
    let versions = listing.versions.iter().copied();
    let surplus = versions.len().saturating_sub(MAX_SNAPSHOTS);
    let is_tagged = |version: u64| newest.tags.values().any(|tagged| *tagged == version);
    let expired = versions.enumerate().filter_map(|(at, v)| {
        let is_needed = newest.retains(v) && (at >= surplus || is_tagged(v));
        (v < newest.version && !is_needed).then_some(v)
    });
    let objects = expired.map(|version| {
        let e_tag = listing.e_tag(&name(version)).map(str::to_owned);
        (table.path(&metadata_path(version)), e_tag)
    });
    table.store().delete_listed(objects.collect()).await
}

/// Removes the metadata that exports of this library wrote: the newest version first, until the end readers find an
/// older one. The names recur in what is exported after it, so a request that is late removes only what was listed.
pub(in crate::table) async fn remove(table: &Table) -> Result<()> {
    let store = table.store();
    // A store that is probed first is probed beside the metadata.
    store.condition_support(table.root()).await?;
    for _ in 0..MAX_ROUNDS {
        let listing = Listing::list(table).await?;
        if listing.is_empty() {
            return Ok(());
        }
        match listing.last(table).await {
            // Another process removes it, too.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            last => drop(last?),
        }
        let (hint, e_tag) = (table.path(&hint_path()), listing.e_tag(HINT_NAME));
        store.delete_unchanged(&hint, e_tag).await?;
        for version in listing.versions.iter().rev() {
            let path = table.path(&metadata_path(*version));
            let e_tag = listing.e_tag(&name(*version));
            store.delete_unchanged(&path, e_tag).await?;
        }
    }
    let message = "other exports write into the Iceberg metadata, which is being removed; stop them and try again";
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.path(FOLDER)))
}

/// The paths of manifests, of their lists, and of files with deleted rows, in the store.
pub(in crate::table) async fn list_objects(table: &Table) -> Result<Vec<String>> {
    list_objects_before(table, DateTime::<Utc>::MAX_UTC).await
}

/// Those of them that were last written before a time.
pub(super) async fn list_objects_before(table: &Table, time: DateTime<Utc>) -> Result<Vec<String>> {
    let listing = table.store().list_folder(&table.path(OBJECTS)).await?;
    let is_ours = |object: &ObjectMeta| {
        object.last_modified < time && is_named(object.location.filename().unwrap_or_default())
    };
    let objects = listing.files.into_iter().filter(is_ours);
    Ok(objects.map(|object| object.location.to_string()).collect())
}

/// The name of the metadata of a version.
pub(super) fn name(version: u64) -> String {
    format!("v{version}{METADATA}")
}

fn parse(file_name: &str) -> Option<u64> {
    let version = file_name.strip_prefix('v')?.strip_suffix(METADATA)?;
    let version = version.parse().ok()?;
    (name(version) == file_name).then_some(version)
}

/// The path of an object that others name, relative to the table: its name has what its content follows from, and a hash of
/// that, so a name never stands for two contents.
pub(super) fn object_path(kind: &str, key: &str, bytes: &[u8], extension: &str) -> String {
    let hash = hex(&Sha3::digest(bytes)[..8]);
    format!("{OBJECTS}/{kind}-{key}-{hash}.{extension}")
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The part of the name of an object that its content follows from.
pub(super) fn key_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    is_named(name).then(|| name.split('-').nth(1))?
}

fn is_named(name: &str) -> bool {
    let Some((stem, extension)) = name.split_once('.') else {
        return false;
    };
    let is_hex = |text: &str, length| {
        text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let is_known = matches!(
        (extension, stem.split('-').next()),
        ("avro", Some("snap" | "data" | "deletes")) | ("parquet", Some("rows"))
    );
    let parts: Vec<&str> = stem.split('-').collect();
    is_known && matches!(parts[..], [_, key, hash] if is_hex(key, 32) && is_hex(hash, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_recognised() {
        assert_eq!(parse("v12.metadata.json"), Some(12));
        for other in [
            "v012.metadata.json",
            "v+1.metadata.json",
            "00001-x.metadata.json",
            "v1.gz.metadata.json",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let path = object_path("data", &"0a".repeat(16), b"x", "avro");
        assert_eq!(key_of(&path), Some(&*"0a".repeat(16)));
        assert_eq!(key_of("metadata/snap-1-x.avro"), None);
        assert_eq!(key_of("metadata/version-hint.text"), None);
    }
}
