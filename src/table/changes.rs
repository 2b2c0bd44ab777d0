//! The change feed of a table: rows inserted and deleted between two versions, commit by commit.
//!
//! [`scan_changes`] compares each version with the one before it. The rows of added files are inserts,
//! the rows of removed files are deletes; of a file that both versions list, the rows that are deleted
//! in one of them only are read. The deletes of a commit come before its inserts. A compaction or a sort
//! changes no rows and is skipped, unless it ran while a column of the last version was dropped: the
//! files it wrote lack that column.
//!
//! Rows have the types of the last version. Where a restore made a column narrower, the versions with the wider type are
//! `InvalidInput`.
//!
//! The columns that describe a change have the names of Delta Lake's change data feed; a column of the table that
//! has such a name, which a stored change feed has, cannot be among those that are read. Errors: `VersionExpired` if a
//! vacuum has removed a version of the range, `ManifestCorrupted` if a manifest does not follow the one before it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use futures::{StreamExt, stream};

use super::format::{EncodedSchema, Segment, TableManifest, Tombstones, corrupted_error};
use super::listing;
use super::names;
use super::snapshot_file::SnapshotFile;
use super::snapshot_reader::SnapshotReader;
use super::targets::FileIndex;
use super::tombstone_reader::tombstoned_files;
use super::{Table, Versioned};
use crate::error::{Error, Result};
use crate::files::TableColumns;
use crate::files::types::can_widen;
use crate::files::{BatchSender, BatchStream};
use crate::parquet::Cancel;
use crate::parquet::types::batch_with_row_count;

/// Number of manifests that are read ahead.
const VERSIONS_AHEAD: usize = 16;
/// Operations that rewrite files and change no rows.
const REWRITE_OPERATIONS: [&str; 2] = ["compact", "sort"];
const INSERT: &str = "insert";
const DELETE: &str = "delete";

/// The columns that describe a change, with Delta Lake's names.
pub(super) fn change_columns() -> [Field; 3] {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    [
        Field::new("_change_type", DataType::Utf8, false),
        Field::new("_commit_version", DataType::Int64, false),
        Field::new("_commit_timestamp", time, false),
    ]
}

/// Refuses to give a column the name of a change column: the changes of the table could not be read any more.
pub(super) fn check_not_reserved(name: &str) -> Result<()> {
    if change_columns().iter().all(|column| column.name() != name) {
        return Ok(());
    }
    let message =
        format!("column {name:?} has the name of a column of scan_changes; drop or rename it");
    Err(Error::invalid(message))
}

/// Streams the changes of the versions after `since`, up to and including `until`: rows with the named columns of
/// `until`, or all (all nullable), and the change columns.
///
/// Fails with `InvalidInput` if `since` is newer than `until`, a column does not exist, or one that is read has the
/// name of a change column.
pub fn scan_changes(
    table: &Table,
    since: Arc<TableManifest>,
    until: Arc<TableManifest>,
    names: Option<&[String]>,
) -> Result<BatchStream> {
    if since.version > until.version {
        let message = format!(
            "cannot read changes from {} to {}: the first version must not be the newer one",
            since.version, until.version
        );
        return Err(Error::invalid(message));
    }
    let table_columns = TableColumns::from_manifest(&until)?;
    // Rows of older versions may have nulls in columns that are not nullable now.
    let nullable_fields: Vec<FieldRef> = table_columns
        .schema
        .fields()
        .iter()
        .map(|f| Arc::new(f.as_ref().clone().with_nullable(true)))
        .collect();
    let metadata = table_columns.schema.metadata().clone();
    let nullable_schema = Schema::new_with_metadata(nullable_fields.clone(), metadata.clone());
    let columns = TableColumns::from_entries(Arc::new(nullable_schema), &until.schema);
    let projection: Arc<[usize]> = columns.project(names)?.into();
    let fields: Vec<FieldRef> = projection
        .iter()
        .map(|at| Arc::clone(&nullable_fields[*at]))
        .collect();
    let change_fields = change_columns();
    if let Some(reserved) = change_fields
        .iter()
        .find(|change| fields.iter().any(|field| field.name() == change.name()))
    {
        let message = format!(
            "column {:?} of the table has the name of a change column; rename it, or read the other columns only",
            reserved.name()
        );
        return Err(Error::invalid(message));
    }
    let selected = Arc::new(Schema::new_with_metadata(fields.clone(), metadata.clone()));
    let change_fields = change_fields.map(Arc::new).into_iter();
    let fields: Vec<FieldRef> = fields.into_iter().chain(change_fields).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let change_scan = ChangeScan {
        table: table.clone(),
        columns,
        arrow_schema: until.arrow_schema.clone(),
        projection,
        selected,
        schema: Arc::clone(&schema),
    };
    Ok(BatchStream::spawn(
        schema,
        &Cancel::default(),
        |sender| async move { change_scan.run(since, until, &sender).await },
    ))
}

/// What there was before version 1, whose manifest is `first`: its columns, and no rows.
pub fn before_first(first: &TableManifest) -> TableManifest {
    TableManifest {
        version: 0,
        segments: Vec::new(),
        data_files: Vec::new(),
        tombstones: Vec::new(),
        ..first.clone()
    }
}

fn is_rewrite(manifest: &TableManifest) -> bool {
    REWRITE_OPERATIONS.contains(&manifest.operation.name.as_str())
}

struct ChangeScan {
    table: Table,
    columns: TableColumns,
    /// The stored schema of these.
    arrow_schema: EncodedSchema,
    /// The positions of the columns that the feed returns.
    projection: Arc<[usize]>,
    /// These columns.
    selected: SchemaRef,
    /// These and the change columns.
    schema: SchemaRef,
}

/// The files in which two versions differ, each as its version lists it.
struct FileChanges {
    /// The files that left the table, and those that stay and of which other rows are deleted.
    old: Vec<SnapshotFile>,
    /// The files that stay and of which other rows are deleted, and those that came.
    new: Vec<SnapshotFile>,
}

impl ChangeScan {
    async fn run(
        self,
        since: Arc<TableManifest>,
        until: Arc<TableManifest>,
        sender: &BatchSender,
    ) -> Result<()> {
        let versions: Vec<u64> = (since.version + 1..until.version).collect();
        let table = &self.table;
        let mut manifests = stream::iter(versions)
            .map(|version| async move {
                match table.read_manifest(version).await {
                    Ok(Some(manifest)) => Ok(Arc::new(manifest)),
                    Ok(None) => table.manifest_at(version).await,
                    Err(e) => Err(e),
                }
            })
            .buffered(VERSIONS_AHEAD)
            .boxed();
        let mut before = since;
        while before.version < until.version {
            let after = match manifests.next().await {
                Some(after) => after?,
                // It may have got the columns of a later version, which do not tell what a rewrite wrote.
                None if is_rewrite(&until) => table.manifest_at(until.version).await?,
                None => Arc::clone(&until),
            };
            // Between a tagged version and the oldest retained one, a late commit may have created its
            // manifest under a number that a vacuum had freed.
            let previous = (before.version > 0).then_some(&before.commit_id);
            if after.recent_commits.first() != previous {
                return Err(self.table.broken_chain_error(&after).await);
            }
            if !self.has_same_rows(&after) {
                self.check_types(&before)?;
                self.check_types(&after)?;
                if !self.send_changes(&before, &after, sender).await? {
                    return Ok(());
                }
            }
            before = after;
        }
        Ok(())
    }

    /// Refuses a version of which a column has a wider type than the feed: a restore made it narrow again, and values of
    /// the version may not fit.
    fn check_types(&self, manifest: &TableManifest) -> Result<()> {
        if manifest.arrow_schema == self.arrow_schema {
            return Ok(());
        }
        let own = TableColumns::from_manifest(manifest)?;
        for (at, id) in self.columns.ids.iter().enumerate() {
            let is_read = self.projection.contains(&at) || manifest.key.contains(id);
            let Some(own_at) = own.ids.iter().position(|other| other == id && is_read) else {
                continue;
            };
            let (own_type, data_type) = (
                own.schema.field(own_at).data_type(),
                self.columns.schema.field(at).data_type(),
            );
            if own_type != data_type && !can_widen(own_type, data_type) {
                let message = format!(
                    "column {:?} is {own_type} in version {} and {data_type} in the last one, since a restore made it \
                     narrower; read the changes of the versions before the restore apart",
                    self.columns.schema.field(at).name(),
                    manifest.version
                );
                return Err(Error::invalid(message).with_path(self.table.root()));
            }
        }
        Ok(())
    }

    /// Whether a commit only rewrote the rows, with all the columns that the feed returns.
    fn has_same_rows(&self, after: &TableManifest) -> bool {
        // A column with a higher id was added later: it has no values to lose.
        let is_dropped = |id: &u32| {
            let mut columns = after.schema.columns.iter();
            *id <= after.schema.last_id && columns.all(|column| column.id != *id)
        };
        let mut ids = self.projection.iter().map(|at| &self.columns.ids[*at]);
        is_rewrite(after) && !ids.any(is_dropped)
    }

    /// Sends the changes of one commit. Returns false if the receiver was dropped.
    async fn send_changes(
        &self,
        before: &Arc<TableManifest>,
        after: &Arc<TableManifest>,
        sender: &BatchSender,
    ) -> Result<bool> {
        let FileChanges { old, new } = diff_files(&self.table, before, after).await?;
        let old_reader = self.open_reader(before, old).await?;
        let new_reader = self.open_reader(after, new).await?;
        for (reader, other_reader, change_type) in [
            (&old_reader, &new_reader, DELETE),
            (&new_reader, &old_reader, INSERT),
        ] {
            let paths = other_reader.files.iter().map(|f| f.file.path.as_str());
            let positions: HashMap<&str, usize> = paths.zip(0..).collect();
            for file in 0..reader.files.len() {
                let data_file = &reader.files[file].file;
                let same_path = positions.get(data_file.path.as_str()).copied();
                let other_file = same_path
                    .filter(|other| other_reader.files[*other].file.has_rows_of(data_file));
                let part = reader.open_file(file).await?;
                for row_group in reader.all_row_groups(file, &part)? {
                    let mut mask = reader.live_row_mask(&row_group).await?;
                    if let Some(other_file) = other_file {
                        let other_group =
                            other_reader.row_group(other_file, &part, row_group.group)?;
                        mask = and_not(&mask, &other_reader.live_row_mask(&other_group).await?);
                    }
                    if mask.true_count() == 0 {
                        continue;
                    }
                    let batches = reader
                        .read_selected(
                            &row_group,
                            mask,
                            Arc::clone(&self.projection),
                            &self.selected,
                        )
                        .await?;
                    for batch in batches.into_iter().filter(|b| b.num_rows() > 0) {
                        let change_batch = self.with_change_columns(&batch, change_type, after)?;
                        if sender.send(Ok(change_batch)).await.is_err() {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    async fn open_reader(
        &self,
        manifest: &Arc<TableManifest>,
        files: Vec<SnapshotFile>,
    ) -> Result<SnapshotReader> {
        SnapshotReader::with_files(
            &self.table,
            Arc::clone(manifest),
            self.columns.clone(),
            files,
        )
        .await
    }

    fn with_change_columns(
        &self,
        batch: &RecordBatch,
        change_type: &str,
        manifest: &TableManifest,
    ) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let version = i64::try_from(manifest.version).unwrap_or(i64::MAX);
        let time = TimestampMicrosecondArray::from_value(manifest.created_at.as_micros(), rows);
        let change_values: [ArrayRef; 3] = [
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
                change_type,
                rows,
            ))),
            Arc::new(Int64Array::from_value(version, rows)),
            Arc::new(time.with_timezone("UTC")),
        ];
        let columns = batch
            .columns()
            .iter()
            .cloned()
            .chain(change_values)
            .collect();
        batch_with_row_count(&self.schema, columns, rows)
    }
}

impl Table {
    /// The error for a manifest that does not follow the version that was read before it:
    /// `VersionExpired` if that version is no longer retained, otherwise `ManifestCorrupted`.
    async fn broken_chain_error(&self, manifest: &TableManifest) -> Error {
        let previous = manifest.previous.unwrap_or_default();
        match self.newest().await {
            Ok(newest) if !newest.manifest.retains(previous) => {
                self.version_expired_error(previous, newest.manifest.header())
            }
            Ok(_) => {
                let reason = "it does not follow the commit of the version before it";
                corrupted_error(&names::manifest(manifest.version), reason).with_path(self.root())
            }
            Err(e) => e,
        }
    }
}

fn and_not(a: &BooleanArray, b: &BooleanArray) -> BooleanArray {
    BooleanArray::new(a.values() & &!b.values(), None)
}

async fn diff_files(
    table: &Table,
    before: &TableManifest,
    after: &TableManifest,
) -> Result<FileChanges> {
    let old_deletes = tombstones_not_in(before, after);
    let new_deletes = tombstones_not_in(after, before);
    let entries = old_deletes.iter().chain(&new_deletes);
    let segments: HashSet<&str> = entries
        .flat_map(|t| t.positions.keys())
        .map(String::as_str)
        .collect();
    let old_files = list_unshared_files(table, before, after, &segments).await?;
    let new_files = list_unshared_files(table, after, before, &segments).await?;
    let (old_by_path, new_by_path) = (by_path(&old_files), by_path(&new_files));
    // A tombstone file lists several data files, and one of them may have left the table and come back:
    // compare the pairs.
    let old_pairs = tombstoned_pairs(&old_deletes, &old_files);
    let new_pairs = tombstoned_pairs(&new_deletes, &new_files);
    let changed_pairs = old_pairs.symmetric_difference(&new_pairs);
    let mut touched_paths: HashSet<String> =
        changed_pairs.map(|(_, file)| (*file).to_owned()).collect();
    touched_paths.retain(
        |path| match (old_by_path.get(&**path), new_by_path.get(&**path)) {
            (Some(old), Some(new)) => old.file.has_rows_of(&new.file),
            (old, new) => old.is_none() && new.is_none(),
        },
    );
    let touched_new = find_by_path(table, after, &new_files, touched_paths).await?;
    // Those that neither list has are in a segment that both versions have.
    let touched_old = touched_new.iter().map(|file| {
        let listed = old_by_path.get(&*file.file.path);
        listed.copied().unwrap_or(file).clone()
    });
    // A file that left and came back may have other constants.
    let is_in = |f: &SnapshotFile, by_path: &HashMap<&str, &SnapshotFile>| {
        let same = by_path.get(&*f.file.path);
        same.is_some_and(|same| same.file.has_rows_of(&f.file))
    };
    let removed = old_files.iter().filter(|f| !is_in(f, &new_by_path));
    let added = new_files.iter().filter(|f| !is_in(f, &old_by_path));
    Ok(FileChanges {
        old: removed.cloned().chain(touched_old).collect(),
        new: touched_new.iter().chain(added).cloned().collect(),
    })
}

fn by_path(files: &[SnapshotFile]) -> HashMap<&str, &SnapshotFile> {
    files.iter().map(|f| (&*f.file.path, f)).collect()
}

/// The tombstones of a version, without the positions that another version has as well.
fn tombstones_not_in(manifest: &TableManifest, other: &TableManifest) -> Vec<Tombstones> {
    let others = other.tombstones.iter().map(|t| (&*t.path, &t.positions));
    let other_positions: HashMap<&str, _> = others.collect();
    let mut tombstones = manifest.tombstones.clone();
    for entry in &mut tombstones {
        if let Some(others) = other_positions.get(&*entry.path) {
            let positions = &mut entry.positions;
            positions.retain(|segment, positions| others.get(segment) != Some(positions));
        }
    }
    tombstones
}

/// The pairs of a tombstone file and a data file that it is about.
fn tombstoned_pairs<'a>(
    tombstones: &'a [Tombstones],
    files: &'a [SnapshotFile],
) -> HashSet<(&'a str, &'a str)> {
    // A file that is named by its path may be in a segment that is not read.
    let by_path = tombstones.iter().flat_map(|t| {
        let paths = t.files.iter();
        paths.map(|path| (&*t.path, &**path))
    });
    let mut pairs = tombstoned_files(tombstones, &FileIndex::of_files(files));
    pairs.extend(by_path);
    pairs
}

/// The files of a snapshot, without those in segments that the other snapshot has unchanged and that are not among `others`.
async fn list_unshared_files(
    table: &Table,
    manifest: &TableManifest,
    other: &TableManifest,
    touched: &HashSet<&str>,
) -> Result<Vec<SnapshotFile>> {
    let other_segments: HashMap<&str, &Segment> = other
        .segments
        .iter()
        .map(|s| (s.path.as_str(), s))
        .collect();
    let is_unshared = |s: &Segment| {
        touched.contains(s.path.as_str()) || other_segments.get(s.path.as_str()) != Some(&s)
    };
    let selected: Vec<bool> = manifest.segments.iter().map(is_unshared).collect();
    listing::list_files(table, manifest, &selected, None).await
}

/// The files of a snapshot with these paths: from `listed`, and if some are not there, from all segments.
async fn find_by_path(
    table: &Table,
    manifest: &TableManifest,
    listed: &[SnapshotFile],
    mut paths: HashSet<String>,
) -> Result<Vec<SnapshotFile>> {
    let mut matching: Vec<SnapshotFile> = Vec::new();
    let take = |files: &[SnapshotFile], paths: &mut HashSet<String>, matching: &mut Vec<_>| {
        for file in files {
            if paths.remove(&file.file.path) {
                matching.push(file.clone());
            }
        }
    };
    take(listed, &mut paths, &mut matching);
    if !paths.is_empty() {
        take(
            &listing::all_files(table, manifest).await?,
            &mut paths,
            &mut matching,
        );
    }
    Ok(matching)
}
