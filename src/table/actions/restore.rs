//! The change that restores the rows and columns of an older version.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::table::format::{CommitOperation, FORMAT, TableManifest};
use crate::table::{Committed, Table};
use crate::versions::commit::{commit, commit_onto};
use crate::versions::{Ancestor, Change, OnVersion, Tag};

/// Makes the content of an older version the newest one. Tags, idempotency keys and the history stay. Fails with
/// [`ErrorKind::VersionExpired`] if the version has been vacuumed.
#[derive(Debug, Clone)]
pub struct Restore {
    /// The manifest of the version to restore.
    pub from: Arc<TableManifest>,
}

impl Change<TableManifest> for Restore {
    fn apply(&self, base: &TableManifest) -> Result<(TableManifest, CommitOperation)> {
        let from = &self.from;
        if !base.retains(from.version) {
            let message = format!(
                "version {} has been vacuumed; the oldest available version is {}",
                from.version, base.oldest_version
            );
            return Err(Error::new(ErrorKind::VersionExpired, message));
        }
        let mut next = base.clone();
        for column in &base.schema.columns {
            next.schema.retire(column);
        }
        next.schema.columns.clone_from(&from.schema.columns);
        for column in &next.schema.columns {
            next.schema.retired.remove(&column.id);
        }
        next.arrow_schema = from.arrow_schema.clone();
        next.key.clone_from(&from.key);
        next.sort_by.clone_from(&from.sort_by);
        next.segments.clone_from(&from.segments);
        next.data_files.clone_from(&from.data_files);
        next.tombstones.clone_from(&from.tombstones);
        if from.format < FORMAT {
            TableColumns::complete_nested_ids(&mut next);
        }
        next.restored_at = Some(base.version + 1);
        next.added_at = next.restored_at;
        if from.arrow_schema != base.arrow_schema || from.schema.columns != base.schema.columns {
            next.columns_restored_at = next.restored_at;
        }
        let details = [("restored_version", json!(from.version))];
        Ok((next, CommitOperation::new("restore", details)))
    }

    /// None: a retained version references the objects.
    fn base_version(&self) -> Option<u64> {
        None
    }
}

/// Restores the content of a version as a new version, for a caller who has read a manifest.
pub async fn restore(
    table: &Table,
    seen: &TableManifest,
    version: u64,
    timeout: Duration,
) -> Result<Committed> {
    // Read first: the version is of this table, or the commit fails.
    let newest = table.newest_since(seen).await?;
    let from = table.manifest_at_since(seen, version).await?;
    let change = OnVersion {
        change: &Restore { from },
        version: None,
        ancestor: Ancestor::of(&*newest.manifest),
    };
    Ok(commit_onto(table, &change, Some(newest), timeout).await?)
}

/// Tags a version that a caller has read of, or removes a tag.
pub async fn tag(
    table: &Table,
    seen: &TableManifest,
    tag: &Tag,
    timeout: Duration,
) -> Result<Committed> {
    if tag.version.is_none() {
        return commit(table, tag, timeout).await;
    }
    let newest = table.newest_since(seen).await?;
    let change = OnVersion {
        change: tag,
        version: None,
        ancestor: Ancestor::of(&*newest.manifest),
    };
    Ok(commit_onto(table, &change, Some(newest), timeout).await?)
}
