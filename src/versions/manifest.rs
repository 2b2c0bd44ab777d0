//! What every manifest has ([`ManifestHeader`]), whatever else it lists: who committed it, and what is retained.
//!
//! A manifest type implements [`Versioned`]; [`Folder`](super::Folder) and all that commits are generic over it. Its JSON has the
//! fields of the header beside its own. Every value that is written conditionally holds a random `commit_id`, so the
//! same bytes never recur.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::commit_id::{CommitId, TimestampMicros};
use super::names;
use crate::error::{Error, ErrorKind, Result, corrupted_error};

/// The number of earlier commits that a manifest lists: a writer whose version has been vacuumed learns
/// from it whether the commit was its own.
pub(super) const RECENT_COMMITS: usize = 64;
/// The highest valid version, which JSON numbers of other languages represent exactly.
pub(super) const MAX_VERSION: u64 = 1 << 53;
/// The maximum size of a manifest.
pub(super) const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// The manifest of one version of something that is committed by compare-and-swap.
pub trait Versioned:
    Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// The limits of its lists.
    type Limits: Copy + std::fmt::Debug + Default + Send + Sync;

    /// What errors call that which has versions, such as "table".
    const NOUN: &'static str;
    /// The format that is written; older ones are read.
    const FORMAT: u32;

    /// The first inconsistency between fields, if there is one.
    fn find_inconsistency(&self) -> Option<String>;

    /// The first path that leaves the folder, or that it references twice, as an inconsistency.
    fn find_bad_reference(&self) -> Option<String> {
        let mut paths = HashSet::new();
        for path in self.references() {
            if !names::is_inside(path) {
                let noun = Self::NOUN;
                return Some(format!("it references a path outside the {noun}: {path:?}"));
            }
            if !paths.insert(path) {
                return Some(format!("it references {path:?} twice"));
            }
        }
        None
    }

    /// Parses the manifest of `version` and checks that its fields fit together.
    fn parse(bytes: &[u8], version: u64) -> Result<Self> {
        let name = names::manifest(version);
        let manifest: Self = from_json(bytes, &name, Self::FORMAT, Some(Self::NOUN))?;
        let own_version = manifest.header().version;
        if own_version != version {
            let reason = format!("expected version {version}, found {own_version}");
            return Err(corrupted_error(&name, &reason));
        }
        match manifest.find_inconsistency() {
            Some(reason) => Err(corrupted_error(&name, &reason)),
            None => Ok(manifest),
        }
    }

    /// Encodes the manifest as JSON.
    fn to_bytes(&self) -> Bytes {
        to_json(self)
    }

    /// The fields that every manifest has.
    fn header(&self) -> ManifestHeader<'_>;

    /// As [`Self::header`], to be changed.
    fn header_mut(&mut self) -> ManifestHeaderMut<'_>;

    /// The limits of idempotency keys.
    fn transaction_limits(limits: &Self::Limits) -> TransactionLimits;

    /// Completes a manifest that was read in an older format, before it is written in the newest.
    fn upgrade(&mut self);

    /// The paths of all objects that the manifest itself names.
    fn references(&self) -> impl Iterator<Item = &str>;
}

/// The limits of idempotency keys and of the lists of older ones.
#[derive(Debug, Clone, Copy)]
pub struct TransactionLimits {
    /// The maximum number of commits with an idempotency key that a manifest lists.
    pub max_inline: usize,
    /// The maximum number of older ones in one list.
    pub max_listed: usize,
    /// The number of neighboring lists that are merged into one.
    pub merge_factor: usize,
}

impl Default for TransactionLimits {
    fn default() -> Self {
        Self {
            max_inline: 128,
            max_listed: 1024,
            merge_factor: 8,
        }
    }
}

/// The fields that every manifest has.
#[derive(Debug, Clone, Copy)]
pub struct ManifestHeader<'a> {
    /// The format of the manifest.
    pub format: u32,
    /// The number of the version, from 1.
    pub version: u64,
    /// The version that it was created from; None for version 1.
    pub previous: Option<u64>,
    /// The commit that created it.
    pub commit_id: &'a CommitId,
    /// The time of the commit, later than that of any version before.
    pub created_at: TimestampMicros,
    /// What the commit did.
    pub operation: &'a CommitOperation,
    /// Versions before this one have been vacuumed, except tagged ones.
    pub oldest_version: u64,
    /// Writers that started before this version must start again: their files may have been removed.
    pub gc_floor: u64,
    /// The commits of the versions before this one, newest first, at most 64.
    pub recent_commits: &'a [CommitId],
    /// The newest commits with an idempotency key, by key.
    pub transactions: &'a BTreeMap<String, Transaction>,
    /// The lists of the older ones, oldest first.
    pub older_transactions: &'a [TransactionList],
    /// The versions that vacuum keeps, by tag.
    pub tags: &'a BTreeMap<String, u64>,
}

/// The fields of [`ManifestHeader`], to be changed.
#[derive(Debug)]
#[expect(missing_docs, reason = "they are those of `ManifestHeader`")]
pub struct ManifestHeaderMut<'a> {
    pub format: &'a mut u32,
    pub version: &'a mut u64,
    pub previous: &'a mut Option<u64>,
    pub commit_id: &'a mut CommitId,
    pub created_at: &'a mut TimestampMicros,
    pub operation: &'a mut CommitOperation,
    pub oldest_version: &'a mut u64,
    pub gc_floor: &'a mut u64,
    pub recent_commits: &'a mut Vec<CommitId>,
    pub transactions: &'a mut BTreeMap<String, Transaction>,
    pub older_transactions: &'a mut Vec<TransactionList>,
    pub tags: &'a mut BTreeMap<String, u64>,
}

/// The header of a manifest that has a field for each field of [`ManifestHeader`], in an implementation of
/// [`Versioned`]. One struct that is flattened into all manifests would move these fields in the JSON.
macro_rules! header_by_fields {
    () => {
        fn header(&self) -> $crate::versions::ManifestHeader<'_> {
            $crate::versions::ManifestHeader {
                format: self.format,
                version: self.version,
                previous: self.previous,
                commit_id: &self.commit_id,
                created_at: self.created_at,
                operation: &self.operation,
                oldest_version: self.oldest_version,
                gc_floor: self.gc_floor,
                recent_commits: &self.recent_commits,
                transactions: &self.transactions,
                older_transactions: &self.older_transactions,
                tags: &self.tags,
            }
        }

        fn header_mut(&mut self) -> $crate::versions::ManifestHeaderMut<'_> {
            $crate::versions::ManifestHeaderMut {
                format: &mut self.format,
                version: &mut self.version,
                previous: &mut self.previous,
                commit_id: &mut self.commit_id,
                created_at: &mut self.created_at,
                operation: &mut self.operation,
                oldest_version: &mut self.oldest_version,
                gc_floor: &mut self.gc_floor,
                recent_commits: &mut self.recent_commits,
                transactions: &mut self.transactions,
                older_transactions: &mut self.older_transactions,
                tags: &mut self.tags,
            }
        }
    };
}
pub(crate) use header_by_fields;

/// What a commit did, for the history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitOperation {
    /// The name of the operation: `append`, `delete`, …
    pub name: String,
    /// Counts and parameters, by name.
    #[serde(flatten)]
    pub details: BTreeMap<String, Value>,
}

impl CommitOperation {
    /// An operation with its details.
    pub fn new<const N: usize>(name: &str, details: [(&str, Value); N]) -> Self {
        Self {
            name: name.to_owned(),
            details: details.map(|(k, v)| (k.to_owned(), v)).into(),
        }
    }
}

/// A commit with an idempotency key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The version that the commit created.
    pub version: u64,
    /// The id of the commit.
    pub commit_id: CommitId,
    /// The time of the commit.
    pub created_at: TimestampMicros,
}

/// A list of older commits with an idempotency key, in an object of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionList {
    /// The path relative to the folder.
    pub path: String,
    /// The size of the object in bytes.
    pub size_bytes: u64,
    /// The number of commits that it lists.
    pub transactions: u32,
    /// The newest version that one of them created.
    pub last_version: u64,
}

impl<'a> ManifestHeader<'a> {
    /// Whether the numbers of versions fit together.
    pub fn has_valid_versions(&self) -> bool {
        let valid_versions = 1..=self.version;
        let transactions = self.transactions.values().map(|t| t.version);
        let lists = self.older_transactions.iter().map(|l| l.last_version);
        let tags = self.tags.values().copied();
        self.version <= MAX_VERSION
            && valid_versions.contains(&self.oldest_version)
            && self.gc_floor <= self.version
            && self.previous == (self.version > 1).then(|| self.version - 1)
            && self.recent_commits.is_empty() == self.previous.is_none()
            && transactions
                .chain(lists)
                .chain(tags)
                .all(|version| valid_versions.contains(&version))
    }

    /// The commit that created a version, if the retained commit history reaches back to it.
    pub fn commit_id_of(&self, version: u64) -> Option<&'a CommitId> {
        match self.version.checked_sub(version)? {
            0 => Some(self.commit_id),
            back => self.recent_commits.get(usize::try_from(back - 1).ok()?),
        }
    }

    /// The oldest version whose commit the retained commit history holds.
    pub(super) fn oldest_known_version(&self) -> u64 {
        self.version
            .saturating_sub(self.recent_commits.len() as u64)
            .max(1)
    }

    /// Whether a version can still be read: it has not been vacuumed, or it is tagged.
    pub fn retains(&self, version: u64) -> bool {
        (self.oldest_version..=self.version).contains(&version)
            || self.tags.values().any(|tagged| *tagged == version)
    }
}

#[derive(Deserialize)]
struct FormatHeader {
    format: u32,
    /// What has versions, if not a table.
    kind: Option<String>,
}

/// Encodes a pointer or a manifest.
pub(super) fn to_json(value: &impl Serialize) -> Bytes {
    // Serializing plain data into memory cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Parses a pointer, or the manifest of a `noun`; refuses that of something else, and a format above `newest_format`,
/// and ignores unknown fields.
pub(super) fn from_json<T: DeserializeOwned>(
    bytes: &[u8],
    name: &str,
    newest_format: u32,
    noun: Option<&str>,
) -> Result<T> {
    let decode_error =
        |e: serde_json::Error| corrupted_error(name, "it cannot be parsed").with_source(e);
    let header: FormatHeader = serde_json::from_slice(bytes).map_err(decode_error)?;
    let kind = header.kind.as_deref().unwrap_or("table");
    if let Some(noun) = noun
        && noun != kind
    {
        let message = format!("this is the folder of a {kind}, not of a {noun}");
        return Err(Error::new(ErrorKind::InvalidPath, message));
    }
    if header.format > newest_format {
        let message = format!(
            "{name} has format {}, but this version of pds supports only {newest_format}; upgrade pds",
            header.format
        );
        return Err(Error::new(ErrorKind::FormatNotSupported, message));
    }
    serde_json::from_slice(bytes).map_err(decode_error)
}
