//! RFC-0008 datasets: parts, `manifest.json`, `_SUCCESS`; whole or not there.
//!
//! Writing is two steps. [`prepare`] encodes parts and leaves them where no reader sees them.
//! [`publish`] makes them the dataset in a handful of small requests, under an intent
//! (`_publish.json`, created if absent) that excludes a second publisher and is the redo log: the next
//! call that may write finishes a publish that a crash cut off, or puts the old dataset back. [`read`] returns one
//! dataset or an error, never a mixture: parts carry the identity of their write, and manifest and
//! marker are compared again after the last byte.
//!
//! Names in a dataset's folder: `data.parquet` or `part-NNNNN.parquet`, `manifest.json`,
//! `_SUCCESS`; while a write is under way or after a crash also `_publish.json` and `.pds-…`.

mod acquire;
mod activity;
mod clean;
mod delete;
mod folder;
mod intent;
mod lease;
mod manage;
mod manifest;
mod open;
mod part_locations;
mod prepare;
mod publish;
mod publish_parts;
mod read;
mod recover;
mod register;
mod removal;
mod roll_back;
mod scan;
mod steps;
mod without_cas;

use std::collections::BTreeMap;

use arrow_array::RecordBatchReader;
use serde::{Deserialize, Serialize};

pub use self::clean::{DatasetCleanup, clean};
pub use self::delete::delete;
pub use self::manage::{DatasetVerification, exists, list, verify};
pub use self::manifest::DatasetManifest;
pub use self::open::{PartEntry, PartIndex};
pub use self::prepare::{WriteTask, abort, abort_all, prepare};
pub use self::publish::publish;
pub use self::read::{DatasetBatches, read, read_manifest};
pub use self::scan::{OpenDataset, index_parts, open as open_dataset, scan, scan_part};
use crate::error::{Error, ErrorKind, Result};
use crate::parquet::options::WriteOptions;
pub use crate::part::BatchStream;
use crate::store::local::TEMP_PREFIX;
use crate::store::stage::StagedWrite;
use crate::store::{Store, path};

/// The completion marker.
pub const SUCCESS: &str = "_SUCCESS";
/// The manifest's name.
pub const MANIFEST: &str = "manifest.json";
/// The intent of a publish that is under way.
pub const INTENT: &str = "_publish.json";

/// What parts are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// One `data.parquet`.
    Single,
    /// `part-00000.parquet` and on.
    Numbered,
}

impl Layout {
    fn part_name(self, index: usize) -> String {
        match self {
            Self::Single => "data.parquet".to_owned(),
            Self::Numbered => format!("part-{index:05}.parquet"),
        }
    }
}

/// One write of one dataset: checked arguments and identity, the same in every process that takes
/// part.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_field_names,
    reason = "write_id is its name in the format"
)]
pub struct DatasetWrite {
    /// The folder.
    pub key: String,
    /// Whether an existing dataset is replaced.
    pub overwrite: bool,
    /// For the manifest.
    pub run_id: Option<String>,
    /// For the manifest.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Names of parts.
    pub layout: Layout,
    /// Random, in every part.
    pub write_id: u128,
    /// For manifest and parts.
    pub created_at: String,
    /// Codec, sizes, memory.
    pub options: WriteOptions,
}

/// A part that waits to be published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedPart {
    /// Where its bytes are.
    pub staged: StagedWrite,
    /// Rows.
    pub rows: u64,
    /// Bytes.
    pub bytes: u64,
    /// The task that wrote it.
    pub task: u64,
    /// Its number among its task's parts.
    pub sequence: u64,
    /// Whether it is its task's last.
    pub last: bool,
}

impl DatasetWrite {
    /// Stands for the process in the names of hidden files that another process publishes.
    fn shared_tag(&self) -> String {
        format!("w{:032x}", self.write_id)
    }

    /// A write of `key`, checked as far as that goes without a request.
    pub fn new(
        store: &Store,
        key: &str,
        overwrite: bool,
        layout: Layout,
        options: WriteOptions,
    ) -> Result<Self> {
        check_key(key)?;
        check_capabilities(store, key, overwrite)?;
        let created_at = store
            .clock()
            .now()
            .format("%Y-%m-%dT%H:%M:%S%.6f+00:00")
            .to_string();
        Ok(Self {
            key: key.to_owned(),
            overwrite,
            run_id: None,
            metadata: None,
            layout,
            write_id: store.clock().new_id(),
            created_at,
            options,
        })
    }

    /// As [`DatasetWrite::new`], and checked that no dataset is there unless it may be replaced. Nothing is
    /// changed.
    pub async fn begin(
        store: &Store,
        key: &str,
        overwrite: bool,
        layout: Layout,
        options: WriteOptions,
    ) -> Result<Self> {
        let write = Self::new(store, key, overwrite, layout, options)?;
        write.check_absent(store).await?;
        Ok(write)
    }

    async fn check_absent(&self, store: &Store) -> Result<()> {
        if !self.overwrite && exists(store, &self.key).await? {
            return Err(already_exists_error(&self.key));
        }
        Ok(())
    }
}

/// Writes `input` as a dataset. `small` says that it stays in memory until it is published: then
/// nobody asks before that whether a dataset is there.
pub async fn write(
    store: &Store,
    write: &DatasetWrite,
    task: WriteTask,
    input: Box<dyn RecordBatchReader + Send>,
    small: bool,
    schema_hash: &str,
) -> Result<DatasetManifest> {
    if !small {
        write.check_absent(store).await?;
    }
    let parts = prepare(store, write, task, input).await?;
    publish(store, write, parts, schema_hash).await
}

fn check_capabilities(store: &Store, key: &str, overwrite: bool) -> Result<()> {
    if overwrite && !store.capabilities().delete {
        let message =
            format!("write_dataset with overwrite=True requires the DELETE capability for {key:?}");
        return Err(Error::new(ErrorKind::CapabilityNotSupported, message)
            .with_detail("delete")
            .with_path(key));
    }
    Ok(())
}

fn already_exists_error(key: &str) -> Error {
    let message = format!("a dataset already exists at {key:?}; overwrite=True replaces it");
    Error::new(ErrorKind::AlreadyExists, message).with_path(key)
}

fn incomplete_error(key: &str, reason: &str) -> Error {
    Error::new(
        ErrorKind::DatasetIncomplete,
        format!("the dataset at {key:?} is incomplete: {reason}"),
    )
    .with_path(key)
}

/// Whether a name is one of a dataset's own files, which no part has.
fn is_reserved(name: &str) -> bool {
    [SUCCESS, MANIFEST, INTENT].contains(&name)
}

/// The key of a dataset: a path, not the root, and no name of a dataset's own files.
pub fn check_key(key: &str) -> Result<()> {
    if matches!(key, "" | "." | "/") {
        let message = format!("{key:?} is the store's root; a dataset needs a key of its own");
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(key));
    }
    path::parse(key)?;
    let is_own_name = |s: &str| is_reserved(s) || s.starts_with(TEMP_PREFIX);
    if let Some(name) = key.split('/').find(|s| is_own_name(s)) {
        let message = format!("key {key:?} holds {name:?}, a name of a dataset's own files");
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(key));
    }
    path::parse(&path::join(key, INTENT)).map(drop)
}

/// Reads an intent that anybody may have written.
#[cfg(feature = "testing")]
pub(crate) fn parse_intent(key: &str, bytes: &[u8]) {
    let _ = intent::Intent::parse(key, bytes);
}
