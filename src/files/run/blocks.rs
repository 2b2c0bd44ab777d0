//! The keys at which the blocks of a file's key index begin.

use serde_json::Value;

use super::RunFile;
use super::cache::open_cached;
use super::index::KeyIndex;
use crate::error::{Error, Result};
use crate::store::{Store, path};

/// Reads of each block of a file the first column of its first key, cut as in [`RunFile::first`].
pub(crate) async fn read_block_keys(
    store: &Store,
    folder: &str,
    file: &RunFile,
) -> Result<Vec<Value>> {
    let part = open_cached(store, folder, file).await?.part;
    let file_path = path::join(folder, &file.name);
    let in_file = |e: Error| {
        let e = e.context(format!("file {file_path:?}"));
        e.with_path(&file_path)
    };
    let index = KeyIndex::from_footer(part.file.metadata()).map_err(in_file)?;
    let keys = index.keys.into_iter();
    Ok(keys.filter_map(|key| key.into_iter().next()).collect())
}
