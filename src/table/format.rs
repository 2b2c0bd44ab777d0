//! The objects of a table as bytes: pointer and manifest, JSON with stable field names.
//!
//! A reader refuses a newer `format` by name and ignores fields it does not know. Every value that
//! is written conditionally holds a random `commit_id`, so equal bytes never recur.

use std::collections::{BTreeMap, HashSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use roaring::RoaringBitmap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::names;
use crate::error::{Error, ErrorKind, Result};

/// The only format there is.
pub const FORMAT: u32 = 1;
/// How many commits back a manifest knows: a writer that finds its version vacuumed looks whether
/// it was its own.
pub const RECENT_COMMITS: usize = 64;
/// No table has so many versions, and JSON of other languages keeps such numbers exact.
pub(super) const MAX_VERSION: u64 = 1 << 53;
/// More bytes than this are no pointer.
pub(super) const MAX_POINTER_BYTES: u64 = 64 << 10;
/// More bytes than this are no manifest.
pub(super) const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// What identifies one commit: 128 random bits, as 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct CommitId(String);

impl TryFrom<String> for CommitId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl CommitId {
    /// The identity of these bits.
    pub fn new(bits: u128) -> Self {
        Self(format!("{bits:032x}"))
    }

    /// Checks what a user gives.
    pub fn parse(text: &str) -> Result<Self> {
        let is_hex_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() == 32 && text.bytes().all(is_hex_digit) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!(
            "commit_id must be 32 hexadecimal digits, not {text:?}"
        )))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `_latest_manifest`: which version is the newest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The format of this object.
    pub format: u32,
    /// The newest version.
    pub version: u64,
    /// Its commit.
    pub commit_id: CommitId,
    /// Its manifest, relative to the table.
    pub manifest: String,
    /// Versions before this one have been vacuumed.
    pub oldest_version: u64,
}

impl Pointer {
    /// The pointer at a manifest: the same bytes whoever makes them.
    pub fn for_manifest(manifest: &TableManifest) -> Self {
        Self {
            format: FORMAT,
            version: manifest.version,
            commit_id: manifest.commit_id.clone(),
            manifest: names::manifest(manifest.version),
            oldest_version: manifest.oldest_version,
        }
    }

    /// Its JSON.
    pub fn to_bytes(&self) -> Bytes {
        to_json(self)
    }

    /// Reads a pointer.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let pointer: Self = from_json(bytes, names::POINTER)?;
        let is_consistent = (1..=MAX_VERSION).contains(&pointer.version)
            && (1..=pointer.version).contains(&pointer.oldest_version)
            && pointer.manifest == names::manifest(pointer.version);
        if !is_consistent {
            let reason = "its version, manifest and oldest_version do not fit together";
            return Err(corrupted_error(names::POINTER, reason));
        }
        Ok(pointer)
    }
}

/// A moment in UTC, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimestampMicros(i64);

impl TimestampMicros {
    /// The moment of a time of day.
    pub fn new(time: DateTime<Utc>) -> Self {
        Self(time.timestamp_micros())
    }

    /// Microseconds after 1970.
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// A thousandth of a second later.
    #[must_use]
    pub fn next_millisecond(self) -> Self {
        Self(self.0.saturating_add(1000))
    }
}

impl Serialize for TimestampMicros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let time = DateTime::<Utc>::from_timestamp_micros(self.0).unwrap_or_default();
        serializer.serialize_str(&time.to_rfc3339_opts(SecondsFormat::Micros, true))
    }
}

impl<'de> Deserialize<'de> for TimestampMicros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        DateTime::parse_from_rfc3339(&text)
            .map(|time| Self(time.timestamp_micros()))
            .map_err(serde::de::Error::custom)
    }
}

/// One snapshot of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableManifest {
    /// The format of this object.
    pub format: u32,
    /// The snapshot's number, from 1.
    pub version: u64,
    /// The version it was made from.
    pub previous: Option<u64>,
    /// The commit that made it.
    pub commit_id: CommitId,
    /// Later than that of any version before.
    pub created_at: TimestampMicros,
    /// What was done.
    pub operation: CommitOperation,
    /// Columns by name and type, for people and other readers.
    pub schema: TableSchema,
    /// The exact Arrow schema: an IPC schema message.
    pub arrow_schema: Base64,
    /// The columns that identify a row.
    #[serde(default)]
    pub key: Vec<u32>,
    /// The columns that files are sorted by.
    #[serde(default)]
    pub sort_by: Vec<u32>,
    /// Lists of the older files, oldest first.
    #[serde(default)]
    pub segments: Vec<Segment>,
    /// The newest files.
    pub data_files: Vec<DataFile>,
    /// Deleted rows of the files.
    pub tombstones: Vec<Tombstones>,
    /// Versions before this one have been vacuumed.
    pub oldest_version: u64,
    /// Writers that began before this version have to begin again.
    pub gc_floor: u64,
    /// The last version that brought an older one back: what was planned before it was planned on
    /// other rows.
    #[serde(default)]
    pub restored_at: Option<u64>,
    /// The last version that brought older columns back: files written before may not fit them.
    #[serde(default)]
    pub columns_restored_at: Option<u64>,
    /// The last version that brought rows.
    #[serde(default)]
    pub added_at: Option<u64>,
    /// The commits of the versions before this one, newest first, the last [`RECENT_COMMITS`].
    #[serde(default)]
    pub recent_commits: Vec<CommitId>,
    /// Results of commits with an idempotency key, by key.
    #[serde(default)]
    pub transactions: BTreeMap<String, Transaction>,
    /// Versions that vacuum keeps, by name.
    #[serde(default)]
    pub tags: BTreeMap<String, u64>,
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitOperation {
    /// Its name: `append`, `delete`, …
    pub name: String,
    /// Counts and parameters.
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

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableSchema {
    /// In their order.
    pub columns: Vec<ColumnSchema>,
    /// The highest identity that was ever given.
    pub last_id: u32,
}

/// One column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnSchema {
    /// Stays the same when the column is renamed, and is never given again.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its Arrow type, as text.
    #[serde(rename = "type")]
    pub data_type: String,
}

/// A data file, with paths relative to the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataFile {
    /// Where it is.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
    /// The length of its Parquet footer, so that one request fetches it.
    pub footer_size: u64,
    /// Row groups.
    pub row_group_count: u64,
    /// Rows, deleted ones included.
    pub total_rows: u64,
    /// The smallest value by column identity; columns without exact bounds are missing.
    #[serde(default)]
    pub min: BTreeMap<u32, Value>,
    /// The largest.
    #[serde(default)]
    pub max: BTreeMap<u32, Value>,
    /// Nulls by column identity.
    #[serde(default)]
    pub null_counts: BTreeMap<u32, u64>,
    /// The names of its columns by identity, of a file that does not say the identities itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<BTreeMap<u32, String>>,
}

/// A list of data files that is an object of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Where it is.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
    /// How many files it lists.
    pub data_files: u32,
    /// Their rows, deleted ones included.
    pub total_rows: u64,
    /// The smallest value of all files by column identity; columns without exact bounds are missing.
    #[serde(default)]
    pub min: BTreeMap<u32, Value>,
    /// The largest.
    #[serde(default)]
    pub max: BTreeMap<u32, Value>,
    /// Nulls by column identity.
    #[serde(default)]
    pub null_counts: BTreeMap<u32, u64>,
    /// The files that are listed and have left the table since, by their places in the list.
    #[serde(default, skip_serializing_if = "PositionBitmap::is_empty")]
    pub removed: PositionBitmap,
}

/// Positions in a list, as a Roaring bitmap in its portable format.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PositionBitmap(pub RoaringBitmap);

impl PositionBitmap {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for PositionBitmap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        let result = self.0.serialize_into(&mut bytes);
        result.map_err(serde::ser::Error::custom)?;
        Base64(bytes.into()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PositionBitmap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Base64::deserialize(deserializer)?.0;
        let bitmap = RoaringBitmap::deserialize_from(&bytes[..]);
        bitmap.map(Self).map_err(serde::de::Error::custom)
    }
}

/// A tombstone file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tombstones {
    /// Where it is.
    pub path: String,
    /// Its length.
    pub size_bytes: u64,
    /// The data files it is about.
    pub files: Vec<String>,
    /// Rows it deletes; None where they were not counted.
    #[serde(default)]
    pub deleted_rows: Option<u64>,
}

/// The result of a commit that can be asked for again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transaction {
    /// The version it made.
    pub version: u64,
    /// The commit.
    pub commit_id: CommitId,
    /// When.
    pub created_at: TimestampMicros,
}

/// Bytes in JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64(pub Bytes);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
        Ok(Self(bytes.into()))
    }
}

impl TableManifest {
    /// Its JSON.
    pub fn to_bytes(&self) -> Bytes {
        to_json(self)
    }

    /// Reads the manifest of `version`.
    pub fn parse(bytes: &[u8], version: u64) -> Result<Self> {
        let name = names::manifest(version);
        let manifest: Self = from_json(bytes, &name)?;
        if manifest.version != version {
            let reason = format!("it says it is version {}", manifest.version);
            return Err(corrupted_error(&name, &reason));
        }
        match manifest.find_inconsistency() {
            Some(reason) => Err(corrupted_error(&name, &reason)),
            None => Ok(manifest),
        }
    }

    /// What no manifest of any version may say.
    fn find_inconsistency(&self) -> Option<String> {
        let valid_versions = 1..=self.version;
        let versions_fit = self.version <= MAX_VERSION
            && valid_versions.contains(&self.oldest_version)
            && self.gc_floor <= self.version
            && [self.restored_at, self.columns_restored_at, self.added_at]
                .iter()
                .flatten()
                .all(|at| valid_versions.contains(at))
            && self.previous == (self.version > 1).then(|| self.version - 1)
            && self.recent_commits.is_empty() == self.previous.is_none()
            && self.tags.values().all(|v| valid_versions.contains(v))
            && self
                .transactions
                .values()
                .all(|t| valid_versions.contains(&t.version));
        if !versions_fit {
            return Some("its version numbers do not fit together".to_owned());
        }
        let removes_too_many =
            |s: &&Segment| s.removed.0.max().is_some_and(|last| last >= s.data_files);
        if let Some(segment) = self.segments.iter().find(removes_too_many) {
            return Some(format!(
                "it removes more of {:?} than it lists",
                segment.path
            ));
        }
        let mut paths = HashSet::new();
        for path in self.references() {
            if !names::is_inside(path) {
                return Some(format!("it names {path:?}, which is elsewhere"));
            }
            if !paths.insert(path) {
                return Some(format!("it names {path:?} twice"));
            }
        }
        None
    }

    /// Every object the manifest names; what its segments list comes in addition.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        let data = self.data_files.iter().map(|f| f.path.as_str());
        let segments = self.segments.iter().map(|s| s.path.as_str());
        let tombstones = self.tombstones.iter().map(|t| t.path.as_str());
        data.chain(segments).chain(tombstones)
    }

    /// The commit that made a version, if this snapshot still knows.
    pub fn commit_id_of(&self, version: u64) -> Option<&CommitId> {
        match self.version.checked_sub(version)? {
            0 => Some(&self.commit_id),
            back => self.recent_commits.get(usize::try_from(back - 1).ok()?),
        }
    }

    /// The oldest version whose commit this snapshot knows.
    pub(super) fn oldest_known_version(&self) -> u64 {
        self.version
            .saturating_sub(self.recent_commits.len() as u64)
            .max(1)
    }

    /// Whether a reader may still ask for a version.
    pub fn retains(&self, version: u64) -> bool {
        (self.oldest_version..=self.version).contains(&version)
            || self.tags.values().any(|tagged| *tagged == version)
    }
}

#[derive(Deserialize)]
struct FormatHeader {
    format: u32,
}

fn to_json(value: &impl Serialize) -> Bytes {
    // Plain data into memory cannot fail.
    serde_json::to_vec(value).unwrap_or_default().into()
}

fn from_json<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    let decode_error =
        |e: serde_json::Error| corrupted_error(name, "it cannot be read").with_source(e);
    let header: FormatHeader = serde_json::from_slice(bytes).map_err(decode_error)?;
    if header.format > FORMAT {
        let message = format!(
            "{name} has format {}, this version of pds knows {FORMAT}; upgrade pds",
            header.format
        );
        return Err(Error::new(ErrorKind::FormatNotSupported, message));
    }
    serde_json::from_slice(bytes).map_err(decode_error)
}

pub(super) fn corrupted_error(name: &str, reason: &str) -> Error {
    Error::new(
        ErrorKind::ManifestCorrupted,
        format!("{name} cannot be used: {reason}"),
    )
    .with_detail(reason)
}
