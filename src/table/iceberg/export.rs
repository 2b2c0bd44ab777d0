//! An export of the newest version.
//!
//! Metadata is written of the newest version only; versions between two exports stay out of it. What is named is
//! written first: manifests, their list, the metadata, and then the hint that names it. Exports that run at once write
//! the same metadata; the slower one adopts what is there, if it is for the same columns and location. If a vacuum
//! removes the version meanwhile, the export starts again with the newest one. Before anything is written, an export
//! that is there is checked: it has to be of this table, else the error is `ExportConflict`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::folder::{self, FOLDER, Listing};
use super::manifests::{Content, ListedManifest};
use super::metadata::{self, IcebergExportState, IcebergMetadata, IcebergSnapshot, MAX_SNAPSHOTS};
use super::schema::IcebergSchema;
use super::snapshot_writer::{Previous, SnapshotWriter};
use crate::error::{Error, ErrorKind, Result};
use crate::sync::progress;
use crate::table::Table;
use crate::table::export::{
    LoadedVersion, is_of_table, keep_left_out, needs_encoding, read_identity, resolve_leave_out,
    resolve_rebuild, to_uuid,
};
use crate::table::format::TableManifest;
use crate::table::snapshot_file::SnapshotFile;

/// How often an export starts again because a vacuum removed versions during it.
const MAX_RESTARTS: u32 = 20;

/// What to export.
#[derive(Debug, Clone, Default)]
pub struct IcebergOptions {
    /// Where readers find the table's folder: its URL. None for that of the last export.
    pub location: Option<Location>,
    /// The names of columns to leave out; None for those of the last export.
    pub leave_out: Option<Vec<String>>,
    /// Whether metadata that is there is removed and written anew.
    pub rebuild: bool,
}

/// The URL of a table's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// As a user gave it.
    Given(String),
    /// As this process reaches the folder.
    OfStore(String),
    /// The same, if there is no export yet; else that of the last one.
    OfFirst(String),
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IcebergExport {
    /// The newest version that is exported.
    pub version: u64,
    /// The number of versions that were written.
    pub versions: u64,
    /// The bytes of all objects that were written.
    pub bytes: u64,
    /// The URL of the newest metadata.
    pub metadata_location: String,
}

/// Exports the newest version of a table, unless it is exported already.
pub async fn export_iceberg(table: &Table, options: &IcebergOptions) -> Result<IcebergExport> {
    progress::begin_phase("export to Iceberg");
    let mut options = options.clone();
    if options.rebuild {
        Box::pin(remove_metadata(table, &mut options)).await?;
    }
    for _ in 0..MAX_RESTARTS {
        match Box::pin(try_export(table, &options)).await {
            Ok(Some(export)) => return Ok(export),
            // A vacuum that found no export may have removed files of the version, or a rebuild the last export.
            Ok(None) => {}
            Err(e) if e.kind() == ErrorKind::VersionExpired => {}
            Err(e) => return Err(e),
        }
    }
    let message = format!(
        "gave up after {MAX_RESTARTS} attempts: vacuums removed versions, or rebuilds metadata, during every export; try again"
    );
    Err(Error::new(ErrorKind::Unavailable, message).with_path(table.root()))
}

/// Removes the metadata, unless the newest version cannot be exported. Without columns to leave out, those of the last export
/// are left out again.
async fn remove_metadata(table: &Table, options: &mut IcebergOptions) -> Result<()> {
    let newest = table.newest().await?.manifest;
    let metadata = Listing::list(table).await?.last(table).await?;
    let asked = match &options.leave_out {
        None => None,
        Some(names) => Some(resolve_leave_out(&newest, names)?),
    };
    let last = metadata
        .as_ref()
        .map(|(_, state)| (state.version, &state.commit_id, state.left_out.as_slice()));
    let left_out = resolve_rebuild(table, &newest, asked, last, "metadata").await?;
    let location = resolve_location(options.location.as_ref(), None)?;
    let version = LoadedVersion::load(table, Arc::clone(&newest)).await?;
    let plan = Plan::new(&version, left_out.clone(), location, None, 0)?;
    let mut writer = plan.writer(table, false);
    writer.write(&version, &Previous::default()).await?;
    folder::remove(table).await?;
    let columns = newest.schema.columns.iter();
    let left_out = columns.filter(|column| left_out.contains(&column.id));
    options.leave_out = Some(left_out.map(|column| column.name.clone()).collect());
    Ok(())
}

/// `None` to be tried again.
async fn try_export(table: &Table, options: &IcebergOptions) -> Result<Option<IcebergExport>> {
    let newest = table.newest().await?.manifest;
    let last = match Listing::list(table).await?.last(table).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        last => last?,
    };
    if let Some((_, state)) = &last {
        match is_of_table(table, &newest, state.version, &state.commit_id).await? {
            Some(true) => {}
            Some(false) => return Err(folder::other_table_error(table, state.version)),
            None => return Err(unknown_error(table, state.version)),
        }
    }
    let asked = match &options.leave_out {
        None => None,
        Some(names) => Some(resolve_leave_out(&newest, names)?),
    };
    let left_out = match &last {
        None => asked.unwrap_or_default(),
        Some((_, state)) => {
            keep_left_out(&newest, &state.left_out, state.last_id, asked.as_deref())?
        }
    };
    let location = resolve_location(options.location.as_ref(), last.as_ref())?;
    let mut written = (0, 0);
    let (metadata, version) = match last {
        // Another export may have seen a newer version.
        Some((last, state)) if state.version >= newest.version => (last, state.version),
        last => {
            let version = LoadedVersion::load(table, Arc::clone(&newest)).await?;
            let new_epoch = table.store().clock().new_id();
            let plan = Plan::new(&version, left_out, location, last.as_ref(), new_epoch)?;
            let last = last.map(|(metadata, _)| metadata);
            let (metadata, bytes) = Box::pin(write(table, &version, &plan, last)).await?;
            written = (1, bytes);
            (metadata, newest.version)
        }
    };
    folder::name_newest(table, version).await?;
    let listing = Listing::list(table).await?;
    let newest = table.newest().await?.manifest;
    if version <= newest.version && !newest.retains(version) {
        return Ok(None);
    }
    folder::remove_expired(table, &listing, &newest).await?;
    let (versions, bytes) = written;
    Ok(Some(IcebergExport {
        version,
        versions,
        bytes,
        metadata_location: format!("{}/{FOLDER}/{}", metadata.location, folder::name(version)),
    }))
}

fn unknown_error(table: &Table, version: u64) -> Error {
    let message = format!(
        "version {version} of the Iceberg metadata has expired, and it is not known whether it is of this table or of one \
         that was here before; export_iceberg(rebuild=True, leave_out=[...]) removes the metadata and writes new metadata"
    );
    Error::new(ErrorKind::ExportConflict, message).with_path(table.root())
}

/// A location without a slash at its end. Refuses what readers of Iceberg do not understand.
fn check_location(location: &str) -> Result<&str> {
    let location = location.trim_end_matches('/');
    let path = match location.split_once("://") {
        Some((scheme, path)) if !scheme.is_empty() && !needs_encoding(scheme) => path,
        _ => location.strip_prefix('/').unwrap_or_default(),
    };
    if location.starts_with("az://") {
        return Err(Error::invalid(
            "readers of Iceberg do not know az://: give location, as abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
        ));
    }
    if path.is_empty() || needs_encoding(path) {
        return Err(Error::invalid(format!(
            "location must be the URL of the table's folder, or an absolute path, without characters that URLs escape, not \
             {location:?}"
        )));
    }
    Ok(location)
}

/// Refuses a location that readers of Iceberg do not understand.
pub fn check_iceberg_location(location: &str) -> Result<()> {
    check_location(location).map(drop)
}

/// A location without a slash at its end, and whether it is that of the store.
fn resolve_location(
    asked: Option<&Location>,
    last: Option<&(IcebergMetadata, IcebergExportState)>,
) -> Result<(String, bool)> {
    let (location, is_default) = match (asked, last) {
        (None | Some(Location::OfFirst(_)), Some((last, state))) => {
            return Ok((last.location.clone(), state.is_default_location));
        }
        (None, None) => return Err(Error::invalid("an export needs a location")),
        (Some(Location::Given(location)), _) => (location, false),
        (Some(Location::OfStore(_)), Some((last, state))) if !state.is_default_location => {
            return Ok((last.location.clone(), false));
        }
        (Some(Location::OfStore(location) | Location::OfFirst(location)), _) => (location, true),
    };
    let location = check_location(location)?;
    if let Some((last, _)) = last.filter(|(last, _)| last.location != location) {
        return Err(Error::invalid(format!(
            "the table is at {location:?}, and the last export was for {:?}: give that location, or write the metadata anew \
             with rebuild=True",
            last.location
        )));
    }
    Ok((location.to_owned(), is_default))
}

/// What the metadata of a version has beside files.
struct Plan {
    schema: IcebergSchema,
    /// The schema that is added, with its id, and all schemas.
    schema_id: i32,
    schema_json: Value,
    schemas: Vec<Value>,
    location: String,
    state: IcebergExportState,
}

impl Plan {
    fn new(
        version: &LoadedVersion,
        left_out: Vec<u32>,
        (location, is_default_location): (String, bool),
        last: Option<&(IcebergMetadata, IcebergExportState)>,
        new_epoch: u128,
    ) -> Result<Self> {
        let epoch = last.map_or_else(|| format!("{new_epoch:032x}"), |(_, s)| s.epoch.clone());
        let last = last.map(|(metadata, _)| metadata);
        let manifest = &version.manifest;
        let schema = IcebergSchema::new(manifest, &version.columns, &left_out)?;
        let mut schemas = last.map(|last| last.schemas.clone()).unwrap_or_default();
        let columns = schema.to_json();
        let with_id = |id: &Value| {
            let mut schema = columns.clone();
            schema["schema-id"] = id.clone();
            schema
        };
        let ids = schemas
            .iter()
            .filter_map(|schema| schema["schema-id"].as_i64());
        let next = ids.max().map_or(0, |last| last.saturating_add(1));
        // A schema that comes back gets another id, so that no name of a manifest comes back that a vacuum may remove.
        let known = schemas.iter().find(|schema| {
            let id = &schema["schema-id"];
            last.is_some_and(|last| *id == last.current_schema_id) && with_id(id) == **schema
        });
        let schema_json = known.cloned().unwrap_or_else(|| with_id(&json!(next)));
        if known.is_none() {
            schemas.push(schema_json.clone());
        }
        let schema_id = schema_json["schema-id"].as_i64().unwrap_or_default();
        Ok(Self {
            schema,
            schema_id: i32::try_from(schema_id).unwrap_or_default(),
            schema_json,
            schemas,
            location,
            state: IcebergExportState {
                version: manifest.version,
                commit_id: manifest.commit_id.clone(),
                left_out,
                last_id: manifest.schema.last_id,
                is_default_location,
                epoch,
            },
        })
    }

    fn writer<'p>(&'p self, table: &'p Table, writes: bool) -> SnapshotWriter<'p> {
        let schema = (self.schema_id, self.schema_json.to_string());
        let location = (self.location.as_str(), self.state.epoch.as_str());
        SnapshotWriter::new(table, location, &self.schema, schema, writes)
    }
}

/// Writes a version: manifests, their list, and the metadata. Returns the metadata and the bytes that were written.
async fn write(
    table: &Table,
    version: &LoadedVersion,
    plan: &Plan,
    last: Option<IcebergMetadata>,
) -> Result<(IcebergMetadata, u64)> {
    let manifest = &version.manifest;
    let previous = match &last {
        Some(last) => Previous::load(table, last).await?,
        None => Previous::default(),
    };
    let mut writer = plan.writer(table, true);
    let listed = writer.write(version, &previous).await?;
    let snapshot_id = metadata::snapshot_id(&manifest.commit_id);
    let mut snapshots = earlier_snapshots(manifest, last.as_ref());
    let parent = snapshots.last().map(|parent| parent.id);
    let ids = (snapshot_id, parent);
    let manifest_list = writer.write_list(ids, manifest.version, &listed).await?;
    let is_data = |m: &&ListedManifest| m.content == Content::Data;
    let (data, deletes): (Vec<_>, Vec<_>) = listed.iter().partition(is_data);
    let counts = [
        ("total-data-files", data.iter().map(|m| m.files).sum()),
        ("total-records", data.iter().map(|m| m.rows).sum()),
        ("total-delete-files", deletes.iter().map(|m| m.files).sum()),
        (
            "total-position-deletes",
            deletes.iter().map(|m| m.rows).sum(),
        ),
    ];
    snapshots.push(IcebergSnapshot {
        id: snapshot_id,
        parent_snapshot_id: parent,
        sequence_number: manifest.version,
        timestamp_ms: version.millis(),
        manifest_list,
        summary: metadata::summary(manifest, counts),
        schema_id: plan.schema_id,
    });
    let table_uuid = match &last {
        Some(last) => last.table_uuid.clone(),
        None => to_uuid(read_identity(table, manifest).await?.commit_id.as_str()),
    };
    let metadata = build(version, plan, last.as_ref(), snapshots, table_uuid);
    let metadata_bytes = metadata.to_bytes().len() as u64;
    progress::add_bytes(metadata_bytes);
    let bytes = writer.bytes + metadata_bytes;
    let present = folder::create(table, manifest, &metadata).await?;
    let Some((present, state)) = present else {
        return Ok((metadata, bytes));
    };
    if state.left_out != plan.state.left_out || present.location != plan.location {
        return Err(Error::invalid(
            "another export, which left out other columns or was for another location, was faster; with rebuild=True the \
             metadata is written anew",
        ));
    }
    Ok((present, bytes))
}

/// The snapshots of the last export that the version still has.
fn earlier_snapshots(
    manifest: &TableManifest,
    last: Option<&IcebergMetadata>,
) -> Vec<IcebergSnapshot> {
    let snapshots = last.iter().flat_map(|last| last.snapshots.clone());
    let retained = snapshots.filter(|snapshot| manifest.retains(snapshot.version()));
    let retained: Vec<IcebergSnapshot> = retained.collect();
    // With the one of this version.
    let surplus = (retained.len() + 1).saturating_sub(MAX_SNAPSHOTS);
    let is_tagged =
        |snapshot: &IcebergSnapshot| manifest.tags.values().any(|v| *v == snapshot.version());
    let numbered = retained.into_iter().enumerate();
    numbered
        .filter(|(at, snapshot)| *at >= surplus || is_tagged(snapshot))
        .map(|(_, snapshot)| snapshot)
        .collect()
}

fn build(
    version: &LoadedVersion,
    plan: &Plan,
    last: Option<&IcebergMetadata>,
    snapshots: Vec<IcebergSnapshot>,
    table_uuid: String,
) -> IcebergMetadata {
    let manifest = &version.manifest;
    let older = snapshots.split_last().map_or(&[][..], |(_, older)| older);
    let earlier = older.iter().map(|snapshot| {
        let file = folder::name(snapshot.version());
        json!({
            "metadata-file": format!("{}/{FOLDER}/{file}", plan.location),
            "timestamp-ms": snapshot.timestamp_ms,
        })
    });
    let snapshot_log = snapshots
        .iter()
        .map(|s| json!({"snapshot-id": s.id, "timestamp-ms": s.timestamp_ms}));
    // Names of files without ids; of columns that were dropped, too, for the snapshots that have them.
    let mut mapping = last.map(IcebergMetadata::name_mapping).unwrap_or_default();
    let has_names = |listed: &SnapshotFile| listed.file.columns.is_some();
    if !mapping.is_empty() || version.files.iter().any(has_names) {
        plan.schema.extend_mapping(&mut mapping);
    }
    IcebergMetadata {
        format_version: 2,
        table_uuid,
        location: plan.location.clone(),
        last_sequence_number: manifest.version,
        last_updated_ms: version.millis(),
        last_column_id: manifest.schema.last_id,
        current_schema_id: plan.schema_id,
        schemas: plan.schemas.clone(),
        default_spec_id: 0,
        partition_specs: vec![json!({"spec-id": 0, "fields": []})],
        last_partition_id: 999,
        default_sort_order_id: 0,
        sort_orders: vec![json!({"order-id": 0, "fields": []})],
        properties: metadata::properties(&plan.state, &plan.location, &mapping),
        current_snapshot_id: metadata::snapshot_id(&manifest.commit_id),
        snapshot_log: snapshot_log.collect(),
        earlier: earlier.collect(),
        refs: metadata::refs(manifest, &snapshots),
        snapshots,
    }
}
