//! The rows of a snapshot as a stream.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::filter::Filter;
use super::format::Manifest;
use super::rows::Rows;
use super::schema::Columns;
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::part::{BatchSender, Scan};

/// Files opened ahead.
const FILES_AHEAD: usize = 8;
/// Row groups decoded ahead.
const GROUPS_AHEAD: usize = 2;

/// What of a snapshot is wanted.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Columns in the order wanted; None is all.
    pub columns: Option<Vec<String>>,
    /// The rows for which it holds; None is all.
    pub filter: Option<Arc<Filter>>,
    /// So many rows at most.
    pub limit: Option<u64>,
}

/// Streams a snapshot's rows. Files and row groups are read a little ahead of who takes them.
pub async fn scan(table: &Table, manifest: Arc<Manifest>, wanted: Wanted) -> Result<Scan> {
    scan_files(table, manifest, wanted, None).await
}

/// As [`scan`], of some files only, by position in the manifest.
pub(super) async fn scan_files(
    table: &Table,
    manifest: Arc<Manifest>,
    wanted: Wanted,
    files: Option<&[usize]>,
) -> Result<Scan> {
    let all = Columns::of(&manifest)?;
    let columns = all.project(wanted.columns.as_deref())?;
    let schema = all.schema.project(&columns);
    let schema = schema.map_err(|e| Error::other(e.to_string()).caused_by(e))?;
    let schema = Arc::new(schema);
    let mut rows = Rows::new(table, manifest, wanted.filter).await?;
    if let Some(files) = files {
        rows.files.retain(|file| files.contains(file));
    }
    let job = Job {
        rows,
        columns,
        schema: Arc::clone(&schema),
    };
    let limit = wanted.limit.unwrap_or(u64::MAX);
    let cancel = Cancel::default();
    Ok(Scan::start(schema, &cancel, |sender| async move {
        Arc::new(job).run(limit, &sender).await
    }))
}

struct Job {
    rows: Rows,
    /// Positions among all columns.
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl Job {
    async fn run(self: Arc<Self>, limit: u64, sender: &BatchSender) -> Result<()> {
        let job = Arc::clone(&self);
        let files = stream::iter(self.rows.files.clone())
            .map(move |file| {
                let job = Arc::clone(&job);
                async move { job.rows.open(file).await }
            })
            .buffered(FILES_AHEAD);
        let units = files.map_ok(|units| stream::iter(units.into_iter().map(Ok)));
        let job = Arc::clone(&self);
        let mut read = units
            .try_flatten()
            .map_ok(move |unit| {
                let job = Arc::clone(&job);
                async move { job.rows.read(&unit, &job.columns, &job.schema).await }
            })
            .try_buffered(GROUPS_AHEAD)
            .boxed();
        let mut left = limit;
        while left > 0 {
            let Some(batches) = read.try_next().await? else {
                break;
            };
            for batch in batches {
                let rows = usize::try_from(left).unwrap_or(usize::MAX);
                let batch = batch.slice(0, batch.num_rows().min(rows));
                left -= batch.num_rows() as u64;
                if batch.num_rows() > 0 && sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
