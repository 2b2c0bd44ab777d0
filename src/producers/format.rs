//! The format of a pipeline's manifests ([`PipelineManifest`]): JSON with stable names.
//!
//! A reader refuses a newer `format` ([`ErrorKind::FormatNotSupported`]) and ignores unknown fields. Values that do not
//! fit together are refused ([`ErrorKind::ManifestCorrupted`]). Paths are relative to the pipeline's folder.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::files::EncodedSchema;
use crate::run::SortedRun;
use crate::versions::{
    CommitId, CommitOperation, Folder, ListWriter, RollLists, TimestampMicros, Transaction,
    TransactionLimits, TransactionList, Versioned, header_by_fields, roll_transactions,
};

/// The format version that is written.
const FORMAT: u32 = 1;

/// One snapshot of a pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PipelineManifest {
    /// The format of this object.
    pub format: u32,
    /// `pipeline`.
    pub kind: String,
    /// The number of the version, from 1.
    pub version: u64,
    /// The version that it was created from; None for version 1.
    pub previous: Option<u64>,
    /// The commit that created it.
    pub commit_id: CommitId,
    /// The time of the commit, later than that of any version before.
    pub created_at: TimestampMicros,
    /// What the commit did.
    pub operation: CommitOperation,
    /// The last version that an update made; 0 without one. Compactions and tags change no data.
    pub data_version: u64,
    /// The sources and stages; a stage comes after those that feed it.
    pub nodes: Vec<NodeEntry>,
    /// Versions before this one have been vacuumed, except tagged ones.
    pub oldest_version: u64,
    /// Writers that started before this version must start again: their files may have been removed.
    pub gc_floor: u64,
    /// The commits of the versions before this one, newest first, at most 64.
    #[serde(default)]
    pub recent_commits: Vec<CommitId>,
    /// The newest commits with an idempotency key, by key.
    #[serde(default)]
    pub transactions: BTreeMap<String, Transaction>,
    /// The lists of the older ones, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older_transactions: Vec<TransactionList>,
    /// The sources and stages that were removed, with the version of the function; 0 for a source.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removed: BTreeMap<String, u64>,
    /// The versions that vacuum keeps, by tag.
    #[serde(default)]
    pub tags: BTreeMap<String, u64>,
    /// Whether it is a preview, which no commit has made. It is never stored.
    #[serde(skip)]
    pub is_preview: bool,
}

/// A source or a stage in one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// The name.
    pub name: String,
    /// The names of its feeders, in the order of their values; none for a source.
    #[serde(default)]
    pub feeders: Vec<String>,
    /// Whether its function gets the values of each feeder apart.
    #[serde(default)]
    pub join: bool,
    /// The Arrow types of `key` and `value`, as text.
    pub types: [String; 2],
    /// The exact fields `key` and `value`: an IPC schema message.
    pub arrow_schema: EncodedSchema,
    /// Whether the greatest key comes first.
    #[serde(default)]
    pub descending: bool,
    /// Whether keys whose rows stay the same are left out of updates.
    #[serde(default)]
    pub skip_unchanged: bool,
    /// The order of the values of a key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_by: Option<ValueOrder>,
    /// What else defines it: the version of the function, the operator and its options.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub definition: BTreeMap<String, Value>,
    /// The digests of the function by what compiled it, such as `python3.12`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub function_digests: BTreeMap<String, String>,
    /// The runs of a source's rows or of a stage's content, newest first.
    #[serde(default)]
    pub content: Vec<StoredRun>,
    /// The runs of a stage's key mappings, newest first.
    #[serde(default)]
    pub mappings: Vec<StoredRun>,
    /// The keys that the last data version changed, as `key` and `type`.
    #[serde(default)]
    pub update: Option<StoredRun>,
    /// The state of the hook that preserves values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Value>,
    /// What it has read of a table that feeds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumed: Option<ConsumedInput>,
}

/// The order of the values of a key. Nulls are last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueOrder {
    /// The expressions, as SQL.
    pub by: Vec<String>,
    /// Whether the greatest value comes first.
    #[serde(default)]
    pub descending: bool,
}

/// How far a source has read another table or pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsumedInput {
    /// Where it is.
    pub location: String,
    /// The version that was read last.
    pub version: u64,
    /// The commit that made this version.
    pub commit_id: String,
    /// The ids of the columns that were read, those of the key first.
    #[serde(default)]
    pub columns: Vec<u32>,
}

/// A sorted run of one of the tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredRun {
    /// The id, which compactions find it by.
    pub id: String,
    /// Whether it has the column `op`.
    #[serde(default)]
    pub has_deletes: bool,
    /// The files, with paths relative to the pipeline's folder.
    #[serde(flatten)]
    pub files: SortedRun,
}

impl StoredRun {
    /// The size of the files in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.files.size_bytes()
    }

    /// The names of the files.
    pub(super) fn file_names(&self) -> impl Iterator<Item = String> {
        self.files.files.iter().map(|file| file.name.clone())
    }
}

impl NodeEntry {
    /// The runs of all its tables.
    pub fn runs(&self) -> impl Iterator<Item = &StoredRun> {
        self.content
            .iter()
            .chain(&self.mappings)
            .chain(&self.update)
    }
}

impl PipelineManifest {
    /// The pipeline before its first version: it has nothing.
    pub(super) fn empty(commit_id: CommitId, created_at: TimestampMicros) -> Self {
        Self {
            format: FORMAT,
            kind: Self::NOUN.to_owned(),
            version: 0,
            previous: None,
            commit_id,
            created_at,
            operation: CommitOperation::new("create", []),
            data_version: 0,
            nodes: Vec::new(),
            oldest_version: 1,
            gc_floor: 0,
            recent_commits: Vec::new(),
            transactions: BTreeMap::new(),
            older_transactions: Vec::new(),
            removed: BTreeMap::new(),
            tags: BTreeMap::new(),
            is_preview: false,
        }
    }

    /// As [`Self::empty`], with an id and a time of the pipeline's store.
    pub(super) fn empty_of(pipeline: &Folder<Self>) -> Self {
        let clock = pipeline.store().clock();
        let now = TimestampMicros::new(clock.now());
        Self::empty(CommitId::new(clock.new_id()), now)
    }

    /// The version that has to be there for its rows to be: itself; of a preview, which has the number of a version that
    /// others may make, the one that it was made from.
    pub(super) fn retained_version(&self) -> u64 {
        self.previous.unwrap_or(0) + 1
    }

    /// The version in the names of the runs that a preview wrote; None of a version that was committed.
    pub(super) fn preview_base(&self) -> Option<u64> {
        self.is_preview.then(|| self.version.saturating_sub(1))
    }

    /// The source or stage of this name.
    pub fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// As [`Self::node`]; [`ErrorKind::NotFound`] if there is none.
    pub(super) fn find_node(&self, name: &str) -> Result<&NodeEntry> {
        self.node(name).ok_or_else(|| {
            let names: Vec<&String> = self.nodes.iter().map(|node| &node.name).collect();
            let message = format!("there is no source or stage {name:?}; there are {names:?}");
            Error::new(ErrorKind::NotFound, message)
        })
    }
}

impl Versioned for PipelineManifest {
    type Limits = TransactionLimits;

    const NOUN: &'static str = "pipeline";
    const FORMAT: u32 = FORMAT;

    fn find_inconsistency(&self) -> Option<String> {
        if !self.header().has_valid_versions() || self.data_version > self.version {
            return Some("its version numbers do not fit together".to_owned());
        }
        let mut known: HashSet<&str> = HashSet::new();
        for node in &self.nodes {
            let name = &node.name;
            if let Some(feeder) = node.feeders.iter().find(|f| !known.contains(f.as_str())) {
                return Some(format!(
                    "{name:?} is fed by {feeder:?}, which is not before it"
                ));
            }
            if !known.insert(name) {
                return Some(format!("it has {name:?} twice"));
            }
            if let Some(run) = node.runs().find(|run| run.files.files.is_empty()) {
                return Some(format!("run {:?} of {name:?} has no file", run.id));
            }
        }
        let runs = || self.nodes.iter().flat_map(NodeEntry::runs);
        let files = || runs().flat_map(|run| &run.files.files);
        if !can_be_summed(files().map(|file| file.rows))
            || !can_be_summed(files().map(|file| file.size_bytes))
        {
            return Some("its files have more rows or bytes than can be".to_owned());
        }
        self.find_bad_reference()
    }

    header_by_fields!();

    fn transaction_limits(limits: &TransactionLimits) -> TransactionLimits {
        *limits
    }

    /// There is no older format.
    fn upgrade(&mut self) {}

    fn references(&self) -> impl Iterator<Item = &str> {
        let runs = self.nodes.iter().flat_map(NodeEntry::runs);
        let files = runs.flat_map(|run| run.files.files.iter().map(|file| file.name.as_str()));
        let lists = self.older_transactions.iter();
        files.chain(lists.map(|list| list.path.as_str()))
    }
}

/// Whether numbers of rows or bytes have a sum that leaves room to add what an update writes.
fn can_be_summed(mut numbers: impl Iterator<Item = u64>) -> bool {
    let sum = numbers.try_fold(0, u64::checked_add);
    sum.is_some_and(|sum| i64::try_from(sum).is_ok())
}

impl RollLists for PipelineManifest {
    async fn roll_lists(
        &mut self,
        lists: &mut ListWriter,
        folder: &Folder<Self>,
        base: &Self,
    ) -> Result<()> {
        roll_transactions(lists, folder, base, self).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn more_rows_or_bytes_than_can_be_are_refused() {
        let find_inconsistency = |rows: [u64; 2], bytes: [u64; 2]| {
            let file = |at: usize| {
                json!({
                    "name": format!("run/{at}.parquet"), "size_bytes": bytes[at], "footer_size": 9, "index_size": 9,
                    "rows": rows[at], "first": [1], "last": [1],
                })
            };
            let node = json!({
                "name": "s", "types": ["Int64", "Int64"], "arrow_schema": "",
                "content": [{"id": "a", "files": [file(0)]}, {"id": "b", "files": [file(1)]}],
            });
            let created_at = TimestampMicros::new(chrono::DateTime::<chrono::Utc>::UNIX_EPOCH);
            let mut manifest = PipelineManifest::empty(CommitId::new(1), created_at);
            manifest.version = 1;
            manifest.nodes.push(serde_json::from_value(node).unwrap());
            manifest.find_inconsistency()
        };
        let most = u64::try_from(i64::MAX).unwrap();
        assert_eq!(find_inconsistency([1, 2], [3, 4]), None);
        assert_eq!(find_inconsistency([most - 1, 1], [1, most - 1]), None);
        for (rows, bytes) in [
            ([most, 1], [1, 1]),
            ([u64::MAX, 1], [1, 1]),
            ([1, 1], [u64::MAX, u64::MAX]),
        ] {
            let reason = find_inconsistency(rows, bytes).unwrap();
            assert!(reason.contains("more rows or bytes"), "{reason}");
        }
    }
}
