//! A snapshot of Parquet files that are listed outside a table, to be scanned like a table's version.

use super::actions::NewTable;
use super::format::TableManifest;
use crate::error::Result;
use crate::files::ExternalFiles;

/// Builds a snapshot of files. Fails if a table cannot have their schema.
pub fn external_snapshot(files: &ExternalFiles) -> Result<TableManifest> {
    let new_table = NewTable::new(&files.schema, &[], &[])?;
    let columns = new_table.schema.columns.iter();
    let names = columns.map(|column| (column.id, column.name.clone()));
    let data_files = files.entries(&names.collect());
    let mut manifest = new_table.into_manifest(0, chrono::DateTime::UNIX_EPOCH);
    manifest.data_files = data_files;
    Ok(manifest)
}
