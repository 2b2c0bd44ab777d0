//! What an export keeps from one version to the next: the columns that it leaves out, and its identity.

use std::sync::Arc;

use super::ownership::is_of_table;
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::versions::CommitId;

/// The columns that an export leaves out after another one: those of that one, and of those that are new
/// since then, which have ids above `last_id`, any.
pub(in crate::table) fn keep_left_out(
    newest: &TableManifest,
    last: &[u32],
    last_id: u32,
    asked: Option<&[u32]>,
) -> Result<Vec<u32>> {
    let Some(asked) = asked else {
        return Ok(last.to_vec());
    };
    let columns = || newest.schema.columns.iter();
    let is_known = |id: &&u32| **id <= last_id && columns().any(|column| column.id == **id);
    let known = |ids: &[u32]| ids.iter().filter(is_known).copied().collect::<Vec<_>>();
    if known(asked) == known(last) {
        return Ok(asked.to_vec());
    }
    let left_out = columns().filter(|column| last.contains(&column.id));
    let names: Vec<&str> = left_out.map(|column| column.name.as_str()).collect();
    Err(Error::invalid(format!(
        "leave_out differs from that of the last export, which was {names:?}; with rebuild=True the log is written anew"
    )))
}

/// The columns that an export leaves out which replaces the last one: those that are asked for, or else those of the last
/// one, if that is of this table. `last` has its version, its commit and its columns; `noun` is what it wrote.
pub(in crate::table) async fn resolve_rebuild(
    table: &Table,
    newest: &TableManifest,
    asked: Option<Vec<u32>>,
    last: Option<(u64, &CommitId, &[u32])>,
    noun: &str,
) -> Result<Vec<u32>> {
    let (version, commit_id, left_out) = match (asked, last) {
        (Some(asked), _) => return Ok(asked),
        (None, None) => return Ok(Vec::new()),
        (None, Some(last)) => last,
    };
    match is_of_table(table, newest, version, commit_id).await? {
        Some(true) => Ok(left_out.to_vec()),
        None if !left_out.is_empty() => Err(Error::invalid(format!(
            "it is not known whether the {noun} is of this table: give leave_out, the columns to leave out"
        ))),
        _ => Ok(Vec::new()),
    }
}

/// The manifest that gives an export its identity: that of the first version, if it is still there.
pub(in crate::table) async fn read_identity(
    table: &Table,
    newest: &Arc<TableManifest>,
) -> Result<Arc<TableManifest>> {
    if newest.version > 1 && newest.retains(1) {
        return table.manifest_at(1).await;
    }
    Ok(Arc::clone(newest))
}

/// The ids of columns, sorted; without those that were dropped.
pub(in crate::table) fn resolve_leave_out(
    manifest: &TableManifest,
    names: &[String],
) -> Result<Vec<u32>> {
    let columns = TableColumns::from_manifest(manifest)?;
    let is_dropped = |name: &String| {
        let is_there = manifest.schema.columns.iter().any(|c| c.name == *name);
        !is_there
            && manifest
                .schema
                .retired
                .values()
                .any(|stored| stored == name)
    };
    let names: Vec<String> = names
        .iter()
        .filter(|name| !is_dropped(name))
        .cloned()
        .collect();
    let mut ids = columns.ids_of(&names).map_err(|e| e.context("leave_out"))?;
    ids.sort_unstable();
    Ok(ids)
}

/// A name that another one equals but for its case, which some readers do not tell apart.
pub(in crate::table) fn first_ambiguous<'a>(
    names: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let mut seen = std::collections::HashSet::new();
    names
        .into_iter()
        .find(|name| !seen.insert(name.to_lowercase()))
}
