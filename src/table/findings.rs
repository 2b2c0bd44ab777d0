//! What a plan found in data files, kept for the next plan of the same operation.
//!
//! A data file never changes, so what was found in it depends on three things only: the filter, the
//! table's columns, and which of its rows are deleted. The filter is the operation's and stays. A finding is
//! used again if
//!
//! - no version was restored, and no file added in place, since the last plan ([`Basis`]): either can bring
//!   deleted rows, or another file under the same path;
//! - the columns are the same: a filter is bound to them;
//! - every deletion that was known then is known now ([`Deletions::includes`]). More deleted rows are taken
//!   out of the finding. It compares content and not the paths of tombstones, which a merge of them changes.
//!
//! Otherwise the file is read again. Which files may match is decided by the bounds in every snapshot: a file that
//! is excluded is not read.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use futures::{StreamExt, TryStreamExt, stream};
use roaring::RoaringBitmap;

use super::file_matches::{DeletePlan, FileMatches, FileRows, MatchedRows};
use super::format::{ColumnSchema, EncodedSchema, TableManifest};
use super::opened_columns::changed_columns_error;
use super::snapshot_reader::SnapshotReader;
use super::tombstone::Deletions;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::progress;

/// The maximum number of files that are scanned concurrently.
pub(super) const CONCURRENT_FILES: usize = 4;
/// The maximum number of row groups of a file that are scanned concurrently.
pub(super) const CONCURRENT_GROUPS: usize = 2;

/// What of a snapshot findings depend on.
#[derive(Debug)]
pub(super) struct Basis {
    version: u64,
    arrow_schema: EncodedSchema,
    columns: Vec<ColumnSchema>,
    key: Vec<u32>,
}

impl Basis {
    pub(super) fn new(manifest: &TableManifest) -> Self {
        Self {
            version: manifest.version,
            arrow_schema: manifest.arrow_schema.clone(),
            columns: manifest.schema.columns.clone(),
            key: manifest.key.clone(),
        }
    }

    /// Whether what was found in the earlier snapshot may be used in a later one.
    pub(super) fn holds_in(&self, manifest: &TableManifest) -> bool {
        !manifest.was_restored_since(self.version) && self.has_columns_of(manifest)
    }

    /// Whether a later snapshot has the same columns.
    pub(super) fn has_columns_of(&self, manifest: &TableManifest) -> bool {
        self.arrow_schema == manifest.arrow_schema
            && self.columns == manifest.schema.columns
            && self.key == manifest.key
    }
}

/// What was made for a snapshot's columns, and is used as long as they are the same.
#[derive(Debug)]
pub(super) struct Bound<T>(Option<(Basis, T)>);

impl<T: Clone> Bound<T> {
    /// Nothing is made yet.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// What was made for the columns of a snapshot.
    pub(super) fn new(manifest: &TableManifest, value: T) -> Self {
        Self(Some((Basis::new(manifest), value)))
    }

    /// Returns what was made for these columns; else makes it. Fails with [`ErrorKind::CommitConflict`] if it cannot be
    /// made for these columns, and could for earlier ones.
    pub(super) fn get(
        &mut self,
        manifest: &TableManifest,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        match &self.0 {
            Some((basis, value)) if basis.has_columns_of(manifest) => Ok(value.clone()),
            _ => {
                let value = make().map_err(|e| match &self.0 {
                    Some(_) if e.kind() == ErrorKind::InvalidInput => changed_columns_error(e),
                    _ => e,
                })?;
                *self = Self::new(manifest, value.clone());
                Ok(value)
            }
        }
    }
}

/// Finds the rows that match the reader's filter, of files or shares of files that have some.
pub(super) async fn find_rows(reader: &SnapshotReader) -> Result<Vec<FileRows>> {
    // A Vec, because the future of the iterator itself would not be Send.
    let scans: Vec<_> = (0..reader.files.len())
        .map(|file| match_file(reader, file))
        .collect();
    let matches: Vec<FileMatches> = stream::iter(scans)
        .buffered(CONCURRENT_FILES)
        .try_collect()
        .await?;
    let paths = reader.files.iter().map(|listed| listed.file.path.clone());
    let shares = &reader.manifest().shares;
    let rows = paths.zip(matches).map(|(path, matches)| {
        let is_share = shares.contains_key(&path);
        matches.into_rows(path, is_share)
    });
    let rows = rows.filter(|rows| !rows.is_empty() || rows.is_deleted_share());
    Ok(rows.collect())
}

/// Finds the rows of snapshots that match a filter.
#[derive(Debug, Default)]
pub(super) struct RowFinder {
    basis: Option<Basis>,
    files: HashMap<String, FileMatches>,
}

impl RowFinder {
    /// Plans the delete of all rows that match the reader's filter, which must be the same for all snapshots
    /// with the same columns. Reads only files that it does not know.
    pub(super) async fn plan(&mut self, reader: &SnapshotReader) -> Result<DeletePlan> {
        let manifest = reader.manifest();
        if !self.basis.as_ref().is_some_and(|b| b.holds_in(manifest)) {
            self.files.clear();
        }
        // Now, so that what is found before an error is kept.
        self.basis = Some(Basis::new(manifest));
        let is_unknown = |file: &usize| self.find(reader, *file).is_none();
        let unknown: Vec<usize> = (0..reader.files.len()).filter(is_unknown).collect();
        // A Vec, because the future of the iterator itself would not be Send.
        let scans: Vec<_> = unknown
            .iter()
            .map(|file| match_file(reader, *file))
            .collect();
        let mut scanned = stream::iter(scans).buffered(CONCURRENT_FILES);
        let progress = progress::current();
        if let Some(progress) = &progress {
            progress.expect_files(unknown.len() as u64);
        }
        for file in &unknown {
            if let Some(matches) = scanned.try_next().await? {
                let path = reader.files[*file].file.path.clone();
                self.files.insert(path, matches);
                if let Some(progress) = &progress {
                    progress.add_files(1);
                }
            }
        }
        let mut plan = DeletePlan {
            rows: Some(0),
            ..DeletePlan::default()
        };
        for (file, listed) in reader.files.iter().enumerate() {
            if let Some(matches) = self.find(reader, file) {
                plan.add(matches.to_plan(listed));
            }
        }
        Ok(plan)
    }

    /// Takes over what other processes found in the files of the reader, of all that have some rows.
    pub(super) fn take_over(&mut self, reader: &SnapshotReader, rows: Vec<FileRows>) {
        self.basis = Some(Basis::new(reader.manifest()));
        let mut by_path: HashMap<String, FileRows> = HashMap::new();
        for rows in rows {
            match by_path.entry(rows.path.clone()) {
                Entry::Vacant(entry) => drop(entry.insert(rows)),
                // No row is in two shares of a file.
                Entry::Occupied(mut entry) => drop(entry.get_mut().add(rows)),
            }
        }
        for (file, listed) in reader.files.iter().enumerate() {
            let path = listed.file.path.clone();
            let rows = by_path.remove(&path);
            let rows = rows.unwrap_or_else(|| FileRows::none(path.clone()));
            let matches = FileMatches::from_rows(reader.deletions_of(file), rows);
            self.files.insert(path, matches);
        }
    }

    /// What is known of a file of the reader.
    fn find(&self, reader: &SnapshotReader, file: usize) -> Option<FileMatches> {
        let known = self.files.get(&reader.files[file].file.path)?;
        let none = Deletions::default();
        known.without(reader.deletions_of(file).unwrap_or(&none))
    }
}

async fn match_file(reader: &SnapshotReader, file: usize) -> Result<FileMatches> {
    let row_groups = reader.open_row_groups(file).await?;
    let scans = row_groups.iter().map(|row_group| async move {
        let selection = reader.select(row_group).await?;
        let rows = match &selection.mask {
            Some(mask) => mask.values().set_indices_u32().collect::<RoaringBitmap>(),
            None => (0..).take(row_group.num_rows()).collect(),
        };
        Ok::<_, Error>(MatchedRows {
            row_group: row_group.clone(),
            rows,
            live_rows: selection.live_rows as u64,
        })
    });
    // A Vec, because the future of the iterator itself would not be Send.
    let tasks: Vec<_> = scans.collect();
    let matches: Vec<MatchedRows> = stream::iter(tasks)
        .buffered(CONCURRENT_GROUPS)
        .try_collect()
        .await?;
    Ok(FileMatches::new(reader.deletions_of(file), matches))
}
