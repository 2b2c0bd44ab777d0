//! A log that is written anew.

use std::sync::Arc;

use super::exporter::Exporter;
use super::log_files::{self, Log};
use crate::error::Result;
use crate::table::Table;
use crate::table::export::{LoadedVersion, resolve_rebuild};
use crate::table::format::TableManifest;

/// Removes the log, unless the newest version cannot be exported. Returns the columns to leave out: those that were given,
/// or else those of the log.
pub(super) async fn remove_log(
    table: &Table,
    newest: &Arc<TableManifest>,
    left_out: Option<Vec<u32>>,
) -> Result<Vec<u32>> {
    let state = Log::list(table).await?.last_state(table).await?;
    let last = state
        .as_ref()
        .map(|state| (state.version, &state.commit_id, state.left_out.as_slice()));
    let left_out = resolve_rebuild(table, newest, left_out, last, "log").await?;
    let version = LoadedVersion::load(table, Arc::clone(newest)).await?;
    let mut exporter = Exporter::new(table, newest, left_out.clone());
    exporter.check(&version).await?;
    log_files::remove(table).await?;
    Ok(left_out)
}
