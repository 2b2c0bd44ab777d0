//! The rows of a snapshot as a stream.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::filter::Filter;
use super::format::Manifest;
use super::rows::SnapshotReader;
use crate::error::{Error, Result};
use crate::parquet::Cancel;
use crate::part::{BatchSender, BatchStream};

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
pub async fn scan(table: &Table, manifest: Arc<Manifest>, wanted: Wanted) -> Result<BatchStream> {
    let rows = Arc::new(SnapshotReader::new(table, manifest, wanted.filter).await?);
    let columns = rows.columns.project(wanted.columns.as_deref())?;
    let files = (0..rows.files.len()).collect();
    stream_files(rows, files, columns, wanted.limit)
}

/// Streams the rows of some files, by position in [`Rows::files`].
pub(super) fn stream_files(
    rows: Arc<SnapshotReader>,
    files: Vec<usize>,
    columns: Vec<usize>,
    limit: Option<u64>,
) -> Result<BatchStream> {
    let schema = rows.columns.schema.project(&columns);
    let schema = schema.map_err(|e| Error::other(e.to_string()).with_source(e))?;
    let schema = Arc::new(schema);
    let job = Job {
        rows,
        files,
        columns,
        schema: Arc::clone(&schema),
    };
    let limit = limit.unwrap_or(u64::MAX);
    let cancel = Cancel::default();
    Ok(BatchStream::spawn(schema, &cancel, |sender| async move {
        Arc::new(job).run(limit, &sender).await
    }))
}

struct Job {
    rows: Arc<SnapshotReader>,
    files: Vec<usize>,
    /// Positions among all columns.
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl Job {
    async fn run(self: Arc<Self>, limit: u64, sender: &BatchSender) -> Result<()> {
        let job = Arc::clone(&self);
        let files = stream::iter(self.files.clone())
            .map(move |file| {
                let job = Arc::clone(&job);
                async move { job.rows.open_row_groups(file).await }
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
