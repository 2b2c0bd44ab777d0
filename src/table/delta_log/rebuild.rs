//! A log that is written anew.

use std::sync::Arc;

use super::exporter::Exporter;
use super::log_files::{self, Log};
use crate::error::{Error, Result};
use crate::table::Table;
use crate::table::export::{LoadedVersion, is_of_table};
use crate::table::format::TableManifest;

/// Removes the log, unless the newest version cannot be exported. Returns the columns to leave out: those that were given,
/// or else those of the log.
pub(super) async fn remove_log(
    table: &Table,
    newest: &Arc<TableManifest>,
    left_out: Option<Vec<u32>>,
) -> Result<Vec<u32>> {
    let last = Log::list(table).await?.last_state(table).await?;
    let left_out = match (left_out, last) {
        (Some(left_out), _) => left_out,
        (None, None) => Vec::new(),
        (None, Some(last)) => {
            match is_of_table(table, newest, last.version, &last.commit_id).await? {
                Some(true) => last.left_out,
                Some(false) => Vec::new(),
                None if last.left_out.is_empty() => Vec::new(),
                None => {
                    return Err(Error::invalid(
                        "it is not known whether the log is of this table: give leave_out, the columns to leave out",
                    ));
                }
            }
        }
    };
    let version = LoadedVersion::load(table, Arc::clone(newest)).await?;
    let mut exporter = Exporter::new(table, newest, left_out.clone());
    exporter.check(&version).await?;
    log_files::remove(table).await?;
    Ok(left_out)
}
