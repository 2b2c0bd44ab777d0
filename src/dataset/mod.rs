//! RFC-0008 datasets: folders of Parquet parts with a manifest and a marker, published and replaced as a whole.
//!
//! A write has two steps. [`prepare`] encodes the input into staged parts, which no reader sees. [`publish`] makes
//! them the dataset in a handful of small requests, under an intent (`_publish.json`, created if absent) that excludes
//! a second publisher and is the redo log: after a crash the next call that may write finishes the publish or puts the
//! old dataset back. `docs/publish.md` describes the protocol, `docs/format.md` the files.
//!
//! [`read`] returns one dataset or an error, never a mixture: parts carry the identity of their write. For parts
//! without it, manifest and marker are compared again after the last byte.
//!
//! Errors: [`ErrorKind::AlreadyExists`] for a write without `overwrite` where a dataset exists;
//! [`ErrorKind::DatasetIncomplete`] for a folder without a whole dataset, [`ErrorKind::ManifestCorrupted`] and
//! [`ErrorKind::PartCorrupted`] for files that are not what was written; [`ErrorKind::Fenced`] for a write that another
//! writer has replaced; [`ErrorKind::Locked`] after too long a wait for another publisher.
//!
//! Names in a dataset's folder: `data.parquet` or `part-NNNNN.parquet`, `manifest.json`, `_SUCCESS`; during a write or
//! after a crash also `_publish.json` and `.pds-…`.

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
mod row_filter;
mod scan;
mod steps;
mod without_cas;

use std::collections::BTreeMap;

use arrow_array::RecordBatchReader;
use futures::future::try_join;
use serde::{Deserialize, Serialize};

pub use self::clean::{DatasetCleanup, clean};
pub use self::delete::delete;
pub use self::manage::{DatasetVerification, exists, list, verify};
pub use self::manifest::DatasetManifest;
pub use self::open::{PartEntry, PartIndex};
pub use self::prepare::{WriteTask, abort, abort_all, prepare};
pub use self::publish::publish;
pub use self::read::{DatasetBatches, read, read_manifest};
pub use self::scan::{
    OpenDataset, PartSelection, index_parts, open as open_dataset, scan, scan_part,
};
use crate::error::{Error, ErrorKind, Result};
pub use crate::files::expr::Predicate;
pub use crate::files::{BatchStream, FileShare};
use crate::parquet::options::WriteOptions;
use crate::store::staged_write::StagedWrite;
use crate::store::temp_name::TEMP_PREFIX;
use crate::store::{Store, path};
use crate::sync::in_place::in_place;
use crate::versions::names::POINTER;

/// The name of the marker, an empty object that says that the dataset is complete.
pub const SUCCESS: &str = "_SUCCESS";
/// The name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// The name of the intent, which exists during a publish and after a crash.
pub const INTENT: &str = "_publish.json";
/// The greatest length of a manifest.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// How parts are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// One part, `data.parquet`.
    Single,
    /// `part-00000.parquet`, `part-00001.parquet` and so on.
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

/// One write of one dataset: its checked arguments and its identity, the same in every process that
/// takes part in it.
#[derive(Debug, Clone)]
pub struct DatasetWrite {
    /// The folder of the dataset.
    pub key: String,
    /// Whether an existing dataset is replaced.
    pub overwrite: bool,
    /// The field `run_id` of the manifest.
    pub run_id: Option<String>,
    /// The field `metadata` of the manifest.
    pub metadata: Option<BTreeMap<String, String>>,
    /// How parts are named.
    pub layout: Layout,
    /// The random identity of the write, recorded in every part.
    pub write_id: u128,
    /// When the write began, ISO 8601 in UTC; recorded in the manifest and in every part.
    pub created_at: String,
    /// Codec, rows of row groups and files, memory limit.
    pub options: WriteOptions,
}

/// A staged part: written, and invisible until it is published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StagedPart {
    /// Where its bytes are.
    pub staged: StagedWrite,
    /// Number of rows.
    pub rows: u64,
    /// Length of the file.
    pub bytes: u64,
    /// Number of the task that wrote it.
    pub task: u64,
    /// Its number among its task's parts, from 0.
    pub sequence: u64,
    /// Whether it is the last part of its task.
    pub last: bool,
    /// The identifier of its write.
    pub write_id: u128,
    /// A hash of its columns: the same for parts of one dataset.
    pub columns_hash: u64,
}

impl DatasetWrite {
    /// The tag of hidden files that another process publishes, in the place of a process's tag.
    fn shared_tag(&self) -> String {
        format!("w{:032x}", self.write_id)
    }

    /// A write of `key`, checked as far as that goes without a request.
    ///
    /// [`ErrorKind::InvalidPath`] where [`check_key`] refuses the key; [`ErrorKind::CapabilityNotSupported`] for an
    /// overwrite in a store that cannot delete.
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

    /// As [`DatasetWrite::new`]; without `overwrite`, [`ErrorKind::AlreadyExists`] where a dataset exists. In the folder of a
    /// table [`ErrorKind::InvalidPath`]. It changes nothing in the store.
    pub async fn begin(
        store: &Store,
        key: &str,
        overwrite: bool,
        layout: Layout,
        options: WriteOptions,
    ) -> Result<Self> {
        let write = Self::new(store, key, overwrite, layout, options)?;
        write.check_folder(store).await?;
        Ok(write)
    }

    /// Refuses what the publish would refuse, before anything is encoded.
    async fn check_folder(&self, store: &Store) -> Result<()> {
        let has_table = async {
            // Other stores hold none.
            let pointer = path::join(&self.key, POINTER);
            // No table has a path too long for its pointer.
            let may_exist = store.capabilities().conditional && path::parse(&pointer).is_ok();
            Ok::<_, Error>(may_exist && store.is_file(&pointer).await?)
        };
        let has_dataset = async { Ok(!self.overwrite && exists(store, &self.key).await?) };
        let (has_table, has_dataset) = try_join(has_table, has_dataset).await?;
        if has_table {
            return Err(holds_table_error(&self.key));
        }
        if has_dataset {
            return Err(already_exists_error(&self.key));
        }
        Ok(())
    }
}

/// Prepares and publishes `input` as a dataset.
///
/// Without `small`, requests look for a table in the folder and, without `overwrite`, for a dataset before anything is
/// encoded. `small` says that the parts stay in memory until they are published: then the publish alone looks for them.
pub async fn write(
    store: &Store,
    write: &DatasetWrite,
    task: WriteTask,
    input: Box<dyn RecordBatchReader + Send>,
    small: bool,
    schema_hash: &str,
) -> Result<DatasetManifest> {
    if !small {
        write.check_folder(store).await?;
    }
    let prepared = Box::pin(prepare(store, write, task, input));
    let is_one_part = write.options.rows_per_file.is_none();
    let parts = if small && is_one_part && store.local().is_some() {
        in_place(prepared).await?
    } else {
        prepared.await?
    };
    publish(store, write, parts, schema_hash).await
}

/// The error of a write into the folder of a table.
fn holds_table_error(key: &str) -> Error {
    let message =
        format!("{key:?} holds a table or a pipeline; a dataset needs a folder of its own");
    Error::new(ErrorKind::InvalidPath, message).with_path(key)
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

/// The error of a dataset in whose folder's place, or that of a folder above, is a file.
fn file_in_place_error(key: &str, file: &str) -> Error {
    let message = format!(
        "a file is in the place of a folder of the dataset {key:?}: {file:?}; move the file, or use another key"
    );
    Error::new(ErrorKind::InvalidPath, message).with_path(file)
}

/// The error of a write; where a file is in the place of a folder of local files, one that names that file.
async fn name_file_in_place(store: &Store, key: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::InvalidPath || store.local().is_none() {
        return error;
    }
    let mut ends: Vec<usize> = key.match_indices('/').map(|(end, _)| end).collect();
    ends.push(key.len());
    for end in ends {
        let folder = &key[..end];
        if matches!(store.is_file(folder).await, Ok(true)) {
            return file_in_place_error(key, folder).with_source(error);
        }
    }
    error
}

fn incomplete_error(key: &str, reason: &str) -> Error {
    Error::new(
        ErrorKind::DatasetIncomplete,
        format!("the dataset at {key:?} is incomplete: {reason}"),
    )
    .with_path(key)
}

/// Whether a name is that of the marker, the manifest or the intent, which no part may have.
fn is_reserved(name: &str) -> bool {
    [SUCCESS, MANIFEST, INTENT].contains(&name)
}

/// Checks the key of a dataset: a valid path, not the store's root, no segment of which is named like one of a
/// dataset's own or hidden files. Errors are [`ErrorKind::InvalidPath`].
pub fn check_key(key: &str) -> Result<()> {
    if matches!(key, "" | "." | "/") {
        let message = format!("{key:?} is the store's root; a dataset needs a key of its own");
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(key));
    }
    path::parse(key)?;
    let is_own_name = |s: &str| is_reserved(s) || s.starts_with(TEMP_PREFIX);
    if let Some(name) = key.split('/').find(|s| is_own_name(s)) {
        let message =
            format!("key {key:?} contains {name:?}, a name reserved for a dataset's own files");
        return Err(Error::new(ErrorKind::InvalidPath, message).with_path(key));
    }
    path::parse(&path::join(key, INTENT)).map(drop)
}

/// Parses an intent from untrusted bytes, for the fuzzer.
#[cfg(feature = "testing")]
pub(crate) fn parse_intent(key: &str, bytes: &[u8]) {
    let _ = intent::Intent::parse(key, bytes);
}
