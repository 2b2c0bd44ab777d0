//! Writing a stream of batches as files under their names: staged, then published.
//!
//! [`write_files`] gives the files that it wrote, in the order of the rows. After an error none of them stays; what
//! could not be removed is logged. A call that is cancelled removes them in the background, as `super::publish` says.

use std::sync::{Arc, Mutex};

use arrow_array::RecordBatchReader;
use bytes::Bytes;

use super::publish::publish_files;
use super::stage::{FileHooks, FooterMetadataFn, stage};
use crate::error::Result;
use crate::parquet::writer::{FileStats, WritePlan};
use crate::store::Store;
use crate::store::stage::Staging;
use crate::store::staged_write::StagedWrite;
use crate::sync::mutex::lock;

/// A name for a file, relative to the folder of its list, and its path in the store.
#[derive(Debug, Clone)]
pub(crate) struct FileName {
    pub(crate) name: String,
    pub(crate) path: String,
}

/// A file that was written.
#[derive(Debug)]
pub(crate) struct WrittenFile {
    pub(crate) name: FileName,
    pub(crate) stats: FileStats,
    /// Its bytes, if they are so few that they were in memory until they were published.
    pub(crate) bytes: Option<Bytes>,
}

/// Encodes `input` into files with names from `new_name`, which gives each name once.
pub(crate) async fn write_files(
    store: &Store,
    staging: Staging,
    plan: WritePlan,
    input: Box<dyn RecordBatchReader + Send>,
    new_name: impl FnMut() -> FileName + Send + 'static,
) -> Result<Vec<WrittenFile>> {
    let footers = Box::new(|| Ok(Vec::new()));
    write_files_with_footers(store, staging, plan, input, new_name, footers).await
}

/// As [`write_files`], with more in the footers of the files.
pub(crate) async fn write_files_with_footers(
    store: &Store,
    staging: Staging,
    plan: WritePlan,
    input: Box<dyn RecordBatchReader + Send>,
    mut new_name: impl FnMut() -> FileName + Send + 'static,
    footers: FooterMetadataFn,
) -> Result<Vec<WrittenFile>> {
    let assigned: Arc<Mutex<Vec<FileName>>> = Arc::default();
    let targets = {
        let assigned = Arc::clone(&assigned);
        Box::new(move |_| {
            let file = new_name();
            let path = file.path.clone();
            lock(&assigned).push(file);
            path
        })
    };
    let hooks = FileHooks {
        footers: Some(footers),
        ..FileHooks::new(targets)
    };
    let staged = stage(store, staging, plan, input, hooks).await?;
    let names = std::mem::take(&mut *lock(&assigned));
    let paths = names.iter().map(|name| name.path.clone()).collect();
    publish_files(store, &staged, paths).await?;
    let pairs = staged.into_iter().zip(names);
    Ok(pairs
        .map(|(file, name)| WrittenFile {
            name,
            stats: file.stats,
            bytes: match file.staged {
                StagedWrite::Inline { bytes } => Some(bytes),
                StagedWrite::Multipart { .. } | StagedWrite::Object { .. } => None,
            },
        })
        .collect())
}
