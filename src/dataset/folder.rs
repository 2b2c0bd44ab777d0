//! The files of a dataset's folder as one listing shows them, and whose parts they are.
//!
//! A [`FolderState`] holds the files by name. The names and ETags of a listing do not tell which write a part is of:
//! [`part_matches`] and [`is_sealed`] open the part and look at its seal. A file that is missing or is not a Parquet
//! file is no match rather than an error.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use object_store::GetOptions;

use super::intent::{BaseVersions, IntendedPart};
use super::{DatasetManifest, INTENT, MANIFEST, MAX_MANIFEST_BYTES, SUCCESS};
use crate::error::{ErrorKind, Result};
use crate::files::open;
use crate::parquet::file::TAIL_BYTES;
use crate::store::content_tag::content_tag;
use crate::store::temp_name::TEMP_PREFIX;
use crate::store::{Store, path};
use crate::versions::names::CHAIN_HEAD;

/// A file as it was listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FolderFile {
    pub(super) e_tag: Option<String>,
    pub(super) bytes: u64,
    pub(super) modified: DateTime<Utc>,
}

/// The files directly in a folder, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct FolderState {
    pub(super) files: BTreeMap<String, FolderFile>,
    /// Whether there is a folder with the name of that in which a chain has its head.
    pub(super) may_be_chain: bool,
}

impl FolderState {
    /// Lists the folder `key`.
    pub(super) async fn list(store: &Store, key: &str) -> Result<Self> {
        let listing = store.list_folder(key).await?;
        let to_named_file = |meta: object_store::ObjectMeta| {
            let file = FolderFile {
                e_tag: meta.e_tag,
                bytes: meta.size,
                modified: meta.last_modified,
            };
            Some((meta.location.filename()?.to_owned(), file))
        };
        let chain_head = path::join(key, CHAIN_HEAD);
        let head_folder = chain_head.rsplit_once('/').map(|(folder, _)| folder);
        let mut folders = listing.folders.iter();
        Ok(Self {
            may_be_chain: folders.any(|folder| Some(folder.as_str()) == head_folder),
            files: listing
                .files
                .into_iter()
                .filter_map(to_named_file)
                .collect(),
        })
    }

    /// The ETag of a file: None if the file is missing, empty if the listing has no ETags.
    pub(super) fn e_tag(&self, name: &str) -> Option<&str> {
        let file = self.files.get(name)?;
        Some(file.e_tag.as_deref().unwrap_or_default())
    }

    /// The ETag of the intent.
    pub(super) fn intent_e_tag(&self) -> Option<&str> {
        self.e_tag(INTENT)
    }

    /// Whether the marker exists.
    pub(super) fn is_marked(&self) -> bool {
        self.files.contains_key(SUCCESS)
    }

    /// Whether there are Parquet files with names that RFC-0008 does not give to parts.
    pub(super) fn has_foreign_parts(&self) -> bool {
        let mut names = self.files.keys();
        names.any(|name| is_parquet(name) && !is_part_name(name))
    }

    /// The versions of manifest, marker and Parquet files, by ETag.
    pub(super) fn base(&self) -> BaseVersions {
        let version = |name: &str| self.e_tag(name).map(str::to_owned);
        let version_of = |file: &FolderFile| file.e_tag.clone().unwrap_or_default();
        BaseVersions {
            manifest: version(MANIFEST),
            marker: version(SUCCESS),
            parts: self.parquet_files(version_of),
        }
    }

    /// As [`Self::base`] for local files, by the manifest's content and the files' lengths: a copy or a
    /// restored backup does not keep ETags.
    pub(super) fn base_by_content(&self, manifest: Option<&[u8]>) -> BaseVersions {
        BaseVersions {
            manifest: manifest.map(content_tag),
            marker: self.is_marked().then(String::new),
            parts: self.parquet_files(|file| file.bytes.to_string()),
        }
    }

    fn parquet_files(&self, version: impl Fn(&FolderFile) -> String) -> BTreeMap<String, String> {
        let files = self.files.iter().filter(|(name, _)| is_parquet(name));
        files
            .map(|(name, file)| (name.clone(), version(file)))
            .collect()
    }
}

/// Reads the manifest's bytes; None if it is missing or longer than a manifest may be.
pub(super) async fn read_manifest_bytes(store: &Store, key: &str) -> Result<Option<bytes::Bytes>> {
    let path = path::join(key, MANIFEST);
    let read = store.get_at_most(&path, GetOptions::default(), MAX_MANIFEST_BYTES);
    match read.await {
        Ok((bytes, _)) => Ok(Some(bytes)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::TooLarge) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The names of the parts that the folder's manifest lists; none if it is missing or corrupted.
pub(super) async fn read_listed_parts(store: &Store, key: &str) -> Result<Vec<String>> {
    let bytes = read_manifest_bytes(store, key).await?;
    let manifest = bytes.and_then(|bytes| DatasetManifest::from_json(&bytes).ok());
    Ok(manifest
        .filter(|manifest| manifest.check_parts().is_ok())
        .map(|manifest| manifest.parts)
        .unwrap_or_default())
}

/// Whether the object at `path` is exactly this part of the write `id`.
pub(super) async fn part_matches(
    store: &Store,
    path: &str,
    id: &str,
    part: &IntendedPart,
) -> Result<bool> {
    let opened = match open(store, path, TAIL_BYTES).await {
        Ok(opened) => opened.file,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PartCorrupted) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    Ok(opened.length == part.bytes
        && opened.seal.is_some_and(|seal| {
            let identity = &seal.identity;
            format!("{:032x}", identity.write_id) == id
                && (identity.task, identity.sequence) == (part.task, part.sequence)
        }))
}

/// Whether the file at `path` was written by pds: a Parquet file with a seal.
pub(super) async fn is_sealed(store: &Store, path: &str) -> Result<bool> {
    match open(store, path, TAIL_BYTES).await {
        Ok(opened) => Ok(opened.file.seal.is_some()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PartCorrupted) => Ok(false),
        Err(e) => Err(e),
    }
}

fn is_parquet(name: &str) -> bool {
    !name.starts_with(TEMP_PREFIX)
        && name
            .rsplit_once('.')
            .is_some_and(|(_, extension)| extension.eq_ignore_ascii_case("parquet"))
}

/// Whether a name is one that RFC-0008 gives to parts.
pub(super) fn is_part_name(name: &str) -> bool {
    let number = name
        .strip_prefix("part-")
        .and_then(|n| n.strip_suffix(".parquet"));
    name == "data.parquet"
        || number.is_some_and(|n| n.len() >= 5 && n.bytes().all(|b| b.is_ascii_digit()))
}
