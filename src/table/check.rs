//! Checks that every object that a table's retained versions reference exists, and finds unreferenced ones.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;

use super::format::TableManifest;
use super::listing::load_file_sizes;
use super::{Table, names};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::progress;
use crate::versions::list_objects;
use crate::versions::vacuum::{References, collect_references};

/// How often the check starts again because a vacuum removed versions during it.
const MAX_RESTARTS: u32 = 20;
/// The maximum number of segments that are read concurrently.
const CONCURRENT_READS: usize = 16;

/// The findings of a check; paths are relative to the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The newest version, whose sizes were compared.
    pub version: u64,
    /// Objects that a retained version references and that do not exist.
    pub missing: Vec<String>,
    /// Objects of the newest version whose size differs from the recorded one.
    pub mismatched: Vec<String>,
    /// Objects that no retained version references: of writes that failed or are in progress.
    pub orphans: Vec<String>,
}

/// Checks the objects of all retained versions by listing; no data is read. If the manifest of a retained
/// version is missing, only such manifests are reported. Fails with [`ErrorKind::Unavailable`] if
/// vacuums keep removing versions during the check.
pub async fn check(table: &Table) -> Result<CheckReport> {
    for _ in 0..MAX_RESTARTS {
        progress::begin_phase("list");
        let newest = table.newest().await?.manifest;
        let manifests = list_objects(table, names::MANIFESTS).await?;
        let needed = match collect_references(table, &newest, &manifests).await? {
            References::All(needed) => needed,
            References::Overtaken => continue,
            // The references of missing manifests are not known: nothing else can be checked.
            References::Missing(missing) => {
                return Ok(CheckReport {
                    version: newest.version,
                    missing,
                    ..CheckReport::default()
                });
            }
        };
        let mut objects = manifests;
        for folder in names::FOLDERS {
            objects.extend(list_objects(table, folder).await?);
        }
        if let Some(progress) = progress::current() {
            progress.begin_phase("compare");
            progress.add_files(objects.len() as u64);
            progress.add_bytes(objects.values().map(|meta| meta.size).sum());
        }
        // A vacuum may have removed objects while they were listed.
        if table.newest().await?.manifest.oldest_version != newest.oldest_version {
            continue;
        }
        let mismatched = find_mismatched(table, &newest, &objects).await?;
        let own_paths = objects
            .keys()
            .filter(|path| names::base_version(path).is_some());
        let mut report = CheckReport {
            version: newest.version,
            mismatched,
            orphans: own_paths
                .filter(|p| !needed.contains(*p))
                .cloned()
                .collect(),
            missing: Vec::new(),
        };
        for path in needed.iter().filter(|path| !objects.contains_key(*path)) {
            // It may be in a folder that was not listed, or newer than the listing.
            if !table.store().is_file(&table.path(path)).await? {
                report.missing.push(path.clone());
            }
        }
        report.missing.sort();
        return Ok(report);
    }
    let message = format!(
        "gave up after {MAX_RESTARTS} attempts: vacuums removed versions during every check; try again"
    );
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.root()))
}

/// The objects of the newest version whose length is not the one it lists.
async fn find_mismatched(
    table: &Table,
    newest: &TableManifest,
    objects: &BTreeMap<String, ObjectMeta>,
) -> Result<Vec<String>> {
    let is_mismatched = |path: &str, size: u64| {
        let object = objects.get(path);
        object.is_some_and(|meta| meta.size != size)
    };
    let mut mismatched: BTreeSet<String> = newest
        .sized_references()
        .filter(|(path, size)| is_mismatched(path, *size))
        .map(|(path, _)| path.to_owned())
        .collect();
    let mut loads = stream::iter(&newest.segments)
        .map(|segment| async move {
            match load_file_sizes(table, segment).await {
                Err(e) => Err(table
                    .missing_object_error(newest.version, &segment.path, e)
                    .await),
                files => files,
            }
        })
        .buffer_unordered(CONCURRENT_READS);
    while let Some(files) = loads.try_next().await? {
        let differing = files
            .into_iter()
            .filter(|(p, size)| is_mismatched(p, *size));
        mismatched.extend(differing.map(|(path, _)| path));
    }
    Ok(mismatched.into_iter().collect())
}
