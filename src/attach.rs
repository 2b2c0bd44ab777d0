//! Chains of tables and datasets: [`attach_table`] and [`attach_dataset`] record the history of a schema, so that it can
//! be read without a data file.
//!
//! The chain of a table is in its folder `_odf`, that of a dataset in `_odf/<key>` of its store. What a chain records,
//! and how, says [`crate::odf::attach`].
//!
//! Errors: [`crate::ErrorKind::NotFound`] (no table, no dataset), and those of [`crate::odf::attach`].

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};

use crate::dataset::{open_dataset, read_manifest};
use crate::error::{Error, Result};
use crate::odf::attach::{Position, SchemaSource, SourceVersion, TableVersion, record_schemas};
use crate::odf::{Attached, Chain, UtcDateTime, parse_time};
use crate::store::{Store, path};
use crate::table::format::TableManifest;
use crate::table::{Table, TableColumns};
use crate::versions::map_versions;

const FOLDER: &str = "_odf";

/// Creates the chain of a table or brings it up to date, and retries until `timeout` while other writers come first.
pub async fn attach_table(table: &Table, timeout: Duration) -> Result<Attached> {
    let chain = Chain::new(table.store().clone(), &table.path(FOLDER))?;
    record_schemas(chain, table, timeout).await
}

/// As [`attach_table`], for the dataset `key` of a store of datasets.
pub async fn attach_dataset(store: &Store, key: &str, timeout: Duration) -> Result<Attached> {
    let chain = Chain::new(store.clone(), &path::join(FOLDER, key))?;
    let source = DatasetSource {
        store: store.clone(),
        key: key.to_owned(),
    };
    record_schemas(chain, &source, timeout).await
}

impl SchemaSource for Table {
    async fn versions_after(&self, position: &Position) -> Result<Vec<SourceVersion>> {
        table_versions_after(self, position).await
    }
}

/// A dataset, which has one version at a time.
struct DatasetSource {
    store: Store,
    key: String,
}

impl SchemaSource for DatasetSource {
    async fn versions_after(&self, _: &Position) -> Result<Vec<SourceVersion>> {
        // A dataset that does not exist is not found; opening it says that it is incomplete.
        read_manifest(&self.store, &self.key).await?;
        let dataset = open_dataset(&self.store, &self.key).await?;
        Ok(vec![SourceVersion {
            time: parse_utc(&dataset.manifest().created_at_utc)?,
            version: None,
            schema: dataset.schema().as_ref().clone(),
        }])
    }
}

async fn table_versions_after(table: &Table, position: &Position) -> Result<Vec<SourceVersion>> {
    let newest = table.newest().await?.manifest;
    let all = newest.version;
    let limit = match position {
        // The recorded version is read, too: its commit tells whether it is still the same.
        Position::Version(recorded) if recorded.number <= newest.version => {
            newest.version - recorded.number + 1
        }
        // A table that was set back, or created anew, is recorded from its oldest version on.
        _ => all,
    };
    let versions = read_versions(table, &newest, position, limit).await?;
    if let Position::Version(recorded) = position
        && limit < all
        && let Some(oldest) = versions.first().and_then(|oldest| oldest.version.as_ref())
        && oldest.number == recorded.number
        && recorded.is_replaced_by(oldest)
    {
        return read_versions(table, &newest, position, all).await;
    }
    Ok(versions)
}

/// Reads the last `limit` versions that the position does not rule out, oldest first.
async fn read_versions(
    table: &Table,
    newest: &TableManifest,
    position: &Position,
    limit: u64,
) -> Result<Vec<SourceVersion>> {
    let is_missing = |manifest: &TableManifest| match position {
        Position::Time(recorded) => {
            manifest.created_at.as_micros() > recorded.timestamp_micros()
                || manifest.version == newest.version
        }
        Position::Start | Position::Version(_) => true,
    };
    let read = |manifest: &TableManifest| is_missing(manifest).then(|| source_version(manifest));
    let versions = map_versions(table, newest, limit, read).await?;
    versions.into_iter().rev().flatten().collect()
}

fn source_version(manifest: &TableManifest) -> Result<SourceVersion> {
    let micros = manifest.created_at.as_micros();
    let out_of_range = || Error::invalid(format!("timestamp out of range: {micros} µs"));
    Ok(SourceVersion {
        time: DateTime::from_timestamp_micros(micros).ok_or_else(out_of_range)?,
        version: Some(TableVersion {
            number: manifest.version,
            commit_id: Some(manifest.commit_id.as_str().to_owned()),
        }),
        schema: TableColumns::from_manifest(manifest)?
            .schema
            .as_ref()
            .clone(),
    })
}

/// Parses a time of a manifest of a dataset; one without a zone is UTC.
fn parse_utc(text: &str) -> Result<UtcDateTime> {
    match text.parse::<NaiveDateTime>() {
        Ok(without_zone) => Ok(without_zone.and_utc()),
        Err(_) => parse_time(text),
    }
}
