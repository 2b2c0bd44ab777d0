//! Conflict checks: what commits after a version have done that a change planned on that version must know.

use std::collections::{BTreeMap, HashSet};

use super::format::TableManifest;
use super::snapshot_file::FileRef;
use super::targets::FileIndex;
use crate::error::{Error, ErrorKind, Result};
use crate::files::TableColumns;
use crate::files::expr::{Filter, Predicate};

/// The ids of a table's columns by the names that a predicate or a merge was written for.
#[derive(Debug)]
pub(super) struct NamedColumns(BTreeMap<String, u32>);

impl NamedColumns {
    /// The columns of a snapshot.
    pub(super) fn new(columns: &TableColumns) -> Self {
        let fields = columns.schema.fields().iter();
        let named = fields.map(|field| field.name().clone());
        Self(named.zip(columns.ids.iter().copied()).collect())
    }

    /// Fails with [`ErrorKind::CommitConflict`] if the predicate, bound to the columns of a later snapshot, reads
    /// another column by one of the names.
    pub(super) fn check(
        &self,
        predicate: &Predicate,
        filter: &Filter,
        columns: &TableColumns,
    ) -> Result<()> {
        let ids = filter.column_ids(columns);
        if ids.iter().all(|(name, id)| self.0.get(name) == Some(id)) {
            return Ok(());
        }
        let message = format!(
            "a concurrent commit gave a column name in {predicate} to another column; write again"
        );
        Err(Error::new(ErrorKind::CommitConflict, message))
    }

    /// As [`Self::check`], for an operation that may read any column by its name.
    pub(super) fn check_all(&self, columns: &TableColumns) -> Result<()> {
        for (field, id) in columns.schema.fields().iter().zip(columns.ids.iter()) {
            if self.0.get(field.name()).is_some_and(|old| old != id) {
                let message = format!(
                    "a concurrent commit gave the name {:?} to another column; write again",
                    field.name()
                );
                return Err(Error::new(ErrorKind::CommitConflict, message));
            }
        }
        Ok(())
    }
}

impl TableManifest {
    /// Whether a restore after `version` may have brought deleted rows back.
    pub(super) fn was_restored_since(&self, version: u64) -> bool {
        self.restored_at.is_some_and(|at| at > version)
    }

    /// The error of files that were written at `version`, if a later restore of older columns means
    /// that they may not fit the schema.
    pub(super) fn schema_conflict_since(&self, version: u64) -> Option<Error> {
        self.columns_restored_at.filter(|at| *at > version)?;
        let message = "older columns were restored while the rows were written; write again";
        // Not CommitConflict: a new plan would use the same files.
        Some(Error::new(ErrorKind::TransactionExpired, message))
    }

    /// The paths of the tombstone files.
    pub(super) fn tombstone_paths(&self) -> Vec<String> {
        self.tombstones.iter().map(|t| t.path.clone()).collect()
    }

    /// Whether some of `files` have tombstones that are not among the `known` tombstone files.
    pub(super) fn has_new_tombstones<'a>(
        &self,
        known: &[String],
        files: impl Iterator<Item = &'a FileRef>,
    ) -> bool {
        let known: HashSet<&str> = known.iter().map(String::as_str).collect();
        let files = FileIndex::of_refs(files);
        let mut new_tombstones = self
            .tombstones
            .iter()
            .filter(|t| !known.contains(t.path.as_str()));
        new_tombstones.any(|t| files.has_targets_of(t))
    }

    /// Whether a commit after `version` may have added rows.
    pub(super) fn has_rows_added_since(&self, version: u64) -> bool {
        self.added_at.is_some_and(|at| at > version)
    }
}
