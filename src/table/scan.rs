//! Streams the rows of a snapshot, in the order of its files.

use std::sync::Arc;

use super::Table;
use super::format::TableManifest;
use super::snapshot_reader::SnapshotReader;
use crate::error::Result;
use crate::files::{BatchStream, ScanOptions, stream_all};

/// Streams a snapshot's rows. Files and row groups are read ahead of the consumer.
///
/// Fails if the snapshot lacks a column of `options`.
pub async fn scan(
    table: &Table,
    manifest: Arc<TableManifest>,
    options: ScanOptions,
) -> Result<BatchStream> {
    let reader = SnapshotReader::new(table, manifest, options.filter.clone()).await?;
    stream_all(reader, &options)
}
