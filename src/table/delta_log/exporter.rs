//! Exports versions: vectors first, then the file of the version.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;

use super::actions::{Action, CommitInfo, ExportState, Format, Metadata, Protocol, to_lines};
use super::checkpoint::CheckpointWriter;
use super::file_check::check_file;
use super::log_files::{self, Match};

use super::schema::{COLUMN_MAPPING, DELETION_VECTORS, DeltaSchema, TIMESTAMP_NTZ, TYPE_WIDENING};
use super::vectors::{DeletedRows, VectorKey, deleted_rows, to_uuid};
use super::version::{FileChanges, Version};
use crate::error::{Error, Result};
use crate::sync::hash::Sha3;
use crate::table::Table;
use crate::table::format::TableManifest;
use crate::table::snapshot_reader::SnapshotReader;
use crate::versions::TimestampMicros;

/// The number of files that are opened, and of vectors that are written, at once.
const CONCURRENT_FILES: usize = 16;
/// The number of files whose actions of a checkpoint are in memory at once.
const CHECKPOINT_FILES: usize = 8192;
/// What readers, too, must know; the other features are about writers.
const READER_FEATURES: [&str; 4] = [
    COLUMN_MAPPING,
    DELETION_VECTORS,
    TIMESTAMP_NTZ,
    TYPE_WIDENING,
];
/// The features of every export: time travel by our times, and no other writer.
const ALWAYS: [&str; 2] = ["inCommitTimestamp", "pds-readOnly"];

/// Exports the versions of a table, one after the other.
pub(super) struct Exporter<'t> {
    table: &'t Table,
    left_out: Vec<u32>,
    table_id: String,
    created_at: TimestampMicros,
    features: BTreeSet<String>,
    /// Of the newest version that was exported; None if there is none.
    metadata_hash: Option<String>,
    last: Option<ExportState>,
    /// The deleted rows that were computed for the newest version.
    computed: HashMap<VectorKey, DeletedRows>,
    pub(super) versions: u64,
    pub(super) bytes: u64,
}

/// What a version has beside files.
struct Head {
    schema: DeltaSchema,
    protocol: Protocol,
    metadata: Metadata,
    metadata_hash: String,
    is_new_protocol: bool,
}

/// A checkpoint in memory.
pub(super) struct Checkpoint {
    bytes: Bytes,
    actions: usize,
    state: ExportState,
}

impl<'t> Exporter<'t> {
    /// Begins a log; the table's identity in Delta follows from a manifest.
    pub(super) fn new(table: &'t Table, identity: &TableManifest, left_out: Vec<u32>) -> Self {
        Self {
            table,
            left_out,
            table_id: to_uuid(identity.commit_id.as_str()),
            created_at: identity.created_at,
            features: BTreeSet::new(),
            metadata_hash: None,
            last: None,
            computed: HashMap::new(),
            versions: 0,
            bytes: 0,
        }
    }

    /// Goes on after the newest export.
    pub(super) fn after(table: &'t Table, last: ExportState) -> Self {
        let mut exporter = Self {
            table,
            left_out: Vec::new(),
            table_id: String::new(),
            created_at: last.created_at,
            features: BTreeSet::new(),
            metadata_hash: None,
            last: None,
            computed: HashMap::new(),
            versions: 0,
            bytes: 0,
        };
        exporter.adopt(last);
        exporter
    }

    /// Begins a log at a version, or goes on after a gap. Other exports may do so at once: the first one to write the
    /// version decides what it has beside files.
    pub(super) async fn begin(&mut self, older: Option<&Version>, version: &Version) -> Result<()> {
        self.metadata_hash = None;
        let checkpoint = self.build_checkpoint(version, true).await?;
        // First, because without a checkpoint readers would take the differences for the whole.
        let number = version.manifest.version;
        let Checkpoint { bytes, state, .. } = &checkpoint;
        self.bytes += bytes.len() as u64;
        log_files::place_checkpoint(self.table, number, bytes, state, Match::Commit).await?;
        self.export(older, version).await?;
        if self.last.as_ref() == Some(&checkpoint.state) {
            return self.place_checkpoint(version, checkpoint).await;
        }
        self.checkpoint(version).await
    }

    /// Writes the file of a version: how it differs from the version before. If another export has written it, goes on
    /// from what that one says.
    pub(super) async fn export(
        &mut self,
        older: Option<&Version>,
        version: &Version,
    ) -> Result<()> {
        let head = self.head(version)?;
        let is_new_protocol = head.is_new_protocol || self.needs_more(older, version)?;
        let changes = version.changes_since(older);
        self.check_files(version, &changes.added, &head.schema)
            .await?;
        let state = self.state_of(version, &head);
        let mut actions = vec![Self::commit_info(version, state.clone())];
        if is_new_protocol {
            actions.push(Action::Protocol(head.protocol));
        }
        if self.metadata_hash.as_ref() != Some(&head.metadata_hash) {
            actions.push(Action::MetaData(head.metadata));
        }
        if let Some(older) = older {
            let old_files: Vec<usize> = changes.changed.iter().map(|(old, _)| *old).collect();
            let old_files = [&changes.removed[..], &old_files].concat();
            let old_rows = self.deleted_rows(older, &old_files, false).await?;
            self.computed.extend(old_rows);
        }
        let new_files: Vec<usize> = changes.changed.iter().map(|(_, new)| *new).collect();
        let new_files = [&changes.added[..], &new_files].concat();
        let new_rows = self.deleted_rows(version, &new_files, true).await?;
        actions.extend(self.file_actions(older, version, &changes, &new_rows, &head.schema));
        let bytes = to_lines(&actions);
        self.bytes += bytes.len() as u64;
        let manifest = &version.manifest;
        let written = log_files::create_commit(self.table, manifest, bytes, state).await?;
        self.versions += 1;
        self.adopt(written);
        self.computed = new_rows;
        Ok(())
    }

    /// Whether readers must know more of a version than of the one before: a checkpoint of that one may say no more.
    fn needs_more(&self, older: Option<&Version>, version: &Version) -> Result<bool> {
        let Some(older) = older else { return Ok(true) };
        let needed = |version: &Version| {
            let schema = DeltaSchema::new(&version.manifest, &version.columns, &self.left_out)?;
            version.features(&schema)
        };
        // One that could not be exported has no checkpoint.
        let Ok(known) = needed(older) else {
            return Ok(true);
        };
        Ok(!needed(version)?.is_subset(&known))
    }

    /// Goes on from what an export says.
    fn adopt(&mut self, state: ExportState) {
        self.left_out.clone_from(&state.left_out);
        self.table_id.clone_from(&state.table_id);
        self.created_at = state.created_at;
        self.features = state.features.iter().cloned().collect();
        self.metadata_hash = Some(state.metadata_hash.clone());
        self.last = Some(state);
    }

    /// The newest export; `None` if there is none.
    pub(super) fn last(&self) -> Option<&ExportState> {
        self.last.as_ref()
    }

    /// The ids of the columns that are left out.
    pub(super) fn left_out(&self) -> &[u32] {
        &self.left_out
    }

    fn file_actions(
        &self,
        older: Option<&Version>,
        version: &Version,
        changes: &FileChanges,
        new_rows: &HashMap<VectorKey, DeletedRows>,
        schema: &DeltaSchema,
    ) -> Vec<Action> {
        let data_change = !version.is_rewrite();
        let old_rows = &self.computed;
        let remove = |old: usize| {
            let older = older?;
            let file = &older.files[old].file;
            let rows = rows_of(older, old, old_rows);
            let has_rows = !rows.is_all();
            has_rows.then(|| Action::Remove(version.remove(file, rows.into_vector(), data_change)))
        };
        let add = |new: usize| {
            let rows = rows_of(version, new, new_rows);
            let has_rows = !rows.is_all();
            has_rows.then(|| Action::Add(version.add(new, schema, rows.into_vector(), data_change)))
        };
        let mut actions: Vec<Action> = changes
            .removed
            .iter()
            .filter_map(|old| remove(*old))
            .collect();
        for (old, new) in &changes.changed {
            let is_same = older.is_some_and(|older| {
                rows_of(older, *old, old_rows) == rows_of(version, *new, new_rows)
                    && older.files[*old]
                        .file
                        .has_rows_of(&version.files[*new].file)
            });
            if !is_same {
                actions.extend(remove(*old).into_iter().chain(add(*new)));
            }
        }
        actions.extend(changes.added.iter().filter_map(|new| add(*new)));
        actions
    }

    /// Refuses a version that cannot be exported.
    pub(super) async fn check(&mut self, version: &Version) -> Result<()> {
        self.build_checkpoint(version, true).await.map(drop)
    }

    /// Writes the checkpoint of a version whose file is written.
    pub(super) async fn checkpoint(&mut self, version: &Version) -> Result<()> {
        let checkpoint = self.build_checkpoint(version, false).await?;
        self.bytes += checkpoint.bytes.len() as u64;
        self.place_checkpoint(version, checkpoint).await
    }

    async fn place_checkpoint(&self, version: &Version, checkpoint: Checkpoint) -> Result<()> {
        let version = version.manifest.version;
        let Checkpoint {
            bytes,
            actions,
            state,
        } = checkpoint;
        log_files::place_checkpoint(self.table, version, &bytes, &state, Match::State).await?;
        log_files::name_checkpoint(self.table, version, actions).await
    }

    /// All files of a version.
    async fn build_checkpoint(
        &mut self,
        version: &Version,
        checks_files: bool,
    ) -> Result<Checkpoint> {
        let head = self.head(version)?;
        let state = self.state_of(version, &head);
        let mut writer = CheckpointWriter::new(&state)?;
        writer.write(&[
            Action::Protocol(head.protocol),
            Action::MetaData(head.metadata),
        ])?;
        let all: Vec<usize> = (0..version.files.len()).collect();
        for files in all.chunks(CHECKPOINT_FILES) {
            if checks_files {
                self.check_files(version, files, &head.schema).await?;
            }
            let rows = self.deleted_rows(version, files, true).await?;
            let added = files.iter().filter_map(|file| {
                let rows = rows_of(version, *file, &rows);
                let has_rows = !rows.is_all();
                has_rows.then(|| {
                    Action::Add(version.add(*file, &head.schema, rows.into_vector(), false))
                })
            });
            writer.write(&added.collect::<Vec<_>>())?;
        }
        let actions = writer.actions;
        let bytes = writer.finish()?;
        Ok(Checkpoint {
            bytes,
            actions,
            state,
        })
    }

    fn state_of(&self, version: &Version, head: &Head) -> ExportState {
        ExportState {
            version: version.manifest.version,
            commit_id: version.manifest.commit_id.clone(),
            features: self.features.iter().cloned().collect(),
            left_out: self.left_out.clone(),
            table_id: self.table_id.clone(),
            created_at: self.created_at,
            metadata_hash: head.metadata_hash.clone(),
        }
    }

    /// What the version has beside files. Features that it needs stay.
    fn head(&mut self, version: &Version) -> Result<Head> {
        let schema = DeltaSchema::new(&version.manifest, &version.columns, &self.left_out)?;
        let needed = version.features(&schema)?.into_iter().chain(ALWAYS);
        let known = self.features.len();
        self.features.extend(needed.map(str::to_owned));
        let metadata = self.metadata(&schema);
        let metadata_hash = hash_text(&serde_json::to_string(&metadata).unwrap_or_default());
        Ok(Head {
            protocol: self.protocol(),
            metadata,
            metadata_hash,
            // A log begins with its protocol.
            is_new_protocol: self.features.len() > known || self.metadata_hash.is_none(),
            schema,
        })
    }

    fn protocol(&self) -> Protocol {
        let features = self.features.iter();
        let reader_features: Vec<String> = features
            .filter(|feature| READER_FEATURES.contains(&feature.as_str()))
            .cloned()
            .collect();
        Protocol {
            min_reader_version: if reader_features.is_empty() { 1 } else { 3 },
            min_writer_version: 7,
            reader_features: (!reader_features.is_empty()).then_some(reader_features),
            writer_features: self.features.iter().cloned().collect(),
        }
    }

    fn metadata(&self, schema: &DeltaSchema) -> Metadata {
        let mut configuration = BTreeMap::from([(
            "delta.enableInCommitTimestamps".to_owned(),
            "true".to_owned(),
        )]);
        let mut set = |name: &str, value: String| configuration.insert(name.to_owned(), value);
        if self.features.contains(COLUMN_MAPPING) {
            set("delta.columnMapping.mode", "name".to_owned());
            set(
                "delta.columnMapping.maxColumnId",
                schema.last_id().to_string(),
            );
        }
        if self.features.contains(TYPE_WIDENING) {
            set("delta.enableTypeWidening", "true".to_owned());
        }
        Metadata {
            id: self.table_id.clone(),
            format: Format {
                provider: "parquet".to_owned(),
                options: BTreeMap::new(),
            },
            schema_string: schema.to_json(&self.features),
            partition_columns: Vec::new(),
            configuration,
            created_time: self.created_at.as_micros().div_euclid(1000),
        }
    }

    fn commit_info(version: &Version, state: ExportState) -> Action {
        let operation = &version.manifest.operation;
        let parameters = operation.details.iter();
        Action::CommitInfo(Box::new(CommitInfo {
            timestamp: version.millis(),
            in_commit_timestamp: version.millis(),
            operation: operation.name.to_uppercase(),
            operation_parameters: parameters
                .map(|(k, v)| (k.clone(), v.to_string()))
                .collect(),
            engine_info: concat!("pds/", env!("CARGO_PKG_VERSION")).to_owned(),
            pds: Some(state),
        }))
    }

    async fn reader(&self, version: &Version, files: &[usize]) -> Result<SnapshotReader> {
        let files = files.iter().map(|file| version.files[*file].clone());
        let (manifest, columns) = (Arc::clone(&version.manifest), version.columns.clone());
        SnapshotReader::with_files(self.table, manifest, columns, files.collect()).await
    }

    /// Refuses files that readers of Delta would read wrongly.
    async fn check_files(
        &self,
        version: &Version,
        files: &[usize],
        schema: &DeltaSchema,
    ) -> Result<()> {
        let reader = self.reader(version, files).await?;
        let allows_narrower = self.features.contains(TYPE_WIDENING);
        let checks =
            (0..files.len()).map(|file| check_file(&reader, file, schema, allows_narrower));
        // A Vec, because the future of the iterator itself would not be Send.
        let checks: Vec<_> = checks.collect();
        stream::iter(checks)
            .buffer_unordered(CONCURRENT_FILES)
            .try_collect()
            .await
    }

    /// The deleted rows of files that tombstones are about; `writes` the vectors that are objects.
    async fn deleted_rows(
        &mut self,
        version: &Version,
        files: &[usize],
        writes: bool,
    ) -> Result<HashMap<VectorKey, DeletedRows>> {
        let keys = |file: &usize| Some((*file, version.vector_key(*file)?.clone()));
        let (known, unknown): (Vec<_>, Vec<_>) = files
            .iter()
            .filter_map(keys)
            .partition(|(_, key)| self.computed.contains_key(key));
        let known = known.into_iter().filter_map(|(_, key)| {
            let rows = self.computed.get(&key)?.clone();
            Some((key, rows))
        });
        let mut rows: HashMap<VectorKey, DeletedRows> = known.collect();
        let positions: Vec<usize> = unknown.iter().map(|(file, _)| *file).collect();
        let reader = self.reader(version, &positions).await?;
        let table = self.table;
        let computations = unknown.iter().enumerate().map(|(at, (_, key))| {
            let reader = &reader;
            async move {
                let (rows, object) = deleted_rows(reader, at, key).await?;
                let Some((path, bytes)) = object.filter(|_| writes) else {
                    return Ok::<_, Error>((key.clone(), rows, 0));
                };
                let size = bytes.len() as u64;
                let path = table.path(&path);
                table.store().put(&path, bytes, PutMode::Overwrite).await?;
                Ok((key.clone(), rows, size))
            }
        });
        let computations: Vec<_> = computations.collect();
        let mut computed = stream::iter(computations).buffer_unordered(CONCURRENT_FILES);
        while let Some((key, file_rows, written)) = computed.try_next().await? {
            self.bytes += written;
            rows.insert(key, file_rows);
        }
        Ok(rows)
    }
}

/// The deleted rows of a file, of those that were computed.
fn rows_of(version: &Version, file: usize, rows: &HashMap<VectorKey, DeletedRows>) -> DeletedRows {
    let key = version.vector_key(file);
    key.and_then(|key| rows.get(key))
        .cloned()
        .unwrap_or(DeletedRows::None)
}

/// The first 32 hexadecimal digits of the hash of a text.
fn hash_text(text: &str) -> String {
    let digest = Sha3::digest(text.as_bytes());
    let (first, _) = digest.split_at(16);
    let number = first
        .iter()
        .fold(0_u128, |number, byte| (number << 8) | u128::from(*byte));
    format!("{number:032x}")
}
