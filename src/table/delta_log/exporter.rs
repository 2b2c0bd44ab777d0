//! Exports versions: vectors first, then the file of the version.
//!
//! An `Exporter` goes from version to version. A log begins with a checkpoint (`begin`); then each version is a commit
//! with the differences from the one before (`export`), and some versions get a checkpoint (`checkpoint`). What is
//! named comes first: vectors before the commit, the first checkpoint before the commit of its version. A commit is
//! created only where there is none. If another export was faster, this one goes on from the state that the other wrote
//! beside its commit, so both write one log. A version that readers of Delta would read wrongly is refused before its
//! commit.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::PutMode;

use super::actions::{Action, CommitInfo, DeltaExportState, DeltaMetadata, Protocol, to_lines};
use super::checkpoint::CheckpointWriter;
use super::file_check::check_file;
use super::log_files::{self, Match};
use super::protocol;
use super::schema::{DeltaSchema, TYPE_WIDENING};
use super::vectors::{DeletedRows, deleted_rows};
use super::version::LogFileChanges;
use crate::error::{Error, Result};
use crate::sync::progress;
use crate::table::Table;
use crate::table::export::{DeletionKey, LoadedVersion, needs_encoding, to_uuid};
use crate::table::format::TableManifest;
use crate::versions::TimestampMicros;

/// The number of files that are opened, and of vectors that are written, at once.
const CONCURRENT_FILES: usize = 16;
/// The number of files whose actions of a checkpoint are in memory at once.
const CHECKPOINT_FILES: usize = 8192;
/// Longer parameters of an operation are left out.
const MAX_PARAMETER_BYTES: usize = 4096;
/// The features of every export: time travel by our times, and no other writer.
const ALWAYS: [&str; 2] = ["inCommitTimestamp", "pds-readOnly"];

/// Exports the versions of a table, one after the other.
pub(super) struct Exporter<'t> {
    table: &'t Table,
    left_out: Vec<u32>,
    table_id: String,
    created_at: TimestampMicros,
    epoch: String,
    features: BTreeSet<String>,
    /// Of the newest version that was exported; None before the first.
    metadata_hash: Option<String>,
    last: Option<DeltaExportState>,
    /// The deleted rows that were computed for the newest version.
    computed: HashMap<DeletionKey, DeletedRows>,
    pub(super) versions: u64,
    pub(super) bytes: u64,
    /// Those of vectors.
    vector_bytes: u64,
}

/// What a version has beside files.
struct Head {
    schema: DeltaSchema,
    protocol: Protocol,
    metadata: DeltaMetadata,
    metadata_hash: String,
    is_new_protocol: bool,
}

/// A checkpoint in memory.
pub(super) struct EncodedCheckpoint {
    bytes: Bytes,
    actions: usize,
    state: DeltaExportState,
}

impl<'t> Exporter<'t> {
    /// Begins a log; the table's identity in Delta follows from a manifest.
    pub(super) fn new(table: &'t Table, identity: &TableManifest, left_out: Vec<u32>) -> Self {
        Self {
            table,
            left_out,
            table_id: to_uuid(identity.commit_id.as_str()),
            created_at: identity.created_at,
            epoch: format!("{:032x}", table.store().clock().new_id()),
            features: BTreeSet::new(),
            metadata_hash: None,
            last: None,
            computed: HashMap::new(),
            versions: 0,
            bytes: 0,
            vector_bytes: 0,
        }
    }

    fn count_bytes(&mut self, count: u64) {
        self.bytes += count;
        progress::add_bytes(count);
    }

    /// The bytes that were written to the log itself.
    pub(super) fn log_bytes(&self) -> u64 {
        self.bytes - self.vector_bytes
    }

    /// Goes on after the newest export, with these columns left out.
    pub(super) fn after(
        table: &'t Table,
        newest: &TableManifest,
        last: DeltaExportState,
        left_out: Vec<u32>,
    ) -> Self {
        let mut exporter = Self::new(table, newest, Vec::new());
        exporter.adopt(last);
        exporter.left_out = left_out;
        exporter
    }

    /// Begins a log at a version, or goes on after a gap. Other exports may do so at once: the first one to write the
    /// version decides what it has beside files.
    pub(super) async fn begin(
        &mut self,
        older: Option<&LoadedVersion>,
        version: &LoadedVersion,
    ) -> Result<()> {
        let is_gap = self
            .last
            .as_ref()
            .is_none_or(|last| last.version + 1 < version.manifest.version);
        self.metadata_hash = None;
        let checkpoint = self.build_checkpoint(version, true).await?;
        // First, because without a checkpoint readers would take the differences for the whole.
        let number = version.manifest.version;
        let EncodedCheckpoint { bytes, state, .. } = &checkpoint;
        self.count_bytes(bytes.len() as u64);
        log_files::place_checkpoint(self.table, number, bytes, state, Match::Commit).await?;
        self.write(older, version, is_gap).await?;
        if self.last.as_ref() == Some(&checkpoint.state) {
            return self.place_checkpoint(version, checkpoint).await;
        }
        self.checkpoint(version).await
    }

    /// Writes the file of a version: how it differs from the version before. If another export has written it, goes on
    /// from what that one says.
    pub(super) async fn export(
        &mut self,
        older: &LoadedVersion,
        version: &LoadedVersion,
    ) -> Result<()> {
        self.write(Some(older), version, false).await
    }

    /// As [`Self::export`]. After a gap nobody has read the version before: what was deleted in it need not be known.
    async fn write(
        &mut self,
        older: Option<&LoadedVersion>,
        version: &LoadedVersion,
        is_gap: bool,
    ) -> Result<()> {
        let head = self.head(version)?;
        let is_new_protocol = head.is_new_protocol || self.needs_more(older, version)?;
        let changes = version.changes_since(older);
        let new_entries = [&changes.added[..], &changes.replaced].concat();
        self.check_files(version, &new_entries, &head.schema)
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
            match self.deleted_rows(older, &old_files, false).await {
                Err(e) if is_gap => {
                    log::info!("the deleted rows of the version before are not known: {e}");
                }
                old_rows => self.computed.extend(old_rows?),
            }
        }
        let new_files: Vec<usize> = changes.changed.iter().map(|(_, new)| *new).collect();
        let new_files = [&changes.added[..], &new_files].concat();
        let new_rows = self.deleted_rows(version, &new_files, true).await?;
        refuse_escaped(version, &new_files, &new_rows)?;
        actions.extend(self.file_actions(older, version, &changes, &new_rows, &head.schema));
        let bytes = to_lines(&actions);
        self.count_bytes(bytes.len() as u64);
        let manifest = &version.manifest;
        let written = log_files::create_commit(self.table, manifest, bytes, state).await?;
        self.versions += 1;
        self.adopt(written);
        self.computed = new_rows;
        Ok(())
    }

    /// Whether readers must know more of a version than of the one before: a checkpoint of that one may say no more.
    fn needs_more(&self, older: Option<&LoadedVersion>, version: &LoadedVersion) -> Result<bool> {
        let Some(older) = older else { return Ok(true) };
        let needed = |version: &LoadedVersion| {
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
    fn adopt(&mut self, state: DeltaExportState) {
        self.left_out.clone_from(&state.left_out);
        self.table_id.clone_from(&state.table_id);
        self.created_at = state.created_at;
        self.epoch.clone_from(&state.epoch);
        self.features = state.features.iter().cloned().collect();
        self.metadata_hash = Some(state.metadata_hash.clone());
        self.last = Some(state);
    }

    /// The ids of the columns that are left out.
    pub(super) fn left_out(&self) -> &[u32] {
        &self.left_out
    }

    fn file_actions(
        &self,
        older: Option<&LoadedVersion>,
        version: &LoadedVersion,
        changes: &LogFileChanges,
        new_rows: &HashMap<DeletionKey, DeletedRows>,
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
            let has_same_vector = older.is_some_and(|older| {
                rows_of(older, *old, old_rows) == rows_of(version, *new, new_rows)
            });
            if !has_same_vector {
                actions.extend(remove(*old));
            }
            // The entry of a path with the same vector replaces the one before it.
            if !has_same_vector || changes.replaced.contains(new) {
                actions.extend(add(*new));
            }
        }
        actions.extend(changes.added.iter().filter_map(|new| add(*new)));
        actions
    }

    /// Refuses a version that cannot be exported; writes nothing.
    pub(super) async fn check(&mut self, version: &LoadedVersion) -> Result<()> {
        let head = self.head(version)?;
        let all: Vec<usize> = (0..version.files.len()).collect();
        for files in all.chunks(CHECKPOINT_FILES) {
            self.check_files(version, files, &head.schema).await?;
            let rows = self.deleted_rows(version, files, false).await?;
            refuse_escaped(version, files, &rows)?;
        }
        Ok(())
    }

    /// Writes the checkpoint of a version whose file is written.
    pub(super) async fn checkpoint(&mut self, version: &LoadedVersion) -> Result<()> {
        let checkpoint = self.build_checkpoint(version, false).await?;
        self.count_bytes(checkpoint.bytes.len() as u64);
        self.place_checkpoint(version, checkpoint).await
    }

    async fn place_checkpoint(
        &self,
        version: &LoadedVersion,
        checkpoint: EncodedCheckpoint,
    ) -> Result<()> {
        let version = version.manifest.version;
        let EncodedCheckpoint {
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
        version: &LoadedVersion,
        checks_files: bool,
    ) -> Result<EncodedCheckpoint> {
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
            refuse_escaped(version, files, &rows)?;
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
        Ok(EncodedCheckpoint {
            bytes,
            actions,
            state,
        })
    }

    fn state_of(&self, version: &LoadedVersion, head: &Head) -> DeltaExportState {
        DeltaExportState {
            version: version.manifest.version,
            commit_id: version.manifest.commit_id.clone(),
            features: self.features.iter().cloned().collect(),
            left_out: self.left_out.clone(),
            last_id: version.manifest.schema.last_id,
            table_id: self.table_id.clone(),
            created_at: self.created_at,
            metadata_hash: head.metadata_hash.clone(),
            epoch: self.epoch.clone(),
        }
    }

    /// What the version has beside files. Features that it needs stay.
    fn head(&mut self, version: &LoadedVersion) -> Result<Head> {
        let schema = DeltaSchema::new(&version.manifest, &version.columns, &self.left_out)?;
        let needed = version.features(&schema)?.into_iter().chain(ALWAYS);
        let known = self.features.len();
        self.features.extend(needed.map(str::to_owned));
        let metadata = protocol::metadata(&schema, &self.features, &self.table_id, self.created_at);
        let metadata_hash = protocol::hash(&metadata);
        Ok(Head {
            protocol: protocol::protocol(&self.features),
            metadata,
            metadata_hash,
            // A log begins with its protocol.
            is_new_protocol: self.features.len() > known || self.metadata_hash.is_none(),
            schema,
        })
    }

    fn commit_info(version: &LoadedVersion, state: DeltaExportState) -> Action {
        let operation = &version.manifest.operation;
        // The first line of the file stays short, whatever a filter lists.
        let parameters = operation
            .details
            .iter()
            .map(|(name, value)| (name.clone(), value.to_string()))
            .filter(|(_, value)| value.len() <= MAX_PARAMETER_BYTES);
        Action::CommitInfo(Box::new(CommitInfo {
            timestamp: version.millis(),
            in_commit_timestamp: version.millis(),
            operation: operation.name.to_uppercase(),
            operation_parameters: parameters.collect(),
            engine_info: concat!("pds/", env!("CARGO_PKG_VERSION")).to_owned(),
            pds: Some(state),
        }))
    }

    /// Refuses files that readers of Delta would read wrongly.
    async fn check_files(
        &self,
        version: &LoadedVersion,
        files: &[usize],
        schema: &DeltaSchema,
    ) -> Result<()> {
        let reader = version.reader(self.table, files).await?;
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
        version: &LoadedVersion,
        files: &[usize],
        writes: bool,
    ) -> Result<HashMap<DeletionKey, DeletedRows>> {
        let keys = |file: &usize| Some((*file, version.deletion_key(*file)?.clone()));
        let (known, unknown): (Vec<_>, Vec<_>) = files
            .iter()
            .filter_map(keys)
            .partition(|(_, key)| self.computed.contains_key(key));
        let known = known.into_iter().filter_map(|(_, key)| {
            let rows = self.computed.get(&key)?.clone();
            Some((key, rows))
        });
        let mut rows: HashMap<DeletionKey, DeletedRows> = known.collect();
        let positions: Vec<usize> = unknown.iter().map(|(file, _)| *file).collect();
        let reader = version.reader(self.table, &positions).await?;
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
            self.count_bytes(written);
            self.vector_bytes += written;
            rows.insert(key, file_rows);
        }
        Ok(rows)
    }
}

/// Refuses files with deleted rows whose names are other texts in the log: polars reads their rows as if they were not
/// deleted.
fn refuse_escaped(
    version: &LoadedVersion,
    files: &[usize],
    rows: &HashMap<DeletionKey, DeletedRows>,
) -> Result<()> {
    for file in files {
        let path = &version.files[*file].file.path;
        if needs_encoding(path) && matches!(rows_of(version, *file, rows), DeletedRows::Some(_)) {
            return Err(Error::invalid(format!(
                "the file {path:?} has deleted rows and a name with characters that readers of Delta do not agree about: \
                 rewrite it, for example by `optimize.sort`"
            )));
        }
    }
    Ok(())
}

/// The deleted rows of a file, of those that were computed.
fn rows_of(
    version: &LoadedVersion,
    file: usize,
    rows: &HashMap<DeletionKey, DeletedRows>,
) -> DeletedRows {
    let key = version.deletion_key(file);
    key.and_then(|key| rows.get(key))
        .cloned()
        .unwrap_or(DeletedRows::None)
}
