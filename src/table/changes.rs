//! What happened to the rows between two versions: inserts and deletes, commit by commit.
//!
//! Files that came are inserts, files that went are deletes, and of files that stayed the rows that are
//! deleted in one version and not in the other. A compaction changes no rows and is passed over, unless
//! it left out a column that was dropped then and is there again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use futures::{StreamExt, stream};

use super::Table;
use super::format::{Segment, TableManifest, corrupted_error};
use super::listing::{self, SnapshotFile};
use super::names;
use super::schema::TableColumns;
use super::snapshot_reader::SnapshotReader;
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::parquet::types::batch_with_row_count;
use crate::part::{BatchSender, BatchStream};

/// Manifests read ahead.
const VERSIONS_AHEAD: usize = 16;
/// Operations after which there are the same rows.
const REWRITE_OPERATIONS: [&str; 2] = ["compact", "sort"];
const INSERT: &str = "insert";
const DELETE: &str = "delete";

/// The columns that tell of a change, with the names that Delta Lake gives them.
fn change_columns() -> [Field; 3] {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    [
        Field::new("_change_type", DataType::Utf8, false),
        Field::new("_commit_version", DataType::Int64, false),
        Field::new("_commit_timestamp", time, false),
    ]
}

/// Streams the changes after `since` up to `until`, as rows with the columns of `until`.
pub fn scan_changes(
    table: &Table,
    since: Arc<TableManifest>,
    until: Arc<TableManifest>,
) -> Result<BatchStream> {
    if since.version > until.version {
        let message = format!(
            "changes are from an older version to a newer one, not from {} to {}",
            since.version, until.version
        );
        return Err(Error::invalid(message));
    }
    let table_columns = TableColumns::from_manifest(&until)?;
    let change_fields = change_columns();
    if let Some(reserved) = change_fields
        .iter()
        .find(|f| table_columns.schema.index_of(f.name()).is_ok())
    {
        let message = format!(
            "the table has a column {:?} of its own; rename it",
            reserved.name()
        );
        return Err(Error::invalid(message));
    }
    // Rows of older versions may have nulls where there may be none now.
    let table_fields = table_columns.schema.fields().iter();
    let nullable = table_fields.map(|f| Arc::new(f.as_ref().clone().with_nullable(true)));
    let nullable_fields: Vec<FieldRef> = nullable.collect();
    let metadata = table_columns.schema.metadata().clone();
    let columns = TableColumns {
        schema: Arc::new(Schema::new_with_metadata(
            nullable_fields.clone(),
            metadata.clone(),
        )),
        ..table_columns
    };
    let fields: Vec<FieldRef> = nullable_fields
        .into_iter()
        .chain(change_fields.map(Arc::new))
        .collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let change_scan = ChangeScan {
        table: table.clone(),
        columns,
        schema: Arc::clone(&schema),
    };
    Ok(BatchStream::spawn(
        schema,
        &Cancel::default(),
        |sender| async move { change_scan.run(since, until, &sender).await },
    ))
}

struct ChangeScan {
    table: Table,
    columns: TableColumns,
    schema: SchemaRef,
}

/// Files in which two versions differ.
struct FileChanges {
    removed: Vec<SnapshotFile>,
    added: Vec<SnapshotFile>,
    /// Files that both have, with other deleted rows.
    with_changed_deletes: Vec<SnapshotFile>,
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
                None => Arc::clone(&until),
            };
            // Between a tagged version and the oldest one a late manifest may have taken an empty slot.
            if after.recent_commits.first() != Some(&before.commit_id) {
                return Err(self.table.broken_chain_error(&after).await);
            }
            if !self.has_same_rows(&after) && !self.send_changes(&before, &after, sender).await? {
                return Ok(());
            }
            before = after;
        }
        Ok(())
    }

    /// Whether a commit only wrote the rows again, with all the columns that are told.
    fn has_same_rows(&self, after: &TableManifest) -> bool {
        // A column that was added later has no values yet.
        let is_dropped = |id: &u32| {
            let mut columns = after.schema.columns.iter();
            *id <= after.schema.last_id && columns.all(|column| column.id != *id)
        };
        let is_rewrite = REWRITE_OPERATIONS.contains(&after.operation.name.as_str());
        is_rewrite && !self.columns.ids.iter().any(is_dropped)
    }

    /// The changes of one commit; false when nobody takes them any more.
    async fn send_changes(
        &self,
        before: &Arc<TableManifest>,
        after: &Arc<TableManifest>,
        sender: &BatchSender,
    ) -> Result<bool> {
        let FileChanges {
            removed,
            added,
            with_changed_deletes,
        } = diff_files(&self.table, before, after).await?;
        let old_files: Vec<SnapshotFile> = removed
            .into_iter()
            .chain(with_changed_deletes.iter().cloned())
            .collect();
        let old_reader = self.open_reader(before, old_files.clone()).await?;
        let new_reader = self
            .open_reader(
                after,
                with_changed_deletes.into_iter().chain(added).collect(),
            )
            .await?;
        for (reader, other_reader, change_type) in [
            (&old_reader, &new_reader, DELETE),
            (&new_reader, &old_reader, INSERT),
        ] {
            let paths = other_reader.files.iter().map(|f| f.file.path.as_str());
            let positions: HashMap<&str, usize> = paths.zip(0..).collect();
            for file in 0..reader.files.len() {
                let other_file = positions
                    .get(reader.files[file].file.path.as_str())
                    .copied();
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
                        .read_selected(&row_group, mask, &self.columns.schema)
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
    /// Why a manifest was not made from the one before it that was read.
    async fn broken_chain_error(&self, manifest: &TableManifest) -> Error {
        let previous = manifest.previous.unwrap_or_default();
        match self.newest().await {
            Ok(newest) if !newest.manifest.retains(previous) => {
                self.version_expired_error(previous, &newest.manifest)
            }
            Ok(_) => {
                let reason = "it was not made from the version before it";
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
    let old_files = list_unshared_files(table, before, after).await?;
    let new_files = list_unshared_files(table, after, before).await?;
    let paths = |files: &[SnapshotFile]| -> HashSet<String> {
        files.iter().map(|f| f.file.path.clone()).collect()
    };
    let (old_paths, new_paths) = (paths(&old_files), paths(&new_files));
    // A tombstone file says of each of its files by itself: one of them may have left and come back.
    let deletions = |a: &TableManifest, b: &TableManifest| -> HashSet<String> {
        let tombstoned_files = |m: &TableManifest| -> HashSet<(String, String)> {
            let tombstones = m.tombstones.iter();
            let pairs =
                tombstones.flat_map(|t| t.files.iter().map(|f| (t.path.clone(), f.clone())));
            pairs.collect()
        };
        let added_pairs = &tombstoned_files(a) - &tombstoned_files(b);
        added_pairs.into_iter().map(|(_, file)| file).collect()
    };
    let mut touched_paths: HashSet<String> = deletions(after, before);
    touched_paths.extend(deletions(before, after));
    touched_paths.retain(|path| !(old_paths.contains(path) ^ new_paths.contains(path)));
    let with_changed_deletes = find_by_path(table, after, &new_files, touched_paths).await?;
    Ok(FileChanges {
        removed: old_files
            .into_iter()
            .filter(|f| !new_paths.contains(&f.file.path))
            .collect(),
        added: new_files
            .into_iter()
            .filter(|f| !old_paths.contains(&f.file.path))
            .collect(),
        with_changed_deletes,
    })
}

/// The files of a snapshot, without the segments that another has just so.
async fn list_unshared_files(
    table: &Table,
    manifest: &TableManifest,
    other: &TableManifest,
) -> Result<Vec<SnapshotFile>> {
    let other_segments: HashMap<&str, &Segment> = other
        .segments
        .iter()
        .map(|s| (s.path.as_str(), s))
        .collect();
    let is_unshared = |s: &Segment| other_segments.get(s.path.as_str()) != Some(&s);
    let selected: Vec<bool> = manifest.segments.iter().map(is_unshared).collect();
    listing::list_files(table, manifest, &selected).await
}

/// Files by their paths, those in segments included.
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
