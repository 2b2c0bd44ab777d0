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
use super::format::{Manifest, Segment, corrupted};
use super::listing::{self, ListedFile};
use super::names;
use super::rows::Rows;
use super::schema::Columns;
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::parquet::types::batch_with_row_count;
use crate::part::{BatchSender, BatchStream};

/// Manifests read ahead.
const VERSIONS_AHEAD: usize = 16;
/// Operations after which there are the same rows.
const SAME_ROWS: [&str; 2] = ["compact", "sort"];
const INSERT: &str = "insert";
const DELETE: &str = "delete";

/// The columns that tell of a change, with the names that Delta Lake gives them.
fn told() -> [Field; 3] {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    [
        Field::new("_change_type", DataType::Utf8, false),
        Field::new("_commit_version", DataType::Int64, false),
        Field::new("_commit_timestamp", time, false),
    ]
}

/// Streams the changes after `since` up to `until`, as rows with the columns of `until`.
pub fn changes(table: &Table, since: Arc<Manifest>, until: Arc<Manifest>) -> Result<BatchStream> {
    if since.version > until.version {
        let message = format!(
            "changes are from an older version to a newer one, not from {} to {}",
            since.version, until.version
        );
        return Err(Error::invalid(message));
    }
    let columns = Columns::of(&until)?;
    let told = told();
    if let Some(taken) = told
        .iter()
        .find(|f| columns.schema.index_of(f.name()).is_ok())
    {
        let message = format!(
            "the table has a column {:?} of its own; rename it",
            taken.name()
        );
        return Err(Error::invalid(message));
    }
    // Rows of older versions may have nulls where there may be none now.
    let fields = columns.schema.fields().iter();
    let fields = fields.map(|f| Arc::new(f.as_ref().clone().with_nullable(true)));
    let fields: Vec<FieldRef> = fields.collect();
    let metadata = columns.schema.metadata().clone();
    let columns = Columns {
        schema: Arc::new(Schema::new_with_metadata(fields.clone(), metadata.clone())),
        ..columns
    };
    let fields: Vec<FieldRef> = fields.into_iter().chain(told.map(Arc::new)).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let job = Job {
        table: table.clone(),
        columns,
        schema: Arc::clone(&schema),
    };
    Ok(BatchStream::spawn(
        schema,
        &Cancel::default(),
        |sender| async move { job.run(since, until, &sender).await },
    ))
}

struct Job {
    table: Table,
    columns: Columns,
    schema: SchemaRef,
}

/// Files in which two versions differ.
struct Difference {
    gone: Vec<ListedFile>,
    new: Vec<ListedFile>,
    /// Files that both have, with other deleted rows.
    touched: Vec<ListedFile>,
}

impl Job {
    async fn run(
        self,
        since: Arc<Manifest>,
        until: Arc<Manifest>,
        sender: &BatchSender,
    ) -> Result<()> {
        let between: Vec<u64> = (since.version + 1..until.version).collect();
        let table = &self.table;
        let mut read = stream::iter(between)
            .map(|version| async move {
                match table.manifest(version).await {
                    Ok(Some(manifest)) => Ok(Arc::new(manifest)),
                    Ok(None) => table.at(version).await,
                    Err(e) => Err(e),
                }
            })
            .buffered(VERSIONS_AHEAD)
            .boxed();
        let mut before = since;
        while before.version < until.version {
            let after = match read.next().await {
                Some(after) => after?,
                None => Arc::clone(&until),
            };
            // Between a tagged version and the oldest one a late manifest may have taken an empty slot.
            if after.recent_commits.first() != Some(&before.commit_id) {
                return Err(self.table.broken_chain(&after).await);
            }
            if !self.has_same_rows(&after) && !self.step(&before, &after, sender).await? {
                return Ok(());
            }
            before = after;
        }
        Ok(())
    }

    /// Whether a commit only wrote the rows again, with all the columns that are told.
    fn has_same_rows(&self, after: &Manifest) -> bool {
        // A column that was added later has no values yet.
        let is_dropped = |id: &u32| {
            let mut columns = after.schema.columns.iter();
            *id <= after.schema.last_id && columns.all(|column| column.id != *id)
        };
        let is_rewrite = SAME_ROWS.contains(&after.operation.name.as_str());
        is_rewrite && !self.columns.ids.iter().any(is_dropped)
    }

    /// The changes of one commit; false when nobody takes them any more.
    async fn step(
        &self,
        before: &Arc<Manifest>,
        after: &Arc<Manifest>,
        sender: &BatchSender,
    ) -> Result<bool> {
        let Difference { gone, new, touched } = difference(&self.table, before, after).await?;
        let both: Vec<ListedFile> = gone.into_iter().chain(touched.iter().cloned()).collect();
        let old = self.rows(before, both.clone()).await?;
        let now = self
            .rows(after, touched.into_iter().chain(new).collect())
            .await?;
        for (rows, other, change) in [(&old, &now, DELETE), (&now, &old, INSERT)] {
            let paths = other.files.iter().map(|f| f.file.path.as_str());
            let places: HashMap<&str, usize> = paths.zip(0..).collect();
            for file in 0..rows.files.len() {
                let there = places.get(rows.files[file].file.path.as_str()).copied();
                let part = rows.part(file).await?;
                for unit in rows.every_unit(file, &part)? {
                    let mut kept = rows.alive(&unit).await?;
                    if let Some(there) = there {
                        let unit = other.unit(there, &part, unit.group)?;
                        kept = and_not(&kept, &other.alive(&unit).await?);
                    }
                    if kept.true_count() == 0 {
                        continue;
                    }
                    let batches = rows.read_kept(&unit, kept, &self.columns.schema).await?;
                    for batch in batches.into_iter().filter(|b| b.num_rows() > 0) {
                        let batch = self.tell(&batch, change, after)?;
                        if sender.send(Ok(batch)).await.is_err() {
                            return Ok(false);
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    async fn rows(&self, manifest: &Arc<Manifest>, files: Vec<ListedFile>) -> Result<Rows> {
        Rows::of(
            &self.table,
            Arc::clone(manifest),
            self.columns.clone(),
            files,
        )
        .await
    }

    fn tell(&self, batch: &RecordBatch, change: &str, made: &Manifest) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let version = i64::try_from(made.version).unwrap_or(i64::MAX);
        let time = TimestampMicrosecondArray::from_value(made.created_at.micros(), rows);
        let told: [ArrayRef; 3] = [
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
                change, rows,
            ))),
            Arc::new(Int64Array::from_value(version, rows)),
            Arc::new(time.with_timezone("UTC")),
        ];
        let columns = batch.columns().iter().cloned().chain(told).collect();
        batch_with_row_count(&self.schema, columns, rows)
    }
}

impl Table {
    /// Why a manifest was not made from the one before it that was read.
    async fn broken_chain(&self, manifest: &Manifest) -> Error {
        let previous = manifest.previous.unwrap_or_default();
        match self.newest().await {
            Ok(newest) if !newest.manifest.keeps(previous) => {
                self.expired(previous, &newest.manifest)
            }
            Ok(_) => {
                let why = "it was not made from the version before it";
                corrupted(&names::manifest(manifest.version), why).with_path(self.root())
            }
            Err(e) => e,
        }
    }
}

fn and_not(a: &BooleanArray, b: &BooleanArray) -> BooleanArray {
    BooleanArray::new(a.values() & &!b.values(), None)
}

async fn difference(table: &Table, before: &Manifest, after: &Manifest) -> Result<Difference> {
    let old = own_files(table, before, after).await?;
    let new = own_files(table, after, before).await?;
    let paths = |files: &[ListedFile]| -> HashSet<String> {
        files.iter().map(|f| f.file.path.clone()).collect()
    };
    let (had, has) = (paths(&old), paths(&new));
    // A tombstone file says of each of its files by itself: one of them may have left and come back.
    let deletions = |a: &Manifest, b: &Manifest| -> HashSet<String> {
        let about = |m: &Manifest| -> HashSet<(String, String)> {
            let pairs = m.tombstones.iter();
            let pairs = pairs.flat_map(|t| t.files.iter().map(|f| (t.path.clone(), f.clone())));
            pairs.collect()
        };
        let own = &about(a) - &about(b);
        own.into_iter().map(|(_, file)| file).collect()
    };
    let mut touched: HashSet<String> = deletions(after, before);
    touched.extend(deletions(before, after));
    touched.retain(|path| !(had.contains(path) ^ has.contains(path)));
    let touched = named(table, after, &new, touched).await?;
    Ok(Difference {
        gone: old
            .into_iter()
            .filter(|f| !has.contains(&f.file.path))
            .collect(),
        new: new
            .into_iter()
            .filter(|f| !had.contains(&f.file.path))
            .collect(),
        touched,
    })
}

/// The files of a snapshot, without the segments that another has just so.
async fn own_files(
    table: &Table,
    manifest: &Manifest,
    other: &Manifest,
) -> Result<Vec<ListedFile>> {
    let known: HashMap<&str, &Segment> = other
        .segments
        .iter()
        .map(|s| (s.path.as_str(), s))
        .collect();
    let own = |s: &Segment| known.get(s.path.as_str()) != Some(&s);
    let wanted: Vec<bool> = manifest.segments.iter().map(own).collect();
    listing::files(table, manifest, &wanted).await
}

/// Files by their paths, those in segments included.
async fn named(
    table: &Table,
    manifest: &Manifest,
    known: &[ListedFile],
    mut paths: HashSet<String>,
) -> Result<Vec<ListedFile>> {
    let mut found: Vec<ListedFile> = Vec::new();
    let take = |files: &[ListedFile], paths: &mut HashSet<String>, found: &mut Vec<_>| {
        for file in files {
            if paths.remove(&file.file.path) {
                found.push(file.clone());
            }
        }
    };
    take(known, &mut paths, &mut found);
    if !paths.is_empty() {
        take(
            &listing::all_files(table, manifest).await?,
            &mut paths,
            &mut found,
        );
    }
    Ok(found)
}
