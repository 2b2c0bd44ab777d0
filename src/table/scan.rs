//! Streams the rows of a snapshot.

use std::sync::Arc;

use arrow_schema::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};

use super::Table;
use super::format::TableManifest;
use super::snapshot_reader::SnapshotReader;
use crate::error::{Error, Result};
use crate::files::expr::Filter;
use crate::files::{BatchSender, BatchStream};
use crate::parquet::Cancel;

/// Number of files opened ahead.
const FILES_AHEAD: usize = 8;
/// Number of row groups decoded ahead.
const ROW_GROUPS_AHEAD: usize = 2;

/// What to read of a snapshot.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// Names of columns, in the order of the output. Defaults to all.
    pub columns: Option<Vec<String>>,
    /// Selects rows. Defaults to all.
    pub filter: Option<Arc<Filter>>,
    /// Maximum number of rows. Defaults to no limit.
    pub limit: Option<u64>,
}

/// Streams a snapshot's rows. Files and row groups are read a little ahead of the consumer.
///
/// Fails if the snapshot lacks a column of `options`.
pub async fn scan(
    table: &Table,
    manifest: Arc<TableManifest>,
    options: ScanOptions,
) -> Result<BatchStream> {
    let reader = Arc::new(SnapshotReader::new(table, manifest, options.filter).await?);
    let columns = reader.columns.project(options.columns.as_deref())?;
    let files = (0..reader.files.len()).collect();
    stream_files(reader, files, columns, options.limit)
}

/// Streams rows of some files, by position in [`SnapshotReader::files`].
pub(super) fn stream_files(
    reader: Arc<SnapshotReader>,
    files: Vec<usize>,
    columns: Vec<usize>,
    limit: Option<u64>,
) -> Result<BatchStream> {
    let projected = reader.columns.schema.project(&columns);
    let projected_schema = projected.map_err(|e| Error::other(e.to_string()).with_source(e))?;
    let schema = Arc::new(projected_schema);
    let table_scan = TableScan {
        reader,
        files,
        columns,
        schema: Arc::clone(&schema),
    };
    let limit = limit.unwrap_or(u64::MAX);
    let cancel = Cancel::default();
    Ok(BatchStream::spawn(schema, &cancel, |sender| async move {
        Arc::new(table_scan).run(limit, &sender).await
    }))
}

struct TableScan {
    reader: Arc<SnapshotReader>,
    files: Vec<usize>,
    /// Positions among the table's columns.
    columns: Vec<usize>,
    schema: SchemaRef,
}

impl TableScan {
    async fn run(self: Arc<Self>, limit: u64, sender: &BatchSender) -> Result<()> {
        let table_scan = Arc::clone(&self);
        let files = stream::iter(self.files.clone())
            .map(move |file| {
                let table_scan = Arc::clone(&table_scan);
                async move { table_scan.reader.open_row_groups(file).await }
            })
            .buffered(FILES_AHEAD);
        let row_groups = files.map_ok(|row_groups| stream::iter(row_groups.into_iter().map(Ok)));
        let table_scan = Arc::clone(&self);
        let mut batch_stream = row_groups
            .try_flatten()
            .map_ok(move |row_group| {
                let table_scan = Arc::clone(&table_scan);
                async move {
                    table_scan
                        .reader
                        .read(&row_group, &table_scan.columns, &table_scan.schema)
                        .await
                }
            })
            .try_buffered(ROW_GROUPS_AHEAD)
            .boxed();
        let mut remaining = limit;
        while remaining > 0 {
            let Some(batches) = batch_stream.try_next().await? else {
                break;
            };
            for batch in batches {
                let max_rows = usize::try_from(remaining).unwrap_or(usize::MAX);
                let batch = batch.slice(0, batch.num_rows().min(max_rows));
                remaining -= batch.num_rows() as u64;
                if batch.num_rows() > 0 && sender.send(Ok(batch)).await.is_err() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
