//! Removes manifests, their lists, and files with deleted rows that no metadata names any more.
//!
//! An object is named before or within a day after it was put, or never: an export puts what the metadata names that it
//! then creates, or takes it from the last export, and names do not come back, since they follow from the id of the schema,
//! from `restored_at`, and from the epoch of [`super::metadata::ExportState`], too. Objects of exports that ended early go, too. Metadata
//! that appeared during the look is looked at before anything is removed.
//!
//! Nothing is removed if an object that is named is missing or cannot be read: what it names is not known.

use std::collections::{BTreeSet, HashSet};

use chrono::{DateTime, Utc};
use futures::{StreamExt, TryStreamExt, stream};

use super::folder::{self, Listing};
use super::manifests::{self, Content, ListedManifest};
use super::metadata::IcebergSnapshot;
use super::snapshot_writer::read;
use crate::error::{Error, ErrorKind, Result};
use crate::table::Table;

/// The number of objects that are read at once.
const CONCURRENT_READS: usize = 16;

/// The names of objects that metadata name, and the versions of these metadata.
#[derive(Default)]
struct Named {
    objects: HashSet<String>,
    versions: BTreeSet<u64>,
    /// Lists that have been read.
    lists: HashSet<String>,
}

/// Removes objects that were last written before `cutoff` and are not named. Returns their number.
pub(in crate::table) async fn prune(table: &Table, cutoff: DateTime<Utc>) -> Result<usize> {
    let old = folder::list_objects_before(table, cutoff).await?;
    if old.is_empty() {
        return Ok(0);
    }
    let mut named = Named::default();
    // Twice, for metadata that were created meanwhile.
    named.read_all(table).await?;
    named.read_all(table).await?;
    if named.objects.is_empty() {
        // A rebuild or a drop has removed the metadata.
        return Ok(0);
    }
    let is_named = |path: &String| named.objects.contains(file_name(path));
    let unnamed: Vec<String> = old.into_iter().filter(|path| !is_named(path)).collect();
    table.store().delete_all(&unnamed).await?;
    Ok(unnamed.len())
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

impl Named {
    /// Adds what the metadata name that have not been read: the newest all of their snapshots, older ones their own.
    async fn read_all(&mut self, table: &Table) -> Result<()> {
        let listing = Listing::list(table).await?;
        let Some((newest, state)) = listing.last(table).await? else {
            return Ok(());
        };
        let mut unread: Vec<u64> = listing.versions().to_vec();
        unread.retain(|version| !self.versions.contains(version));
        if unread.contains(&state.version) {
            for snapshot in &newest.snapshots {
                self.versions.insert(snapshot.version());
            }
            self.add_lists(table, &newest.location, &newest.snapshots)
                .await?;
        }
        for version in unread {
            if self.versions.insert(version)
                && let Some(metadata) = folder::read_ours(table, version).await?
            {
                let own = metadata.snapshots.last().map(std::slice::from_ref);
                self.add_lists(table, &metadata.location, own.unwrap_or_default())
                    .await?;
            }
        }
        Ok(())
    }

    /// Adds what the lists of snapshots name.
    async fn add_lists(
        &mut self,
        table: &Table,
        location: &str,
        snapshots: &[IcebergSnapshot],
    ) -> Result<()> {
        let lists = snapshots.iter().map(|s| s.manifest_list.clone());
        let lists: Vec<String> = lists
            .filter(|list| self.lists.insert(list.clone()))
            .collect();
        let mut manifests: Vec<ListedManifest> = Vec::new();
        let mut reads = stream::iter(&lists)
            .map(|list| async move {
                let bytes = read(table, location, list).await?;
                let listed = bytes.and_then(|bytes| manifests::decode_list(&bytes));
                listed.ok_or_else(|| unreadable_error(table, list))
            })
            .buffered(CONCURRENT_READS)
            .boxed();
        while let Some(listed) = reads.try_next().await? {
            let new = |m: &ListedManifest| self.objects.insert(file_name(&m.path).to_owned());
            manifests.extend(listed.into_iter().filter(new));
        }
        drop(reads);
        self.objects
            .extend(lists.iter().map(|list| file_name(list).to_owned()));
        manifests.retain(|manifest| manifest.content == Content::Deletes);
        let mut reads = stream::iter(&manifests)
            .map(|manifest| async move {
                let bytes = read(table, location, &manifest.path).await?;
                let decoded = bytes.and_then(|bytes| manifests::decode_manifest(&bytes));
                decoded.ok_or_else(|| unreadable_error(table, &manifest.path))
            })
            .buffered(CONCURRENT_READS)
            .boxed();
        while let Some((_, entries)) = reads.try_next().await? {
            let names = entries
                .iter()
                .map(|entry| file_name(&entry.path).to_owned());
            self.objects.extend(names);
        }
        Ok(())
    }
}

fn unreadable_error(table: &Table, path: &str) -> Error {
    let message = format!(
        "{path:?}, which the Iceberg metadata name, is missing or damaged; export_iceberg(rebuild=True) writes all anew"
    );
    Error::new(ErrorKind::ManifestCorrupted, message).with_path(table.path(folder::FOLDER))
}
